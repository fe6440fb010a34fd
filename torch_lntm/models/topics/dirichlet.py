"""DirichletTopics: a symmetric Dirichlet prior of each topic, at its mode."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import ClassVar

import numpy as np
import torch
from pyro.distributions import Dirichlet, TorchDistribution
from torch import Tensor, nn

from torch_lntm.errors import ConfigError
from torch_lntm.kernels import probability_floor
from torch_lntm.models.groups import Groups
from torch_lntm.models.topics.topics import Topics, TopicUpdate

#: The concentration of draws where a joint chain starts, and its bounds.
CONCENTRATION, LOWEST, HIGHEST = 0.1, 1e-3, 10.0


class LogitTopics(Topics):
    """Topics whose parameters are the unnormalised log probabilities of their words.

    They are stored word by word, the order in which documents read them.

    Args:
        num_topics: Number of topics K.
        num_words: Size of the vocabulary V.
        groups: As for :class:`Topics`.
        dtype: Floating-point type.

    Attributes:
        logits: ``(num_words, num_topics)``, a parameter.
    """

    def __init__(
        self, num_topics: int, num_words: int, groups: Groups | None, dtype: torch.dtype
    ) -> None:
        super().__init__(num_topics, num_words, groups)
        self.logits = nn.Parameter(torch.empty(num_words, num_topics, dtype=dtype))

    def forward(self) -> Tensor:
        """See :meth:`Topics.forward`."""
        logits = self.logits if torch.is_grad_enabled() else self.logits.detach()
        return softmax_of_words(logits)[0].mT

    @property
    def double_probs(self) -> Tensor:
        """See :attr:`Topics.double_probs`."""
        return torch.softmax(self.logits.detach().double(), 0).mT

    @property
    def num_free_parameters(self) -> int:
        """See :attr:`Topics.num_free_parameters`."""
        return self.num_topics * (self.num_words - 1)

    @torch.no_grad()
    def set_(self, probs: Tensor) -> None:
        """See :meth:`Topics.set_`; to these very topics."""
        self.logits.copy_(to_logits(self.check_probs(probs), self.logits.dtype))


class DirichletTopics(LogitTopics):
    """Word probabilities of each topic, with a symmetric Dirichlet prior at their mode.

    >>> import torch_lntm as lntm
    >>> lntm.models.DirichletTopics(10, 500)
    DirichletTopics(10 topics, 500 words, smoothing=0.05)

    Args:
        num_topics: Number of topics K.
        num_words: Size of the vocabulary V.
        smoothing: Pseudo-counts of every word in every topic. The topics have the prior
            Dirichlet(1 + smoothing); 0 leaves them free (maximum likelihood).
        probs: ``(num_topics, num_words)`` initial word probabilities. Defaults to draws near
            uniform with ``generator``.
        groups: As for :class:`Topics`, for subclasses.
        dtype: Floating-point type.
        generator: Source of the default initial values.

    Raises:
        ConfigError: A size, ``smoothing`` or ``probs`` that cannot be used.
    """

    # M-steps are closed forms.
    updates: ClassVar[tuple[TopicUpdate, ...]] = ("exact",)

    def __init__(
        self,
        num_topics: int,
        num_words: int,
        *,
        smoothing: float = 0.05,
        probs: Tensor | None = None,
        groups: Groups | None = None,
        dtype: torch.dtype = torch.float32,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(num_topics, num_words, groups, dtype)
        if not smoothing >= 0:
            raise ConfigError(f"topic smoothing is {smoothing}; expected a number >= 0")
        self.smoothing = float(smoothing)
        self._deferred = False
        self._draw_concentration = CONCENTRATION
        self.set_(near_uniform(num_topics, num_words, generator) if probs is None else probs)

    def sites(self) -> Mapping[str, TorchDistribution]:
        """See :meth:`Topics.sites`: ``"topics"``, the word probabilities.

        Without smoothing the prior is the uniform one, which is proper.
        """
        pseudo = self.logits.new_full((self.num_topics, self.num_words), 1.0 + self.smoothing)
        return {"topics": Dirichlet(pseudo).to_event(1)}

    def compute_probs(self, *, topics: Tensor) -> Tensor:  # type: ignore[override]
        """See :meth:`Topics.compute_probs`."""
        return topics

    def latents(self) -> dict[str, Tensor]:
        """See :meth:`Topics.latents`."""
        return {"topics": softmax_of_words(self.logits)[0].mT}

    def probs_and_log_prior(self) -> tuple[Tensor, Tensor]:
        """See :meth:`Topics.probs_and_log_prior`."""
        if self._cached is not None:
            return self.probs, self.log_prior()
        probs, normalisers = softmax_of_words(self.logits)
        return probs.mT, self.log_prior(normalisers)

    def log_prior(self, normalisers: Tensor | None = None) -> Tensor:
        """See :meth:`Topics.log_prior`.

        Args:
            normalisers: The log-sum-exp of each topic's logits where it is known, float64.
        """
        if self.smoothing == 0:
            return self.logits.new_zeros((), dtype=torch.float64)
        if normalisers is None:
            normalisers = softmax_of_words(self.logits)[1]
        # The sum of all log probabilities. Single precision would lose too much over the words.
        total = self.logits.sum(dtype=torch.float64)
        return self.smoothing * (total - self.num_words * normalisers.sum())

    @contextmanager
    def updated_often(self) -> Iterator[None]:
        """See :meth:`Topics.updated_often`; M-steps set the probabilities alone.

        The parameters, their logarithms, follow at its end. Taking them and undoing them by a
        softmax would cost more than all else that an update of a small batch does.
        """
        before = self._cached = self.probs.detach()
        self._deferred = True
        try:
            yield
        finally:
            # Without an M-step not even the rounding of the parameters changes.
            if self._cached is not before:
                with torch.no_grad():
                    self.logits.copy_(self._cached.mT.log())
            self._cached, self._deferred = None, False

    @torch.no_grad()
    def m_step(self, word_counts: Tensor) -> None:
        """Set the topics to the maximiser given expected counts (*Khan & Bouchard 2009, eq. 41*).

        Args:
            word_counts: ``(num_topics, num_words)`` expected tokens. A topic left without any
                counts and smoothing keeps its words; a word without any keeps the floor.
        """
        counts = word_counts.mT.to(self.logits.dtype).contiguous()
        total = word_counts.sum(1) + self.num_words * self.smoothing
        probs = (counts + self.smoothing).div_(total.to(counts.dtype))
        probs.clamp_min_(probability_floor(probs.dtype))
        found, before = (probs, self.probs.mT) if self._deferred else (probs.log_(), self.logits)
        if self.smoothing == 0:  # else no topic is empty, and this costs as much as all the rest
            found = torch.where(total > 0, found, before)
        if self._deferred:
            self._cached = found.mT
        else:
            self.logits.copy_(found)

    @property
    def start_smoothing(self) -> float:
        """See :attr:`Topics.start_smoothing`; the smoothing."""
        return self.smoothing

    def draw_(self, word_counts: Tensor, rng: np.random.Generator) -> None:
        """See :meth:`Topics.draw_`.

        The prior is Dirichlet(β), with β the symmetric concentration of highest likelihood given
        the tokens' topics, which every draw improves (*Minka 2000*). The mode-finding prior of a
        fit, Dirichlet(1 + smoothing), would pull draws towards uniform topics.
        """
        self._draw_concentration = improved_concentration(self._draw_concentration, word_counts)
        drawn = rng.standard_gamma((word_counts + self._draw_concentration).numpy())
        self.set_(torch.from_numpy(drawn.clip(min=1e-300)).to(self.device))

    def extra_repr(self) -> str:
        """Sizes and smoothing, for ``repr``."""
        return f"{super().extra_repr()}, smoothing={self.smoothing}"


def near_uniform(num_topics: int, num_words: int, generator: torch.Generator | None) -> Tensor:
    """Random word probabilities ``(num_topics, num_words)`` near uniform.

    Words differ by 10 %, enough to tell topics apart.
    """
    noise = torch.randn(num_words, num_topics, generator=generator, dtype=torch.float64)
    return torch.softmax(0.1 * noise, 0).mT


def to_logits(probs: Tensor, dtype: torch.dtype) -> Tensor:
    """Log probabilities ``(num_words, num_topics)`` of topics ``(num_topics, num_words)``.

    A finite logarithm stands for the one of zero, so that no gradient is NaN.
    """
    return probs.log().mT.clamp_min(math.log(probability_floor(dtype)))


def softmax_of_words(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Word probabilities that sum to 1 within rounding, and each topic's log normaliser in float64.

    PyTorch's softmax in float32 adds the words up one after another: over half a million words its
    sums are off by up to a percent. ``sum`` adds in pairs, and is as exact as its dtype.

    Args:
        logits: ``(num_words, num_topics)``.
    """
    shift = _largest(logits.detach())
    weights = (logits - shift).exp_()
    mass = weights.sum(0)
    return weights / mass, shift.double() + mass.double().log()


def _largest(logits: Tensor) -> Tensor:
    """``logits.amax(0)``, which is ten times as fast where its columns fill whole vectors."""
    num_words, num_topics = logits.shape
    whole = num_words // 16 * 16
    rest = logits[whole:]
    if whole:
        blocks = logits[:whole].reshape(-1, 16 * num_topics).amax(0)
        rest = torch.cat([blocks.reshape(16, num_topics), rest])
    return rest.amax(0)


def improved_concentration(concentration: float, counts: Tensor) -> float:
    """A symmetric Dirichlet's concentration of higher likelihood (*Minka 2000, eq. 55*).

    Args:
        concentration: β.
        counts: ``(num_topics, num_words)`` float64.
    """
    num_words = counts.shape[1]
    beta = torch.tensor(concentration, dtype=torch.float64)
    total = (counts.sum(1) + num_words * beta).digamma() - (num_words * beta).digamma()
    words = ((counts + beta).digamma() - beta.digamma()).sum()
    found = concentration * float(words / (num_words * total.sum()).clamp_min(1e-300))
    return min(max(found, LOWEST), HIGHEST)
