"""Mini-batches read from a corpus."""

# mypy: ignore-errors

from __future__ import annotations

from torch_lntm.kernels.numba_ops.vectors import kernel


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
            offsets ``(num_words + 1,)`` int64 of the words among them.

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
            if word < 0 or word + 1 >= len(word_offsets):
                return False
            words[at], values[at] = word, counts[entry]
            total += counts[entry]
            word_offsets[word + 1] += 1
            at += 1
        offsets[doc + 1], lengths[doc] = at, total
    for word in range(1, len(word_offsets)):
        word_offsets[word] += word_offsets[word - 1]
    for doc in range(len(rows)):
        for entry in range(offsets[doc], offsets[doc + 1]):
            place = word_offsets[words[entry]]
            order[place], doc_index[place] = entry, doc
            word_offsets[words[entry]] = place + 1
    # Every offset has moved to the end of its word, where the next word begins.
    for word in range(len(word_offsets) - 1, 0, -1):
        word_offsets[word] = word_offsets[word - 1]
    word_offsets[0] = 0
    return True
