"""Files and folders written whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from torch_lntm.errors import FileError

_FULL = "the disk is full; free some space there, or choose another folder, and run again"
_DENIED = "it may not be written; choose another path, or change its permissions"
_ADVICE = {
    errno.ENOSPC: _FULL,
    getattr(errno, "EDQUOT", errno.ENOSPC): _FULL,
    errno.EACCES: _DENIED,
    errno.EPERM: _DENIED,
    errno.EROFS: "the file system is read-only; choose another path",
    errno.EISDIR: "a folder has this name; choose another path",
    errno.EEXIST: "a part of its path is a file and not a folder; choose another path",
    errno.ENOTDIR: "a part of its path is a file and not a folder; choose another path",
}


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """A binary file that appears under ``path`` only when it is complete.

    Raises:
        FileError: The file cannot be written. Nothing is left of it, and what stood under
            ``path`` before is still there.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "xb") as file:
            yield file
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):  # the first error is the one to report
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and not isinstance(error, FileError):
            raise unwritable(path, error) from error
        raise


def unwritable(path: Path, error: OSError) -> FileError:
    """The error for a file or folder that the operating system lets no one write."""
    advice = _ADVICE.get(error.errno or 0, "choose another path")
    return FileError(f"{path}: cannot be written ({error.strerror or error}): {advice}")


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which takes its name, and another folder's place, only when complete.

    A symbolic link stays, and what it points to is replaced. After an error nothing is left of the
    folder, and what stood under ``path`` before is still there.

    Raises:
        OSError: The folder cannot be written; see ``unwritable``.
    """
    path = path.resolve() if path.is_symlink() else path
    mark = uuid.uuid4().hex
    temporary, old = path.with_name(f".{path.name}.{mark}"), path.with_name(f".{path.name}.{mark}~")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        if path.exists():
            path.rename(old)
        try:
            temporary.rename(path)
        except BaseException:
            if old.exists():
                old.rename(path)
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def write_lines(path: Path, lines: Iterable[str], what: str) -> None:
    """Writes one item per line, atomically.

    Raises:
        FileError: An item would not read back as it is: it holds a line break, or the first begins
            with a byte-order mark; or the file cannot be written.
    """
    lines = list(lines)
    for i, line in enumerate(lines):
        if "\n" in line or "\r" in line:
            message = f"{what} {i} is {line!r}, with a line break; replace it before saving"
            raise FileError(f"{path}: {message}")
    if lines and lines[0].startswith("\ufeff"):
        message = f"{what} 0 is {lines[0]!r}, with a byte-order mark; remove that before saving"
        raise FileError(f"{path}: {message}")
    with atomic_write(path) as file:
        file.write("".join(f"{line}\n" for line in lines).encode())
