"""Atomic writing of files and folders, safe against crashes of the process and the machine.

The content is written to a hidden name beside the target and synced to the disk. A rename then
gives it the target's name, and the parent folder is synced. The old content is removed last. A
crash at any moment leaves the complete old content or the complete new content. Where the system
cannot exchange two folders in one step, the old folder may then have a hidden name that ends in
``.old``. The new content is permanent after the writer has returned.
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
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any

from torch_lntm.errors import FileError, LNTMError

fcntl: Any
try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None

_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))

#: Maximum length in bytes of a name within a hidden name. File systems allow names of 255 bytes.
_LONGEST = 200
#: Linux's system call that can exchange two names; ``None`` elsewhere.
_renameat2: Any = None
with suppress(AttributeError, OSError, TypeError):
    _renameat2 = ctypes.CDLL(None, use_errno=True).renameat2


@contextmanager
def path_errors(path: Path) -> Iterator[None]:
    """Context to convert errors of the operating system to errors about ``path`` with advice.

    Raises:
        FileError: The operating system reported an error.
    """
    try:
        yield
    except LNTMError:
        raise
    except OSError as error:
        advice = "choose another path, or change its permissions"
        if error.errno in _FULL:
            advice = "the disk is full; free some space there, or choose another path"
        reason = error.strerror or error
        raise FileError(f"{path}: cannot be written ({reason}): {advice}") from error


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Context with a new binary file. The complete file replaces ``path`` at the end.

    If ``path`` is a symbolic link, the link stays and its target is replaced.

    Raises:
        FileError: The file cannot be written. No partial file is left. The old content of ``path``
            is unchanged, unless the disk fails after the rename.
    """
    with path_errors(path):
        target = resolve_link(path)
        make_folder(target.parent)
        with _hidden(target, as_folder=False) as temporary, open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if os.name == "nt":
                file.close()  # Windows refuses to rename open files
            os.replace(temporary, target)
            _sync_folder(target.parent)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Context with a new folder. The complete folder replaces ``path`` at the end.

    If ``path`` is a symbolic link, the link stays and its target is replaced. All files in the
    folder are synced to the disk.

    Raises:
        FileError: The folder cannot be written. No partial folder is left. The old content of
            ``path`` is unchanged.
    """
    with path_errors(path):
        target = resolve_link(path)
        make_folder(target.parent)
        with _hidden(target, as_folder=True) as temporary:
            yield temporary
            _sync_tree(temporary)
            _replace_folder(temporary, target)


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
        FileError: An item contains a line break, or the first item begins with a byte-order mark.
    """
    lines = list(lines)
    for i, line in enumerate(lines):
        if "\n" in line or "\r" in line:
            message = f"{what} {i} is {line!r}, with a line break; replace it before saving"
            raise FileError(f"{path}: {message}")
    if lines and lines[0].startswith("\ufeff"):
        message = f"{what} 0 is {lines[0]!r}, with a byte-order mark; remove it before saving"
        raise FileError(f"{path}: {message}")
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


# -------------------------------------------------------------------- targets and hidden names


def resolve_link(path: Path) -> Path:
    """Target of a symbolic link; ``path`` if it is no link.

    Raises:
        FileError: The link leads back to itself.
    """
    if not path.is_symlink():
        return path
    target = Path(os.path.realpath(path))
    with path_errors(path):
        if target.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return target


def shortened(name: str) -> str:
    """The name, with room for additions. Long names become their beginning and a digest."""
    if len(os.fsencode(name)) <= _LONGEST:
        return name
    return f"{name[:40]}-{hashlib.sha256(os.fsencode(name)).hexdigest()[:16]}"


@contextmanager
def _hidden(target: Path, as_folder: bool) -> Iterator[Path]:
    """Context with a new hidden file or folder beside the target. It is removed at the end.

    A lock shows further writers that this writer is alive.
    """
    remove_leftovers(target)
    temporary, descriptor = _make_hidden(target, as_folder)
    try:
        yield temporary
    finally:
        _remove(temporary)
        if descriptor is not None:
            os.close(descriptor)


def _make_hidden(target: Path, as_folder: bool) -> tuple[Path, int | None]:
    """Makes and locks a hidden file or folder. Returns its path and its descriptor."""
    while True:
        temporary = target.with_name(f".{shortened(target.name)}.{uuid.uuid4().hex}.new")
        temporary.mkdir() if as_folder else temporary.touch(exist_ok=False)
        try:
            descriptor = _open(temporary)
            if descriptor is None or (try_lock(descriptor) is not False and temporary.exists()):
                return temporary, descriptor
            os.close(descriptor)
        except FileNotFoundError:
            pass  # another writer removed it as a leftover before the lock; try again
        except BaseException:
            _remove(temporary)
            raise


def remove_leftovers(target: Path) -> None:
    """Removes unlocked hidden files and folders of killed writers beside the target."""
    pattern = re.compile(rf"\.{re.escape(shortened(target.name))}\.[0-9a-f]{{32}}\.(new|old)")
    with suppress(OSError):  # for example an unreadable folder
        for name in filter(pattern.fullmatch, os.listdir(target.parent)):
            leftover = target.with_name(name)
            with suppress(OSError), _opened(leftover) as descriptor:
                # An old folder is the only copy while the target is missing.
                is_only_copy = leftover.suffix == ".old" and not target.exists()
                if descriptor is not None and not is_only_copy and try_lock(descriptor):
                    _remove(leftover)


def _remove(path: Path) -> None:
    """Removes a file or a folder as far as possible. Ignores errors."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):  # the caller reports an earlier error
            path.unlink(missing_ok=True)


def _open(path: Path) -> int | None:
    """Descriptor of a file or folder; ``None`` on Windows."""
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


def _replace_folder(new: Path, target: Path) -> None:
    """Gives a complete folder the name of the target. An existing target is removed."""
    old, is_there = new.with_suffix(".old"), target.exists()
    with _opened(target) if is_there else nullcontext() as descriptor, ExitStack() as undo:
        if descriptor is not None:
            try_lock(descriptor)  # protects the hidden old folder from cleaning up
        if is_there and _exchange(new, target):
            undo.callback(_exchange, new, target)
        else:
            for source, name in [(target, old), (new, target)] if is_there else [(new, target)]:
                os.rename(source, name)
                undo.callback(os.rename, name, source)
        _sync_folder(target.parent)
        undo.pop_all()
    _remove(old)


def _exchange(one: Path, other: Path) -> bool:
    """Exchanges the names of two folders in one step. Returns ``False`` if unsupported."""
    if _renameat2 is None:
        return False
    here, names = ctypes.c_int(-100), [ctypes.c_char_p(os.fsencode(path)) for path in (one, other)]
    if _renameat2(here, names[0], here, names[1], ctypes.c_uint(2)) == 0:  # RENAME_EXCHANGE
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number))


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
    except PermissionError:  # the folder is writable and unreadable
        os.sync()
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # network file systems
            raise
