"""Checks of what a corpus is made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.corpus.columns import SURROGATE, is_frame
from torch_lntm.errors import CorpusError

MAX_COUNT = np.iinfo(np.int32).max
_PART = 1 << 20  # entries that are checked at once


def check_counts(matrix: Any, allow_empty: bool) -> sp.csr_matrix:
    """Turns any matrix of counts into a CSR matrix of positive, sorted, different entries.

    The matrix of counts may share its arrays with the one that was given.

    Raises:
        CorpusError: An entry is not a count, or there are no documents, no words or, where this is
            not allowed, no tokens.
    """
    given = _to_scipy_or_numpy(matrix)
    csr: sp.csr_matrix = given if _is_canonical(given) else _canonical(given)
    num_docs, num_words = csr.shape
    if not num_docs or not num_words or not (csr.nnz or allow_empty):
        raise CorpusError(
            f"the corpus is empty: {num_docs} documents, {num_words} words, 0 tokens; "
            "give at least one document with one word"
        )
    return csr


def how_to_count(given: Any) -> str | None:
    """Code that counts the words of texts which were given in the place of counts.

    Args:
        given: Documents of any kind.

    Returns:
        The code; None if these are no texts, or none that this function knows.
    """
    if is_frame(given) or isinstance(given, Mapping):
        columns = [name for name in given if _holds_texts(given[name])]
        text = "text" if "text" in columns else next(iter(columns), None)
        return text and f"Corpus.from_texts(table[{text!r}], metadata=table)"
    several = isinstance(given, (list, tuple)) or getattr(given, "ndim", 0) == 1
    first = next(iter(given), None) if several else None
    if isinstance(first, Mapping):
        return "Corpus.from_texts([record['text'] for record in records])"
    return "Corpus.from_texts(texts)" if isinstance(first, str) else None


def _holds_texts(column: Any) -> bool:
    several = isinstance(column, Iterable) and not isinstance(column, str)
    return several and isinstance(next(iter(column), None), str)


def _is_canonical(given: Any) -> bool:
    """Whether this is a CSR matrix of positive counts, sorted and different within each row."""
    matrix: Any = given if sp.issparse(given) else None
    if matrix is None or matrix.format != "csr":
        return False
    # Another object, because the given one may only claim to be sorted.
    arrays = (matrix.data, matrix.indices, matrix.indptr)
    return bool(sp.csr_matrix(arrays, matrix.shape).has_canonical_format) and all(
        not (part == 0).any() and not _no_counts(part).any()
        for part in np.array_split(matrix.data, 1 + matrix.data.size // _PART)
    )


def _no_counts(data: NDArray[Any]) -> NDArray[np.bool_]:
    """Which entries are not whole numbers from 0 up that a count can be."""
    # A NaN fails the first comparison, an infinity the last.
    bad = ~(data >= 0) | (data > MAX_COUNT)
    return bad | (data != np.floor(data)) if data.dtype.kind == "f" else bad


def _canonical(matrix: Any) -> sp.csr_matrix:
    """The counts of any matrix, added up and sorted."""
    coo = sp.coo_matrix(matrix)
    data = coo.data
    bad = _no_counts(data)
    if bad.any():
        i = int(np.flatnonzero(bad)[0])
        raise CorpusError(
            f"counts must be whole numbers from 0 to {MAX_COUNT}, got {data[i]} in document "
            f"{coo.row[i]}, word {coo.col[i]} (and {int(bad.sum()) - 1} more such entries); "
            "give raw counts, not weights such as tf-idf"
        )
    # tocsr adds up repeated entries and sorts those of a row.
    csr = sp.coo_matrix((data.astype(np.int64), (coo.row, coo.col)), coo.shape).tocsr()
    csr.eliminate_zeros()
    if csr.data.max(initial=0) > MAX_COUNT:
        raise CorpusError(f"a word's repeated entries add up to more than {MAX_COUNT} tokens")
    return csr


def _to_scipy_or_numpy(given: Any) -> Any:
    """Any matrix of numbers as a scipy matrix or an array, with its entries as they were given."""
    matrix = given
    try:
        if isinstance(matrix, Tensor):
            matrix = _from_torch(matrix.detach().cpu())
        elif is_frame(matrix):
            matrix = _from_frame(matrix)
        if not sp.issparse(matrix):
            matrix = np.asarray(matrix)
        elif hasattr(matrix, "check_format"):
            matrix.check_format(full_check=True)
    except ValueError as error:
        raise CorpusError(f"the matrix is malformed: {error}") from error
    if matrix.ndim != 2 or matrix.dtype.kind not in "biuf":
        how = how_to_count(given)
        raise CorpusError(
            "counts must be a matrix of numbers, documents by words, "
            f"got {matrix.ndim} dimensions of {matrix.dtype}"
            + (f"; count the words of texts by {how}" if how else "")
        )
    return matrix


def _from_frame(frame: Any) -> Any:
    """A pandas data frame as an array, or as a scipy matrix if all its columns are sparse."""
    if len(frame.columns) and all(type(dtype).__name__ == "SparseDtype" for dtype in frame.dtypes):
        return frame.sparse.to_coo()
    if all(dtype.kind in "biuf" for dtype in frame.dtypes):
        return frame.to_numpy(dtype=np.float64, na_value=np.nan)  # nullable integers too
    return frame.to_numpy()


def _from_torch(matrix: Tensor) -> Any:
    """A torch tensor as a NumPy array or scipy matrix."""
    if matrix.is_floating_point():
        matrix = matrix.double()  # NumPy has no bfloat16
    if matrix.layout == torch.strided:
        return matrix.numpy()
    if matrix.layout == torch.sparse_csr:
        # Not through torch's own conversions: they trust the indices, scipy checks them.
        values, columns = matrix.values().numpy(), matrix.col_indices().numpy()
        offsets = matrix.crow_indices().numpy()
        return sp.csr_matrix((values, columns, offsets), shape=(matrix.shape[0], matrix.shape[1]))
    matrix = matrix.to_sparse_coo()
    rows, columns = matrix._indices().numpy()
    return sp.coo_matrix((matrix._values().numpy(), (rows, columns)), matrix.shape)


def check_vocabulary(
    vocabulary: Iterable[str] | None, num_words: int | None
) -> tuple[str, ...] | None:
    """Returns the words as a tuple of different strings, one for each column.

    Raises:
        CorpusError: They are no list of such words.
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
        if not isinstance(word, str) or not word.strip():
            raise CorpusError(
                f"word {i} of the vocabulary must be a non-blank string, got {word!r}"
            )
        if SURROGATE.search(word):
            raise CorpusError(
                f"word {i} of the vocabulary is {word!r}, with half of a surrogate pair, which no "
                "file can hold; repair the text it comes from"
            )
    words = tuple(str(word) for word in words)  # numpy's strings become Python's
    if num_words is not None and len(words) != num_words:
        raise CorpusError(
            f"the vocabulary must have one word for each of the {num_words} columns, "
            f"got {len(words)}"
        )
    if len(set(words)) < len(words):
        seen: dict[str, int] = {}
        for i, word in enumerate(words):
            if seen.setdefault(word, i) != i:
                raise CorpusError(
                    f"the words of the vocabulary must differ, got {word!r} at positions "
                    f"{seen[word]} and {i}; add up their columns first"
                )
    return words
