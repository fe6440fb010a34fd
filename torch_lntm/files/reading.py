"""Bounded reading of files, with errors that name the place."""

from __future__ import annotations

import gzip
import io
import math
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from torch_lntm.errors import FileError

T = TypeVar("T")

_PIECE = 1 << 20
_ATTEMPTS = 100
#: A compressed file of up to _SMALL bytes may unpack to _UNPACKED bytes, and each further byte to
#: _RATIO bytes.
_UNPACKED, _SMALL, _RATIO = 128 << 20, 10 << 20, 100
#: Maximum number of characters of a line or document. A long book has two million.
LONGEST = 16 << 20
#: Any compressed file may hold FREE lines, and a larger one as many as it has bytes.
FREE = 1 << 20
#: On Linux, the memory of a container in bytes.
_CONTAINER = Path("/sys/fs/cgroup/memory.max")


# -------------------------------------------------------------------- errors


def at_line(path: Path, line: int, message: str) -> FileError:
    """Error for a 1-based line of a file."""
    return FileError(f"{path}, line {line}: {message}")


def excerpt(line: str, limit: int = 60) -> str:
    """Quotes a line for an error message. Longer lines are cut to ``limit`` characters."""
    text = line.strip()
    return repr(text if len(text) <= limit else text[: limit - 3] + "...")


def too_large(path: Path | str, limit: float) -> FileError:
    """Error for a file of more than ``limit`` bytes."""
    size = f"{limit / 2**30:.1f} GiB" if limit >= 1 << 28 else f"{limit:.0f} bytes"
    return FileError(
        f"{path}: holds more than {size} when read. This is the limit: by default a third of the "
        "memory, and a multiple of its size for a compressed file. Check the file, unpack it, or "
        "raise max_bytes"
    )


@contextmanager
def read_errors(
    path: Path,
    what: str = "cannot be read, is it complete?",
    kinds: type[Exception] | tuple[type[Exception], ...] = (OSError, EOFError, zlib.error),
) -> Iterator[None]:
    """A context whose errors become a ``FileError`` with the path.

    Args:
        path: The file.
        what: What the errors mean.
        kinds: Errors to convert; ``Exception`` around another library.
    """
    try:
        yield
    except FileError:
        raise
    except FileNotFoundError as error:
        raise FileError(f"{path}: no such file; check the path") from error
    except kinds as error:
        raise FileError(f"{path}: {what} ({type(error).__name__}: {error})") from error


# -------------------------------------------------------------------- bounds


def byte_limit(on_disk: int, max_bytes: float | None, packed: bool) -> float:
    """Maximum number of bytes to read from a file of ``on_disk`` bytes.

    Args:
        on_disk: Size of the file.
        max_bytes: The user's maximum. Defaults to a third of the memory of the machine or the
            container; systems that do not tell theirs are taken to have 24 GiB.
        packed: Whether the file is compressed. By default, and for infinity, a multiple of its size
            bounds it too, because a small file that unpacks to gigabytes is damaged or hostile.
    """
    memory = 24 << 30
    if hasattr(os, "sysconf"):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # "max" is no number, and no limit
        memory = min(memory, int(_CONTAINER.read_text(encoding="ascii")))
    limit = memory // 3 if max_bytes is None else max_bytes
    if packed and max_bytes in (None, math.inf):
        return min(limit, _UNPACKED + _RATIO * max(0, on_disk - _SMALL))
    return limit


# -------------------------------------------------------------------- bytes and text


@contextmanager
def open_bytes(
    path: Path, max_bytes: float | None = None
) -> Iterator[tuple[io.BufferedReader, float]]:
    """A context with the contents of a file, and the number of bytes that may be read of them.

    Files with the suffix ``.gz`` are unpacked. Pipes and devices are refused, as they may never
    end.

    Args:
        path: A regular file, or a pipe below ``/dev`` such as ``/dev/stdin``.
        max_bytes: Maximum number of bytes, after unpacking; see :func:`byte_limit`.

    Raises:
        FileError: The file is missing, unreadable, truncated, too large, a folder, a pipe or a
            device.
    """
    packed = path.suffix.lower() == ".gz"
    with read_errors(path):
        mode = os.stat(path).st_mode
        piped = stat.S_ISFIFO(mode) and path.is_absolute() and path.parts[1] == "dev"
        if not stat.S_ISREG(mode) and not piped:
            raise FileError(
                f"{path}: is a folder, a named pipe or a device; expected a regular file"
            )
        with open(path, "rb", buffering=_PIECE) as file:
            on_disk = os.fstat(file.fileno()).st_size
            limit = byte_limit(on_disk, max_bytes, packed)
            if on_disk > limit:
                raise too_large(path, limit)
            contents: Any = file
            if packed:
                unpacked: Any = gzip.GzipFile(fileobj=file)
                contents = io.BufferedReader(unpacked, _PIECE)
            yield contents, limit


def read_bytes(path: Path, max_bytes: float | None = None) -> bytes:
    """Contents of a file; see ``open_bytes``."""
    with open_bytes(path, max_bytes) as (file, limit):
        contents = bytearray()
        while piece := file.read(_PIECE):
            contents += piece
            if len(contents) > limit:
                raise too_large(path, limit)
        return bytes(contents)


def read_text(path: Path, encoding: str = "utf-8", max_bytes: float | None = None) -> str:
    r"""Text of a file, with lines that end by ``\n`` and without a byte-order mark.

    Raises:
        FileError: See ``open_bytes``. The bytes are invalid in ``encoding``.
    """
    data = read_bytes(path, max_bytes)
    try:
        text = data.decode(encoding).removeprefix("\ufeff")
    except (LookupError, ValueError) as error:
        raise _undecoded(path, encoding, error, 0) from error
    return text.replace("\r\n", "\n") if "\n" in text else text.replace("\r", "\n")


def read_lines(path: Path, encoding: str = "utf-8", max_bytes: float | None = None) -> list[str]:
    """Lines of a text file. A newline at the end is ignored."""
    return read_text(path, encoding, max_bytes).removesuffix("\n").split("\n")


def iterate_lines(
    path: Path, encoding: str = "utf-8", max_bytes: float | None = None
) -> Iterator[str]:
    """Yields the lines of a text file. A newline at the end and a byte-order mark are ignored.

    Args:
        path: The file. It may be gzipped.
        encoding: Encoding of the file.
        max_bytes: As for ``open_bytes``.

    Raises:
        FileError: See ``open_bytes``. The bytes are invalid in ``encoding``, a line is too long, or
            a compressed file has more lines than bytes.
    """
    lines = size = 0
    with open_bytes(path, max_bytes) as (file, limit):
        most = FREE + path.stat().st_size if path.suffix.lower() == ".gz" else math.inf
        try:
            start = file.peek(_PIECE).decode(encoding, "ignore")
            end = "\r" if "\r" in start[:-1] and "\n" not in start else "\n"
            text = io.TextIOWrapper(file, encoding, newline=end)
            while line := text.readline(LONGEST + 1):
                lines, size = lines + 1, size + len(line)
                if size > limit:
                    raise too_large(path, limit)
                if len(line) > LONGEST or lines > most:
                    problem = "more lines than bytes" if lines > most else f"{LONGEST} characters"
                    raise at_line(path, lines, f"has {problem} or more; divide the file")
                line = line.removesuffix(end).removesuffix("\r")
                yield line.removeprefix("\ufeff") if lines == 1 else line
        except (LookupError, UnicodeError) as error:
            raise _undecoded(path, encoding, error, lines) from error


def _undecoded(path: Path, encoding: str, error: Exception, lines: int) -> FileError:
    """Error for undecodable bytes after ``lines`` lines, or for an unusable encoding."""
    data, start = getattr(error, "object", b""), getattr(error, "start", 0)
    line = lines + data.count(b"\n", 0, start) + 1
    message = f"not {encoding} text ({error}); pass the file's encoding, such as 'latin-1' or "
    return at_line(path, line, message + "'utf-16'")


def read_consistent(folder: Path, read: Callable[[Path], T]) -> T:
    """Read a folder while another process may replace it.

    If the folder was replaced during a call, ``read`` is called again, so that its result always
    comes from a single folder.

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
