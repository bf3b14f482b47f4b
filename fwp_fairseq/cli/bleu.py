"""`fwp-bleu GENERATED DATA`: sacreBLEU and tokenised, compound-split BLEU of one translation of a split."""

import argparse
import json
import os
import sys
from pathlib import Path

from fwp_fairseq.bleu import BleuError, read_hypotheses, read_references, score

DESCRIPTION = """\
BLEU of one translation, two ways: sacreBLEU of the detokenised text, with its
signature, and tokenised BLEU with hyphenated compounds split, which most WMT14
English-German numbers from before sacreBLEU are. A sentence that is missing,
there twice or unknown is an error."""

EPILOG = """\
examples:
  fairseq-generate data/mini_mt/data-bin --path checkpoint_best.pt --beam 4 \\
      --lenpen 0.6 --required-batch-size-multiple 1 --gen-subset test > test.txt
  fwp-bleu test.txt data/mini_mt/data-bin --split test --out results/bleu

--out writes DIR/hypotheses.SPLIT.LANGUAGE, plain text in the order of the split,
and DIR/bleu.SPLIT.json. The first score can be had again with
  sacrebleu data/mini_mt/data-bin/ref.test.de -i DIR/hypotheses.test.de
Exit status: 0 done, 1 something is wrong with the files, 2 wrong arguments."""


def main(argv=None) -> int:
    """Run the command; returns its exit status."""
    options = _parser().parse_args(argv)
    try:
        references, language = read_references(options.data, options.split)
        hypotheses = read_hypotheses(options.generated, options.split, len(references), language)
        scores = score(hypotheses, references, language)
        for name, title in (("bleu", "sacreBLEU"), ("bleu_compound_split", "tokenised, compounds split")):
            print(f"{options.split}: {scores[name]:.2f} {title} ({scores[f'{name}_signature']})")
        if options.out is not None:
            plain = "".join(f"{line}\n" for line in hypotheses)
            write_whole(options.out / f"hypotheses.{options.split}.{language}", plain)
            write_whole(options.out / f"bleu.{options.split}.json", json.dumps(scores, indent=1) + "\n")
    except BleuError as error:
        print(f"fwp-bleu: error: {error}", file=sys.stderr)
        return 1
    return 0


def write_whole(path: Path, text: str) -> None:
    """Write a file as a whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise BleuError(f"{path} cannot be written ({error.strerror}); name another folder with --out") from error
    print(f"written: {path}")


def _parser():
    parser = argparse.ArgumentParser(
        prog="fwp-bleu",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "generated", type=Path, metavar="GENERATED", help="output of fairseq-generate, or plain hypotheses, one a line"
    )
    parser.add_argument("data", type=Path, metavar="DATA", help="data-bin folder, which has the references")
    parser.add_argument("--split", default="test", metavar="NAME", help="which split was translated (default: test)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for the hypotheses and a JSON of the scores")
    return parser


if __name__ == "__main__":
    sys.exit(main())
