"""Run records: one JSON file for each finished run, from which tables and figures are built.

A training command calls `check_writable` first, then `new_record` and `write_record` at its end;
`fwp-report` calls `read_records`. Needs neither torch nor fairseq, so that reports start at once.
"""

import functools
import importlib.metadata
import json
import math
import os
import platform
import re
import resource
import subprocess
import sys
import uuid
from datetime import datetime, timezone
from pathlib import Path

SCHEMA_VERSION = 1
SCALES = ("paper", "mini", "bench")  # bench: a benchmark, no training
STATUSES = ("finished", "diverged")

# field -> (accepted types, may be null)
FIELDS = {
    "schema_version": (int, False),
    "experiment": (str, False),
    "row": (str, False),
    "cell": (str, True),
    "seed": (int, False),
    "scale": (str, False),
    "status": (str, False),
    "metrics": (dict, False),
    "updates": (int, False),
    "wall_seconds": ((int, float), False),
    "parameters": (int, False),
    "state_size": (int, True),
    "peak_memory_mb": ((int, float), False),
    "device": (str, False),
    "versions": (dict, False),
    "git_commit": (str, True),
    "created": (str, False),
    "config": (dict, False),
    "curves": (dict, False),
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]*")


class RecordError(Exception):
    """A record, or the folder it should go to, is not as it must be; the text says what to do."""


def runs_dir(results_dir, experiment):
    """Folder that holds the records of one experiment."""
    return Path(results_dir) / "runs" / experiment


def record_path(results_dir, experiment, row, seed, cell=None):
    """Where the record of one run lies: `runs/<experiment>/<row>[/<cell>]/seed<N>.json`.

    Raises RecordError where a part cannot be a folder's name or the seed is not a number >= 0.
    """
    for field, name in (("experiment", experiment), ("row", row), ("cell", cell)):
        if name is None and field == "cell":
            continue
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise RecordError(
                f"{field}: {name!r} cannot name a folder; use letters, digits, '_', '-' and '.'"
            )
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise RecordError(f"seed: expected a whole number >= 0, got {seed!r}")
    folder = runs_dir(results_dir, experiment) / row
    if cell is not None:
        folder = folder / cell
    return folder / f"seed{seed}.json"


def new_record(
    experiment,
    row,
    seed,
    scale,
    metrics,
    updates,
    wall_seconds,
    parameters,
    config,
    cell=None,
    status="finished",
    state_size=None,
    curves=None,
    device=None,
):
    """The record of one run as a plain dict; what describes the machine and the code is filled in.

    metrics: name -> number or text. curves: name -> list of numbers, all of one run's evaluations.
    NaN and infinity, which JSON has not, become null. device defaults to "cpu".
    peak_memory_mb is that of this process so far, so a process that runs several cells reports the
    largest up to each.
    """
    record = {
        "schema_version": SCHEMA_VERSION,
        "experiment": experiment,
        "row": row,
        "cell": cell,
        "seed": seed,
        "scale": scale,
        "status": status,
        "metrics": metrics,
        "updates": updates,
        "wall_seconds": round(wall_seconds, 2),
        "parameters": parameters,
        "state_size": state_size,
        "peak_memory_mb": _peak_memory_mb(),
        "device": device or "cpu",
        "versions": versions(),
        "git_commit": git_commit(),
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "config": config,
        "curves": curves or {},
    }
    return _non_finite_to_null(record)


def write_record(results_dir, record):
    """Write `record` to its place and return the path.

    The file appears whole or not at all, whenever the process is killed. Raises RecordError where
    a field is missing or of the wrong type, where the folder cannot be written, and where a mini
    run would replace one at paper scale. A file in that place that is no record is kept beside it,
    with ".unreadable" added to its name.
    """
    validate_record(record)
    path = record_path(
        results_dir, record["experiment"], record["row"], record["seed"], record["cell"]
    )
    if record["scale"] == "mini":
        check_no_paper_run(path)
    text = _record_to_json(record)
    try:
        if path.exists() and _scale_of(path) is None:
            path.rename(f"{path}.unreadable")
        _replace_atomically(path, text)
    except OSError as error:
        raise _not_writable(path.parent, error)
    return path


def write_record_file(path, record):
    """Write `record` to a file of the caller's choice, whole or not at all, and return the path.

    Raises RecordError as `write_record` does, but replaces whatever lies there.
    """
    validate_record(record)
    path, text = Path(path), _record_to_json(record)
    try:
        _replace_atomically(path, text)
    except OSError as error:
        raise _not_writable(path.parent, error)
    return path


def check_no_paper_run(path):
    """Raise RecordError where a mini run would replace the record of one at paper scale."""
    if path.exists() and _scale_of(path) == "paper":
        raise RecordError(
            f"{path} holds a run at paper scale, which a mini run must not replace; "
            "write mini runs to another results folder or experiment"
        )


def check_writable(results_dir):
    """Raise RecordError unless records can be written below `results_dir` (which is made)."""
    folder = Path(results_dir) / "runs"
    probe = folder / f".probe.{uuid.uuid4().hex}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise _not_writable(folder, error)


def read_record(path):
    """Read one record. Raises RecordError, with the reason, where the file is not one."""
    path = Path(path)
    try:
        record = json.loads(
            path.read_text(encoding="utf-8"), parse_constant=_refuse_constant, parse_float=_finite_float
        )
    except OSError as error:
        raise RecordError(f"cannot be read ({error.strerror})")
    except (ValueError, RecursionError) as error:
        raise RecordError(f"is not JSON ({error})")
    validate_record(record)
    return record


def read_records(results_dir, experiment):
    """All records of an experiment, in the order of their paths, and what is wrong with the rest.

    Returns (records, problems); a problem is a text "<path>: <reason>". A corrupt file, one that
    is no record, and one that describes another run than its path says is a problem, and so is the
    older of two records of one run; nothing is changed or removed.
    """
    found, problems = {}, []  # where a record belongs -> the files that say so
    for path in sorted(runs_dir(results_dir, experiment).rglob("*.json")):
        try:
            record = read_record(path)
            expected = record_path(
                results_dir, record["experiment"], record["row"], record["seed"], record["cell"]
            )
        except RecordError as error:
            problems.append(f"{path}: {error}")
            continue
        found.setdefault(expected, []).append((record["created"], path, record))
    records = []
    for expected, same_run in found.items():
        *older, (_, newest, record) = sorted(same_run, key=lambda entry: entry[0])
        if len(same_run) == 1 and newest != expected:
            problems.append(f"{newest}: describes the run that belongs in {expected}")
            continue
        problems += [f"{path}: older than {newest}, which is of the same run" for _, path, _ in older]
        records.append(record)
    return records, problems


def validate_record(record):
    """Raise RecordError naming the first field that is missing, unknown or of the wrong type."""
    if not isinstance(record, dict):
        raise RecordError("is not a record (no JSON object)")
    version = record.get("schema_version")
    if version != SCHEMA_VERSION:
        raise RecordError(
            f"schema_version: expected {SCHEMA_VERSION}, got {version!r}; "
            "the file is no record or was written by another version"
        )
    for field in FIELDS:
        if field not in record:
            raise RecordError(f"{field}: missing")
    for field, value in record.items():
        if field not in FIELDS:
            raise RecordError(f"{field}: unknown field, expected one of {', '.join(FIELDS)}")
        types, nullable = FIELDS[field]
        if value is None and nullable:
            continue
        if isinstance(value, bool) or not isinstance(value, types):
            names = " or ".join(t.__name__ for t in (types if isinstance(types, tuple) else (types,)))
            raise RecordError(f"{field}: expected {names}, got {value!r}")
    for name, version in record["versions"].items():
        if not isinstance(version, str | None):
            raise RecordError(f"versions: expected text or null for {name}, got {version!r}")
    for field, allowed in (("scale", SCALES), ("status", STATUSES)):
        if record[field] not in allowed:
            raise RecordError(f"{field}: expected one of {', '.join(allowed)}, got {record[field]!r}")


def versions():
    """Versions of what a run's numbers depend on; null for a library that is not installed."""
    found = {"python": platform.python_version()}
    for name, distributions in {
        "torch": ("torch",),
        "fairseq": ("ve-fairseq", "fairseq"),
        "triton": ("triton",),
        "numpy": ("numpy",),
    }.items():
        found[name] = next(filter(None, map(_installed_version, distributions)), None)
    return found


@functools.cache
def git_commit():
    """Commit of the checkout this package lies in, with "+dirty" where the code was changed.

    None where the package is not part of a checkout. Found out once in a process: call it at the
    start of a long run, so that the record names the code that ran.
    """
    package = Path(__file__).resolve().parent
    # A package installed in an environment inside a checkout is not part of that checkout.
    if _git(package, "ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None
    commit = _git(package, "rev-parse", "HEAD")
    if commit is None:
        return None
    # Records and tables that runs write, and where jobs run, do not change what the next run computes.
    elsewhere = (":(top,exclude)results", ":(top,exclude)configs/slurm.yaml")
    changes = _git(package, "status", "--porcelain", "--", ":/", *elsewhere)
    return commit if changes == "" else f"{commit}+dirty"


def _git(folder, *arguments):
    """Output of a git command, None where it fails or there is no git."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _installed_version(distribution):
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _peak_memory_mb():
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)


def _non_finite_to_null(value):
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _non_finite_to_null(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_non_finite_to_null(item) for item in value]
    return value


def _record_to_json(record):
    # One field a line: readable, and a difference between two runs shows as a line.
    lines = [f"{json.dumps(field)}: {_to_json(field, record[field])}" for field in FIELDS]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _to_json(field, value):
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise RecordError(f"{field}: holds a value that JSON cannot express ({error})")


def _refuse_constant(name):
    raise ValueError(f"{name} is not allowed")


def _finite_float(text):
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is too large for a number")
    return number


def _scale_of(path):
    """Scale of the record at `path`, None where the file is no record."""
    try:
        return read_record(path)["scale"]
    except RecordError:
        return None


def _replace_atomically(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}.{uuid.uuid4().hex}.tmp"
    try:
        with open(temporary, "x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _not_writable(folder, error):
    return RecordError(
        f"records cannot be written to {folder} ({error.strerror}); make the folder writable, "
        "free some space, or name another results folder"
    )
