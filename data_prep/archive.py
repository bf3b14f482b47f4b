"""Unpacks zip and tar.gz archives without trusting them."""

import gzip
import shutil
import stat
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import IO

from stages import DataError
from tqdm import tqdm


def unpack_zip(archive: Path, members: dict[str, str], folder: Path) -> None:
    """Extracts {member of the archive: file name in `folder`}.

    DataError, before anything is written, if a name in the archive (wanted or not) would leave the
    folder or is a link, if a member is missing, or if it is no zip; and if the content is damaged.
    """
    try:
        with zipfile.ZipFile(archive) as opened:
            for info in opened.infolist():
                # zipfile cuts names at a NUL: judge the original name.
                _refuse_escape(archive, info.orig_filename)
                if stat.S_ISLNK(info.external_attr >> 16):
                    raise DataError(f"{archive}: member {info.orig_filename!r} is a link; the archive is not trusted")
            _refuse_gaps(archive, members, opened.namelist())
            for member, name in members.items():
                with opened.open(member) as source:
                    _copy(source, folder / name, opened.getinfo(member).file_size)
    except (zipfile.BadZipFile, EOFError) as error:
        raise DataError(f"{archive} is not a whole zip archive ({error}): remove it and fetch it again") from error


def unpack_tar(archive: Path, members: dict[str, str], folder: Path) -> None:
    """Extracts {member of the tar.gz archive: file name in `folder`}; errors as with `unpack_zip`.

    Nothing but files and folders may be in the archive: no links, no devices.
    """
    try:
        with tarfile.open(archive, "r:gz") as opened:
            found = {}
            for info in tqdm(opened, desc=f"reading {archive.name}", unit="file"):
                _refuse_escape(archive, info.name)
                if not (info.isfile() or info.isdir()):
                    raise DataError(f"{archive}: member {info.name!r} is a link or a device; the archive is not trusted")
                found[str(PurePosixPath(info.name))] = info
            _refuse_gaps(archive, members, list(found))
            for member, name in members.items():
                with opened.extractfile(found[member]) as source:
                    _copy(source, folder / name, found[member].size)
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{archive} is not a whole tar.gz archive ({error}): remove it and fetch it again") from error


def _copy(source: IO[bytes], path: Path, size: int) -> None:
    with path.open("wb") as target, tqdm.wrapattr(
        target, "write", desc=path.name, total=size, unit="B", unit_scale=True
    ) as counted:
        shutil.copyfileobj(source, counted, 1 << 20)


def _refuse_gaps(archive: Path, members: dict[str, str], found: list[str]) -> None:
    if missing := sorted(set(members) - set(found)):
        raise DataError(f"{archive} lacks {', '.join(missing)}; it holds {', '.join(found[:8])}")


def _refuse_escape(archive: Path, member: str) -> None:
    name = member.replace("\\", "/")  # the separator of another system
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or ":" in name or "\0" in name:
        raise DataError(f"{archive}: member {member!r} points outside of the target folder; the archive is not trusted")
