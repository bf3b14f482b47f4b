"""Parallel text in tokens and subwords: what survives the way there and back, what stays together, what is read."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from parallel import batches, ordered_map
from sacremoses import MosesTokenizer
from small_parallel import SETTINGS, plain, sentences
from stages import DataError
from subwords import encode_batch, learn_subwords
from translation_corpus import SeenPairs, Settings, check_corpus, prepare_pairs, read_pairs, write_tokenised

from fwp_fairseq.moses import Moses, join_subwords

PLACEHOLDER = re.compile(r"%\(\w+\)s|<[^<>]+>|\{\w*\}")


def write_corpus(folder: Path, pairs: list[tuple[str, str]], name: str = "corpus") -> Path:
    for language, lines in zip(("en", "de"), zip(*pairs)):
        (folder / f"{name}.{language}").write_bytes(plain(lines))
    return folder / name


@pytest.mark.parametrize(
    ("language", "text", "tokens"),
    [
        ("de", "Das ist (fast) alles, z. B. 3,5 %.", "Das ist ( fast ) alles , z. B. 3,5 % ."),
        ("de", "Er sagte: „Ja“ …", 'Er sagte : " Ja " ...'),
        ("en", "It isn’t\u00a0the <b>\u2028end</b> & more\u0085", "It isn 't the < b > end < / b > & more"),
        ("en", "", ""),
    ],
)
def test_punctuation_is_normalised_and_split_off(language, text, tokens):
    assert Moses(language).tokens(text) == tokens


@pytest.mark.parametrize(
    "text", ['Das "Wort" (hier) steht, wie es ist!', "Das E-Mail-Konto von A & B; 1.000,50 Euro: ja?"]
)
def test_the_way_back_gives_the_text_again(text):
    moses = Moses("de")
    assert moses.text(moses.tokens(text)) == text


def test_placeholders_pass_through_unchanged_as_tokens_of_their_own():
    moses = Moses("en", PLACEHOLDER)
    assert moses.tokens("Hello “%(user_name)s”, you <b>have</b> {n}items.") == (
        'Hello " %(user_name)s , " you <b> have </b> {n} items .'
    )


def test_frequent_placeholders_are_one_subword_and_rare_ones_are_spelt(tmp_path):
    common = [(f"{en} %(name)s", f"{de} %(name)s") for en, de in sentences(10, 1)]
    pairs = common + [("{rare} key .", "{rare} Wert .")]
    model = tmp_path / "model"
    model.write_bytes(learn_subwords(lambda: iter(pairs), 80, "bpe", 1000, PLACEHOLDER))
    ((english, german),) = encode_batch(str(model), [(b"the %(name)s {rare}\n", b"x %(name)s\n")])
    assert "▁%(name)s" in english.split() and "▁%(name)s" in german.split()
    assert "▁{rare}" not in english.split()
    assert join_subwords(english) == "the %(name)s {rare}"


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_the_same_text_gives_the_same_subwords(kind):
    pairs = sentences(100, 1)
    first, second = (learn_subwords(lambda: iter(pairs), 80, kind, 40, None) for _ in range(2))
    assert first == second
    assert first != learn_subwords(lambda: iter(pairs[::-1]), 80, kind, 30, None)


def test_unknown_characters_become_unk_and_not_a_new_subword(tmp_path):
    model = tmp_path / "model"
    model.write_bytes(learn_subwords(lambda: iter(sentences(50, 1)), 80, "bpe", 1000, None))
    ((english, german),) = encode_batch(str(model), [("not 鍵 the\n".encode(), b"\n")])
    assert "<unk>" in english.split()
    assert join_subwords(english) == "not <unk> the"
    assert german == ""


def test_strange_line_breaks_inside_of_a_line_keep_the_sides_together(tmp_path):
    pairs = sentences(30, 1)
    pairs[3] = ("one\rtwo\x0bthree\x1cfour\x85five\u2028six", "eins\r\x0czwei\u2029")
    corpus = write_corpus(tmp_path, pairs)
    assert check_corpus(corpus, drop_invalid_utf8=False) == 30
    (tmp_path / "out").mkdir()
    write_tokenised({"train": [corpus]}, SETTINGS, tmp_path / "out", workers=1)
    english, german = ((tmp_path / "out" / f"train.{language}").read_text().splitlines() for language in ("en", "de"))
    assert len(english) == len(german) == 30
    for line, (text, _) in zip(english[4:], pairs[4:]):
        assert line == Moses("en").tokens(text)


def test_a_last_line_without_its_end_counts(tmp_path):
    (tmp_path / "a.en").write_bytes(b"one\ntwo")
    (tmp_path / "a.de").write_bytes(b"eins\nzwei\n")
    assert check_corpus(tmp_path / "a", drop_invalid_utf8=False) == len(list(read_pairs(tmp_path / "a"))) == 2


def test_sides_of_different_length_and_empty_sides_are_refused(tmp_path):
    (tmp_path / "a.en").write_bytes(b"one\ntwo\n")
    (tmp_path / "a.de").write_bytes(b"eins\n")
    with pytest.raises(DataError, match="do not belong together: a.en 2 lines and a.de 1 lines"):
        check_corpus(tmp_path / "a", drop_invalid_utf8=False)
    (tmp_path / "a.de").write_bytes(b"")
    with pytest.raises(DataError, match="a.de is empty"):
        check_corpus(tmp_path / "a", drop_invalid_utf8=False)


def test_many_bad_lines_are_counted_and_the_first_are_named(tmp_path):
    (tmp_path / "a.en").write_bytes(b"\xff\n" * 25)
    (tmp_path / "a.de").write_bytes(b"ja\n" * 25)
    with pytest.raises(DataError, match=r"25 lines are not UTF-8 \(line 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, …\)"):
        check_corpus(tmp_path / "a", drop_invalid_utf8=False)


def test_when_every_pair_is_dropped_the_table_says_why(tmp_path):
    corpus = write_corpus(tmp_path, sentences(30, 1))
    corpora = {"train": [corpus], "valid": [corpus], "test": [corpus]}
    with pytest.raises(DataError, match=r"no training pair is left(.|\n)*longer than 2 subwords +30"):
        prepare_pairs(corpora, Settings(vocabulary=80, max_tokens=2), {}, tmp_path, workers=1)
    assert not (tmp_path / "pieces").exists()
    empty = write_corpus(tmp_path, [("one", "")] * 5, "empty")
    (tmp_path / "again").mkdir()
    with pytest.raises(DataError, match="every training pair was dropped"):
        prepare_pairs(corpora | {"train": [empty]}, SETTINGS, {}, tmp_path / "again", workers=1)


def test_a_pair_is_a_duplicate_only_with_both_sides():
    seen = SeenPairs()
    assert seen.is_new(("one", "eins"))
    assert seen.is_new(("one", "ein"))
    assert not seen.is_new(("one", "eins"))
    seen.close()


def square(number: int) -> int:
    time.sleep(0.01 * (number % 3))
    return number * number


def fail_at_three(number: int) -> int:
    if number == 3:
        raise ValueError("three")
    return number


def exit_at_three(number: int) -> int:
    if number == 3:
        os._exit(1)
    return number


def test_results_come_in_order_and_only_a_few_items_are_read_ahead():
    read = []
    items = (read.append(number) or number for number in range(40))
    for position, result in enumerate(ordered_map(square, items, workers=2)):
        assert result == position * position
        assert len(read) - position <= 8
    assert read == list(range(40))


def test_the_error_of_a_worker_is_raised_and_a_killed_worker_is_named():
    with pytest.raises(ValueError, match="three"):
        list(ordered_map(fail_at_three, range(9), workers=2))
    with pytest.raises(DataError, match="--workers"):
        list(ordered_map(exit_at_three, range(9), workers=2))


def test_batches_cover_everything():
    assert list(batches(range(7), 3)) == [[0, 1, 2], [3, 4, 5], [6]]


PEAK = """
import re, sys
from pathlib import Path
from translation_corpus import Settings, write_pieces, write_tokenised
folder = Path(sys.argv[1])
corpora = {split: [folder / split] for split in ("train", "valid")}
settings = Settings(vocabulary=90, subword_pairs=1_000, drop_duplicates=True)
for name in ("tokenised", "pieces"):
    (folder / name).mkdir()
write_tokenised(corpora, settings, folder / "tokenised", workers=1)
write_pieces(folder / "tokenised", settings, folder / "pieces", workers=1)
# Not ru_maxrss: a new process inherits that of the one that started it.
print(re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""


def peak_memory(folder: Path, repetitions: int) -> int:
    """Peak in KiB of a process that prepares so many times 1,000 pairs."""
    folder.mkdir()
    english, german = (plain(lines) for lines in zip(*sentences(1_000, 1)))
    for split, times in (("train", repetitions), ("valid", 1)):
        for language, text in (("en", english), ("de", german)):
            (folder / f"{split}.{language}").write_bytes(text * times)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PEAK, str(folder)]
    return int(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_corpus(tmp_path):
    small, large = peak_memory(tmp_path / "small", 15), peak_memory(tmp_path / "large", 60)
    small_text, large_text = (
        sum(path.stat().st_size for path in (tmp_path / name).glob("train.*")) // 1024 for name in ("small", "large")
    )
    assert large - small < (large_text - small_text) / 2  # as Python objects the text takes several times its size
