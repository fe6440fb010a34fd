"""Corpora in ``.npz`` files, and the form of metadata and covariates in files.

The metadata are a Parquet file, and the covariates are plain arrays of numbers.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp

from torch_lntm.corpus.metadata import Arrays, describe, make_covariates, make_metadata
from torch_lntm.errors import FileError
from torch_lntm.files.arrays import read_arrays, write_arrays
from torch_lntm.files.reading import read_errors
from torch_lntm.frames import is_default

#: Types of the columns of a Parquet file of metadata, by pandas. Others are converted.
_PARQUET_TYPES = {"bool", "float64", "int64", "str"}
#: Types of columns in files of version 1.
_KINDS: dict[str, Any] = {"bool": bool, "int": np.int64, "float": np.float64, "text": object}


def write_archive(path: Path, matrix: Any, table: pd.DataFrame, covariates: Arrays) -> None:
    """Writes an ``.npz`` file atomically, which plain NumPy reads with ``allow_pickle=False``.

    The counts are stored as scipy does, in ``data``, ``indices``, ``indptr`` and ``shape``. The
    array ``metadata`` holds the bytes of a Parquet file, and the covariates are laid out as in
    :func:`pack_covariates`.

    Args:
        path: The file.
        matrix: ``(num_docs, num_words)`` counts.
        table: A row of metadata for each document.
        covariates: Numeric arrays by name, with a row for each document.
    """
    metadata = to_parquet(table)
    arrays = {
        "data": matrix.data.astype(np.min_scalar_type(matrix.data.max(initial=0))),
        "indices": matrix.indices,
        "indptr": matrix.indptr.astype(np.int64),
        "shape": np.array(matrix.shape, np.int64),
    }
    if metadata is not None:
        arrays["metadata"] = np.frombuffer(metadata, np.uint8)
    write_arrays(path, **arrays, **pack_covariates(covariates))


def read_archive(
    path: Path, max_bytes: float | None = None
) -> tuple[sp.csr_matrix, pd.DataFrame | None, Arrays]:
    """Reads the ``.npz`` file of a corpus or of scipy's ``save_npz``.

    Returns:
        The counts, the metadata if there are any, and the covariates.

    Raises:
        FileError: The file is damaged or too large.
    """
    further = ("format", "metadata", "covariate", "documents")
    names = ("data", "indices", "indptr", "shape")
    arrays = read_arrays(path, *names, optional=further, max_bytes=max_bytes)
    matrix = _matrix(path, arrays)
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
    if not covariates:
        return {}
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


def _matrix(path: Path, arrays: dict[str, np.ndarray]) -> sp.csr_matrix:
    """The checked CSR matrix of the file. scipy's entry ``format`` is optional."""
    if str(arrays.get("format", np.array(b"csr")).astype("U")) != "csr":
        raise FileError(f"{path}: expected a CSR matrix, got {arrays['format']}; save .tocsr()")
    with read_errors(path, "the matrix is malformed; save it again", Exception):
        data, indices, indptr = arrays["data"], arrays["indices"], arrays["indptr"]
        if {indices.dtype.kind, indptr.dtype.kind, arrays["shape"].dtype.kind} - {"i", "u"}:
            raise ValueError("indices, indptr and shape must be integers")
        indices.setflags(write=False)  # a corpus copies writable arrays
        matrix = sp.csr_matrix((data, indices, indptr), tuple(arrays["shape"].tolist()))
        if indptr[-1] != data.size:
            raise ValueError(f"indptr ends with {indptr[-1]}, and there are {data.size} entries")
        return matrix
