"""Every command and every Python example of the README is run as it stands, at tiny size or as a dry run."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fwp_fairseq.cli import bench, eval_lm, generate, report
from fwp_fairseq.records import read_record

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text()
SET_UP = {"scripts/quickstart.sh", "scripts/test.sh"}  # what .ci/run and tests/test_setup_scripts.py are for


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def commands(program):
    lines = "\n".join(blocks("bash")).replace("\\\n", " ").splitlines()
    found = [shlex.split(line, comments=True) for line in lines]
    return [words for words in found if words and words[0] == program]


def test_there_is_no_command_that_no_test_runs():
    programs = {words.split()[0] for block in blocks("bash") for words in block.replace("\\\n", " ").splitlines() if words}
    assert programs <= {"bash", "fairseq-hydra-train", "fwp-eval-lm", "fwp-generate", "fwp-report", "fwp-bench"}


@pytest.mark.parametrize("command", commands("bash"), ids=" ".join)
def test_scripts_accept_their_arguments(command, tmp_path):
    sweep = tmp_path / "fwp-sweep"
    sweep.write_text(f'#!/bin/sh\nexec {sys.executable} -m fwp_fairseq.cli.sweep "$@"\n')
    sweep.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    options = ["--help"] if command[1] in SET_UP else ["--dry-run"]
    result = subprocess.run([*command, *options], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("command", commands("fairseq-hydra-train"), ids=lambda words: " ".join(words[5:]))
def test_trainings_start_and_end(command, train, train_lm, tmp_path):
    experiment, config, overrides = Path(command[2]).name, command[4], command[5:]
    if experiment == "synthetic":
        tiny = ["task.num_keys=5", "optimization.max_update=100", f"task.results_dir='{tmp_path}'"]
        assert train(config, *[o for o in overrides if "num_keys" not in o], *tiny) == 0
    elif experiment == "wikitext103":
        assert train_lm(tmp_path, *overrides, "optimization.max_update=2") == 0
    else:  # tests/tasks/test_translation.py trains these
        from hydra import compose, initialize_config_dir
        from hydra.core.global_hydra import GlobalHydra

        GlobalHydra.instance().clear()
        with initialize_config_dir(str(ROOT / "configs" / experiment), version_base="1.1"):
            assert compose(config, overrides=overrides).task.row in overrides[0]


@pytest.mark.parametrize("command", [*commands("fwp-eval-lm"), *commands("fwp-generate")], ids=" ".join)
def test_trained_models_are_evaluated_and_go_on_with_a_text(command, trained_lm, capsys):
    main = {"fwp-eval-lm": eval_lm.main, "fwp-generate": generate.main}[command[0]]
    places = {"CHECKPOINT": str(trained_lm.checkpoint), "DATA": str(trained_lm.data), "Returns the": "w1 w8"}
    assert main([places.get(word, word) for word in command[1:]]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("command", commands("fwp-report"), ids=" ".join)
def test_reports_are_built(command, tmp_path, capsys):
    assert report.main([*command[1:], "--results", str(ROOT / "results"), "--out", str(tmp_path)]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("command", commands("fwp-bench"), ids=" ".join)
def test_benchmarks_explain_themselves(command, capsys):
    with pytest.raises(SystemExit) as stop:
        bench.main([*command[1:], "--help"])
    assert stop.value.code == 0 and "usage" in capsys.readouterr().out


def test_the_layer_in_a_model_of_ones_own():
    code = blocks("python")[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 6
    names = {}
    exec(code, names)
    assert names["out"].shape == (4, 100, 256) and names["more"].shape == (4, 1, 256)


def test_a_checkpoint_is_loaded_in_two_lines(trained_lm):
    code = blocks("python")[1].replace("runs/…/seed1", str(trained_lm.save_dir)).replace("data/mini_lm/data-bin", str(trained_lm.data))
    code = code.replace("some words of the corpus", "w1 w8 w3")
    names = {}
    exec(code, names)
    scores = names["model"].score("w1 w8 w3")["positional_scores"]
    assert scores.numel() >= 3 and (scores < 0).all()


def test_the_times_are_those_of_the_committed_record():
    metrics = read_record(ROOT / "results/runs/bench_ops/cpu/float32/seed1.json")["metrics"]
    rows = re.findall(r"^\| (\d[\d, ]+) \| ([\d.| ]+) \|$", TEXT, re.M)
    assert len(rows) == 4
    for shape, times in rows:
        names = [f"{what}/{shape.replace(', ', 'x')}/ms" for what in ("softmax/sdpa", "delta/torch", "sum/torch", "delta/fla")]
        assert [float(time) for time in times.split(" | ")] == pytest.approx([metrics[name] for name in names], rel=0.004)


def test_files_and_pictures_that_are_named_exist():
    paths = re.findall(r"\]\(((?!https?:)[^)]+)\)", TEXT) + re.findall(r"`((?:scripts|configs|docs)/[\w./]+)`", TEXT)
    missing = [path for path in paths if not (ROOT / path).exists()]
    assert missing == []
