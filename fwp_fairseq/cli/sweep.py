"""`fwp-sweep FIGURE`: train the cells of a synthetic figure, a few at a time, and skip what is finished.

Called by scripts/figure_capacity.sh and scripts/figure_update_rule.sh. Each worker is one process that runs Hydra
multiruns of fairseq's training command, so that fairseq is loaded once a worker and not once a cell.
"""

import argparse
import importlib.util
import logging
import multiprocessing
import os
import queue
import shlex
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from fwp_fairseq import records
from fwp_fairseq.cli.workers import end_with, keep_freed_memory

PACKAGE = Path(__file__).resolve().parents[1]
CONFIG_DIR = PACKAGE.parent / "configs" / "synthetic"
CELLS_A_MULTIRUN = 3
CORES = len(os.sched_getaffinity(0))  # that this process may use: of a node that jobs share, not all


@dataclass(frozen=True)
class Figure:
    """A synthetic figure: its Hydra config, and the curves and sizes of the paper."""

    config: str
    curves: tuple
    sizes: tuple


FIGURES = {
    "figure_capacity": Figure(
        "capacity",
        ("softmax", "elu", "dpfp_1", "dpfp_2", "dpfp_3", "favor_64", "favor_128", "favor_512"),
        tuple(range(20, 601, 20)),
    ),
    "figure_update_rule": Figure(
        "update_rule",
        (
            "dpfp_1_sum", "dpfp_1_delta", "dpfp_1_fwm", "tanh_fwm",
            "dpfp_2_delta", "elu_delta", "favor_64_delta", "favor_128_delta",
        ),
        tuple(range(20, 201, 20)),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Multirun:
    """Some cells of one curve and seed: one call of fairseq's training command."""

    curve: str
    seed: int
    sizes: tuple

    def arguments(self, figure: Figure, options) -> list:
        arguments = [
            "fairseq-hydra-train", "-m", "--config-dir", str(CONFIG_DIR), "--config-name", figure.config,
            f"curve={self.curve}", f"common.seed={self.seed}",
            f"task.num_keys={','.join(map(str, self.sizes))}", f"task.results_dir={quoted(options.results.resolve())}",
            f"common.user_dir={quoted(PACKAGE)}",  # the configuration has it relative to the repository
        ]  # fmt: skip
        if options.max_update is not None:
            arguments.append(f"optimization.max_update={options.max_update}")
        if options.wandb is not None:
            arguments.append(f"++common.wandb_project={quoted(options.wandb)}")
        return arguments


def quoted(text) -> str:
    """A value for Hydra that it takes as it is."""
    return "'" + str(text).replace("'", r"\'") + "'"


def main(argv=None) -> int:
    options = parse_arguments(argv)
    if "FWP_SCRIPT" in os.environ:  # the script that started this: what it leaves running is started anew after it
        end_with(int(os.environ.pop("FWP_SCRIPT")))
    figure = FIGURES[options.figure]
    try:
        if not options.dry_run:
            records.check_writable(options.results)
        finished, unfinished = divide_cells(options, figure)
    except records.RecordError as error:
        print(f"fwp-sweep: {error}", file=sys.stderr)
        return 2
    multiruns = group_cells(unfinished)
    count = f"{options.figure}: {len(finished)} of {len(finished) + len(unfinished)} cells are finished"
    print(count, file=sys.stderr if options.list_tasks else sys.stdout, flush=True)
    if options.list_tasks:
        for cell in unfinished:
            print(slurm_task(options, *cell))
        return 0
    if options.dry_run:
        for multirun in multiruns:
            print(shlex.join(multirun.arguments(figure, options)))
        return 0
    if not unfinished:
        return 0
    if options.wandb is not None and importlib.util.find_spec("wandb") is None:
        print("fwp-sweep: --wandb: wandb is not installed: pip install 'fwp_fairseq[track]'", file=sys.stderr)
        return 2
    return Sweep(options, figure, multiruns, len(unfinished)).run()


def parse_arguments(argv):
    parser = argparse.ArgumentParser(
        prog="fwp-sweep",
        description="Train the cells of a synthetic figure. Cells with a record are skipped, so an interrupted sweep "
        "is continued by the same command. Draw the result with `fwp-report FIGURE`.",
        epilog="example: fwp-sweep figure_capacity --curves elu,dpfp_1 --sizes 20,60,100 --jobs 2",
    )
    parser.add_argument("figure", choices=FIGURES, help="which figure")
    parser.add_argument("--curves", type=names, help="comma-separated curves (default: all of the paper's)")
    parser.add_argument("--sizes", type=whole_numbers, help="comma-separated S (default: the paper's grid)")
    parser.add_argument("--seeds", type=whole_numbers, default=(1,), help="comma-separated seeds (default: 1)")
    parser.add_argument("--jobs", type=int, default=CORES, help="worker processes (default: one a core)")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of records (default: results)")
    parser.add_argument("--max-update", type=int, help="end runs here if their stopping rule has not (the record "
                        "then says mini; default: the paper's 100,000)")  # fmt: skip
    parser.add_argument("--wandb", metavar="PROJECT", nargs="?", const="fwp_fairseq", help="log to wandb, one run a cell, "
                        "offline without an API key (default project: fwp_fairseq)")  # fmt: skip
    parser.add_argument("--list-tasks", action="store_true", help="print what is missing for `fwp-slurm submit`")
    parser.add_argument("--dry-run", action="store_true", help="print the training commands and stop")
    options = parser.parse_args(argv)
    figure = FIGURES[options.figure]
    for curve in options.curves or ():
        if curve not in figure.curves:
            parser.error(f"--curves: {options.figure} has no curve {curve!r}, it has {', '.join(figure.curves)}")
    for name in ("jobs", "max_update"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')}: must be >= 1, got {getattr(options, name)}")
    options.curves = options.curves or figure.curves
    options.sizes = options.sizes or figure.sizes
    return options


def names(text):
    found = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not found:  # an unset shell variable, say, which must not start the whole figure
        raise argparse.ArgumentTypeError(f"names nothing, got {text!r}; leave the option out for its default")
    return found


def whole_numbers(text):
    numbers = []
    for word in names(text):
        if not word.isdecimal() or int(word) < 1:
            raise argparse.ArgumentTypeError(f"expected whole numbers >= 1 separated by commas, got {word!r}")
        numbers.append(int(word))
    return tuple(dict.fromkeys(numbers))


def divide_cells(options, figure):
    """All cells asked for, as (size, curve, seed), divided by whether a good record exists."""
    finished, unfinished = [], []
    for size in sorted(options.sizes):  # small ones first: the figure fills from the left
        for curve in options.curves:
            for seed in options.seeds:
                path = records.record_path(options.results, options.figure, curve, seed, f"S{size}")
                done = False
                if path.exists():
                    try:
                        record = records.read_record(path)
                        if (record["row"], record["cell"], record["seed"]) != (curve, f"S{size}", seed):
                            raise records.RecordError("is the record of another cell")
                        done = record["scale"] == "paper" or is_long_enough(record, options.max_update)
                    except records.RecordError as error:
                        print(f"{path} {error}; the cell is run again", file=sys.stderr)
                (finished if done else unfinished).append((size, curve, seed))
    return finished, unfinished


def is_long_enough(record, max_update) -> bool:
    """Whether a mini run is what `--max-update` would make, or has been trained further."""
    if max_update is None:
        return False
    ended_by_itself = record["metrics"].get("stop_reason") != "max_update"
    return ended_by_itself or record["updates"] >= max_update


def slurm_task(options, size, curve, seed) -> str:
    """A line for `fwp-slurm submit`: name, record, folder, no checkpoints, and the command that trains one cell."""
    path = records.record_path(options.results, options.figure, curve, seed, f"S{size}")
    command = ["fwp-sweep", options.figure, "--curves", curve, "--sizes", str(size), "--seeds", str(seed)]
    command += ["--jobs", "1", "--results", str(options.results)]
    for name in ("max_update", "wandb"):
        if getattr(options, name) is not None:
            command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    fields = [f"{curve}/S{size}/seed{seed}", str(path), str(path.parent), "0", f"cells={shlex.join(command)}"]
    return "\t".join(fields)


def group_cells(cells):
    """Cells of one curve and seed with neighbouring sizes share a multirun."""
    groups = {}
    for size, curve, seed in cells:
        groups.setdefault((curve, seed), []).append(size)
    multiruns = [
        Multirun(curve, seed, tuple(sizes[i : i + CELLS_A_MULTIRUN]))
        for (curve, seed), sizes in groups.items()
        for i in range(0, len(sizes), CELLS_A_MULTIRUN)
    ]
    return sorted(multiruns, key=lambda multirun: multirun.sizes)


class Sweep:
    """Hands multiruns to worker processes and shows how far they are."""

    def __init__(self, options, figure, multiruns, cells):
        self.options, self.figure, self.multiruns, self.cells = options, figure, multiruns, cells
        self.logs = options.results / "logs"

    def run(self) -> int:
        self.logs.mkdir(parents=True, exist_ok=True)
        keep_freed_memory()
        context = multiprocessing.get_context("spawn")
        work, news = context.Queue(), context.Queue()
        for multirun in self.multiruns:
            work.put(multirun)
        count = min(self.options.jobs, len(self.multiruns))
        workers = [
            context.Process(target=work_off, args=(number, count, work, news, self.figure, self.options, os.getpid()))
            for number in range(count)
        ]
        for worker in workers:
            work.put(None)
            worker.start()
        try:
            return self.watch(workers, news)
        except KeyboardInterrupt:
            print("\ninterrupted; the same command goes on with what is not finished", flush=True)
            return 130
        finally:
            for worker in workers:
                worker.kill()
                worker.join()

    def watch(self, workers, news) -> int:
        from tqdm import tqdm

        failed, running = [], {}
        with tqdm(total=self.cells, unit="cell", file=sys.stdout, mininterval=1, dynamic_ncols=True) as bar:
            while any(worker.is_alive() for worker in workers) or not news.empty():
                try:
                    kind, number, text = news.get(timeout=1)
                except queue.Empty:
                    continue
                if kind == "progress":
                    running[number] = text
                    bar.set_postfix_str(" | ".join(running.values()), refresh=sys.stdout.isatty())
                elif kind == "finished":
                    running.pop(number, None)
                    bar.write(text)
                    bar.update()
                else:
                    failed.append(text)
                    bar.write(f"FAILED {text}")
        dead = [worker.exitcode for worker in workers if worker.exitcode != 0]
        if dead:
            print(f"{len(dead)} workers died (exit codes {dead}); see {self.logs}", file=sys.stderr)
        if failed:
            print(f"{len(failed)} multiruns failed: {'; '.join(failed)}", file=sys.stderr)
        return 1 if failed or dead else 0


def work_off(number, count, work, news, figure, options, parent):
    """One worker: multiruns from the queue until it hands out None. Its output goes to a log file."""
    end_with(parent)  # a sweep that is killed takes its workers along, wherever they are
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    log = options.results / "logs" / f"{options.figure}-worker{number}.log"
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)

    import torch

    if "OMP_NUM_THREADS" not in os.environ:  # which torch follows by itself
        torch.set_num_threads(max(1, CORES // count))
    from fairseq_cli import hydra_train

    listen(number, news)
    while (multirun := work.get()) is not None:
        sys.argv = multirun.arguments(figure, options)
        try:
            hydra_train.cli_main()
        except SystemExit as stop:  # Hydra's way to say that a job failed, after printing why
            if stop.code:
                text = f"{multirun.curve} S={','.join(map(str, multirun.sizes))} seed {multirun.seed}, see {log}"
                news.put(("failed", number, text))
    news.close()
    news.join_thread()


def listen(number, news):
    """Send what the task logs about evaluations and finished cells to the parent process."""

    class Handler(logging.Handler):
        latest = 0.0

        def emit(self, record):
            kind = getattr(record, "sweep", None)
            if kind == "finished" or kind == "progress" and time.monotonic() - self.latest > 1:
                self.latest = time.monotonic()
                news.put((kind, number, record.getMessage()))

    logging.getLogger("fwp_fairseq.tasks.synthetic_retrieval").addHandler(Handler())


if __name__ == "__main__":
    sys.exit(main())
