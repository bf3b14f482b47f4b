"""Updates per second of the synthetic figures' trainings, through fairseq's trainer and the configurations that the
figures are made with, and where the time of an update goes. Evaluations are switched off and the first updates are not
counted. The authors' code and the goals are for two cores.
"""

import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from fwp_fairseq.benchmarks import BenchError
from fwp_fairseq.cli.arguments import whole_number
from fwp_fairseq.cli.sweep import CONFIG_DIR
from fwp_fairseq.cli.workers import keep_freed_memory
from fwp_fairseq.reports.report import markdown_table

HELP = "updates per second of the synthetic figures' trainings"
WARM_UP = 20  # updates: the loader has filled its buffer of ten batches by then
PARTS = ("waiting for data", "forward", "backward", "optimizer")
DRAWING = "drawing data"


@dataclass(frozen=True)
class Cell:
    """A cell of a figure, with the updates per second of the authors' code and those to reach, on two cores."""

    config: str
    curve: str
    size: int
    authors: float
    goal: float


# The authors' published code was timed on two cores (tanh_fwm with one thread, where it was fastest).
CELLS = (
    Cell("update_rule", "dpfp_1_delta", 20, 11.4, 30),
    Cell("update_rule", "dpfp_1_delta", 100, 0.96, 20),
    Cell("update_rule", "dpfp_1_delta", 200, 0.21, 8),
    Cell("capacity", "elu", 100, 46.8, 50),
    Cell("capacity", "dpfp_2", 300, 6.4, 20),
    Cell("capacity", "dpfp_3", 600, 1.6, 8),
    Cell("update_rule", "tanh_fwm", 20, 9, 40),
)


def add_arguments(parser):
    parser.add_argument("--steps", type=whole_number, default=50, metavar="N", help="updates timed (default: 50)")
    parser.add_argument("--threads", type=whole_number, metavar="N", help="CPU threads (default: torch's choice)")


def run(options) -> int:
    """Train a little in each cell, one after the other in one process, and print the tables."""
    keep_freed_memory()
    results = []
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(1, get_context("spawn")) as worker:
        log = Path(folder) / "training.log"
        for cell in CELLS:
            try:
                seconds, threads = worker.submit(time_updates, cell, options.steps, options.threads, log).result()
            except BrokenProcessPool:
                raise BenchError(f"the training of {cell.curve} S={cell.size} was killed; is there enough memory?")
            results.append((cell, seconds))
            print(f"{cell.curve} S={cell.size}: {1 / seconds['update']:.1f} updates/s", file=sys.stderr, flush=True)
    print(f"Updates per second over {options.steps} updates, CPU threads: {threads}\n\n{speed_table(results)}")
    print(f"\nMilliseconds of one update:\n\n{profile_table(results)}")
    print(f"\n{DRAWING}: in a thread of its own, beside the other parts; trainer: all that is in none of the parts.")
    return 0


def speed_table(results):
    header = ["curve", "S", "ours", "authors' code", "ours / authors'", "goal", "ours / goal"]
    rows = []
    for cell, seconds in results:
        ours = 1 / seconds["update"]
        rows.append([
            cell.curve, str(cell.size), f"{ours:.1f}", f"{cell.authors:g}", f"{ours / cell.authors:.1f}",
            f"{cell.goal:g}", f"{ours / cell.goal:.2f}",
        ])  # fmt: skip
    return markdown_table(header, rows, text_columns=1)


def profile_table(results):
    header = ["curve", "S", "update", *PARTS, "trainer", DRAWING]
    rows = []
    for cell, seconds in results:
        trainer = seconds["update"] - sum(seconds[part] for part in PARTS)
        columns = [seconds["update"], *(seconds[part] for part in PARTS), trainer, seconds[DRAWING]]
        rows.append([cell.curve, str(cell.size), *(f"{1000 * x:.1f}" for x in columns)])
    return markdown_table(header, rows, text_columns=1)


def time_updates(cell, steps, threads, log):
    """({"update" and each part: seconds of one update}, number of threads). Runs in a worker; its output goes to `log`.

    Raises BenchError with the end of the log where the training fails.
    """
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)

    import torch
    from fairseq_cli import hydra_train

    if threads is not None:
        torch.set_num_threads(threads)
    # The configuration names the package by a path relative to the repository; this works from everywhere.
    package = Path(__file__).resolve().parents[1]
    sys.argv = [
        "fairseq-hydra-train", "--config-dir", str(CONFIG_DIR), "--config-name", cell.config,
        f"curve={cell.curve}", f"task.num_keys={cell.size}", "task.results_dir=null",
        "dataset.disable_validation=true", f"common.user_dir='{package}'", f"checkpoint.save_dir='{log.parent}'",
    ]  # fmt: skip
    clock = Clock(steps)
    with clock.attached():
        try:
            hydra_train.cli_main()
        except SystemExit as stop:  # Hydra's way to say that a job failed, after printing why
            if stop.code:
                end = "\n".join(log.read_text(encoding="utf-8").splitlines()[-40:])
                raise BenchError(f"the training of {cell.curve} S={cell.size} failed:\n{end}")
    return clock.per_update(), torch.get_num_threads()


class Clock:
    """Times updates of fairseq's trainer after the warm-up, and the parts of them, then ends the training."""

    def __init__(self, steps):
        self.steps = steps
        self.updates_begun = 0
        self.times = []  # when the timed updates began, and when the last of them had ended
        self.seconds = dict.fromkeys((*PARTS, DRAWING), 0.0)

    def attached(self):
        """Context in which the parts of fairseq and of the plugin are timed."""
        from unittest import mock

        from fairseq.data.iterators import BufferedIterator
        from fairseq.optim import FairseqOptimizer
        from fairseq.trainer import Trainer

        from fwp_fairseq.criterions.retrieval_error import RetrievalError
        from fwp_fairseq.data.retrieval import RetrievalTrainingSet
        from fwp_fairseq.tasks.synthetic_retrieval import SyntheticRetrievalTask

        stack = ExitStack()
        for owner, name, part in (
            (BufferedIterator, "__next__", "waiting for data"),
            (RetrievalError, "forward", "forward"),
            (FairseqOptimizer, "backward", "backward"),
            (SyntheticRetrievalTask, "optimizer_step", "optimizer"),
            (RetrievalTrainingSet, "__getitems__", DRAWING),
        ):
            stack.enter_context(mock.patch.object(owner, name, self.timed(getattr(owner, name), part)))
        train_step = Trainer.train_step

        def begin_update(trainer, *args, **kwargs):
            self.begin_update()
            return train_step(trainer, *args, **kwargs)

        stack.enter_context(mock.patch.object(Trainer, "train_step", begin_update))
        return stack

    def timed(self, function, part):
        def wrapper(*args, **kwargs):
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                if len(self.times) == 1:
                    self.seconds[part] += time.perf_counter() - start

        return wrapper

    def begin_update(self):
        """An update lasts from its beginning to that of the next, so that what lies between them is counted."""
        from fwp_fairseq import compat

        if self.updates_begun in (WARM_UP, WARM_UP + self.steps):
            self.times.append(time.perf_counter())
        if self.updates_begun == WARM_UP + self.steps:
            compat.request_stop("timed")
        self.updates_begun += 1

    def per_update(self):
        started, ended = self.times
        return {"update": (ended - started) / self.steps, **{k: v / self.steps for k, v in self.seconds.items()}}
