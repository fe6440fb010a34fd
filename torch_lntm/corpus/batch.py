"""DocumentBatch: the word counts of some documents, as tensors on a device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class DocumentBatch:
    """Word counts of ``num_docs`` documents in compressed sparse rows.

    A batch carries its own place in the corpus, so that a mini-batch scales itself: a Pyro plate
    of ``corpus_size`` documents subsampled by ``index`` multiplies by ``corpus_size / num_docs``.

    Attributes:
        row_offsets: ``(num_docs + 1,)`` int64; document d's entries are
            ``row_offsets[d]:row_offsets[d + 1]``.
        word_index: ``(nnz,)`` int64 column of each entry, ascending within a document.
        counts: ``(nnz,)`` floating-point counts, all positive.
        num_words: Size of the vocabulary.
        index: ``(num_docs,)`` int64 positions of the documents in their corpus.
        corpus_size: Number of documents in the corpus the batch was drawn from.
    """

    row_offsets: Tensor
    word_index: Tensor
    counts: Tensor
    num_words: int
    index: Tensor
    corpus_size: int

    @classmethod
    def from_csr(cls, matrix: Tensor) -> DocumentBatch:
        """The batch of all rows of a sparse CSR tensor ``(num_docs, num_words)``."""
        num_docs, num_words = matrix.shape
        return cls(
            row_offsets=matrix.crow_indices().long(),
            word_index=matrix.col_indices().long(),
            counts=matrix.values(),
            num_words=num_words,
            index=torch.arange(num_docs, device=matrix.device),
            corpus_size=num_docs,
        )

    @property
    def num_docs(self) -> int:
        """Number of documents in the batch."""
        return self.row_offsets.numel() - 1

    @property
    def nnz(self) -> int:
        """Number of stored (document, word) entries."""
        return self.word_index.numel()

    @property
    def shape(self) -> torch.Size:
        """``(num_docs, num_words)``."""
        return torch.Size((self.num_docs, self.num_words))

    @property
    def device(self) -> torch.device:
        """Where the counts are."""
        return self.counts.device

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the counts."""
        return self.counts.dtype

    @cached_property
    def row_index(self) -> Tensor:
        """``(nnz,)`` int64 row of each entry."""
        rows = torch.arange(self.num_docs, device=self.device)
        return torch.repeat_interleave(rows, self.row_offsets.diff(), output_size=self.nnz)

    @cached_property
    def lengths(self) -> Tensor:
        """``(num_docs,)`` tokens per document, in the dtype of the counts."""
        return torch.segment_reduce(
            self.counts.double(), "sum", offsets=self.row_offsets, axis=0, initial=0.0
        ).to(self.dtype)

    @cached_property
    def by_word(self) -> tuple[Tensor, Tensor, Tensor]:
        """The transposed structure: ``(order, doc_index, word_offsets)``.

        ``order`` ``(nnz,)`` lists the entries word by word (documents ascending within a word),
        ``doc_index = row_index[order]``, and word v's entries are
        ``word_offsets[v]:word_offsets[v + 1]``. Topic statistics are summed in this order, so that
        they do not depend on thread or atomic scheduling.
        """
        order = torch.argsort(self.word_index, stable=True)
        word_offsets = self.word_index.new_zeros(self.num_words + 1)
        torch.cumsum(
            torch.bincount(self.word_index, minlength=self.num_words), 0, out=word_offsets[1:]
        )
        return order, self.row_index[order], word_offsets

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> DocumentBatch:
        """The same batch on another device or with counts of another floating-point type."""
        device = self.device if device is None else torch.device(device)
        dtype = self.dtype if dtype is None else dtype
        if device == self.device and dtype == self.dtype:
            return self
        if device == self.device:
            # Samplers ask again at every step, and need the transposed structure each time.
            if dtype not in self._in_other_dtypes:
                self._in_other_dtypes[dtype] = replace(self, counts=self.counts.to(dtype))
            return self._in_other_dtypes[dtype]
        return replace(
            self,
            row_offsets=self.row_offsets.to(device),
            word_index=self.word_index.to(device),
            counts=self.counts.to(device, dtype),
            index=self.index.to(device),
        )

    @cached_property
    def _in_other_dtypes(self) -> dict[torch.dtype, DocumentBatch]:
        return {}

    def pin_memory(self) -> DocumentBatch:
        """The same batch in page-locked memory, from which copies to a GPU need not wait.

        A ``DataLoader`` with ``pin_memory=True`` calls it.
        """
        return replace(
            self,
            row_offsets=self.row_offsets.pin_memory(),
            word_index=self.word_index.pin_memory(),
            counts=self.counts.pin_memory(),
            index=self.index.pin_memory(),
        )

    def select(self, rows: Tensor) -> DocumentBatch:
        """The documents ``rows`` (int64 positions in this batch), in that order."""
        starts = self.row_offsets[rows]
        sizes = self.row_offsets[rows + 1] - starts
        row_offsets = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        total = int(row_offsets[-1])
        shift = torch.repeat_interleave(starts - row_offsets[:-1], sizes, output_size=total)
        entries = torch.arange(total, device=self.device) + shift
        return replace(
            self,
            row_offsets=row_offsets,
            word_index=self.word_index[entries],
            counts=self.counts[entries],
            index=self.index[rows],
        )

    def split(self, max_docs: int) -> list[DocumentBatch]:
        """Consecutive batches of at most ``max_docs`` documents."""
        if self.num_docs <= max_docs:
            return [self]
        rows = torch.arange(self.num_docs, device=self.device)
        return [self.select(part) for part in rows.split(max_docs)]

    def to_csr(self) -> Tensor:
        """The counts as a sparse CSR tensor ``(num_docs, num_words)``."""
        return torch.sparse_csr_tensor(
            self.row_offsets,
            self.word_index,
            self.counts,
            size=tuple(self.shape),
            check_invariants=False,
        )
