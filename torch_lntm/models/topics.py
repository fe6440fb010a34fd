"""The topics of a model: K distributions over the words of the vocabulary."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from torch_lntm.errors import ConfigError
from torch_lntm.kernels import probability_floor


class Topics(nn.Module):
    """Word probabilities of each topic, with a symmetric Dirichlet prior at their mode.

    The parameters are unnormalised log probabilities, stored word by word
    ``(num_words, num_topics)``, the order in which documents read them.

    Args:
        num_topics: Number of topics K.
        num_words: Size of the vocabulary V.
        smoothing: Pseudo-counts of every word in every topic. The topics have the prior
            Dirichlet(1 + smoothing); 0 leaves them free (maximum likelihood).
        probs: ``(num_topics, num_words)`` initial word probabilities; by default drawn near
            uniform with ``generator``.
        dtype: Floating-point type.
        generator: Source of the default initial values.

    Raises:
        ConfigError: A size, ``smoothing`` or ``probs`` that cannot be used.
    """

    def __init__(
        self,
        num_topics: int,
        num_words: int,
        *,
        smoothing: float = 0.05,
        probs: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if not smoothing >= 0:
            raise ConfigError(f"topic smoothing is {smoothing}; expected a number >= 0")
        self.smoothing = float(smoothing)
        self.logits = nn.Parameter(torch.empty(num_words, num_topics, dtype=dtype))
        self._fixed: Tensor | None = None
        if probs is None:
            # Gamma(100) weights: words differ by 10 %, enough to tell topics apart.
            noise = torch.randn(num_words, num_topics, generator=generator, dtype=torch.float64)
            probs = torch.softmax(0.1 * noise, 0).mT
        self.set_(probs)

    @property
    def num_topics(self) -> int:
        """Number of topics K."""
        return self.logits.shape[1]

    @property
    def num_words(self) -> int:
        """Size of the vocabulary V."""
        return self.logits.shape[0]

    @property
    def probs(self) -> Tensor:
        """Word probabilities ``(num_topics, num_words)``; rows sum to 1. Differentiable."""
        if self._fixed is not None:
            return self._fixed.mT
        logits = self.logits if torch.is_grad_enabled() else self.logits.detach()
        return torch.softmax(logits, 0).mT

    @contextmanager
    def fixed(self) -> Iterator[None]:
        """A context in which ``probs`` is computed once; the parameters must not change in it."""
        self._fixed = torch.softmax(self.logits.detach(), 0)
        try:
            yield
        finally:
            self._fixed = None

    @torch.no_grad()
    def set_(self, probs: Tensor) -> None:
        """Set the topics in place.

        Args:
            probs: ``(num_topics, num_words)`` nonnegative; rows are normalised.

        Raises:
            ConfigError: Another shape, a negative or non-finite entry, a topic without mass, or a
                word that no topic can produce.
        """
        probs = torch.as_tensor(probs)
        expected = (self.num_topics, self.num_words)
        if tuple(probs.shape) != expected:
            raise ConfigError(
                f"topics of shape {tuple(probs.shape)}; expected {expected}, topics by words"
            )
        probs = probs.double()
        if not torch.isfinite(probs).all() or (probs < 0).any():
            raise ConfigError("topics must be finite and nonnegative; got NaN, inf or a negative")
        for axis, what, cure in (
            (1, "topic", "give every topic some mass"),
            (0, "word", "give it a positive probability in some topic, or smooth the topics"),
        ):
            empty = (probs.sum(axis) <= 0).nonzero().flatten().tolist()
            if empty:
                raise ConfigError(f"{what} {empty[0]} has probability zero throughout; {cure}")
        log_probs = (probs / probs.sum(1, keepdim=True)).log().mT
        # A finite log stands for that of zero, so that no gradient is NaN.
        self.logits.copy_(log_probs.clamp_min(math.log(probability_floor(self.logits.dtype))))

    @torch.no_grad()
    def m_step(self, word_counts: Tensor) -> None:
        """Set the topics to the maximiser given expected counts (*Khan & Bouchard 2009, eq. 41*).

        Args:
            word_counts: ``(num_topics, num_words)`` expected tokens. A topic left without any
                counts and smoothing keeps its words; a word without any keeps the floor.
        """
        counts = word_counts.mT.to(self.logits.dtype).contiguous()
        total = word_counts.double().sum(1) + self.num_words * self.smoothing
        probs = (counts + self.smoothing) / total.to(counts.dtype)
        probs = torch.where(total > 0, probs, self.probs.mT)
        probs.clamp_min_(probability_floor(probs.dtype))
        self.logits.copy_(probs.log())

    def log_prior(self) -> Tensor:
        """Log density, up to a constant, of the Dirichlet prior at the current topics (scalar)."""
        if self.smoothing == 0:
            return self.logits.new_zeros((), dtype=torch.float64)
        return self.smoothing * torch.log_softmax(self.logits, 0).double().sum()

    def extra_repr(self) -> str:
        """Sizes and smoothing, for ``repr``."""
        return f"{self.num_topics} topics, {self.num_words} words, smoothing={self.smoothing}"
