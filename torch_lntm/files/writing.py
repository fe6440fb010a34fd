"""Atomic writing of files and folders, which survives crashes of the process and the machine.

The content is first written under a hidden name beside the target and synced to disk. It is then
renamed to the target, and the parent folder is synced; only then is the old content removed. A
crash at any moment therefore leaves either the old or the new content, complete. On systems that
cannot exchange two folders in one step, it may leave the old folder under a hidden name that ends
in ``.old``.
"""

from __future__ import annotations

import ctypes
import glob
import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from torch_lntm.errors import FileError, LNTMError

fcntl: Any
try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None

#: Maximum length in bytes of a name within a hidden name. File systems allow names of 255 bytes.
_LONGEST = 200
#: Hidden files of a killed writer are removed after this number of seconds.
_OLD = 86_400.0


@contextmanager
def path_errors(path: Path) -> Iterator[None]:
    """Context to convert errors of the operating system to errors about ``path``.

    Raises:
        FileError: The operating system reported an error.
    """
    try:
        yield
    except LNTMError:
        raise
    except OSError as error:
        raise FileError(
            f"{path}: cannot be written ({error.strerror or error}): choose another path, free "
            "space on the disk, or change the permissions"
        ) from error


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Context with a new binary file, which replaces ``path`` once it is complete.

    If ``path`` is a symbolic link, the link stays and its target is replaced.

    Raises:
        FileError: The file cannot be written. No partial file is left. The old content of ``path``
            is unchanged, unless the disk fails after the rename.
    """
    with path_errors(path):
        target = resolve_link(path)
        make_folder(target.parent)
        with _hidden(target, as_folder=False) as temporary:
            with open(temporary, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
            _sync_folder(target.parent)


def write_file(path: str | Path, content: bytes) -> None:
    """Writes a file as a whole; see :func:`atomic_write`."""
    with atomic_write(Path(path)) as file:
        file.write(content)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Context with a new folder, which replaces ``path`` once it is complete.

    If ``path`` is a symbolic link, the link stays and its target is replaced. All files in the
    folder are synced to disk.

    Raises:
        FileError: As for :func:`atomic_write`.
    """
    with path_errors(path):
        target = resolve_link(path)
        make_folder(target.parent)
        with _hidden(target, as_folder=True) as temporary:
            yield temporary
            _sync_tree(temporary)
            _replace_folder(temporary, target)


def check_file(path: str | Path | None, overwrite: bool) -> None:
    """Checks that a file may be written.

    Raises:
        FileError: The path is a folder, or a file that may not be replaced.
    """
    if path is not None and Path(path).is_dir():
        raise FileError(f"{path}: is a folder; name a file")
    if path is not None and Path(path).exists() and not overwrite:
        raise _exists(path)


def check_folder(path: Path, mark: str, what: str, overwrite: bool) -> None:
    """Checks that a folder may be written.

    Args:
        path: The folder.
        mark: A file of every folder that may be replaced.
        what: What such a folder is, for the message.
        overwrite: Whether it may be replaced.

    Raises:
        FileError: The path is a file or another kind of folder, or may not be replaced.
    """
    if not path.name:
        raise FileError(f"{path}: is the current folder; name another folder to write")
    resolve_link(path)
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not (path / mark).is_file():
        raise FileError(f"{path}: exists and is not {what}; choose another path")
    if not overwrite:
        raise _exists(path)


def _exists(path: str | Path) -> FileError:
    advice = "choose another path, or pass --overwrite (overwrite=True)"
    return FileError(f"{path}: exists already; {advice}")


def make_folder(path: Path) -> None:
    """Makes a folder and its missing parents, and syncs them to the disk."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in reversed(missing):
        _sync_folder(folder.parent)


def as_json(value: Any) -> bytes:
    """A value as the content of a readable JSON file."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    # Lone surrogates, as in file names outside of UTF-8, become JSON escapes.
    return text.encode("utf-8", "backslashreplace")


def as_lines(lines: Iterable[str], what: str, path: Path | str) -> bytes:
    """Items as the content of a text file with an item per line.

    Args:
        lines: The items.
        what: Name of an item in errors, such as "word".
        path: Name of the file in errors.

    Raises:
        FileError: An item contains a line break or begins with a byte-order mark.
    """
    lines = list(lines)
    for i, line in enumerate(lines):
        if "\n" in line or "\r" in line or line.startswith("\ufeff"):
            problem = "a line break or a byte-order mark; replace it before saving"
            raise FileError(f"{path}: {what} {i} is {line!r}, with {problem}")
    return "".join(f"{line}\n" for line in lines).encode()


def try_lock(descriptor: int) -> bool | None:
    """Locks an open file or folder until all of its descriptors are closed.

    Returns:
        ``True`` after success, ``False`` if another process has the lock, and ``None`` if locks are
        unsupported.
    """
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def resolve_link(path: Path) -> Path:
    """Target of a symbolic link; ``path`` if it is no link.

    Raises:
        FileError: The link leads back to itself.
    """
    target = Path(os.path.realpath(path)) if path.is_symlink() else path
    if target.is_symlink():
        raise FileError(f"{path}: cannot be written: the link leads to itself; choose another path")
    return target


def shortened(name: str) -> str:
    """The name, cut to leave room for additions; a digest replaces the end of a long one."""
    if len(os.fsencode(name)) <= _LONGEST:
        return name
    return f"{name[:40]}-{hashlib.sha256(os.fsencode(name)).hexdigest()[:16]}"


# -------------------------------------------------------------------- hidden names


@contextmanager
def _hidden(target: Path, as_folder: bool) -> Iterator[Path]:
    """Context with a new hidden file or folder beside the target, which is removed at the end."""
    remove_leftovers(target)
    temporary = target.with_name(f".{shortened(target.name)}.{uuid.uuid4().hex}.new")
    try:
        temporary.mkdir() if as_folder else temporary.touch(exist_ok=False)
        yield temporary
    finally:
        _remove(temporary)


def remove_leftovers(target: Path) -> None:
    """Removes old hidden files and folders of killed writers beside the target."""
    pattern = f".{glob.escape(shortened(target.name))}.{32 * '[0-9a-f]'}.new"
    for leftover in target.parent.glob(pattern):
        with suppress(OSError):
            if time.time() - leftover.stat().st_mtime > _OLD:
                _remove(leftover)


def _remove(path: Path) -> None:
    """Removes a file or a folder as far as possible, and ignores errors."""
    shutil.rmtree(path, ignore_errors=True)  # of a folder
    with suppress(OSError):  # the caller reports an earlier error
        path.unlink(missing_ok=True)


# -------------------------------------------------------------------- steps


def _replace_folder(new: Path, target: Path) -> None:
    """Gives a complete folder the name of the target, and an old target the hidden name."""
    if not target.exists():
        os.rename(new, target)
    elif not _exchange(new, target):
        old = new.with_suffix(".old")
        os.rename(target, old)
        try:
            os.rename(new, target)
        except OSError:
            os.rename(old, target)
            raise
        os.rename(old, new)
    _sync_folder(target.parent)


def _exchange(one: Path, other: Path) -> bool:
    """Exchanges two folders' names in one step, which only Linux can. Returns whether it did."""
    try:
        rename = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    here, names = ctypes.c_int(-100), [ctypes.c_char_p(os.fsencode(path)) for path in (one, other)]
    return bool(rename(here, names[0], here, names[1], ctypes.c_uint(2)) == 0)  # RENAME_EXCHANGE


def _sync_tree(folder: Path) -> None:
    """Syncs all files in a folder, and the folder."""
    for root, _, names in os.walk(folder, topdown=False):
        for name in names:
            with open(os.path.join(root, name), "r+b") as file:
                os.fsync(file.fileno())
        _sync_folder(Path(root))


def _sync_folder(path: Path) -> None:
    """Syncs the names in a folder, where the system can."""
    with suppress(OSError), ExitStack() as stack:
        descriptor = os.open(path, os.O_RDONLY)
        stack.callback(os.close, descriptor)
        os.fsync(descriptor)
