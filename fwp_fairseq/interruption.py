"""Stopping on request of the machine: at SIGUSR1 or SIGTERM a training saves after its current update and exits.

The exit status says that the run is to be started again, with the same command. Clusters send such a signal ahead
of a time limit or a preemption; scripts/slurm has jobs requeue themselves on that status.
"""

import logging
import signal
import threading

import torch

logger = logging.getLogger(__name__)

EXIT_STATUS = 75  # EX_TEMPFAIL of sysexits.h: try again later
SIGNALS = (signal.SIGUSR1, signal.SIGTERM)

_signalled: str | None = None  # name of the signal that came
_stopping = False  # whether the training was told
_before = {}  # what the signals did before this module listened, while it does


def listen() -> None:
    """From now on the signals ask a training to stop. A second one acts as before."""
    global _signalled, _stopping
    _signalled, _stopping = None, False
    if threading.current_thread() is threading.main_thread() and not _before:
        _before.update({number: signal.signal(number, _heard) for number in SIGNALS})


def _heard(number, frame):
    global _signalled
    _signalled = signal.Signals(number).name
    for each, handler in _before.items():
        signal.signal(each, handler)
    _before.clear()


def signalled() -> bool:
    """Whether a signal came to this process."""
    return _signalled is not None


def stop() -> None:
    """All processes have agreed to stop after this update."""
    global _stopping
    _stopping = True


def exit_if_interrupted() -> None:
    """Called after a checkpoint was written, in every process: `SystemExit` where a signal is why."""
    if not _stopping:
        return
    if torch.distributed.is_initialized():
        torch.distributed.barrier()  # a process that ends first would have the others killed
    logger.info("interrupted (%s) and saved; run the same command again to go on", _signalled or "another process")
    raise SystemExit(EXIT_STATUS)
