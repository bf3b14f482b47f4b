"""WikiText-103 preparation end to end, on a small archive of the same shape."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import small_corpus
import wikitext103
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDataset
from small_corpus import NAME, TEXTS, TOKENS, TYPES, corpus_of, files_of, good_zip, zip_of
from stages import DataError
from trouble import small_disk
from wikitext103 import WIKITEXT103, prepare


@pytest.fixture
def archive(tmp_path) -> Path:
    path = tmp_path / "given" / NAME
    path.parent.mkdir()
    path.write_bytes(good_zip())
    return path


def test_from_a_mirror_to_data_that_fairseq_reads(server, tmp_path):
    server.files["/small"] = good_zip()
    data_bin = prepare(corpus_of(good_zip(), (server.url("/gone"), server.url("/small"))), tmp_path / "new" / "dest")
    dictionary = Dictionary.load(str(data_bin / "dict.txt"))
    assert len(dictionary) == TYPES + 2  # <s> and <pad> besides the types
    for split, text in TEXTS.items():
        dataset = MMapIndexedDataset(str(data_bin / split))
        lines = [dictionary.string(dataset[i]) for i in range(len(dataset))]
        assert lines == [" ".join(line.split()) for line in text.splitlines()]
        assert sum(dataset.sizes) == TOKENS[split]
        # symbol - 2 runs over the types: the two symbols that never occur come first.
        assert all(dataset[i].min() >= dictionary.eos() == 2 for i in range(len(dataset)))


def test_a_second_run_does_nothing(server, tmp_path, capsys):
    server.files["/small"] = good_zip()
    corpus = corpus_of(good_zip(), (server.url("/small"),))
    prepare(corpus, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.name != ".lock"}
    capsys.readouterr()
    prepare(corpus, tmp_path)
    assert "nothing to do" in capsys.readouterr().out
    assert len(server.requests) == 1
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.name != ".lock"}


def test_own_file_and_own_address_give_the_same_data(server, archive, tmp_path):
    server.files["/mine"] = good_zip()
    nowhere = corpus_of(good_zip())
    by_file = prepare(nowhere, tmp_path / "file", source=str(archive))
    by_address = prepare(nowhere, tmp_path / "address", source=server.url("/mine"))
    assert files_of(by_file) == files_of(by_address)
    assert not (tmp_path / "file" / "download").exists()


def test_several_workers_give_the_data_of_one(archive, tmp_path):
    corpus = corpus_of(good_zip())
    one = prepare(corpus, tmp_path / "one", source=str(archive), workers=1)
    three = prepare(corpus, tmp_path / "three", source=str(archive), workers=3)
    assert files_of(one) == files_of(three)


@pytest.mark.parametrize(
    ("source", "message"),
    [("absent.zip", "absent.zip: no such file"), ("ftp://host/file.zip", "expected an http"), (".", "no such file")],
)
def test_an_unusable_source_is_named(tmp_path, source, message):
    with pytest.raises(DataError, match=f"--source .*{message}"):
        prepare(corpus_of(good_zip()), tmp_path, source=source)


def test_a_truncated_or_wrong_own_file_is_refused(archive, tmp_path):
    corpus = corpus_of(good_zip())
    archive.write_bytes(good_zip()[:-1])
    with pytest.raises(DataError, match=r"bytes, expected \d+"):
        prepare(corpus, tmp_path, source=str(archive))
    archive.write_bytes(b"x" * len(good_zip()))
    with pytest.raises(DataError, match="has sha256 .*, expected"):
        prepare(corpus, tmp_path, source=str(archive))
    assert not (tmp_path / "text").exists()


def test_an_archive_that_points_outside_writes_nothing(tmp_path):
    evil = zip_of({f"small/wiki.{split}.tokens": text for split, text in TEXTS.items()} | {"../../evil": "text"})
    (tmp_path / NAME).write_bytes(evil)
    with pytest.raises(DataError, match="outside of the target folder"):
        prepare(corpus_of(evil), tmp_path / "dest", source=str(tmp_path / NAME))
    assert set(files_of(tmp_path)) == {NAME, "dest/.lock"}


def test_other_counts_than_the_published_are_listed(archive, tmp_path):
    other = corpus_of(good_zip(), tokens=TOKENS | {"valid": 8}, types=13)
    with pytest.raises(DataError, match="valid tokens: 7, expected 8; types: 12, expected 13|types: 12.*valid tokens: 7"):
        prepare(other, tmp_path, source=str(archive))
    assert not (tmp_path / "data-bin").exists()


def test_a_folder_of_someone_else_is_left_alone(archive, tmp_path):
    (tmp_path / "data-bin").mkdir()
    (tmp_path / "data-bin" / "dict.txt").write_text("mine")
    with pytest.raises(DataError, match="was not made by this script"):
        prepare(corpus_of(good_zip()), tmp_path, source=str(archive))
    assert files_of(tmp_path / "data-bin") == {"dict.txt": b"mine"}


def test_data_of_another_corpus_is_not_taken_for_this_one(archive, tmp_path):
    prepare(corpus_of(good_zip()), tmp_path, source=str(archive))
    with pytest.raises(DataError, match="other input or by another version"):
        prepare(replace(corpus_of(good_zip()), types=13), tmp_path, source=str(archive))


def test_a_damaged_file_is_made_again(archive, tmp_path):
    data_bin = prepare(corpus_of(good_zip()), tmp_path, source=str(archive))
    whole = files_of(data_bin)
    (data_bin / "train.bin").write_bytes(whole["train.bin"][:-2])
    prepare(corpus_of(good_zip()), tmp_path, source=str(archive))
    assert files_of(data_bin) == whole


@pytest.mark.parametrize(("step", "disk_size", "file_size"), [("text", 8_192, 8_192), ("data-bin", 49_152, 24_576)])
def test_a_full_disk_is_named_and_the_preparation_goes_on_after(archive, tmp_path, step, disk_size, file_size):
    disk = tmp_path / "disk"
    corpus = corpus_of(good_zip())
    with small_disk(disk, disk_size, file_size) as set_size:
        with pytest.raises(DataError, match="no space left in .*run the same command again"):
            prepare(corpus, disk, source=str(archive))
        assert (disk / "text").exists() == (step == "data-bin")
        assert not (disk / "data-bin").exists()
        assert not [path for path in disk.glob(".*") if path.name != ".lock"]
        set_size(10_000_000)
        recovered = files_of(prepare(corpus, disk, source=str(archive)))
    assert recovered == files_of(prepare(corpus, tmp_path / "roomy", source=str(archive)))


def test_the_command_reports_user_errors_without_a_traceback(tmp_path, capsys):
    assert wikitext103.main(["--dest", str(tmp_path), "--source", "absent.zip"]) == 1
    assert capsys.readouterr().err.startswith("error: --source absent.zip: no such file")
    (tmp_path / "file").write_text("")
    assert wikitext103.main(["--dest", str(tmp_path / "file")]) == 1
    assert "a file is in the way" in capsys.readouterr().err
    with pytest.raises(SystemExit) as exit_:
        wikitext103.main(["--dest", str(tmp_path), "--workers", "0"])
    assert exit_.value.code == 2
    assert "--workers 0: expected 1 or more" in capsys.readouterr().err


def test_the_published_corpus_is_what_is_expected_by_default():
    assert WIKITEXT103.tokens == {"train": 103_227_021, "valid": 217_646, "test": 245_569}
    assert WIKITEXT103.types == 267_735
    assert len(WIKITEXT103.archive.urls) > 1


@pytest.mark.slow
@pytest.mark.parametrize("step", ["_receive", "unpack_zip", "count_and_check", "binarise"])
def test_killed_in_any_step_and_run_again_it_completes(server, tmp_path, step):
    server.files["/small"], server.bytes_per_request = good_zip(), len(good_zip()) // 2
    command = [sys.executable, small_corpus.__file__, str(tmp_path / "killed"), server.url("/small")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.run([*command, step], env=environment, capture_output=True)
    assert killed.returncode == -9
    assert not (tmp_path / "killed" / "data-bin").exists()
    completed = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stderr
    expected = files_of(prepare(corpus_of(good_zip(), (server.url("/small"),)), tmp_path / "whole"))
    assert files_of(tmp_path / "killed" / "data-bin") == expected
    assert not [path for path in (tmp_path / "killed").glob(".*") if path.name != ".lock"]
    # Half of the archive was there already after the first half's kill: never fetched twice.
    assert len([wanted for _, wanted in server.requests[:2] if wanted is None]) == 1


@pytest.mark.slow
def test_two_runs_at_once_share_the_work(server, tmp_path):
    server.files["/small"] = good_zip()
    command = [sys.executable, small_corpus.__file__, str(tmp_path), server.url("/small")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    runs = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [run.communicate()[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    assert sum("nothing to do" in output for output in outputs) == 1
    assert len(server.requests) == 1
