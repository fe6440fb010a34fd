"""Bounded reading of files, with the place in errors."""

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
from typing import IO, TypeVar

from torch_lntm.errors import FileError

T = TypeVar("T")

_PIECE = 1 << 20
_ATTEMPTS = 100
#: A compressed file of up to _SMALL bytes may unpack to _UNPACKED bytes, and each further byte to
#: _RATIO bytes.
_UNPACKED, _SMALL, _RATIO = 128 << 20, 10 << 20, 100
#: Maximum number of characters of a line or document. A long book has two million.
LONGEST = 16 << 20
#: Any compressed file may hold FREE lines or documents, larger files as many as they have bytes.
FREE = 1 << 20
_MEMORY_FILES = ("/proc/meminfo", "/sys/fs/cgroup/memory.max")


def at_line(path: Path, line: int, message: str) -> FileError:
    """Error for a 1-based line of a file."""
    return FileError(f"{path}, line {line}: {message}")


def excerpt(line: str, limit: int = 60) -> str:
    """Quotes a line for an error message. Longer lines are cut to ``limit`` characters."""
    text = line.strip()
    return repr(text if len(text) <= limit else text[: limit - 3] + "...")


def readable_bytes() -> int:
    """Default maximum number of bytes to read from a file: a third of the available memory.

    Linux reports the available memory. The limit of a container is a further bound. Elsewhere the
    available memory is assumed to be 8 GiB.
    """
    available = 8 << 30
    for name in _MEMORY_FILES:
        with suppress(OSError, ValueError):
            text = Path(name).read_text(encoding="ascii")
            if "MemAvailable:" in text:
                available = 1024 * int(text.split("MemAvailable:")[1].split()[0])
            elif name.endswith("max"):
                available = min(available, int(text))  # "max" is no number, and no limit
    return available // 3


def unpacked_bytes(packed: int) -> int:
    """Default maximum size of a compressed file of ``packed`` bytes after unpacking.

    A small file of gigabytes after unpacking is damaged or hostile.
    """
    return _UNPACKED + _RATIO * max(0, packed - _SMALL)


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


class _Bounded(io.RawIOBase):
    """The contents of an open file, up to a number of bytes."""

    def __init__(self, path: Path, file: IO[bytes], limit: float) -> None:
        self.path, self.file, self.limit, self.size = path, file, limit, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        piece = self.file.read(len(buffer))
        self.size += len(piece)
        if self.size > self.limit:
            raise too_large(self.path, self.limit)
        buffer[: len(piece)] = piece
        return len(piece)


@contextmanager
def open_bytes(path: Path, max_bytes: float | None = None) -> Iterator[io.BufferedReader]:
    """A context with the contents of a file. Files with the suffix ``.gz`` are unpacked.

    Args:
        path: A regular file, or a pipe below ``/dev`` such as ``/dev/stdin``.
        max_bytes: Maximum number of bytes, after unpacking. Defaults to ``readable_bytes()``. By
            default, and for infinity, ``unpacked_bytes`` also bounds compressed files.

    Raises:
        FileError: The file is missing, unreadable, truncated, too large, a pipe or a device.
    """
    limit = readable_bytes() if max_bytes is None else max_bytes
    with read_errors(path), open_to_read(path) as file:
        contents, on_disk = file, os.fstat(file.fileno()).st_size
        if path.suffix.lower() == ".gz":
            contents = gzip.GzipFile(fileobj=file)  # type: ignore[assignment]
            if max_bytes in (None, math.inf):
                limit = min(limit, unpacked_bytes(on_disk))
        elif on_disk > limit:
            raise too_large(path, limit)
        yield io.BufferedReader(_Bounded(path, contents, limit), _PIECE)


def _decoded(path: Path, data: bytes, encoding: str, errors: str = "strict") -> str:
    """The text of bytes.

    Raises:
        FileError: The bytes are invalid, or the encoding is unknown or of data other than text.
    """
    try:
        text = data.decode(encoding, errors)
    except UnicodeDecodeError as error:
        raise _undecoded(path, encoding, error, 0) from error
    except (LookupError, ValueError) as error:
        message = f"encoding {encoding!r} cannot be used ({error}); give one of texts: 'latin-1'"
        raise FileError(f"{path}: {message}") from error
    if text.count("\0") > len(text) // 4:
        raise FileError(
            f"{path}: not {encoding} text (every other character is NUL); pass the file's "
            "encoding, which may be 'utf-16-le' or 'utf-16-be'"
        )
    return text


def _undecoded(path: Path, encoding: str, error: UnicodeError, lines: int) -> FileError:
    """Error for undecodable bytes after ``lines`` lines."""
    data, start = getattr(error, "object", b""), getattr(error, "start", 0)
    guess = "looks like 'utf-16'" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "may be 'latin-1'"
    message = f"not {encoding} text ({error}); pass the file's encoding, which {guess}"
    return at_line(path, lines + data.count(b"\n", 0, start) + 1, message)


def iterate_lines(
    path: Path, encoding: str = "utf-8", max_bytes: float | None = None
) -> Iterator[str]:
    """Yields the lines of a text file. A newline at the end and a byte-order mark are ignored.

    Only files of old Macs, which have no newlines, end lines by a carriage return alone.

    Raises:
        FileError: See ``open_bytes``. The bytes are invalid in ``encoding``, a line has more than
            ``LONGEST`` characters, or a compressed file has more lines than bytes.
    """
    lines = 0
    with open_bytes(path, max_bytes) as file:
        most = FREE + path.stat().st_size if path.suffix.lower() == ".gz" else math.inf
        start = _decoded(path, file.peek(_PIECE), encoding, "ignore")
        end = "\r" if "\r" in start[:-1] and "\n" not in start else "\n"
        text = io.TextIOWrapper(file, encoding, newline=end)
        try:
            while line := text.readline(LONGEST):
                lines += 1
                if len(line) == LONGEST or lines > most:
                    problem = "more lines than bytes" if lines > most else f"{LONGEST} characters"
                    raise at_line(path, lines, f"has {problem} or more; divide the file")
                line = line.removesuffix(end).removesuffix("\r")
                yield line.removeprefix("\ufeff") if lines == 1 else line
        except UnicodeError as error:
            raise _undecoded(path, encoding, error, lines) from error


def read_bytes(path: Path, max_bytes: float | None = None) -> bytes:
    """Contents of a file; see ``open_bytes``."""
    with open_bytes(path, max_bytes) as file:
        return file.read()


def read_text(path: Path, encoding: str = "utf-8", max_bytes: float | None = None) -> str:
    r"""Text of a file, with lines that end by ``\n`` and without a byte-order mark.

    Raises:
        FileError: See ``open_bytes``. The bytes are invalid in ``encoding``.
    """
    text = _decoded(path, read_bytes(path, max_bytes), encoding).removeprefix("\ufeff")
    return text.replace("\r\n", "\n") if "\n" in text else text.replace("\r", "\n")


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
    with read_errors(path):
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


def too_large(path: Path, limit: float) -> FileError:
    """Error for a file of more than ``limit`` bytes."""
    size = f"{limit / 2**30:.1f} GiB" if limit >= 1 << 28 else f"{limit:.0f} bytes"
    return FileError(
        f"{path}: holds more than {size} when read. This is the limit: by default a third of the "
        "available memory, and a multiple of its size for a compressed file. Check the file, "
        "unpack it, or raise max_bytes"
    )
