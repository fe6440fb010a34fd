"""Initial topics from anchor words.

An anchor word occurs in a single topic. Let the neighbours of a word be the other tokens of its
documents. The word frequencies among an ordinary word's neighbours are a mixture of those for
anchor words, so that anchor words are the corners of this set of mixtures (*Arora et al. 2013, A
practical algorithm for topic modeling with provable guarantees*). The neighbours of its anchor word
then give a first guess of a topic.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from torch_lntm.corpus import DocumentBatch

#: Number of candidates for each topic, and largest number of candidates. They are the words with
#: the most documents, because rarer words have few neighbours and look like corners by chance.
CANDIDATES, MAX_CANDIDATES = 5, 4000
#: Smallest squared distance of a corner from the span of earlier corners, as a share of the first.
MIN_DISTANCE = 1e-6
#: Number of words whose neighbours are counted at once.
BLOCK_WORDS = 32


def anchor_topics(
    batch: DocumentBatch, num_topics: int, known: Sequence[Sequence[int]] = ()
) -> NDArray[np.float64]:
    """Topics from the neighbours of anchor words.

    Args:
        batch: The documents.
        num_topics: Number of topics, at least 1.
        known: Words of further topics, which need no anchor words. The neighbours of anchor words
            differ from the neighbours of these words.

    Returns:
        ``(n, num_words)`` word probabilities. n is ``num_topics``, or less if the neighbours of
        fewer words differ.

    Example:
        >>> import torch
        >>> from torch_lntm.corpus import DocumentBatch
        >>> from torch_lntm.inference.em.anchors import anchor_topics
        >>> counts = torch.tensor([[2.0, 2, 0, 0], [3, 1, 0, 0], [0, 0, 1, 2], [0, 0, 2, 2]])
        >>> batch = DocumentBatch.from_csr(counts.to_sparse_csr())
        >>> (anchor_topics(batch, num_topics=2) > 0).astype(int).tolist()
        [[1, 1, 0, 0], [0, 0, 1, 1]]
    """
    csr = [x.cpu().numpy() for x in (batch.counts, batch.word_index, batch.row_offsets)]
    counts = sp.csr_matrix((csr[0].astype(np.float64), *csr[1:]), (batch.num_docs, batch.num_words))
    lengths = np.asarray(counts.sum(1), dtype=np.float64).ravel()
    counts, weights = counts[lengths > 1], 1.0 / (lengths[lengths > 1] - 1.0)
    frequency = np.bincount(counts.indices, minlength=batch.num_words)
    most = min(CANDIDATES * (len(known) + num_topics), MAX_CANDIDATES)
    candidates = np.sort(np.argsort(-frequency, kind="stable")[:most])
    of_known = [_neighbours(counts, weights, np.array(words)).sum(0) for words in known]
    own = _neighbours(counts[:, candidates], weights, np.arange(len(candidates)))
    points = _normalised(np.stack([*(row[candidates] for row in of_known), *own]))
    chosen = candidates[_corners(points, len(known), num_topics)]
    return _normalised(_neighbours(counts, weights, chosen))


def _neighbours(
    counts: sp.csr_matrix, weights: NDArray[np.float64], words: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Expected word counts of a random neighbour, summed over the tokens of each word.

    Args:
        counts: ``(num_docs, num_words)`` counts.
        weights: ``(num_docs,)`` inverse numbers of neighbours of a token.
        words: ``(n,)`` positions of the words.

    Returns:
        ``(n, num_words)``, nonnegative.
    """
    tokens = sp.csr_matrix(counts[:, words].multiply(weights[:, None]).T)
    neighbours = np.empty((len(words), counts.shape[1]))
    # The sparse product of all words takes more memory than the result.
    for first in range(0, len(words), BLOCK_WORDS):
        block = slice(first, first + BLOCK_WORDS)
        neighbours[block] = (tokens[block] @ counts).toarray()
    # A token is no neighbour of itself.
    neighbours[np.arange(len(words)), words] -= np.asarray(tokens.sum(1)).ravel()
    return np.maximum(neighbours, 0.0, out=neighbours)


def _normalised(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rows divided by their sums in place. Rows of zeros stay."""
    sums = rows.sum(1, keepdims=True)
    return np.divide(rows, np.where(sums > 0, sums, 1.0), out=rows)


def _corners(points: NDArray[np.float64], num_known: int, number: int) -> NDArray[np.int64]:
    """Find corners of a set of points, each as far as possible from the span of earlier corners.

    The distances are the pivots of a Cholesky factorisation, whose columns are computed as needed.

    Args:
        points: ``(num_known + n, dim)`` points. Rows of zeros are no corners.
        num_known: Number of known corners, in front.
        number: Largest number of further corners, at least 1.

    Returns:
        Positions of the further corners among the n points.
    """
    usable = np.asarray(points.any(axis=1))
    if not usable[num_known:].any():
        return np.zeros(0, np.int64)
    first = 0 if num_known else int(np.square(points).sum(1).argmax())
    points = points - points[first]
    squares = np.where(usable, np.square(points).sum(1), 0.0)
    least = MIN_DISTANCE * squares.max()
    factors = np.empty((num_known + number, len(points)))
    rank = 0

    def extend_span(corner: int) -> None:
        nonlocal rank
        column = points @ points[corner] - factors[:rank, corner] @ factors[:rank]
        factors[rank] = column / np.sqrt(squares[corner])
        squares[:] = np.maximum(squares - np.square(factors[rank]), 0.0)
        squares[corner] = 0.0
        rank += 1

    for corner in range(1, num_known):
        if squares[corner] > least:
            extend_span(corner)
    corners = [] if num_known else [first]
    while len(corners) < number:
        corner = num_known + int(squares[num_known:].argmax())
        if squares[corner] <= least:
            break
        extend_span(corner)
        corners.append(corner)
    return np.array(corners, np.int64) - num_known
