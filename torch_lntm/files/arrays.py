"""Plain arrays in ``.npz`` and ``.npy`` files: bounded reading. Pickles are refused."""

from __future__ import annotations

import math
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np

from torch_lntm.errors import FileError
from torch_lntm.files.reading import open_to_read, readable_bytes, too_large, unpacked_bytes
from torch_lntm.files.writing import atomic_write


def read_arrays(
    path: Path, *names: str, optional: Iterable[str] = (), max_bytes: float | None = None
) -> dict[str, np.ndarray]:
    """Read some arrays of an ``.npz`` file. Never unpickles.

    Args:
        path: The file.
        *names: Required arrays.
        optional: Optional arrays. Further arrays of the file are ignored.
        max_bytes: Maximum number of bytes of these arrays in total. Defaults to the lesser of
            ``readable_bytes()`` and half of ``unpacked_bytes``.

    Raises:
        FileError: The file is missing, damaged or too large, holds Python objects, or lacks an
            array.
    """
    limit = readable_bytes() if max_bytes is None else max_bytes
    try:
        with open_to_read(path) as file, zipfile.ZipFile(file) as archive:
            if max_bytes in (None, math.inf):  # arrays take more memory in use than texts
                limit = min(limit, unpacked_bytes(os.fstat(file.fileno()).st_size) // 2)
            available = [name.removesuffix(".npy") for name in archive.namelist()]
            missing = [name for name in names if name not in available]
            if missing:
                message = (
                    f"expected the arrays {', '.join(names)}, got {', '.join(available) or 'none'}"
                )
                raise FileError(f"{path}: {message}; missing {', '.join(missing)}")
            selected = [*names, *(name for name in optional if name in available)]
            sizes = [archive.getinfo(f"{name}.npy").file_size for name in selected]
            if sum(sizes) > limit:
                raise too_large(path, limit)
            return {
                name: _read_array(archive, f"{name}.npy", size)
                for name, size in zip(selected, sizes, strict=True)
            }
    except (
        OSError,
        EOFError,
        KeyError,
        ValueError,
        RuntimeError,  # encrypted, or of an unknown compression
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{path}: not a complete .npz file of plain arrays ({error})") from error


def read_header(file: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Read the header of an ``.npy`` file: the shape and the type.

    Raises:
        ValueError: The header is damaged or of an unknown version.
    """
    version = np.lib.format.read_magic(file)
    readers: dict[tuple[int, int], Callable[..., Any]] = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in readers:
        raise ValueError(f"the unknown version {version} of the format")
    try:
        shape, _, dtype = readers[version](file)
    except (SyntaxError, TokenError, IndexError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError(f"a damaged header: {error}") from error
    return shape, dtype


def _read_array(archive: zipfile.ZipFile, name: str, size: int) -> np.ndarray:
    """Read an array, after a comparison of the announced and the actual size."""
    with archive.open(name) as file:
        shape, dtype = read_header(file)
        if dtype.hasobject:
            raise ValueError(f"{name} holds Python objects")
        announced = math.prod(shape) * dtype.itemsize
        if announced != size - file.tell() or (announced == 0 and math.prod(shape) > 0):
            raise ValueError(f"{name} announces {announced} bytes and holds {size - file.tell()}")
    with archive.open(name) as file:
        array: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
    return array


def write_arrays(path: Path, **arrays: Any) -> None:
    """Writes a compressed ``.npz`` file of plain arrays atomically.

    Raises:
        FileError: The file cannot be written.
    """
    with atomic_write(path) as file:
        np.savez_compressed(file, **arrays)
