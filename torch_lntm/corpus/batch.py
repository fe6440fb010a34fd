"""DocumentBatch: the word counts of some documents, as tensors on a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from torch_lntm.corpus.columns import FrozenDict
from torch_lntm.errors import ConfigError


@dataclass(frozen=True, eq=False, repr=False)
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
        covariates: Tensors by name, ``(num_docs, ...)`` each; those of the corpus.
    """

    row_offsets: Tensor
    word_index: Tensor
    counts: Tensor
    num_words: int
    index: Tensor
    corpus_size: int
    covariates: Mapping[str, Tensor] = field(default_factory=FrozenDict)

    def __post_init__(self) -> None:
        if not isinstance(self.covariates, FrozenDict):
            object.__setattr__(self, "covariates", FrozenDict(self.covariates))

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
    def positions(self) -> Tensor:
        """``index`` on the CPU, ``(num_docs,)``.

        To copy ``index`` from a GPU the host must wait for the GPU. Batches that a corpus makes
        know their positions already, and so do their copies on other devices and their parts that
        are selected by positions on the CPU.
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
        """Tokens of all documents; the host waits for a GPU when it is first asked for."""
        return float(self.counts.double().sum())

    @cached_property
    def by_word(self) -> tuple[Tensor, Tensor, Tensor]:
        """The transposed structure: ``(order, doc_index, word_offsets)``.

        ``order`` ``(nnz,)`` lists the entries word by word (documents ascending within a word),
        ``doc_index = row_index[order]``, and word v's entries are
        ``word_offsets[v]:word_offsets[v + 1]``. Topic statistics are summed in this order, so that
        they do not depend on thread or atomic scheduling.
        """
        if self.device.type == "cpu":
            # Columns from rows is a counting sort, several times as fast as a sort by comparison.
            rows = (np.arange(self.nnz), self.word_index.numpy(), self.row_offsets.numpy())
            columns = sp.csr_matrix(rows, (self.num_docs, self.num_words)).tocsc()
            return (
                torch.from_numpy(columns.data),
                torch.from_numpy(columns.indices).long(),
                torch.from_numpy(columns.indptr).long(),
            )
        order = torch.argsort(self.word_index, stable=True)
        words = torch.arange(self.num_words + 1, device=self.device)
        word_offsets = torch.searchsorted(self.word_index[order], words)
        return order, self.row_index[order], word_offsets

    @cached_property
    def repeated(self) -> tuple[Tensor, Tensor]:
        """The entries ``(n,)`` int64 whose count is not 1, and their counts in float64.

        The host waits for a GPU when it is first asked for.
        """
        with torch.inference_mode(False):  # what the batch keeps may be trained on later
            entries = (self.counts != 1).nonzero().squeeze(1)
            return entries, self.counts[entries].double()

    @cached_property
    def words(self) -> Tensor:
        """The words that occur ``(num_occurring,)`` int64, ascending.

        The host waits for a GPU when it is first asked for.
        """
        occurs = torch.zeros(self.num_words, dtype=torch.bool, device=self.device)
        occurs[self.word_index] = True
        return occurs.nonzero().squeeze(1)

    def with_counts(self, counts: Tensor) -> DocumentBatch:
        """The same documents and words with other counts ``(nnz,)``."""
        other = replace(self, counts=counts)
        for name in ("positions", "row_index", "by_word", "words"):
            if name in self.__dict__:
                other.__dict__[name] = self.__dict__[name]
        return other

    def over(self, words: Tensor) -> DocumentBatch:
        """The batch over some words alone.

        Args:
            words: ``(n,)`` int64 columns, ascending, all of :attr:`words` among them.
        """
        order, doc_index, word_offsets = self.by_word
        place = word_offsets.new_zeros(self.num_words)
        place[words] = torch.arange(len(words), device=self.device)
        part = replace(self, word_index=place[self.word_index], num_words=len(words))
        # No entries lie between those of one of the words and of the next.
        offsets = torch.cat([word_offsets[words], word_offsets[-1:]])
        part.__dict__["by_word"] = order, doc_index, offsets
        return self._told(part)

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> DocumentBatch:
        """The same batch on another device or with another floating-point type.

        The type is that of the counts and of the covariates that are not integers or truth values.
        """
        device = self.device if device is None else torch.device(device)
        dtype = self.dtype if dtype is None else dtype
        if device == self.device and dtype == self.dtype:
            return self
        if device == self.device:
            # Samplers ask again at every step, and need the transposed structure each time.
            if dtype not in self._in_other_dtypes:
                self._in_other_dtypes[dtype] = self._moved(device, dtype)
            return self._in_other_dtypes[dtype]
        return self._moved(device, dtype)

    def _moved(self, device: torch.device, dtype: torch.dtype) -> DocumentBatch:
        moved = replace(
            self,
            row_offsets=self.row_offsets.to(device),
            word_index=self.word_index.to(device),
            counts=self.counts.to(device, dtype),
            index=self.index.to(device),
            covariates=FrozenDict(
                {
                    name: value.to(device, dtype if value.is_floating_point() else value.dtype)
                    for name, value in self.covariates.items()
                }
            ),
        )
        return self._told(moved)

    def _told(self, other: DocumentBatch) -> DocumentBatch:
        """A batch of the same tokens, told what this one knows without waiting for a GPU."""
        if self._knows_positions:
            other.__dict__["positions"] = self.positions
        if "num_tokens" in self.__dict__:
            other.__dict__["num_tokens"] = self.num_tokens
        return other

    @property
    def _knows_positions(self) -> bool:
        """Whether ``positions`` can be read without waiting for a GPU."""
        return self.index.device.type == "cpu" or "positions" in self.__dict__

    @cached_property
    def _in_other_dtypes(self) -> dict[torch.dtype, DocumentBatch]:
        return {}

    def __repr__(self) -> str:
        return (
            f"DocumentBatch({self.num_docs} of {self.corpus_size} documents, {self.num_words} "
            f"words, {self.nnz} stored counts, {self.dtype}, {self.device})"
        )

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
            covariates=FrozenDict({n: x.pin_memory() for n, x in self.covariates.items()}),
        )

    def entries(self, rows: Tensor, num_entries: int | None = None) -> tuple[Tensor, Tensor]:
        """Where the stored counts of some of the documents are.

        Args:
            rows: ``(n,)`` int64 positions in this batch, in the order wanted.
            num_entries: Stored counts that these have, if known: else the host waits for a GPU.

        Returns:
            Their positions, document by document, and ``(n + 1,)`` the documents' offsets in these.
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
        *,
        positions: Tensor | None = None,
        num_tokens: float | None = None,
    ) -> DocumentBatch:
        """Some of the documents.

        Args:
            rows: As for :meth:`entries`.
            num_entries: As for :meth:`entries`.
            positions: Their :attr:`positions` on the CPU, if the caller knows them.
            num_tokens: Their :attr:`num_tokens`, if the caller knows it.
        """
        entries, row_offsets = self.entries(rows, num_entries)
        part = replace(
            self,
            row_offsets=row_offsets,
            word_index=self.word_index[entries],
            counts=self.counts[entries],
            index=self.index[rows],
            covariates=FrozenDict({name: x[rows] for name, x in self.covariates.items()}),
        )
        if positions is None and rows.device.type == "cpu" and self._knows_positions:
            positions = self.positions[rows]
        known = {"positions": positions, "num_tokens": num_tokens}
        part.__dict__.update({name: x for name, x in known.items() if x is not None})
        return part

    def split(self, max_docs: int) -> list[DocumentBatch]:
        """Consecutive batches of at most ``max_docs`` documents."""
        if self.num_docs <= max_docs:
            return [self]
        rows = torch.arange(self.num_docs, device=self.device)
        parts = [self.select(part) for part in rows.split(max_docs)]
        if self._knows_positions:
            for part, positions in zip(parts, self.positions.split(max_docs), strict=True):
                part.__dict__["positions"] = positions
        return parts

    def repeat(self, copies: int) -> DocumentBatch:
        """All documents ``copies`` times, copy by copy: a row for each chain and document."""
        if copies == 1:
            return self
        shifts = self.nnz * torch.arange(copies, device=self.device)[:, None]
        offsets = (self.row_offsets[:-1] + shifts).flatten()
        repeated = replace(
            self,
            row_offsets=torch.cat([offsets, offsets.new_full((1,), copies * self.nnz)]),
            word_index=self.word_index.repeat(copies),
            counts=self.counts.repeat(copies),
            index=self.index.repeat(copies),
            covariates=FrozenDict(
                {n: x.repeat(copies, *[1] * (x.dim() - 1)) for n, x in self.covariates.items()}
            ),
        )
        if self._knows_positions:
            repeated.__dict__["positions"] = self.positions.repeat(copies)
        return repeated

    def in_blocks(self, name: str, num_blocks: int) -> DocumentBatch:
        """The same documents over ``num_blocks`` vocabularies side by side, each in its own.

        Args:
            name: The covariate ``(num_docs,)`` that says which of them is a document's.
            num_blocks: How many there are; word v of block g has the column g * num_words + v.

        Raises:
            ConfigError: The covariate is not one of the numbers from 0 to ``num_blocks`` − 1 for
                each document.
        """
        if (name, num_blocks) not in self._other_blocks:
            block = self.covariates[name]
            if block.dim() != 1 or bool(((block < 0) | (block >= num_blocks)).any()):
                raise ConfigError(
                    f"the covariate {name!r} has the shape {tuple(block.shape)} and values up to "
                    f"{block.max()}; expected one whole number from 0 to {num_blocks - 1} for each "
                    "document"
                )
            moved = replace(
                self,
                word_index=self.word_index + self.num_words * block.long()[self.row_index],
                num_words=num_blocks * self.num_words,
            )
            self._other_blocks[name, num_blocks] = self._told(moved)
        return self._other_blocks[name, num_blocks]

    @cached_property
    def _other_blocks(self) -> dict[tuple[str, int], DocumentBatch]:
        return {}

    def to_csr(self) -> Tensor:
        """The counts as a sparse CSR tensor ``(num_docs, num_words)``."""
        return torch.sparse_csr_tensor(
            self.row_offsets,
            self.word_index,
            self.counts,
            size=tuple(self.shape),
            check_invariants=False,
        )
