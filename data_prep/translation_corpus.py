"""Parallel text to what fairseq trains on: Moses-style tokens, joint subwords, filters, fairseq-preprocess.

    data_bin = prepare_pairs({"train": [Path("raw/europarl")], "valid": […], …}, settings, recipe, dest, workers)

A corpus is named by its path without `.en` and `.de`. Text streams from file to file in batches, so
that memory does not grow with it. Only training pairs are filtered. Used by wmt14_en_de.py and
mini_mt.py; fwp_fairseq/bleu.py goes the way back, from subwords to text.
"""

import errno
import functools
import hashlib
import json
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path

from parallel import batches, ordered_map
from preprocess import binarise_pairs
from stages import DataError, build
from subwords import encode_batch, learn_subwords
from tqdm import tqdm

from fwp_fairseq.moses import PROTECTED, Moses

LANGUAGES = ("en", "de")
CLEANING = "cleaning.json"
MODEL = "sentencepiece.model"

Pair = tuple[str, ...]  # a line of each language


@dataclass(frozen=True)
class Settings:
    """What is done to a corpus. Lengths and the ratio of the longer to the shorter side count subwords.

    protected: text that is kept as it is, as a token of its own (placeholders); None for no such text.
    subword_pairs: how many training pairs, evenly spread, the subwords are learnt from.
    """

    vocabulary: int
    subwords: str = "bpe"
    max_tokens: int = 250
    max_ratio: float = 1.5
    drop_invalid_utf8: bool = False
    drop_duplicates: bool = False
    protected: re.Pattern | None = None
    subword_pairs: int = 1_000_000


def prepare_pairs(corpora: dict[str, list[Path]], settings: Settings, recipe: dict, dest: Path, workers: int) -> Path:
    """Makes `dest/tokenised`, `dest/pieces` and `dest/data-bin` unless they are complete; returns the last.

    corpora: for each split the corpora it consists of; `train` first, `valid`, then the test sets.
    The data folder has, beside fairseq's files, `src.SPLIT.en` and `ref.SPLIT.de` (plain text, one
    sentence a line), the subword model, `cleaning.json` and `text_stats.json`, and `protected.regex`
    where text is protected. Raises DataError.
    """
    tokenised, pieces, data_bin = dest / "tokenised", dest / "pieces", dest / "data-bin"
    build(tokenised, recipe, lambda folder: write_tokenised(corpora, settings, folder, workers))
    build(pieces, recipe, lambda folder: write_pieces(tokenised, settings, folder, workers))

    def make_data_bin(folder: Path) -> None:
        binarise_pairs(pieces, list(corpora), LANGUAGES, folder, workers)
        for path in [*tokenised.glob("src.*"), *tokenised.glob("ref.*"), pieces / MODEL, pieces / CLEANING]:
            (folder / path.name).write_bytes(path.read_bytes())
        if settings.protected:
            (folder / PROTECTED).write_text(settings.protected.pattern, encoding="utf-8")

    build(data_bin, recipe, make_data_bin)
    print(summary(json.loads((data_bin / CLEANING).read_text())))
    return data_bin


# --- reading and writing ----------------------------------------------------------------------


def side(corpus: Path, language: str) -> Path:
    """The file of one language."""
    return corpus.with_name(f"{corpus.name}.{language}")


def read_pairs(corpus: Path) -> Iterator[tuple[bytes, ...]]:
    """The lines of both languages, as bytes: only there is a line what ends in "\\n" and nothing else."""
    with ExitStack() as stack:
        yield from zip(*(stack.enter_context(side(corpus, language).open("rb")) for language in LANGUAGES), strict=True)


def write_pairs(
    results: Iterable[list[Pair | None]],
    verdict: Callable[[Pair | None], str | None],
    corpus: Path,
    title: str,
    total: int,
) -> Counter:
    """Writes the pairs against which `verdict` gives no reason. Counts the reasons, and the written pairs as "kept"."""
    counts = Counter()
    with ExitStack() as stack:
        files = [stack.enter_context(side(corpus, language).open("w", encoding="utf-8")) for language in LANGUAGES]
        bar = stack.enter_context(tqdm(desc=f"{title} of {corpus.name}", total=total, unit="pair", unit_scale=True))
        for result in results:
            for pair in result:
                reason = verdict(pair)
                counts[reason or "kept"] += 1
                if not reason:
                    for file, line in zip(files, pair, strict=True):
                        file.write(line + "\n")
            bar.update(len(result))
    return counts


def check_corpus(corpus: Path, drop_invalid_utf8: bool) -> int:
    """Number of pairs; DataError if a side is empty, the sides differ in length, or text is not UTF-8."""
    lines = {}
    for language in LANGUAGES:
        path, count, invalid = side(corpus, language), 0, []
        bar = tqdm(desc=f"checking {path.name}", total=path.stat().st_size, unit="B", unit_scale=True)
        with path.open("rb") as file, bar:
            for count, line in enumerate(file, start=1):
                bar.update(len(line))
                if not is_utf8(line):
                    invalid.append(count)
        if not count:
            raise DataError(f"{path.name} is empty; expected one sentence a line")
        lines[path.name] = count
        if invalid:
            shown = ", ".join(map(str, invalid[:10])) + ", …" * (len(invalid) > 10)
            where = f"{path.name}: {len(invalid):,} lines are not UTF-8 (line {shown})"
            if not drop_invalid_utf8:
                raise DataError(f"{where}; mend the file, or leave out such training pairs with --drop-invalid-utf8")
            print(f"{where}; these pairs are dropped")
    if len(set(lines.values())) > 1:
        counts = " and ".join(f"{name} {count:,} lines" for name, count in lines.items())
        raise DataError(f"source and target do not belong together: {counts}; expected as many in both")
    return count


def is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


# --- tokens -----------------------------------------------------------------------------------


moses = functools.cache(Moses)  # slow to make: once in each process


def tokenise_batch(protected: re.Pattern | None, pairs: list[tuple[bytes, ...]]) -> list[Pair | None]:
    """The pairs in tokens; None for those that are not UTF-8."""
    return [
        (
            tuple(moses(language, protected).tokens(line.decode()) for language, line in zip(LANGUAGES, pair))
            if all(map(is_utf8, pair))
            else None
        )
        for pair in pairs
    ]


def write_tokenised(corpora: dict[str, list[Path]], settings: Settings, folder: Path, workers: int) -> None:
    """Writes `SPLIT.LANGUAGE` in tokens, without the training pairs that are no pairs, and `cleaning.json`.

    Also `src.SPLIT.en` and `ref.SPLIT.de` of what is not for training: the original text with single spaces.
    """
    read = {
        split: {path.name: check_corpus(path, settings.drop_invalid_utf8 and split == "train") for path in paths}
        for split, paths in corpora.items()
    }
    tokenise, kept = functools.partial(tokenise_batch, settings.protected), {}
    for split, paths in corpora.items():
        results = ordered_map(
            tokenise, batches(pair for path in paths for pair in read_pairs(path)), workers if split == "train" else 1
        )
        remember = split == "train" and settings.drop_duplicates
        with closing(SeenPairs()) if remember else nullcontext() as seen:
            verdict = functools.partial(why_no_pair, seen) if split == "train" else lambda pair: None
            counts = write_pairs(results, verdict, folder / split, "tokens", sum(read[split].values()))
        if split == "train":
            reasons = ["not UTF-8", "empty"] + ["duplicate"] * settings.drop_duplicates
            dropped = {reason: counts[reason] for reason in reasons}
        else:
            write_plain(paths, split, folder)
        kept[split] = counts["kept"]
    (folder / CLEANING).write_text(json.dumps({"read": read["train"], "dropped": dropped, "kept": kept}, indent=1))


def why_no_pair(seen: "SeenPairs | None", pair: Pair | None) -> str | None:
    if pair is None:
        return "not UTF-8"
    if not all(pair):
        return "empty"
    if seen is not None and not seen.is_new(pair):
        return "duplicate"
    return None


class SeenPairs:
    """Remembers pairs by 8 bytes of their hash, in a temporary database: its cache is bounded, its file is not."""

    def __init__(self):
        self.database = sqlite3.connect("", isolation_level=None)
        self.database.execute("PRAGMA journal_mode = OFF")
        self.database.execute("CREATE TABLE seen (hash INTEGER PRIMARY KEY)")

    def is_new(self, pair: Pair) -> bool:
        digest = hashlib.blake2b("\n".join(pair).encode(), digest_size=8).digest()
        number = int.from_bytes(digest, "big", signed=True)
        try:
            return self.database.execute("INSERT OR IGNORE INTO seen VALUES (?)", [number]).rowcount == 1
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_FULL:
                raise
            raise OSError(errno.ENOSPC, "the folder for temporary files is full") from error

    def close(self) -> None:
        self.database.close()


def write_plain(paths: list[Path], split: str, folder: Path) -> None:
    for language, name in zip(LANGUAGES, ("src", "ref"), strict=True):
        with (folder / f"{name}.{split}.{language}").open("w", encoding="utf-8") as output:
            for path in paths:
                with side(path, language).open("rb") as lines:
                    output.writelines(" ".join(line.decode().split()) + "\n" for line in lines)


# --- subwords ---------------------------------------------------------------------------------


def write_pieces(tokenised: Path, settings: Settings, folder: Path, workers: int) -> None:
    """Learns joint subwords, writes every split in them, and drops training pairs that are too long or too unequal."""
    report = json.loads((tokenised / CLEANING).read_text())
    model = folder / MODEL
    model.write_bytes(
        learn_subwords(
            lambda: (tuple(line.decode().rstrip("\n") for line in pair) for pair in read_pairs(tokenised / "train")),
            settings.vocabulary, settings.subwords, settings.subword_pairs, settings.protected,
        )
    )  # fmt: skip
    long, unequal = f"longer than {settings.max_tokens} subwords", f"length ratio over {settings.max_ratio:g}"

    def why_unfit(pair: Pair) -> str | None:
        shorter, longer = sorted(line.count(" ") + 1 for line in pair)
        if longer > settings.max_tokens:
            return long
        return unequal if longer > settings.max_ratio * shorter else None

    encode = functools.partial(encode_batch, str(model))
    for split, pairs in report["kept"].items():
        results = ordered_map(encode, batches(read_pairs(tokenised / split)), workers if split == "train" else 1)
        counts = write_pairs(
            results, why_unfit if split == "train" else lambda pair: None, folder / split, "subwords", pairs
        )
        report["kept"][split] = counts["kept"]
        if split == "train":
            report["dropped"].update({reason: counts[reason] for reason in (long, unequal)})
    (folder / CLEANING).write_text(json.dumps(report, indent=1))
    if not report["kept"]["train"]:
        raise DataError(f"no training pair is left after cleaning:\n{summary(report)}")


def summary(report: dict) -> str:
    """A table of how many training pairs there were and what became of them."""
    rows = [(f"read from {name}", count) for name, count in report["read"].items()]
    rows += [(f"dropped: {reason}", count) for reason, count in report["dropped"].items()]
    rows += [(f"kept for {split}", count) for split, count in report["kept"].items()]
    width = max(len(name) for name, _ in rows)
    return "pairs\n" + "\n".join(f"  {name:{width}}  {count:>11,}" for name, count in rows)
