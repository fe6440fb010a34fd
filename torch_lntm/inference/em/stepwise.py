"""Stepwise EM: a fit that goes on with documents that arrive in parts and are not kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from torch_lntm.corpus import Corpus, DocumentBatch, as_corpus
from torch_lntm.errors import ConfigError, require_whole
from torch_lntm.guides import Guide, require_guide
from torch_lntm.inference.chains.chains import Chains, initial_latents
from torch_lntm.inference.chains.settings import HMCSettings
from torch_lntm.inference.em.covariances import CovarianceSample, default_stride
from torch_lntm.inference.em.schedule import MAX_STEP_DOCS
from torch_lntm.inference.em.statistics import (
    Statistics,
    chain_statistics,
    sum_statistics,
)
from torch_lntm.models import TopicModel

#: Transitions of a new document's chains: those that adapt their step sizes, and those after.
WARMUP_TRANSITIONS, TRANSITIONS = 20, 10


class StepwiseEM:
    """Go on with the fit of a topic model by documents each of which is seen once.

    Every mini-batch makes an update: an E-step, whose statistics enter a running average, and an
    M-step (*Cappé & Moulines 2009*). The weight of the new statistics is
    (their tokens / all tokens so far)^decay, and the average stands for all tokens so far, so that
    the priors of the parameters weigh less and less. Documents are forgotten slowly, so the model
    can follow a stream that drifts.

    Args:
        model: The fitted model, which is changed in place.
        guide: The guide whose posterior the E-step solves, over the same model.
        statistics: The average to go on from: those of the model's
            :class:`~torch_lntm.inference.FitResult`.
        chains: How chains move, if E-steps sample the posterior; it should be what the model was
            fitted by. ``MonteCarloEM(...).settings.chains`` and ``DocumentHMC(...).settings``
            have it.
        decay: How fast weights decay, above 0 and up to 1: with 1 all tokens weigh alike; the
            smaller it is, the sooner they are forgotten.
        seed: Seed of the order of documents within a part, and of the chains.

    Attributes:
        statistics: The running average.
        num_updates: Updates made.

    Raises:
        ConfigError: A setting that cannot be used.
        IncompatibleGuideError: The guide belongs to another model.
    """

    def __init__(
        self,
        model: TopicModel,
        guide: Guide[Any],
        statistics: Statistics,
        *,
        chains: HMCSettings | None = None,
        decay: float = 0.7,
        seed: int = 0,
    ) -> None:
        require_guide(guide, model)
        require_whole(0, seed=seed)
        if not 0 < decay <= 1:
            raise ConfigError(f"decay is {decay}; expected a number above 0 and up to 1")
        self.model = model
        self.guide = guide
        self.statistics = statistics
        self.chains = chains
        self.decay = decay
        self.seed = seed
        self.num_updates = 0

    @torch.no_grad()
    def update(self, documents: Corpus) -> None:
        """Learn from the next documents. Ctrl-C leaves the model at its last update.

        Args:
            documents: A corpus, or a matrix of counts; empty ones take no part.

        Raises:
            ConfigError: They are over other words than the model.
            CorpusError: They cannot be used.
            NumericalError: A parameter or a density left the real numbers.
        """
        corpus = self.model.encode(as_corpus(documents, allow_empty=True))
        rng = np.random.default_rng([self.seed, self.num_updates])
        order = rng.permutation(corpus.nonempty)
        if not len(order):
            return
        stride = default_stride(self.guide, min(MAX_STEP_DOCS, len(order)))
        covariances = CovarianceSample(self.guide, corpus, order, stride)
        device, dtype = self.model.device, self.model.dtype
        with self.model.topics.updated_often():
            # The fit has put the parameters into their conventional form, but not the average.
            self.statistics.maximise(self.model)
            for rows in np.array_split(order, -(-len(order) // MAX_STEP_DOCS)):
                batch = corpus.batch(np.sort(rows), device=device, dtype=dtype)
                sampled = self.chains is not None
                self._step(self._sample(batch) if sampled else self._expect(batch, covariances))
        self.model.prior.canonicalise_()
        self.model.check_parameters()

    def _expect(self, batch: DocumentBatch, covariances: CovarianceSample) -> Statistics:
        """E-step by the guide, in parts that fit in memory."""
        options = self.guide.em_options

        def expect(part: DocumentBatch) -> Statistics:
            return covariances.expect(part, None, self.num_updates, options)[1]

        total = sum_statistics(map(expect, batch.split(covariances.max_docs)))
        assert total is not None
        return total

    def _sample(self, batch: DocumentBatch) -> Statistics:
        """E-step by chains of the documents' own, from their modes."""
        assert self.chains is not None
        rng = np.random.default_rng([self.seed, self.num_updates, 1])
        seed = int(rng.integers(2**63))
        means = self.guide.means(batch, **self.guide.em_options).mean
        initial = initial_latents(self.model, batch, means, self.chains.num_chains, seed)
        chains = Chains(
            self.model, self.chains, batch, seed, WARMUP_TRANSITIONS, initial, means=means
        )
        for remaining in range(WARMUP_TRANSITIONS + TRANSITIONS, 0, -1):
            chains.move(remaining)
        return chain_statistics(self.model, chains, chains.moved)

    def _step(self, found: Statistics) -> None:
        """Blend new statistics into the average, which then stands for more tokens."""
        self.num_updates += 1
        if not found.num_tokens:
            return  # no chain has moved
        before = self.statistics.num_tokens
        seen = before + found.num_tokens
        average = self.statistics.scaled(seen / before)
        weight = (found.num_tokens / seen) ** self.decay
        average.blend_(found, weight, seen / found.num_tokens)
        self.statistics = average
        average.maximise(self.model)
