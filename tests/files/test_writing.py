"""Files and folders are written whole or not at all, and errors say what to do."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest

from torch_lntm import files
from torch_lntm.errors import FileError
from torch_lntm.files import as_lines, atomic_folder, atomic_write


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
