"""Tables and figures through a real SLURM on this machine: submitted, requeued, failed, cancelled."""

import json
import re
import subprocess
import time

import pytest

from fwp_fairseq.records import read_record

from .conftest import Checkout

pytestmark = pytest.mark.slow
OUT = ("--results", "out")


@pytest.fixture(scope="module")
def table(cluster, lm_data, tmp_path_factory):
    """Three rows of a table, each trained by two processes; the configuration of one of them is broken."""
    checkout = Checkout(tmp_path_factory.mktemp("table"), cluster)
    checkout.resources(processes_per_node=2)
    (checkout.folder / "configs" / "wikitext103" / "row" / "performer.yaml").write_text("model: {update_rule: sum}\n")
    checkout.options = ["--setting", "mini", "--rows", "linear,delta,performer", "--data", lm_data]
    checkout.options += ["--max-update", "6", "--stride", "8", *OUT]
    checkout.submitted = checkout.run("table_wikitext103.sh", "--slurm", *checkout.options)
    checkout.again = checkout.run("table_wikitext103.sh", "--slurm", *checkout.options)
    wait_for_the_end(checkout, "table_wikitext103.sh")
    return checkout


def squeue(checkout):
    return subprocess.run(
        ["squeue", "--me", "-h", "-r", "-o", "%F_%K %T"], env=checkout.environment, capture_output=True, text=True
    ).stdout


def wait_for(condition, seconds=900):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(1)


def wait_for_the_end(checkout, script):
    wait_for(lambda: squeue(checkout) == "")
    checkout.status = checkout.run(script, "--status", *OUT).stdout


def log(checkout, step):
    [path] = (checkout.folder / "out" / "slurm" / "logs").glob(f"*-{step}-*.log")
    return path.read_text()


def test_a_table_comes_out_of_its_chain_of_jobs(table):
    assert table.submitted.returncode == 0, table.submitted.stderr
    assert re.search(r"train: job \d+, 3 tasks\nevaluate: job \d+, 3 tasks\ntable: job \d+\n", table.submitted.stdout)
    for row in ("linear", "delta"):
        record = read_record(table.folder / f"out/runs/table_wikitext103/{row}/mini/seed1.json")
        assert (record["status"], record["updates"], record["metrics"]["test_tokens"]) == ("finished", 6, 149)
        assert f"{row}/mini/seed1: finished" in table.status
    assert "table_wikitext103_mini: perplexity" in log(table, "table")
    assert "delta (elu)" in (table.folder / "out/tables/table_wikitext103_mini.md").read_text()


def test_srun_starts_the_processes_of_a_row_as_one_training(table):
    for path in (table.folder / "out/slurm/logs").glob("*-train-*_[01].log"):
        text = path.read_text()
        assert "+ srun --kill-on-bad-exit=1 bash scripts/lib/process.sh fairseq-hydra-train" in text
        assert all(re.search(rf"distributed init \(rank {rank}\): tcp://\S+:\d+", text) for rank in (0, 1))
        assert len(re.findall(r"valid on 'valid' subset", text)) == 1  # two trainings would each report it


def test_a_row_that_fails_is_marked_in_the_table_with_the_end_of_its_log(table):
    assert re.search(r"performer/mini/seed1: failed, log out/slurm/logs/\S+-train-\d+_2.log", table.status)
    for text in ((table.folder / "out/tables/table_wikitext103_mini.md").read_text(), log(table, "table")):
        assert re.search(r"Performer \(favor, sum\).*failed, seed 1", text)
        section = text.split("## Failed runs")[1]
        assert "performer mini seed 1" in section and "In 'row/performer'" in section and "the step failed" in section


def test_nothing_is_submitted_twice(table, lm_data):
    assert "3 of 3 are finished, or in the queue already\nnothing to submit" in table.again.stdout
    later = table.run("table_wikitext103.sh", "--slurm", "--dry-run", *table.options)
    assert "linear seed 1: finished" in later.stdout and "--rows performer" in later.stdout
    assert "--rows linear" not in later.stdout


def test_a_job_that_is_requeued_in_the_middle_goes_on_where_it_saved(cluster, lm_data, tmp_path):
    checkout = Checkout(tmp_path, cluster)
    options = ["--setting", "mini", "--rows", "delta", "--data", lm_data, "--max-update", "150", "--stride", "8", *OUT]
    assert checkout.run("table_wikitext103.sh", "--slurm", *options).returncode == 0
    wait_for(lambda: any("num_updates 20 " in path.read_text() for path in tmp_path.glob("out/slurm/logs/*-train-*")))
    assert "delta/mini/seed1: running (train)" in checkout.run("table_wikitext103.sh", "--status", *OUT).stdout
    [job] = [line.split()[0] for line in squeue(checkout).splitlines() if line.endswith("RUNNING")]
    # what SLURM does ahead of the time limit
    subprocess.run(["scancel", "--signal=USR1", "--batch", job], env=checkout.environment, check=True)
    wait_for_the_end(checkout, "table_wikitext103.sh")
    text = log(checkout, "train")
    assert "saved, and requeued" in text and "start 2: bash" in text
    assert 20 <= int(re.search(r"Loaded checkpoint .*@ (\d+) updates", text)[1]) < 150
    record = read_record(tmp_path / "out/runs/table_wikitext103/delta/mini/seed1.json")
    assert (record["status"], record["updates"]) == ("finished", 150)


def test_a_figure_of_two_cells_is_drawn(cluster, tmp_path):
    checkout = Checkout(tmp_path, cluster)
    options = ["--curves", "dpfp_1_sum,elu_delta", "--sizes", "20", "--max-update", "100", *OUT]
    assert checkout.run("figure_update_rule.sh", "--slurm", *options).returncode == 0
    wait_for_the_end(checkout, "figure_update_rule.sh")
    assert "elu_delta/S20/seed1: finished" in checkout.status and "dpfp_1_sum/S20/seed1: finished" in checkout.status
    assert "figure_update_rule_mini: last loss" in log(checkout, "table")
    assert (tmp_path / "out/figures/figure_update_rule_mini.png").stat().st_size > 10_000


def test_the_throughput_is_measured_and_reported(cluster, tmp_path):
    checkout = Checkout(tmp_path, cluster)
    options = ["--setting", "mini", "--rows", "transformer,delta", "--lengths", "16,32", "--tokens", "64", "--rounds", "1"]
    submitted = checkout.run("table_throughput.sh", "--slurm", *options, *OUT)
    assert submitted.returncode == 0, submitted.stderr
    wait_for_the_end(checkout, "table_throughput.sh")
    assert "cpu/mini: finished" in checkout.status
    assert read_record(tmp_path / "out/runs/bench_training/cpu/mini/seed1.json")["status"] == "finished"
    table = (tmp_path / "out/tables/bench_training.md").read_text()
    assert re.findall(r"^\| (transformer|delta) .*?\| +(16|32) \|", table, re.MULTILINE) == [
        (row, length) for length in ("16", "32") for row in ("transformer", "delta")
    ]


def test_cancelling_leaves_nothing_in_the_queue(cluster, tmp_path):
    checkout = Checkout(tmp_path, cluster)
    assert checkout.run("figure_capacity.sh", "--slurm", "--curves", "elu", "--sizes", "20", *OUT).returncode == 0
    assert "cancelled: " in checkout.run("figure_capacity.sh", "--cancel", *OUT).stdout
    wait_for_the_end(checkout, "figure_capacity.sh")
    assert "elu/S20/seed1: cancelled" in checkout.status


def test_an_unknown_partition_is_named_with_those_that_there_are(cluster, tmp_path):
    checkout = Checkout(tmp_path, cluster)
    checkout.resources(partition="nope")
    result = checkout.run("figure_capacity.sh", "--slurm", "--curves", "elu", "--sizes", "20", *OUT)
    assert result.returncode == 2 and "'nope'" in result.stderr and "it has main" in result.stderr
    assert squeue(checkout) == ""


def test_preflight_measures_on_a_compute_node(cluster, lm_data, tmp_path):
    checkout = Checkout(tmp_path, cluster)
    result = checkout.run("table_wikitext103.sh", "--preflight", "--setting", "mini", "--rows", "delta", "--data", lm_data, *OUT)
    assert result.returncode == 0, result.stderr
    assert "+ srun" in result.stdout and re.search(r"\| delta/mini \| +[\d,]+ \| +[\d,]+ \|", result.stdout)
    speeds = json.loads((tmp_path / "out/slurm/table_wikitext103.preflight.json").read_text())
    assert speeds["delta/mini"] > 0
