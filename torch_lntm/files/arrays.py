"""Reads and writes plain arrays in ``.npz`` files, and refuses pickles."""

from __future__ import annotations

import math
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from torch_lntm.errors import FileError
from torch_lntm.files.reading import byte_limit, open_bytes, read_errors, too_large
from torch_lntm.files.writing import atomic_write


def read_arrays(
    path: Path, *names: str, optional: tuple[str, ...] = (), max_bytes: float | None = None
) -> dict[str, np.ndarray]:
    """Read some arrays of an ``.npz`` file. Never unpickles.

    Args:
        path: The file.
        *names: Required arrays.
        optional: Beginnings of the names of optional arrays. Further arrays of the file are
            ignored.
        max_bytes: Maximum number of bytes of these arrays in total; see ``byte_limit``.

    Raises:
        FileError: The file is missing, damaged or too large, holds Python objects, or lacks an
            array.
    """
    with (
        read_errors(path, "not a complete .npz file of plain arrays", Exception),
        open_bytes(path, math.inf) as (file, _),
        zipfile.ZipFile(file) as archive,
    ):
        limit = byte_limit(os.fstat(file.fileno()).st_size, max_bytes, packed=True)
        sizes = {x.filename.removesuffix(".npy"): x.file_size for x in archive.infolist()}
        if missing := [name for name in names if name not in sizes]:
            expected, found = ", ".join(names), ", ".join(sizes) or "none"
            message = f"expected the arrays {expected}, got {found}"
            raise FileError(f"{path}: {message}; missing {', '.join(missing)}")
        chosen = [name for name in sizes if name in names or name.startswith(optional)]
        if sum(sizes[name] for name in chosen) > limit:
            raise too_large(path, limit)
        file.seek(0)
        with np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in chosen}


def write_arrays(path: Path, **arrays: Any) -> None:
    """Writes a compressed ``.npz`` file of plain arrays atomically.

    Raises:
        FileError: The file cannot be written.
    """
    with atomic_write(path) as file:
        np.savez_compressed(file, **arrays)
