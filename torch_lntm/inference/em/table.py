"""Table of documents: tensors by name, with a row for each document or each stored count."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.budget import fits
from torch_lntm.corpus import DocumentBatch

#: Tensors with rows for stored counts. All other tensors have rows for documents.
ENTRY_TABLES = frozenset({"sites"})


class DocumentTable:
    """Tensors by name, with rows for some documents, or for their stored counts.

    It holds all that a fit knows of its documents: means, warm starts and chains. Rows are found by
    the position of a document in the whole corpus, so that any batch can read what another has
    written, in whichever process. Tensors are on the model's device, because the host then need not
    wait for their values, or on the CPU if they are too large for the device.

    Args:
        index: ``(num_docs,)`` ascending positions of the documents in the whole corpus.
        offsets: ``(num_docs + 1,)`` offsets of the documents' stored counts.
        device: Device of the model and of the batches.

    Attributes:
        index: See the arguments.
        offsets: See the arguments.
        tensors: The tensors. :meth:`write` adds a tensor if the name is new.
    """

    def __init__(
        self, index: NDArray[np.int64], offsets: NDArray[np.int64], device: torch.device
    ) -> None:
        self.index, self.offsets, self.device = index, offsets, device
        self.tensors: dict[str, Tensor] = {}
        first, last = (int(index[0]), int(index[-1])) if len(index) else (0, -1)
        self._first, self._row_of = first, None
        if last - first + 1 > len(index):
            # Of other documents the row is -1, which no tensor has.
            self._first, self._row_of = 0, np.full(last + 1, -1, dtype=np.int64)
            self._row_of[index] = np.arange(len(index))
        self._copies: dict[tuple[str, torch.device], Tensor] = {}

    def read(self, name: str, batch: DocumentBatch) -> Tensor:
        """Rows of a batch's documents ``(num_docs, ...)`` or stored counts ``(nnz, ...)``."""
        tensor = self.tensors[name]
        return tensor.index_select(0, self._rows_of(name, batch, tensor)).to(self.device)

    def write(self, name: str, batch: DocumentBatch, rows: Tensor) -> None:
        """Write rows of a batch's documents, or of its stored counts."""
        if name not in self.tensors:
            zeros = rows.new_zeros(()).expand(self._height(name), *rows.shape[1:])
            self.tensors[name] = new_table(zeros, self.device)
        tensor = self.tensors[name]
        tensor.index_copy_(0, self._rows_of(name, batch, tensor), rows.to(tensor))

    def _rows_of(self, name: str, batch: DocumentBatch, tensor: Tensor) -> Tensor:
        """Row numbers of a batch in a tensor, on the tensor's device."""
        # batch.positions is on the CPU, and reading it needs no wait for a GPU.
        rows = batch.index if tensor.device == batch.device else batch.positions
        rows = rows - self._first if self._first else rows
        if self._row_of is not None:
            rows = self._on("row_of", self._row_of, rows.device)[rows]
        if name not in ENTRY_TABLES:
            return rows
        offsets = self._on("offsets", self.offsets, rows.device)
        return _ranges(offsets[rows], offsets[rows + 1], batch.nnz)

    def _on(self, name: str, array: NDArray[np.int64], device: torch.device) -> Tensor:
        """Array on a device. The copy is made once."""
        if (name, device) not in self._copies:
            self._copies[name, device] = torch.tensor(array, device=device)
        return self._copies[name, device]

    def _height(self, name: str) -> int:
        return int(self.offsets[-1]) if name in ENTRY_TABLES else len(self.index)

    def copy_rows(self, other: DocumentTable) -> NDArray[np.bool_]:
        """Copy the rows of documents that another table has too, from its tensors on the CPU.

        Returns:
            ``(num_docs,)`` bool: the other table has the document.
        """
        shared = np.isin(self.index, other.index, assume_unique=True)
        here = np.flatnonzero(shared)
        there = np.searchsorted(other.index, self.index[here])
        entries = [
            _ranges(torch.from_numpy(x.offsets[rows]), torch.from_numpy(x.offsets[rows + 1]))
            for x, rows in ((self, here), (other, there))
        ]
        documents = [torch.from_numpy(here), torch.from_numpy(there)]
        for name, values in other.tensors.items():
            if name not in self.tensors:
                self.tensors[name] = values.new_zeros(self._height(name), *values.shape[1:])
            to, at = entries if name in ENTRY_TABLES else documents
            self.tensors[name][to] = values[at]
        return shared


def _ranges(starts: Tensor, stops: Tensor, total: int | None = None) -> Tensor:
    """Concatenation of integer ranges. The host waits for a GPU unless it knows their total."""
    sizes = stops - starts
    total = int(sizes.sum()) if total is None else total
    shift = starts - (sizes.cumsum(0) - sizes)
    numbers = torch.arange(total, device=starts.device)
    return numbers + torch.repeat_interleave(shift, sizes, output_size=total)


def placed(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor on the device. It stays where it is if it is too large for the device."""
    return tensor.to(device) if fits(tensor.nbytes, device) else tensor


def new_table(values: Tensor, device: torch.device) -> Tensor:
    """Tensor with a copy of some values, on the device, or on the CPU if it is too large.

    Args:
        values: The values, possibly an expanded tensor.
        device: The device.
    """
    home = device if fits(values.numel() * values.element_size(), device) else torch.device("cpu")
    return torch.empty(values.shape, dtype=values.dtype, device=home).copy_(values)
