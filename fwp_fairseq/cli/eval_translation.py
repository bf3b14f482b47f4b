"""`fwp-eval-translation CHECKPOINT DATA`: translates splits with fairseq-generate, scores them, writes the run's record."""

import argparse
import json
import sys
import time
from pathlib import Path

from fwp_fairseq import records, wandb_run
from fwp_fairseq.bleu import BleuError, read_hypotheses, read_lines, read_references, score
from fwp_fairseq.cli.arguments import finite_number, whole_number
from fwp_fairseq.cli.bleu import write_whole
from fwp_fairseq.cli.trained_model import ModelError, check_checkpoint, load_translation_model

DESCRIPTION = """\
Translate splits of a data folder with a trained model, by fairseq-generate with
beam search, and compute both kinds of BLEU (see fwp-bleu). Every sentence must
come out exactly once."""

EPILOG = """\
examples:
  fwp-eval-translation runs/.../checkpoint_best.pt data/mini_mt/data-bin
  fwp-eval-translation runs/.../checkpoint_best.pt data/wmt14_en_de/data-bin \\
      --results results

What fairseq-generate prints is kept as generate-SPLIT.txt beside the checkpoint.
With --results the run's record is written below DIR/runs, and beside it the
hypotheses and some samples; that needs the training.json of the training. A
record that is there is replaced only by one with the same numbers, searched the
same way. A run that diverged gets its record without translations. Exit status:
0 done, 1 something is wrong with the checkpoint or the data, 2 wrong arguments."""

SAMPLES = 10


def main(argv=None) -> int:
    """Run the command; returns its exit status."""
    options = _parser().parse_args(argv)
    try:
        evaluate(options)
    # ValueError: what the package raises for settings and data that do not fit
    except (ModelError, BleuError, records.RecordError, ValueError) as error:
        print(f"fwp-eval-translation: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; no record was written", file=sys.stderr)
        return 130
    return 0


def evaluate(options) -> None:
    check_checkpoint(options.checkpoint)
    splits = options.split or (["test"] if options.results is None else ["valid", "test"])
    references = {split: read_references(options.data, split) for split in splits}
    from fwp_fairseq.tasks.run_record import check_replaces, ended_training
    from fwp_fairseq.tasks.translation_record import translation_record

    way = {"beam": options.beam, "length_penalty": options.lenpen}
    log, lengths = None, None
    if options.results is not None:  # what stands in the way of a record is said ahead of the search
        records.check_writable(options.results)
        log = ended_training(options.checkpoint.parent)
        lengths = mean_lengths(options.data, splits[-1])
        if log["status"] != "diverged":
            check_replaces(options.results, log, "bleu", splits, way)
    cfg, model = load_translation_model(options.checkpoint, options.data)
    metrics, hypotheses = {}, {}
    if log is None or log["status"] != "diverged":
        metrics = dict(way)
        for split, (lines, language) in references.items():
            started = time.monotonic()
            generated = translate(options, split)
            hypotheses[split] = read_hypotheses(generated, split, len(lines), language)
            scores = score(hypotheses[split], lines, language)
            print(f"{split}: {scores['bleu']:.2f} sacreBLEU ({scores['bleu_signature']})")
            print(f"{split}: {scores['bleu_compound_split']:.2f} tokenised, compounds split", flush=True)
            metrics |= {f"{split}_{name}": value for name, value in scores.items()}
            metrics[f"{split}_seconds"] = round(time.monotonic() - started, 1)
    if log is not None:
        record = translation_record(cfg, model, log, metrics, lengths)
        path = records.record_path(options.results, record["experiment"], record["row"], record["seed"], record["cell"])
        if record["scale"] == "mini":
            records.check_no_paper_run(path)
        for split, lines in hypotheses.items():  # ahead of the record, which says that all is there
            write_whole(path.with_suffix(f".{split}.txt"), "".join(f"{line}\n" for line in lines))
        if hypotheses:
            write_samples(path.with_suffix(".samples.tsv"), options.data, splits[-1], references, hypotheses)
        written = records.write_record(options.results, record)
        print(f"record: {written}")
        wandb_run.add_evaluation(options.checkpoint.parent, written)


def translate(options, split: str) -> Path:
    """Runs fairseq-generate on a split; the file with what it printed."""
    from fairseq import options as fairseq_options
    from fairseq_cli.generate import main as generate

    folder = options.checkpoint.parent
    arguments = [str(options.data), "--task", "fwp_translation", "--path", str(options.checkpoint), "--gen-subset", split]
    arguments += ["--beam", str(options.beam), "--lenpen", str(options.lenpen), "--max-tokens", str(options.max_tokens)]
    # without it fairseq leaves out the sentences of a ragged last batch
    arguments += ["--required-batch-size-multiple", "1", "--results-path", str(folder)]
    parser = fairseq_options.get_generation_parser()
    generate(fairseq_options.parse_args_and_arch(parser, arguments))
    return folder / f"generate-{split}.txt"


def mean_lengths(data: Path, split: str) -> tuple:
    """Mean source and target tokens of a sentence, whole numbers, from the data folder's text_stats.json."""
    path = data / "text_stats.json"
    try:
        stats = json.loads(path.read_text())[split]
        source, target = (count for name, count in stats.items() if name.endswith("_tokens"))
        return round(source / stats["pairs"]), round(target / stats["pairs"])
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ModelError(
            f"{path}: has not the numbers of tokens and pairs of {split} ({type(error).__name__}), which a record needs; "
            "make the data by its script in data_prep/"
        )


def write_samples(path: Path, data: Path, split: str, references: dict, hypotheses: dict) -> None:
    """Evenly spaced sentences of a split: source, reference and hypothesis, separated by tabs."""
    lines, language = references[split]
    [source] = [file for file in data.glob(f"src.{split}.*")]
    sources = read_lines(source)
    chosen = range(0, len(lines), max(1, len(lines) // SAMPLES))[:SAMPLES]
    table = [(sources[i], lines[i], hypotheses[split][i]) for i in chosen]
    rows = [("source", "reference", "hypothesis"), *table]
    write_whole(path, "".join("\t".join(cell.replace("\t", " ") for cell in row) + "\n" for row in rows))


def _parser():
    parser = argparse.ArgumentParser(
        prog="fwp-eval-translation",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="a checkpoint of fwp_translation")
    parser.add_argument("data", type=Path, metavar="DATA", help="data-bin folder, with the dictionaries of the training")
    parser.add_argument("--split", action="append", metavar="NAME", help="which split; may be repeated (default: test; "
                        "with --results valid and test)")  # fmt: skip
    parser.add_argument("--beam", type=whole_number, default=4, metavar="N", help="hypotheses kept at a time (default: 4)")
    parser.add_argument("--lenpen", type=finite_number, default=0.6, metavar="X", help="length penalty (default: 0.6)")
    parser.add_argument("--max-tokens", type=whole_number, default=4000, metavar="N", help="source tokens at once (default: 4000)")
    parser.add_argument("--results", metavar="DIR", help="write the run's record below DIR/runs")
    return parser


if __name__ == "__main__":
    sys.exit(main())
