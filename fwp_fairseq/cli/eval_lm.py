"""`fwp-eval-lm CHECKPOINT DATA`: perplexity of a language model, with the paper's sliding window or in one stream."""

import argparse
import json
import math
import sys
import time
from pathlib import Path

from fwp_fairseq import records, wandb_run
from fwp_fairseq.cli.arguments import whole_number
from fwp_fairseq.cli.trained_model import ModelError, check_checkpoint, load_language_model

DESCRIPTION = """\
Perplexity of a language model with a sliding window: every token of the split
but its first is predicted once, with as much context as the model was trained
with. Stride 1, the paper's, predicts one token a window; a larger stride is as
many times faster and gives the tokens less context.

A model that was trained with its state carried on (task.carry_state) reads the
split in one pass instead: consecutive segments, no context ever cut. Its record
has the loss by position in the text."""

EPILOG = """\
examples:
  fwp-eval-lm runs/.../checkpoint_best.pt data/wikitext103/data-bin
  fwp-eval-lm runs/.../checkpoint_best.pt data/mini_lm/data-bin --results results

With --results the run's record is written below DIR/runs; it needs the
training.json that the training left beside the checkpoint. A record that is
there is replaced only by one with the same numbers, evaluated the same way. A
run that diverged gets its record without an evaluation. Exit status: 0 done,
1 something is wrong with the checkpoint or the data, 2 wrong arguments."""


class EvaluationError(Exception):
    """What stands in the way of an evaluation, and the remedy."""


def main(argv=None) -> int:
    """Run the command; returns its exit status."""
    options = _parser().parse_args(argv)
    try:
        evaluate(options)
    # ValueError: what the package raises for settings and data that do not fit
    except (EvaluationError, ModelError, records.RecordError, ValueError) as error:
        print(f"fwp-eval-lm: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; nothing was written", file=sys.stderr)
        return 130
    return 0


def evaluate(options) -> None:
    check_checkpoint(options.checkpoint)
    from fwp_fairseq.sliding_window import check_window
    from fwp_fairseq.tasks.language_model_record import language_model_record
    from fwp_fairseq.tasks.run_record import check_replaces, ended_training

    log = None
    if options.results is not None:
        records.check_writable(options.results)
        log = ended_training(options.checkpoint.parent)
    splits = options.split or (["test"] if log is None else ["valid", "test"])
    cfg, model, dictionary = load_language_model(options.checkpoint, options.data)
    context = choose_context(options, cfg)
    window = options.window or (context == "stream" and cfg.task.tokens_per_sample_eval) or cfg.task.tokens_per_sample
    metrics, curves = {}, {}
    if log is None or log["status"] != "diverged":
        stride = window if context == "stream" else 1 if options.stride is None else options.stride
        metrics = {"context": context, "stride": stride, "window": window}
        if log is not None:
            check_replaces(options.results, log, "ppl", splits, metrics)
        texts = {split: read_split(options.data, split, dictionary) for split in splits}
        for tokens, _ in texts.values():
            check_window(len(tokens) - 1, window, stride)
        for split, (tokens, stats) in texts.items():
            way = f"window {window}, stride {stride}" if context == "window" else f"one stream in segments of {window}"
            print(f"{split}: {len(tokens):,} tokens, {way}", flush=True)
            score, curve, seconds = score_split(model, tokens, context, window, stride, options.batch_size)
            measured = measures(score, stats) | {"seconds": seconds}
            print(describe(split, measured), flush=True)
            metrics.update({f"{split}_{name}": value for name, value in measured.items()})
            if curve is not None:
                curves |= {f"{split}_position": curve.edges.tolist(), f"{split}_position_loss": curve.losses()}
    if log is not None:
        record = language_model_record(cfg, model, dictionary, log, metrics, curves)
        written = records.write_record(options.results, record)
        print(f"record: {written}")
        wandb_run.add_evaluation(options.checkpoint.parent, written)


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
    missing = [name for name in ("tokens", "words", "lines", "bytes") if stats is not None and name not in stats]
    if missing:
        raise EvaluationError(f"{path}: {split} lacks {', '.join(missing)}; make the data anew by its script in data_prep/")
    if stats is not None and stats["tokens"] != len(tokens):
        raise EvaluationError(f"{data}: {split}.bin has {len(tokens)} tokens, text_stats.json says {stats['tokens']}")
    return tokens, stats


def choose_context(options, cfg) -> str:
    """"window" or "stream": as asked for, else as in training. EvaluationError where it does not fit."""
    context = options.context or ("stream" if cfg.task.carry_state else "window")
    if context == "stream" and not cfg.task.carry_state:
        raise EvaluationError(
            f"--context stream: {options.checkpoint} was trained without task.carry_state, on segments of "
            f"{cfg.task.tokens_per_sample} tokens that know nothing of each other; leave the option out"
        )
    if context == "stream" and options.stride is not None:
        raise EvaluationError(f"--stride {options.stride}: a stream has no windows to move; leave it out")
    return context


def score_split(model, tokens, context, window, stride, batch_size):
    """Score, curve of the loss by position (None for windows) and seconds; EvaluationError if a token was missed."""
    from tqdm import tqdm

    from fwp_fairseq.sliding_window import score_text
    from fwp_fairseq.stream_scoring import score_stream

    expected, curve = len(tokens) - 1, None
    started = time.monotonic()
    with tqdm(total=expected, unit="token", unit_scale=True, mininterval=1, dynamic_ncols=True) as bar:

        def progress(score, new):
            bar.set_postfix_str(f"ppl {perplexity(score.loss / score.tokens):.2f}", refresh=False)
            bar.update(new)

        if context == "stream":
            score, curve = score_stream(model, tokens, window, progress)
        else:
            score = score_text(model, tokens, window, stride, batch_size or max(1, 16384 // window), progress)
    if score.tokens != expected:
        raise EvaluationError(f"scored {score.tokens} tokens of {expected}")
    return score, curve, round(time.monotonic() - started, 1)


def measures(score, stats) -> dict:
    """Loss (nats) and perplexity a token; for subwords also bits a byte and a word, and perplexity a word."""
    loss = score.loss / score.tokens
    measured = {"ppl": perplexity(loss), "loss": loss, "tokens": score.tokens}
    # An end of line counts as a word, as in the perplexities that are published for WikiText-103.
    if stats is not None and stats["words"] + stats["lines"] != stats["tokens"]:
        words = stats["words"] + stats["lines"]
        bits = score.loss / math.log(2)
        measured["bits_per_byte"] = bits / stats["bytes"]
        measured["bits_per_word"] = bits / words
        measured["word_ppl"] = perplexity(score.loss / words)
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
    parser.add_argument("--split", action="append", metavar="NAME", help="which split; may be repeated (default: test; "
                        "with --results valid and test)")  # fmt: skip
    parser.add_argument(
        "--context", choices=("window", "stream"), help="sliding window, or one pass with the state carried (default: as in training)"
    )
    parser.add_argument("--stride", type=int, metavar="N", help="tokens between windows (default: 1)")
    parser.add_argument("--window", type=whole_number, metavar="N", help="tokens of a window or segment (default: as in training)")
    parser.add_argument("--batch-size", type=whole_number, metavar="N", help="windows at once (default: 16384 tokens)")
    parser.add_argument("--results", metavar="DIR", help="write the run's record below DIR/runs")
    return parser


if __name__ == "__main__":
    sys.exit(main())
