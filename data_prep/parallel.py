"""Work on batches in several processes, results in order, with a bounded number of batches in memory."""

import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing import get_context
from typing import TypeVar

from stages import DataError

Item = TypeVar("Item")
Result = TypeVar("Result")
AHEAD = 4  # batches per process under way: enough to keep it busy


def batches(items: Iterable[Item], size: int = 1000) -> Iterator[list[Item]]:
    """Cuts `items` into lists of `size`; the last one may be shorter."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


def ordered_map(work: Callable[[Item], Result], items: Iterable[Item], workers: int) -> Iterator[Result]:
    """`map(work, items)` by so many processes. `work` must be picklable.

    Its exceptions are raised here, and DataError if a process dies. `Pool.imap` and `Executor.map` read all items ahead, whatever the results' consumer does: a corpus
    would be in memory as a whole.
    """
    if workers == 1:
        yield from map(work, items)
        return
    # Not forked: the parent may hold threads and locks of torch.
    context = get_context("spawn")
    # Ctrl-C is for the parent, which ends the others.
    with ProcessPoolExecutor(workers, context, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        waiting = deque()
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) == AHEAD * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool as error:
            raise DataError("a worker process was killed, perhaps for want of memory: try fewer --workers") from error
        finally:
            pool.shutdown(cancel_futures=True)
