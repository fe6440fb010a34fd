"""Checks of counts and vocabularies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.corpus.metadata import SURROGATE, listed
from torch_lntm.errors import CorpusError

MAX_COUNT = np.iinfo(np.int32).max
#: Advice for documents that are no counts.
ADVICE = (
    "texts go to Corpus.from_texts(texts), data frames and lists of dicts with a column of texts "
    "to Corpus.from_frame(frame, text=name), and files to read_corpus(path)"
)


def check_counts(matrix: Any, allow_empty: bool) -> sp.csr_matrix:
    """Converts any matrix of counts to a CSR matrix of positive, sorted, distinct entries.

    The result may share arrays with ``matrix``.

    Args:
        matrix: Counts, as for ``Corpus.from_matrix``.
        allow_empty: Accept a matrix of zeros.

    Raises:
        CorpusError: An entry is an invalid count, or the matrix is empty.
    """
    numbers = _to_scipy_or_numpy(matrix)
    csr: sp.csr_matrix = numbers if _is_canonical(numbers) else _canonical(numbers)
    num_docs, num_words = csr.shape
    if not num_docs or not num_words or not (csr.nnz or allow_empty):
        raise CorpusError(
            f"the corpus is empty: {num_docs} documents, {num_words} words, 0 tokens; "
            "give at least one document with one word"
        )
    return csr


def _is_canonical(matrix: Any) -> bool:
    """Whether ``matrix`` is CSR with positive counts, sorted and distinct within each row."""
    if not sp.issparse(matrix) or getattr(matrix, "format", "") != "csr":
        return False
    csr: Any = matrix
    # A new object checks its arrays, whereas the flags of ``matrix`` itself may be wrong.
    arrays = (csr.data, csr.indices, csr.indptr)
    is_sorted = sp.csr_matrix(arrays, csr.shape).has_canonical_format
    return bool(is_sorted and (csr.data != 0).all() and not _invalid_counts(csr.data).any())


def _invalid_counts(data: NDArray[Any]) -> NDArray[np.bool_]:
    """Mask of the entries other than whole numbers from 0 to ``MAX_COUNT``."""
    # The first comparison finds NaN, the second infinity.
    bad = ~(data >= 0) | (data > MAX_COUNT)
    return bad | (data != np.floor(data)) if data.dtype.kind == "f" else bad


def _canonical(matrix: Any) -> sp.csr_matrix:
    """CSR matrix of counts with sorted entries. Repeated entries are added up."""
    coo = sp.coo_matrix(matrix)
    data = coo.data
    bad = _invalid_counts(data)
    if bad.any():
        i = int(np.flatnonzero(bad)[0])
        raise CorpusError(
            f"counts must be whole numbers from 0 to {MAX_COUNT}, got {data[i]} in document "
            f"{coo.row[i]}, word {coo.col[i]}, counted from 0 (and {int(bad.sum()) - 1} more such "
            "entries); give raw counts, not weights such as tf-idf"
        )
    # tocsr adds up repeated entries and sorts each row.
    csr = sp.coo_matrix((data.astype(np.int64), (coo.row, coo.col)), coo.shape).tocsr()
    csr.eliminate_zeros()
    if csr.data.max(initial=0) > MAX_COUNT:
        raise CorpusError(f"a word's repeated entries add up to more than {MAX_COUNT} tokens")
    return csr


def _to_scipy_or_numpy(documents: Any) -> Any:
    """Any matrix of numbers as a scipy matrix or an array with unchanged entries."""
    matrix = documents
    try:
        if isinstance(matrix, Tensor):
            matrix = _from_torch(matrix.detach().cpu())
        elif isinstance(matrix, pd.DataFrame):
            matrix = _from_frame(matrix)
        if not sp.issparse(matrix):
            matrix = np.asarray(matrix)
        elif hasattr(matrix, "check_format"):
            matrix.check_format(full_check=True)
    except ValueError as error:
        raise CorpusError(f"the matrix is malformed: {error}") from error
    if matrix.ndim != 2 or matrix.dtype.kind not in "biuf":
        raise CorpusError(
            "counts must be a matrix of numbers, documents by words, got "
            f"a {type(documents).__name__}, {matrix.ndim} dimensions of {matrix.dtype}; {ADVICE}"
        )
    return matrix


def _from_frame(frame: pd.DataFrame) -> Any:
    """A pandas data frame as a scipy matrix if all columns are sparse, else as an array."""
    if len(frame.columns) and all(isinstance(x, pd.SparseDtype) for x in frame.dtypes):
        return frame.sparse.to_coo()
    if all(dtype.kind in "biuf" for dtype in frame.dtypes):
        return frame.to_numpy(dtype=np.float64, na_value=np.nan)  # includes nullable integers
    return frame.to_numpy()


def _from_torch(matrix: Tensor) -> Any:
    """A torch tensor as a NumPy array or a scipy matrix."""
    if matrix.is_floating_point():
        matrix = matrix.double()  # NumPy has no bfloat16
    if matrix.layout == torch.strided:
        return matrix.numpy()
    if matrix.layout == torch.sparse_csr:
        # scipy checks the indices, whereas torch's own conversions trust them.
        values, columns = matrix.values().numpy(), matrix.col_indices().numpy()
        offsets = matrix.crow_indices().numpy()
        return sp.csr_matrix((values, columns, offsets), shape=(matrix.shape[0], matrix.shape[1]))
    matrix = matrix.to_sparse_coo()
    return sp.coo_matrix((matrix._values().numpy(), tuple(matrix._indices().numpy())), matrix.shape)


def check_vocabulary(
    vocabulary: Iterable[str] | None, num_words: int | None
) -> tuple[str, ...] | None:
    """Returns the vocabulary as a tuple of distinct strings in the order of the columns.

    Args:
        vocabulary: The words; ``None`` is returned unchanged.
        num_words: Expected number of words; ``None`` accepts any number.

    Raises:
        CorpusError: The words are in an unordered collection, a word is blank, repeated or of
            another type, or the number of words is wrong.
    """
    if vocabulary is None:
        return None
    if isinstance(vocabulary, (str, bytes, Mapping, Set)):
        raise CorpusError(
            "the vocabulary must list the words in the order of the columns, got a "
            f"{type(vocabulary).__name__} (of a CountVectorizer, pass get_feature_names_out())"
        )
    words = tuple(vocabulary)
    for i, word in enumerate(words):
        if not isinstance(word, str) or not word.strip() or SURROGATE.search(word):
            raise CorpusError(
                f"word {i} of the vocabulary must be a non-blank string without half of a "
                f"surrogate pair, got {word!r}"
            )
    words = tuple(map(str, words))  # numpy's strings become Python's
    if num_words is not None and len(words) != num_words:
        raise CorpusError(
            f"the vocabulary must have one word for each of the {num_words} columns, got "
            f"{len(words)}"
        )
    if repeated := [repr(word) for word, times in Counter(words).items() if times > 1]:
        raise CorpusError(
            f"the words of the vocabulary must differ, got {listed(repeated)} more than once; add "
            "up their columns first"
        )
    return words


def check_order(words: Iterable[str] | None, columns: Iterable[Any]) -> None:
    """Refuses a vocabulary with the names of a frame's columns in another order.

    Raises:
        CorpusError: The vocabulary has this fault.
    """
    given, names = list(words or ()), list(columns)
    if given != names and {*given} == {*names}:
        word, column = next(pair for pair in zip(given, names, strict=True) if len({*pair}) > 1)
        raise CorpusError(
            f"expected the vocabulary in the order of the frame's columns, got {word!r} for the "
            f"column {column!r}; give frame[vocabulary], or leave the vocabulary out"
        )
