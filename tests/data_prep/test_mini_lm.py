"""The documentation corpus: what is read from wheels, how it is split, and the whole build on small wheels."""

import hashlib
import random
import shutil
from dataclasses import replace
from pathlib import Path

import mini_lm
import pytest
import sentencepiece
from docstrings import read_module, read_wheel
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDataset
from mini_lm import MINI_LM, MiniCorpus, prepare, split_by_module
from small_corpus import files_of, zip_of
from stages import DataError

MODULE = '''
"""The first line of a module.

A second paragraph
    over two lines.
"""
raise SystemExit("this file must never be run")

class Memory:
    """Stores values under keys.

    Parameters
    ----------
    size : int, how many

    >>> Memory(3) is an example that is left out
    """

    def read(self, key):
        """Reads the value that was written last."""

        async def later():
            r"""The \\sum of what was asked later."""

    def write(self):
        """Schreibt ein Wort f\u00fcr immer ein."""

    def short(self):
        """Too short."""
'''

WORDS = "the key value state layer writes reads keeps forgets slowly matrix of a in with and".split()


def test_documentation_is_read_in_order_and_code_is_not_run():
    assert read_module(MODULE.encode()) == [
        "The first line of a module.",
        "A second paragraph over two lines.",
        "Stores values under keys.",
        "Parameters size : int, how many",
        "Reads the value that was written last.",
        "The \\sum of what was asked later.",
    ]


def test_a_file_that_is_not_python_gives_no_text():
    assert read_module(b"def {{ template }}:\n") == []


def test_test_suites_and_vendored_packages_are_not_read(tmp_path):
    names = ["pack/b.py", "pack/a.py", "pack/tests/test_a.py", "pack/_vendor/other.py", "pack/data.txt"]
    (tmp_path / "pack.whl").write_bytes(zip_of({name: f'"""The text of file {name}"""' for name in names}))
    assert read_wheel(tmp_path / "pack.whl") == [
        ("pack/a.py", ["The text of file pack/a.py"]),
        ("pack/b.py", ["The text of file pack/b.py"]),
    ]


def modules_of_random_sentences(count: int = 60) -> list[tuple[str, list[str]]]:
    draw = random.Random(0)
    common = [" ".join(draw.choices(WORDS, k=12)) for _ in range(5)]  # in many modules, as boilerplate is
    return [
        (f"pack/module_{i}.py", [" ".join(draw.choices(WORDS, k=12)) for _ in range(30)] + draw.sample(common, 2))
        for i in range(count)
    ]


def test_no_paragraph_is_in_two_splits_or_twice_in_one():
    modules = modules_of_random_sentences()
    splits = split_by_module(modules, held_out_bytes=10_000)
    paragraphs = [paragraph for split in splits.values() for paragraph in split]
    assert len(paragraphs) == len(set(paragraphs))
    assert set(paragraphs) == {paragraph for _, found in modules for paragraph in found}
    for split in ("valid", "test"):
        assert 10_000 <= sum(len(paragraph) + 1 for paragraph in splits[split]) < 18_000


def test_a_module_is_never_divided_between_splits():
    modules = modules_of_random_sentences()
    splits = {split: set(paragraphs) for split, paragraphs in split_by_module(modules, 10_000).items()}
    for _, paragraphs in modules:
        own = [p for p in paragraphs if sum(p in other for _, other in modules) == 1]
        assert sum(bool(split.intersection(own)) for split in splits.values()) == 1


def test_the_split_depends_on_names_alone_not_on_the_order_of_reading():
    modules = modules_of_random_sentences()
    expected = split_by_module(modules, 10_000)
    random.Random(1).shuffle(modules)
    assert split_by_module(modules, 10_000) == expected


def test_too_little_text_to_hold_out_is_an_error():
    with pytest.raises(DataError, match="too little text for"):
        split_by_module(modules_of_random_sentences(2), 10_000)


@pytest.fixture
def small(tmp_path) -> tuple[MiniCorpus, Path]:
    """A corpus of one small wheel that pip accepts, and the folder with it."""
    modules = modules_of_random_sentences()
    files = {name: '"""' + "\n\n".join(paragraphs) + '"""' for name, paragraphs in modules}
    files["pack-1.0.dist-info/METADATA"] = "Metadata-Version: 2.1\nName: pack\nVersion: 1.0\n"
    files["pack-1.0.dist-info/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files["pack-1.0.dist-info/RECORD"] = ""
    wheel = zip_of(files)
    folder = tmp_path / "wheels"
    folder.mkdir()
    (folder / "pack-1.0-py3-none-any.whl").write_bytes(wheel)
    text = {
        split: hashlib.sha256("".join(f"{p}\n" for p in paragraphs).encode()).hexdigest()
        for split, paragraphs in split_by_module(modules, 5_000).items()
    }
    pin = ("pack-1.0-py3-none-any.whl", hashlib.sha256(wheel).hexdigest())
    return MiniCorpus((pin,), held_out_bytes=5_000, vocabulary=40, text_sha256=text), folder


def test_the_subwords_spell_the_text_and_fairseq_reads_them(small, tmp_path):
    corpus, wheels = small
    data_bin = prepare(corpus, tmp_path / "dest", wheels)
    subwords = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "dest" / "pieces" / "sentencepiece.model"))
    assert subwords.vocab_size() == 40
    dictionary = Dictionary.load(str(data_bin / "dict.txt"))
    for split in ("train", "valid", "test"):
        dataset = MMapIndexedDataset(str(data_bin / split))
        lines = [subwords.decode(dictionary.string(dataset[i]).split()) for i in range(len(dataset))]
        assert lines == (tmp_path / "dest" / "text" / f"{split}.txt").read_text().splitlines()


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
    with pytest.raises(DataError, match="valid.txt came out with sha256"):
        prepare(replace(corpus, text_sha256=corpus.text_sha256 | {"valid": "0" * 64}), tmp_path / "dest", wheels)
    assert not (tmp_path / "dest" / "text").exists()


def test_missing_and_altered_wheels_are_named(small, tmp_path):
    corpus, wheels = small
    corpus = replace(corpus, wheels=(*corpus.wheels, ("absent-2.0-py3-none-any.whl", "0" * 64)))
    (wheels / corpus.wheels[0][0]).write_bytes(b"other")
    with pytest.raises(DataError) as error:
        prepare(corpus, tmp_path / "dest", wheels)
    assert "absent-2.0-py3-none-any.whl is missing" in str(error.value)
    assert "pack-1.0-py3-none-any.whl has sha256" in str(error.value)


def test_wheels_come_from_pip(small, tmp_path, monkeypatch):
    corpus, wheels = small
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    (tmp_path / "dest" / "wheels" / ".pip.killed").mkdir(parents=True)
    (tmp_path / "dest" / "wheels" / ".pip.killed" / "half a wheel").write_bytes(b"PK")
    prepare(corpus, tmp_path / "dest")
    assert files_of(tmp_path / "dest" / "wheels") == files_of(wheels)


def test_without_the_package_index_the_way_out_is_named(small, tmp_path, monkeypatch, capsys):
    corpus, _ = small
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nothing here"))
    monkeypatch.setattr(mini_lm, "MINI_LM", corpus)
    assert mini_lm.main(["--dest", str(tmp_path / "dest")]) == 1
    message = capsys.readouterr().err
    assert "pip could not fetch pack-1.0-py3-none-any.whl" in message
    assert "--wheels DIR" in message


def test_every_wheel_and_text_of_the_real_corpus_has_a_hash():
    assert len(MINI_LM.wheels) == 9
    for digest in [digest for _, digest in MINI_LM.wheels] + list(MINI_LM.text_sha256.values()):
        assert len(digest) == 64 and int(digest, 16)
