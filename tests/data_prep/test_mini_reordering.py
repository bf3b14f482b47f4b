"""The artificial language: the same at every run, each word with one translation, nothing in two splits."""

import mini_reordering
import pytest


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    mini_reordering.write_text({"train": 300, "valid": 20, "test": 20}, folder)
    return folder


def pairs(folder, split):
    sides = ((folder / f"{split}.{language}").read_text().splitlines() for language in mini_reordering.LANGUAGES)
    return [(source.split(), target.split()) for source, target in zip(*sides, strict=True)]


def test_it_is_the_same_at_every_run(text, tmp_path):
    mini_reordering.write_text({"train": 300, "valid": 20, "test": 20}, tmp_path)
    for path in text.iterdir():
        assert path.read_bytes() == (tmp_path / path.name).read_bytes()


def test_no_source_sentence_occurs_twice(text):
    sources = [tuple(source) for split in ("train", "valid", "test") for source, _ in pairs(text, split)]
    assert len(set(sources)) == len(sources) == 340


def test_every_word_has_one_translation():
    language = mini_reordering.Language(seed=1)
    for words in language.translation.values():
        assert len(dict(words)) == len({target for _, target in words}) == len(words)
    known = {source: target for words in language.translation.values() for source, target in words}
    for _ in range(50):
        source, target = language.pair()
        assert sorted(known[word] for word in source) == sorted(target)


def kinds(words):
    return [word.rstrip("0123456789").lower() for word in words]


def test_verbs_go_to_the_end_adverbs_to_the_front_and_adjectives_behind_nouns(text):
    moved = 0
    for source, target in pairs(text, "train"):
        if any(word.startswith("conjunction") for word in source):
            continue
        assert kinds(target)[-1] == "verb" and kinds(source).count("verb") == 1
        if "adverb" in kinds(source):
            moved += 1
            assert (kinds(source)[-1], kinds(target)[0]) == ("adverb", "adverb")
        for before, after in zip(kinds(target), kinds(target)[1:]):
            assert (before, after) not in [("adjective", "noun"), ("preposition", "article")]
    assert moved > 50
