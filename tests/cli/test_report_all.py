"""fwp-report all, list and check: everything from the records, and what is committed is what they give."""

import json
import shutil
from pathlib import Path

import pytest

from fwp_fairseq.cli.report import main
from fwp_fairseq.records import new_record, read_records, record_path, write_record

RESULTS = Path(__file__).resolve().parents[2] / "results"


def run(command, results, *more):
    return main([command, "--results", str(results), *more])


def write_delta(results, seed, test, created=None):
    record = new_record(
        "table_wikitext103", "delta", seed, "paper", {"valid_ppl": test - 1, "test_ppl": test, "stride": 1, "trained_tokens": 9},
        10, 5.0, 44_034_778, {}, cell="small", state_size=32_768,
        curves={"updates": [10], "train_loss": [4.0], "valid_loss": [4.0]},
    )  # fmt: skip
    if created:
        record["created"] = created
    return write_record(results, record)


@pytest.fixture
def results(tmp_path):
    write_delta(tmp_path, 1, 36.0)
    write_delta(tmp_path, 2, 35.0)
    return tmp_path


def test_what_is_committed_is_what_the_committed_records_give(capsys):
    assert run("check", RESULTS) == 0, capsys.readouterr().err


def test_all_writes_every_table_figure_and_the_page(results, capsys):
    assert run("all", results, "--brief") == 0
    assert (results / "tables/table_wikitext103.md").exists() and (results / "figures/table_wikitext103.png").exists()
    line = next(line for line in (results / "README.md").read_text().splitlines() if "small, test" in line)
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[:7] == ["delta (elu)", "small, test", "test_ppl", "35.5", "35.5 ± 0.71", "+0", "2"]
    assert cells[9] == "[seed2.json](runs/table_wikitext103/delta/small/seed2.json)"
    assert (results / "runs/table_wikitext103/delta/small/seed2.json").exists()
    assert "no records yet: figure_capacity" in capsys.readouterr().out
    assert run("check", results) == 0


def test_a_readme_that_is_no_page_of_results_is_not_replaced(results, tmp_path, capsys):
    other = tmp_path / "project"
    other.mkdir()
    (other / "README.md").write_text("# My project\n")
    assert run("all", results, "--out", str(other)) == 1
    assert "is no page of results" in capsys.readouterr().err
    assert (other / "README.md").read_text() == "# My project\n" and len(list(other.iterdir())) == 1


def test_list_counts_what_was_run(results, capsys):
    assert run("list", results) == 0
    lines = {line.split("|")[1].strip(): line for line in capsys.readouterr().out.splitlines()}
    assert "2 of 28" in lines["table_wikitext103"] and "0 of 14" in lines["table_wikitext103"]
    assert "0 of 240" in lines["figure_capacity"]


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda r: (r / "tables/table_wikitext103.md").write_text("typed in"), ["table_wikitext103.md", "not what"]),
        (lambda r: (r / "README.md").unlink(), ["README.md", "missing"]),
        (lambda r: (r / "figures/other.png").write_text("x"), ["other.png", "no report"]),
        (lambda r: shutil.copy(RESULTS / "figures/bench.png", r / "figures/table_wikitext103.png"), ["table_wikitext103.png"]),
        (lambda r: write_delta(r, 3, 34.0), ["table_wikitext103.md", "README.md"]),
        (lambda r: (r / "runs/table_wikitext103/delta/small/seed9.json").write_text("{"), ["seed9.json"]),
    ],
    ids=["table", "page", "stray", "figure", "new record", "corrupt record"],
)
def test_check_names_what_differs(results, capsys, change, words):
    run("all", results)
    change(results)
    assert run("check", results) == 1
    error = capsys.readouterr().err
    assert all(word in error for word in words), error


def test_of_two_records_of_one_run_the_newer_wins_and_that_is_said(results, capsys):
    old = write_delta(results, 1, 36.0, "2021-06-01T00:00:00+00:00")
    other = old.with_name("seed1 (copy).json")
    newer = {**json.loads(old.read_text()), "created": "2022-06-01T00:00:00+00:00"}
    newer["metrics"]["test_ppl"] = 33.0
    other.write_text(json.dumps(newer))
    records, [problem] = read_records(results, "table_wikitext103")
    assert [r["metrics"]["test_ppl"] for r in records if r["seed"] == 1] == [33.0]
    assert str(old) in problem and "older than" in problem and "(copy)" in problem
    assert run("all", results) == 1 and "older than" in capsys.readouterr().err
    assert old.exists() and other.exists()


def test_a_record_of_another_version_is_named_and_the_rest_is_shown(results, capsys):
    path = record_path(results, "table_wikitext103", "delta", 1, "small")
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": 99}))
    assert run("table_wikitext103", results) == 1
    captured = capsys.readouterr()
    assert "schema_version" in captured.err and "99" in captured.err and "35.00" in captured.out


def test_without_records_all_says_so_and_loses_nothing(tmp_path, capsys):
    assert run("all", tmp_path) == 0
    assert "no records yet: table_wmt14" in capsys.readouterr().out
    assert run("table_wmt14", tmp_path) == 1
    assert "no record of table_wmt14" in capsys.readouterr().err
