"""KeptChains: where the chains of a fit ended, from which they continue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

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

if TYPE_CHECKING:
    from typing import Self

#: Stored counts whose hashes are computed at once.
HASHED_AT_ONCE = 2**16


@dataclass(frozen=True, eq=False, repr=False)
class KeptChains:
    """Last states and step sizes of the chains of a fit's documents.

    Draws continue the chains of documents that the fit had, wherever in a corpus these are.
    Documents are recognised by their words. Chains of other documents start anew.

    Attributes:
        model: The fitted model.
        settings: Settings of the chains.
        latents: ``(num_chains, num_docs, dim)`` last draws by the names of the sites.
        step_size: ``(num_chains, num_docs)`` step sizes, frozen since the fit's warm-up.
        documents: ``(num_kept,)`` ascending int64 signatures of the documents whose chains can
            continue; see :func:`signatures`.
        columns: ``(num_kept,)`` places of these documents in ``latents`` and ``step_size``.
        num_transitions: Transitions that the chains have made.
    """

    model: TopicModel
    settings: HMCSettings
    latents: Mapping[str, Tensor]
    step_size: Tensor
    documents: NDArray[np.int64]
    columns: NDArray[np.int64]
    num_transitions: int
    #: Draws that exist already: chains have none.
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
        """The chains of a fit.

        Args:
            model: The fitted model.
            settings: Settings of the chains.
            corpus: The fit's documents.
            latents: ``(num_chains, num_docs, dim)`` last draws by the names of the sites.
            step_size: ``(num_chains, num_docs)`` step sizes, frozen since the fit's warm-up.
            usable: ``(num_docs,)`` bool, the document has words, and all of its chains moved.
            num_transitions: Transitions that the chains have made.
        """
        rows = np.flatnonzero(usable.numpy())
        documents, first = np.unique(signatures(corpus)[rows], return_index=True)
        return cls(model, settings, latents, step_size, documents, rows[first], num_transitions)

    @classmethod
    def empty(cls, model: TopicModel, settings: HMCSettings) -> Self:
        """Chains of no document: all begin anew."""
        nothing = np.zeros(0, np.int64)
        return cls(model, settings, {}, torch.zeros(settings.num_chains, 0), nothing, nothing, 0)

    @property
    def kept_chains(self) -> Self:
        """The chains themselves, as :attr:`DocumentHMC.kept_chains`."""
        return self

    @property
    def num_docs(self) -> int:
        """Number of documents whose chains can continue."""
        return len(self.documents)

    def find(self, corpus: Corpus) -> NDArray[np.int64]:
        """``(num_docs,)`` places of a corpus's documents in ``latents``, -1 for others."""
        if not self.num_docs:
            return np.full(corpus.num_docs, -1)
        wanted = signatures(corpus)
        at = np.searchsorted(self.documents, wanted).clip(max=self.num_docs - 1)
        return np.where(self.documents[at] == wanted, self.columns[at], -1)

    def resume(self, batch: DocumentBatch, columns: NDArray[np.int64]) -> Chains:
        """The chains of a batch, on their way again.

        Args:
            batch: Documents whose chains can continue.
            columns: ``(num_docs,)`` their places in ``latents``.
        """
        at = torch.from_numpy(columns)
        device, done = batch.device, self.num_transitions
        log_step = self.step_size[:, at].to(device, torch.float64).log()
        # Step sizes stay frozen: the adaptation has made all its updates.
        adaptation = DualAveraging(log_step, log_step, 0.0 * log_step, log_step, done)
        latents = {site: value[:, at].to(device) for site, value in self.latents.items()}
        return Chains(
            self.model,
            self.settings,
            batch,
            self.settings.seed,
            done,
            latents,
            Progress(done, adaptation),
        )

    def __repr__(self) -> str:
        return f"KeptChains({self.settings.num_chains} chains of {self.num_docs} documents)"


def signatures(corpus: Corpus) -> NDArray[np.int64]:
    """Numbers ``(num_docs,)`` that tell documents apart by the counts of their words.

    Args:
        corpus: The documents.
    """
    found = []
    for _, rows in corpus.parts():
        # Sums of 64-bit hashes, which wrap around; a few at a time, for their temporary copies.
        before = np.zeros(len(rows.counts) + 1, np.int64)
        for start in range(0, len(rows.counts), HASHED_AT_ONCE):
            part = slice(start, start + HASHED_AT_ONCE)
            words, counts = (
                torch.from_numpy(x[part].astype(np.int64)) for x in (rows.word_index, rows.counts)
            )
            before[1:][part] = noise.fold_in(words, counts).numpy()
        np.cumsum(before, out=before)
        offsets = np.concatenate([[0], np.cumsum(rows.sizes)])
        found.append(np.diff(before[offsets]))
    return np.concatenate(found)
