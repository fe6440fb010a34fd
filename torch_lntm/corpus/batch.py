"""DocumentBatch: the word counts of several documents as tensors on a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from torch_lntm.budget import find_device
from torch_lntm.corpus.metadata import Columns
from torch_lntm.errors import ConfigError


@dataclass(frozen=True, eq=False, repr=False)
class DocumentBatch:
    """Word counts of ``num_docs`` documents in compressed sparse rows.

    A batch also knows where its documents stand in the corpus and how many the corpus has. A Pyro
    plate of size ``corpus_size``, subsampled by ``index``, can therefore multiply log probabilities
    by ``corpus_size / num_docs``, which gives a mini-batch the weight of the whole corpus.

    Attributes:
        row_offsets: ``(num_docs + 1,)`` int64; document d's entries are
            ``row_offsets[d]:row_offsets[d + 1]``.
        word_index: ``(nnz,)`` int64 column of each entry, in ascending order within a document.
        counts: ``(nnz,)`` positive floating-point counts.
        num_words: Size of the vocabulary.
        index: ``(num_docs,)`` int64 positions of the documents in their corpus.
        corpus_size: Number of documents in the corpus.
        covariates: Covariates of the corpus: tensors ``(num_docs, ...)`` by name.

    Example:
        >>> batch = corpus.batch([7, 2, 9])
        >>> batch.num_docs, batch.index.tolist(), batch.corpus_size
        (3, [7, 2, 9], 300)
        >>> bool(batch.lengths.sum() == batch.counts.sum())
        True
    """

    row_offsets: Tensor
    word_index: Tensor
    counts: Tensor
    num_words: int
    index: Tensor
    corpus_size: int
    covariates: Mapping[str, Tensor] = field(default_factory=Columns)

    def __post_init__(self) -> None:
        if not isinstance(self.covariates, Columns):
            object.__setattr__(self, "covariates", Columns(self.covariates))

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
    def device(self) -> torch.device:
        """Device of the tensors."""
        return self.counts.device

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the counts."""
        return self.counts.dtype

    @cached_property
    def positions(self) -> Tensor:
        """``index`` on the CPU, ``(num_docs,)``.

        Copying ``index`` from a GPU makes the host wait, so a corpus passes the positions to its
        batches in advance (:meth:`knowing`). They survive moves to other devices, and selections on
        the CPU.
        """
        return self.index.cpu()

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
    def num_tokens(self) -> float:
        """Total number of tokens. On a GPU, the first access makes the host wait."""
        return float(self.counts.double().sum())

    @cached_property
    def by_word(self) -> tuple[Tensor, Tensor, Tensor]:
        """The entries sorted by word: ``(order, doc_index, word_offsets)``.

        ``order`` ``(nnz,)`` lists the entries word by word, with ascending documents within a word,
        and ``doc_index`` is ``row_index[order]``. The entries of word v are
        ``word_offsets[v]:word_offsets[v + 1]``. Topic statistics are summed in this order, so that
        they depend neither on the number of threads nor on the order in which atomic operations
        happen to run.
        """
        order = torch.argsort(self.word_index, stable=True)
        words = torch.arange(self.num_words + 1, device=self.device)
        word_offsets = torch.searchsorted(self.word_index[order], words)
        return order, self.row_index[order], word_offsets

    @cached_property
    def repeated(self) -> tuple[Tensor, Tensor]:
        """Entries with a count other than 1: positions ``(n,)`` int64 and counts in float64.

        On a GPU, the first access makes the host wait.
        """
        with torch.inference_mode(False):  # gradients may use the cached tensors later
            entries = (self.counts != 1).nonzero().squeeze(1)
            return entries, self.counts[entries].double()

    @cached_property
    def words(self) -> Tensor:
        """Words that occur in the batch: ``(num_occurring,)`` int64, ascending.

        On a GPU, the first access makes the host wait.
        """
        occurs = torch.zeros(self.num_words, dtype=torch.bool, device=self.device)
        occurs[self.word_index] = True
        return occurs.nonzero().squeeze(1)

    def with_counts(self, counts: Tensor) -> DocumentBatch:
        """Copy of the batch with new counts ``(nnz,)``."""
        # The sparsity pattern stays the same, so everything computed from it still holds.
        kept = ("positions", "row_index", "by_word", "words")
        return replace(self, counts=counts).knowing(**{k: vars(self).get(k) for k in kept})

    def over(self, words: Tensor) -> DocumentBatch:
        """Copy of the batch over a smaller vocabulary.

        Args:
            words: ``(n,)`` int64 columns to keep, ascending. They must include :attr:`words`.
        """
        order, doc_index, word_offsets = self.by_word
        new_column = word_offsets.new_zeros(self.num_words)
        new_column[words] = torch.arange(len(words), device=self.device)
        part = replace(self, word_index=new_column[self.word_index], num_words=len(words))
        # Words outside of `words` have no entries, so a word's entries end at the next offset.
        offsets = torch.cat([word_offsets[words], word_offsets[-1:]])
        return part.knowing(by_word=(order, doc_index, offsets), **self._known)

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> DocumentBatch:
        """The same batch on another device or with another floating-point type.

        ``dtype`` applies to the counts and to floating-point covariates.
        """
        device = self.device if device is None else find_device(device)
        dtype = self.dtype if dtype is None else dtype
        if device == self.device and dtype == self.dtype:
            return self
        if device == self.device and dtype in self._others:
            return self._others[dtype]

        def moved(x: Tensor) -> Tensor:
            return x.to(device, dtype if x.is_floating_point() else x.dtype)

        names = ("row_offsets", "word_index", "counts", "index")
        parts: dict[str, Any] = {name: moved(getattr(self, name)) for name in names}
        parts["covariates"] = {name: moved(x) for name, x in self.covariates.items()}
        converted = replace(self, **parts).knowing(**self._known)
        if device == self.device:
            # Samplers convert at every step and need the cached transposed structure each time.
            self._others[dtype] = converted
        return converted

    def knowing(self, **values: Any) -> DocumentBatch:
        """This batch, with cached values filled in by a caller who knows them already.

        Args:
            **values: Values by name, such as :attr:`positions`. None stands for an unknown value.
        """
        vars(self).update({name: value for name, value in values.items() if value is not None})
        return self

    @property
    def _known(self) -> dict[str, Any]:
        """Cached values on the CPU that any batch of the same tokens can reuse."""
        has_positions = self.index.device.type == "cpu" or "positions" in vars(self)
        positions = self.positions if has_positions else None
        return {"positions": positions, "num_tokens": vars(self).get("num_tokens")}

    @cached_property
    def _others(self) -> dict[Any, DocumentBatch]:
        """Batches of these documents in other types, or in blocks."""
        return {}

    def __repr__(self) -> str:
        return (
            f"DocumentBatch({self.num_docs} of {self.corpus_size} documents, {self.num_words} "
            f"words, {self.nnz} stored counts, {self.dtype}, {self.device})"
        )

    def entries(self, rows: Tensor, num_entries: int | None = None) -> tuple[Tensor, Tensor]:
        """Positions of the entries of some documents.

        Args:
            rows: ``(n,)`` int64 positions of the documents in this batch, in any order.
            num_entries: Total number of entries of the documents. The host waits for a GPU if
                ``None``.

        Returns:
            Positions of the entries, document by document, and the ``(n + 1,)`` offsets of the
            documents in them.
        """
        starts = self.row_offsets[rows]
        sizes = self.row_offsets[rows + 1] - starts
        row_offsets = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        total = int(row_offsets[-1]) if num_entries is None else num_entries
        shift = torch.repeat_interleave(starts - row_offsets[:-1], sizes, output_size=total)
        return torch.arange(total, device=self.device) + shift, row_offsets

    def select(
        self,
        rows: Tensor,
        num_entries: int | None = None,
        positions: Tensor | None = None,
    ) -> DocumentBatch:
        """Batch of some of the documents.

        Args:
            rows: As for :meth:`entries`.
            num_entries: As for :meth:`entries`.
            positions: The documents' :attr:`positions` on the CPU, if known.
        """
        entries, row_offsets = self.entries(rows, num_entries)
        part = replace(
            self,
            row_offsets=row_offsets,
            word_index=self.word_index[entries],
            counts=self.counts[entries],
            index=self.index[rows],
            covariates={name: x[rows] for name, x in self.covariates.items()},
        )
        known = self._known["positions"]
        if positions is None and rows.device.type == "cpu" and known is not None:
            positions = known[rows]
        return part.knowing(positions=positions)

    def split(self, max_docs: int) -> list[DocumentBatch]:
        """Consecutive batches of at most ``max_docs`` documents."""
        if self.num_docs <= max_docs:
            return [self]
        rows = torch.arange(self.num_docs, device=self.device).split(max_docs)
        known = self._known["positions"]
        known = [None] * len(rows) if known is None else known.split(max_docs)
        return [self.select(x, positions=own) for x, own in zip(rows, known, strict=True)]

    def repeat(self, copies: int) -> DocumentBatch:
        """The documents ``copies`` times over, one whole copy after another, as for chains."""
        if copies == 1:
            return self
        shifts = self.nnz * torch.arange(copies, device=self.device)[:, None]
        offsets = (self.row_offsets[:-1] + shifts).flatten()
        parts: dict[str, Any] = {
            name: getattr(self, name).repeat(copies) for name in ("word_index", "counts", "index")
        }
        parts["row_offsets"] = torch.cat([offsets, offsets.new_full((1,), copies * self.nnz)])
        parts["covariates"] = {
            name: x.repeat(copies, *[1] * (x.dim() - 1)) for name, x in self.covariates.items()
        }
        known = self._known["positions"]
        return replace(self, **parts).knowing(
            positions=None if known is None else known.repeat(copies)
        )

    def in_blocks(self, name: str, num_blocks: int) -> DocumentBatch:
        """The same documents over ``num_blocks`` vocabularies side by side.

        Each document uses only the vocabulary of its own block, in which word v of block g has the
        column ``g * num_words + v``.

        Args:
            name: Name of the covariate ``(num_docs,)`` with the block of each document.
            num_blocks: Number of blocks.

        Raises:
            ConfigError: The covariate has another shape, or values outside of 0 to
                ``num_blocks`` − 1.
        """
        if (name, num_blocks) not in self._others:
            block = self.covariates[name]
            if block.dim() != 1 or bool(((block < 0) | (block >= num_blocks)).any()):
                raise ConfigError(
                    f"the covariate {name!r} has the shape {tuple(block.shape)} and values up to "
                    f"{block.max()}; expected a whole number below {num_blocks} for each document"
                )
            blocks = replace(
                self,
                word_index=self.word_index + self.num_words * block.long()[self.row_index],
                num_words=num_blocks * self.num_words,
            )
            self._others[name, num_blocks] = blocks.knowing(**self._known)
        return self._others[name, num_blocks]

    def to_csr(self) -> Tensor:
        """The counts as a sparse CSR tensor ``(num_docs, num_words)``."""
        return torch.sparse_csr_tensor(
            self.row_offsets,
            self.word_index,
            self.counts,
            size=(self.num_docs, self.num_words),
            check_invariants=False,
        )
