"""Multinomial: tokens are independent draws from the mixture of topics."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from torch_lntm.corpus import DocumentBatch
from torch_lntm.kernels.likelihood import Independent
from torch_lntm.models.words.words import Words


class Multinomial(Independent, Words):
    """Tokens are independent draws from the mixture of topics.

    The log likelihood is the log probability of a document's tokens in a given order, Σ_v c_v log
    s_v. The multinomial coefficient is left out, so perplexities follow directly.

    Example:
        >>> lntm.models.ctm(10, 500).words
        Multinomial()
    """

    def draw_tokens(
        self, probability: Tensor, batch: DocumentBatch, rng: np.random.Generator
    ) -> Tensor:
        """See :meth:`Words.draw_tokens`. All tokens come from the topics."""
        return batch.counts.round().long()

    def overdispersion(self, lengths: Tensor) -> Tensor:
        """See :meth:`Words.overdispersion`. The ratio is 1."""
        return torch.ones_like(lengths)
