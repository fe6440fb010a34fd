"""KeptChains, the last states of a fit's chains, from which new draws can continue."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm import noise
from torch_lntm.budget import docs_at_once
from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.errors import ConfigError
from torch_lntm.guides import make_guide
from torch_lntm.guides.theta_draws import (
    DrawnDocuments,
    DrawOptions,
    Positions,
    ThetaDraws,
    wanted_draws,
)
from torch_lntm.inference.chains.chains import (
    FEWEST_TRANSITIONS,
    Chains,
    HMCSettings,
    initial_latents,
    warn_of_low_acceptance,
    warn_of_stuck,
)
from torch_lntm.kernels import fused
from torch_lntm.models import TopicModel
from torch_lntm.progress import tqdm
from torch_lntm.sampling.step_sizes import DualAveraging

#: Number of stored counts hashed at once.
HASHED_AT_ONCE = 2**16
#: Transitions before the first draw of a chain of a fit. A few suffice, because the fit was its
#: warm-up and the last epochs changed the parameters little.
RESUMED_STEPS = 6
#: Transitions from one draw to the next, for chains of ``DocumentHMC`` and of Monte-Carlo EM.
#: Those of Monte-Carlo EM move further, so that draws 2 transitions apart have a correlation of
#: only 0.1 to 0.2.
THINNING, RESUMED_THINNING = 4, 2
#: Maximum number of documents whose chains run at once, beyond which batches are no faster.
_CHAINS_AT_ONCE = 1000
#: Advice about stuck chains.
_STUCK = "all their draws are equal; use more warmup_steps, or draw by a guide"


@dataclass(frozen=True, eq=False, repr=False)
class KeptChains:
    """Last states and step sizes of a fit's chains, from which new draws continue.

    A document of the fit is recognised by the counts of its words, so its chains continue whatever
    corpus it is in and wherever it stands there. Chains of unknown documents start anew.

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

    @classmethod
    def empty(cls, model: TopicModel, settings: HMCSettings) -> Self:
        """Kept chains of no document, so that every document's chains start anew."""
        empty = np.zeros(0, np.int64)
        return cls(model, settings, {}, torch.zeros(settings.num_chains, 0), empty, empty, 0)

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

    def check(self, model: TopicModel, num_chains: int) -> None:
        """Raise a ConfigError unless these chains can go on in a fit of a model."""
        sizes = [model.num_topics, model.latent_dim, num_chains]
        own = [self.model.num_topics, self.model.latent_dim, self.settings.num_chains]
        if sizes != own:
            raise ConfigError(
                f"kept chains for {own[0]} topics, {own[1]} dimensions and num_chains={own[2]} "
                f"given to a fit of {sizes[0]}, {sizes[1]} and {sizes[2]}"
            )

    def latents_in(
        self, model: TopicModel, batch: DocumentBatch, columns: NDArray[np.int64], seed: int
    ) -> dict[str, Tensor]:
        """Last states of a batch's documents by the names of the sites, to start chains anew.

        Args:
            model: The model of the new chains.
            batch: The documents.
            columns: ``(num_docs,)`` their positions in ``latents``. States of documents with −1
                are drawn from the prior.
            seed: Seed of these draws.
        """
        space = model.prior.space(batch)
        keys = noise.document_keys(seed, batch.index, self.settings.num_chains)
        latents = {site: x.clone() for site, x in space.latents(space.draw(keys)).items()}
        known = torch.from_numpy(np.flatnonzero(columns >= 0))
        for site, value in self.latents.items():
            found = value[:, torch.from_numpy(columns)[known]]
            latents[site][:, known.to(batch.device)] = found.to(latents[site])
        return latents

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
        return Chains(self.model, self.settings, batch, num_past, latents, adaptation)

    def theta_draws(
        self, corpus: Corpus, num_draws: int | None, rows: Positions | None, options: DrawOptions
    ) -> ThetaDraws:
        """Draws by chains of documents; see :func:`torch_lntm.inference.theta_draws`."""
        encoded = self.model.encode(corpus)
        rows, num_draws = wanted_draws(corpus.num_docs, rows, num_draws)
        method = "chains of each document (Hamiltonian Monte Carlo)"
        if self.num_docs:
            method += ", which continue the chains of the fit"
        return ThetaDraws(
            ChainDraws(self, encoded, self.find(encoded), options).draw,
            self.model,
            rows,
            num_draws,
            "hmc",
            method,
            (f"the documents' proportions, by {method}",),
            keep=options.keep,
            corpus=corpus,
        )

    def __repr__(self) -> str:
        return f"KeptChains({self.settings.num_chains} chains of {self.num_docs} documents)"


@dataclass(eq=False)
class ChainDraws:
    """Draws by chains of each document.

    Documents of the fit continue their chains. New documents start theirs at the posterior means of
    the model's default guide, because prior draws may be too far away for a warm-up of 100
    transitions.

    Args:
        chains: The chains of a fit, or kept chains of no document.
        corpus: The documents, with the covariates of the model.
        columns: Positions of the documents among the chains; see :meth:`KeptChains.find`.
        options: Options of the draws.
    """

    chains: KeptChains
    corpus: Corpus
    columns: Positions
    options: DrawOptions

    @property
    def step(self) -> int:
        """Transitions from one draw to the next."""
        return self.options.thinning or (RESUMED_THINNING if self.chains.num_docs else THINNING)

    def draw(self, rows: Positions, num_draws: int) -> Iterator[DrawnDocuments]:
        """Draws of the documents at some positions, in parts."""
        has_chains = self.columns[rows] >= 0
        sampled = self.step * math.ceil(num_draws / self.chains.settings.num_chains)
        groups = [(rows[has_chains], RESUMED_STEPS), (rows[~has_chains], self.options.warmup_steps)]
        with tqdm(
            total=sum(len(group) * (skipped + sampled) for group, skipped in groups),
            desc="chains",
            disable=not self.options.progress,
            bar_format="{desc} |{bar}| {elapsed}<{remaining}",
        ) as bar:
            for group, skipped in groups:
                if len(group):
                    yield from self._draw(group, skipped, sampled, num_draws, bar)

    @torch.no_grad()
    def _draw(
        self, rows: Positions, skipped: int, sampled: int, num_draws: int, bar: tqdm
    ) -> Iterator[DrawnDocuments]:
        """Draws of documents whose chains either all continue or are all new.

        Args:
            rows: Positions of the documents.
            skipped: Transitions of each chain before its first draw.
            sampled: Transitions of each chain from then on.
            num_draws: Number of draws of each document.
            bar: Progress bar.

        Warns:
            ConvergenceWarning: Some chains never moved, or chains accepted few proposals.
        """
        model, settings = self.chains.model, self.chains.settings
        size = docs_at_once(6 * num_draws * model.num_topics, model.device, model.dtype)
        size = self.options.max_docs or min(_CHAINS_AT_ONCE, size)
        all_moved, acceptance = [], []
        for batch in self.corpus.batches(size, order=rows, device=model.device, dtype=model.dtype):
            positions = batch.positions.numpy()
            chains = self._begin(batch, self.columns[positions])
            drawn, begun = [], chains.num_transitions
            with fused.with_threads(model.topics.probs):
                # A short part first, so that the following ones end with the warm-up and the draws.
                for end in range(
                    skipped % self.step or self.step, skipped + sampled + 1, self.step
                ):
                    number = end - chains.num_transitions + begun
                    chains.advance(number)
                    if end > skipped:
                        drawn.append(model.theta(chains.latents[model.prior.latent]).cpu())
                    bar.update(number * batch.num_docs)
            moved = chains.moved.cpu() | (sampled < FEWEST_TRANSITIONS)
            all_moved.append(moved)
            acceptance.append(chains.mean_acceptance.cpu())
            theta = torch.stack(drawn, 1).flatten(0, 1)[:num_draws]
            yield DrawnDocuments(positions, theta, moved.all(0))
        moved = torch.cat(all_moved, 1)
        warn_of_stuck(moved, torch.from_numpy(rows), sampled, _STUCK)
        mean, target = float(torch.cat(acceptance, 1)[moved].mean()), settings.target_accept
        advice = "their draws move too little; fit with more warmup_epochs, or draw by a guide"
        warn_of_low_acceptance(mean, target, advice)

    def _begin(self, batch: DocumentBatch, columns: Positions) -> Chains:
        """Chains of a batch: the chains of the fit at their last state, or new chains."""
        if columns[0] >= 0:
            return self.chains.resume(batch, columns)
        model, settings = self.chains.model, self.chains.settings
        means = make_guide(None, model).posterior(batch).mean
        initial = initial_latents(model, batch, means, settings.num_chains, settings.seed)
        return Chains(model, settings, batch, self.options.warmup_steps, initial, means=means)


def signatures(corpus: Corpus, codes: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    """Signatures ``(num_docs,)`` of documents: int64 hashes of their words' counts.

    Args:
        corpus: The documents.
        codes: ``(num_words,)`` a number for each word, with which the signatures do not depend on
            the order of the vocabulary. Defaults to the positions of the words.
    """
    codes = np.arange(corpus.num_words) if codes is None else codes
    hashes = [np.zeros(0, np.int64)]
    for _, rows in corpus.parts():
        offsets = np.concatenate([[0], np.cumsum(rows.sizes)])
        # Groups of documents keep temporary copies small.
        marks = np.arange(0, offsets[-1], HASHED_AT_ONCE)
        ends = np.unique([0, *np.searchsorted(offsets, marks), len(rows.sizes)])
        for first, last in pairwise(ends):
            part = slice(offsets[first], offsets[last])
            words = torch.from_numpy(codes[rows.word_index[part]])
            counts = torch.from_numpy(rows.counts[part].astype(np.int64))
            # Sums of 64-bit hashes wrap around.
            before = np.append(0, np.cumsum(noise.fold_in(words, counts).numpy()))
            hashes.append(np.diff(before[offsets[first : last + 1] - offsets[first]]))
    return np.concatenate(hashes)
