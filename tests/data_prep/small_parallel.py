"""A parallel corpus of the shape of WMT14 English-German, small enough to prepare in a test."""

import gzip
import hashlib
import io
import random
import tarfile
from dataclasses import replace

from download import RemoteFile
from translation_corpus import Settings
from wmt14_en_de import Corpus, Part

NOUNS = {
    "key": "Schlüssel",
    "value": "Wert",
    "layer": "Schicht",
    "matrix": "Matrix",
    "state": "Zustand",
    "rule": "Regel",
}
VERBS = {"reads": "liest", "writes": "schreibt", "keeps": "behält", "forgets": "vergisst"}
SETTINGS = Settings(vocabulary=90)


def sentences(count: int, seed: int) -> list[tuple[str, str]]:
    """English and German lines, all different."""
    draw, pairs = random.Random(seed), {}
    while len(pairs) < count:
        (one, eins), (two, zwei), (three, drei) = draw.sample(list(NOUNS.items()), 3)
        verb, tut = draw.choice(list(VERBS.items()))
        pairs[f"The {one} {verb} the {two} (line {len(pairs)}), not the {three}."] = (
            f"Der {eins} {tut} den {zwei} (Zeile {len(pairs)}), nicht den {drei}."
        )
    return list(pairs.items())


def sgm(lines: list[str], kind: str) -> bytes:
    """Documents of four segments, written as the workshops write them."""
    out = [f'<{kind}set setid="newstest" srclang="any">']
    for start in range(0, len(lines), 4):
        out += [f'<doc sysid="x" docid="doc-{start}" genre="news">', "<hl>"]
        for number, line in enumerate(lines[start : start + 4], start=1):
            out.append(f'<seg id="{number}">{line.replace("&", "&amp;")}</seg>')
        out += ["</hl>", "</doc>"]
    return "\n".join([*out, f"</{kind}set>", ""]).encode()


def plain(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def tar_of(members: dict[str, bytes]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return gzip.compress(data.getvalue(), mtime=0)  # else the time of day would be part of the bytes


def archive_of(content: bytes, name: str, address: str = "") -> RemoteFile:
    urls = (f"{address}/{name}",) if address else ()
    return RemoteFile(name, urls, len(content), hashlib.sha256(content).hexdigest())


class SmallCorpus:
    """Archives by name, and the corpus that expects exactly them at `address`. Change `texts`, then `pack`."""

    def __init__(self, address: str = ""):
        self.address = address
        self.texts = {  # part: (English, German) as bytes
            "europarl": tuple(map(plain, zip(*sentences(300, 1)))),
            "news": tuple(map(plain, zip(*sentences(120, 2)))),
        }
        tests = {"valid": sentences(8, 3), "full": sentences(9, 4)}
        tests["valid"][2] = (
            "The key reads the value & the rule < the layer.",
            "Der Schlüssel liest den Wert & die Regel < die Schicht.",
        )
        tests["valid"][3] = ("", "")  # a test set is never filtered
        tests["filtered"] = tests["full"][:5]
        self.plain_tests = tests
        for name, pairs in tests.items():
            english, german = zip(*pairs)
            self.texts[name] = (sgm(english, "src"), sgm(german, "ref"))

    def pack(self) -> tuple[Corpus, dict[str, bytes]]:
        members = {
            "europarl": ("training/europarl.de-en.en", "training/europarl.de-en.de"),
            "news": ("news.de-en.en", "news.de-en.de"),
            "valid": ("test/newstest-src.en.sgm", "test/newstest-src.de.sgm"),
            "full": ("test-full/newstest-deen-src.en.sgm", "test-full/newstest-deen-ref.de.sgm"),
            "filtered": ("test/newstest-deen-src.en.sgm", "test/newstest-deen-ref.de.sgm"),
        }
        archives, parts = {}, {}
        for name, texts in self.texts.items():
            archives[f"{name}.tgz"] = tar_of({"training/README": b"other"} | dict(zip(members[name], texts)))
            pairs = len(self.plain_tests[name]) if name in self.plain_tests else texts[0].count(b"\n")
            parts[name] = Part(
                name, archive_of(archives[f"{name}.tgz"], f"{name}.tgz", self.address), members[name], pairs
            )
        corpus = {
            "train": (parts["europarl"], parts["news"]), "valid": (parts["valid"],),
            "test": (parts["full"],), "test_filtered": (parts["filtered"],),
        }  # fmt: skip
        return corpus, archives


def with_pairs(part: Part, pairs: int) -> Part:
    return replace(part, pairs=pairs)
