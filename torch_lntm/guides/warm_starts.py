"""WarmStarts: solutions of documents, remembered between visits."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_lntm.corpus import DocumentBatch
from torch_lntm.posteriors.posterior import WarmStartRows


class WarmStarts:
    """Solutions of documents' posteriors, by the documents' positions in their corpus.

    Args:
        kind: Rows of a warm start: ``"documents"``, or ``"entries"`` for stored counts.
    """

    def __init__(self, kind: WarmStartRows) -> None:
        self._kind = kind
        self._solutions: dict[int, tuple[float, Tensor]] = {}
        self._corpus_size = -1

    def read(self, batch: DocumentBatch) -> Tensor | None:
        """Warm start of a batch. ``None`` unless all its documents have been visited.

        A document counts as visited if the last document at its position had the same number of
        tokens. Solutions of a corpus of another size are ignored.
        """
        if batch.corpus_size != self._corpus_size:
            return None
        solutions = [self._solutions.get(position) for position in batch.index.tolist()]
        rows = [
            solution[1]
            for solution, length in zip(solutions, batch.lengths.tolist(), strict=True)
            if solution is not None and solution[0] == length
        ]
        if not rows or len(rows) < batch.num_docs:
            return None
        start = torch.cat(rows)
        expected = batch.num_docs if self._kind == "documents" else batch.nnz
        return start if len(start) == expected else None

    def write(self, batch: DocumentBatch, warm_start: Tensor) -> None:
        """Remember the solutions of a batch, and forget a corpus of another size."""
        if batch.corpus_size != self._corpus_size:
            self._solutions, self._corpus_size = {}, batch.corpus_size
        by_document = self._kind == "documents"
        sizes = [1] * batch.num_docs if by_document else batch.row_offsets.diff().tolist()
        rows = warm_start.detach().cpu().split(sizes)
        lengths = batch.lengths.tolist()
        for position, length, row in zip(batch.index.tolist(), lengths, rows, strict=True):
            self._solutions[position] = (length, row)
