"""`fwp-eval-lm CHECKPOINT DATA`: perplexity of a language model with the paper's sliding window."""

import argparse
import json
import math
import pickle
import sys
import time
from pathlib import Path

from fwp_fairseq import records

DESCRIPTION = """\
Perplexity of a language model with a sliding window: every token of the split
but its first is predicted once, with as much context as the model was trained
with. Stride 1, the paper's, predicts one token a window; a larger stride is as
many times faster and gives the tokens less context."""

EPILOG = """\
examples:
  fwp-eval-lm runs/.../checkpoint_best.pt data/wikitext103/data-bin
  fwp-eval-lm runs/.../checkpoint_best.pt data/mini_lm/data-bin \\
      --split valid --split test --results results

With --results the run's record is written below DIR/runs; it needs the
training.json that the training left beside the checkpoint. A run that diverged
gets its record without an evaluation. Exit status: 0 done, 1 something is
wrong with the checkpoint or the data, 2 wrong arguments."""


class EvaluationError(Exception):
    """What stands in the way of an evaluation, and the remedy."""


def main(argv=None) -> int:
    """Run the command; returns its exit status."""
    options = _parser().parse_args(argv)
    try:
        evaluate(options)
    # ValueError: what the package raises for settings and data that do not fit
    except (EvaluationError, records.RecordError, ValueError) as error:
        print(f"fwp-eval-lm: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; nothing was written", file=sys.stderr)
        return 130
    return 0


def evaluate(options) -> None:
    if not options.checkpoint.is_file():  # ahead of loading fairseq, which takes seconds
        raise EvaluationError(f"{options.checkpoint}: no such file; name a checkpoint_best.pt of a training")
    from fwp_fairseq.sliding_window import check_window
    from fwp_fairseq.tasks.language_model_record import language_model_record
    from fwp_fairseq.tasks.training_log import read_training_log

    log = None
    if options.results is not None:
        records.check_writable(options.results)
        log = read_training_log(options.checkpoint.parent)
        if log is None:
            raise EvaluationError(f"{options.checkpoint.parent}: no training.json there, so no record can be written")
    cfg, model, dictionary = load_model(options.checkpoint, options.data)
    window = options.window or cfg.task.tokens_per_sample
    metrics = {}
    if log is None or log["status"] != "diverged":
        metrics = {"stride": options.stride, "window": window}
        texts = {split: read_split(options.data, split, dictionary) for split in options.split or ["test"]}
        for tokens, _ in texts.values():
            check_window(len(tokens) - 1, window, options.stride)
        for split, (tokens, stats) in texts.items():
            print(f"{split}: {len(tokens):,} tokens, window {window}, stride {options.stride}", flush=True)
            measured = measure(model, tokens, stats, window, options)
            print(describe(split, measured), flush=True)
            metrics.update({f"{split}_{name}": value for name, value in measured.items()})
    if log is not None:
        record = language_model_record(cfg, model, dictionary, log, metrics)
        print(f"record: {records.write_record(options.results, record)}")


def load_model(checkpoint: Path, data: Path):
    """Configuration, model and dictionary; EvaluationError or ValueError where they do not go together."""
    import torch
    from fairseq import checkpoint_utils

    import fwp_fairseq
    from fwp_fairseq.tasks.language_modeling import (
        FastWeightLanguageModelingTask,
        dictionary_digest,
        load_dictionary,
    )

    fwp_fairseq.register()
    try:
        state = checkpoint_utils.load_checkpoint_to_cpu(str(checkpoint))
    except (RuntimeError, EOFError, OSError, KeyError, pickle.UnpicklingError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise EvaluationError(
            f"{checkpoint} cannot be read ({reason}): it is no checkpoint, or was cut off while it was written"
        )
    cfg = state.get("cfg")
    if cfg is None or getattr(cfg.task, "_name", None) != "fwp_language_modeling":
        raise EvaluationError(f"{checkpoint} is not a language model of this package")
    dictionary = load_dictionary(str(data))
    trained_with = state["extra_state"].get(FastWeightLanguageModelingTask.__name__, {}).get("dictionary")
    if trained_with != dictionary_digest(dictionary):
        raise EvaluationError(
            f"{data}/dict.txt ({len(dictionary):,} symbols) is not the dictionary that {checkpoint} was trained with; "
            "name the data folder of that training"
        )
    model = FastWeightLanguageModelingTask(cfg.task, dictionary).build_model(cfg.model)
    model.load_state_dict(state["model"], strict=True, model_cfg=cfg.model)
    return cfg, model.to("cuda" if torch.cuda.is_available() else "cpu"), dictionary


def read_split(data: Path, split: str, dictionary):
    """Tokens (N,) int64 of a split and its entry of text_stats.json, None where there is none."""
    import numpy as np
    import torch

    from fwp_fairseq.data.token_stream import load_tokens

    tokens = torch.from_numpy(load_tokens(str(data), split, dictionary).astype(np.int64))
    path = data / "text_stats.json"
    if not path.exists():
        return tokens, None
    stats = json.loads(path.read_text()).get(split)
    if stats is not None and stats["tokens"] != len(tokens):
        raise EvaluationError(f"{data}: {split}.bin has {len(tokens)} tokens, text_stats.json says {stats['tokens']}")
    return tokens, stats


def measure(model, tokens, stats, window, options) -> dict:
    """Loss (nats) and perplexity a token; for subwords also bits a byte and a word, and perplexity a word."""
    from tqdm import tqdm

    from fwp_fairseq.sliding_window import score_text

    expected = len(tokens) - 1
    started = time.monotonic()
    with tqdm(total=expected, unit="token", unit_scale=True, mininterval=1, dynamic_ncols=True) as bar:

        def progress(score, new):
            bar.set_postfix_str(f"ppl {perplexity(score.loss / score.tokens):.2f}", refresh=False)
            bar.update(new)

        batch = options.batch_size or max(1, 16384 // window)
        score = score_text(model, tokens, window, options.stride, batch, progress)
    if score.tokens != expected:
        raise EvaluationError(f"scored {score.tokens} tokens of {expected}")
    loss = score.loss / score.tokens
    measured = {"ppl": perplexity(loss), "loss": loss, "tokens": score.tokens}
    # An end of line counts as a word, as in the perplexities that are published for WikiText-103.
    if stats is not None and stats["words"] + stats["lines"] != stats["tokens"]:
        words = stats["words"] + stats["lines"]
        bits = score.loss / math.log(2)
        measured["bits_per_byte"] = bits / stats["bytes"]
        measured["bits_per_word"] = bits / words
        measured["word_ppl"] = perplexity(score.loss / words)
    measured["seconds"] = round(time.monotonic() - started, 1)
    return measured


def perplexity(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf


def describe(split, measured) -> str:
    text = f"{split}: perplexity {measured['ppl']:.3f}, loss {measured['loss']:.4f} over {measured['tokens']:,} tokens"
    if "word_ppl" in measured:
        text += (
            f"\n{split}: {measured['bits_per_byte']:.4f} bits a byte, {measured['bits_per_word']:.4f} bits a word, "
            f"perplexity {measured['word_ppl']:.2f} a word (ends of line counted)"
        )
    return text


def _parser():
    parser = argparse.ArgumentParser(
        prog="fwp-eval-lm",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="a checkpoint of fwp_lm")
    parser.add_argument("data", type=Path, metavar="DATA", help="data-bin folder, with the dictionary of the training")
    parser.add_argument("--split", action="append", metavar="NAME", help="which split; may be repeated (default: test)")
    parser.add_argument("--stride", type=int, default=1, metavar="N", help="tokens between windows (default: 1)")
    parser.add_argument("--window", type=int, metavar="N", help="tokens of a window (default: as in training)")
    parser.add_argument("--batch-size", type=int, metavar="N", help="windows at once (default: 16384 tokens)")
    parser.add_argument("--results", metavar="DIR", help="write the run's record below DIR/runs")
    return parser


if __name__ == "__main__":
    sys.exit(main())
