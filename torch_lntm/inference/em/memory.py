"""What an engine keeps of documents between its visits of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.budget import fits
from torch_lntm.corpus import DocumentBatch
from torch_lntm.inference.em.processes import Processes

#: The tables with rows for stored counts; all others have rows for documents.
ENTRY_TABLES = frozenset({"sites"})
#: The tables that every process has the rows of all documents of: all of them make the start.
WHOLE_TABLES = frozenset({"theta"})


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
        self._copies: dict[tuple[str, torch.device], Tensor] = {}

    def find(self, positions: Tensor) -> Tensor:
        """The rows of documents at some positions in the corpus, on the device of these."""
        if self._row_of is None:
            return positions
        return self._on("row_of", self._row_of, positions.device)[positions]

    def find_entries(self, positions: Tensor, num_entries: int) -> Tensor:
        """The rows of the stored counts of documents at some positions, on the device of these.

        Args:
            positions: ``(num_docs,)`` positions in the corpus.
            num_entries: Stored counts that these documents have.

        Returns:
            ``(num_entries,)``.
        """
        rows = self.find(positions)
        offsets = self._on("offsets", self._offsets, positions.device)
        return _ranges(offsets[rows], offsets[rows + 1], num_entries)

    def _on(self, name: str, array: NDArray[np.int64], device: torch.device) -> Tensor:
        """An array on a device, copied once."""
        if (name, device) not in self._copies:
            self._copies[name, device] = torch.tensor(array, device=device)
        return self._copies[name, device]

    def select(self, tables: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """These rows of the tables of a whole corpus."""
        if self._owned is None:
            return dict(tables)
        return {
            name: table if name in WHOLE_TABLES else table[self._positions(name)]
            for name, table in tables.items()
        }

    def collect(
        self, tables: Mapping[str, Tensor], processes: Processes, everywhere: bool = False
    ) -> dict[str, Tensor]:
        """The tables of the whole corpus on the CPU, of these rows and of the other processes'.

        Args:
            tables: This process's tables; the others have some of the same names.
            processes: The processes.
            everywhere: In all of them; else in the first one only.
        """
        if self._owned is None:
            return {name: table.cpu() for name, table in tables.items()}
        heights = len(self._corpus_offsets) - 1, int(self._corpus_offsets[-1])
        return {
            name: tables[name].cpu()
            if name in WHOLE_TABLES
            else processes.collect(
                tables[name].cpu(),
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
        starts, stops = (
            torch.from_numpy(self._corpus_offsets[self._owned + shift]) for shift in (0, 1)
        )
        return _ranges(starts, stops, self.num_entries)


def _ranges(starts: Tensor, stops: Tensor, total: int) -> Tensor:
    """The ``total`` numbers of some ranges, one after the other."""
    sizes = stops - starts
    shift = starts - (sizes.cumsum(0) - sizes)
    numbers = torch.arange(total, device=starts.device)
    return numbers + torch.repeat_interleave(shift, sizes, output_size=total)


def placed(tables: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Tables on a device, except those that are too large for it."""
    return {
        name: table.to(device) if fits(table.nbytes, device) else table
        for name, table in tables.items()
    }


class DocumentTables:
    """Tables with rows for documents, or for their stored counts.

    They are on the model's device, where reading and writing does not make the host wait, or, if
    too large for it, on the CPU. Rows are found by the documents' positions in the corpus, so that
    it does not matter in which order or with whom documents are visited.

    Args:
        tables: The tables by name; new ones appear when they are first written.
        rows: Which rows belong to which documents.
        device: The model's, which is that of the batches.
    """

    def __init__(self, tables: dict[str, Tensor], rows: DocumentRows, device: torch.device) -> None:
        self.tables = tables
        self._rows = rows
        self._device = device

    def __contains__(self, name: str) -> bool:
        return name in self.tables

    def read(self, name: str, batch: DocumentBatch) -> Tensor:
        """The rows of a batch's documents ``(num_docs, ...)`` or stored counts ``(nnz, ...)``."""
        table = self.tables[name]
        return table.index_select(0, self._places(name, batch, table)).to(self._device)

    def write(self, name: str, batch: DocumentBatch, rows: Tensor) -> None:
        """Write the rows of a batch's documents, or of its stored counts."""
        if name not in self.tables:
            height = self._rows.num_entries if name in ENTRY_TABLES else self._rows.num_docs
            self.add(name, rows.new_zeros(()).expand(height, *rows.shape[1:]))
        table = self.tables[name]
        table.index_copy_(0, self._places(name, batch, table), rows.to(table))

    def add(self, name: str, values: Tensor) -> None:
        """Add a table of given values, which may be an expanded tensor."""
        device = self._device
        numbers = values.numel() * values.element_size()
        home = device if fits(numbers, device) else torch.device("cpu")
        self.tables[name] = torch.empty(values.shape, dtype=values.dtype, device=home).copy_(values)

    def _places(self, name: str, batch: DocumentBatch, table: Tensor) -> Tensor:
        """The rows of a batch in a table, on the table's device."""
        # Positions on the CPU are known without waiting for a GPU.
        positions = batch.index if table.device == batch.device else batch.positions
        if name in WHOLE_TABLES:
            return positions
        if name in ENTRY_TABLES:
            return self._rows.find_entries(positions, batch.nnz)
        return self._rows.find(positions)
