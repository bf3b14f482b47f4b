"""The environment of processes that train."""

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1  # prctl(2)


def keep_freed_memory() -> None:
    """Let processes started from here on reuse the memory of freed tensors.

    By default glibc returns every large tensor to the system and faults it in again, a third of the time of a small
    training step. It reads these settings when a process starts, so they do nothing for this one.
    """
    os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", str(2**32))
    os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", str(2**33))


def end_with(parent: int) -> None:
    """Have this process killed when process `parent`, which started it, ends, however that comes about."""
    ctypes.CDLL("libc.so.6").prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # that was before
        os.kill(os.getpid(), signal.SIGKILL)
