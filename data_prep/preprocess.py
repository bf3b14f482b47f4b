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
    # fairseq takes seconds to import: only here, so that --help is quick.
    from fairseq import options
    from fairseq.data.indexed_dataset import MMapIndexedDataset
    from fairseq_cli.preprocess import logger, main

    arguments = ["--only-source", "--destdir", str(data_bin), "--workers", str(workers)]
    arguments += [item for split in SPLITS for item in (f"--{split}pref", str(text / f"{split}.txt"))]
    # By default the dictionary is padded to a multiple of 8 with words that do not exist; the model's
    # softmax would have to carry them.
    arguments += ["--padding-factor", "1"]
    try:
        main(options.get_preprocessing_parser().parse_args(arguments))
    finally:
        for handler in [h for h in logger.handlers if isinstance(h, logging.FileHandler)]:
            logger.removeHandler(handler)
            handler.close()
    (data_bin / "preprocess.log").unlink()  # names the temporary folder and the time of day
    for split in SPLITS:
        dataset = MMapIndexedDataset(str(data_bin / split))  # named: its arrays die with it (segmentation fault)
        tokens = int(dataset.sizes.sum())
        if tokens != stats[split].tokens:
            raise DataError(f"{split}: fairseq-preprocess wrote {tokens} tokens, the text has {stats[split].tokens}")
    (data_bin / TEXT_STATS).write_text(json.dumps({split: asdict(stats[split]) for split in SPLITS}, indent=1))
