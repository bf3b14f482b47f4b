"""The one downloader of the data scripts: mirrors in order, resume, size and checksum.

    path = fetch(RemoteFile("corpus.zip", ("https://…", "https://…"), size, sha256), folder)

A download grows in `NAME.part` and takes its name only after verification, so a file that has
its name is whole.
"""

import http.client
import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, replace
from pathlib import Path

from stages import DataError, digest_of, full_disk_explained
from tqdm import tqdm

CHUNK = 1 << 16
TIMEOUT = 30.0  # seconds without a byte
FUTILE_ATTEMPTS = 4  # in a row without a new byte, before the next mirror
USER_AGENT = "fwp_fairseq-data_prep/1.0"  # some hosts refuse urllib's own name


@dataclass(frozen=True)
class RemoteFile:
    """A file to fetch: its name, the addresses that serve it, and what is known about its content (None: nothing)."""

    name: str
    urls: tuple[str, ...]
    size: int | None = None
    sha256: str | None = None
    md5: str | None = None  # against damage, not against malice: where nothing better was published


class MirrorError(Exception):
    """This mirror cannot serve the file; the next one may."""


class ConnectionLost(Exception):
    """The transfer stopped; it is worth trying to go on."""


def mismatch(path: Path, file: RemoteFile) -> str | None:
    """What is wrong with the content of `path`, or None."""
    size = path.stat().st_size
    if file.size is not None and size != file.size:
        return f"has {size} bytes, expected {file.size}"
    for algorithm, expected in (("sha256", file.sha256), ("md5", file.md5)):
        if expected is not None and (digest := digest_of(path, algorithm)) != expected:
            return f"has {algorithm} {digest}, expected {expected}"
    return None


def obtain(file: RemoteFile, folder: Path, source: str | None) -> Path:
    """The verified file: `source` (a path or an http(s) address) if given, else from its mirrors into `folder`."""
    if source is None:
        return fetch(file, folder)
    if "://" not in source:
        return verified_local_file(Path(source), file)
    if not source.startswith(("http://", "https://")):
        raise DataError(f"--source {source}: expected an http(s) address or a path")
    return fetch(replace(file, urls=(source,)), folder)


def verified_local_file(path: Path, file: RemoteFile) -> Path:
    """`path`, if it is a file with the content of `file`; else DataError."""
    if not path.is_file():
        raise DataError(f"--source {path}: no such file; give the path or http(s) address of {file.name}")
    if problem := mismatch(path, file):
        raise DataError(f"--source {path} {problem}: it is damaged or not {file.name}; fetch it again")
    return path


def fetch(file: RemoteFile, folder: Path, pause: float = 1.0) -> Path:
    """Downloads `file` into `folder` (made if missing) unless it is there; returns its path.

    `pause`: seconds before the first new attempt after a failure, doubled each time.
    Raises DataError if no mirror served the right content or the disk is full; what came is kept
    in `NAME.part` and the next call goes on from there.
    """
    target, part = folder / file.name, folder / (file.name + ".part")
    with full_disk_explained(folder.parent):
        folder.mkdir(parents=True, exist_ok=True)
        if target.exists() and mismatch(target, file) is None:
            return target
        reasons = []
        for url in file.urls:
            try:
                _fetch_from(url, part, file, pause)
            except MirrorError as error:
                reasons.append(f"  {url}: {error}")
                continue
            part.rename(target)
            _origin_note(part).unlink(missing_ok=True)
            return target
    kept = f"\n{part.stat().st_size} bytes are kept in {part}; the same command goes on from there." if part.exists() else ""
    raise DataError(
        f"{file.name} could not be downloaded:\n" + "\n".join(reasons) + kept + "\nIf you have the file, or know "
        "another address that serves it, say so with --source"
    )


def _fetch_from(url: str, part: Path, file: RemoteFile, pause: float) -> None:
    """Completes and verifies `part` from one mirror."""
    resumed = part.exists()
    _transfer(url, part, file, pause)
    problem = mismatch(part, file)
    if problem and resumed:
        # The first bytes may stem from another or a changed file: give the mirror a fair chance.
        _discard(part)
        _transfer(url, part, file, pause)
        problem = mismatch(part, file)
    if problem:
        _discard(part)
        raise MirrorError(f"the file it serves {problem}")


def _transfer(url: str, part: Path, file: RemoteFile, pause: float) -> None:
    """Repeats `_receive` until the file is whole, as long as bytes come."""
    futile = 0
    while True:
        before = _size(part)
        if file.size is not None and before >= file.size:
            return
        try:
            return _receive(url, part, file)
        except ConnectionLost as error:
            reason = error
        futile = 0 if _size(part) > before else futile + 1
        if futile == FUTILE_ATTEMPTS:
            raise MirrorError(str(reason))
        time.sleep(pause * 2**futile)


def _receive(url: str, part: Path, file: RemoteFile) -> None:
    """One request, appended to `part` if the server can continue there, else from the start."""
    request = urllib.request.Request(url, headers={"User-Agent": USER_AGENT})
    offset, validator = _size(part), _known_validator(url, part)
    if offset and (validator or file.sha256 or file.md5):
        request.add_header("Range", f"bytes={offset}-")
        if validator:
            request.add_header("If-Range", validator)
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            _discard(part)
        elif error.code < 500 and error.code not in (http.HTTPStatus.REQUEST_TIMEOUT, http.HTTPStatus.TOO_MANY_REQUESTS):
            raise MirrorError(f"HTTP {error.code} {error.reason}") from error
        raise ConnectionLost(f"HTTP {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise ConnectionLost(str(error)) from error
    with response:
        if response.status != http.HTTPStatus.PARTIAL_CONTENT:
            offset = 0
        total = _total_size(response, part, offset)
        if None not in (total, file.size) and total != file.size:
            raise MirrorError(f"the file it serves has {total} bytes, expected {file.size}")
        _note_origin(url, part, response)
        with part.open("ab" if offset else "wb") as handle, tqdm(
            desc=file.name, total=total, initial=offset, unit="B", unit_scale=True
        ) as bar:
            while chunk := _read(response):
                handle.write(chunk)
                bar.update(len(chunk))
    if total is not None and _size(part) < total:
        raise ConnectionLost(f"the connection closed after {_size(part)} of {total} bytes")


def _read(response: http.client.HTTPResponse) -> bytes:
    # Apart from the writing, so that a lost connection is not taken for a full disk.
    try:
        return response.read(CHUNK)
    except (OSError, http.client.HTTPException) as error:
        raise ConnectionLost(str(error)) from error


def _total_size(response: http.client.HTTPResponse, part: Path, offset: int) -> int | None:
    """The whole file's size as the server says it: `Content-Range: bytes 5-9/10`, or `Content-Length`."""
    if not offset:
        length = response.headers.get("Content-Length")
        return int(length) if length else None
    span, _, total = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
    if span.partition("-")[0] != str(offset):
        _discard(part)
        raise ConnectionLost(f"asked for bytes from {offset}, got {span!r}")
    return int(total) if total.isdigit() else None


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _discard(part: Path) -> None:
    part.unlink()
    _origin_note(part).unlink(missing_ok=True)


def _origin_note(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _note_origin(url: str, part: Path, response: http.client.HTTPResponse) -> None:
    """Keeps what identifies this version of the file, for If-Range (weak ETags do not qualify there)."""
    etag = response.headers.get("ETag", "")
    validator = etag if etag and not etag.startswith("W/") else response.headers.get("Last-Modified")
    _origin_note(part).write_text(json.dumps({"url": url, "validator": validator}))


def _known_validator(url: str, part: Path) -> str | None:
    try:
        note = json.loads(_origin_note(part).read_text())
    except (FileNotFoundError, json.JSONDecodeError):  # none yet, or cut short by a kill
        return None
    return note["validator"] if note["url"] == url else None
