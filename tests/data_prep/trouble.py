"""What can go wrong on purpose: a file server that misbehaves on demand, and a disk that is too small."""

import contextlib
import resource
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path


@dataclass
class FileServer:
    """Serves `files` (path to bytes) under `address`; the switches make it fail, `requests` is what came."""

    address: str
    files: dict[str, bytes] = field(default_factory=dict)
    etag: str | None = '"first"'
    supports_range: bool = True
    bytes_per_request: int | None = None  # drops the connection after so many
    requests: list[tuple[str, str | None]] = field(default_factory=list)  # (path, Range header)

    def url(self, path: str) -> str:
        return self.address + path


def handler_for(server: FileServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            server.requests.append((self.path, wanted))
            if self.path not in server.files:
                self.send_error(404)
                return
            data, start = server.files[self.path], 0
            same_version = self.headers.get("If-Range") in (None, server.etag)
            if wanted and server.supports_range and same_version:
                start = int(wanted.removeprefix("bytes=").rstrip("-"))
                if start >= len(data):
                    self.send_error(416)
                    return
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            else:
                self.send_response(200)
            self.send_header("Content-Length", str(len(data) - start))
            if server.etag:
                self.send_header("ETag", server.etag)
            self.end_headers()
            end = len(data) if server.bytes_per_request is None else start + server.bytes_per_request
            self.wfile.write(data[start:end])

        def log_message(self, *args) -> None:
            """Keeps the test output quiet."""

    return Handler


@contextlib.contextmanager
def small_disk(folder: Path, size: int, file_size: int) -> Iterator[Callable[[int], None]]:
    """`folder` on a file system of `size` bytes; gives a function that sets another size.

    Without the right to mount one, a limit of `file_size` for each file of this process stands in.
    """
    folder.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True)
    if mount.returncode == 0:
        try:
            yield lambda size: subprocess.run(["mount", "-o", f"remount,size={size}", folder], check=True)
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)
        return
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))  # noqa: E731
    limit(file_size)
    try:
        yield limit
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
