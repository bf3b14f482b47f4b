"""The throughput script: the commands it prints, and what it refuses."""

import subprocess
from pathlib import Path

import pytest

from fwp_fairseq.benchmarks import training

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "table_throughput.sh"


def dry_run(*arguments):
    return subprocess.run(["bash", str(SCRIPT), "--dry-run", *arguments], capture_output=True, text=True, timeout=60)


def test_dry_run_prints_the_measurement_and_the_report():
    result = dry_run("--rows=transformer,delta", "--lengths", "384,1024", "--device", "cuda", "--results", "out")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        "+ fwp-bench training --rows transformer,delta --lengths 384,1024 --device cuda --results out",
        "+ fwp-report bench_training --results out --brief",
    ]


def test_every_row_and_setting_of_the_benchmark_is_taken():
    result = dry_run("--rows", ",".join(training.ROWS), "--setting", "mini")
    assert result.returncode == 0, result.stderr
    assert all(setting in dry_run("--help").stdout for setting in training.SETTINGS)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--rows", "transformer,nope"], ["--rows", "'nope'", "dpfp_delta"]),
        (["--setting", "large"], ["--setting", "'large'", "medium"]),
        (["--device", "tpu"], ["--device", "'tpu'", "cuda"]),
        (["--lengths", "384,0"], ["--lengths", "'0'"]),
        (["--tokens", "many"], ["--tokens", "'many'"]),
        (["--rounds"], ["--rounds", "value"]),
        (["--row", "delta"], ["'--row'", "--help"]),
    ],
)
def test_wrong_arguments_are_named(arguments, words):
    result = dry_run(*arguments)
    assert result.returncode == 2 and result.stdout == ""
    assert all(word in result.stderr for word in words), result.stderr
