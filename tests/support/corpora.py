"""Small corpora for tests, and their counts as dense arrays."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from torch_lntm.corpus import Corpus, DocumentBatch

#: Three small documents in the formats of counts.
COUNTS = np.array([[2, 0, 1], [0, 0, 0], [0, 5, 0]])
WORDS = ("apple", "bee", "cat")
LDAC = "2 0:2 2:1\n0\n1 1:5\n"
UCI = "3\n3\n3\n1 1 2\n1 3 1\n3 2 5\n"
MTX = "%%MatrixMarket matrix coordinate integer general\n%\n3 3 3\n1 1 2\n1 3 1\n3 2 5\n"


def random_counts(
    num_docs: int = 50, num_words: int = 20, rate: float = 0.5, seed: int = 0
) -> np.ndarray:
    """Poisson counts ``(num_docs, num_words)``; document 4 is empty, 5 has a single token."""
    counts = np.random.default_rng(seed).poisson(rate, (num_docs, num_words))
    counts[4:6] = 0
    counts[5, 3] = 1
    return counts


def make_corpus(
    counts: Any = None, words: Any = True, labels: Any = True, **options: Any
) -> Corpus:
    """A corpus of the counts, or of random counts by the options of ``random_counts``.

    Words default to ``w0``, ``w1`` and so on, and labels to the documents' numbers. ``None``
    gives a corpus without them.
    """
    counts = random_counts(**options) if counts is None else np.asarray(counts)
    if words is True:
        words = [f"w{i}" for i in range(counts.shape[1])]
    if labels is True:
        labels = map(str, range(counts.shape[0]))
    metadata = None if labels is None else {"label": labels}
    return Corpus.from_matrix(counts, words, metadata=metadata)


def save_counts(corpus: Corpus, path: Path) -> None:
    """Write scipy's file of the counts, with the words and the labels beside it."""
    sp.save_npz(path, corpus.to_scipy())
    for name, lines in (("vocab", corpus.vocabulary), ("labels", corpus.labels)):
        if lines is not None:
            path.with_name(f"{path.stem}.{name}.txt").write_text("\n".join(lines) + "\n")


def dense(documents: Corpus | DocumentBatch) -> np.ndarray:
    """``(num_docs, num_words)`` counts, read entry by entry from the sparse arrays."""
    offsets, words, counts = (
        np.asarray(x.cpu() if hasattr(x, "cpu") else x)
        for x in (documents.row_offsets, documents.word_index, documents.counts)
    )
    out = np.zeros((documents.num_docs, documents.num_words))
    for d in range(documents.num_docs):
        for i in range(offsets[d], offsets[d + 1]):
            assert out[d, words[i]] == 0, "an entry occurs twice"
            assert counts[i] > 0
            out[d, words[i]] = counts[i]
    return out


def write(path: Path, text: str) -> Path:
    """Write a text file and its folders. A name that ends in .gz gives a gzipped file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode("utf-8", "surrogatepass")
    path.write_bytes(gzip.compress(data) if path.suffix.lower() == ".gz" else data)
    return path
