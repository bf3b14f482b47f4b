"""A word-level corpus of the shape of WikiText-103, small enough to prepare in a test."""

import hashlib
import io
import os
import signal
import sys
import zipfile
from pathlib import Path

import download
import wikitext103
from download import RemoteFile
from wikitext103 import Corpus

NAME = "small-v1.zip"
# Blank lines, headings and <unk> as in WikiText. The many blank lines make the binarised data larger than the text.
TEXTS = {
    "train": " \n = Fast weights = \n \n the key writes the value , the <unk> reads it \n" * 200 + " \n" * 2000,
    "valid": " \n the value reads the key \n",
    "test": " = <unk> = \n the <unk> writes it , the key reads it \n",
}
TOKENS = {"train": 200 * (1 + 5 + 1 + 11) + 2000, "valid": 1 + 6, "test": 4 + 10}
TYPES = 12  # = Fast weights the key writes value , <unk> reads it, and end-of-line


def zip_of(members: dict[str, str]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, text in members.items():
            undated = zipfile.ZipInfo(name)  # else the time of day would be part of the bytes
            archive.writestr(undated, text, zipfile.ZIP_DEFLATED)
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


def die_after(step: str) -> None:
    """Makes this process kill itself, unprepared, when the function `step` is about to return."""
    module = download if hasattr(download, step) else wikitext103
    original = getattr(module, step)

    def fatal(*args):
        try:
            original(*args)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)

    setattr(module, step, fatal)


if __name__ == "__main__":  # DEST, the mirror, and the step to die after: for tests that kill a preparation
    if len(sys.argv) > 3:
        die_after(sys.argv[3])
    wikitext103.prepare(corpus_of(good_zip(), (sys.argv[2],)), Path(sys.argv[1]))
