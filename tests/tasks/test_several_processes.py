"""Two processes on CPUs are one training: the same as one process that accumulates, and resumable, state and all."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.conftest import STREAMING, TINY_LM

ROOT = Path(__file__).resolve().parents[2]
FEW = [*STREAMING, "model.dropout=0", "dataset.batch_size=2", "dataset.validate_interval_updates=9"]

pytestmark = pytest.mark.slow


def start_two_processes(data, save_dir, *overrides):
    command = ["torchrun", "--standalone", "--nproc_per_node=2", "--no-python", "bash", "scripts/lib/process.sh"]
    command += ["fairseq-hydra-train", "--config-dir", "configs/wikitext103", "--config-name", "mini", *TINY_LM, *FEW]
    command += [f"task.data='{data}'", f"checkpoint.save_dir='{save_dir}'", *overrides]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True, **pipes)


def train_on_two_processes(data, save_dir, *overrides):
    run = start_two_processes(data, save_dir, *overrides)
    output, _ = run.communicate(timeout=600)
    assert run.returncode == 0, output[-6000:]


def last(folder):
    checkpoint = torch.load(folder / "checkpoint_last.pt")
    return checkpoint["model"], checkpoint["extra_state"]["FastWeightLanguageModelingTask"]["carried"]


def assert_close(ours, theirs, **tolerance):
    torch.testing.assert_close(ours, theirs, **{"rtol": 0, "atol": 0, **tolerance})


def test_two_processes_carry_the_states_that_one_does_and_resume_exactly(lm_data, train_lm, tmp_path):
    train_on_two_processes(lm_data, tmp_path / "two", "optimization.max_update=18")
    assert train_lm(tmp_path / "one", *FEW, "optimization.max_update=18", "optimization.update_freq=[2]") == 0
    two, one = last(tmp_path / "two"), last(tmp_path / "one")
    assert_close(two[0], one[0], rtol=1e-3, atol=1e-5)
    assert two[1]["segment"] == one[1]["segment"] == 2
    assert_close(two[1]["state"], one[1]["state"], rtol=1e-3, atol=1e-5)

    train_on_two_processes(lm_data, tmp_path / "resumed", "optimization.max_update=9")
    [middle] = (tmp_path / "two").glob("checkpoint_1_9.pt")
    (tmp_path / "resumed" / "checkpoint_last.pt").write_bytes(middle.read_bytes())
    train_on_two_processes(lm_data, tmp_path / "resumed", "optimization.max_update=18")
    resumed = last(tmp_path / "resumed")
    assert_close(resumed[0], two[0])
    assert_close(resumed[1], two[1])


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


def test_a_dead_process_ends_the_other_within_a_minute_and_the_run_goes_on(lm_data, tmp_path):
    forever = ["optimization.max_update=100000", "checkpoint.save_interval_updates=2"]
    run = start_two_processes(lm_data, tmp_path, *forever)
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
    train_on_two_processes(lm_data, tmp_path, f"optimization.max_update={updates + 4}", "checkpoint.save_interval_updates=2")


def test_a_signal_to_one_process_saves_and_ends_both(lm_data, tmp_path):
    run = start_two_processes(lm_data, tmp_path, "optimization.max_update=100000")
    deadline = time.monotonic() + 300
    while not list(tmp_path.glob("checkpoint_*_9.pt")) and time.monotonic() < deadline:
        time.sleep(0.2)
    os.kill(workers_of(run.pid)[0], signal.SIGUSR1)
    output, _ = run.communicate(timeout=120)
    assert run.returncode != 0 and "run the same command again to go on" in output
    assert torch.load(tmp_path / "checkpoint_last.pt")["optimizer_history"][-1]["num_updates"] >= 9
