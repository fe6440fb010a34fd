"""Counts of documents: read from a corpus, expected, and drawn."""

# mypy: ignore-errors

from __future__ import annotations

import math

from torch_lntm.kernels.numba_ops.blocks import words_log_likelihood
from torch_lntm.kernels.numba_ops.vectors import inlined, inlined_in_any_order, kernel


@kernel
def read(corpus, rows, batch):
    """Copy the entries of some documents, and sort them by word.

    Args:
        corpus: Offsets ``(corpus_size + 1,)`` int64 of the documents, and the words and the counts
            of all entries.
        rows: ``(num_docs,)`` int64 documents.
        batch: Overwritten. Offsets ``(num_docs + 1,)`` int64, words ``(nnz,)`` int64, counts
            ``(nnz,)`` and lengths ``(num_docs,)`` of the documents; entries ``(nnz,)`` int64, word
            by word, with ascending documents; documents ``(nnz,)`` int64 of these entries; and
            offsets ``(num_words + 1,)`` int64 of the words among them, and a place behind them.

    Returns:
        Whether all words are in the vocabulary. Nothing is sorted otherwise.
    """
    row_offsets, word_index, counts = corpus
    offsets, words, values, lengths, order, doc_index, word_offsets = batch
    word_offsets[:] = 0
    at = offsets[0] = 0
    for doc in range(len(rows)):
        total = 0.0
        for entry in range(row_offsets[rows[doc]], row_offsets[rows[doc] + 1]):
            word = word_index[entry]
            if word < 0 or word + 2 >= len(word_offsets):
                return False
            words[at], values[at] = word, counts[entry]
            total += counts[entry]
            word_offsets[word + 2] += 1
            at += 1
        offsets[doc + 1], lengths[doc] = at, total
    for place in range(2, len(word_offsets)):
        word_offsets[place] += word_offsets[place - 1]
    # The offset of a word's end is that of its next entry until all are there.
    for doc in range(len(rows)):
        for entry in range(offsets[doc], offsets[doc + 1]):
            place = word_offsets[words[entry] + 1]
            order[place], doc_index[place] = entry, doc
            word_offsets[words[entry] + 1] = place + 1
    return True


@inlined
def _add_rows(g, p0, p1, p2, p3, r0, r1, r2, r3):
    """Add r · p to g, in one order wherever the arrays lie in memory."""
    for k in range(len(g)):
        g[k] += r0 * p0[k] + r1 * p1[k] + r2 * p2[k] + r3 * p3[k]


@inlined_in_any_order
def _count_topics(words, index, counts, floor, t, s, g):
    """Probabilities s of a document's words, and Σ_v (c_v / s_v) φ_v, four words at a time."""
    zero, last = g.dtype.type(0), len(index) - 1
    for k in range(len(g)):
        g[k] = zero
    for i in range(0, len(index), 4):
        i1, i2, i3 = min(i + 1, last), min(i + 2, last), min(i + 3, last)
        p0, p1, p2, p3 = words[index[i]], words[index[i1]], words[index[i2]], words[index[i3]]
        s0 = s1 = s2 = s3 = zero
        for k in range(len(g)):
            s0 += p0[k] * t[k]
            s1 += p1[k] * t[k]
            s2 += p2[k] * t[k]
            s3 += p3[k] * t[k]
        # Unlike a maximum, this keeps a NaN.
        s0, s1 = floor if s0 < floor else s0, floor if s1 < floor else s1
        s2, s3 = floor if s2 < floor else s2, floor if s3 < floor else s3
        s[i], s[i1], s[i2], s[i3] = s0, s1, s2, s3
        r0, r1 = counts[i] / s0, counts[i1] / s1 if i1 > i else zero
        r2, r3 = counts[i2] / s2 if i2 > i1 else zero, counts[i3] / s3 if i3 > i2 else zero
        _add_rows(g, p0, p1, p2, p3, r0, r1, r2, r3)
    for k in range(len(g)):
        g[k] *= t[k]


@kernel
def expected_counts(
    weights,
    words,
    row_offsets,
    word_index,
    counts,
    floor,
    log_likelihood,
    topic_counts,
    s,
    first,
    end,
):
    """Log likelihoods and expected counts of the documents ``first:end`` at weights t.

    It reads the rows of the topics where they are, because it reads them only once.

    Args:
        weights: ``(num_docs, num_topics)`` t.
        words: ``(num_words, num_topics)`` topics by word.
        row_offsets: ``(num_docs + 1,)`` int64.
        word_index: ``(nnz,)`` int64.
        counts: ``(nnz,)``.
        floor: Least probability of a word.
        log_likelihood: ``(num_docs,)`` float64, overwritten.
        topic_counts: ``(num_docs, num_topics)``, overwritten.
        s: ``(nnz,)`` probabilities of the words, overwritten.
        first: First document.
        end: End of the documents.
    """
    least = words.dtype.type(floor)
    for doc in range(first, end):
        i, j = row_offsets[doc], row_offsets[doc + 1]
        t, g = weights[doc], topic_counts[doc]
        _count_topics(words, word_index[i:j], counts[i:j], least, t, s[i:j], g)
        log_likelihood[doc] = words_log_likelihood(counts, s, i, j, math.inf)


@inlined
def word_sums(weights, order, doc_index, ratio, at, stop, sums):
    """Sums Σ_d t_d c_dv / s_dv of the entries ``at:stop`` of a word."""
    zero = sums.dtype.type(0)
    for k in range(len(sums)):
        sums[k] = zero
    while at + 4 <= stop:
        t0, t1 = weights[doc_index[at]], weights[doc_index[at + 1]]
        t2, t3 = weights[doc_index[at + 2]], weights[doc_index[at + 3]]
        r0, r1 = ratio[order[at]], ratio[order[at + 1]]
        r2, r3 = ratio[order[at + 2]], ratio[order[at + 3]]
        for k in range(len(sums)):
            sums[k] += r0 * t0[k] + r1 * t1[k] + r2 * t2[k] + r3 * t3[k]
        at += 4
    for entry in range(at, stop):
        t, r = weights[doc_index[entry]], ratio[order[entry]]
        for k in range(len(sums)):
            sums[k] += r * t[k]


@kernel
def word_counts(weights, words, order, doc_index, word_offsets, ratio, result, first, end):
    """Expected tokens of the words ``first:end`` in each topic.

    Args:
        weights: ``(num_docs, num_topics)`` t.
        words: ``(num_words, num_topics)`` topics by word.
        order: ``(nnz,)`` int64 entries, word by word, with ascending documents.
        doc_index: ``(nnz,)`` int64 documents of these entries.
        word_offsets: ``(num_words + 1,)`` int64.
        ratio: ``(nnz,)`` counts divided by s.
        result: ``(num_words, num_topics)``, overwritten.
        first: First word.
        end: End of the words.
    """
    for word in range(first, end):
        own, phi = result[word], words[word]
        at, stop = word_offsets[word], word_offsets[word + 1]
        word_sums(weights, order, doc_index, ratio, at, stop, own)
        if at < stop:
            for k in range(len(own)):
                own[k] *= phi[k]


@kernel
def draw_topics(
    weights, words, order, doc_index, word_offsets, tokens, uniforms, sums, counts, first, end
):
    """Draw the topics of all tokens of the words ``first:end``, and count them.

    Args:
        weights: ``(num_docs, num_topics)`` proportions of the documents.
        words: ``(num_words, num_topics)`` topics by word.
        order: As for :func:`word_counts`, as are ``doc_index`` and ``word_offsets``.
        doc_index: See ``order``.
        word_offsets: See ``order``.
        tokens: ``(nnz + 1,)`` int64 offsets of the entries' tokens in ``uniforms``.
        uniforms: ``(num_tokens,)`` uniform numbers, one for each draw.
        sums: ``(num_topics,)`` work space.
        counts: ``(num_words, num_topics)`` float64, overwritten.
        first: First word.
        end: End of the words.
    """
    last = len(sums) - 1
    for word in range(first, end):
        phi, own = words[word], counts[word]
        for k in range(len(sums)):
            own[k] = 0.0
        for at in range(word_offsets[word], word_offsets[word + 1]):
            entry, t, total = order[at], weights[doc_index[at]], 0.0
            for k in range(len(sums)):
                total += t[k] * phi[k]
                sums[k] = total
            for token in range(tokens[entry], tokens[entry + 1]):
                k, u = 0, uniforms[token] * total
                while k < last and sums[k] < u:
                    k += 1
                own[k] += 1.0
