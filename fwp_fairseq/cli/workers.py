"""The environment of processes that train."""

import os


def keep_freed_memory() -> None:
    """Let processes started from here on reuse the memory of freed tensors.

    By default glibc returns every large tensor to the system and faults it in again, a third of the time of a small
    training step. It reads these settings when a process starts, so they do nothing for this one.
    """
    os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", str(2**32))
    os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", str(2**33))
