"""What is submitted: the rows of a table or the cells of a figure, and the sbatch files that run them."""

import glob
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from fwp_fairseq.slurm import SlurmError
from fwp_fairseq.slurm.resources import AFTER_SIGNAL, FILE, STEPS, seconds


@dataclass(frozen=True)
class Task:
    """One element of the arrays: a row with a seed, or a cell of a figure.

    record: the file that it leaves when it is done, a pattern where a part of the path shows only then; folder: where
    it saves on the way; interval: words between two checkpoints, 0 where it has none; commands: {step: shell command},
    in the order they are run in.
    """

    name: str
    record: str
    folder: str
    interval: int
    commands: dict[str, str]

    @property
    def finished(self) -> bool:
        return is_recorded(self.record)


def is_recorded(record: str) -> bool:
    return Path(record).exists() or bool(glob.glob(record))


def read_tasks(lines) -> list[Task]:
    """Tasks from lines of fields between tabs: name, record, folder, interval, and step=command ...

    Raises SlurmError where a line is not so.
    """
    tasks = []
    for line in lines:
        try:
            name, record, folder, interval, *steps = line.rstrip("\n").split("\t")
            commands = dict(step.split("=", 1) for step in steps)
            task = Task(name, record, folder, int(interval), commands)
        except ValueError:
            raise SlurmError(f"expected the lines that the scripts' --slurm writes, got {line!r}")
        if not commands or not set(commands) <= set(STEPS):
            raise SlurmError(f"{name}: expected commands for some of {', '.join(STEPS)}, got {list(commands)}")
        tasks.append(task)
    return tasks


def array_file(experiment, step, resources, tasks, dependency, logs) -> str:
    """The sbatch file of one step of the tasks, an element of an array each."""
    throttle = f"%{resources.max_running}" if resources.max_running else ""
    options = [
        f"--array=0-{len(tasks) - 1}{throttle}",
        f"--output={logs}/{experiment}-{step}-%A_%a.log",
        f"--signal=B:USR1@{resources.signal_seconds}",
    ]
    body = [
        "source scripts/slurm/job.sh",
        f"wait_to_save={resources.signal_seconds - AFTER_SIGNAL}",
        "case $SLURM_ARRAY_TASK_ID in",
    ]
    for index, task in enumerate(tasks):
        body.append(f"{index}) run_step {shlex.quote(task.folder)} {shlex.quote(task.commands[step].strip())} ;;")
    return _file(f"{experiment}-{step}", resources, options, dependency, [*body, "esac"])


def table_file(experiment, resources, results, dependency, logs) -> str:
    """The sbatch file of the report, which names what failed."""
    where = f"{experiment} --results {shlex.quote(str(results))}"
    options = [f"--output={logs}/{experiment}-table-%j.log"]
    body = [f"fwp-slurm collect {where}", f"fwp-report {where} --brief"]
    return _file(f"{experiment}-table", resources, options, dependency, body)


def check_time(resources, tasks, speeds) -> None:
    """Raise SlurmError where a job would end before its training saves.

    speeds: {name of a row: words a second}, "" for what is not in it.
    """
    limit = seconds(resources.time)
    for task in tasks:
        row = task.name.rpartition("/")[0]
        speed = speeds.get(row) or speeds[""]
        needed = task.interval / speed
        if limit < needed:
            source = "which --preflight measured" if row in speeds else "the fastest that the paper gives"
            raise SlurmError(
                f"{FILE}: time: {resources.time} is shorter than the {needed / 60:.0f} minutes between two checkpoints "
                f"of {task.name} ({task.interval:,} words at {speed:,.0f} a second, {source}); give it more"
            )


def _file(name, resources, options, dependency, body):
    options = [f"--job-name={name}", *resources.options(), *options, "--open-mode=append", "--requeue"]
    if dependency:
        options += [f"--dependency={dependency}", "--kill-on-invalid-dep=yes"]
    environment = Path(sys.prefix)
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}" for option in map(_quoted, options)),
        f"cd {shlex.quote(str(Path.cwd()))} || exit",
        f"export FWP_VENV={shlex.quote(str(environment))} PATH={shlex.quote(str(environment / 'bin'))}:$PATH",
        *resources.setup,
        *body,
    ]
    return "\n".join(lines) + "\n"


def _quoted(option):
    name, equals, value = option.partition("=")
    return f'{name}="{value}"' if " " in value else option
