"""Counts of documents: read from a corpus, expected, and drawn."""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np

from torch_lntm.kernels.numba_ops.blocks import (
    copy_words,
    words_log_likelihood,
    words_pass,
)
from torch_lntm.kernels.numba_ops.vectors import inlined, kernel


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


@kernel
def expected_counts(
    pad,
    weights,
    words,
    row_offsets,
    word_index,
    counts,
    log_likelihood,
    topic_counts,
    ratio,
    first,
    end,
):
    """Log likelihoods and expected counts of the documents ``first:end`` at weights t.

    Args:
        pad: Work space.
        weights: ``(num_docs, num_topics)`` t.
        words: ``(num_words, num_topics)`` topics by word.
        row_offsets: ``(num_docs + 1,)`` int64.
        word_index: ``(nnz,)`` int64.
        counts: ``(nnz,)``.
        log_likelihood: ``(num_docs,)`` float64, overwritten.
        topic_counts: ``(num_docs, num_topics)``, overwritten.
        ratio: ``(nnz,)`` counts divided by the words' probabilities, overwritten.
        first: First document.
        end: End of the documents.
    """
    rows, values, s, ratios, t, g, a, floor = pad
    begin = np.int64(0)
    for doc in range(first, end):
        i, j = row_offsets[doc], row_offsets[doc + 1]
        stop = copy_words(words, word_index[i:j], counts[i:j], rows, values, begin)
        for k in range(weights.shape[1]):
            t[k] = weights[doc, k]
        words_pass(rows, values, s, ratios, t, g, a, floor, begin, stop)
        for k in range(weights.shape[1]):
            topic_counts[doc, k] = weights[doc, k] * g[k]
        log_likelihood[doc] = words_log_likelihood(values, s, begin, j - i, a)
        for entry in range(i, j):
            ratio[entry] = ratios[entry - i]


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
