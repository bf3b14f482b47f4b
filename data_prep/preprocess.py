"""Text to what fairseq trains on: counts the text, calls fairseq-preprocess, checks that nothing was lost."""

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path

from stages import DataError
from tqdm import tqdm

SPLITS = ("train", "valid", "test")
TEXT_STATS = "text_stats.json"


@dataclass(frozen=True)
class TextStats:
    """Sizes of one split: `tokens` as the model sees them, an end-of-line after each line included;
    `words` and `bytes` of the original text, for perplexities per word and bits per byte.
    """

    lines: int
    tokens: int
    words: int
    bytes: int


def count(path: Path) -> tuple[TextStats, set[str]]:
    """Sizes and distinct words of a text, with words and lines found as fairseq finds them."""
    lines = words = 0
    distinct = set()
    with path.open(encoding="utf-8") as handle, tqdm(
        desc=f"counting {path.name}", total=path.stat().st_size, unit="B", unit_scale=True
    ) as bar:
        for line in handle:
            found = line.split()
            lines += 1
            words += len(found)
            distinct.update(found)
            bar.update(len(line.encode()))
    return TextStats(lines=lines, tokens=words + lines, words=words, bytes=path.stat().st_size), distinct


def binarise(text: Path, stats: dict[str, TextStats], data_bin: Path, workers: int) -> None:
    """Runs fairseq-preprocess on `text/{train,valid,test}.txt` (tokens separated by spaces).

    Writes `dict.txt`, `{split}.bin`, `{split}.idx` and `text_stats.json` into `data_bin`.
    Raises DataError if a binarised split does not have exactly the tokens of its text.
    """
    prefixes = [item for split in SPLITS for item in (f"--{split}pref", str(text / f"{split}.txt"))]
    run_fairseq_preprocess(["--only-source", *prefixes], data_bin, workers)
    for split in SPLITS:
        check_tokens(data_bin / split, stats[split].tokens)
    (data_bin / TEXT_STATS).write_text(json.dumps({split: asdict(stats[split]) for split in SPLITS}, indent=1))


def binarise_pairs(text: Path, splits: list[str], languages: tuple[str, str], data_bin: Path, workers: int) -> None:
    """Runs fairseq-preprocess, with one dictionary for both languages, on `text/{split}.{language}`.

    splits: `train`, `valid`, then the test sets. Writes `dict.{language}.txt`,
    `{split}.{source}-{target}.{language}.bin` and `.idx`, and `text_stats.json` with the sizes
    (`tokens`: an end-of-line after each line included). Raises DataError as `binarise` does.
    """
    if "," in str(text):
        raise DataError(f"{text}: fairseq-preprocess takes a comma for the end of a path; choose another --dest")
    train, valid, *tests = (str(text / split) for split in splits)
    source, target = languages
    arguments = ["--source-lang", source, "--target-lang", target, "--joined-dictionary", "--dataset-impl", "mmap"]
    arguments += ["--trainpref", train, "--validpref", valid, "--testpref", ",".join(tests)]
    run_fairseq_preprocess(arguments, data_bin, workers)
    stats = {}
    for number, split in enumerate(splits):
        for language in languages:
            name = f"{split}.{source}-{target}.{language}"
            if number > 2:  # fairseq calls the second test set test1, and so on
                for ending in ("bin", "idx"):
                    (data_bin / f"test{number - 2}.{source}-{target}.{language}.{ending}").rename(data_bin / f"{name}.{ending}")
            sizes, _ = count(text / f"{split}.{language}")
            check_tokens(data_bin / name, sizes.tokens)
            stats.setdefault(split, {"pairs": sizes.lines})[f"{language}_tokens"] = sizes.tokens
    (data_bin / TEXT_STATS).write_text(json.dumps(stats, indent=1))


def run_fairseq_preprocess(arguments: list[str], data_bin: Path, workers: int) -> None:
    # fairseq takes seconds to import: only here, so that --help is quick.
    from fairseq import options
    from fairseq_cli.preprocess import logger, main

    # By default the dictionary is padded to a multiple of 8 with words that do not exist; the model's
    # softmax would have to carry them.
    arguments = [*arguments, "--destdir", str(data_bin), "--workers", str(workers), "--padding-factor", "1"]
    try:
        main(options.get_preprocessing_parser().parse_args(arguments))
    finally:
        for handler in [h for h in logger.handlers if isinstance(h, logging.FileHandler)]:
            logger.removeHandler(handler)
            handler.close()
    (data_bin / "preprocess.log").unlink()  # names the temporary folder and the time of day


def check_tokens(binarised: Path, expected: int) -> None:
    from fairseq.data.indexed_dataset import MMapIndexedDataset

    dataset = MMapIndexedDataset(str(binarised))  # named: its arrays die with it (segmentation fault)
    tokens = int(dataset.sizes.sum())
    if tokens != expected:
        raise DataError(f"{binarised.name}: fairseq-preprocess wrote {tokens} tokens, the text has {expected}")
