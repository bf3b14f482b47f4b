"""The downloader against a local server: whole, broken, wrong and changing files."""

import hashlib
import random

import pytest
from download import RemoteFile, fetch, obtain
from stages import DataError
from trouble import small_disk

CONTENT = random.Random(1).randbytes(400_000)
GOOD = hashlib.sha256(CONTENT).hexdigest()


def remote(*urls: str, size: int | None = len(CONTENT), sha256: str | None = GOOD) -> RemoteFile:
    return RemoteFile("file.bin", urls, size, sha256)


def test_a_file_is_fetched_once(server, tmp_path):
    server.files["/good"] = CONTENT
    path = fetch(remote(server.url("/good")), tmp_path / "new" / "folder")
    assert path.read_bytes() == CONTENT
    assert fetch(remote(server.url("/good")), path.parent) == path
    assert len(server.requests) == 1
    assert [p.name for p in path.parent.iterdir()] == ["file.bin"]


def test_the_second_mirror_is_used_when_the_first_fails(server, tmp_path):
    server.files["/good"] = CONTENT
    assert fetch(remote(server.url("/gone"), server.url("/good")), tmp_path).read_bytes() == CONTENT
    assert [path for path, _ in server.requests] == ["/gone", "/good"]


def test_a_mirror_that_cannot_be_reached_is_passed_over(server, tmp_path):
    server.files["/good"] = CONTENT
    nobody = "http://127.0.0.1:9/good"  # the discard port: connection refused
    assert fetch(remote(nobody, server.url("/good")), tmp_path, pause=0).read_bytes() == CONTENT


def test_all_mirrors_failing_names_each_and_the_way_out(server, tmp_path):
    with pytest.raises(DataError) as error:
        fetch(remote(server.url("/gone"), server.url("/lost")), tmp_path)
    for part in ("/gone: HTTP 404", "/lost: HTTP 404", "--source", "file.bin"):
        assert part in str(error.value)


@pytest.mark.parametrize("size", [len(CONTENT), None])
@pytest.mark.parametrize("sha256", [GOOD, None])
def test_dropped_connections_are_resumed_where_they_broke(server, tmp_path, size, sha256):
    server.files["/good"], server.bytes_per_request = CONTENT, 150_000
    assert fetch(remote(server.url("/good"), size=size, sha256=sha256), tmp_path, pause=0).read_bytes() == CONTENT
    assert [wanted for _, wanted in server.requests] == [None, "bytes=150000-", "bytes=300000-"]


def test_a_later_run_goes_on_where_an_earlier_one_stopped(server, tmp_path):
    server.files["/good"] = CONTENT
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:123_456])
    assert fetch(remote(server.url("/good")), tmp_path).read_bytes() == CONTENT
    assert server.requests == [("/good", "bytes=123456-")]


def test_without_range_support_the_file_starts_anew(server, tmp_path):
    server.files["/good"], server.supports_range = CONTENT, False
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:123_456])
    assert fetch(remote(server.url("/good")), tmp_path).read_bytes() == CONTENT


def test_a_file_that_changed_on_the_server_is_not_mixed_with_the_old_one(server, tmp_path):
    unknown = remote(server.url("/file"), size=None, sha256=None)
    server.files["/file"] = CONTENT
    server.bytes_per_request, server.supports_range = 100_000, False  # never gets any further
    with pytest.raises(DataError, match="100000 of 400000"):
        fetch(unknown, tmp_path, pause=0)
    server.files["/file"], server.etag = CONTENT[::-1], '"second"'
    server.bytes_per_request, server.supports_range = None, True
    assert fetch(unknown, tmp_path, pause=0).read_bytes() == CONTENT[::-1]


def test_a_wrong_beginning_is_thrown_away_and_the_file_fetched_whole(server, tmp_path):
    server.files["/good"] = CONTENT
    (tmp_path / "file.bin.part").write_bytes(b"something else")
    assert fetch(remote(server.url("/good")), tmp_path).read_bytes() == CONTENT


def test_a_truncated_file_is_refused_before_it_is_fetched(server, tmp_path):
    server.files["/short"] = CONTENT[:-1]
    with pytest.raises(DataError, match="has 399999 bytes, expected 400000"):
        fetch(remote(server.url("/short")), tmp_path)
    assert not (tmp_path / "file.bin").exists()


def test_a_wrong_checksum_is_refused_and_the_next_mirror_tried(server, tmp_path):
    server.files["/wrong"], server.files["/good"] = CONTENT[::-1], CONTENT
    with pytest.raises(DataError, match=f"expected {GOOD}"):
        fetch(remote(server.url("/wrong")), tmp_path)
    assert not list(tmp_path.iterdir())
    assert fetch(remote(server.url("/wrong"), server.url("/good")), tmp_path).read_bytes() == CONTENT


def test_a_file_of_which_only_the_md5_is_known_is_checked_and_resumed(server, tmp_path):
    server.files["/good"] = CONTENT
    known = RemoteFile("file.bin", (server.url("/good"),), md5=hashlib.md5(CONTENT).hexdigest())
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:123_456])
    assert fetch(known, tmp_path).read_bytes() == CONTENT
    assert server.requests == [("/good", "bytes=123456-")]
    (tmp_path / "mine.bin").write_bytes(CONTENT[::-1])
    with pytest.raises(DataError, match=f"mine.bin has md5 .*, expected {known.md5}"):
        obtain(known, tmp_path, str(tmp_path / "mine.bin"))


def test_a_part_longer_than_the_file_does_not_block_the_download(server, tmp_path):
    server.files["/good"] = CONTENT
    (tmp_path / "file.bin.part").write_bytes(CONTENT + b"more")
    assert fetch(remote(server.url("/good"), size=None), tmp_path, pause=0).read_bytes() == CONTENT


def test_a_full_disk_is_named_and_the_download_goes_on_after(server, tmp_path):
    server.files["/good"] = CONTENT
    disk = tmp_path / "disk"
    with small_disk(disk, 200_000, 200_000) as set_size:
        with pytest.raises(DataError, match="no space left in .*run the same command again"):
            fetch(remote(server.url("/good")), disk)
        part = (disk / "file.bin.part").read_bytes()
        assert 0 < len(part) < len(CONTENT) and CONTENT.startswith(part)
        set_size(1_000_000)
        assert fetch(remote(server.url("/good")), disk).read_bytes() == CONTENT
    assert server.requests[-1] == ("/good", f"bytes={len(part)}-")
