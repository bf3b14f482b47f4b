"""Unpacks zip archives without trusting them."""

import shutil
import stat
import zipfile
from pathlib import Path, PurePosixPath

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
                _refuse_escape(archive, info)
            if missing := sorted(set(members) - set(opened.namelist())):
                raise DataError(f"{archive} lacks {', '.join(missing)}; it holds {', '.join(opened.namelist()[:8])}")
            for member, name in members.items():
                size = opened.getinfo(member).file_size
                with opened.open(member) as source, (folder / name).open("wb") as target, tqdm.wrapattr(
                    target, "write", desc=name, total=size, unit="B", unit_scale=True
                ) as counted:
                    shutil.copyfileobj(source, counted, 1 << 20)
    except (zipfile.BadZipFile, EOFError) as error:
        raise DataError(f"{archive} is not a whole zip archive ({error}): remove it and fetch it again") from error


def _refuse_escape(archive: Path, info: zipfile.ZipInfo) -> None:
    # zipfile turns "\" into "/" only on Windows, and cuts names at a NUL: judge the original name.
    name = info.orig_filename.replace("\\", "/")
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or ":" in name or "\0" in name:
        raise DataError(f"{archive}: member {name!r} points outside of the target folder; the archive is not trusted")
    if stat.S_ISLNK(info.external_attr >> 16):
        raise DataError(f"{archive}: member {name!r} is a link; the archive is not trusted")
