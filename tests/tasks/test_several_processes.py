"""Two processes on CPUs are one training: the same as one process that accumulates, and resumable, state and all."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.conftest import STREAMING, TINY_LM
from tests.tasks.test_language_modeling import load
from tests.tasks.test_translation import TINY as TINY_TRANSLATION
from tests.tasks.test_translation import write_pairs

ROOT = Path(__file__).resolve().parents[2]
EVERY_NINE = ["dataset.validate_interval_updates=9", "checkpoint.save_interval_updates=9"]
ROWS = [*TINY_LM, *EVERY_NINE, "dataset.batch_size=2"]
PAIRS = [*TINY_TRANSLATION, *EVERY_NINE, "dataset.max_tokens=75"]
CELL = [*EVERY_NINE, "task.num_keys=6", "dataset.batch_size=3", "checkpoint.no_save=false"]
# kind of work: folder of its configurations, its configuration, settings, those without and those with random numbers
KINDS = {
    "language_model": ("wikitext103", "mini", ROWS, ["model.dropout=0"], ["row=performer_delta"]),
    "streaming": (
        "wikitext103", "mini", [*ROWS, *STREAMING], ["model.dropout=0"], ["row=performer_delta"]
    ),
    "translation": ("wmt14_en_de", "reordering", PAIRS, ["row=linear"], ["row=performer_64", "model.dropout=0.1"]),
    "synthetic": ("synthetic", "update_rule", CELL, ["curve=dpfp_1_delta"], ["curve=favor_64_delta"]),
}  # fmt: skip

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data(lm_data, tmp_path_factory):
    """The data folders by folder of configurations."""
    pairs = write_pairs(tmp_path_factory.mktemp("backwards") / "data-bin", "a b c d".split())
    return {"wikitext103": [f"task.data='{lm_data}'"], "wmt14_en_de": [f"task.data='{pairs}'"], "synthetic": []}


def start_two_processes(experiment, config, save_dir, *arguments):
    command = ["torchrun", "--standalone", "--nproc_per_node=2", "--no-python", "bash", "scripts/lib/process.sh"]
    command += ["fairseq-hydra-train", "--config-dir", f"configs/{experiment}", "--config-name", config]
    command += [*arguments, *written_to(save_dir, experiment)]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True, **pipes)


def written_to(save_dir, experiment):
    results = [f"task.results_dir='{save_dir}/results'"] if experiment == "synthetic" else []
    return [f"checkpoint.save_dir='{save_dir}'", *results]


def train_on_two_processes(*arguments):
    run = start_two_processes(*arguments)
    output, _ = run.communicate(timeout=600)
    assert run.returncode == 0, output[-6000:]


def last(folder):
    """Everything a resumed training goes on from."""
    checkpoint = torch.load(folder / "checkpoint_last.pt", weights_only=False)
    log = json.loads((folder / "training.json").read_text()) if (folder / "training.json").exists() else synthetic_record(folder)
    [task] = [state for name, state in checkpoint["extra_state"].items() if name.endswith("Task")]
    kept = {name: state for name, state in task.items() if name in ("carried", "rule")}
    return {"model": checkpoint["model"], "optimizer": checkpoint["last_optimizer_state"], "task": kept, "curves": log["curves"]}


def synthetic_record(folder):
    [record] = (folder / "results").rglob("seed1.json")
    return json.loads(record.read_text())


def assert_close(ours, theirs, **tolerance):
    torch.testing.assert_close(ours, theirs, **{"rtol": 0, "atol": 0, **tolerance})


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_are_one_training_of_twice_the_batch(kind, data, train, tmp_path):
    """Without random numbers: no dropout, no FAVOR+."""
    experiment, config, common, plain, _ = KINDS[kind]
    arguments = [*common, *plain, *data[experiment], "optimization.max_update=18"]
    train_on_two_processes(experiment, config, tmp_path / "two", *arguments)
    arguments += [*written_to(tmp_path / "one", experiment), "optimization.update_freq=[2]"]
    assert train(config, *arguments, experiment=experiment) == 0
    two, one = last(tmp_path / "two"), last(tmp_path / "one")
    for name, losses in one["curves"].items():
        if "loss" in name:
            assert two["curves"][name] == pytest.approx(losses, abs=1e-6), name
    assert_close(two["model"], one["model"], rtol=1e-3, atol=1e-4)
    if kind == "streaming":
        assert two["task"]["carried"]["segment"] == one["task"]["carried"]["segment"] == 2
        assert_close(two["task"]["carried"]["state"], one["task"]["carried"]["state"], rtol=1e-3, atol=1e-4)


def validation_loss(checkpoint, data):
    """Of the validation text in four rows, with what the checkpoint has; nats a token."""
    model, task = load(checkpoint, data)
    task.load_dataset("valid")
    stream, losses = task.datasets["valid"], []
    for batch in stream.batches(4, 4):
        sample = stream.collater([stream[i] for i in batch])
        log_probs = model.get_normalized_probs(model(**sample["net_input"]), log_probs=True)
        there = sample["target"] != task.dictionary.pad()
        losses.append(-log_probs[there].gather(1, sample["target"][there].unsqueeze(1))[:, 0])
    losses = torch.cat(losses)
    assert len(losses) == stream.predictions
    return losses.mean().item()


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_resume_exactly(kind, data, lm_data, tmp_path):
    """In the first epoch and in a later one (the synthetic data has one), with dropout and with FAVOR+, of which each
    process draws its own."""
    experiment, config, common, _, random = KINDS[kind]
    arguments = [*common, *random, *data[experiment]]
    train_on_two_processes(experiment, config, tmp_path / "whole", *arguments, "optimization.max_update=27")
    whole = last(tmp_path / "whole")
    if kind == "language_model":  # validated with the random features that are saved, in every process
        expected = validation_loss(tmp_path / "whole" / "checkpoint_last.pt", lm_data)
        assert whole["curves"]["valid_loss"][-1] == pytest.approx(expected, abs=1e-5)
    for update in (9, 18):
        [middle] = (tmp_path / "whole").glob(f"checkpoint_*_{update}.pt")
        folder = tmp_path / f"from_{update}"
        folder.mkdir()
        (folder / "checkpoint_last.pt").write_bytes(middle.read_bytes())
        train_on_two_processes(experiment, config, folder, *arguments, "optimization.max_update=27")
        resumed = last(folder)
        for part in whole:
            assert_close(resumed[part], whole[part])


def workers_of(launcher):
    """Numbers of the processes that train, below torchrun."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent == launcher and b"hydra" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def test_a_dead_process_ends_the_other_within_a_minute_and_the_run_goes_on(data, tmp_path):
    training = ["wikitext103", "mini", tmp_path, *ROWS, *STREAMING, *data["wikitext103"], "checkpoint.save_interval_updates=2"]
    run = start_two_processes(*training, "optimization.max_update=100000")
    try:
        deadline = time.monotonic() + 300
        while not (tmp_path / "checkpoint_last.pt").exists() and time.monotonic() < deadline:
            time.sleep(0.2)
        os.kill(workers_of(run.pid)[-1], signal.SIGKILL)
        killed = time.monotonic()
        output, _ = run.communicate(timeout=120)
        assert time.monotonic() - killed < 60
        assert run.returncode != 0 and "exitcode  : -9" in output
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
    updates = torch.load(tmp_path / "checkpoint_last.pt")["optimizer_history"][-1]["num_updates"]
    train_on_two_processes(*training, f"optimization.max_update={updates + 4}")


def test_a_signal_to_one_process_saves_and_ends_both(data, tmp_path):
    training = [*ROWS, *STREAMING, *data["wikitext103"], "optimization.max_update=100000"]
    run = start_two_processes("wikitext103", "mini", tmp_path, *training)
    deadline = time.monotonic() + 300
    while not list(tmp_path.glob("checkpoint_*_9.pt")) and time.monotonic() < deadline:
        time.sleep(0.2)
    os.kill(workers_of(run.pid)[0], signal.SIGUSR1)
    output, _ = run.communicate(timeout=120)
    assert run.returncode != 0 and "run the same command again to go on" in output
    assert torch.load(tmp_path / "checkpoint_last.pt")["optimizer_history"][-1]["num_updates"] >= 9
