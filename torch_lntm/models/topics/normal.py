"""NormalTopics: topics with normal logits, as in the ZhuSuan tutorial."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from pyro.distributions import Normal, TorchDistribution
from torch import Tensor

from torch_lntm.errors import ConfigError
from torch_lntm.models.topics.dirichlet import LogitTopics, near_uniform
from torch_lntm.models.topics.topics import TopicUpdate
from torch_lntm.solvers.special import wright_omega


class NormalTopics(LogitTopics):
    """Word probabilities softmax(b_k) of each topic, with b_k ~ Normal(0, scale² I).

    It is the prior of the *ZhuSuan LNTM tutorial*, which calls the scale δ; a larger scale gives
    sparser topics. Although the softmax ignores a common shift of the logits, the prior is a
    density of the logits and so determines it: at any maximum the logits of a topic sum to 0.

    Args:
        num_topics: Number of topics K.
        num_words: Size of the vocabulary V.
        scale: Prior standard deviation δ of every logit.
        probs: As for :class:`~torch_lntm.models.DirichletTopics`.
        dtype: Floating-point type.
        generator: As for :class:`~torch_lntm.models.DirichletTopics`.

    Attributes:
        logits: ``(num_words, num_topics)`` b, a parameter.

    Raises:
        ConfigError: A size, ``scale`` or ``probs`` is out of range.

    Example:
        >>> lntm.models.lntm(10, 500, topic_scale=5.0).topics
        NormalTopics(10 topics, 500 words, scale=5.0)
    """

    # The exact maximiser for a mini-batch would take longer than the chains of its documents.
    updates: ClassVar[tuple[TopicUpdate, ...]] = ("gradient", "exact")

    def __init__(
        self,
        num_topics: int,
        num_words: int,
        *,
        scale: float = 10.0,
        probs: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
        generator: torch.Generator | None = None,
    ) -> None:
        if not 0 < scale < math.inf:
            raise ConfigError(f"topic scale is {scale}; expected a positive number")
        super().__init__(num_topics, num_words, None, dtype)
        self.scale = float(scale)
        self.set_(near_uniform(num_topics, num_words, generator) if probs is None else probs)

    def sites(self) -> Mapping[str, TorchDistribution]:
        """See :meth:`Topics.sites`. ``"topics"`` holds the logits ``(num_topics, num_words)``."""
        zero = self.logits.new_zeros(self.num_topics, self.num_words)
        return {"topics": Normal(zero, self.scale).to_event(2)}

    def compute_probs(self, *, topics: Tensor) -> Tensor:  # type: ignore[override]
        """See :meth:`Topics.compute_probs`."""
        # Sums in pairs, as in ``softmax_of_words``.
        weights = (topics - topics.detach().amax(-1, keepdim=True)).exp()
        return weights / weights.sum(-1, keepdim=True)

    def latents(self) -> dict[str, Tensor]:
        """See :meth:`Topics.latents`."""
        return {"topics": self.logits.mT}

    def log_prior(self) -> Tensor:
        """See :meth:`Topics.log_prior`."""
        return -0.5 * self.logits.double().square().sum() / self.scale**2

    @torch.no_grad()
    def set_(self, probs: Tensor) -> None:
        """See :meth:`Topics.set_`. The logits of each topic sum to 0."""
        super().set_(probs)
        self.logits.sub_(self.logits.mean(0))

    def start_(self, word_counts: Tensor) -> None:
        """See :meth:`Topics.start_`. The probabilities are the counts plus pseudo-counts.

        The exact maximiser would take many times longer without improving starts.
        """
        self.set_(word_counts + self.start_smoothing)

    @torch.no_grad()
    def gradient_(self, word_counts: Tensor) -> None:
        """See :meth:`Topics.gradient_`: n_kv − φ_kv Σ_v n_kv − b_kv/δ²."""
        counts, logits = word_counts.mT.double(), self.logits.detach().double()
        expected = torch.softmax(logits, 0) * counts.sum(0)
        gradient = counts - expected - logits / self.scale**2
        self.logits.grad = gradient.to(self.logits.dtype)

    @torch.no_grad()
    def m_step(self, word_counts: Tensor) -> None:
        """Set each topic to the maximiser of Σ_v n_v log softmax(b)_v − |b|²/2δ².

        With N = Σ n_v, the Wright omega function ω and s = lse(b), the gradient is 0 for x_v = δ²N
        φ_v = ω(δ²n_v + log(δ²N) − s) and Σ_v b_v = Σ_v (δ²n_v − x_v) = 0. The only unknown of a
        topic is then s. The left-hand side of its equation is convex and decreasing in s, so
        Newton's method converges, monotonically after the first step.

        Args:
            word_counts: ``(num_topics, num_words)`` expected tokens. A topic without tokens becomes
                uniform, the mode of the prior.
        """
        has_tokens = word_counts.sum(1) > 0
        pull = self.scale**2 * word_counts.mT.double().contiguous()[:, has_tokens]
        total = pull.sum(0)
        centre = pull + total.log()
        level = self.logits.double()[:, has_tokens].logsumexp(0)
        for count in range(100):
            x = wright_omega(centre - level)
            # The two expressions are equal, but each loses precision where the other is exact.
            logits = torch.where(x > 1.0, x.log() - total.log() + level, pull - x)
            step = -logits.sum(0) / (x / (1.0 + x)).sum(0)
            # After the first step, only rounding errors decrease s.
            if count and bool((step <= 1e-13 * level.abs()).all()):
                break
            # The logits sum to 0, so s is at least log V. This bound matters for a first step from
            # the right of the root, where the slope may round to 0 and the step be huge.
            level = (level + step).clamp_min(math.log(self.num_words))
        self.logits.zero_()
        self.logits[:, has_tokens] = (logits - logits.mean(0)).to(self.logits.dtype)

    def extra_repr(self) -> str:
        """Sizes and scale, for ``repr``."""
        return f"{super().extra_repr()}, scale={self.scale}"
