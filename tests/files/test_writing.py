"""Files and folders are written whole or not at all, and errors say what to do."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.crashes import ForgetfulDisk, make

from torch_lntm.errors import FileError
from torch_lntm.files import arrays, writing
from torch_lntm.files.writing import as_lines, atomic_folder, atomic_write


def write(path, content):
    with atomic_write(path) as file:
        file.write(content)


@pytest.mark.parametrize(
    ("number", "match"),
    [
        (errno.ENOSPC, "No space left on device.*: the disk is full; free some space"),
        (errno.EROFS, "Read-only file system.*: choose another path"),
    ],
)
def test_errors_of_the_system_name_the_file_and_give_advice(tmp_path, monkeypatch, number, match):
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


def test_a_path_through_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileError, match=r"file/a\.npz: cannot be written .* choose another"):
        arrays.write_arrays(tmp_path / "file" / "a.npz", a=np.zeros(1))


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


def test_words_with_a_byte_order_mark_are_refused():
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
def test_a_crash_leaves_the_complete_old_file_or_the_complete_new_file(root, monkeypatch, old):
    if old is not None:
        (root / "x").write_bytes(old)
    disk = ForgetfulDisk(root, monkeypatch)
    write(root / "x", b"new")
    assert {content(tree) for tree in disk.ever_left} == {old, b"new"}
    assert disk.finally_left == {(("x", b"new"),)}


@pytest.mark.parametrize("old", [None, (), (("a", b"old"), ("c", b"oldest"))])
def test_a_crash_leaves_the_complete_old_folder_or_the_complete_new_folder(root, monkeypatch, old):
    if old is not None:
        make(old, root / "x")
    disk = ForgetfulDisk(root, monkeypatch)
    write_folder(root / "x")
    assert {content(tree) for tree in disk.ever_left} == {old, NEW}
    assert {content(tree) for tree in disk.finally_left} == {NEW}
    assert [path.name for path in root.iterdir()] == ["x"]


def test_new_parent_folders_survive_a_crash(root, monkeypatch):
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
def test_the_simulated_disk_forgets_unsynced_content(root, monkeypatch, step):
    make((("a", b"old"),), root / "x")
    monkeypatch.setattr(writing, step, lambda folder: None)
    disk = ForgetfulDisk(root, monkeypatch)
    write_folder(root / "x")
    assert {content(tree) for tree in disk.finally_left} != {NEW}


# ------------------------------------------------------------------ places and names


@pytest.mark.parametrize("name", [*(n * "n" for n in (200, 201, 218, 230, 255)), 127 * "ü"])
def test_names_of_maximum_length_are_written(tmp_path, name):
    write(tmp_path / name, b"new")
    assert (tmp_path / name).read_bytes() == b"new"
    (tmp_path / name).unlink()
    write_folder(tmp_path / name)
    write_folder(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_long_names_with_equal_beginnings_stay_different():
    assert writing.shortened("n" * 200) == "n" * 200
    one, other = (writing.shortened("n" * 200 + end) for end in "ab")
    assert one != other
    assert len(one) == len(other) < 80


def test_a_name_that_is_too_long_is_refused(tmp_path):
    with pytest.raises(FileError, match=r"cannot be written .*too long.*choose"):
        write(tmp_path / ("n" * 256), b"new")


@pytest.mark.parametrize("target", ["real", "missing"])
def test_a_link_to_a_file_is_written_through(tmp_path, target):
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to(target)
    write(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / target).read_bytes() == b"new"
    assert {path.name for path in tmp_path.iterdir()} == {"link", "real", target}


@pytest.mark.parametrize("writer", [lambda path: write(path, b"new"), write_folder])
def test_a_link_to_itself_is_refused(tmp_path, writer):
    (tmp_path / "link").symlink_to("link")
    with pytest.raises(FileError, match=r"link: cannot be written .* choose another path"):
        writer(tmp_path / "link")
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


# ------------------------------------------------------------------ leftovers

HEX = "0123456789abcdef" * 2


def killed(root, statement, **replaced):
    """Runs a writer in another process, which is killed where a function is replaced."""
    lines = [
        "import os, pathlib, torch_lntm.files.writing as w",
        f"path = pathlib.Path({str(root / 'x')!r})",
        *(f"w.{name} = lambda *a: os.kill(os.getpid(), 9)" for name in replaced),
        f"with {statement} as made:",
        "    made.write(b'new') if hasattr(made, 'write') else (made / 'a').write_bytes(b'new')",
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], check=False)
    assert done.returncode == -9


@pytest.mark.parametrize("step", ["_sync_tree", "_replace_folder", "_remove"])
def test_leftovers_of_a_killed_writer_of_a_folder_are_removed(root, step):
    make((("a", b"old"),), root / "x")
    killed(root, "w.atomic_folder(path)", **{step: None})
    assert len(list(root.iterdir())) == 2
    assert (root / "x" / "a").read_bytes() == (b"new" if step == "_remove" else b"old")
    write_folder(root / "x")
    assert [path.name for path in root.iterdir()] == ["x"]


def test_leftovers_of_a_killed_writer_of_a_file_are_removed(root):
    killed(root, "w.atomic_write(path)", **{"os.replace": None})
    assert [path.name.startswith(".x.") for path in root.iterdir()] == [True]
    write(root / "x", b"new")
    assert [path.name for path in root.iterdir()] == ["x"]


def test_hidden_files_of_a_running_writer_are_kept(root):
    with atomic_folder(root / "x") as one:
        (one / "a").write_bytes(b"one")
        write_folder(root / "x")
        with atomic_write(root / "y") as file:
            write(root / "y", b"two")
            file.write(b"one")
    assert (root / "x" / "a").read_bytes() == b"one"
    assert (root / "y").read_bytes() == b"one"
    assert sorted(path.name for path in root.iterdir()) == ["x", "y"]


def test_a_hidden_file_locked_by_another_writer_is_replaced_by_a_new_one(root, monkeypatch):
    taken = []

    def try_lock(descriptor):
        if taken:
            return True
        (path,) = root.iterdir()
        taken.append(path)
        return False

    monkeypatch.setattr(writing, "try_lock", try_lock)
    with atomic_folder(root / "x") as folder:
        assert folder != taken[0]
        taken[0].rmdir()
    assert [path.name for path in root.iterdir()] == ["x"]


def test_a_hidden_file_removed_before_its_lock_is_replaced_by_a_new_one(root, monkeypatch):
    real, removed = writing._open, []

    def opened_too_late(path):
        descriptor = real(path)
        if not removed and path.name.endswith(".new"):
            path.rmdir()
            removed.append(path)
        return descriptor

    monkeypatch.setattr(writing, "_open", opened_too_late)
    with atomic_folder(root / "x") as folder:
        assert folder not in removed
        (folder / "a").write_bytes(b"new")
    assert len(removed) == 1
    assert [path.name for path in root.iterdir()] == ["x"]


@pytest.mark.parametrize("name", [f".xy.{HEX}.new", f".x.{HEX}", ".x.new", f".x.{HEX}.new.txt"])
def test_files_other_than_leftovers_are_kept(root, name):
    (root / name).write_bytes(b"precious")
    write(root / "x", b"new")
    assert (root / name).read_bytes() == b"precious"


def test_an_old_folder_is_kept_until_the_new_folder_has_its_name(root):
    old = make((("a", b"old"),), root / f".x.{HEX}.old")
    write_folder(root / "x")
    assert (old / "a").read_bytes() == b"old"
    write_folder(root / "x")
    assert [path.name for path in root.iterdir()] == ["x"]


@pytest.mark.parametrize("exchange", [True, False])
def test_a_failed_sync_restores_the_old_folder(root, monkeypatch, exchange):
    make((("a", b"old"),), root / "x")

    def fail(folder):
        if folder == root:
            writing.remove_leftovers(root / "x")  # as another writer does meanwhile
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(writing, "_sync_folder", fail)
    if not exchange:
        monkeypatch.setattr(writing, "_renameat2", None)
    with pytest.raises(FileError, match=r"x: cannot be written .Input/output error"):
        write_folder(root / "x")
    assert (root / "x" / "a").read_bytes() == b"old"
    assert [path.name for path in root.iterdir()] == ["x"]
    (root / "x" / "a").unlink()
    (root / "x").rmdir()
    with pytest.raises(FileError, match=r"x: cannot be written .Input/output error"):
        write_folder(root / "x")
    assert list(root.iterdir()) == []


# ------------------------------------------------------------------ what the system refuses


@pytest.mark.parametrize("writer", [lambda path: write(path, b"new"), write_folder])
def test_no_hidden_file_is_left_without_a_free_descriptor(root, monkeypatch, writer):
    def fail(path):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(writing, "_open", fail)
    with pytest.raises(FileError, match=r"x: cannot be written .*Too many open files"):
        writer(root / "x")
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.EIO])
def test_file_systems_without_sync_of_folders_are_supported(root, monkeypatch, number):
    fsync = os.fsync

    def refuse(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse)
    if number == errno.EIO:
        with pytest.raises(FileError, match=r"x: cannot be written .*Input/output error"):
            write_folder(root / "x")
        assert list(root.iterdir()) == []
    else:
        write_folder(root / "x")
        assert (root / "x" / "b").read_bytes() == b"newer"


def test_unreadable_folders_are_synced_with_the_whole_system(root, monkeypatch):
    synced, real = [], os.open

    def unreadable(path, *arguments, **options):
        if Path(path) == root:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", unreadable)
    monkeypatch.setattr(os, "sync", lambda: synced.append((root / "x").read_bytes()))
    write(root / "x", b"new")
    assert synced == [b"new"]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS])
def test_file_systems_without_an_exchange_rename_twice(root, monkeypatch, number):
    make((("a", b"old"),), root / "x")
    calls = []

    def refuse(*arguments):
        calls.append(arguments)
        ctypes.set_errno(number)
        return -1

    monkeypatch.setattr(writing, "_renameat2", refuse)
    write_folder(root / "x")
    assert len(calls) == 1
    assert (root / "x" / "b").read_bytes() == b"newer"
    assert [path.name for path in root.iterdir()] == ["x"]


def test_an_exchange_that_fails_for_another_reason_is_an_error(root, monkeypatch):
    make((("a", b"old"),), root / "x")

    def refuse(*arguments):
        ctypes.set_errno(errno.EIO)
        return -1

    monkeypatch.setattr(writing, "_renameat2", refuse)
    with pytest.raises(FileError, match=r"x: cannot be written .*Input/output error"):
        write_folder(root / "x")
    assert (root / "x" / "a").read_bytes() == b"old"
    assert [path.name for path in root.iterdir()] == ["x"]
