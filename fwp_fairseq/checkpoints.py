"""Checkpoints that survive being killed, a full disk and a second run: what fairseq's saving and loading lack.

`install()` mends them once, from `compat.apply()`. A folder of checkpoints is locked by the run that writes it.
"""

import errno
import fcntl
import glob
import logging
import os
import shutil
import zipfile

import torch

from fwp_fairseq import interruption

logger = logging.getLogger(__name__)

# EFBIG is what a file size limit (ulimit -f) gives; the remedy is the same.
DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# Sections of what may not differ from the checkpoint, and of what may, but is said; None: all of their fields.
MUST_AGREE = {"model": None, "common": ("fp16", "bf16")}
SHOULD_AGREE = dict.fromkeys(("task", "criterion", "dataset", "optimization", "optimizer", "lr_scheduler"))

_lock = None  # descriptor of the folder that this process trains in


def install() -> None:
    """Mend fairseq's saving and loading. Safe to call again.

    A task's `begin_training()`, `prepare_checkpoint()` and `checkpoint_saved(update)`, where it has them, are called in
    every process ahead of the first update, ahead of a checkpoint and after it; `was_trained_before(update)` instead of
    the first update where there is none left.
    """
    from fairseq import checkpoint_utils

    save, load = checkpoint_utils.save_checkpoint, checkpoint_utils.load_checkpoint
    if save.__module__ == __name__:
        return

    def save_checkpoint(cfg, trainer, epoch_itr, val_loss):
        # fairseq asks only the first process for what its task adds to a checkpoint, when nothing can be collected
        # from the others any more
        if not cfg.no_save and hasattr(trainer.task, "prepare_checkpoint"):
            trainer.task.prepare_checkpoint()
        try:
            saved = save(cfg, trainer, epoch_itr, val_loss)
        except (OSError, RuntimeError) as error:
            raise_if_disk_is_full(error, cfg.save_dir)
            raise
        if hasattr(trainer.task, "checkpoint_saved"):
            trainer.task.checkpoint_saved(trainer.get_num_updates())
        interruption.exit_if_interrupted()
        return saved

    def load_checkpoint(cfg, trainer, **options):
        if hasattr(trainer.task, "begin_training"):
            trainer.task.begin_training()
        if not cfg.no_save:
            if trainer.is_data_parallel_master:
                lock(cfg.save_dir)
                mend_last_checkpoint(cfg.save_dir)
            if torch.distributed.is_initialized():
                torch.distributed.barrier()
        path = cfg.restore_file
        if path == "checkpoint_last.pt":
            path = os.path.join(cfg.save_dir, path)
        if os.path.exists(path):
            check_settings(path, trainer.cfg)
        loaded = load(cfg, trainer, **options)
        max_update = trainer.cfg.optimization.max_update
        if hasattr(trainer.task, "begin_training") and 0 < max_update <= trainer.get_num_updates():
            # fairseq would train one more update before it looks
            trainer.task.was_trained_before(trainer.get_num_updates())
            logger.info("%s is trained: %d updates of %d", cfg.save_dir, trainer.get_num_updates(), max_update)
            raise SystemExit(0)
        return loaded

    checkpoint_utils.save_checkpoint = save_checkpoint
    checkpoint_utils.load_checkpoint = load_checkpoint
    # fairseq copies a new checkpoint over the last one, which a kill at that moment leaves cut off
    checkpoint_utils.PathManager = type("WholeCopies", (checkpoint_utils.PathManager,), {"copy": staticmethod(copy_whole)})


def copy_whole(source: str, target: str, overwrite: bool = False) -> bool:
    """Copy a file so that the target is the old one or the new one at any moment."""
    temporary = f"{target}.tmp"
    shutil.copyfile(source, temporary)
    os.replace(temporary, target)
    return True


def raise_if_disk_is_full(error, folder) -> None:
    """`SystemExit` with the reason, the rests of the attempt removed; nothing where it was another error."""
    # torch's writer turns the system's error into one of its own
    full = isinstance(error, RuntimeError) and "PytorchStreamWriter failed" in str(error)
    if not full and getattr(error, "errno", None) not in DISK_FULL:
        return
    for rest in glob.glob(os.path.join(glob.escape(folder), "*.pt.tmp")):
        os.unlink(rest)
    free = shutil.disk_usage(folder).free / 1e6
    raise SystemExit(
        f"error: no space for a checkpoint in checkpoint.save_dir={folder} ({free:.0f} MB free): make room and run the "
        "same command again; it goes on from the last checkpoint that was written"
    )


def lock(folder: str) -> None:
    """Hold a folder for this process until it ends or locks another; `ValueError` where another run has it."""
    global _lock
    unlock()
    os.makedirs(folder, exist_ok=True)
    _lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        unlock()
        raise ValueError(
            f"checkpoint.save_dir={folder}: another run is training there; wait for it, or give another folder"
        )
    except OSError as error:
        logger.warning("%s cannot be locked (%s): take care that no other run trains there", folder, error.strerror)


def unlock() -> None:
    """Let go of what `lock` holds."""
    global _lock
    if _lock is not None:
        os.close(_lock)
        _lock = None


def mend_last_checkpoint(folder: str) -> None:
    """Where the newest checkpoint was damaged, put the one before in its place, with a warning.

    `ValueError` where there is none that is whole.
    """
    last = os.path.join(folder, "checkpoint_last.pt")
    if not os.path.exists(last) or is_whole(last):
        return
    others = sorted(glob.glob(os.path.join(glob.escape(folder), "checkpoint_*_*.pt")), key=os.path.getmtime)
    whole = next((path for path in reversed(others) if is_whole(path)), None)
    if whole is None:
        raise ValueError(
            f"{last} is damaged, and no other checkpoint is there to go on from: delete it to start again, or give "
            "another checkpoint.save_dir"
        )
    logger.warning("%s is damaged (kept as %s.damaged): going on from %s", last, last, whole)
    os.replace(last, f"{last}.damaged")
    copy_whole(whole, last)


def is_whole(path: str) -> bool:
    """Whether a checkpoint has all its parts, by their checksums."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except zipfile.BadZipFile:
        return False


def check_settings(path: str, cfg) -> None:
    """`ValueError` listing the fields of model and precision that differ from a checkpoint's; others are logged."""
    from omegaconf import OmegaConf

    theirs = torch.load(path, map_location="cpu", mmap=True).get("cfg") or {}
    ours = OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)
    found = differences(theirs, ours, MUST_AGREE)
    if found:
        raise ValueError(
            f"{path} is of another training: {'; '.join(found)}. Give the settings it was trained with, or another "
            "checkpoint.save_dir"
        )
    for difference in differences(theirs, ours, SHOULD_AGREE):
        logger.warning("not as in %s: %s", path, difference)


def differences(theirs: dict, ours: dict, sections: dict) -> list[str]:
    """Fields that differ, as "model.layers is 4, here 2"."""
    found = []
    for section, fields in sections.items():
        a, b = theirs.get(section), ours.get(section)
        # fairseq's argparse commands keep a Namespace of everything there
        for name in fields or sorted({*a, *b}) if isinstance(a, dict) and isinstance(b, dict) else ():
            if a.get(name) != b.get(name):
                found.append(f"{section}.{name} is {a.get(name)}, here {b.get(name)}")
    return found
