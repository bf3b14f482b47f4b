"""Unpacking archives that are good, damaged, or made to write where they should not."""

import gzip
import io
import stat
import tarfile
import zipfile

import pytest
from archive import unpack_tar, unpack_zip
from small_corpus import zip_of
from small_parallel import tar_of
from stages import DataError

WANTED = {"corpus/a.txt": "a.txt"}


def test_wanted_members_get_their_names_and_others_stay_packed(tmp_path):
    archive = tmp_path / "good.zip"
    archive.write_bytes(zip_of({"corpus/a.txt": "text", "corpus/b.txt": "other"}))
    folder = tmp_path / "out"
    folder.mkdir()
    unpack_zip(archive, WANTED, folder)
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [("a.txt", "text")]


@pytest.mark.parametrize("name", ["../evil", "corpus/../../evil", "/evil", "..\\evil", "C:\\evil", "c:evil", "good\0../evil"])
def test_an_archive_with_a_name_outside_of_the_folder_is_refused_whole(tmp_path, name):
    archive = tmp_path / "evil.zip"
    replaceable = "x" * len(name)  # zipfile itself would not write every such name
    archive.write_bytes(zip_of({"corpus/a.txt": "text", replaceable: "evil"}).replace(replaceable.encode(), name.encode()))
    folder = tmp_path / "inner" / "out"
    folder.mkdir(parents=True)
    with pytest.raises(DataError, match="outside of the target folder"):
        unpack_zip(archive, WANTED, folder)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["evil.zip", "inner", "out"]


def test_an_archive_with_a_link_is_refused(tmp_path):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as zipped:
        link = zipfile.ZipInfo("corpus/a.txt")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        zipped.writestr(link, "/etc/passwd")
    archive = tmp_path / "link.zip"
    archive.write_bytes(data.getvalue())
    with pytest.raises(DataError, match="is a link"):
        unpack_zip(archive, WANTED, tmp_path)


def test_a_missing_member_is_named(tmp_path):
    archive = tmp_path / "other.zip"
    archive.write_bytes(zip_of({"other/a.txt": "text"}))
    with pytest.raises(DataError, match=r"lacks corpus/a\.txt; it holds other/a\.txt"):
        unpack_zip(archive, WANTED, tmp_path)


@pytest.mark.parametrize("damage", [lambda data: data[:-30], lambda data: data.replace(b"text", b"tExt")])
def test_a_truncated_or_altered_archive_is_refused(tmp_path, damage):
    stored = io.BytesIO()
    with zipfile.ZipFile(stored, "w") as zipped:
        zipped.writestr("corpus/a.txt", "text")
    archive = tmp_path / "damaged.zip"
    archive.write_bytes(damage(stored.getvalue()))
    with pytest.raises(DataError, match="not a whole zip archive"):
        unpack_zip(archive, WANTED, tmp_path)


def test_wanted_members_of_a_tar_get_their_names_and_others_stay_packed(tmp_path):
    (tmp_path / "good.tgz").write_bytes(tar_of({"./corpus/b.txt": b"other", "./corpus/a.txt": b"text"}))
    folder = tmp_path / "out"
    folder.mkdir()
    unpack_tar(tmp_path / "good.tgz", WANTED, folder)
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [("a.txt", "text")]


@pytest.mark.parametrize("name", ["../evil", "corpus/../../evil", "/evil", "..\\evil", "C:\\evil"])
def test_a_tar_with_a_name_outside_of_the_folder_is_refused_whole(tmp_path, name):
    (tmp_path / "evil.tgz").write_bytes(tar_of({"corpus/a.txt": b"text", name: b"evil"}))
    folder = tmp_path / "inner" / "out"
    folder.mkdir(parents=True)
    with pytest.raises(DataError, match="outside of the target folder"):
        unpack_tar(tmp_path / "evil.tgz", WANTED, folder)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["evil.tgz", "inner", "out"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_a_tar_with_a_link_or_a_device_is_refused(tmp_path, kind):
    with tarfile.open(tmp_path / "link.tgz", "w:gz") as archive:
        member = tarfile.TarInfo("corpus/a.txt")
        member.type, member.linkname = kind, "/etc/passwd"
        archive.addfile(member)
    with pytest.raises(DataError, match="is a link or a device"):
        unpack_tar(tmp_path / "link.tgz", WANTED, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["link.tgz"]


def test_a_missing_member_of_a_tar_is_named(tmp_path):
    (tmp_path / "other.tgz").write_bytes(tar_of({"other/a.txt": b"text"}))
    with pytest.raises(DataError, match=r"lacks corpus/a\.txt; it holds other/a\.txt"):
        unpack_tar(tmp_path / "other.tgz", WANTED, tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-30],
        lambda data: data[: len(data) // 2],
        lambda data: gzip.compress(gzip.decompress(data)[:700]),
        lambda data: b"no archive at all",
        lambda data: b"",
    ],
    ids=["end lost", "half", "whole gzip of half a tar", "text", "empty"],
)
def test_a_truncated_or_altered_tar_is_refused(tmp_path, damage):
    (tmp_path / "damaged.tgz").write_bytes(damage(tar_of({"corpus/a.txt": b"text" * 500})))
    with pytest.raises(DataError, match="not a whole tar.gz archive"):
        unpack_tar(tmp_path / "damaged.tgz", WANTED, tmp_path)
