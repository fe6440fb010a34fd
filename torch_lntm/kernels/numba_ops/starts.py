"""Steps of a start."""

# mypy: ignore-errors

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from torch_lntm.kernels.numba_ops.blocks import (
    aligned_zeros,
    copy_row,
    padded,
    place_of,
    words_log_likelihood,
    words_pass,
)
from torch_lntm.kernels.numba_ops.counts import word_sums
from torch_lntm.kernels.numba_ops.vectors import *

Array = Any


class Running(NamedTuple):
    """Topics of a start: φ_v = factor · row_v + shift, a row of running word counts each.

    Words with keywords have probabilities of their own, which are at least ``floor``:
    φ_v = allowed_v · (factor · row_v + shift + extra_v).

    Attributes:
        rows: ``(num_words, num_topics)``, overwritten.
        factor: ``(num_topics,)``.
        shift: ``(num_topics,)``.
        place: ``(num_words,)`` int64 row of a word in ``extra`` and ``allowed``, 0 for words
            without keywords; or empty.
        extra: ``(n, num_topics)``.
        allowed: ``(n, num_topics)``.
        floor: Least probability of a word.
    """

    rows: Array
    factor: Array
    shift: Array
    place: Array
    extra: Array
    allowed: Array
    floor: float


class Step(NamedTuple):
    """Documents of a step, and what it makes of them.

    Attributes:
        words: ``(n,)`` int64 positions of the words of all documents.
        row_offsets: ``(num_docs + 1,)`` int64.
        word_index: ``(nnz,)`` int64 positions in ``words``.
        counts: ``(nnz,)``.
        order: ``(nnz,)`` int64 entries, word by word, with ascending documents.
        doc_index: ``(nnz,)`` int64 documents of these entries.
        word_offsets: ``(n + 1,)`` int64.
        index: ``(num_docs,)`` int64 rows of the documents in ``table``.
        table: Proportions ``(.., num_topics)`` of all documents, updated.
        theta: ``(num_docs, num_topics)`` proportions before the last update, overwritten.
        tokens: ``(num_docs, num_topics)`` expected tokens at ``theta``, overwritten.
        ratio: ``(nnz,)`` counts divided by the words' probabilities at ``theta``, overwritten.
        value: ``(num_docs,)`` float64 log likelihood at ``theta``, overwritten.
    """

    words: Array
    row_offsets: Array
    word_index: Array
    counts: Array
    order: Array
    doc_index: Array
    word_offsets: Array
    index: Array
    table: Array
    theta: Array
    tokens: Array
    ratio: Array
    value: Array


class Pad(NamedTuple):
    """Work space of one thread for a document: the first arguments of :func:`words_pass`.

    Attributes:
        rows: Rows of a document's words; see :func:`_copy_row`.
        counts: Counts of these words.
        s: Their probabilities.
        ratio: Counts divided by the probabilities.
        theta: ``(width,)``.
        slope: ``(width,)``.
        concentration: As for :class:`Documents`; infinite.
        floor: As for :class:`Documents`.
    """

    rows: Array
    counts: Array
    s: Array
    ratio: Array
    theta: Array
    slope: Array
    concentration: float
    floor: float


def new_pad(longest: int, num_topics: int, floor: float, dtype: Any) -> Pad:
    """Work space for documents of at most ``longest`` different words."""
    width, height = padded(num_topics + 1), padded(longest)
    shapes: Any = (height // WIDTH, width * WIDTH), height, height, height, width, width
    return Pad(*(aligned_zeros(shape, dtype) for shape in shapes), math.inf, floor)


@inlined
def _copy_row(running, word, into, at):
    """Write the row of a word, and 1 behind it; for words with keywords, a row for φ_v and 0.

    Then t · (row, 1) is φ_v · θ for t = (factor · θ, shift · θ), so that rows need not be scaled.
    """
    row, num_topics, tile = running.rows[word], len(running.factor), at // WIDTH
    copy_row(row, into, at)
    into[tile, place_of(at, num_topics)] = 1
    if len(running.place) and running.place[word]:
        into[tile, place_of(at, num_topics)] = 0
        factor, shift, own = running.factor, running.shift, running.place[word]
        floor = into.dtype.type(running.floor)
        for k in range(num_topics):
            value = factor[k] * row[k] + shift[k] + running.extra[own, k]
            value *= running.allowed[own, k]
            into[tile, place_of(at, k)] = (floor if value < floor else value) / factor[k]


@inlined_in_any_order
def _dot(x, y):
    """Σ_k x_k y_k. Loops that also write add in another order where arrays are neighbours."""
    total = x.dtype.type(0)
    for k in range(len(x)):
        total += x[k] * y[k]
    return total


@inlined_in_any_order
def _sum_of(x):
    """Σ_k x_k, as :func:`_dot`."""
    total = x.dtype.type(0)
    for k in range(len(x)):
        total += x[k]
    return total


@inlined
def _updated_theta(running, theta, g, tokens, pseudo, new):
    """Write each topic's tokens at θ, and new proportions, from the slope g in these rows."""
    rest = g[len(theta)]
    for k in range(len(theta)):
        tokens[k] = theta[k] * (running.factor[k] * g[k] + running.shift[k] * rest)
        new[k] = tokens[k] + pseudo
    total = _sum_of(new)
    for k in range(len(theta)):
        new[k] /= total


@kernel
def start_documents(pad, running, step, sweeps, concentration, first, end):
    """Update the proportions of the documents ``first:end`` of a step.

    An update is θ ← (tokens + concentration) / its sum. The word counts belong to the proportions
    before the last update.

    Args:
        pad: Work space.
        running: :class:`Running`.
        step: :class:`Step`.
        sweeps: Number of updates, at least 1.
        concentration: Pseudo-tokens of each topic.
        first: First document.
        end: End of the documents.
    """
    rows, counts, s, ratio, t, g, a, floor = pad
    zero, pseudo = np.int64(0), t.dtype.type(concentration)
    for doc in range(first, end):
        begin, size = step.row_offsets[doc], step.row_offsets[doc + 1] - step.row_offsets[doc]
        stop = (size + WIDTH - 1) // WIDTH * WIDTH
        for at in range(stop):
            entry = begin + min(at, size - 1)
            _copy_row(running, step.words[step.word_index[entry]], rows, at)
            counts[at] = step.counts[entry] if at < size else 0
        own, new = step.theta[doc], step.table[step.index[doc]]
        for _ in range(sweeps):
            for k in range(len(own)):
                own[k] = new[k]
            # This goes with the rows of :func:`_copy_row`.
            for k in range(len(own)):
                t[k] = running.factor[k] * own[k]
            t[len(own)] = _dot(running.shift, own)
            words_pass(rows, counts, s, ratio, t, g, a, floor, zero, stop)
            _updated_theta(running, own, g, step.tokens[doc], pseudo, new)
        step.value[doc] = words_log_likelihood(counts, s, zero, stop, a)
        for at in range(size):
            step.ratio[begin + at] = ratio[at]


@kernel
def start_words(sums, running, step, weight, first, end):
    """Add ``weight`` times the word counts of a step to the rows of its words ``first:end``.

    ``sums`` ``(num_topics,)`` is overwritten.
    """
    factor, shift = running.factor, running.shift
    weight, floor = sums.dtype.type(weight), sums.dtype.type(running.floor)
    for i in range(first, end):
        word, at, stop = step.words[i], step.word_offsets[i], step.word_offsets[i + 1]
        word_sums(step.theta, step.order, step.doc_index, step.ratio, at, stop, sums)
        own = running.rows[word]
        if len(running.place) and running.place[word]:
            at = running.place[word]
            extra, allowed = running.extra[at], running.allowed[at]
            for k in range(len(sums)):
                phi = (factor[k] * own[k] + shift[k] + extra[k]) * allowed[k]
                own[k] += weight * (floor if phi < floor else phi) * sums[k]
        else:
            for k in range(len(sums)):
                own[k] += weight * (factor[k] * own[k] + shift[k]) * sums[k]
