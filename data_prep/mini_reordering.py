"""Makes a small artificial language pair on which every model that can translate at all must do well.

    python data_prep/mini_reordering.py --dest data/mini_reordering

Every source word has one translation; what has to be learned beside the words is their order. Inside a phrase the
adjectives go behind their noun, and prepositions behind their phrase; in a clause the verb goes from the second place
to the end, and the adverb from the end to the front. Afterwards `DEST/data-bin` is what the configs take as `task.data`.
"""

import argparse
import random
import shutil
import sys
from pathlib import Path

from preprocess import SPLITS, binarise_pairs
from stages import build, locked, run

LANGUAGES = ("src", "tgt")
SENTENCES = {"train": 20_000, "valid": 500, "test": 500}
WORDS = {"article": 4, "adjective": 40, "noun": 80, "verb": 40, "adverb": 16, "preposition": 8, "conjunction": 4}
VERSION = 1  # of what the generator writes


class Language:
    """Draws sentences: `pair()` is a list of source words and the list of their translation."""

    def __init__(self, seed: int, words: dict[str, int] = WORDS):
        self.random = random.Random(seed)
        self.translation = {}
        for kind, count in words.items():
            partners = self.random.sample(range(count), count)
            self.translation[kind] = [(f"{kind}{a}", f"{kind.upper()}{b}") for a, b in enumerate(partners)]

    def word(self, kind: str) -> tuple[list[str], list[str]]:
        source, target = self.random.choice(self.translation[kind])
        return [source], [target]

    def noun_phrase(self):
        article, noun = self.word("article"), self.word("noun")
        adjectives = [self.word("adjective") for _ in range(self.random.choice((0, 1, 1, 2)))]
        return phrase(source=(article, *adjectives, noun), target=(article, noun, *adjectives))

    def place(self):
        preposition, noun = self.word("preposition"), self.noun_phrase()
        return phrase(source=(preposition, noun), target=(noun, preposition))

    def clause(self):
        subject, verb, thing = self.noun_phrase(), self.word("verb"), self.noun_phrase()
        places = [self.place() for _ in range(self.random.choice((0, 0, 1)))]
        adverbs = [self.word("adverb") for _ in range(self.random.choice((0, 1)))]
        return phrase(
            source=(subject, verb, thing, *places, *adverbs), target=(*adverbs, subject, thing, *places, verb)
        )

    def pair(self):
        clauses = [self.clause()]
        if self.random.random() < 0.15:
            clauses += [self.word("conjunction"), self.clause()]
        return phrase(source=clauses, target=clauses)


def phrase(source, target):
    """Source and target words of the same parts, each in the order of its language."""
    return [word for words, _ in source for word in words], [word for _, words in target for word in words]


def write_text(sentences: dict[str, int], folder: Path, seed: int = 1, words: dict[str, int] = WORDS) -> None:
    """Writes `{split}.src` and `{split}.tgt`, no source sentence twice."""
    language, seen = Language(seed, words), set()
    for split, count in sentences.items():
        with (folder / f"{split}.src").open("w") as source, (folder / f"{split}.tgt").open("w") as target:
            while count:
                pair = [" ".join(words) for words in language.pair()]
                if pair[0] not in seen:
                    seen.add(pair[0])
                    print(pair[0], file=source)
                    print(pair[1], file=target)
                    count -= 1


def prepare(dest: Path) -> Path:
    """Brings `dest/text` and `dest/data-bin` to completion; returns the latter."""
    recipe = {"version": VERSION, "sentences": SENTENCES, "words": WORDS}
    text, data_bin = dest / "text", dest / "data-bin"
    with locked(dest):
        build(text, recipe, lambda folder: write_text(SENTENCES, folder))
        build(data_bin, recipe, lambda folder: write_data_bin(text, folder))
    print(f"{data_bin} is ready: " + ", ".join(f"{split} {count:,} pairs" for split, count in SENTENCES.items()))
    return data_bin


def write_data_bin(text: Path, folder: Path) -> None:
    """fairseq's files, and `src.SPLIT.src` and `ref.SPLIT.tgt`, the plain text of what is translated and scored."""
    binarise_pairs(text, list(SPLITS), LANGUAGES, folder, workers=1)
    for split in SPLITS[1:]:
        for kind, language in zip(("src", "ref"), LANGUAGES):
            shutil.copy(text / f"{split}.{language}", folder / f"{kind}.{split}.{language}")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dest", type=Path, required=True, metavar="DIR", help="where text and data-bin go")
    options = parser.parse_args(argv)
    return run(lambda: prepare(options.dest))


if __name__ == "__main__":
    sys.exit(main())
