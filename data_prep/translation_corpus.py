"""Parallel text to what fairseq trains on: Moses-style tokens, joint subwords, filters, fairseq-preprocess.

    data_bin = prepare_pairs({"train": [Path("raw/europarl")], "valid": […], "test": […]}, settings, recipe, dest, workers)

A corpus is named by its path without `.en` and `.de`. Text streams from file to file in batches, so
that memory does not grow with it. Only training pairs are filtered. fwp_fairseq/bleu.py goes the way
back, from subwords to text. Used by wmt14_en_de.py and mini_mt.py.
"""

import errno
import functools
import hashlib
import io
import json
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from parallel import batches, ordered_map
from preprocess import binarise_pairs
from stages import DataError, build
from tqdm import tqdm

LANGUAGES = ("en", "de")
CLEANING = "cleaning.json"
MODEL = "sentencepiece.model"
FIRST_PRIVATE = 0xE000  # private-use characters stand for protected text while the tokeniser runs
SYMBOL_OCCURRENCES = 10  # protected text this frequent is a subword of its own


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
    sentence a line), the subword model, `cleaning.json` and `text_stats.json`. Raises DataError.
    """
    tokenised, pieces, data_bin = dest / "tokenised", dest / "pieces", dest / "data-bin"
    build(tokenised, recipe, lambda folder: write_tokenised(corpora, settings, folder, workers))
    build(pieces, recipe, lambda folder: write_pieces(list(corpora), tokenised, settings, folder, workers))

    def make_data_bin(folder: Path) -> None:
        binarise_pairs(pieces, list(corpora), LANGUAGES, folder, workers)
        for path in [*tokenised.glob("src.*"), *tokenised.glob("ref.*"), pieces / MODEL, pieces / CLEANING]:
            (folder / path.name).write_bytes(path.read_bytes())

    build(data_bin, recipe, make_data_bin)
    print(summary(json.loads((data_bin / CLEANING).read_text())))
    return data_bin


# --- reading ----------------------------------------------------------------------------------


def side(corpus: Path, language: str) -> Path:
    """The file of one language."""
    return corpus.with_name(f"{corpus.name}.{language}")


def read_pairs(corpus: Path) -> Iterator[tuple[bytes, bytes]]:
    """The lines of both languages, as bytes: only there is a line what ends in "\\n" and nothing else."""
    with ExitStack() as stack:
        yield from zip(*(stack.enter_context(side(corpus, language).open("rb")) for language in LANGUAGES), strict=True)


def check_corpus(corpus: Path, drop_invalid_utf8: bool) -> int:
    """Number of pairs; DataError if a side is empty, the sides differ in length, or text is not UTF-8."""
    lines = {}
    for language in LANGUAGES:
        path, count, invalid, shown = side(corpus, language), 0, 0, []
        with path.open("rb") as file, tqdm(desc=f"checking {path.name}", total=path.stat().st_size, unit="B", unit_scale=True) as bar:
            for count, line in enumerate(file, start=1):
                bar.update(len(line))
                if not is_utf8(line):
                    invalid += 1
                    shown += [count] if invalid <= 10 else []
        if not count:
            raise DataError(f"{path.name} is empty; expected one sentence a line")
        lines[path.name] = count
        if invalid:
            where = f"{path.name}: {invalid} lines are not UTF-8 (line {', '.join(map(str, shown))}{', …' if invalid > 10 else ''})"
            if not drop_invalid_utf8:
                raise DataError(f"{where}; mend the file, or leave out these pairs with --drop-invalid-utf8")
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


class Tokeniser:
    """Moses punctuation normalisation and tokenisation of one language (by sacremoses, nothing escaped)."""

    def __init__(self, language: str, protected: re.Pattern | None = None):
        from sacremoses import MosesPunctNormalizer, MosesTokenizer  # here, so that --help is quick

        self.normalise = MosesPunctNormalizer(lang=language).normalize
        self.tokenise = MosesTokenizer(lang=language).tokenize
        self.protected = protected

    def __call__(self, text: str) -> str:
        """Tokens with single spaces between them. Protected text comes out unchanged, apart from its neighbours."""
        kept = []

        def hide(match: re.Match) -> str:
            kept.append(match.group())
            return f" {chr(FIRST_PRIVATE + len(kept) - 1)} "

        if self.protected:
            text = self.protected.sub(hide, text)
        text = self.tokenise(self.normalise(text), escape=False, return_str=True)
        for number, original in enumerate(kept):
            text = text.replace(chr(FIRST_PRIVATE + number), original)
        return " ".join(text.split())  # the tokeniser keeps some kinds of space, which fairseq would split at


@functools.cache
def tokeniser(language: str, protected: re.Pattern | None) -> Tokeniser:
    return Tokeniser(language, protected)  # slow to make: once in each process


def tokenise_batch(protected: re.Pattern | None, pairs: list[tuple[bytes, bytes]]) -> list[tuple[str, ...] | None]:
    """The pairs in tokens; None for those that are not UTF-8."""
    return [
        tuple(tokeniser(language, protected)(line.decode()) for language, line in zip(LANGUAGES, pair))
        if all(map(is_utf8, pair))
        else None
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
    dropped = dict.fromkeys(["not UTF-8", "empty"] + ["duplicate"] * settings.drop_duplicates, 0)
    for split, paths in corpora.items():
        pairs = (pair for path in paths for pair in read_pairs(path))
        results = ordered_map(functools.partial(tokenise_batch, settings.protected), batches(pairs), workers)
        with ExitStack() as stack:
            outputs = [stack.enter_context(side(folder / split, language).open("w", encoding="utf-8")) for language in LANGUAGES]
            seen = stack.enter_context(closing(SeenPairs())) if settings.drop_duplicates else None
            bar = stack.enter_context(tqdm(desc=f"tokens of {split}", total=sum(read[split].values()), unit="pair", unit_scale=True))
            for result in results:
                for pair in result:
                    reason = why_no_pair(pair, seen) if split == "train" else None
                    if reason:
                        dropped[reason] += 1
                        continue
                    for output, text in zip(outputs, pair, strict=True):
                        output.write(text + "\n")
                bar.update(len(result))
        if split != "train":
            write_plain(paths, split, folder)
    (folder / CLEANING).write_text(json.dumps({"read": read, "dropped": dropped}, indent=1))


def why_no_pair(pair: tuple[str, ...] | None, seen: "SeenPairs | None") -> str | None:
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

    def is_new(self, pair: tuple[str, ...]) -> bool:
        digest = hashlib.blake2b("\n".join(pair).encode(), digest_size=8).digest()
        try:
            rows = self.database.execute("INSERT OR IGNORE INTO seen VALUES (?)", [int.from_bytes(digest, signed=True)]).rowcount
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_FULL:
                raise
            raise OSError(errno.ENOSPC, "the temporary folder is full") from error
        return rows == 1

    def close(self) -> None:
        self.database.close()


def write_plain(paths: list[Path], split: str, folder: Path) -> None:
    names = zip(LANGUAGES, ("src", "ref"))
    for language, name in names:
        with (folder / f"{name}.{split}.{language}").open("w", encoding="utf-8") as output:
            for path in paths:
                for line in side(path, language).open("rb"):
                    output.write(" ".join(line.decode().split()) + "\n")


# --- subwords ---------------------------------------------------------------------------------


def write_pieces(splits: list[str], tokenised: Path, settings: Settings, folder: Path, workers: int) -> None:
    """Learns joint subwords, writes every split in them, and drops training pairs that are too long or too unequal."""
    report = json.loads((tokenised / CLEANING).read_text())
    (folder / MODEL).write_bytes(train_subwords(tokenised / "train", settings))
    long, unequal = f"longer than {settings.max_tokens} subwords", f"length ratio over {settings.max_ratio:g}"
    report["dropped"].update({long: 0, unequal: 0})
    kept = Counter()
    for split in splits:
        lines = read_pairs(tokenised / split)
        results = ordered_map(functools.partial(encode_batch, str(folder / MODEL)), batches(lines), workers)
        with ExitStack() as stack:
            outputs = [stack.enter_context(side(folder / split, language).open("w", encoding="utf-8")) for language in LANGUAGES]
            bar = stack.enter_context(tqdm(desc=f"subwords of {split}", unit="pair", unit_scale=True))
            for result in results:
                for pair in result:
                    shorter, longer = sorted(map(len, pair))
                    if split == "train" and (longer > settings.max_tokens or longer > settings.max_ratio * shorter):
                        report["dropped"][long if longer > settings.max_tokens else unequal] += 1
                        continue
                    kept[split] += 1
                    for output, pieces in zip(outputs, pair):
                        output.write(" ".join(pieces) + "\n")
                bar.update(len(result))
        if not kept[split]:
            raise DataError(f"{split}: no pair is left after cleaning; {summary(report)}")
    (folder / CLEANING).write_text(json.dumps(report | {"kept": kept}, indent=1))


def train_subwords(corpus: Path, settings: Settings) -> bytes:
    """A sentencepiece model of both languages together. Its own normalisation is off: the tokeniser has normalised."""
    import sentencepiece  # here, so that --help is quick

    pairs = sum(1 for _ in read_pairs(corpus))
    step = -(-pairs // settings.subword_pairs)
    sample = (line.decode() for number, pair in enumerate(read_pairs(corpus)) if number % step == 0 for line in pair)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(line.rstrip("\n") for line in sample), model_writer=model, model_type=settings.subwords,
            vocab_size=settings.vocabulary, user_defined_symbols=frequent_symbols(corpus, settings.protected),
            character_coverage=0.9999, normalization_rule_name="identity", max_sentence_length=1 << 16,
            num_threads=1, bos_id=-1, eos_id=-1, minloglevel=1,
        )  # fmt: skip
    except RuntimeError as error:
        reason = str(error).rpartition("] ")[2] or str(error)
        raise DataError(f"no {settings.vocabulary} subwords can be learnt from {pairs:,} pairs ({reason.strip()}); choose another --vocab") from error
    return model.getvalue()


def frequent_symbols(corpus: Path, protected: re.Pattern | None) -> list[str]:
    """Protected tokens that are to be one subword each. They follow a space, which sentencepiece writes as "▁"."""
    if not protected:
        return []
    counts = Counter(
        token for pair in read_pairs(corpus) for line in pair for token in line.decode().split() if protected.fullmatch(token)
    )
    return sorted("▁" + token for token, count in counts.items() if count >= SYMBOL_OCCURRENCES)


@functools.cache
def subword_model(path: str):
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=path)
    return processor, [processor.id_to_piece(number) for number in range(processor.vocab_size())]


def encode_batch(model: str, pairs: list[tuple[bytes, bytes]]) -> list[tuple[list[str], ...]]:
    """The pairs in subwords. By way of the numbers: characters that the model lacks become <unk>, not new subwords."""
    processor, pieces = subword_model(model)
    sides = ([line.decode().rstrip("\n") for line in lines] for lines in zip(*pairs))
    return list(zip(*([[pieces[number] for number in line] for line in processor.encode(lines, out_type=int)] for lines in sides)))


def summary(report: dict) -> str:
    """A table of how many training pairs there were and what became of them."""
    rows = [(f"read from {name}", count) for name, count in report["read"]["train"].items()]
    rows += [(f"dropped: {reason}", count) for reason, count in report["dropped"].items()]
    rows += [(f"kept for {split}", count) for split, count in report.get("kept", {}).items()]
    width = max(len(name) for name, _ in rows)
    return "pairs\n" + "\n".join(f"  {name:{width}}  {count:>11,}" for name, count in rows)
