"""Files of a corpus: reading bytes and lines with errors that say where, writing atomically."""

from __future__ import annotations

import gzip
import os
import uuid
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from torch_lntm.errors import CorpusError


def at_line(path: Path, line: int, message: str) -> CorpusError:
    """The error for a 1-based line of a file."""
    return CorpusError(f"{path}, line {line}: {message}")


def excerpt(line: str | bytes, limit: int = 60) -> str:
    """A line quoted for an error message, cut to ``limit`` characters."""
    text = line.decode("utf-8", "replace") if isinstance(line, bytes) else line
    text = text.strip()
    return repr(text if len(text) <= limit else text[: limit - 3] + "...")


def read_bytes(path: Path) -> bytes:
    """The contents of a file, decompressed where its name ends in ``.gz``.

    Raises:
        CorpusError: The file is missing, unreadable or truncated.
    """
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except FileNotFoundError:
        raise CorpusError(f"{path}: no such file; check the path") from None
    except (OSError, EOFError, zlib.error) as error:
        raise CorpusError(f"{path}: cannot be read, is it complete? ({error})") from error


def read_text(path: Path, encoding: str = "utf-8") -> str:
    r"""The text of a file with newlines as ``\n`` and without a byte-order mark.

    Raises:
        CorpusError: As ``read_bytes``, and for bytes that are not text in ``encoding``.
    """
    data = read_bytes(path)
    try:
        text = data.decode(encoding)
    except LookupError as error:
        raise CorpusError(f"{path}: {error}; give one that Python knows, e.g. 'latin-1'") from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"not {encoding} text ({error.reason}); pass the file's encoding, e.g. 'latin-1'"
        raise at_line(path, line, message) from error
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


def read_lines(path: Path, encoding: str = "utf-8") -> list[str]:
    """The lines of a text file; a newline at the very end does not begin another line."""
    return read_text(path, encoding).removesuffix("\n").split("\n")


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """A binary file that appears under ``path`` only when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with open(temporary, "xb") as file:
            yield file
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_lines(path: Path, lines: Iterable[str], what: str) -> None:
    """Writes one item per line, atomically.

    Raises:
        CorpusError: An item holds a line break and would not read back as one line.
    """
    lines = list(lines)
    for i, line in enumerate(lines):
        if "\n" in line or "\r" in line:
            message = f"{what} {i} is {line!r}, with a line break; replace it before saving"
            raise CorpusError(f"{path}: {message}")
    with atomic_write(path) as file:
        file.write("".join(f"{line}\n" for line in lines).encode())


def write_arrays(path: Path, **arrays: Any) -> None:
    """Writes a compressed ``.npz`` of plain arrays, atomically."""
    with atomic_write(path) as file:
        np.savez_compressed(file, **arrays)


def read_arrays(path: Path, *names: str) -> dict[str, np.ndarray]:
    """The arrays of an ``.npz`` file, which must hold at least ``names``; never unpickles.

    Raises:
        CorpusError: The file is missing, damaged, holds Python objects, or lacks an array.
    """
    try:
        # Opened here because numpy does not close a damaged file.
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise CorpusError(f"{path}: no such file; check the path") from None
    except (
        AttributeError,  # from a bare .npy array, which is no context manager (TypeError from 3.11)
        TypeError,
        OSError,
        EOFError,
        ValueError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise CorpusError(f"{path}: not a complete .npz file of plain arrays ({error})") from error
    missing = [name for name in names if name not in arrays]
    if missing:
        message = f"expected the arrays {', '.join(names)}, got {', '.join(arrays) or 'none'}"
        raise CorpusError(f"{path}: {message}; missing {', '.join(missing)}")
    return arrays
