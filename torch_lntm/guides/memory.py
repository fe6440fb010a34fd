"""What is remembered of documents from one visit to the next."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_lntm.corpus import DocumentBatch
from torch_lntm.posteriors.posterior import WarmStartRows


class WarmStarts:
    """Where posteriors of documents ended, by the documents' positions in their corpus.

    Args:
        unit: What a warm start has a row for: ``"documents"`` or ``"entries"``, stored counts.
    """

    def __init__(self, unit: WarmStartRows) -> None:
        self._unit = unit
        self._kept: dict[int, tuple[float, Tensor]] = {}
        self._corpus_size = -1

    def read(self, batch: DocumentBatch) -> Tensor | None:
        """The warm start of a batch; None unless all of its documents have been seen.

        A document counts as seen if the one at its position had as many tokens: a guide that is
        called for another corpus starts afresh.
        """
        if batch.corpus_size != self._corpus_size:
            return None
        kept = [self._kept.get(position) for position in batch.index.tolist()]
        found = [
            rows
            for entry, length in zip(kept, batch.lengths.tolist(), strict=True)
            if entry is not None and entry[0] == length
            for rows in entry[1:]
        ]
        if not found or len(found) < batch.num_docs:
            return None
        start = torch.cat(found)
        expected = batch.num_docs if self._unit == "documents" else batch.nnz
        return start if len(start) == expected else None

    def write(self, batch: DocumentBatch, warm_start: Tensor) -> None:
        """Remember where the posteriors of a batch ended."""
        if batch.corpus_size != self._corpus_size:
            self._kept, self._corpus_size = {}, batch.corpus_size
        by_document = self._unit == "documents"
        sizes = [1] * batch.num_docs if by_document else batch.row_offsets.diff().tolist()
        rows = warm_start.detach().cpu().split(sizes)
        lengths = batch.lengths.tolist()
        for position, length, row in zip(batch.index.tolist(), lengths, rows, strict=True):
            self._kept[position] = (length, row)
