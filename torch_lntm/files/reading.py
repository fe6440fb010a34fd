"""Reading of files, with errors that name the place."""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from torch_lntm.errors import FileError

T = TypeVar("T")

_PIECE = 1 << 20
_ATTEMPTS = 100


# -------------------------------------------------------------------- errors


def at_line(path: Path, line: int, message: str) -> FileError:
    """Error for a 1-based line of a file."""
    return FileError(f"{path}, line {line}: {message}")


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


# -------------------------------------------------------------------- bytes and text


@contextmanager
def open_bytes(path: Path) -> Iterator[io.BufferedReader]:
    """A context with the contents of a file. Files with the suffix ``.gz`` are unpacked.

    Raises:
        FileError: The file is missing, unreadable, truncated, or a folder.
    """
    with read_errors(path), open(path, "rb", buffering=_PIECE) as file:
        contents: Any = file
        if path.suffix.lower() == ".gz":
            unpacked: Any = gzip.GzipFile(fileobj=file)
            contents = io.BufferedReader(unpacked, _PIECE)
        yield contents


def read_bytes(path: Path) -> bytes:
    """Contents of a file; see ``open_bytes``."""
    with open_bytes(path) as file:
        return file.read()


def read_text(path: Path, encoding: str = "utf-8") -> str:
    r"""Text of a file: its lines (see :func:`iterate_lines`), joined by ``\n``."""
    return "\n".join(iterate_lines(path, encoding))


def read_lines(path: Path, encoding: str = "utf-8") -> list[str]:
    """Lines of a text file; see :func:`iterate_lines`."""
    return list(iterate_lines(path, encoding))


def iterate_lines(path: Path, encoding: str = "utf-8") -> Iterator[str]:
    """Yields the lines of a text file. A newline at the end and a byte-order mark are ignored.

    Args:
        path: The file. It may be gzipped.
        encoding: Encoding of the file.

    Raises:
        FileError: See ``open_bytes``. The bytes are invalid in ``encoding``.
    """
    lines = 0
    with open_bytes(path) as file:
        try:
            start = file.peek(_PIECE).decode(encoding, "ignore")
            end = "\r" if "\r" in start[:-1] and "\n" not in start else "\n"
            text = io.TextIOWrapper(file, encoding, newline=end)
            for line in text:
                lines += 1
                line = line.removesuffix(end).removesuffix("\r")
                yield line.removeprefix("\ufeff") if lines == 1 else line
        except (LookupError, UnicodeError) as error:
            # Of bytes that cannot be decoded, or of an encoding that cannot be used.
            data, wrong = getattr(error, "object", b""), getattr(error, "start", 0)
            advice = "pass the file's encoding, such as 'latin-1' or 'utf-16'"
            message = f"not {encoding} text ({error}); {advice}"
            raise at_line(path, lines + data.count(b"\n", 0, wrong) + 1, message) from error


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
