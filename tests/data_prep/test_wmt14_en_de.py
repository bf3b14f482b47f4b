"""WMT14 preparation on small archives: the result, what a second run does, and every kind of bad input."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import sentencepiece
import wmt14_en_de
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDataset
from sgm import read_sgm
from small_corpus import files_of
from small_parallel import SETTINGS, SmallCorpus, archive_of, plain, sgm, tar_of, with_pairs
from stages import DataError
from trouble import small_disk
from wmt14_en_de import WMT14_EN_DE, prepare

from fwp_fairseq.moses import Moses, join_subwords

SPLITS = ("train", "valid", "test", "test_filtered")


def serve(server, small: SmallCorpus):
    """Puts the archives on the server; the corpus that expects them there."""
    small.address = server.address
    corpus, archives = small.pack()
    server.files |= {f"/{name}": content for name, content in archives.items()}
    return corpus


@pytest.fixture
def own(tmp_path):
    """`own(small)`: writes the archives into a folder; the corpus and that folder, as --source takes it."""

    def write(small: SmallCorpus):
        corpus, archives = small.pack()
        (tmp_path / "own").mkdir(exist_ok=True)
        for name, content in archives.items():
            (tmp_path / "own" / name).write_bytes(content)
        return corpus, str(tmp_path / "own")

    return write


def test_the_archives_become_binarised_subwords_that_spell_the_text(server, tmp_path):
    small = SmallCorpus()
    data_bin = prepare(serve(server, small), SETTINGS, tmp_path)
    assert (data_bin / "dict.en.txt").read_bytes() == (data_bin / "dict.de.txt").read_bytes()
    dictionary = Dictionary.load(str(data_bin / "dict.de.txt"))
    assert len(dictionary) <= SETTINGS.vocabulary + 3  # fairseq adds <s>, <pad>, </s>, and no padding words
    stats = json.loads((data_bin / "text_stats.json").read_text())
    assert {split: stats[split]["pairs"] for split in SPLITS} == {
        "train": 420,
        "valid": 8,
        "test": 9,
        "test_filtered": 5,
    }
    known = set((tmp_path / "tokenised" / "train.en").read_text() + (tmp_path / "tokenised" / "train.de").read_text())
    for split, name in (("valid", "valid"), ("test", "full"), ("test_filtered", "filtered")):
        for language, lines in zip(("en", "de"), zip(*small.plain_tests[name])):
            dataset = MMapIndexedDataset(str(data_bin / f"{split}.en-de.{language}"))
            tokens = [join_subwords(dictionary.string(dataset[i])) for i in range(len(dataset))]
            expected = [Moses(language).tokens(line) for line in lines]
            assert tokens == ["".join(c if c in known else "<unk>" for c in line) for line in expected]
            assert stats[split][f"{language}_tokens"] == dataset.sizes.sum()


def test_the_plain_sources_and_references_are_kept_as_they_were_published(server, tmp_path):
    small = SmallCorpus()
    data_bin = prepare(serve(server, small), SETTINGS, tmp_path)
    for split, name in (("valid", "valid"), ("test", "full"), ("test_filtered", "filtered")):
        english, german = zip(*small.plain_tests[name])
        assert (data_bin / f"src.{split}.en").read_bytes() == plain(english)
        assert (data_bin / f"ref.{split}.de").read_bytes() == plain(german)
    assert "den Wert & die Regel < die Schicht." in (data_bin / "ref.valid.de").read_text()


def test_a_second_run_does_nothing(server, tmp_path, capsys):
    corpus = serve(server, SmallCorpus())
    prepare(corpus, SETTINGS, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.name != ".lock"}
    capsys.readouterr()
    prepare(corpus, SETTINGS, tmp_path)
    assert "nothing to do" in capsys.readouterr().out
    assert len(server.requests) == 5
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.name != ".lock"}
    with pytest.raises(DataError, match="other input or by another version"):
        prepare(corpus, replace(SETTINGS, vocabulary=80), tmp_path)


def test_own_folder_own_address_and_several_workers_give_the_same_data(server, own, tmp_path):
    serve(server, SmallCorpus())
    corpus, folder = own(SmallCorpus())  # knows no address
    by_folder = prepare(corpus, SETTINGS, tmp_path / "folder", source=folder)
    by_address = prepare(corpus, SETTINGS, tmp_path / "address", source=server.address + "/", workers=2)
    assert files_of(by_folder) == files_of(by_address)
    assert not (tmp_path / "folder" / "download").exists()


def test_the_subword_model_in_the_data_folder_is_the_one_that_was_used(own, tmp_path):
    corpus, folder = own(SmallCorpus())
    data_bin = prepare(corpus, replace(SETTINGS, subwords="unigram"), tmp_path / "dest", source=folder)
    model = sentencepiece.SentencePieceProcessor(model_file=str(data_bin / "sentencepiece.model"))
    assert model.vocab_size() == SETTINGS.vocabulary
    tokens = (tmp_path / "dest" / "tokenised" / "train.de").read_text().splitlines()
    assert [" ".join(model.encode(line, out_type=str)) for line in tokens] == (
        (tmp_path / "dest" / "pieces" / "train.de").read_text().splitlines()
    )


def test_what_each_filter_dropped_is_printed_and_recorded(own, tmp_path, capsys):
    small = SmallCorpus()
    english, german = small.texts["news"]
    lines = [
        (b"The key reads the value.", b"\xff\xfe"),
        (b"", "Der Schlüssel liest.".encode()),
        (b"The rule.", b" \r \xe2\x80\xa8"),
        tuple(text.split(b"\n")[5].replace(b" ", b"  ") + b"\r" for text in (english, german)),
        (b"The rule.", b"Die Regel liest " + b"den Wert und " * 4 + b"die Schicht."),
        (b"The rule reads " * 40, b"Die Regel liest " * 40),
    ]
    small.texts["news"] = tuple(
        text + b"".join(pair[i] + b"\n" for pair in lines) for i, text in enumerate((english, german))
    )
    corpus, folder = own(small)
    settings = replace(SETTINGS, max_tokens=100, drop_invalid_utf8=True, drop_duplicates=True)
    data_bin = prepare(corpus, settings, tmp_path / "dest", source=folder)
    report = json.loads((data_bin / "cleaning.json").read_text())
    assert report["read"] == {"europarl": 300, "news": 126}
    assert report["dropped"] == {
        "not UTF-8": 1, "empty": 2, "duplicate": 1, "longer than 100 subwords": 1, "length ratio over 1.5": 1,
    }  # fmt: skip
    assert report["kept"] == {"train": 420, "valid": 8, "test": 9, "test_filtered": 5}
    printed = capsys.readouterr().out
    assert "news.de: 1 lines are not UTF-8 (line 121); these pairs are dropped" in printed
    assert "dropped: duplicate                           1" in printed


def test_lines_that_are_not_utf8_are_named(own, tmp_path):
    small = SmallCorpus()
    english, german = small.texts["europarl"]
    lines = german.split(b"\n")
    lines[6], lines[40] = b"Gr\xfc\xdfe", b"sch\xf6n"
    small.texts["europarl"] = (english, b"\n".join(lines))
    corpus, folder = own(small)
    with pytest.raises(DataError, match=r"europarl.de: 2 lines are not UTF-8 \(line 7, 41\).*--drop-invalid-utf8"):
        prepare(corpus, SETTINGS, tmp_path / "dest", source=folder)
    assert [path.name for path in (tmp_path / "dest").iterdir() if path.name != ".lock"] == ["text"]


def test_a_test_set_that_is_not_utf8_is_refused_whatever_the_flag(own, tmp_path):
    small = SmallCorpus()
    small.texts["full"] = (small.texts["full"][0], small.texts["full"][1].replace(b"Der", b"D\xe4r", 1))
    corpus, folder = own(small)
    with pytest.raises(DataError, match=r"full.de: line 4 is not UTF-8"):
        prepare(corpus, replace(SETTINGS, drop_invalid_utf8=True), tmp_path / "dest", source=folder)


def shorten(text: bytes) -> bytes:
    return b"\n".join(text.split(b"\n")[1:])


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "news",
            lambda english, german: (english, shorten(german)),
            "news has 120 English and 119 German lines, expected 120 each",
        ),
        ("news", lambda english, german: (shorten(english), shorten(german)), "news has 119 .* expected 120 each"),
        ("europarl", lambda english, german: (english, b""), "europarl has 300 English and 0 German lines"),
        ("full", lambda english, german: (english, german.replace(b'id="2"', b'id="7"', 1)), "do not correspond"),
        ("full", lambda english, german: (english, german.replace(b"</seg>", b"", 1)), "9 segments begin, 8 are whole"),
        ("valid", lambda english, german: (b"", german), "valid.en: 0 segments begin"),
    ],
)
def test_sides_that_do_not_belong_together_are_refused(own, tmp_path, name, change, message):
    small = SmallCorpus()
    whole = small.pack()[0]
    small.texts[name] = change(*small.texts[name])
    corpus, folder = own(small)
    sizes = {part.name: part.pairs for parts in whole.values() for part in parts}
    corpus = {split: tuple(with_pairs(part, sizes[part.name]) for part in parts) for split, parts in corpus.items()}
    with pytest.raises(DataError, match=message):
        prepare(corpus, SETTINGS, tmp_path / "dest", source=folder)
    assert set(files_of(tmp_path / "dest")) == {".lock"}


def test_a_truncated_archive_is_refused_and_one_without_a_known_checksum_too(own, tmp_path):
    corpus, folder = own(SmallCorpus())
    path = tmp_path / "own" / "news.tgz"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"news.tgz has \d+ bytes, expected \d+"):
        prepare(corpus, SETTINGS, tmp_path / "dest", source=folder)
    europarl, news = corpus["train"]
    corpus["train"] = (europarl, replace(news, archive=replace(news.archive, size=None, sha256=None)))
    with pytest.raises(DataError, match="news.tgz is not a whole tar.gz archive"):
        prepare(corpus, SETTINGS, tmp_path / "dest", source=folder)
    assert set(files_of(tmp_path / "dest")) == {".lock"}


def test_an_archive_that_points_outside_writes_nothing(own, tmp_path):
    corpus, folder = own(SmallCorpus())
    evil = tar_of({name: b"text\n" for name in corpus["train"][1].members} | {"../../evil": b"text"})
    (tmp_path / "own" / "news.tgz").write_bytes(evil)
    europarl, news = corpus["train"]
    corpus["train"] = (europarl, replace(news, archive=archive_of(evil, "news.tgz")))
    with pytest.raises(DataError, match="outside of the target folder"):
        prepare(corpus, SETTINGS, tmp_path / "dest", source=folder)
    assert set(files_of(tmp_path / "dest")) == {".lock"}


@pytest.mark.parametrize(("step", "disk_size", "file_size"), [("text", 8_192, 8_192), ("tokenised", 57_344, 22_000)])
def test_a_full_disk_is_named_and_the_preparation_goes_on_after(own, tmp_path, step, disk_size, file_size):
    corpus, folder = own(SmallCorpus())
    disk = tmp_path / "disk"
    with small_disk(disk, disk_size, file_size) as set_size:
        with pytest.raises(DataError, match="no space left in .*run the same command again"):
            prepare(corpus, SETTINGS, disk, source=folder)
        assert not (disk / step).exists()
        assert not [path for path in disk.glob(".*") if path.name != ".lock"]
        set_size(50_000_000)
        assert (prepare(corpus, SETTINGS, disk, source=folder) / "test_filtered.en-de.de.bin").exists()


def test_too_many_subwords_for_the_text_names_the_option(own, tmp_path):
    corpus, folder = own(SmallCorpus())
    with pytest.raises(DataError, match="no 30,000 subwords can be learnt from 420 pairs .*--vocab"):
        prepare(corpus, replace(SETTINGS, vocabulary=30_000), tmp_path / "dest", source=folder)
    assert not (tmp_path / "dest" / "pieces").exists()


def test_entities_and_line_breaks_in_segments_are_resolved(tmp_path):
    (tmp_path / "a.sgm").write_bytes(
        b'<DOC docid="x">\n<seg id=1> A &amp; B\n &quot;c&quot; </seg></DOC><doc><SEG id="1">d</SEG>'
    )
    assert read_sgm(tmp_path / "a.sgm") == [((1, "1"), 'A & B "c"'), ((2, "1"), "d")]
    (tmp_path / "b.sgm").write_bytes(sgm(["one", "two"], "src"))
    assert [text for _, text in read_sgm(tmp_path / "b.sgm")] == ["one", "two"]


def test_the_command_reports_user_errors_without_a_traceback(tmp_path, capsys):
    assert wmt14_en_de.main(["--dest", str(tmp_path), "--source", "absent"]) == 1
    assert capsys.readouterr().err.startswith("error: --source absent/training-parallel-europarl-v7.tgz: no such file")
    for option, value in (("--workers", "0"), ("--vocab", "-1"), ("--max-ratio", "0.5"), ("--max-ratio", "nan")):
        with pytest.raises(SystemExit) as exit_:
            wmt14_en_de.main(["--dest", str(tmp_path), option, value])
        assert exit_.value.code == 2
        assert (
            f"{option} {float(value) if option == '--max-ratio' else value}: expected 1 or more"
            in capsys.readouterr().err
        )


def test_the_published_corpus_is_what_is_expected_by_default():
    pairs = {split: sum(part.pairs for part in parts) for split, parts in WMT14_EN_DE.items()}
    assert pairs == {"train": 4_520_620, "valid": 3_000, "test": 3_003, "test_filtered": 2_737}
    for part in [part for parts in WMT14_EN_DE.values() for part in parts]:
        checksum = part.archive.sha256 or part.archive.md5
        assert len(checksum) == (64 if part.archive.sha256 else 32) and int(checksum, 16)


KILLED = """
import os, signal, sys
import translation_corpus, wmt14_en_de
from small_parallel import SETTINGS, SmallCorpus
step = sys.argv[3] if len(sys.argv) > 3 else None
for module in (wmt14_en_de, translation_corpus):
    if step and hasattr(module, step):
        setattr(module, step, lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGKILL))
wmt14_en_de.prepare(SmallCorpus().pack()[0], SETTINGS, __import__("pathlib").Path(sys.argv[1]), source=sys.argv[2])
"""


@pytest.mark.slow
@pytest.mark.parametrize("step", ["read_sgm", "encode_batch"])
def test_killed_in_any_step_and_run_again_it_completes(own, tmp_path, step):
    corpus, folder = own(SmallCorpus())
    command = [sys.executable, "-c", KILLED, str(tmp_path / "killed"), folder]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([*command, step], env=environment, capture_output=True).returncode == -signal.SIGKILL
    assert not (tmp_path / "killed" / "data-bin").exists()
    completed = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stderr
    expected = prepare(corpus, SETTINGS, tmp_path / "whole", source=folder)
    assert files_of(tmp_path / "killed" / "data-bin") == files_of(expected)
    assert not [path for path in (tmp_path / "killed").glob(".*") if path.name != ".lock"]
