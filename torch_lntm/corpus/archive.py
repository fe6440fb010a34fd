"""Corpora in ``.npz`` files, and the form of metadata and covariates in files.

The metadata are a Parquet file, and the covariates are plain arrays of numbers.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy.sparse as sp

from torch_lntm.corpus.metadata import (
    Arrays,
    FrozenDict,
    describe,
    make_covariates,
    make_metadata,
)
from torch_lntm.errors import CorpusError, FileError
from torch_lntm.files.arrays import read_arrays, write_arrays
from torch_lntm.frames import is_default

#: Types of the columns of a Parquet file of metadata, by pandas. Others are converted.
_PARQUET_TYPES = {"bool", "float64", "int64", "str"}


class Archive(NamedTuple):
    """Contents of a corpus's ``.npz`` file.

    Attributes:
        matrix: ``(num_docs, num_words)`` counts.
        metadata: A row for each document; ``None`` if the file has none.
        covariates: Numeric arrays by name, with one row for each document.
    """

    matrix: Any
    metadata: Any = None
    covariates: Arrays = FrozenDict()


def write_archive(path: Path, archive: Archive) -> None:
    """Writes an ``.npz`` file atomically. Plain NumPy reads the file, with ``allow_pickle=False``.

    The counts are the arrays ``data``, ``indices``, ``indptr`` and ``shape``. The metadata are the
    bytes of a Parquet file in ``metadata``. The covariates are as in :func:`pack_covariates`.
    """
    matrix = archive.matrix
    arrays = {
        "data": matrix.data.astype(np.min_scalar_type(matrix.data.max(initial=0))),
        "indices": matrix.indices,
        "indptr": matrix.indptr.astype(np.int64),
        "shape": np.array(matrix.shape, np.int64),
    }
    if not is_bare(archive.metadata):
        arrays["metadata"] = np.frombuffer(to_parquet(archive.metadata), np.uint8)
    write_arrays(path, **arrays, **pack_covariates(archive.covariates))


def read_archive(path: Path, max_bytes: float | None = None) -> Archive:
    """Reads the ``.npz`` file of a corpus or of scipy's ``save_npz``.

    Raises:
        FileError: The file is damaged or too large.
    """
    arrays = read_arrays(
        path,
        *("data", "indices", "indptr", "shape"),
        optional=("format", "metadata", "covariates", "documents"),
        max_bytes=max_bytes,
    )
    matrix = _matrix(path, arrays)
    num_docs, metadata = matrix.shape[0], None
    if "documents" in arrays:
        return Archive(matrix, *read_json_columns(path, arrays["documents"], num_docs, max_bytes))
    if "metadata" in arrays:
        metadata = from_parquet(path, arrays["metadata"].tobytes(), num_docs)
    names = arrays.get("covariates")
    covariates = FrozenDict() if names is None else unpack_covariates(path, num_docs, max_bytes)
    return Archive(matrix, metadata, covariates)


def is_bare(metadata: pd.DataFrame | None) -> bool:
    """Whether metadata have neither columns nor names, so that no file needs them."""
    return metadata is None or (not metadata.shape[1] and is_default(metadata.index))


def to_parquet(frame: pd.DataFrame) -> bytes:
    """Metadata as the content of a Parquet file. Names that Parquet cannot hold become text."""
    index = frame.index
    is_plain = index.dtype.kind in "iufM" or pd.api.types.infer_dtype(index) == "string"
    file = io.BytesIO()
    # Parquet forgets the number of rows of a frame without columns.
    as_column = None if frame.shape[1] else True
    frame.set_axis(index if is_plain else index.map(str)).to_parquet(file, index=as_column)
    return file.getvalue()


def from_parquet(path: Path, content: bytes, num_docs: int) -> pd.DataFrame:
    """Metadata from the content of a Parquet file; see :func:`to_parquet`.

    Raises:
        FileError: The file is damaged, or has another number of rows.
    """
    try:
        frame = pd.read_parquet(io.BytesIO(content), engine="pyarrow")
        if len(frame) != num_docs or not {*map(str, frame.dtypes)} <= _PARQUET_TYPES:
            return make_metadata(frame, num_docs, frame.index)
        for name in frame.columns[frame.dtypes == "str"]:
            texts = frame[name].to_numpy(object, na_value=None)
            frame[name] = pd.Series(texts, frame.index, dtype=object)
        return frame
    except Exception as error:  # pyarrow raises errors of many kinds
        raise FileError(f"{path}: metadata are damaged: {error}; save the corpus again") from error


def pack_covariates(covariates: Arrays) -> dict[str, np.ndarray]:
    """Covariates as plain arrays.

    Covariate i is the array ``covariate_i``. The names are a JSON list in ``covariates``, an array
    of bytes.
    """
    if not covariates:
        return {}
    names = np.frombuffer(json.dumps(list(covariates)).encode("ascii"), np.uint8)
    arrays = {f"covariate_{i}": array for i, array in enumerate(covariates.values())}
    return {"covariates": names, **arrays}


def unpack_covariates(
    path: Path, num_docs: int, max_bytes: float | None = None, names: list[str] | None = None
) -> Arrays:
    """Covariates from an ``.npz`` file; see :func:`pack_covariates`.

    Args:
        path: The file.
        num_docs: Number of documents.
        max_bytes: Maximum number of bytes of the covariates.
        names: Their names. Defaults to those in the file.

    Raises:
        FileError: The file is damaged or too large.
    """
    try:
        if names is None:
            packed = read_arrays(path, "covariates", max_bytes=max_bytes)["covariates"]
            names = [str(name) for name in json.loads(packed.tobytes())]
        keys = [f"covariate_{i}" for i in range(len(names))]
        arrays = read_arrays(path, *keys, max_bytes=max_bytes)
        return make_covariates(dict(zip(names, arrays.values(), strict=True)), num_docs)
    except FileError:
        raise
    except (ValueError, TypeError, RecursionError) as error:
        raise FileError(f"{path}: {error}; save the corpus again") from error


def read_json_columns(
    path: Path, packed: np.ndarray, num_docs: int, max_bytes: float | None = None
) -> tuple[pd.DataFrame, Arrays]:
    """Metadata and covariates in the form of version 1, from the array ``documents``.

    The array has the bytes of ``{"metadata": [{"name", "kind", "values"}, ...],
    "covariates": [name, ...]}``.

    Raises:
        FileError: The file is damaged or too large.
    """
    kinds: dict[str, Any] = {"bool": bool, "int": np.int64, "float": np.float64, "text": object}
    try:
        about: Any = json.loads(packed.tobytes())
        columns = {
            column["name"]: np.fromiter(column["values"], kinds[column["kind"]])
            for column in about["metadata"]
        }
        metadata = describe(None, num_docs, columns)
        names = [str(name) for name in about["covariates"]]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        reason = error if isinstance(error, CorpusError) else f"metadata are damaged: {error}"
        raise FileError(f"{path}: {reason}; save the corpus again") from error
    return metadata, unpack_covariates(path, num_docs, max_bytes, names)


def _matrix(path: Path, arrays: dict[str, np.ndarray]) -> sp.csr_matrix:
    """The checked CSR matrix of the file. scipy's entry ``format`` is optional."""
    data, indices, indptr = arrays["data"], arrays["indices"], arrays["indptr"]
    if str(arrays.get("format", np.array(b"csr")).astype("U")) != "csr":
        raise FileError(f"{path}: expected a CSR matrix, got {arrays['format']}; save .tocsr()")
    try:
        if {indices.dtype.kind, indptr.dtype.kind, arrays["shape"].dtype.kind} - {"i", "u"}:
            raise ValueError("indices, indptr and shape must be integers")
        indices.setflags(write=False)  # a corpus copies writable arrays
        matrix = sp.csr_matrix((data, indices, indptr), tuple(arrays["shape"].tolist()))
        if indptr[-1] != data.size:
            raise ValueError(f"indptr ends with {indptr[-1]}, and there are {data.size} entries")
        return matrix
    except (ValueError, TypeError, IndexError) as error:
        raise FileError(f"{path}: the matrix is malformed: {error}; save it again") from error
