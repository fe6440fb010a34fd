"""OutcomeChain, a joint chain whose documents also know an outcome."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from torch_lntm.corpus import Corpus
from torch_lntm.inference import JointChain
from torch_lntm.models import TopicModel
from torch_lntm.outcomes.families import Array, Family

#: Transitions of the documents, with draws of the coefficients, in a sweep.
TRANSITIONS = 2


class OutcomeChain(JointChain):
    """One Markov chain over documents, topics, prior, and a regression of an outcome on the shares.

    The density of a document is p(w | θ) p(θ | x) p(y | θ, x). A Hamiltonian transition for the
    first two factors is reversible, so that it serves as a proposal. Its result is accepted with
    the probability min(1, p(y | θ′, x) / p(y | θ, x)), which leaves the density with all three
    factors unchanged, whatever the prior and the distribution of the outcome.

    Args:
        model: A fitted model.
        corpus: The documents of the outcome.
        family: The regression.
        cut: Whether topics and prior are drawn given the words alone, by a chain of their own.
        **options: Options of :class:`~torch_lntm.inference.JointChain`.

    Attributes:
        acceptance: Mean probability of accepting a transition by the outcome, in the last sweep.
    """

    def __init__(
        self, model: TopicModel, corpus: Corpus, family: Family, *, cut: bool, **options: Any
    ) -> None:
        self._words = JointChain(model, corpus, **options) if cut else None
        fixed = {"topics": False, "prior": False} if cut else {}
        super().__init__(model, corpus, **options | fixed)
        if self._words is not None:
            self.model = self._words.model
        self.family, self.acceptance = family, 0.0
        super()._move()
        self.theta = self._shares()

    def _shares(self) -> Array:
        theta: Array = torch.softmax(self._logits[0].double(), -1).cpu().numpy()
        return theta

    @torch.no_grad()
    def sweep(self) -> torch.Tensor:
        """See :meth:`JointChain.sweep`."""
        if self._words is not None:
            self._words.sweep()
        return super().sweep()

    def _move(self) -> None:
        """See :meth:`JointChain._move`; with the outcome, whose coefficients are drawn too."""
        total = 0.0
        for _ in range(TRANSITIONS):
            before, latents, logits = self.theta, self._latents, self._logits
            super()._move()
            after, family = self._shares(), self.family
            old, new = (family.log_density(family.predictor(x)) for x in (before, after))
            probability = np.exp(np.minimum(new - old, 0.0))
            accepted = self._rng.random(len(old)) < probability
            total += float(probability.mean())
            self.theta = np.where(accepted[:, None], after, before)
            keep = torch.from_numpy(accepted).to(logits.device)[:, None]
            moved = self._latents
            self._latents = {n: torch.where(keep, moved[n], old) for n, old in latents.items()}
            self._logits = torch.where(keep, self._logits, logits)
            family.draw_(self.theta, self._rng)
        self.acceptance = total / TRANSITIONS
