"""A word-level corpus of the shape of WikiText-103, small enough to prepare in a test."""

import hashlib
import io
import json
import sys
import zipfile
from pathlib import Path

from download import RemoteFile
from wikitext103 import Corpus, prepare

NAME = "small-v1.zip"
# Blank lines, headings and <unk> as in WikiText; the test split has a word of its own set as <unk>.
TEXTS = {
    "train": " \n = Fast weights = \n \n the key writes the value , the <unk> reads it \n" * 200,
    "valid": " \n the value reads the key \n",
    "test": " = <unk> = \n the <unk> writes it , the key reads it \n",
}
TOKENS = {"train": 200 * (4 + 4 + 10), "valid": 2 + 5, "test": 2 + 3 + 9}
TYPES = 12  # = Fast weights the key writes value , <unk> reads it, and end-of-line


def zip_of(members: dict[str, str]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return data.getvalue()


def good_zip() -> bytes:
    padding = {"small/LICENSE": "".join(hashlib.sha256(bytes([i])).hexdigest() for i in range(200))}
    return zip_of({f"small/wiki.{split}.tokens": text for split, text in TEXTS.items()} | padding)


def corpus_of(archive: bytes, urls: tuple[str, ...] = (), tokens: dict[str, int] = TOKENS, types: int = TYPES) -> Corpus:
    """A corpus that expects exactly `archive`, served at `urls`."""
    return Corpus(
        archive=RemoteFile(NAME, urls, len(archive), hashlib.sha256(archive).hexdigest()),
        members={split: f"small/wiki.{split}.tokens" for split in TEXTS},
        tokens=tokens,
        types=types,
    )


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


if __name__ == "__main__":  # for tests that kill the preparation: DEST and the mirrors as JSON
    prepare(corpus_of(good_zip(), tuple(json.loads(sys.argv[2]))), Path(sys.argv[1]))
