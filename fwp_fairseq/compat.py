"""Every seam with the versions of fairseq, torch, numpy and hydra that we run on, each with its reason.

`apply()` is called once, when the parts are registered. `begin_job()` is called by our tasks at the start of a
training. `request_stop()` ends a training at the next step.
"""

import argparse
import logging
import os
import sys
import types

import numpy as np
import torch

from fwp_fairseq import checkpoints, wandb_run

logger = logging.getLogger(__name__)

_stop_reason: str | None = None


def apply() -> None:
    """Mend all seams. Safe to call again."""
    allow_namespace_in_checkpoints()
    provide_numpy_compat()
    seed_only_the_devices_there_are()
    explain_a_second_copy()
    seed_processes_apart()
    checkpoints.install()
    wandb_run.install()


def allow_namespace_in_checkpoints() -> None:
    """fairseq's argparse commands put an `argparse.Namespace` into their checkpoints, and torch >= 2.6 then refuses
    to load them (`weights_only` is its default). The class is harmless, so that one class is allowed; any other
    pickled object is still refused."""
    torch.serialization.add_safe_globals([argparse.Namespace])


def provide_numpy_compat() -> None:
    """numpy 2 dropped `np.compat`; fairseq's TokenBlockDataset and LanguagePairDataset use `np.compat.long`."""
    if not hasattr(np, "compat"):
        np.compat = types.SimpleNamespace(long=int)


def seed_only_the_devices_there_are() -> None:
    """fairseq seeds every update through `torch.manual_seed` and `torch.cuda.manual_seed`. Where CUDA is never
    initialised torch then formats a stack trace for a queue nobody reads: 2 ms, a fifth of a small update."""
    from fairseq import utils

    if torch.cuda.is_available():
        return

    def set_torch_seed(seed):
        assert isinstance(seed, int)
        torch.default_generator.manual_seed(seed)

    utils.set_torch_seed = set_torch_seed


RANK_STRIDE = 1_000_003  # more than a training has updates, whose numbers are added to the seed too


def seed_processes_apart() -> None:
    """fairseq gives all processes of a training the same random numbers, so that their dropout masks are the same too.
    The first process keeps the numbers it has alone."""
    from fairseq import utils
    from fairseq.trainer import Trainer

    def set_seed(self):
        utils.set_torch_seed(self.cfg.common.seed + self.get_num_updates() + RANK_STRIDE * self.data_parallel_rank)

    Trainer._set_seed = set_seed


def let_tasks_stop_training() -> None:
    """fairseq has no way for a task to end a training; its loop asks `should_stop_early` after every update, so the
    answer to that question is where a request is heard."""
    from fairseq_cli import train

    if hasattr(train.should_stop_early, "heeds_requests"):
        return
    stops_for_patience = train.should_stop_early

    def should_stop_early(cfg, valid_loss):
        return _stop_reason is not None or stops_for_patience(cfg, valid_loss)

    should_stop_early.heeds_requests = True
    train.should_stop_early = should_stop_early
    # `python -m fairseq_cli.train` runs a second copy of that module under another name
    main = sys.modules["__main__"]
    if getattr(main, "should_stop_early", None) is not None:
        main.should_stop_early = should_stop_early


def request_stop(reason: str) -> None:
    """End the running training after this update, as early stopping does. `reason` is logged."""
    global _stop_reason
    logger.info("stopping training: %s", reason)
    _stop_reason = reason


def begin_job() -> None:
    """Forget what the previous job of a Hydra multirun left in this process: fairseq keeps the best loss and the
    patience counter as function attributes, and an open wandb run makes the next job crash."""
    global _stop_reason
    from fairseq import checkpoint_utils
    from fairseq_cli import train

    let_tasks_stop_training()
    _stop_reason = None
    vars(checkpoint_utils.save_checkpoint).clear()
    # fairseq's own function reads its attributes through the module, that is from our wrapper
    for name in ("best", "num_runs"):
        vars(train.should_stop_early).pop(name, None)
    wandb_run.finish()


def explain_a_second_copy() -> None:
    """fairseq refuses a user directory whose module is loaded from another path with advice to rename it; the cure
    for an installed fwp_fairseq is to leave the option out."""
    from fairseq import utils

    if hasattr(utils.import_user_module, "explains_a_second_copy"):
        return
    import_user_module = utils.import_user_module
    loaded = os.path.dirname(os.path.abspath(__file__))

    def import_or_explain(args):
        user_dir = getattr(args, "user_dir", None)
        path = os.path.abspath(user_dir) if user_dir is not None else loaded
        is_copy = os.path.basename(path) == "fwp_fairseq" and os.path.exists(path)
        if is_copy and os.path.realpath(path) != os.path.realpath(loaded):
            raise ImportError(
                f"fwp_fairseq is already loaded from {loaded}, so user_dir={path} would be a second copy: leave "
                "common.user_dir (--user-dir) out, or uninstall the other one"
            )
        if user_dir is not None and not is_copy:
            import_user_module(args)

    import_or_explain.explains_a_second_copy = True
    utils.import_user_module = import_or_explain
