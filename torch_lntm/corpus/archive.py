"""Plain arrays in ``.npz`` files, and the form of metadata and covariates in files.

The metadata are a Parquet file, and the covariates are plain arrays. Pickles are refused.
"""

from __future__ import annotations

import io
import json
import math
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp

from torch_lntm.corpus.metadata import Arrays, describe, make_covariates, make_metadata
from torch_lntm.errors import FileError
from torch_lntm.files.reading import byte_limit, open_bytes, read_errors, too_large
from torch_lntm.frames import is_default

#: Types of the columns of a Parquet file of metadata, by pandas. Others are converted.
_PARQUET_TYPES = {"bool", "float64", "int64", "str"}
#: Types of columns in files of version 1.
_KINDS: dict[str, Any] = {"bool": bool, "int": np.int64, "float": np.float64, "text": object}


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


def read_archive(
    path: Path, max_bytes: float | None = None
) -> tuple[sp.csr_matrix, pd.DataFrame | None, Arrays]:
    """Reads the ``.npz`` file of scipy's ``save_npz``, or of a corpus of version 1.

    Returns:
        The counts, the metadata if there are any, and the covariates.

    Raises:
        FileError: The file is damaged or too large.
    """
    names = ("data", "indices", "indptr", "shape")
    further = ("format", "metadata", "covariate", "documents")
    arrays = read_arrays(path, *names, optional=further, max_bytes=max_bytes)
    if str(arrays.get("format", np.array(b"csr")).astype("U")) != "csr":
        raise FileError(f"{path}: expected a CSR matrix, got {arrays['format']}; save .tocsr()")
    with read_errors(path, "the matrix is malformed; save it again", Exception):
        data, indices, indptr, shape = (arrays[name] for name in names)
        if {indices.dtype.kind, indptr.dtype.kind, shape.dtype.kind} - {"i", "u"}:
            raise ValueError("indices, indptr and shape must be integers")
        indices.setflags(write=False)  # a corpus copies writable arrays
        matrix = sp.csr_matrix((data, indices, indptr), tuple(shape.tolist()))
        if indptr[-1] != data.size:
            raise ValueError(f"indptr ends with {indptr[-1]}, and there are {data.size} entries")
    return matrix, *unpack_columns(path, arrays, matrix.shape[0])


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


def unpack_columns(
    path: Path, arrays: dict[str, np.ndarray], num_docs: int
) -> tuple[pd.DataFrame | None, Arrays]:
    """Metadata and covariates from the arrays of a file.

    Args:
        path: The file, for errors.
        arrays: ``metadata`` with the bytes of a Parquet file, and the covariates as in
            :func:`pack_covariates`. Version 1 has ``documents`` in place of ``metadata`` and
            ``covariates``, with the bytes of ``{"metadata": [{"name", "kind", "values"}, ...],
            "covariates": [name, ...]}``.
        num_docs: Number of documents.

    Raises:
        FileError: The arrays are damaged.
    """
    metadata = None
    with read_errors(path, "metadata or covariates are damaged; save the corpus again", Exception):
        if "metadata" in arrays:
            metadata = _from_parquet(arrays["metadata"].tobytes(), num_docs)
        covariates = json.loads(arrays["covariates"].tobytes()) if "covariates" in arrays else []
        if "documents" in arrays:
            about = json.loads(arrays["documents"].tobytes())
            old = {x["name"]: np.array(x["values"], _KINDS[x["kind"]]) for x in about["metadata"]}
            metadata, covariates = describe(None, num_docs, old), about["covariates"]
        named = {str(name): arrays[f"covariate_{i}"] for i, name in enumerate(covariates)}
        return metadata, make_covariates(named, num_docs)


def _from_parquet(content: bytes, num_docs: int) -> pd.DataFrame:
    """Metadata from the content of a Parquet file; see :func:`to_parquet`."""
    frame = pd.read_parquet(io.BytesIO(content), engine="pyarrow")
    if len(frame) != num_docs or not {*map(str, frame.dtypes)} <= _PARQUET_TYPES:
        return make_metadata(frame, num_docs, frame.index)
    for name in frame.columns[frame.dtypes == "str"]:
        texts = frame[name].to_numpy(object, na_value=None)
        frame[name] = pd.Series(texts, frame.index, dtype=object)
    return frame
