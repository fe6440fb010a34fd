"""What an engine keeps of documents between its visits of them."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.corpus import DocumentBatch


class DocumentTables:
    """Tables on the CPU with rows for the documents of a corpus, or for their stored counts.

    Rows are found by ``batch.positions``, the documents' positions in the corpus, so that it does
    not matter in which order or with whom documents are visited.

    Args:
        tables: The tables by name; new ones appear when they are first written.
        row_offsets: ``(num_docs + 1,)`` the corpus's: document d's stored counts are
            ``row_offsets[d]:row_offsets[d + 1]``.
    """

    def __init__(self, tables: dict[str, Tensor], row_offsets: NDArray[np.int64]) -> None:
        self.tables = tables
        self._row_offsets = row_offsets

    def __contains__(self, name: str) -> bool:
        return name in self.tables

    def read(self, name: str, batch: DocumentBatch, device: torch.device) -> Tensor:
        """The rows ``(num_docs, ...)`` of a batch's documents."""
        return self.tables[name][batch.positions].to(device)

    def write(self, name: str, batch: DocumentBatch, rows: Tensor) -> None:
        """Write the rows of a batch's documents."""
        if name not in self.tables:
            shape = (len(self._row_offsets) - 1, *rows.shape[1:])
            self.tables[name] = torch.zeros(shape, dtype=rows.dtype)
        self.tables[name][batch.positions] = rows.to(self.tables[name])

    def read_entries(self, name: str, batch: DocumentBatch, device: torch.device) -> Tensor:
        """The rows ``(nnz, ...)`` of a batch's stored counts."""
        return self.tables[name][self._entries(batch)].to(device)

    def write_entries(self, name: str, batch: DocumentBatch, rows: Tensor) -> None:
        """Write the rows of a batch's stored counts."""
        if name not in self.tables:
            shape = (int(self._row_offsets[-1]), *rows.shape[1:])
            self.tables[name] = torch.zeros(shape, dtype=rows.dtype)
        self.tables[name][self._entries(batch)] = rows.to(self.tables[name])

    def _entries(self, batch: DocumentBatch) -> Tensor:
        """Positions in the corpus of a batch's stored counts ``(nnz,)``."""
        positions = batch.positions.numpy()
        starts = torch.from_numpy(self._row_offsets[positions])
        sizes = torch.from_numpy(self._row_offsets[positions + 1]) - starts
        before = sizes.cumsum(0) - sizes
        return torch.arange(int(sizes.sum())) + torch.repeat_interleave(starts - before, sizes)
