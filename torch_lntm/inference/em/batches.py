"""Batches of a corpus for a fit, which visits all documents many times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from torch_lntm.budget import fits
from torch_lntm.corpus import Corpus, DocumentBatch


class CorpusBatches:
    """Batches on a model's device: on a GPU from a copy of the corpus there, if it has room.

    Then the host neither gathers the counts of every batch nor waits until they are copied.

    Args:
        corpus: The corpus.
        device: Device of the batches.
        dtype: Their floating-point type.
    """

    def __init__(self, corpus: Corpus, device: torch.device, dtype: torch.dtype) -> None:
        self._corpus, self._device, self._dtype = corpus, device, dtype
        # A word and a count each; covariates have few columns.
        size = corpus.nnz * (torch.int64.itemsize + dtype.itemsize)
        self._copied = device.type == "cuda" and fits(size, device)
        self._copy: DocumentBatch | None = None

    def of(self, parts: Iterable[NDArray[np.int64]]) -> Iterator[DocumentBatch]:
        """The documents at some positions, a batch for each array of positions."""
        if not self._copied:
            for rows in parts:
                yield self._corpus.batch(rows, device=self._device, dtype=self._dtype)
            return
        corpus, chosen = self._corpus, list(parts)
        if self._copy is None:
            self._copy = self._copied_corpus()
        # One copy of all positions: the host waits for each.
        places = torch.from_numpy(np.concatenate([*chosen, np.zeros(0, np.int64)]))
        sizes = np.diff(corpus.row_offsets)
        copies = places.to(self._device).split([len(rows) for rows in chosen])
        for rows, copy in zip(chosen, copies, strict=True):
            batch = self._copy.select(copy, num_entries=int(sizes[rows].sum()))
            # What the host would have to ask the GPU for.
            batch.__dict__["positions"] = torch.from_numpy(rows)
            batch.__dict__["num_tokens"] = float(corpus.lengths[rows].sum())
            yield batch

    def _copied_corpus(self) -> DocumentBatch:
        """All documents, copied part by part: the corpus may be larger than the host's memory."""
        corpus, device = self._corpus, self._device
        one = corpus.batch([0], device=device, dtype=self._dtype)
        word_index = one.word_index.new_empty(corpus.nnz)
        counts = one.counts.new_empty(corpus.nnz)
        for entries, rows in corpus.parts():
            word_index[entries].copy_(torch.tensor(rows.word_index, dtype=torch.int64))
            counts[entries].copy_(torch.tensor(rows.counts, dtype=self._dtype))
        return replace(
            one,
            row_offsets=torch.tensor(corpus.row_offsets, device=device),
            word_index=word_index,
            counts=counts,
            index=torch.arange(corpus.num_docs, device=device),
            covariates={
                name: torch.tensor(array).to(one.covariates[name])
                for name, array in corpus.batch_covariates.items()
            },
        )
