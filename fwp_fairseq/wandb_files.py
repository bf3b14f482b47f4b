"""Reads the runs that wandb left in a folder without a network, from its transaction logs (`run-ID.wandb`).

These logs are all that an offline run leaves of its numbers, and what `wandb sync` uploads: one protobuf message for
each thing logged, in the framing of LevelDB's logs. wandb itself has no reader for Python.
"""

import json
import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path

BLOCK = 2**15
HEADER = struct.Struct("<IHB")  # checksum, length, kind of a part
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


class WandbFileError(Exception):
    """A folder or file is not what wandb leaves; the text says which."""


@dataclass
class LoggedRun:
    """One run: nested configuration, last and best numbers, and the rows that were logged, in the order of steps."""

    id: str
    name: str = ""
    group: str = ""
    state: str = "running or killed"
    config: dict = field(default_factory=dict)
    summary: dict = field(default_factory=dict)
    history: list = field(default_factory=list)


def read_runs(folder) -> list[LoggedRun]:
    """Runs below a folder, by name. What a resumed training and an evaluation added under the same id is one run.

    Raises WandbFileError where there is no log, or a file is none.
    """
    logs = sorted(Path(folder).rglob("*.wandb"), key=lambda path: path.parent.name.split("run-")[-1])  # by start
    if not logs:
        raise WandbFileError(f"{folder}: no run-*.wandb below it; name the folder wandb/ that trainings wrote to")
    runs, rows = {}, {}
    for path in logs:
        run_id = path.stem.removeprefix("run-")
        run = runs.setdefault(run_id, LoggedRun(run_id))
        run.state = "running or killed"
        for message in messages(path):
            take_in(message, run, rows.setdefault(run_id, {}))
    for run_id, run in runs.items():
        run.history = [row for _, row in sorted(rows[run_id].items())]
    return sorted(runs.values(), key=lambda run: run.name)


def take_in(message, run: LoggedRun, rows: dict) -> None:
    """One message into the run and its rows, {step: row}."""
    kind = message.WhichOneof("record_type")
    if kind == "run":
        run.name, run.group = message.run.display_name or run.name, message.run.run_group or run.group
        put(run.config, message.run.config.update)
    elif kind == "config":
        put(run.config, message.config.update)
    elif kind == "summary":
        put(run.summary, message.summary.update)
    elif kind == "history":
        row = {}
        put(row, message.history.item)
        rows.setdefault(message.history.step.num, {}).update(row)
    elif kind == "exit":
        run.state = "finished" if message.exit.exit_code == 0 else f"failed ({message.exit.exit_code})"


def put(target: dict, items) -> None:
    """Set what wandb's key-value items say; a nested key is a path."""
    for item in items:
        *path, last = item.nested_key or [item.key]
        place = target
        for key in path:
            if not isinstance(place.get(key), dict):
                place[key] = {}
            place = place[key]
        place[last] = json.loads(item.value_json)


def messages(path: Path):
    """The messages of a log, up to where it was cut off or damaged."""
    try:
        from wandb.proto.wandb_internal_pb2 import Record
    except ImportError as error:
        raise WandbFileError(f"reading runs needs wandb ({error}): pip install 'fwp_fairseq[track]'")
    for content in framed(path):
        yield Record.FromString(content)


def framed(path: Path):
    """Contents of the frames of a log: bytes, put together where they were cut at the end of a block."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise WandbFileError(f"{path}: cannot be read ({error.strerror})")
    if data[:4] != b":W&B":
        raise WandbFileError(f"{path}: is no log of wandb's")
    position, parts = HEADER.size, []  # the file's own header is as long as that of a part
    while position + HEADER.size <= len(data):
        left = BLOCK - position % BLOCK
        if left < HEADER.size:
            position += left
            continue
        checksum, length, kind = HEADER.unpack_from(data, position)
        part = data[position + HEADER.size : position + HEADER.size + length]
        if len(part) < length or zlib.crc32(bytes([kind]) + part) != checksum:
            return
        position += HEADER.size + length
        parts = [part] if kind in (FULL, FIRST) else [*parts, part]
        if kind in (FULL, LAST):
            yield b"".join(parts)
