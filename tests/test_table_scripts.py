"""The language modelling scripts: the commands they print, what they skip and resume, and one whole run."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from fwp_fairseq.records import read_record
from fwp_fairseq.reports import (
    table_wikitext103,
    table_wikitext103_ablation,
    table_wikitext103_unbounded,
)

ROOT = Path(__file__).resolve().parents[1]
TABLES = {
    "table_wikitext103.sh": table_wikitext103.TABLE,
    "table_ablation.sh": table_wikitext103_ablation.TABLE,
    "table_unbounded.sh": table_wikitext103_unbounded.TABLE,
}


@pytest.fixture
def checkout(tmp_path):
    for folder in ("scripts", "configs"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    return tmp_path


def dry_run(checkout, script, *arguments):
    command = ["bash", str(checkout / "scripts" / script), "--dry-run", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def commands(result, program):
    lines = [line[2:] for line in result.stdout.splitlines() if line.startswith("+ ")]
    return [shlex.split(line) for line in lines if line.split()[0] == program]


@pytest.mark.parametrize("script", TABLES)
def test_dry_run_prints_a_training_and_an_evaluation_for_every_row_of_the_table(checkout, script):
    before = sorted(checkout.rglob("*"))
    result = dry_run(checkout, script, "--setting", "mini", "--seeds", "1,3")
    assert result.returncode == 0, result.stderr
    folders = [word for line in commands(result, "fairseq-hydra-train") for word in line if "save_dir" in word]
    table = TABLES[script]
    expected = {f"checkpoint.save_dir=runs/{table.name}/{row}/mini/seed{seed}" for row in table.rows for seed in (1, 3)}
    assert len(folders) == len(expected) and set(folders) == expected
    evaluations = commands(result, "fwp-eval-lm")
    assert len(evaluations) == len(expected) and all(line[3:7] == "--split valid --split test".split() for line in evaluations)
    assert "data_prep/mini_lm.py" in result.stdout
    assert sorted(checkout.rglob("*")) == before


@pytest.mark.parametrize("script", TABLES)
def test_printed_trainings_are_configurations_of_their_row(checkout, script):
    result = dry_run(checkout, script, "--setting", "medium", "--processes", "2", "--accumulate", "2")
    seen = set()
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(ROOT / "configs" / "wikitext103"), version_base="1.1"):
        for line in commands(result, "torchrun"):
            arguments = line[line.index("fairseq-hydra-train") :]
            cfg = compose(arguments[arguments.index("--config-name") + 1], overrides=arguments[5:])
            tokens = cfg.dataset.batch_size * cfg.optimization.update_freq[0] * 2 * cfg.task.tokens_per_sample
            assert tokens == 56 * 384
            assert (cfg.task.experiment, cfg.task.setting) == (TABLES[script].name, "medium")
            model, row = cfg.model, cfg.task.row
            seen.add(row)
            if script == "table_unbounded.sh":
                assert cfg.task.carry_state
                assert model._name == ("fwp_transformer_xl" if "xl" in row else "fwp_lm")
            if script == "table_ablation.sh":
                assert (model.feature_map, model.update_rule) == ("elu", "delta")
                normalization = "none" if row == "no_sum_normalization" else row.rsplit("_", 1)[1]
                assert model.attention_normalization == normalization
                assert model.positional_encoding == (not row.startswith("no_positions"))
                assert model.sum_normalization == (row != "no_sum_normalization")
    assert seen == set(TABLES[script].rows)


def test_finished_rows_are_skipped_and_started_ones_go_on_where_they_are(checkout):
    record = checkout / "results/runs/table_wikitext103/transformer/mini/seed1.json"
    record.parent.mkdir(parents=True)
    record.write_text("{}")
    for row, status in (("linear", "finished"), ("delta", "diverged"), ("performer", "running")):
        folder = checkout / f"runs/table_wikitext103/{row}/mini/seed1"
        folder.mkdir(parents=True)
        (folder / "training.json").write_text(f'{{\n "status": "{status}",\n "reason": null\n}}')
    result = dry_run(checkout, "table_wikitext103.sh", "--setting=mini", "--rows=transformer,linear,delta,performer")
    assert "transformer seed 1: finished" in result.stdout
    trained = [word for line in commands(result, "fairseq-hydra-train") for word in line if word.startswith("row=")]
    assert trained == ["row=performer"]
    evaluated = [line[1].removeprefix("runs/table_wikitext103/") for line in commands(result, "fwp-eval-lm")]
    assert evaluated == [
        "linear/mini/seed1/checkpoint_best.pt", "delta/mini/seed1/checkpoint_last.pt", "performer/mini/seed1/checkpoint_best.pt"
    ]  # fmt: skip


def test_no_data_are_made_where_nothing_is_left_to_train(checkout):
    for row in ("linear", "delta"):
        record = checkout / f"results/runs/table_wikitext103/{row}/mini/seed1.json"
        record.parent.mkdir(parents=True)
        record.write_text("{}")
    result = dry_run(checkout, "table_wikitext103.sh", "--setting", "mini", "--rows", "linear,delta")
    assert result.returncode == 0, result.stderr
    assert [line.split()[1] for line in result.stdout.splitlines() if line.startswith("+ ")] == ["fwp-report"]


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--rows", "delta,nope"], ["--rows", "'nope'", "performer_delta"]),
        (["--setting", "large"], ["--setting", "'large'", "medium"]),
        (["--seeds", "0"], ["--seeds", "'0'"]),
        (["--processes", "5"], ["--processes 5", "batch of 96"]),
        (["--stride", "0"], ["--stride", "'0'"]),
        (["--precision", "fp8"], ["--precision", "'fp8'"]),
        (["--max-update", "10"], ["--max-update", "--results"]),
        (["--setting", "mini", "--max-update", "200", "--results", "x"], ["--max-update 200", "warm-up"]),
        (["--rows"], ["--rows", "value"]),
        (["--rows", ","], ["--rows", "names nothing"]),
        (["--row", "delta"], ["'--row'", "--help"]),
    ],
)
def test_wrong_arguments_are_named(checkout, arguments, words):
    result = dry_run(checkout, "table_wikitext103.sh", *arguments)
    assert result.returncode == 2 and result.stdout == ""
    assert all(word in result.stderr for word in words), result.stderr


@pytest.mark.parametrize(
    "arguments, project",
    [([], None), (["--wandb"], "fwp_fairseq"), (["--wandb", "--seeds", "1"], "fwp_fairseq"), (["--wandb", "mine"], "mine")],
)
def test_the_wandb_project_may_be_left_out(checkout, arguments, project):
    result = dry_run(checkout, "table_wikitext103.sh", "--setting", "mini", "--rows", "delta", *arguments)
    [training] = commands(result, "fairseq-hydra-train")
    expected = [f"common.wandb_project={project}"] if project else []
    assert [word for word in training if word.startswith("common.wandb")] == expected


def test_rows_and_seeds_count_once(checkout):
    result = dry_run(checkout, "table_wikitext103.sh", "--setting", "mini", "--rows", "linear,delta,linear", "--seeds", "2,1,2")
    folders = [word.split("/", 2)[2] for line in commands(result, "fairseq-hydra-train") for word in line if "save_dir" in word]
    assert folders == [f"{row}/mini/seed{seed}" for seed in (2, 1) for row in ("linear", "delta")]


def test_what_is_trained_in_another_precision_has_a_folder_of_its_own(checkout):
    result = dry_run(checkout, "table_wikitext103.sh", "--setting", "mini", "--rows", "delta", "--precision", "bf16")
    [training] = commands(result, "fairseq-hydra-train")
    assert "checkpoint.save_dir=runs/table_wikitext103/delta/mini/seed1-bf16" in training and "common.bf16=true" in training


@pytest.mark.parametrize("accumulate, status", [(100, 0), (1000, 2)])
def test_a_batch_of_translation_is_not_divided_to_nothing(checkout, accumulate, status):
    result = dry_run(checkout, "table_wmt14.sh", "--rows", "linear", "--accumulate", str(accumulate))
    assert result.returncode == status
    if status:
        assert "--accumulate 1000 leaves less than 250 of the 25000 tokens" in result.stderr
    else:
        [training] = commands(result, "fairseq-hydra-train")
        assert {"dataset.max_tokens=250", "optimization.update_freq=[100]"} <= set(training)


def test_a_stream_has_no_stride(checkout):
    result = dry_run(checkout, "table_unbounded.sh", "--stride", "4")
    assert result.returncode == 2 and "'--stride'" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_row_is_trained_evaluated_recorded_and_then_skipped(lm_data, tmp_path, processes):
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    (tmp_path / "fwp_fairseq").symlink_to(ROOT / "fwp_fairseq")
    commands = tmp_path / "bin"
    commands.mkdir()
    for name in ("eval_lm", "report"):
        command = commands / f"fwp-{name.replace('_', '-')}"
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m fwp_fairseq.cli.{name} "$@"\n')
        command.chmod(0o755)
    script = f"""
        source scripts/lib/environment.sh; source scripts/lib/training.sh; source scripts/lib/language_model.sh
        prepare_environment() {{ :; }}
        row_options() {{ options=("row=$1"); }}
        experiment=table_wikitext103 all_rows="linear delta" all_settings=mini setting=mini extra_options=stride
        run_table --data '{lm_data}' --max-update 6 --results out --processes {processes} --stride 8
    """
    environment = {**os.environ, "PATH": f"{commands}:{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    environment.update({"PYTHONPATH": str(ROOT)} if processes == 1 else {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""})

    def run():
        return subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900)

    first = run()
    assert first.returncode == 0, first.stdout + first.stderr
    for row in ("linear", "delta"):
        record = read_record(tmp_path / f"out/runs/table_wikitext103/{row}/mini/seed1.json")
        assert (record["status"], record["updates"], record["metrics"]["test_tokens"]) == ("finished", 6, 149)
    assert (tmp_path / "out/tables/table_wikitext103_mini.md").exists()
    second = run()
    assert second.returncode == 0 and "fairseq-hydra-train" not in second.stdout
