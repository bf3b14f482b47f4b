"""Prepares WMT14 English-German for training: download, check, unpack, tokens, subwords, filters, binarise.

    python data_prep/wmt14_en_de.py --dest data/wmt14_en_de --workers 8

Afterwards `DEST/data-bin` is what the configs take as `task.data`, with the splits train, valid
(newstest2013), test (newstest2014, all 3,003 sentences) and test_filtered (the 2,737 of them that the
workshop was judged on), and the plain references that fwp-bleu needs.
"""

import argparse
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from archive import unpack_tar
from download import RemoteFile, obtain
from sgm import read_sgm
from stages import DataError, build, is_complete, locked, run
from translation_corpus import LANGUAGES, Settings, prepare_pairs, side


@dataclass(frozen=True)
class Part:
    """A corpus inside an archive: the member of each language (plain, or SGML if it ends in .sgm), and its size."""

    name: str
    archive: RemoteFile
    members: tuple[str, str]  # English, German
    pairs: int


def statmt(name: str, path: str, **known) -> RemoteFile:
    """An archive of the WMT workshops, which has one home and several spellings of its address."""
    return RemoteFile(
        name, tuple(f"{home}/{path}" for home in ("https://www.statmt.org", "http://www.statmt.org")), **known
    )


# Sizes and sha256: recorded by TensorFlow Datasets (url_checksums/wmt14_translate.txt). md5: recorded by
# sacreBLEU (sacrebleu/dataset). The numbers of pairs are those of the unpacked files.
# newstest2013 is taken from the archive of its own workshop, whose checksum is on record; no checksum
# was published for wmt14/dev.tgz, which has it too.
WMT14_EN_DE = {
    "train": (
        Part(
            "europarl-v7",
            statmt(
                "training-parallel-europarl-v7.tgz", "wmt13/training-parallel-europarl-v7.tgz", size=657_632_379,
                sha256="0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7",
            ),
            ("training/europarl-v7.de-en.en", "training/europarl-v7.de-en.de"),
            1_920_209,
        ),
        Part(
            "commoncrawl",
            statmt(
                "training-parallel-commoncrawl.tgz", "wmt13/training-parallel-commoncrawl.tgz", size=918_311_367,
                sha256="c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5",
            ),
            ("commoncrawl.de-en.en", "commoncrawl.de-en.de"),
            2_399_123,
        ),
        Part(
            "news-commentary-v9",
            statmt(
                "training-parallel-nc-v9.tgz", "wmt14/training-parallel-nc-v9.tgz", size=80_418_416,
                sha256="cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485",
            ),
            ("training/news-commentary-v9.de-en.en", "training/news-commentary-v9.de-en.de"),
            201_288,
        ),
    ),
    "valid": (
        Part(
            "newstest2013",
            statmt("wmt13-test.tgz", "wmt13/test.tgz", md5="48eca5d02f637af44e85186847141f67"),
            ("test/newstest2013-src.en.sgm", "test/newstest2013-src.de.sgm"),
            3_000,
        ),
    ),
    "test": (
        Part(
            "newstest2014",
            statmt("wmt14-test-full.tgz", "wmt14/test-full.tgz", md5="a8cd784e006feb32ac6f3d9ec7eb389a"),
            ("test-full/newstest2014-deen-src.en.sgm", "test-full/newstest2014-deen-ref.de.sgm"),
            3_003,
        ),
    ),
    "test_filtered": (
        Part(
            "newstest2014-filtered",
            statmt("wmt14-test-filtered.tgz", "wmt14/test-filtered.tgz", md5="84c597844c1542e29c2aff23aaee4310"),
            ("test/newstest2014-deen-src.en.sgm", "test/newstest2014-deen-ref.de.sgm"),
            2_737,
        ),
    ),
}  # fmt: skip

Corpus = dict[str, tuple[Part, ...]]


def prepare(corpus: Corpus, settings: Settings, dest: Path, source: str | None = None, workers: int = 1) -> Path:
    """Brings `dest/data-bin` to completion from whatever is there already; returns its path.

    source: a folder or an http(s) address below which the archives are; None for their mirrors.
    Raises DataError; what is finished stays, and the next call goes on from there.
    """
    parts = [part for split in corpus.values() for part in split]
    unpacked = [[part.name, part.archive.sha256 or part.archive.md5, *part.members, part.pairs] for part in parts]
    recipe = {
        "parts": unpacked,
        "settings": {name: value for name, value in asdict(settings).items() if name != "protected"},
    }
    text, data_bin = dest / "text", dest / "data-bin"
    with locked(dest):
        if is_complete(data_bin, recipe):
            print(f"{data_bin} is complete; nothing to do")
            return data_bin
        if not is_complete(text, {"parts": unpacked}):
            base = source and source.rstrip("/") + "/"
            archives = {
                part.name: obtain(part.archive, dest / "download", base and base + part.archive.name) for part in parts
            }
            build(
                text, {"parts": unpacked}, lambda folder: [unpack(part, archives[part.name], folder) for part in parts]
            )
        prepare_pairs(
            {split: [text / part.name for part in parts] for split, parts in corpus.items()},
            settings,
            recipe,
            dest,
            workers,
        )
    print(f"{data_bin} is ready")
    return data_bin


def unpack(part: Part, archive: Path, folder: Path) -> None:
    """Writes `folder/NAME.en` and `.de`, one sentence a line; DataError if they are not what was published."""
    files = [side(folder / part.name, language) for language in LANGUAGES]
    unpack_tar(archive, {member: file.name for member, file in zip(part.members, files)}, folder)
    if part.members[0].endswith(".sgm"):
        (english, english_text), (german, german_text) = (zip(*read_sgm(file)) for file in files)
        if english != german:
            raise DataError(
                f"{archive.name}: the segments of {' and '.join(part.members)} do not correspond; fetch it again"
            )
        for file, sentences in zip(files, (english_text, german_text)):
            file.write_text("".join(f"{sentence}\n" for sentence in sentences), encoding="utf-8")
    lines = []
    for file in files:
        with file.open("rb") as opened:
            lines.append(sum(1 for _ in opened))
    if lines != [part.pairs] * 2:
        raise DataError(
            f"{archive.name}: {part.name} has {lines[0]:,} English and {lines[1]:,} German lines, expected "
            f"{part.pairs:,} each; it is not the published corpus"
        )


def main(argv: list[str] | None = None) -> int:
    defaults = Settings(vocabulary=32_000)
    archives = ", ".join(part.archive.name for split in WMT14_EN_DE.values() for part in split)
    parser = argparse.ArgumentParser(
        description="Downloads WMT14 English-German (Europarl v7, Common Crawl, News Commentary v9: 4.5 million pairs, 1.7 GB; "
        "newstest2013 and 2014), verifies checksums and line counts, and prepares it: Moses-style punctuation and tokens, "
        "joint subwords, filters on the training pairs (never on the others), fairseq-preprocess with one dictionary. Can "
        "be stopped at any point: the same command goes on from there, and does nothing when all is done. What each "
        "filter dropped is printed, and kept in data-bin/cleaning.json.",
        epilog="example: python data_prep/wmt14_en_de.py --dest data/wmt14_en_de --workers 8   then train with "
        "task.data=data/wmt14_en_de/data-bin, generate the splits test (3,003 sentences) and test_filtered (2,737), and score "
        "with fwp-bleu. Another vocabulary without another download: a new --dest, and --source data/wmt14_en_de/download",
    )
    parser.add_argument(
        "--dest",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder for everything: DIR/download, DIR/text, DIR/tokenised, DIR/pieces, DIR/data-bin (for training)",
    )
    parser.add_argument(
        "--source",
        metavar="DIR|URL",
        help=f"folder of your own, or http(s) address, that has the archives under these names: {archives} "
        "(default: their home, www.statmt.org)",
    )
    parser.add_argument(
        "--workers", type=int, default=min(8, os.cpu_count() or 1), metavar="N", help="processes (default: %(default)s)"
    )
    parser.add_argument(
        "--subwords",
        choices=("bpe", "unigram"),
        default=defaults.subwords,
        help="kind of subwords (default: %(default)s)",
    )
    parser.add_argument(
        "--vocab", type=int, default=defaults.vocabulary, metavar="N", help="number of subwords (default: %(default)s)"
    )
    parser.add_argument(
        "--subword-pairs",
        type=int,
        default=defaults.subword_pairs,
        metavar="N",
        help="pairs, evenly spread over the corpus, that the subwords are learnt from (default: %(default)s)",
    )
    parser.add_argument(
        "--max-tokens",
        type=int,
        default=defaults.max_tokens,
        metavar="N",
        help="drop training pairs with a side of more subwords (default: %(default)s)",
    )
    parser.add_argument(
        "--max-ratio",
        type=float,
        default=defaults.max_ratio,
        metavar="R",
        help="drop training pairs with one side longer than R times the other, in subwords (default: %(default)s)",
    )
    parser.add_argument(
        "--drop-duplicates", action="store_true", help="drop training pairs that came before (default: keep them)"
    )
    parser.add_argument(
        "--drop-invalid-utf8",
        action="store_true",
        help="drop training pairs that are not UTF-8 (default: stop and name the lines)",
    )
    args = parser.parse_args(argv)
    for name in ("workers", "vocab", "subword_pairs", "max_tokens", "max_ratio"):
        if not getattr(args, name) >= 1:
            parser.error(f"--{name.replace('_', '-')} {getattr(args, name)}: expected 1 or more")
    settings = Settings(
        vocabulary=args.vocab, subwords=args.subwords, subword_pairs=args.subword_pairs, max_tokens=args.max_tokens,
        max_ratio=args.max_ratio, drop_duplicates=args.drop_duplicates, drop_invalid_utf8=args.drop_invalid_utf8,
    )  # fmt: skip
    return run(lambda: prepare(WMT14_EN_DE, settings, args.dest, args.source, args.workers))


if __name__ == "__main__":
    sys.exit(main())
