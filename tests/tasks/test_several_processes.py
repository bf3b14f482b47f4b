"""Two processes on CPUs are one training: the same as one process that accumulates, and resumable, state and all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.conftest import STREAMING, TINY_LM

ROOT = Path(__file__).resolve().parents[2]
FEW = [*STREAMING, "model.dropout=0", "dataset.batch_size=2", "dataset.validate_interval_updates=9"]

pytestmark = pytest.mark.slow


def train_on_two_processes(data, save_dir, *overrides):
    command = ["torchrun", "--standalone", "--nproc_per_node=2", "--no-python", "bash", "scripts/lib/process.sh"]
    command += ["fairseq-hydra-train", "--config-dir", "configs/wikitext103", "--config-name", "mini", *TINY_LM, *FEW]
    command += [f"task.data='{data}'", f"checkpoint.save_dir='{save_dir}'", *overrides]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-6000:]


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
