"""Bounded reading of files, with the place in errors."""

from __future__ import annotations

import codecs
import gzip
import itertools
import math
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, TypeVar

from torch_lntm.errors import FileError

T = TypeVar("T")

_PIECE = 1 << 20
_ATTEMPTS = 100
#: A compressed file of up to _SMALL bytes may unpack to _UNPACKED bytes, and each further byte to
#: _RATIO bytes.
_UNPACKED, _SMALL, _RATIO = 128 << 20, 10 << 20, 100
#: Number of lines, documents or values allowed in any file, regardless of its size.
_FREE = 1 << 20
_MEMORY_FILES = ("/proc/meminfo", "/sys/fs/cgroup/memory.max")


def at_line(path: Path, line: int, message: str) -> FileError:
    """Error for a 1-based line of a file."""
    return FileError(f"{path}, line {line}: {message}")


def excerpt(line: str | bytes, limit: int = 60) -> str:
    """Quotes a line for an error message. Longer lines are cut to ``limit`` characters."""
    text = line.decode("utf-8", "replace") if isinstance(line, bytes) else line
    text = text.strip()
    return repr(text if len(text) <= limit else text[: limit - 3] + "...")


def readable_bytes() -> int:
    """Default maximum number of bytes to read from a file: a third of the available memory.

    Linux reports the available memory. The limit of a container is a further bound. Elsewhere the
    available memory is assumed to be 8 GiB.
    """
    available = 8 << 30
    for name in _MEMORY_FILES:
        try:
            text = Path(name).read_text(encoding="ascii")
        except (OSError, ValueError):
            continue
        if name.endswith("max"):
            available = min(available, int(text)) if text.strip().isdecimal() else available
        elif "MemAvailable:" in text:
            available = 1024 * int(text.split("MemAvailable:")[1].split()[0])
    return available // 3


def unpacked_bytes(packed: int) -> int:
    """Default maximum size of a compressed file of ``packed`` bytes after unpacking.

    A small file of gigabytes after unpacking is damaged or hostile.
    """
    return _UNPACKED + _RATIO * max(0, packed - _SMALL)


def check_proportion(path: Path, number: int, what: str, bytes_each: int = 1) -> None:
    """Compares a number of things with the size of the file.

    Very many lines or values in a small compressed file take much time. They are a sign of a
    hostile file.

    Args:
        path: The file. Folders and pipes have an unknown size and may hold any number.
        number: Number of things read so far.
        what: Name of the things, in the plural.
        bytes_each: Minimum average size of a thing on disk, in bytes.

    Raises:
        FileError: The number is out of proportion.
    """
    if number <= _FREE:
        return
    about = os.stat(path)
    if stat.S_ISREG(about.st_mode) and number > _FREE + about.st_size // bytes_each:
        raise FileError(
            f"{path}: {number} {what} and more are out of proportion to its {about.st_size} bytes; "
            "check the file, or unpack it"
        )


def read_pieces(path: Path, max_bytes: float | None = None) -> Iterator[bytes]:
    """Yields the contents of a file in pieces. Files with the suffix ``.gz`` are unpacked.

    Args:
        path: A regular file, or a pipe below ``/dev`` such as ``/dev/stdin``.
        max_bytes: Maximum number of bytes, after unpacking. Defaults to ``readable_bytes()``. By
            default, and for infinity, ``unpacked_bytes`` also bounds compressed files.

    Raises:
        FileError: The file is missing, unreadable, truncated, too large, a pipe or a device.
    """
    limit = readable_bytes() if max_bytes is None else max_bytes
    try:
        with open_to_read(path) as file:
            zipped = path.suffix.lower() == ".gz"
            on_disk = os.fstat(file.fileno()).st_size
            if not zipped and on_disk > limit:
                raise too_large(path, limit)
            if zipped and max_bytes in (None, math.inf):
                limit = min(limit, unpacked_bytes(on_disk))
            source = gzip.GzipFile(fileobj=file) if zipped else file
            size = 0
            while piece := source.read(_PIECE):
                size += len(piece)
                if size > limit:
                    raise too_large(path, limit)
                yield piece
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable(path, error) from error


def read_text_pieces(
    path: Path, encoding: str = "utf-8", max_bytes: float | None = None
) -> Iterator[str]:
    r"""Yields the text of a file in pieces, with newlines as ``\n``. A byte-order mark is removed.

    Raises:
        FileError: See ``read_pieces``. The bytes are invalid in ``encoding``.
    """
    decoder = _decoder(path, encoding)
    start, lines, first, last_return = b"", 0, True, ""
    old_mac: bool | None = None
    for piece in itertools.chain(read_pieces(path, max_bytes), [b""]):
        start = start or piece[:2]
        try:
            text = decoder.decode(piece, final=not piece)
        except UnicodeError as error:
            raise _undecoded(path, encoding, error, lines, start) from error
        lines += piece.count(b"\n")
        if first and text:
            first = False
            text = text.removeprefix("\ufeff")
            if text.count("\0") > len(text) // 4:
                raise FileError(
                    f"{path}: not {encoding} text (every other character is NUL); pass the file's "
                    "encoding, which may be 'utf-16-le' or 'utf-16-be'"
                )
        text = last_return + text
        # Only files of old Macs end lines by a carriage return alone. A carriage return at the end
        # of a piece may have its newline in the next piece.
        if old_mac is None and ("\n" in text or "\r" in text[:-1] or not piece):
            old_mac = "\n" not in text
        last_return = "\r" if text.endswith("\r") and piece and not old_mac else ""
        text = text[: len(text) - len(last_return)]
        yield text.replace("\r", "\n") if old_mac else text.replace("\r\n", "\n")


def _undecoded(
    path: Path, encoding: str, error: UnicodeError, lines: int, start: bytes
) -> FileError:
    """Error for undecodable bytes after ``lines`` lines. ``start`` has the file's first bytes."""
    reason, before = str(error), 0
    if isinstance(error, UnicodeDecodeError):
        reason, before = error.reason, error.object.count(b"\n", 0, error.start)
    utf16 = start in (b"\xff\xfe", b"\xfe\xff")
    example = "which looks like 'utf-16'" if utf16 else "e.g. 'latin-1'"
    message = f"not {encoding} text ({reason}); pass the file's encoding, {example}"
    return at_line(path, lines + before + 1, message)


def _decoder(path: Path, encoding: str) -> codecs.IncrementalDecoder:
    """Decoder of bytes to text.

    Raises:
        FileError: The encoding is unknown, or encodes data other than text.
    """
    try:
        bytes(4).decode(encoding)  # refuses compressions and similar codecs
        return codecs.getincrementaldecoder(encoding)()
    except (LookupError, ValueError) as error:
        raise FileError(
            f"{path}: encoding {encoding!r} cannot be used ({error}); give a text encoding that "
            "knows, e.g. 'latin-1'"
        ) from error


def iterate_lines(
    path: Path, encoding: str = "utf-8", max_bytes: float | None = None
) -> Iterator[str]:
    """Yields the lines of a text file. A newline at the end is ignored.

    Raises:
        FileError: See ``read_text_pieces``. A line exceeds the memory, or the number of lines is
            out of proportion to the size of the file.
    """
    limit = readable_bytes()
    pending: list[str] = []
    size = num_lines = 0
    for piece in read_text_pieces(path, encoding, max_bytes):
        *lines, last = piece.split("\n")
        num_lines += len(lines)
        check_proportion(path, num_lines, "lines")
        if lines:
            lines[0] = "".join([*pending, lines[0]])
            pending, size = [], 0
            yield from lines
        pending.append(last)
        size += len(last)
        if size > limit:
            raise too_large(path, limit)
    if size:
        yield "".join(pending)


def read_bytes(path: Path, max_bytes: float | None = None) -> bytes:
    """Contents of a file; see ``read_pieces``."""
    return b"".join(read_pieces(path, max_bytes))


def read_text(path: Path, encoding: str = "utf-8", max_bytes: float | None = None) -> str:
    """Text of a file; see ``read_text_pieces``."""
    return "".join(read_text_pieces(path, encoding, max_bytes))


def read_lines(path: Path, encoding: str = "utf-8", max_bytes: float | None = None) -> list[str]:
    """Lines of a text file. A newline at the end is ignored."""
    return read_text(path, encoding, max_bytes).removesuffix("\n").split("\n")


def read_consistent(folder: Path, read: Callable[[Path], T]) -> T:
    """Read a folder while another process may replace it.

    ``read`` is called again if the folder was replaced during the call. Its result therefore comes
    from a single folder.

    Args:
        folder: The folder.
        read: Reads the files of the folder.

    Returns:
        The result of ``read``.

    Raises:
        FileError: The folder was replaced during every attempt.
    """
    for _ in range(_ATTEMPTS):
        with ExitStack() as stack:
            before = _identity(folder)
            with suppress(OSError):  # Windows refuses to open folders
                # The system reuses the number of a removed folder only after it is closed.
                descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
                stack.callback(os.close, descriptor)
                before = _identity(descriptor)
            try:
                result = read(folder)
            except Exception:
                if _identity(folder) == before:
                    raise
            else:
                if _identity(folder) == before:
                    return result
    raise FileError(f"{folder}: is replaced again and again while it is read; try again later")


def _identity(folder: Path | int) -> tuple[int, int] | None:
    try:
        status = os.stat(folder)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def open_to_read(path: Path) -> IO[bytes]:
    """Opens a regular file for reading. Pipes and devices could block or be endless.

    Raises:
        FileError: The file is missing, unreadable, a pipe or a device.
    """
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise FileError(f"{path}: is a folder; expected a file")
        piped = stat.S_ISFIFO(mode) and path.is_absolute() and path.parts[1] == "dev"
        if not stat.S_ISREG(mode) and not piped:
            kind = "a named pipe" if stat.S_ISFIFO(mode) else "a device or socket"
            raise FileError(
                f"{path}: is {kind}; save its output to a regular file, and read this file"
            )
        return open(path, "rb")
    except OSError as error:
        raise _unreadable(path, error) from error


def too_large(path: Path, limit: float) -> FileError:
    """Error for a file of more than ``limit`` bytes."""
    size = f"{limit / 2**30:.1f} GiB" if limit >= 1 << 28 else f"{limit:.0f} bytes"
    return FileError(
        f"{path}: holds more than {size} when read. This is the limit: by default a third of the "
        "available memory, and a multiple of its size for a compressed file. Check the file, "
        "unpack it, or raise max_bytes"
    )


def _unreadable(path: Path, error: Exception) -> FileError:
    if isinstance(error, FileError):
        return error
    if isinstance(error, FileNotFoundError):
        return FileError(f"{path}: no such file; check the path")
    return FileError(f"{path}: cannot be read, is it complete? ({error})")
