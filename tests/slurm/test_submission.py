"""What would be submitted, and what is refused, without a SLURM: sbatch files, resources, time limits."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from fwp_fairseq.records import new_record, write_record
from fwp_fairseq.reports import ReportError, figure_capacity
from fwp_fairseq.reports.failures import write_failures
from fwp_fairseq.slurm import SlurmError
from fwp_fairseq.slurm.preflight import known_speeds, speeds_path
from fwp_fairseq.slurm.resources import load_resources, seconds
from fwp_fairseq.slurm.tasks import Task, check_time

SCRIPTS = ["table_wikitext103.sh", "table_ablation.sh", "table_unbounded.sh", "table_wmt14.sh"]
SCRIPTS += ["figure_capacity.sh", "figure_update_rule.sh"]


def sbatch_files(result):
    """{step: text} of what --slurm --dry-run printed."""
    parts = re.split(r"^# ---- (\w+): what sbatch gets\n", result.stdout, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2]))


def options(text):
    words = [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]
    return dict(word.removeprefix("--").partition("=")[::2] for line in words for word in shlex.split(line))


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_table_and_figure_is_a_chain_of_jobs(checkout, script):
    arguments = ["--curves", "elu" if "capacity" in script else "elu_delta"] if "figure" in script else []
    result = checkout.run(script, "--slurm", "--dry-run", *arguments)
    assert result.returncode == 0, result.stderr
    files = sbatch_files(result)
    for text in files.values():
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    if "figure" in script:
        assert list(files) == ["cells", "table"]
        assert options(files["table"])["dependency"] == "afterany:<job of cells>"
    else:
        assert list(files) == ["train", "evaluate", "table"]
        assert options(files["evaluate"])["dependency"] == "aftercorr:<job of train>"
        assert options(files["table"])["dependency"] == "afterany:<job of train>:<job of evaluate>"
        assert "data_prep/" in result.stdout  # the data is made here, ahead of any job
    first = options(next(iter(files.values())))
    assert first["signal"] == "B:USR1@120" and "requeue" in first and first["open-mode"] == "append"
    assert not (checkout.folder / "runs").exists() and not (checkout.folder / "results" / "slurm").exists()


def test_each_element_of_the_array_trains_one_row_with_one_seed(checkout):
    result = checkout.run("table_unbounded.sh", "--slurm", "--dry-run", "--rows", "delta,transformer_xl_8x", "--seeds", "1,2")
    files = sbatch_files(result)
    for step in ("train", "evaluate"):
        assert options(files[step])["array"] == "0-3"
        calls = re.findall(r"^\d+\) run_step (\S+) '(.*)' ;;$", files[step], re.M)
        cells = [(row, seed) for seed in "12" for row in ("delta", "transformer_xl_8x")]
        assert [folder for folder, _ in calls] == [
            f"runs/table_wikitext103_unbounded/{row}/medium/seed{seed}" for row, seed in cells
        ]
        for (row, seed), (_, command) in zip(cells, calls):
            # the job's command is the script itself: it prints the training or the evaluation of that row alone
            script, *arguments = shlex.split(command)[1:]
            printed = checkout.run(script.removeprefix("scripts/"), *arguments, "--dry-run").stdout
            lines = [line for line in printed.splitlines() if line.startswith("+ f")]
            program = "fairseq-hydra-train" if step == "train" else "fwp-eval-lm"
            assert len(lines) == 1 and lines[0].startswith(f"+ {program}") and f"/{row}/medium/seed{seed}" in lines[0]


@pytest.mark.parametrize("device, step, machine", [("cpu", "cells", "cpu"), ("cuda", "evaluate", "cuda-an-h100")])
def test_the_throughput_is_one_job_unless_it_was_measured(checkout, device, step, machine):
    arguments = ["--setting", "mini", "--device", device, "--slurm"]
    files = sbatch_files(checkout.run("table_throughput.sh", *arguments, "--dry-run"))
    assert list(files) == [step, "table"]
    command = f"bash scripts/table_throughput.sh --setting mini --device {device} --results results"
    assert options(files[step])["array"] == "0-0" and command in files[step]
    record = checkout.folder / f"results/runs/bench_training/{machine}/mini/seed1.json"
    record.parent.mkdir(parents=True)
    record.touch()
    for name in ("sinfo", "squeue"):  # a cluster with nothing in its queue
        (checkout.folder / "bin" / name).write_text("#!/bin/sh\n")
        (checkout.folder / "bin" / name).chmod(0o755)
    result = checkout.run("table_throughput.sh", *arguments)
    assert "nothing to submit" in result.stdout, result.stderr


def test_resources_of_the_file_reach_the_jobs_that_they_are_for(checkout):
    checkout.resources(
        partition="gpu", account="lab", qos="long", constraint="a100", nodes=2, gpus_per_node=4, memory="64G",
        time="2-00:00:00", max_running=3, extra=["--exclude=node7", "--comment=two words"], setup=["module load cuda"],
    )  # fmt: skip
    files = sbatch_files(checkout.run("table_wikitext103.sh", "--slurm", "--dry-run"))
    train = options(files["train"])
    expected = {
        "partition": "gpu", "account": "lab", "qos": "long", "constraint": "a100", "nodes": "2", "ntasks": "8",
        "ntasks-per-node": "4", "gpus-per-node": "4", "mem": "64G", "time": "2-00:00:00", "array": "0-6%3",
        "exclude": "node7", "comment": "two words",
    }  # fmt: skip
    assert expected.items() <= train.items()
    assert "\nmodule load cuda\n" in files["train"]
    assert "--processes 8 --step train" in files["train"] and "--processes" not in files["evaluate"]


def test_preflight_trains_for_some_updates_of_the_true_size_and_keeps_nothing(checkout):
    checkout.resources(gpus_per_node=2)
    result = checkout.run("table_wikitext103.sh", "--preflight", "--dry-run", "--rows", "delta", SLURM_JOB_ID="1")
    [line] = [line for line in result.stdout.splitlines() if "fairseq-hydra-train" in line]
    words = shlex.split(line)
    assert {"row=delta", "dataset.batch_size=96", "optimization.max_update=10", "checkpoint.no_save=true"} <= set(words)
    assert words[1] == "fairseq-hydra-train"  # in a job of the user's, as everywhere without SLURM
    assert not (checkout.folder / "runs").exists()


def test_the_shipped_resources_are_valid():
    resources = load_resources(Path(__file__).resolve().parents[2] / "configs" / "slurm.yaml")
    assert resources["train"].processes == resources["evaluate"].processes == 1
    assert resources["table"].gpus_per_node == 0


@pytest.mark.parametrize(
    "text, words",
    [
        ("time: 24:00:00", ["time", "in quotes", "86400"]),
        ("time: 'a day'", ["time", "'a day'"]),
        ("nodes: 0", ["nodes", ">= 1", "0"]),
        ("gpus: 4", ["'gpus'", "gpus_per_node"]),
        ("partition: [a]", ["partition", "['a']"]),
        ("extra: --exclude=a", ["extra", "list", "'--exclude=a'"]),
        ("signal_seconds: 7200\ntime: '1:00:00'", ["signal_seconds", "1:00:00", "7200"]),
        ("steps: {test: {}}", ["steps", "'test'", "evaluate"]),
        ("nodes: {", ["not YAML"]),
        ("- nodes", ["expected fields"]),
    ],
)
def test_wrong_resources_are_named(tmp_path, text, words):
    (tmp_path / "slurm.yaml").write_text(text)
    with pytest.raises(SlurmError) as error:
        load_resources(tmp_path / "slurm.yaml")
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize(
    "limit, expected",
    [("90", 5400), ("90:30", 5430), ("1:30:00", 5400), ("2-12", 216000), ("1-01:01", 90060), ("1:2:3:4", 0), ("-5", 0), ("", 0)],
)
def test_time_limits_are_read_as_slurm_does(limit, expected):
    assert seconds(limit) == expected


def test_a_time_limit_shorter_than_the_time_between_checkpoints_is_refused(tmp_path):
    (tmp_path / "slurm.yaml").write_text("time: '00:20:00'")
    train = load_resources(tmp_path / "slurm.yaml")["train"]
    # 4,000 updates of 56 * 384 words take 22 minutes at the 66,000 words a second that are the paper's fastest
    task = Task("delta/medium/seed1", "x", "runs", 4000 * 56 * 384, {"train": "true"})
    with pytest.raises(SlurmError, match=r"time: 00:20:00 is shorter than the 22 minutes .* delta/medium/seed1 .*paper"):
        check_time(train, [task], known_speeds(tmp_path, "table"))
    path = speeds_path(tmp_path, "table")
    path.parent.mkdir()
    path.write_text('{"delta/medium": 100000, "linear/medium": 1000}')
    check_time(train, [task], known_speeds(tmp_path, "table"))  # a faster GPU: 14 minutes
    slow = Task("linear/medium/seed1", "x", "runs", 4000 * 56 * 384, {"train": "true"})
    with pytest.raises(SlurmError, match="1,000 a second, which --preflight measured"):
        check_time(train, [task, slow], known_speeds(tmp_path, "table"))


@pytest.fixture
def data(checkout):
    (checkout.folder / "text_stats.json").write_text("{}")
    return checkout.folder


def test_without_slurm_the_missing_command_is_named(checkout, data):
    checkout.environment["PATH"] = f"{checkout.folder}/bin:{checkout.environment['PATH'].split(':')[1]}:{tools(checkout)}"
    for script, arguments in (("table_wikitext103.sh", ["--setting", "mini", "--data", data]), ("figure_capacity.sh", [])):
        for action in ("--slurm", "--status", "--cancel"):
            result = checkout.run(script, action, *(arguments if action == "--slurm" else []))
            assert result.returncode == 2, result.stderr
            assert re.search(r"fwp-slurm: error: there is no \w+ on the path: .*login node", result.stderr)
            assert "Traceback" not in result.stderr


def tools(checkout):
    """A folder with the tools that the scripts use, and none of SLURM's."""
    folder = checkout.folder / "tools"
    folder.mkdir()
    for tool in "bash sh cat dirname readlink sed grep wc env".split():
        (folder / tool).symlink_to(shutil.which(tool))
    return folder


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--slurm", "--processes", "2"], ["--slurm", "configs/slurm.yaml", "--processes"]),
        (["--slurm", "--jobs", "2"], ["--slurm", "max_running", "--jobs"]),
        (["--step", "test"], ["--step", "'test'", "evaluate"]),
    ],
)
def test_wrong_arguments_are_named(checkout, arguments, words):
    result = checkout.run("table_wikitext103.sh", *arguments, "--dry-run")
    assert result.returncode == 2
    assert all(word in result.stderr for word in words), result.stderr


def test_processes_that_do_not_divide_the_batch_are_refused(checkout):
    checkout.resources(nodes=1, gpus_per_node=5)
    result = checkout.run("table_wikitext103.sh", "--slurm", "--dry-run")
    assert result.returncode == 2 and "batch of 96" in result.stderr


def test_an_evaluation_waits_for_no_training_that_has_not_ended(checkout, data):
    result = checkout.run("table_wikitext103.sh", "--setting", "mini", "--rows", "delta", "--data", data, "--step", "evaluate")
    assert result.returncode == 1 and "delta/mini/seed1: the training has not ended" in result.stderr


def test_a_failure_stands_in_the_figure_until_its_record_is_there(tmp_path):
    def record(size):
        metrics = {"best_loss": 0.5, "last_loss": 0.6}
        write_record(tmp_path, new_record("figure_capacity", "elu", 1, "paper", metrics, 100, 1.0, 10, {}, cell=size))

    failure = {"row": "elu", "cell": "S40", "seed": 1, "log": "x.log", "last_lines": ["out of memory"]}
    write_failures(tmp_path, "figure_capacity", [failure])
    with pytest.raises(ReportError, match="elu S40 seed 1(?s:.*)out of memory"):
        figure_capacity.build(tmp_path)
    record("S20")
    [part] = figure_capacity.build(tmp_path).parts
    for text in (part.markdown, part.brief(100)):
        assert "### elu S40 seed 1\n\n`x.log`, its last lines:\n\n```text\nout of memory\n```" in text
    record("S40")
    [part] = figure_capacity.build(tmp_path).parts
    assert "Failed" not in part.markdown + part.brief(100)
