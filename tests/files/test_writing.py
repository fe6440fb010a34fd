"""Files and folders are written whole or not at all, and errors say what to do."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest
from support.crashes import ForgetfulDisk, make

from torch_lntm.errors import FileError
from torch_lntm.files import writing
from torch_lntm.files.writing import as_lines, atomic_folder, atomic_write


def write(path, content):
    with atomic_write(path) as file:
        file.write(content)


def write_folder(path):
    with atomic_folder(path) as folder:
        (folder / "a").write_bytes(b"new")
        (folder / "b").write_bytes(b"newer")


def test_errors_of_the_system_name_the_file(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def fail(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(FileError, match=r"a\.txt: cannot be written \(No space left .*: choose"):
        write(path, b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]
    assert path.read_text() == "old"


@pytest.mark.parametrize("word", ["b\r", "b\nb", "\ufeffb"])
def test_lines_that_would_be_read_differently_are_not_written(word):
    with pytest.raises(FileError, match=r"a\.txt: word 1 is '.*', with a line break or a byte-ord"):
        as_lines(["a", word], "word", "a.txt")


@pytest.mark.parametrize("target", ["real", "missing"])
def test_links_are_written_through(tmp_path, target):
    (tmp_path / "real").write_bytes(b"old")
    for name, end in (("link", target), ("folder", "there")):
        (tmp_path / name).symlink_to(end)
    write(tmp_path / "link", b"new")
    write_folder(tmp_path / "folder")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "folder").is_symlink()
    assert (tmp_path / target).read_bytes() == b"new"
    assert (tmp_path / "there" / "a").read_bytes() == b"new"
    assert len(list(tmp_path.iterdir())) == len({"link", "folder", "there", "real", target})


@pytest.mark.parametrize("writer", [lambda path: write(path, b"new"), write_folder])
def test_a_link_to_itself_is_refused(tmp_path, writer):
    (tmp_path / "link").symlink_to("link")
    with pytest.raises(FileError, match=r"link: cannot be written.* choose another path"):
        writer(tmp_path / "link")
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


# ------------------------------------------------------------------ crashes


def content(tree):
    """What stands under the name "x" after a crash; None if nothing does."""
    return dict(tree).get("x")


NEW = (("a", b"new"), ("b", b"newer"))


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
    monkeypatch.setattr(writing, "_exchange", lambda *_: False)
    disk = ForgetfulDisk(root, monkeypatch)
    write_folder(root / "x")
    for tree in disk.ever_left:
        whole = {folder for name, folder in tree}
        assert whole & {(("a", b"old"),), NEW}
        assert content(tree) in (None, (("a", b"old"),), NEW)
    assert {content(tree) for tree in disk.finally_left} == {NEW}


# ------------------------------------------------------------------ places and names


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


@pytest.mark.parametrize("step", ["_sync_tree", "_replace_folder", "_remove", "os.replace"])
def test_old_leftovers_of_a_killed_writer_are_removed(root, step, monkeypatch):
    as_file = step == "os.replace"
    writer = (lambda path: write(path, b"new")) if as_file else write_folder
    if not as_file:
        make((("a", b"old"),), root / "x")
    killed(root, f"w.{'atomic_write' if as_file else 'atomic_folder'}(path)", **{step: None})
    (leftover,) = (path for path in root.iterdir() if path.name.startswith(".x."))
    if not as_file:
        assert (root / "x" / "a").read_bytes() == (b"new" if step == "_remove" else b"old")
    writer(root / "x")
    assert leftover.exists(), "it may be of a writer that has just begun"
    monkeypatch.setattr(writing, "_OLD", -1.0)
    writer(root / "x")
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


@pytest.mark.parametrize("name", [f".xy.{HEX}.new", f".x.{HEX}", ".x.new", f".x.{HEX}.old"])
def test_files_other_than_leftovers_are_kept(root, name, monkeypatch):
    monkeypatch.setattr(writing, "_OLD", -1.0)
    (root / name).write_bytes(b"precious")
    write(root / "x", b"new")
    assert (root / name).read_bytes() == b"precious"


def test_the_old_folder_returns_if_the_new_one_cannot_take_its_name(root, monkeypatch):
    make((("a", b"old"),), root / "x")
    rename = os.rename

    def fail(source, target):
        if str(source).endswith(".new"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rename(source, target)

    monkeypatch.setattr(writing, "_exchange", lambda *_: False)
    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(FileError, match=r"x: cannot be written .Input/output error"):
        write_folder(root / "x")
    assert (root / "x" / "a").read_bytes() == b"old"
    assert [path.name for path in root.iterdir()] == ["x"]
