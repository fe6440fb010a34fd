"""Files and folders written whole or not at all, whatever happens to the process or the machine.

The content goes under a hidden name beside its place and is synced to the disk. Then it takes its
place by a rename, and the folder around it is synced. Only then is the old content removed. So a
crash at any moment leaves the old content or the new, and the new once the writer has returned.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import re
import shutil
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

_FULL = "the disk is full; free some space there, or choose another folder, and run again"
_DENIED = "it may not be written; choose another path, or change its permissions"
_FILE_ABOVE = "a part of its path is a file and not a folder; choose another path"
_ADVICE = {
    errno.ENOSPC: _FULL,
    getattr(errno, "EDQUOT", errno.ENOSPC): _FULL,
    errno.EFBIG: "a file may not be so large there; choose another file system, or raise the limit",
    errno.EACCES: _DENIED,
    errno.EPERM: _DENIED,
    errno.EROFS: "the file system is read-only; choose another path",
    errno.EISDIR: "a folder has this name; choose another path",
    errno.EEXIST: _FILE_ABOVE,
    errno.ENOTDIR: _FILE_ABOVE,
    errno.ELOOP: "a symbolic link leads back to itself; remove it, or choose another path",
    errno.ENAMETOOLONG: "its name is too long; choose a shorter one",
}

#: Longest name, in bytes, that hidden names repeat. File systems take names of 255.
_LONGEST = 200
#: Flag of Linux's ``renameat2``: exchange the two names in one step.
_RENAME_EXCHANGE, _AT_FDCWD = 2, -100


@contextmanager
def path_errors(path: Path) -> Iterator[None]:
    """A context in which errors of the operating system name ``path`` and say what to do.

    Raises:
        FileError: Such an error happened.
    """
    try:
        yield
    except LNTMError:
        raise
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, "choose another path")
        reason = error.strerror or error
        raise FileError(f"{path}: cannot be written ({reason}): {advice}") from error


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """A binary file that takes its name, and an older file's place, only when it is complete.

    A symbolic link stays, and the file that it points to is replaced.

    Raises:
        FileError: The file cannot be written. Nothing is left of it, and what stood under
            ``path`` before is still there, unless the disk fails when the file has its name.
    """
    with path_errors(path):
        place = behind_links(path)
        make_folder(place.parent)
        with _hidden(place, in_folder=False) as temporary, open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if os.name == "nt":
                file.close()  # Windows renames no open file
            os.replace(temporary, place)
            _sync_folder(place.parent)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which takes its name, and another folder's place, only when complete.

    A symbolic link stays, and the folder that it points to is replaced. The files in the folder
    need no care: all are synced.

    Raises:
        FileError: The folder cannot be written. Nothing is left of it, and what stood under
            ``path`` before is still there.
    """
    with path_errors(path):
        place = behind_links(path)
        make_folder(place.parent)
        with _hidden(place, in_folder=True) as temporary:
            yield temporary
            _sync_tree(temporary)
            _take_place(temporary, place)


def make_folder(path: Path) -> None:
    """Makes a folder, and those above it that are missing, so that a crash leaves them there."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in reversed(missing):
        _sync_folder(folder.parent)


def as_json(value: Any) -> bytes:
    """A value as a JSON file, for people to read too."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    # A lone surrogate, as of a file name that is not UTF-8, becomes its JSON escape.
    return text.encode("utf-8", "backslashreplace")


def as_lines(lines: Iterable[str], what: str, path: Path | str) -> bytes:
    """Items as a text file with an item per line.

    Args:
        lines: The items.
        what: What an item is, such as "word".
        path: Name of the file, for errors.

    Raises:
        FileError: An item would not read back as it is: it holds a line break, or the first begins
            with a byte-order mark.
    """
    lines = list(lines)
    for i, line in enumerate(lines):
        if "\n" in line or "\r" in line:
            message = f"{what} {i} is {line!r}, with a line break; replace it before saving"
            raise FileError(f"{path}: {message}")
    if lines and lines[0].startswith("\ufeff"):
        message = f"{what} 0 is {lines[0]!r}, with a byte-order mark; remove that before saving"
        raise FileError(f"{path}: {message}")
    return "".join(f"{line}\n" for line in lines).encode()


def try_lock(descriptor: int) -> bool | None:
    """Locks an open file or folder until it is closed, in all processes that have it.

    Returns:
        Whether it is locked now; False if another process has the lock, and None if the system or
        the file system knows no locks.
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


# -------------------------------------------------------------------- places and hidden names


def behind_links(path: Path) -> Path:
    """The path that a symbolic link leads to, or the path itself.

    Raises:
        FileError: The link leads back to itself.
    """
    if not path.is_symlink():
        return path
    place = Path(os.path.realpath(path))
    with path_errors(path):
        if place.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return place


def shortened(name: str) -> str:
    """A name that leaves room for additions: of a long one the beginning, and a digest."""
    if len(os.fsencode(name)) <= _LONGEST:
        return name
    return f"{name[:40]}-{hashlib.sha256(os.fsencode(name)).hexdigest()[:16]}"


@contextmanager
def _hidden(place: Path, in_folder: bool) -> Iterator[Path]:
    """A new hidden file or folder beside a place, removed in the end if it is still there.

    It is locked, which tells other writers that this writer is alive.
    """
    _remove_leftovers(place)
    temporary, descriptor = _claim(place, in_folder)
    try:
        yield temporary
    finally:
        _remove(temporary)
        if descriptor is not None:
            os.close(descriptor)


def _claim(place: Path, in_folder: bool) -> tuple[Path, int | None]:
    """Makes a hidden file or folder and locks it; its name, and its descriptor."""
    while True:
        temporary = place.with_name(f".{shortened(place.name)}.{uuid.uuid4().hex}.new")
        temporary.mkdir() if in_folder else temporary.touch(exist_ok=False)
        try:
            descriptor = _open(temporary)
            if descriptor is None or (try_lock(descriptor) is not False and temporary.exists()):
                return temporary, descriptor
            os.close(descriptor)
        except FileNotFoundError:
            pass  # as above: before it was locked, another writer took it for a leftover
        except BaseException:
            _remove(temporary)
            raise


def _remove_leftovers(place: Path) -> None:
    """Removes what killed writers left beside a place: what no process has locked."""
    pattern = re.compile(rf"\.{re.escape(shortened(place.name))}\.[0-9a-f]{{32}}\.(new|old)")
    with suppress(OSError):  # such as a folder that may be written but not read
        for name in filter(pattern.fullmatch, os.listdir(place.parent)):
            left = place.with_name(name)
            with suppress(OSError), _opened(left) as descriptor:
                # An old folder is the only copy as long as nothing has taken its place.
                only = left.suffix == ".old" and not place.exists()
                if descriptor is not None and not only and try_lock(descriptor):
                    _remove(left)


def _remove(path: Path) -> None:
    """Removes a file or a folder that may be gone, as far as the system lets it."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):  # the first error is the one to report
            path.unlink(missing_ok=True)


def _open(path: Path) -> int | None:
    """A descriptor of a file or folder; None on Windows, which opens no folders."""
    return None if fcntl is None else os.open(path, os.O_RDONLY | os.O_NONBLOCK)


@contextmanager
def _opened(path: Path) -> Iterator[int | None]:
    descriptor = _open(path)
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


# -------------------------------------------------------------------- steps


def _take_place(new: Path, place: Path) -> None:
    """Gives a complete folder its name, and puts the folder that had it out of the way."""
    old = new.with_suffix(".old")
    with ExitStack() as locked, ExitStack() as undo:
        if not place.exists():
            os.rename(new, place)
            undo.callback(os.rename, place, new)
        else:
            descriptor = locked.enter_context(_opened(place))
            if descriptor is not None:
                try_lock(descriptor)  # under a hidden name it is no leftover yet
            if _exchange(new, place):
                undo.callback(_exchange, new, place)
            else:
                os.rename(place, old)
                undo.callback(os.rename, old, place)
                os.rename(new, place)
                undo.callback(os.rename, place, new)
        _sync_folder(place.parent)
        undo.pop_all()
    _remove(old)


def _exchange(one: Path, other: Path) -> bool:
    """Exchanges the names of two folders in one step; returns False where that is impossible."""
    if _renameat2 is None:
        return False
    names = (_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other))
    if _renameat2(*names, _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number))


def _find_renameat2() -> Any:
    """The function of Linux's C library; None elsewhere."""
    try:
        function = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return None
    path = (ctypes.c_int, ctypes.c_char_p)
    function.argtypes = (*path, *path, ctypes.c_uint)
    return function


_renameat2 = _find_renameat2()


def _sync_tree(folder: Path) -> None:
    """Syncs all files in a folder, and the folder."""
    for root, _, names in os.walk(folder, topdown=False):
        for name in names:
            with open(os.path.join(root, name), "r+b") as file:
                os.fsync(file.fileno())
        _sync_folder(Path(root))


def _sync_folder(path: Path) -> None:
    """Syncs the names in a folder."""
    try:
        with _opened(path) as descriptor:
            if descriptor is not None:
                os.fsync(descriptor)
    except PermissionError:  # it may be written but not read
        os.sync()
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # as some network file systems say
            raise
