"""Plain arrays in ``.npz`` files, and the form of metadata and covariates in files.

The metadata are a Parquet file, and the covariates are plain arrays. Pickles are refused.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from torch_lntm.corpus.metadata import Arrays, make_covariates, make_metadata
from torch_lntm.errors import FileError
from torch_lntm.files.reading import open_bytes, read_errors
from torch_lntm.frames import is_default

#: Types of the columns of a Parquet file of metadata, by pandas. Others are converted.
_PARQUET_TYPES = {"bool", "float64", "int64", "str"}


def read_arrays(path: Path, *names: str, optional: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
    """Read some arrays of an ``.npz`` file. Never unpickles.

    Args:
        path: The file.
        *names: Required arrays.
        optional: Beginnings of the names of optional arrays. Further arrays of the file are
            ignored.

    Raises:
        FileError: The file is missing or damaged, holds Python objects, or lacks an array.
    """
    with (
        read_errors(path, "not a complete .npz file of plain arrays", Exception),
        open_bytes(path) as file,
        np.load(file, allow_pickle=False) as arrays,
    ):
        if missing := [name for name in names if name not in arrays]:
            expected, found = ", ".join(names), ", ".join(arrays) or "none"
            message = f"expected the arrays {expected}, got {found}"
            raise FileError(f"{path}: {message}; missing {', '.join(missing)}")
        chosen = [name for name in arrays if name in names or name.startswith(optional)]
        return {name: arrays[name] for name in chosen}


def to_parquet(frame: pd.DataFrame | None) -> bytes | None:
    """Metadata as the content of a Parquet file; ``None`` without columns and names.

    Names that Parquet cannot hold become text.
    """
    if frame is None or (not frame.shape[1] and is_default(frame.index)):
        return None
    index = frame.index
    is_plain = index.dtype.kind in "iufM" or pd.api.types.infer_dtype(index) == "string"
    file = io.BytesIO()
    # Parquet forgets the number of rows of a frame without columns.
    as_column = None if frame.shape[1] else True
    frame.set_axis(index if is_plain else index.map(str)).to_parquet(file, index=as_column)
    return file.getvalue()


def pack_covariates(covariates: Arrays) -> dict[str, Any]:
    """Covariates as plain arrays.

    Covariate i becomes the array ``covariate_i``, and ``covariates`` holds the bytes of a JSON list
    of their names.
    """
    names = np.frombuffer(json.dumps(list(covariates)).encode("ascii"), np.uint8)
    arrays = {f"covariate_{i}": array for i, array in enumerate(covariates.values())}
    return {"covariates": names, **arrays}


def read_covariates(path: Path, num_docs: int) -> Arrays:
    """Covariates from a file of the arrays of :func:`pack_covariates`.

    Raises:
        FileError: The file is damaged.
    """
    arrays = read_arrays(path, "covariates", optional=("covariate_",))
    with read_errors(path, "is damaged; save the corpus again", Exception):
        names = json.loads(arrays["covariates"].tobytes())
        named = {str(name): arrays[f"covariate_{i}"] for i, name in enumerate(names)}
        return make_covariates(named, num_docs)


def from_parquet(content: bytes, num_docs: int) -> pd.DataFrame:
    """Metadata from the content of a Parquet file; see :func:`to_parquet`."""
    frame = pd.read_parquet(io.BytesIO(content), engine="pyarrow")
    if len(frame) != num_docs or not {*map(str, frame.dtypes)} <= _PARQUET_TYPES:
        return make_metadata(frame, num_docs, frame.index)
    for name in frame.columns[frame.dtypes == "str"]:
        texts = frame[name].to_numpy(object, na_value=None)
        frame[name] = pd.Series(texts, frame.index, dtype=object)
    return frame
