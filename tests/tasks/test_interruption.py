"""A run that is stopped, killed, or out of space loses nothing that was written, and goes on where it was."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from fwp_fairseq import checkpoints, interruption
from fwp_fairseq.tasks.training_log import read_training_log

ROOT = Path(__file__).resolve().parents[2]


def parameters(folder):
    return torch.load(folder / "checkpoint_last.pt")["model"]


def assert_same(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.fixture
def signal_at(monkeypatch):
    """`signal_at(update, number)` sends a signal to this process while that update is computed."""
    from fwp_fairseq.tasks.language_modeling import FastWeightLanguageModelingTask as Task

    def arrange(update, number):
        train_step = Task.train_step

        def train_step_with_signal(self, sample, model, criterion, optimizer, update_num, **options):
            if update_num == update - 1:
                os.kill(os.getpid(), number)
            return train_step(self, sample, model, criterion, optimizer, update_num, **options)

        monkeypatch.setattr(Task, "train_step", train_step_with_signal)

    handlers = {number: signal.getsignal(number) for number in interruption.SIGNALS}
    yield arrange
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", interruption.SIGNALS)
def test_a_signal_saves_after_the_update_without_a_validation(
    train_lm, tmp_path, signal_at, number
):
    signal_at(33, number)
    assert train_lm(tmp_path) == interruption.EXIT_STATUS
    saved = torch.load(tmp_path / "checkpoint_last.pt")
    assert saved["optimizer_history"][-1]["num_updates"] == 33
    assert '"status": "running"' in (tmp_path / "training.json").read_text()
    assert saved["extra_state"]["FastWeightLanguageModelingTask"]["log"]["curves"]["updates"] == [20]


def test_an_interrupted_run_ends_like_one_that_never_stopped(trained_lm, train_lm, tmp_path, signal_at, monkeypatch):
    signal_at(33, signal.SIGUSR1)
    assert train_lm(tmp_path) == interruption.EXIT_STATUS
    monkeypatch.undo()
    assert train_lm(tmp_path) == 0
    assert_same(parameters(tmp_path), parameters(trained_lm.save_dir))


def test_a_damaged_checkpoint_gives_way_to_the_one_before(trained_lm, train_lm, tmp_path, capfd):
    whole = (trained_lm.save_dir / "checkpoint_last.pt").read_bytes()
    [middle] = trained_lm.save_dir.glob("checkpoint_*_40.pt")
    (tmp_path / "checkpoint_3_40.pt").write_bytes(middle.read_bytes())
    (tmp_path / "checkpoint_4_50.pt").write_bytes(whole[:-500])
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    (tmp_path / "checkpoint_last.pt").write_bytes(flipped)
    assert train_lm(tmp_path) == 0
    output = "".join(capfd.readouterr())
    assert "checkpoint_last.pt is damaged" in output and "checkpoint_3_40.pt" in output
    assert (tmp_path / "checkpoint_last.pt.damaged").read_bytes() == flipped
    assert_same(parameters(tmp_path), parameters(trained_lm.save_dir))


def test_a_damaged_checkpoint_alone_is_left_as_it_is(trained_lm, train_lm, tmp_path, capfd):
    part = (trained_lm.save_dir / "checkpoint_last.pt").read_bytes()[:9000]
    (tmp_path / "checkpoint_last.pt").write_bytes(part)
    assert train_lm(tmp_path) != 0
    assert "checkpoint_last.pt is damaged" in capfd.readouterr().err
    assert (tmp_path / "checkpoint_last.pt").read_bytes() == part


def test_the_last_checkpoint_is_replaced_in_one_step(tmp_path, monkeypatch):
    (tmp_path / "new").write_bytes(b"new")
    (tmp_path / "last").write_bytes(b"old")

    def killed(source, target):
        Path(target).write_bytes(b"n")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints.shutil, "copyfile", killed)
        with pytest.raises(KeyboardInterrupt):
            checkpoints.copy_whole(str(tmp_path / "new"), str(tmp_path / "last"))
    assert (tmp_path / "last").read_bytes() == b"old"
    checkpoints.copy_whole(str(tmp_path / "new"), str(tmp_path / "last"))
    assert (tmp_path / "last").read_bytes() == b"new"


def test_fairseq_saves_with_it():
    from fairseq import checkpoint_utils

    assert checkpoint_utils.PathManager.copy is checkpoints.copy_whole


def test_a_full_disk_ends_the_run_with_the_reason_and_leaves_the_last_checkpoint(trained_lm, train_lm, tmp_path):
    [middle] = trained_lm.save_dir.glob("checkpoint_*_40.pt")
    (tmp_path / "checkpoint_last.pt").write_bytes(middle.read_bytes())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        outcome = train_lm(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "no space for a checkpoint" in outcome and str(tmp_path) in outcome
    assert (tmp_path / "checkpoint_last.pt").read_bytes() == middle.read_bytes()
    assert not list(tmp_path.glob("*.tmp"))
    # 60 updates are trained but not kept: it is not to be evaluated as if they were
    assert read_training_log(tmp_path)["status"] == "running"
    assert train_lm(tmp_path) == 0
    assert read_training_log(tmp_path) == {**trained_lm.log, **measured(read_training_log(tmp_path))}


def measured(log):
    return {name: log[name] for name in ("wall_seconds", "peak_memory_mb")}


def test_a_kill_right_after_the_last_checkpoint_leaves_a_run_that_can_be_ended(train_lm, tmp_path):
    assert train_lm(tmp_path, "optimization.max_update=5") == 0
    log = read_training_log(tmp_path)
    assert log["status"] == "finished"
    (tmp_path / "training.json").write_text(json.dumps({**log, "status": "running"}))
    assert train_lm(tmp_path, "optimization.max_update=5") == 0
    assert read_training_log(tmp_path) == {**log, **measured(read_training_log(tmp_path))}


def test_a_finished_run_is_left_as_it_is(train_lm, tmp_path):
    assert train_lm(tmp_path, "optimization.max_update=5") == 0
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert train_lm(tmp_path, "optimization.max_update=5") == 0
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert train_lm(tmp_path, "optimization.max_update=7") == 0
    assert torch.load(tmp_path / "checkpoint_last.pt")["optimizer_history"][-1]["num_updates"] == 7


def test_two_runs_do_not_share_a_folder(train_lm, tmp_path, capfd):
    (tmp_path / "run").mkdir()
    hold = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from fwp_fairseq import checkpoints
checkpoints.lock({str(tmp_path / "run")!r})
print("locked", flush=True)
time.sleep(600)
"""
    other = subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "locked\n"
        assert train_lm(tmp_path / "run") != 0
        assert "another run is training there" in capfd.readouterr().err
        assert list((tmp_path / "run").iterdir()) == []
    finally:
        other.kill()  # the lock goes with the process
        other.wait()
    assert train_lm(tmp_path / "run", "optimization.max_update=2") == 0


def test_the_fields_of_another_model_are_listed(trained_lm, train_lm, capfd):
    before = {path: path.stat().st_mtime_ns for path in trained_lm.save_dir.iterdir()}
    assert train_lm(trained_lm.save_dir, "model.layers=3", "model.update_rule=sum", "common.bf16=true") != 0
    error = capfd.readouterr().err
    assert "common.bf16 is False, here True" in error
    assert "model.layers is 2, here 3" in error and "model.update_rule is delta, here sum" in error
    assert before == {path: path.stat().st_mtime_ns for path in trained_lm.save_dir.iterdir()}


@pytest.mark.slow
def test_kill_at_any_moment_loses_at_most_what_came_after_the_last_checkpoint(lm_data, trained_lm, tmp_path):
    from tests.conftest import TINY_LM

    command = [sys.executable, "-m", "fairseq_cli.hydra_train", "--config-dir", "configs/wikitext103"]
    command += ["--config-name", "mini", *TINY_LM, f"task.data='{lm_data}'", f"checkpoint.save_dir='{tmp_path}'"]
    command += ["checkpoint.save_interval_updates=2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    for attempt in range(3):
        run = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        before = len(list(tmp_path.glob("checkpoint_*_*.pt")))
        deadline = time.monotonic() + 200
        while run.poll() is None and time.monotonic() < deadline:
            if len(list(tmp_path.glob("checkpoint_*_*.pt"))) > before + 2 + attempt:
                run.kill()
                break
            time.sleep(0.003)
        run.wait()
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-2000:]
    assert_same(parameters(tmp_path), parameters(trained_lm.save_dir))
