"""Corpora in ``.npz`` files: the arrays of a scipy CSR matrix, metadata and covariates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from torch_lntm.corpus.columns import (
    Arrays,
    FrozenDict,
    decode_metadata,
    encode_metadata,
    make_covariates,
)
from torch_lntm.errors import CorpusError, FileError
from torch_lntm.files import read_arrays, write_arrays


class Archive(NamedTuple):
    """Contents of a corpus's ``.npz`` file.

    Attributes:
        matrix: ``(num_docs, num_words)`` counts.
        metadata: Columns by name, with one value for each document.
        covariates: Numeric arrays by name, with one row for each document.
    """

    matrix: Any
    metadata: Arrays = FrozenDict()
    covariates: Arrays = FrozenDict()


def write_archive(path: Path, archive: Archive) -> None:
    """Writes an ``.npz`` file atomically. Plain NumPy reads the file, with ``allow_pickle=False``.

    The counts are the arrays ``data``, ``indices``, ``indptr`` and ``shape``. The metadata are JSON
    in ``documents``, an array of bytes: ``{"metadata": [{"name", "kind", "values"}, ...],
    "covariates": [name, ...]}``. A missing text is null. Covariate i is the array ``covariate_i``.
    """
    matrix = archive.matrix
    arrays = {
        "data": matrix.data.astype(np.min_scalar_type(matrix.data.max(initial=0))),
        "indices": matrix.indices,
        "indptr": matrix.indptr.astype(np.int64),
        "shape": np.array(matrix.shape, np.int64),
    }
    if archive.metadata or archive.covariates:
        arrays |= pack_documents(archive.metadata, archive.covariates)
    write_arrays(path, **arrays)


def read_archive(path: Path, max_bytes: float | None = None) -> Archive:
    """Reads the ``.npz`` file of a corpus or of scipy's ``save_npz``.

    Raises:
        FileError: The file is damaged or too large.
    """
    arrays = read_arrays(
        path,
        *("data", "indices", "indptr", "shape"),
        optional=("format", "documents"),
        max_bytes=max_bytes,
    )
    matrix = _matrix(path, arrays)
    if "documents" not in arrays:
        return Archive(matrix)
    about = unpack_documents(path, arrays["documents"], matrix.shape[0], max_bytes)
    return Archive(matrix, *about)


def pack_documents(metadata: Arrays, covariates: Arrays) -> dict[str, np.ndarray]:
    """Metadata and covariates as plain arrays; see ``write_archive``."""
    about = {"metadata": encode_metadata(metadata), "covariates": list(covariates)}
    documents = np.frombuffer(json.dumps(about).encode("ascii"), np.uint8)
    return {
        "documents": documents,
        **{f"covariate_{i}": values for i, values in enumerate(covariates.values())},
    }


def unpack_documents(
    path: Path, packed: np.ndarray, num_docs: int, max_bytes: float | None = None
) -> tuple[Arrays, Arrays]:
    """Inverse of ``pack_documents``: the metadata and the covariates.

    Args:
        path: The ``.npz`` file.
        packed: The array ``documents`` of the file.
        num_docs: Number of documents.
        max_bytes: Maximum number of bytes of the covariates.

    Raises:
        FileError: The file is damaged or too large.
    """
    try:
        about: Any = json.loads(packed.tobytes())
        metadata = decode_metadata(about["metadata"], num_docs)
        names = [str(name) for name in about["covariates"]]
        keys = [f"covariate_{i}" for i in range(len(names))]
        arrays = read_arrays(path, *keys, max_bytes=max_bytes)
        values = dict(zip(names, arrays.values(), strict=True))
        return metadata, make_covariates(values, num_docs)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, FileError):
            raise
        reason = error if isinstance(error, CorpusError) else f"metadata are damaged: {error}"
        raise FileError(f"{path}: {reason}; save the corpus again") from error


def _matrix(path: Path, arrays: dict[str, np.ndarray]) -> sp.csr_matrix:
    """The checked CSR matrix of the file. scipy's entry ``format`` is optional."""
    data, indices, indptr = arrays["data"], arrays["indices"], arrays["indptr"]
    if str(arrays.get("format", np.array(b"csr")).astype("U")) != "csr":
        raise FileError(f"{path}: expected a CSR matrix, got {arrays['format']}; save .tocsr()")
    if {indices.dtype.kind, indptr.dtype.kind, arrays["shape"].dtype.kind} - {"i", "u"}:
        raise FileError(f"{path}: indices, indptr and shape must be integers")
    if arrays["shape"].shape != (2,) or not indptr.size or indptr[-1] != data.size:
        raise FileError(
            f"{path}: expected a shape of two numbers and an indptr that ends with the number of "
            f"entries, got shape {arrays['shape'].tolist()}, indptr {indptr[-1:].tolist()} and "
            f"{data.size} entries"
        )
    indices.setflags(write=False)  # a corpus copies writable arrays
    try:
        return sp.csr_matrix((data, indices, indptr), arrays["shape"].tolist())
    except ValueError as error:
        raise FileError(f"{path}: the matrix is malformed: {error}") from error
