"""StepwiseEM, which keeps a fitted model up to date with a stream of new documents."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.corpus.corpus import as_corpus
from torch_lntm.errors import ConfigError, knows_its_options, require_whole
from torch_lntm.guides import Guide
from torch_lntm.guides.guide import require_guide
from torch_lntm.inference.chains.chains import Chains, HMCSettings, initial_latents
from torch_lntm.inference.em.covariances import CovarianceSample, default_stride, ranks_of
from torch_lntm.inference.em.schedule import MAX_STEP_DOCS
from torch_lntm.inference.em.statistics import Statistics, chain_statistics, sum_statistics
from torch_lntm.kernels import fused
from torch_lntm.models import TopicModel

#: Transitions of a new document's chains during warm-up, and after it.
WARMUP_TRANSITIONS, TRANSITIONS = 20, 10


class StepwiseEM:
    """Update a fitted topic model by a stream of new documents, each seen once.

    Each mini-batch updates the model once (*Cappé & Moulines 2009*): an E-step, whose statistics
    are blended into a running average, and an M-step from that average. New statistics get the
    weight (new tokens / all tokens)^decay, so that old documents fade slowly and the model can
    follow a drifting stream. Because the average is scaled to all tokens seen so far, the
    parameters' priors matter less and less.

    Args:
        model: The fitted model. It is changed in place.
        guide: Guide of the E-step, over the same model.
        statistics: The average to begin with, which is ``statistics`` of the model's
            :class:`~torch_lntm.inference.FitResult`.
        chains: Settings of chains, for E-steps that sample; take those of the fit,
            ``MonteCarloEM(...).chains`` or ``DocumentHMC(...).settings``. By default the guide
            makes the E-steps.
        decay: Exponent of the weights, above 0 and up to 1. With 1 all tokens weigh the same, and
            smaller values favour new tokens.
        seed: Seed of the order of new documents, and of the chains.

    Attributes:
        statistics: The running average.
        num_updates: Number of updates.

    Raises:
        ConfigError: A setting is invalid.
        IncompatibleGuideError: The guide belongs to another model.

    Example:
        >>> import copy
        >>> stream_model = copy.deepcopy(model)
        >>> stepwise = lntm.inference.StepwiseEM(
        ...     stream_model, lntm.guides.TaylorGuide(stream_model), result.statistics
        ... )
        >>> stepwise.update(test)  # changes stream_model
        >>> stepwise.num_updates
        1
    """

    @knows_its_options
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
        """Update the model by new documents. Ctrl-C leaves it at its last update.

        Args:
            documents: A corpus, or a matrix of counts. Empty documents are skipped.

        Raises:
            ConfigError: The documents have a different vocabulary.
            CorpusError: The matrix holds numbers that are not counts.
            NumericalError: A parameter or a density is not finite.
        """
        corpus = self.model.encode(as_corpus(documents, allow_empty=True))
        rng = np.random.default_rng([self.seed, self.num_updates])
        order = rng.permutation(corpus.nonempty)
        if not len(order):
            return
        stride = default_stride(self.guide, min(MAX_STEP_DOCS, len(order)))
        ranks = ranks_of(order, corpus.num_docs)
        covariances = CovarianceSample(self.guide, corpus, ranks, stride)
        device, dtype = self.model.device, self.model.dtype
        with self.model.topics.updated_often():
            # At its end the fit rotated the parameters to their canonical form, but not the
            # average, so an M-step makes the two agree again.
            self.statistics.maximise(self.model)
            for rows in np.array_split(order, -(-len(order) // MAX_STEP_DOCS)):
                batch = corpus.batch(np.sort(rows), device=device, dtype=dtype)
                batch = self.model.topics.assign_levels(batch)
                sampled = self.chains is not None
                self._step(self._sample(batch) if sampled else self._expect(batch, covariances))
        self.model.prior.canonicalise_()
        self.model.check_parameters()

    def _expect(self, batch: DocumentBatch, covariances: CovarianceSample) -> Statistics:
        """E-step by the guide, in parts, to bound memory."""
        options = self.guide.em_options, self.num_updates
        parts = batch.split(covariances.max_docs)
        total = sum_statistics(covariances.expect(part, *options)[1] for part in parts)
        assert total is not None
        return total

    @fused.threaded
    def _sample(self, batch: DocumentBatch) -> Statistics:
        """E-step by new chains of each document, from its mode."""
        assert self.chains is not None
        rng = np.random.default_rng([self.seed, self.num_updates, 1])
        settings = replace(self.chains, seed=int(rng.integers(2**63)))
        means = self.guide.solve(batch, self.guide.em_options, covariances=False).mean
        initial = initial_latents(self.model, batch, means, settings.num_chains, settings.seed)
        chains = Chains(self.model, settings, batch, WARMUP_TRANSITIONS, initial, means=means)
        chains.advance(WARMUP_TRANSITIONS + TRANSITIONS, with_counts=True)
        return chain_statistics(self.model, chains, chains.moved)

    def _step(self, new: Statistics) -> None:
        """Blend new statistics into the average, and make an M-step."""
        self.num_updates += 1
        if not new.num_tokens:
            return  # all chains are stuck
        before = self.statistics.num_tokens
        seen = before + new.num_tokens
        average = self.statistics.scaled(seen / before)
        weight = (new.num_tokens / seen) ** self.decay
        average.blend_(new, weight, seen / new.num_tokens)
        self.statistics = average
        average.maximise(self.model)
