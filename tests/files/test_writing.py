"""Files and folders are written whole or not at all, and errors say what to do."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest
from support.crashes import ForgetfulDisk, make

from torch_lntm import files
from torch_lntm.errors import FileError
from torch_lntm.files import as_lines, atomic_folder, atomic_write, writing


def write(path, content):
    with atomic_write(path) as file:
        file.write(content)


@pytest.mark.parametrize(
    ("number", "match"),
    [
        (errno.ENOSPC, "No space left on device.*: the disk is full; free some space"),
        (errno.EACCES, "Permission denied.*: it may not be written; choose another path"),
        (errno.EROFS, "Read-only file system.*; choose another path"),
        (errno.EIO, "Input/output error.*: choose another path"),
    ],
)
def test_errors_of_the_system_name_the_file_and_what_to_do(tmp_path, monkeypatch, number, match):
    path = tmp_path / "out" / "a.txt"
    path.parent.mkdir()
    path.write_text("old")

    def fail(*args):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(FileError, match=rf"out/a\.txt: cannot be written \({match}"):
        write(path, b"new")
    assert [p.name for p in path.parent.iterdir()] == ["a.txt"]
    assert path.read_text() == "old"


def test_a_path_through_a_file_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileError, match=r"file/a\.npz: cannot be written .* is a file and not a"):
        files.write_arrays(tmp_path / "file" / "a.npz", a=np.zeros(1))


def test_lines_with_line_breaks_are_not_written():
    with pytest.raises(FileError, match=r"a\.txt: word 1 is 'b\\r', with a line break"):
        as_lines(["a", "b\r"], "word", "a.txt")


def test_a_link_is_written_through(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with atomic_folder(tmp_path / "link") as folder:
        (folder / "new").write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "new").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]


def test_a_byte_order_mark_would_not_come_back():
    with pytest.raises(FileError, match="byte-order mark"):
        as_lines(["\ufeffa", "b"], "word", "words.txt")


# ------------------------------------------------------------------ crashes


def content(tree):
    """What stands under the name "x" after a crash; None if nothing does."""
    return dict(tree).get("x")


NEW = (("a", b"new"), ("b", b"newer"))


def write_folder(path):
    with atomic_folder(path) as folder:
        (folder / "a").write_bytes(b"new")
        (folder / "b").write_bytes(b"newer")


@pytest.fixture
def root(tmp_path):
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.mark.parametrize("old", [None, b"old"])
def test_a_crash_leaves_the_old_file_or_the_new(root, monkeypatch, old):
    if old is not None:
        (root / "x").write_bytes(old)
    disk = ForgetfulDisk(root, monkeypatch)
    write(root / "x", b"new")
    assert {content(tree) for tree in disk.ever_left} == {old, b"new"}
    assert disk.finally_left == {(("x", b"new"),)}


@pytest.mark.parametrize("old", [None, (), (("a", b"old"), ("c", b"oldest"))])
def test_a_crash_leaves_the_old_folder_or_the_new(root, monkeypatch, old):
    if old is not None:
        make(old, root / "x")
    disk = ForgetfulDisk(root, monkeypatch)
    write_folder(root / "x")
    assert {content(tree) for tree in disk.ever_left} == {old, NEW}
    assert {content(tree) for tree in disk.finally_left} == {NEW}
    assert [path.name for path in root.iterdir()] == ["x"]


def test_folders_above_a_new_file_outlast_a_crash(root, monkeypatch):
    disk = ForgetfulDisk(root, monkeypatch)
    write(root / "one" / "two" / "x", b"new")
    assert disk.finally_left == {(("one", (("two", (("x", b"new"),)),)),)}


def test_without_an_exchange_a_crash_leaves_the_old_folder_under_another_name(root, monkeypatch):
    make((("a", b"old"),), root / "x")
    monkeypatch.setattr(writing, "_renameat2", None)
    disk = ForgetfulDisk(root, monkeypatch)
    write_folder(root / "x")
    for tree in disk.ever_left:
        whole = {folder for name, folder in tree}
        assert whole & {(("a", b"old"),), NEW}
        assert content(tree) in (None, (("a", b"old"),), NEW)
    assert {content(tree) for tree in disk.finally_left} == {NEW}


@pytest.mark.parametrize("step", ["_sync_tree", "_sync_folder"])
def test_the_forgetful_disk_notices_what_is_not_synced(root, monkeypatch, step):
    make((("a", b"old"),), root / "x")
    monkeypatch.setattr(writing, step, lambda folder: None)
    disk = ForgetfulDisk(root, monkeypatch)
    write_folder(root / "x")
    assert {content(tree) for tree in disk.finally_left} != {NEW}
