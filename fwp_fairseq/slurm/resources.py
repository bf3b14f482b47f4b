"""configs/slurm.yaml: what each step asks of SLURM, checked, and as options of sbatch and srun."""

import re
from dataclasses import dataclass, field, fields
from pathlib import Path

import yaml

from fwp_fairseq.slurm import SlurmError

FILE = Path("configs/slurm.yaml")  # of the checkout that the scripts run in
STEPS = ("train", "evaluate", "cells", "table")
AFTER_SIGNAL = 30  # seconds kept for requeueing, of the time between the signal and the limit


@dataclass(frozen=True)
class Resources:
    """Of one step. The fields are those of the file, which explains them."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    time: str = "24:00:00"
    memory: str | None = None
    cpus_per_task: int = 1
    nodes: int = 1
    gpus_per_node: int = 0
    processes_per_node: int | None = None
    signal_seconds: int = 300
    max_running: int | None = None
    extra: list = field(default_factory=list)
    setup: list = field(default_factory=list)

    @property
    def processes(self) -> int:
        return self.nodes * (self.processes_per_node or max(self.gpus_per_node, 1))

    def options(self) -> list[str]:
        """Those that sbatch and srun both take."""
        named = {
            "partition": self.partition, "account": self.account, "qos": self.qos, "constraint": self.constraint,
            "time": self.time, "mem": self.memory, "nodes": self.nodes, "ntasks": self.processes,
            "ntasks-per-node": self.processes // self.nodes, "cpus-per-task": self.cpus_per_task,
            "gpus-per-node": self.gpus_per_node or None,
        }  # fmt: skip
        return [f"--{name}={value}" for name, value in named.items() if value is not None] + self.extra


def load_resources(path=FILE) -> dict[str, Resources]:
    """{step: its resources}. Raises SlurmError naming the field that is not as it must be."""
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
    except OSError as error:
        raise SlurmError(f"{path} cannot be read ({error.strerror})")
    except yaml.YAMLError as error:
        raise SlurmError(f"{path} is not YAML: {error}")
    if not isinstance(content, dict):
        raise SlurmError(f"{path}: expected fields such as `partition: gpu`, got {content!r}")
    steps = content.pop("steps", None) or {}
    unknown = [step for step in steps if step not in STEPS]
    if unknown:
        raise SlurmError(f"{path}: steps: expected {', '.join(STEPS)}, got {unknown[0]!r}")
    return {step: _checked(path, {**content, **(steps.get(step) or {})}) for step in STEPS}


def seconds(limit: str) -> int:
    """Of a time limit as SLURM writes it: "90" (minutes), "1:30:00", "2-12" (days, hours). 0 where it is none."""
    days, dash, rest = limit.rpartition("-")
    parts = [int(part) for part in rest.split(":")] if re.fullmatch(r"\d+(:\d+){0,2}", rest) else None
    if parts is None or (dash and not days.isdecimal()):
        return 0
    if dash:
        parts += [0] * (3 - len(parts))
    else:
        parts = {1: [0, *parts, 0], 2: [0, *parts], 3: parts}[len(parts)]
    return ((int(days or 0) * 24 + parts[0]) * 60 + parts[1]) * 60 + parts[2]


def _checked(path, values) -> Resources:
    kinds = {each.name: each for each in fields(Resources)}
    for name, value in values.items():
        if name not in kinds:
            raise SlurmError(f"{path}: unknown field {name!r}, expected one of {', '.join(kinds)}")
        kind = kinds[name].type
        if value is None and kind in (str | None, int | None):
            continue
        if kind in (int, int | None):
            least = 0 if name == "gpus_per_node" else 1
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise SlurmError(f"{path}: {name}: expected a whole number >= {least}, got {value!r}")
        elif kind is list:
            if not isinstance(value, list) or not all(isinstance(line, str) for line in value):
                raise SlurmError(f"{path}: {name}: expected a list of texts, got {value!r}")
        elif not isinstance(value, str) or not value:
            hint = ", in quotes" if name == "time" else ""  # without them YAML reads 24:00:00 as 86400
            raise SlurmError(f"{path}: {name}: expected a text{hint}, got {value!r}")
    resources = Resources(**values)
    limit = seconds(resources.time)
    if not limit:
        raise SlurmError(f"{path}: time: expected hours:minutes:seconds or days-hours, in quotes, got {resources.time!r}")
    if not AFTER_SIGNAL < resources.signal_seconds < limit:
        raise SlurmError(
            f"{path}: signal_seconds: expected more than {AFTER_SIGNAL} and less than the time of a job "
            f"({resources.time}), got {resources.signal_seconds}"
        )
    return resources
