"""The topics of a model: K distributions over the words of the vocabulary."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import pyro
import torch
from pyro.distributions import Dirichlet, Normal
from torch import Tensor, nn

from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.errors import ConfigError
from torch_lntm.kernels import probability_floor
from torch_lntm.solvers.special import wright_omega

#: Bound on the Newton steps of the normal topics' M-step, and the relative error that ends them.
NORMAL_STEPS, NORMAL_TOLERANCE = 100, 1e-13
#: Pseudo-counts of every word in every normal topic of a start.
START_PSEUDO_COUNTS = 0.05


def _largest(logits: Tensor) -> Tensor:
    """``logits.amax(0)``, which is ten times as fast where its columns fill whole vectors."""
    num_words, num_topics = logits.shape
    whole = num_words // 16 * 16
    rest = logits[whole:]
    if whole:
        blocks = logits[:whole].reshape(-1, 16 * num_topics).amax(0)
        rest = torch.cat([blocks.reshape(16, num_topics), rest])
    return rest.amax(0)


def _softmax(logits: Tensor) -> tuple[Tensor, Tensor]:
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
        self._deferred = False
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
    def num_groups(self) -> int:
        """Number of groups of documents whose topics differ; 1 if all documents' are the same."""
        return 1

    @property
    def num_free(self) -> int:
        """Number of free parameters, as residual degrees of freedom count them."""
        return self.num_topics * (self.num_words - 1)

    @property
    def probs(self) -> Tensor:
        """Word probabilities ``(num_topics, num_words)``; rows sum to 1. Differentiable.

        With groups there are ``num_groups * num_words`` columns, each group's side by side, which
        :meth:`place` moves documents' words to.
        """
        return (self._columns() if self._fixed is None else self._fixed).mT

    @property
    def mean_probs(self) -> Tensor:
        """Word probabilities ``(num_topics, num_words)``, with groups the mean over them."""
        return self.probs

    @property
    def double_probs(self) -> Tensor:
        """Word probabilities ``(num_topics, num_words)`` computed in float64, without gradient.

        Held-out likelihoods take these: they compare models by less than the rounding of float32.
        """
        return torch.softmax(self.logits.detach().double(), 0).mT

    @contextmanager
    def fixed(self) -> Iterator[None]:
        """A context in which ``probs`` is computed once; the parameters must not change in it."""
        if self._fixed is not None:
            yield
            return
        self._fixed = self._columns().detach()
        try:
            yield
        finally:
            self._fixed = None

    @contextmanager
    def updated_often(self) -> Iterator[None]:
        """A context for many M-steps, which set the probabilities alone.

        The parameters, their logarithms, follow at its end. Taking them and undoing them by a
        softmax would cost more than all else that an update of a small batch does.
        """
        before = self._fixed = self._columns().detach()
        self._deferred = True
        try:
            yield
        finally:
            # Without an M-step not even the rounding of the parameters changes.
            if self._fixed is not before:
                with torch.no_grad():
                    self.logits.copy_(self._fixed.log())
            self._fixed, self._deferred = None, False

    def encode(self, corpus: Corpus) -> Corpus:
        """The corpus with the arrays that :meth:`place` reads from its batches.

        Derive an array by :meth:`Corpus.with_encoding`, which does so once.
        """
        return corpus

    def place(self, batch: DocumentBatch) -> DocumentBatch:
        """The batch with its words in the columns of :attr:`probs`; once is as good as twice."""
        return batch

    def by_group(self, batch: DocumentBatch, probs: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The documents of each group, and its topics over the vocabulary.

        Args:
            batch: Documents, placed or not.
            probs: :attr:`probs` or :attr:`double_probs`.

        Returns:
            For each group that has some, rows of the batch ``(num_docs_of_group,)`` and its part
            ``(num_topics, num_words)`` of ``probs``.
        """
        return [(torch.arange(batch.num_docs, device=batch.device), probs)]

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
        total = word_counts.sum(1) + self.num_words * self.smoothing
        probs = (counts + self.smoothing).div_(total.to(counts.dtype))
        probs.clamp_min_(probability_floor(probs.dtype))
        found, before = (probs, self.probs.mT) if self._deferred else (probs.log_(), self.logits)
        if self.smoothing == 0:  # else no topic is empty, and this costs as much as all the rest
            found = torch.where(total > 0, found, before)
        if self._deferred:
            self._fixed = found
        else:
            self.logits.copy_(found)

    @torch.no_grad()
    def top_words(self, num_words: int) -> tuple[Tensor, Tensor]:
        """The most probable words of each topic, the most probable first.

        Args:
            num_words: How many; all words if there are fewer.

        Returns:
            Their positions in the vocabulary and their probabilities, both
            ``(num_topics, min(num_words, self.num_words))`` on the CPU. Equally probable words
            stand in the order of the vocabulary.
        """
        probs, order = self.mean_probs.detach().cpu().sort(dim=-1, descending=True, stable=True)
        return order[:, :num_words], probs[:, :num_words]

    @property
    def start_smoothing(self) -> float:
        """Pseudo-counts of every word in every topic of a start; by default ``smoothing``."""
        return self.smoothing

    def start_from_counts(self, word_counts: Tensor) -> None:
        """Set the topics, of all groups, from a start's counts; by default as :meth:`m_step`.

        Args:
            word_counts: ``(num_topics, num_words)`` expected tokens.
        """
        self.m_step(word_counts)

    def emit(self) -> Tensor:
        """Emit the site ``"topics"``, the topics as latent variables of a Pyro program.

        Its value is the word probabilities, with the prior Dirichlet(1 + smoothing). (Without
        smoothing that is the uniform one, which is proper.)

        Returns:
            ``(num_topics, num_words)`` word probabilities.
        """
        pseudo = self.logits.new_full((self.num_topics, self.num_words), 1.0 + self.smoothing)
        return pyro.sample("topics", Dirichlet(pseudo).to_event(1))

    def probs_and_log_prior(self) -> tuple[Tensor, Tensor]:
        """``probs`` and :meth:`log_prior` from one pass over the words."""
        if self._fixed is not None:
            return self.probs, self.log_prior()
        probs, normalisers = _softmax(self.logits)
        return probs.mT, self.log_prior(normalisers)

    def log_prior(self, normalisers: Tensor | None = None) -> Tensor:
        """Log density, up to a constant, of the prior at the current topics (scalar, float64).

        Args:
            normalisers: The log-sum-exp of each topic's logits where it is known, float64.
        """
        if self.smoothing == 0:
            return self.logits.new_zeros((), dtype=torch.float64)
        if normalisers is None:
            normalisers = _softmax(self.logits)[1]
        # The sum of all log probabilities. Single precision would lose too much over the words.
        total = self.logits.sum(dtype=torch.float64)
        return self.smoothing * (total - self.num_words * normalisers.sum())

    def _columns(self) -> Tensor:
        """:attr:`probs` as it lies in memory, column by column."""
        logits = self.logits if torch.is_grad_enabled() else self.logits.detach()
        return _softmax(logits)[0]

    def extra_repr(self) -> str:
        """Sizes and smoothing, for ``repr``."""
        return f"{self.num_topics} topics, {self.num_words} words, smoothing={self.smoothing}"


class NormalTopics(Topics):
    """Word probabilities softmax(b_k) of each topic, with b_k ~ Normal(0, scale² I).

    The prior of the *ZhuSuan LNTM tutorial*, where the scale is δ: the wider, the sparser the
    topics. It is a density of the logits themselves. The softmax ignores their common shift and
    the prior fixes it: at any maximum a topic's logits sum to 0.

    Args:
        num_topics: Number of topics K.
        num_words: Size of the vocabulary V.
        scale: Prior standard deviation δ of every logit.
        probs: As for :class:`Topics`.
        dtype: Floating-point type.
        generator: As for :class:`Topics`.

    Raises:
        ConfigError: A size, ``scale`` or ``probs`` that cannot be used.
    """

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
        super().__init__(
            num_topics, num_words, smoothing=0.0, probs=probs, dtype=dtype, generator=generator
        )
        self.scale = float(scale)

    @torch.no_grad()
    def set_(self, probs: Tensor) -> None:
        """As :meth:`Topics.set_`; the logits are those of these topics that sum to 0."""
        super().set_(probs)
        self.logits.sub_(self.logits.mean(0))

    @property
    def start_smoothing(self) -> float:
        """See :meth:`Topics.start_smoothing`; in the place of the normal prior."""
        return START_PSEUDO_COUNTS

    def start_from_counts(self, word_counts: Tensor) -> None:
        """As :meth:`Topics.start_from_counts`, with pseudo-counts instead of the exact maximiser.

        The exact maximiser takes many times as long, and a start gains nothing by it.
        """
        self.set_(word_counts + self.start_smoothing)

    @contextmanager
    def updated_often(self) -> Iterator[None]:
        """As :meth:`Topics.updated_often`; but the M-step is one in the parameters themselves."""
        yield

    def gradient(self, word_counts: Tensor) -> Tensor:
        """Gradient of the log joint density in the logits, given expected counts n.

        n_kv − φ_kv Σ_v n_kv − b_kv/δ². The counts of a mini-batch, times num_docs/batch, give an
        unbiased estimate of the corpus's gradient, because the prior's part is there once.

        Args:
            word_counts: ``(num_topics, num_words)`` expected tokens.

        Returns:
            ``(num_words, num_topics)`` float64, as the logits lie.
        """
        counts, logits = word_counts.mT.double(), self.logits.detach().double()
        expected = torch.softmax(logits, 0) * counts.sum(0)
        return counts - expected - logits / self.scale**2

    @torch.no_grad()
    def m_step(self, word_counts: Tensor) -> None:
        """Set the topics to the maximiser of Σ_v n_v log softmax(b)_v − |b|²/2δ², each topic's.

        With N = Σ n_v, ω the Wright omega function and s = lse(b) the gradient is zero where
        x_v = δ²N φ_v is ω(δ²n_v + log(δ²N) − s), and Σ_v b_v = Σ_v (δ²n_v − x_v) = 0. That leaves
        one unknown a topic, s, and an equation that is convex and decreasing in it: Newton's steps
        converge, and rise monotonically after the first.

        Args:
            word_counts: ``(num_topics, num_words)`` expected tokens. A topic left without any
                becomes uniform, the prior's mode.
        """
        used = word_counts.sum(1) > 0
        pull = self.scale**2 * word_counts.mT.double().contiguous()[:, used]
        total = pull.sum(0)
        centre = pull + total.log()
        level = self.logits.double()[:, used].logsumexp(0)
        for count in range(NORMAL_STEPS):
            x = wright_omega(centre - level)
            # Two forms of the same number, each without the other's cancellation.
            logits = torch.where(x > 1.0, x.log() - total.log() + level, pull - x)
            step = -logits.sum(0) / (x / (1.0 + x)).sum(0)
            # A later step down is rounding.
            if count and bool((step <= NORMAL_TOLERANCE * level.abs()).all()):
                break
            # The logits sum to 0, so s is at least log V: no farther does a step from the right of
            # the root go, where the slope may be rounded away.
            level = (level + step).clamp_min(math.log(self.num_words))
        self.logits.zero_()
        self.logits[:, used] = (logits - logits.mean(0)).to(self.logits.dtype)

    def emit(self) -> Tensor:
        """Emit the site ``"topics"``; see :meth:`Topics.emit`.

        Its value is the logits ``(num_topics, num_words)``.
        """
        zero = self.logits.new_zeros(self.num_topics, self.num_words)
        logits = pyro.sample("topics", Normal(zero, self.scale).to_event(2))
        # Its sums are in pairs too, as in ``_softmax``.
        weights = (logits - logits.detach().amax(-1, keepdim=True)).exp()
        return weights / weights.sum(-1, keepdim=True)

    def log_prior(self, normalisers: Tensor | None = None) -> Tensor:
        """As :meth:`Topics.log_prior`; the normal prior's, at the current logits."""
        return -0.5 * self.logits.double().square().sum() / self.scale**2

    def extra_repr(self) -> str:
        """Sizes and scale, for ``repr``."""
        return f"{self.num_topics} topics, {self.num_words} words, scale={self.scale}"
