"""Prepares WikiText-103 (word level) for training: download, check, unpack, count, binarise.

    python data_prep/wikitext103.py --dest data/wikitext103

Afterwards `DEST/data-bin` is what the configs take as `task.data`.
"""

import argparse
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from archive import unpack_zip
from download import RemoteFile, obtain
from preprocess import SPLITS, TextStats, binarise, count
from stages import DataError, build, is_complete, locked, run


@dataclass(frozen=True)
class Corpus:
    """What a word-level corpus archive must be: its file, the member of each split, and its counts.

    `tokens`: running tokens of each split, one end-of-line counted per line. `types`: distinct
    words of the training text, end-of-line among them.
    """

    archive: RemoteFile
    members: dict[str, str]
    tokens: dict[str, int]
    types: int


# 267,735 types are the words of the training text, its literal <unk> among them, and end-of-line.
# fairseq's dictionary adds <s> and <pad>, which never occur, and keeps its own <unk> and </s> for the
# text's <unk> and end-of-line: 267,737 entries. Symbols 0 and 1 are the two that never occur, 2 is
# end-of-line, 3 is <unk>, and from 4 on the words go by falling frequency; so `symbol - 2` runs over
# exactly the 267,735 types, with everything frequent inside the first 20,000 as an adaptive softmax
# needs it (words of equal frequency go alphabetically; the authors' code has them in text order).
WIKITEXT103 = Corpus(
    archive=RemoteFile(
        name="wikitext-103-v1.zip",
        # The archive's first home, research.metamind.io on Amazon S3, is gone (access denied since
        # 2024). These serve the same file: one of its authors, and the data store of GluonNLP.
        # fast.ai's wikitext-103.tgz is not on the list: it is another file, with CSV inside.
        urls=(
            "https://wikitext.smerity.com/wikitext-103-v1.zip",
            "https://apache-mxnet.s3-accelerate.dualstack.amazonaws.com/gluon/dataset/wikitext-103/wikitext-103-v1.zip",
        ),
        # Recorded by Hugging Face datasets (datasets/wikitext/dataset_infos.json) for the first home.
        size=190_229_076,
        sha256="242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590",
    ),
    members={split: f"wikitext-103/wiki.{split}.tokens" for split in SPLITS},
    tokens={"train": 103_227_021, "valid": 217_646, "test": 245_569},
    types=267_735,
)


def prepare(corpus: Corpus, dest: Path, source: str | None = None, workers: int = 1) -> Path:
    """Brings `dest/data-bin` to completion from whatever is there already; returns its path.

    source: an http(s) address or a local file to use instead of the corpus's mirrors.
    Raises DataError; what is finished stays, and the next call goes on from there.
    """
    recipe = {"archive": corpus.archive.sha256, "members": corpus.members, "tokens": corpus.tokens, "types": corpus.types}
    data_bin, text = dest / "data-bin", dest / "text"
    with locked(dest):
        if is_complete(data_bin, recipe):
            print(f"{data_bin} is complete; nothing to do")
            return data_bin
        if not is_complete(text, recipe):
            archive = obtain(corpus.archive, dest / "download", source)
            files = {member: f"{split}.txt" for split, member in corpus.members.items()}
            build(text, recipe, lambda folder: unpack_zip(archive, files, folder))
        stats = count_and_check(corpus, text)
        print("fairseq-preprocess (the full corpus takes some minutes) …", flush=True)
        build(data_bin, recipe, lambda folder: binarise(text, stats, folder, workers))
    print(f"{data_bin} is ready")
    return data_bin


def count_and_check(corpus: Corpus, text: Path) -> dict[str, TextStats]:
    """Counts each split; DataError if a count differs from the published one."""
    stats, found = {}, {}
    for split in SPLITS:
        stats[split], words = count(text / f"{split}.txt")
        if stats[split].tokens != corpus.tokens[split]:
            found[f"{split} tokens"] = (stats[split].tokens, corpus.tokens[split])
        if split == "train" and len(words) + 1 != corpus.types:
            found["types"] = (len(words) + 1, corpus.types)
    if found:
        differences = "; ".join(f"{name}: {got:,}, expected {want:,}" for name, (got, want) in found.items())
        raise DataError(f"{text} is not the published corpus ({differences}): check where {corpus.archive.name} is from")
    return stats


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Downloads WikiText-103 (word level, 190 MB), verifies size, checksum, token and word counts, and "
        "calls fairseq-preprocess. Can be stopped at any point: the same command goes on from there, and does nothing "
        "when all is done. Needs about 1.2 GB in DEST.",
        epilog="example: python data_prep/wikitext103.py --dest data/wikitext103   "
        "then train with task.data=data/wikitext103/data-bin",
    )
    parser.add_argument(
        "--dest", type=Path, required=True, metavar="DIR",
        help="folder for everything: DIR/download (the archive), DIR/text, DIR/data-bin (for training)",
    )
    parser.add_argument(
        "--source", metavar="FILE|URL",
        help="your own copy of wikitext-103-v1.zip, or an http(s) address that serves it (default: known mirrors)",
    )
    parser.add_argument(
        "--workers", type=int, default=min(8, os.cpu_count() or 1),
        help="processes for fairseq-preprocess (default: %(default)s)",
    )
    args = parser.parse_args(argv)
    if args.workers < 1:
        parser.error(f"--workers {args.workers}: expected 1 or more")
    return run(lambda: prepare(WIKITEXT103, args.dest, args.source, args.workers))


if __name__ == "__main__":
    sys.exit(main())
