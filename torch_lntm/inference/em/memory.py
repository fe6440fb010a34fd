"""What an engine keeps of documents between its visits of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.corpus import DocumentBatch
from torch_lntm.inference.em.processes import Processes

#: The tables with rows for stored counts; all others have rows for documents.
ENTRY_TABLES = frozenset({"sites"})


class DocumentRows:
    """Which rows of tables belong to which documents of a corpus, or to their stored counts.

    Tables have rows for all documents or, where several processes share a fit, for those that
    this process owns.

    Args:
        row_offsets: ``(num_docs + 1,)`` the corpus's: document d's stored counts are
            ``row_offsets[d]:row_offsets[d + 1]``.
        owned: Ascending positions in the corpus of the documents that have rows; all, if None.

    Attributes:
        num_docs: Rows of tables of documents.
        num_entries: Rows of tables of stored counts.
    """

    def __init__(
        self, row_offsets: NDArray[np.int64], owned: NDArray[np.int64] | None = None
    ) -> None:
        self._corpus_offsets, self._owned = row_offsets, owned
        self._offsets, self._row_of = row_offsets, None
        if owned is not None:
            sizes = np.diff(row_offsets)[owned]
            self._offsets = np.concatenate([[0], np.cumsum(sizes)])
            self._row_of = np.full(len(row_offsets) - 1, -1, dtype=np.int64)
            self._row_of[owned] = np.arange(len(owned))
        self.num_docs = len(self._offsets) - 1
        self.num_entries = int(self._offsets[-1])

    def find(self, positions: Tensor) -> Tensor:
        """The rows of documents at some positions in the corpus, on the CPU."""
        return positions if self._row_of is None else torch.from_numpy(self._row_of)[positions]

    def find_entries(self, positions: Tensor) -> Tensor:
        """The rows of the stored counts ``(nnz,)`` of documents at some positions, on the CPU."""
        rows = self.find(positions).numpy()
        return _ranges(self._offsets[rows], self._offsets[rows + 1])

    def select(self, tables: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """These rows of the tables of a whole corpus."""
        if self._owned is None:
            return dict(tables)
        return {name: table[self._positions(name)] for name, table in tables.items()}

    def collect(
        self, tables: Mapping[str, Tensor], processes: Processes, everywhere: bool = False
    ) -> dict[str, Tensor]:
        """The tables of the whole corpus, from these rows and those of the other processes.

        Args:
            tables: This process's tables; the others have some of the same names.
            processes: The processes.
            everywhere: In all of them; else in the first one only.
        """
        if self._owned is None:
            return dict(tables)
        heights = len(self._corpus_offsets) - 1, int(self._corpus_offsets[-1])
        return {
            name: processes.collect(
                tables[name],
                self._positions(name).numpy(),
                heights[name in ENTRY_TABLES],
                everywhere,
            )
            for name in sorted(tables)
        }

    def _positions(self, name: str) -> Tensor:
        """Where the rows of a table belong in the corpus's."""
        assert self._owned is not None
        if name not in ENTRY_TABLES:
            return torch.from_numpy(self._owned)
        offsets = self._corpus_offsets
        return _ranges(offsets[self._owned], offsets[self._owned + 1])


def _ranges(starts: NDArray[np.int64], stops: NDArray[np.int64]) -> Tensor:
    """The numbers of some ranges, one after the other."""
    first = torch.from_numpy(starts)
    sizes = torch.from_numpy(stops) - first
    before = sizes.cumsum(0) - sizes
    return torch.arange(int(sizes.sum())) + torch.repeat_interleave(first - before, sizes)


class DocumentTables:
    """Tables on the CPU with rows for documents, or for their stored counts.

    Rows are found by ``batch.positions``, the documents' positions in the corpus, so that it does
    not matter in which order or with whom documents are visited.

    Args:
        tables: The tables by name; new ones appear when they are first written.
        rows: Which rows belong to which documents.
    """

    def __init__(self, tables: dict[str, Tensor], rows: DocumentRows) -> None:
        self.tables = tables
        self._rows = rows

    def __contains__(self, name: str) -> bool:
        return name in self.tables

    def read(self, name: str, batch: DocumentBatch, device: torch.device) -> Tensor:
        """The rows ``(num_docs, ...)`` of a batch's documents."""
        return self.tables[name][self._rows.find(batch.positions)].to(device)

    def write(self, name: str, batch: DocumentBatch, rows: Tensor) -> None:
        """Write the rows of a batch's documents."""
        self._write(name, self._rows.find(batch.positions), rows, self._rows.num_docs)

    def read_entries(self, name: str, batch: DocumentBatch, device: torch.device) -> Tensor:
        """The rows ``(nnz, ...)`` of a batch's stored counts."""
        return self.tables[name][self._rows.find_entries(batch.positions)].to(device)

    def write_entries(self, name: str, batch: DocumentBatch, rows: Tensor) -> None:
        """Write the rows of a batch's stored counts; the name is one of ``ENTRY_TABLES``."""
        self._write(name, self._rows.find_entries(batch.positions), rows, self._rows.num_entries)

    def _write(self, name: str, places: Tensor, rows: Tensor, height: int) -> None:
        if name not in self.tables:
            self.tables[name] = torch.zeros((height, *rows.shape[1:]), dtype=rows.dtype)
        self.tables[name][places] = rows.to(self.tables[name])
