"""Run records: where they lie, that they are whole or absent, and that bad files harm nothing."""

import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys

import pytest

from fwp_fairseq import records
from fwp_fairseq.records import RecordError, new_record, read_records, record_path, write_record


def make_record(row="elu", seed=1, cell="S40", scale="paper", **changes):
    record = new_record(
        experiment="figure_capacity",
        row=row,
        seed=seed,
        scale=scale,
        metrics={"best_loss": 0.25, "last_loss": 0.5},
        updates=300,
        wall_seconds=1.5,
        parameters=1000,
        config={"d_key": 64},
        cell=cell,
        curves={"updates": [100, 200], "loss": [0.25, 0.5]},
    )
    return {**record, **changes}


def test_a_record_is_read_back_from_its_documented_place(tmp_path):
    record = make_record()
    path = write_record(tmp_path, record)
    assert path == tmp_path / "runs" / "figure_capacity" / "elu" / "S40" / "seed1.json"
    assert read_records(tmp_path, "figure_capacity") == ([record], [])


def test_an_experiment_without_cells_has_one_folder_less(tmp_path):
    path = record_path(tmp_path, "table_wikitext103", "delta", 3)
    assert path == tmp_path / "runs" / "table_wikitext103" / "delta" / "seed3.json"


def test_a_record_says_what_it_was_made_with():
    import numpy
    import torch

    record = make_record()
    # "2.13.0+cu130" is installed as "2.13.0".
    assert torch.__version__.startswith(record["versions"]["torch"])
    assert record["versions"]["numpy"] == numpy.__version__
    assert record["versions"]["fairseq"] is not None
    assert record["peak_memory_mb"] > 10
    assert record["created"].endswith("+00:00")


def test_nan_becomes_null_and_the_file_is_strict_json(tmp_path):
    record = new_record(
        "figure_update_rule", "tanh_fwm", 1, "paper", {"last_loss": math.nan}, 100, 1.0, 10,
        {"lr": [1e-4, math.inf]}, curves={"loss": [0.5, math.nan]}, status="diverged",
    )  # fmt: skip
    text = write_record(tmp_path, record).read_text()
    read = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in a JSON file"))
    assert read["metrics"] == {"last_loss": None}
    assert read["curves"] == {"loss": [0.5, None]}
    assert read["config"] == {"lr": [1e-4, None]}


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_write_that_breaks_off_leaves_the_earlier_record_and_nothing_else(tmp_path, monkeypatch, failing):
    path = write_record(tmp_path, make_record(updates=300))

    def no_space(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, failing, no_space)
    with pytest.raises(RecordError, match="No space left on device"):
        write_record(tmp_path, make_record(updates=900))
    assert records.read_record(path)["updates"] == 300
    assert os.listdir(path.parent) == ["seed1.json"]


@pytest.mark.parametrize(
    "field, value",
    [
        ("seed", "one"),
        ("seed", -1),
        ("seed", True),
        ("row", "../elsewhere"),
        ("cell", "S/40"),
        ("scale", "huge"),
        ("status", "running"),
        ("metrics", [0.5]),
        ("updates", None),
        ("config", {"model": object()}),
        ("versions", {"torch": [1]}),
        ("colour", "blue"),
    ],
)
def test_a_wrong_field_is_named_and_nothing_is_written(tmp_path, field, value):
    with pytest.raises(RecordError, match=f"^{field}: "):
        write_record(tmp_path, make_record(**{field: value}))
    assert list(tmp_path.rglob("*.json")) == []


def test_a_missing_field_is_named(tmp_path):
    record = make_record()
    del record["parameters"]
    with pytest.raises(RecordError, match="parameters: missing"):
        write_record(tmp_path, record)


@pytest.mark.parametrize(
    "content, reason",
    [
        (b'{"schema_version": 1, "exper', "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b'{"schema_version": NaN}', "NaN is not allowed"),
        (b'{"schema_version": 1e999}', "1e999 is too large"),
        (b'{"name": "some other program\'s"}', "schema_version: expected 1, got None"),
        (b"[1, 2]", "not a record"),
    ],
)
def test_a_corrupt_or_foreign_file_is_reported_and_kept(tmp_path, content, reason):
    good = make_record(seed=1)
    folder = write_record(tmp_path, good).parent
    bad = folder / "seed2.json"
    bad.write_bytes(content)
    found, problems = read_records(tmp_path, "figure_capacity")
    assert found == [good]
    assert len(problems) == 1 and str(bad) in problems[0] and reason in problems[0]
    assert bad.read_bytes() == content


def test_a_record_copied_to_another_cell_is_reported_not_counted_twice(tmp_path):
    path = write_record(tmp_path, make_record())
    copy = path.parent / "seed7.json"
    shutil.copy(path, copy)
    found, problems = read_records(tmp_path, "figure_capacity")
    assert len(found) == 1
    assert len(problems) == 1 and str(copy) in problems[0] and str(path) in problems[0]


def test_an_unreadable_file_in_the_way_is_kept_beside_the_new_record(tmp_path):
    record = make_record()
    path = write_record(tmp_path, record)
    path.write_text("half a rec")
    write_record(tmp_path, record)
    assert records.read_record(path) == record
    assert (path.parent / "seed1.json.unreadable").read_text() == "half a rec"
    assert read_records(tmp_path, "figure_capacity") == ([record], [])


def test_a_mini_run_does_not_replace_one_at_paper_scale(tmp_path):
    path = write_record(tmp_path, make_record(scale="paper"))
    with pytest.raises(RecordError, match="paper scale"):
        write_record(tmp_path, make_record(scale="mini"))
    assert records.read_record(path)["scale"] == "paper"


def test_a_folder_that_cannot_be_written_is_named_before_and_after_a_run(tmp_path):
    in_the_way = tmp_path / "results"
    in_the_way.write_text("a file, not a folder")
    for write in (lambda: records.check_writable(in_the_way), lambda: write_record(in_the_way, make_record())):
        with pytest.raises(RecordError, match=f"{in_the_way}/runs.*name another results folder"):
            write()


def test_checking_a_folder_leaves_nothing_in_it(tmp_path):
    records.check_writable(tmp_path)
    assert list((tmp_path / "runs").iterdir()) == []


def load_copy(path):
    """The module as it is in another checkout, with nothing remembered from this one."""
    spec = importlib.util.spec_from_file_location("records_copy", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_commit_is_that_of_the_code_and_says_where_it_was_changed(tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=Test", "-c", "user.email=test@example.com"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    module = tmp_path / "package" / "records.py"
    module.parent.mkdir()
    shutil.copy(records.__file__, module)
    assert load_copy(module).git_commit() is None  # no checkout

    git("init", "-q")
    assert load_copy(module).git_commit() is None  # an untracked copy, as in an environment's folder
    git("add", "package")
    git("commit", "-q", "-m", "first")
    commit = git("rev-parse", "HEAD")
    assert load_copy(module).git_commit() == commit

    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "new.json").write_text("{}")
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "slurm.yaml").write_text("partition: gpu")
    assert load_copy(module).git_commit() == commit  # results are not code, nor is the name of a partition

    module.write_text(module.read_text() + "\n")
    assert load_copy(module).git_commit() == f"{commit}+dirty"


def test_reading_records_and_reporting_need_neither_torch_nor_fairseq():
    code = (
        "import sys, fwp_fairseq.records, fwp_fairseq.cli.report\n"
        "print([name for name in ('torch', 'fairseq', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
