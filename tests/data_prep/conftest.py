"""Makes the data scripts and the helpers of this folder importable; a local file server for each test."""

import sys
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
# The scripts are run as `python data_prep/NAME.py` and import their neighbours by name.
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "data_prep")]

from trouble import FileServer, handler_for  # noqa: E402


@pytest.fixture
def server() -> Iterator[FileServer]:
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), None)
    description = FileServer(f"http://127.0.0.1:{httpd.server_port}")
    httpd.RequestHandlerClass = handler_for(description)
    thread = threading.Thread(target=httpd.serve_forever, args=(0.05,))
    thread.start()
    yield description
    httpd.shutdown()
    thread.join()
    httpd.server_close()
