"""The seams with fairseq, torch and numpy: each of these fails without its function in `compat.py`."""

import argparse
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def registered():
    import fairseq  # noqa: F401

    import fwp_fairseq  # noqa: F401


def test_fairseq_loads_a_checkpoint_of_its_argparse_commands(tmp_path):
    from fairseq.checkpoint_utils import load_checkpoint_to_cpu

    path = tmp_path / "checkpoint.pt"
    state = {
        "args": None,
        "cfg": {"model": argparse.Namespace(arch="transformer_lm"), "task": {"_name": "language_modeling"}},
        "model": {"w": torch.ones(2)},
        "extra_state": {"train_iterator": {"epoch": 1}},
        "optimizer_history": [{"criterion_name": "CrossEntropyCriterion", "lr_scheduler_state": {}, "num_updates": 1}],
    }
    torch.save(state, path)
    assert load_checkpoint_to_cpu(str(path))["cfg"].model.arch == "transformer_lm"


class Malicious:
    """Unpickled without care, this makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_checkpoint_with_a_malicious_pickle_is_refused_without_running_it(tmp_path):
    from fairseq.checkpoint_utils import load_checkpoint_to_cpu

    path, trace = tmp_path / "checkpoint.pt", tmp_path / "trace"
    torch.save({"args": Malicious(trace), "model": {}}, path)
    with pytest.raises(pickle.UnpicklingError, match="[Ww]eights.only"):
        load_checkpoint_to_cpu(str(path))
    assert not trace.exists()
    torch.load(path, weights_only=False)  # it would have
    assert trace.exists()


def test_token_blocks_of_break_mode_eos():
    from fairseq.data import TokenBlockDataset
    from fairseq.data.concat_dataset import ConcatDataset
    from fairseq.data.list_dataset import ListDataset

    lines = [torch.tensor([4, 5, 2]), torch.tensor([6, 2])]
    dataset = ListDataset(lines, sizes=np.array([3, 2]))
    blocks = TokenBlockDataset(dataset, dataset.sizes, block_size=None, pad=1, eos=2, break_mode="eos")
    assert [block.tolist() for block in ConcatDataset([blocks])] == [[4, 5, 2], [6, 2]]


def test_seeding_an_update_gives_the_numbers_of_torch_manual_seed():
    from fairseq import utils

    utils.set_torch_seed(123)
    drawn = torch.rand(3)
    torch.manual_seed(123)
    assert torch.equal(drawn, torch.rand(3))


def test_a_task_can_stop_a_training_and_the_next_job_forgets_it():
    from fairseq_cli import train
    from omegaconf import OmegaConf

    from fwp_fairseq import compat

    cfg = OmegaConf.create({"checkpoint": {"patience": 2, "maximize_best_checkpoint_metric": False}})
    compat.begin_job()
    assert not train.should_stop_early(cfg, None)
    compat.request_stop("test")
    assert train.should_stop_early(cfg, None) and train.should_stop_early(cfg, 0.1)
    compat.begin_job()
    assert not train.should_stop_early(cfg, None)


def test_the_next_job_forgets_the_best_loss_and_the_patience_of_the_last():
    from fairseq import checkpoint_utils
    from fairseq_cli import train
    from omegaconf import OmegaConf

    from fwp_fairseq import compat

    cfg = OmegaConf.create({"checkpoint": {"patience": 2, "maximize_best_checkpoint_metric": False}})
    compat.begin_job()
    assert [train.should_stop_early(cfg, loss) for loss in (0.1, 0.2, 0.3)] == [False, False, True]
    checkpoint_utils.save_checkpoint.best = 0.1
    compat.begin_job()
    assert [train.should_stop_early(cfg, loss) for loss in (0.5, 0.4)] == [False, False]
    assert not hasattr(checkpoint_utils.save_checkpoint, "best")


def test_a_second_copy_as_user_dir_is_explained_in_one_line(tmp_path):
    from fairseq import utils

    (tmp_path / "fwp_fairseq").mkdir()
    with pytest.raises(ImportError, match="leave common.user_dir .* out"):
        utils.import_user_module(argparse.Namespace(user_dir=str(tmp_path / "fwp_fairseq")))
    utils.import_user_module(argparse.Namespace(user_dir=str(ROOT / "fwp_fairseq")))  # the same one is no trouble
    utils.import_user_module(argparse.Namespace(user_dir=None))


def test_importing_the_package_is_cheap_and_registers_when_fairseq_comes():
    code = (
        "import sys, fwp_fairseq, fwp_fairseq.ops, fwp_fairseq.records; assert 'fairseq' not in sys.modules;"
        "import fairseq; import fwp_fairseq; from fairseq.tasks import TASK_REGISTRY;"
        "assert 'synthetic_retrieval' in TASK_REGISTRY"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=600)


@pytest.mark.slow
def test_argparse_commands_know_the_parts_and_resume_from_their_checkpoints(tmp_path):
    command = [sys.executable, "-m", "fairseq_cli.train", "--user-dir", "fwp_fairseq", "--task", "synthetic_retrieval"]
    command += ["--arch", "retrieval", "--feature-map", "elu", "--update-rule", "sum", "--criterion", "retrieval_error"]
    command += ["--optimizer", "torch_adam", "--lr", "0.001", "--batch-size", "32", "--num-keys", "8", "--cpu"]
    command += ["--validate-interval-updates", "20", "--save-interval-updates", "20"]
    command += ["--save-dir", str(tmp_path), "--results-dir", str(tmp_path), "--best-checkpoint-metric", "loss"]
    for updates in (20, 40):
        done = subprocess.run(
            [*command, "--max-update", str(updates)], cwd=ROOT, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert f"Loaded checkpoint {tmp_path}/checkpoint_last.pt (epoch 1 @ 20 updates)" in done.stdout
    found = json.loads((tmp_path / "runs" / "figure_capacity" / "elu" / "S8" / "seed1.json").read_text())
    assert found["curves"]["updates"] == [20, 40]


def test_processes_draw_different_numbers_and_the_first_the_ones_it_draws_alone():
    from types import SimpleNamespace

    from fairseq.trainer import Trainer

    def draw(rank, updates=5, seed=1):
        trainer = SimpleNamespace(
            cfg=SimpleNamespace(common=SimpleNamespace(seed=seed)), get_num_updates=lambda: updates, data_parallel_rank=rank
        )
        Trainer._set_seed(trainer)
        return torch.rand(3).tolist()

    torch.manual_seed(1 + 5)
    alone = torch.rand(3).tolist()
    assert draw(0) == alone
    assert draw(0) != draw(1) != draw(2)
    assert draw(1) == draw(1) and draw(1) != draw(0, updates=6) and draw(1, seed=2) != draw(1)
