"""Checks of what a corpus is made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from torch_lntm.errors import CorpusError


def to_coo(matrix: Any) -> sp.coo_matrix:
    """Any matrix of numbers as coordinates, with its entries as they were given."""
    try:
        if isinstance(matrix, Tensor):
            matrix = _from_torch(matrix.detach().cpu())
        if not sp.issparse(matrix):
            matrix = np.asarray(matrix)
        elif hasattr(matrix, "check_format"):
            matrix.check_format(full_check=True)
    except ValueError as error:
        raise CorpusError(f"the matrix is malformed: {error}") from error
    if matrix.ndim != 2 or matrix.dtype.kind not in "biuf":
        raise CorpusError(
            "counts must be a matrix of numbers, documents by words, "
            f"got {matrix.ndim} dimensions of {matrix.dtype}"
        )
    return sp.coo_matrix(matrix)


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
    """The words as a tuple: all strings, all different, as many as there are columns."""
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


def check_labels(labels: Iterable[object] | None, num_docs: int) -> tuple[str, ...] | None:
    """The labels as a tuple of strings, one per document."""
    if labels is None:
        return None
    names = tuple(str(label) for label in labels)
    if len(names) != num_docs:
        raise CorpusError(f"expected one label for each of {num_docs} documents, got {len(names)}")
    return names


def check_texts(texts: Iterable[str]) -> Sequence[str]:
    """The texts as a list, all of them strings."""
    if isinstance(texts, (str, bytes)):
        raise CorpusError(
            "texts must be an iterable of strings, got a single text; wrap it: [text]"
        )
    texts = list(texts)
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise CorpusError(f"text {i} must be a string, got {type(text).__name__}")
    return texts
