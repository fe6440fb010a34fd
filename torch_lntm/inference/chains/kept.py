"""KeptChains: last states of a fit's chains, from which the chains can continue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm import noise
from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.inference.chains.chains import Chains, Progress
from torch_lntm.inference.chains.settings import HMCSettings
from torch_lntm.models import TopicModel
from torch_lntm.sampling.step_sizes import DualAveraging

#: Number of stored counts hashed at once.
HASHED_AT_ONCE = 2**16


@dataclass(frozen=True, eq=False, repr=False)
class KeptChains:
    """Last states and step sizes of the chains of a fit's documents.

    New draws continue the chains of the fit's documents, in any corpus and at any position.
    Documents are recognised by the counts of their words. Chains of unknown documents start anew.

    Attributes:
        model: The fitted model.
        settings: Settings of the chains.
        latents: ``(num_chains, num_docs, dim)`` last draws by the names of the sites.
        step_size: ``(num_chains, num_docs)`` step sizes, frozen since the fit's warm-up.
        documents: ``(num_kept,)`` ascending int64 signatures of the documents with chains to
            continue; see :func:`signatures`.
        columns: ``(num_kept,)`` positions of these documents in ``latents`` and ``step_size``.
        num_transitions: Number of past transitions of the chains.
    """

    model: TopicModel
    settings: HMCSettings
    latents: Mapping[str, Tensor]
    step_size: Tensor
    documents: NDArray[np.int64]
    columns: NDArray[np.int64]
    num_transitions: int
    #: Existing draws of theta. Always ``None``: chains make new draws.
    existing_draws: ClassVar[None] = None

    @classmethod
    def of(
        cls,
        model: TopicModel,
        settings: HMCSettings,
        corpus: Corpus,
        latents: Mapping[str, Tensor],
        step_size: Tensor,
        usable: Tensor,
        num_transitions: int,
    ) -> Self:
        """Chains of a fit.

        Args:
            model: The fitted model.
            settings: Settings of the chains.
            corpus: The fit's documents.
            latents: ``(num_chains, num_docs, dim)`` last draws by the names of the sites.
            step_size: ``(num_chains, num_docs)`` step sizes, frozen since the fit's warm-up.
            usable: ``(num_docs,)`` bool: the document has words, and all of its chains moved.
            num_transitions: Number of past transitions of the chains.
        """
        rows = np.flatnonzero(usable.numpy())
        documents, first = np.unique(signatures(corpus)[rows], return_index=True)
        return cls(model, settings, latents, step_size, documents, rows[first], num_transitions)

    @classmethod
    def empty(cls, model: TopicModel, settings: HMCSettings) -> Self:
        """Kept chains of no document: the chains of every document start anew."""
        empty = np.zeros(0, np.int64)
        return cls(model, settings, {}, torch.zeros(settings.num_chains, 0), empty, empty, 0)

    @property
    def kept_chains(self) -> Self:
        """The object itself, as a :class:`~torch_lntm.inference.DrawSource`."""
        return self

    @property
    def num_docs(self) -> int:
        """Number of documents with chains to continue."""
        return len(self.documents)

    def find(self, corpus: Corpus) -> NDArray[np.int64]:
        """Positions ``(num_docs,)`` of a corpus's documents in ``latents``, -1 if unknown."""
        if not self.num_docs:
            return np.full(corpus.num_docs, -1)
        documents = signatures(corpus)
        at = np.searchsorted(self.documents, documents).clip(max=self.num_docs - 1)
        return np.where(self.documents[at] == documents, self.columns[at], -1)

    def resume(self, batch: DocumentBatch, columns: NDArray[np.int64]) -> Chains:
        """Running chains of a batch, from their last states.

        Args:
            batch: Documents with chains to continue.
            columns: ``(num_docs,)`` positions of the documents in ``latents``.
        """
        at = torch.from_numpy(columns)
        device, num_past = batch.device, self.num_transitions
        log_step = self.step_size[:, at].to(device, torch.float64).log()
        # Step sizes stay frozen, because the fit's warm-up has ended the adaptation.
        adaptation = DualAveraging(log_step, log_step, 0.0 * log_step, log_step, num_past)
        latents = {site: value[:, at].to(device) for site, value in self.latents.items()}
        return Chains(
            self.model,
            self.settings,
            batch,
            self.settings.seed,
            num_past,
            latents,
            Progress(num_past, adaptation),
        )

    def __repr__(self) -> str:
        return f"KeptChains({self.settings.num_chains} chains of {self.num_docs} documents)"


def signatures(corpus: Corpus) -> NDArray[np.int64]:
    """Signatures ``(num_docs,)`` of documents: int64 hashes of their words' counts.

    Args:
        corpus: The documents.
    """
    hashes = [np.zeros(0, np.int64)]
    for _, rows in corpus.parts():
        offsets = np.concatenate([[0], np.cumsum(rows.sizes)])
        # Groups of documents keep temporary copies small.
        marks = np.arange(0, offsets[-1], HASHED_AT_ONCE)
        ends = np.unique([0, *np.searchsorted(offsets, marks), len(rows.sizes)])
        for first, last in pairwise(ends):
            part = slice(offsets[first], offsets[last])
            words, counts = (
                torch.from_numpy(x[part].astype(np.int64)) for x in (rows.word_index, rows.counts)
            )
            # Sums of 64-bit hashes wrap around.
            before = np.append(0, np.cumsum(noise.fold_in(words, counts).numpy()))
            hashes.append(np.diff(before[offsets[first : last + 1] - offsets[first]]))
    return np.concatenate(hashes)
