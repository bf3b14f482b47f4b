"""Folders that are complete or absent: what makes a data script restartable at any point.

Each step of a script builds into a hidden temporary folder, which is stamped and renamed when it
is whole. A killed run leaves only a hidden folder behind; the next run removes it and goes on.
"""

import errno
import fcntl
import hashlib
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

STAMP = "stamp.json"
# EFBIG is what a file size limit (ulimit -f) gives; the remedy is the same.
DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class DataError(Exception):
    """A problem the user can solve; the message names it and the remedy."""


def digest_of(path: Path, algorithm: str = "sha256") -> str:
    """The checksum of a file, in hexadecimal."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, algorithm).hexdigest()


@contextmanager
def locked(dest: Path) -> Iterator[None]:
    """Holds `dest` (made if missing) for one process; a second one waits, then finds the work done."""
    try:
        dest.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise DataError(f"--dest {dest}: a file is in the way; give the path of a folder") from error
    with (dest / ".lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another run is preparing {dest}; waiting for it to end", file=sys.stderr)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextmanager
def full_disk_explained(folder: Path) -> Iterator[None]:
    """Turns "disk full" into a DataError that says where, and that nothing finished is lost."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        free = shutil.disk_usage(folder).free
        raise DataError(
            f"no space left in {folder} ({free / 1e6:.0f} MB free, {error.strerror}): make room or choose "
            "another --dest, then run the same command again; what is finished is kept"
        ) from error


def is_complete(folder: Path, recipe: dict) -> bool:
    """True if `folder` was finished by `build` for this recipe and every file is still as it was.

    False if it is absent or damaged. A folder of another origin is a DataError: it is not ours
    to overwrite.
    """
    if not folder.exists():
        return False
    try:
        stamp = json.loads((folder / STAMP).read_text())
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError) as error:
        raise DataError(f"{folder} exists but was not made by this script: move it away or choose another --dest") from error
    if stamp["recipe"] != recipe:
        raise DataError(f"{folder} was made from other input or by another version: remove it or choose another --dest")
    return all((folder / name).is_file() and digest_of(folder / name) == digest for name, digest in stamp["sha256"].items())


def build(folder: Path, recipe: dict, make: Callable[[Path], None]) -> bool:
    """Makes `folder` by `make(temporary folder)` unless it is complete; True if there was work to do.

    `recipe` (JSON types) says what determines the content; it is stored with the files' sha256.
    """
    if is_complete(folder, recipe):
        return False
    if folder.exists():
        print(f"{folder} has missing or changed files; it is made again", file=sys.stderr)
    for leftover in folder.parent.glob(f".{folder.name}.*"):
        shutil.rmtree(leftover)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        with full_disk_explained(folder.parent):
            make(temporary)
            files = sorted(path for path in temporary.rglob("*") if path.is_file())
            digests = {str(path.relative_to(temporary)): digest_of(path) for path in files}
            (temporary / STAMP).write_text(json.dumps({"recipe": recipe, "sha256": digests}, indent=1))
            temporary.chmod(0o755)  # mkdtemp makes folders that only their owner can read
        if folder.exists():
            shutil.rmtree(folder)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return True


def run(work: Callable[[], object]) -> int:
    """Runs a script's work; the exit status, with an error's message instead of a traceback."""
    try:
        work()
    except KeyboardInterrupt:
        print("interrupted; run the same command again to go on", file=sys.stderr)
        return 130
    except (DataError, PermissionError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0
