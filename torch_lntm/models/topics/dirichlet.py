"""Topics with a symmetric Dirichlet prior at its mode, and with deviations by level."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import torch
from pyro.distributions import Dirichlet, TorchDistribution
from torch import Tensor, nn

from torch_lntm.corpus import Corpus, DocumentBatch, WordVectors
from torch_lntm.errors import ConfigError, undefined
from torch_lntm.kernels.mixture import probability_floor
from torch_lntm.models.levels import Levels
from torch_lntm.models.topics.keywords import Keywords
from torch_lntm.models.topics.meaning import Meaning
from torch_lntm.models.topics.topics import Topics, TopicUpdate, softmax_of_words

#: Initial concentration of draws in a joint chain.
CONCENTRATION = 0.1
#: Smoothing that keeps all probabilities above their floor, up to 10¹⁸ tokens of a topic.
SMOOTH = 1e-9


class LogitTopics(Topics):
    """Topics parameterised by unnormalised log probabilities of their words.

    They are stored word by word, because that is how documents read them.

    Args:
        num_topics: Number of topics K.
        num_words: Size of the vocabulary V.
        content: As for :class:`Topics`.
        dtype: Floating-point type.

    Attributes:
        logits: ``(num_words, num_topics)`` parameter.
    """

    def __init__(
        self, num_topics: int, num_words: int, content: Levels | None, dtype: torch.dtype
    ) -> None:
        super().__init__(num_topics, num_words, content)
        self.logits = nn.Parameter(torch.empty(num_words, num_topics, dtype=dtype))

    def forward(self) -> Tensor:
        """See :meth:`Topics.forward`."""
        return self._softmax()[0].mT

    @property
    def double_probs(self) -> Tensor:
        """See :attr:`Topics.double_probs`."""
        return self._shared_probs().mT

    def _softmax(self) -> tuple[Tensor, Tensor]:
        """Word probabilities ``(num_words, num_topics)`` and log normalisers of the topics."""
        logits = self.logits if torch.is_grad_enabled() else self.logits.detach()
        if self.keywords is None:
            return softmax_of_words(logits)
        probs, normalisers = softmax_of_words(self._allowed(logits))
        return self._floored(probs), normalisers

    def _shared_probs(self) -> Tensor:
        """Probabilities ``(num_words, num_topics)`` of the logits, float64, detached."""
        logits = self._allowed(self.logits.detach().double())
        return self._floored(torch.softmax(logits, 0))

    def _allowed(self, logits: Tensor, value: float = -math.inf) -> Tensor:
        """Logits ``(..., num_words, num_topics)`` with a value for excluded keywords."""
        if self.keywords is None or not self.keywords.exclusive:
            return logits
        return self.keywords.exclude_(logits.clone(), value)

    def _floored(self, probs: Tensor) -> Tensor:
        """Probabilities with the floor for excluded keywords, so that logarithms stay finite."""
        return probs if self.keywords is None else probs.clamp_min(probability_floor(probs.dtype))

    @property
    def num_free_parameters(self) -> int:
        """See :attr:`Topics.num_free_parameters`."""
        return self.num_topics * (self.num_words - 1)

    @torch.no_grad()
    def set_(self, probs: Tensor) -> None:
        """See :meth:`Topics.set_`. The topics equal the probabilities."""
        # The logarithm of 0 is replaced by a finite number, to keep gradients finite.
        least = math.log(probability_floor(self.logits.dtype))
        self.logits.copy_(self.check_probs(probs).log().mT.clamp_min(least))


class DirichletTopics(LogitTopics):
    """Word probabilities of each topic, with a symmetric Dirichlet prior at their mode.

    Args:
        num_topics: Number of topics K.
        num_words: Size of the vocabulary V.
        smoothing: Pseudo-counts of every word in every topic, whose prior is Dirichlet(1 +
            smoothing). 0 gives maximum likelihood.
        probs: ``(num_topics, num_words)`` initial word probabilities. Defaults to random
            probabilities near uniform, drawn with ``generator``.
        keywords: Keywords of the first topics, each with pseudo-counts in its topic beside the
            smoothing; exclusive ones are absent from free topics (:class:`Keywords`). By default
            all topics are free.
        word_vectors: Vectors of the words, by which topics expect words of similar meaning
            (:class:`Meaning`). By default, words have none.
        vector_strength: Pseudo-tokens that the vectors give each topic. Defaults to a number that
            fits learn.
        content: As for :class:`Topics`, for subclasses.
        dtype: Floating-point type.
        generator: Random number generator of the default initial values.

    Attributes:
        meaning: What word vectors say of the topics, or ``None``.

    Raises:
        ConfigError: A size, ``smoothing`` or ``probs`` is out of range, the keywords need more
            topics or words, the vectors are of another number of words, or there is a strength
            without vectors.

    Example:
        >>> lntm.models.DirichletTopics(10, 500)
        DirichletTopics(10 topics, 500 words, smoothing=0.05)
    """

    # M-steps have a closed form.
    updates: ClassVar[tuple[TopicUpdate, ...]] = ("exact",)

    def __init__(
        self,
        num_topics: int,
        num_words: int,
        *,
        smoothing: float = 0.05,
        probs: Tensor | None = None,
        keywords: Keywords | None = None,
        word_vectors: WordVectors | None = None,
        vector_strength: float | None = None,
        content: Levels | None = None,
        dtype: torch.dtype = torch.float32,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(num_topics, num_words, content, dtype)
        if not smoothing >= 0:
            raise ConfigError(f"topic smoothing is {smoothing}; expected a number >= 0")
        self.smoothing = float(smoothing)
        self.meaning: Meaning | None = None
        self._deferred = False
        self._pseudo: float | Tensor | None = None
        self._draw_concentration = CONCENTRATION
        self.keywords = keywords
        if keywords is not None:
            keywords.check_sizes(num_topics, num_words)
        if word_vectors is None and vector_strength is not None:
            raise ConfigError("vector_strength is for word vectors; give word_vectors, too")
        if word_vectors is not None:
            if len(word_vectors.vectors) != num_words:
                raise ConfigError(
                    f"vectors of {len(word_vectors.vectors)} words; expected a row for each of "
                    f"{num_words} words of the vocabulary"
                )
            self.meaning = Meaning(word_vectors, num_topics, vector_strength, dtype)
            self.fitted_buffers |= {f"meaning.{name}" for name in Meaning.fitted}
        if probs is None:
            probs = near_uniform(num_topics, num_words, generator)
        self.set_(probs)

    @property
    def num_free_parameters(self) -> int:
        """See :attr:`Topics.num_free_parameters`. Excluded keywords do not count."""
        number = super().num_free_parameters
        if self.keywords is None:
            return number
        return number - len(self.keywords.excluded) * (self.num_topics - len(self.keywords))

    def sites(self) -> Mapping[str, TorchDistribution]:
        """See :meth:`Topics.sites`. The site ``"topics"`` holds the word probabilities.

        The prior for a smoothing of 0 is uniform, and proper.
        """
        pseudo = self._pseudo_tokens() + torch.zeros_like(self.logits)
        if self.keywords is not None:
            self.keywords.add_to_(pseudo.mT)
        return {"topics": Dirichlet(1.0 + pseudo.mT).to_event(1)}

    @property
    def belief(self) -> Tensor:
        """``(num_topics,)`` share of each topic's words that comes from the word vectors.

        It is 0 without vectors, and near 0 in a topic with many tokens.
        """
        none = self.logits.new_zeros(self.num_topics)
        return none if self.meaning is None else self.meaning.belief

    def prepare_(self, corpus: Corpus) -> None:
        """See :meth:`Topics.prepare_`. Counts the frequencies of words for their vectors."""
        super().prepare_(corpus)
        if self.meaning is not None:
            self.meaning.prepare_(corpus)

    @property
    def word_vectors(self) -> Tensor | None:
        """See :attr:`Topics.word_vectors`."""
        return None if self.meaning is None else self.meaning.vectors

    @property
    def learning_rounds(self) -> int:
        """See :attr:`Topics.learning_rounds`."""
        return 0 if self.meaning is None else self.meaning.learning_rounds

    @torch.no_grad()
    def prior_sums(
        self, word_counts: Tensor, documents: Iterable[tuple[DocumentBatch, Tensor]]
    ) -> dict[str, Tensor]:
        """See :meth:`Topics.prior_sums`. The sums determine the strength of the word vectors."""
        if self.meaning is None:
            return {}
        documents = ((self.assign_levels(batch), theta) for batch, theta in documents)
        return self.meaning.sums(*self._shared_counts(word_counts), self.probs.mT, documents)

    @torch.no_grad()
    def learn_(self, word_counts: Tensor, **sums: Tensor) -> None:
        """See :meth:`Topics.learn_`. Learns the topics' vectors and their strength."""
        if self.meaning is not None:
            self.meaning.learn_(*self._shared_counts(word_counts), **sums)

    def _shared_counts(self, word_counts: Tensor) -> tuple[Tensor, Tensor]:
        """``(num_words, num_topics)`` tokens of all levels, and pseudo-tokens of no vectors."""
        counts = word_counts.unflatten(1, (self.num_levels, self.num_words)).sum(1).to(self.dtype)
        others = torch.full_like(counts, self.smoothing)
        if self.keywords is not None:
            self.keywords.add_to_(others)
        return counts.mT.contiguous(), others.mT.contiguous()

    @torch.no_grad()
    def with_words(self, word_vectors: WordVectors) -> Topics:
        """See :meth:`Topics.with_words`. New words get what the topics' vectors expect of them."""
        if self.meaning is None:
            return super().with_words(word_vectors)
        meaning = self.meaning.with_words(word_vectors)
        prior = torch.as_tensor(self._pseudo_tokens())
        if self.keywords is not None:
            self.keywords.add_to_(prior.mT)
        further = meaning.pseudo_tokens()[self.num_words :]
        known = self.double_probs.mT * (self.meaning.tokens + prior.sum(0) - further.sum(0))
        further = (further + self.smoothing).clamp_min(probability_floor(self.dtype))
        probs = torch.cat([known, further]).mT
        options: dict[str, Any] = {"smoothing": self.smoothing, "keywords": self.keywords}
        longer = DirichletTopics(*probs.shape, probs=probs, **options, dtype=self.dtype)
        longer.meaning, longer.fitted_buffers = meaning, self.fitted_buffers
        return longer.to(self.device)

    def _pseudo_tokens(self) -> float | Tensor:
        """Pseudo-tokens beside those of keywords: ``(num_words, num_topics)``, or one number."""
        if self.meaning is None:
            return self.smoothing
        pseudo = self.meaning.pseudo_tokens().add_(self.smoothing)
        return pseudo if self.keywords is None else self.keywords.exclude_(pseudo, 0.0)

    def compute_probs(self, *, topics: Tensor) -> Tensor:  # type: ignore[override]
        """See :meth:`Topics.compute_probs`.

        Without the excluded keywords and normalised again, a Dirichlet vector has a Dirichlet
        distribution over the remaining words.
        """
        if self.keywords is None:
            return topics
        kept = self.keywords.exclude_(topics.mT.clone(), 0.0).mT
        return self._floored(kept / kept.sum(-1, keepdim=True))

    def latents(self) -> dict[str, Tensor]:
        """See :meth:`Topics.latents`."""
        return {"topics": self._softmax()[0].mT}

    def probs_and_log_prior(self) -> tuple[Tensor, Tensor]:
        """See :meth:`Topics.probs_and_log_prior`."""
        if self._cached is not None:
            return self.probs, self.log_prior()
        probs, normalisers = self._softmax()
        return probs.mT, self.log_prior(normalisers)

    def log_prior(self, normalisers: Tensor | None = None) -> Tensor:
        """See :meth:`Topics.log_prior`.

        Args:
            normalisers: Log-sum-exp of each topic's logits, float64. Computed by default.
        """
        if self.smoothing == 0 and self.keywords is None and self.meaning is None:
            return self.logits.new_zeros((), dtype=torch.float64)
        if normalisers is None:
            normalisers = self._softmax()[1]
        # Sum of all log probabilities, in float64 because rounding errors would add up over the
        # words.
        total = self.logits.sum(dtype=torch.float64)
        density, smoothing = self.smoothing * (total - self.num_words * normalisers.sum()), 0.0
        if self.meaning is None:
            smoothing = self.smoothing
        else:
            density = self._pseudo_tokens() * (self.logits - normalisers)
            density = density.sum(dtype=torch.float64)
        if self.keywords is not None:
            density = density + self.keywords.log_density(self.logits.mT, normalisers, smoothing)
        return density

    @contextmanager
    def updated_often(self) -> Iterator[None]:
        """See :meth:`Topics.updated_often`. M-steps set the probabilities only.

        The parameters, which are the logarithms of the probabilities, follow at the end of the
        context. With a small batch, a logarithm and a softmax in every update would take longer
        than all its other work.
        """
        before = self._cached = self.probs.detach()
        self._deferred, self._pseudo = True, self._pseudo_tokens()
        try:
            yield
        finally:
            # The logits stay bit-equal if there was no M-step.
            if self._cached is not before:
                with torch.no_grad():
                    self.logits.copy_(self._cached.mT.log())
            self._cached, self._deferred, self._pseudo = None, False, None

    @torch.no_grad()
    def m_step(self, word_counts: Tensor) -> None:
        """Set the topics to the maximiser given expected counts (*Khan & Bouchard 2009, eq. 41*).

        If the smoothing is 0, a topic without tokens stays the same, and a word without tokens gets
        a tiny probability instead of 0.

        Args:
            word_counts: ``(num_topics, num_words)`` expected tokens.
        """
        counts = word_counts.mT.to(self.logits.dtype).contiguous()
        tokens = word_counts.sum(1)
        total = tokens + self.num_words * self.smoothing
        probs = counts + (self._pseudo_tokens() if self._pseudo is None else self._pseudo)
        if self.meaning is not None:
            self.meaning.tokens.copy_(tokens)
            total = total + self.meaning.strength
        if self.keywords is not None:
            self.keywords.add_to_(probs.mT)
            total = probs.sum(0, dtype=torch.float64)
        probs.div_(total.to(counts.dtype))
        # Smoothed counts are far above the floor, whose check takes a fifth of the time.
        if self.keywords is not None or self.smoothing < SMOOTH:
            probs.clamp_min_(probability_floor(probs.dtype))
        new, old = (probs, self.probs.mT) if self._deferred else (probs.log_(), self.logits)
        if self.smoothing == 0:  # smoothing gives every topic mass, and `where` doubles the time
            new = torch.where(total > 0, new, old)
        if self._deferred:
            self._cached = new.mT
        else:
            self.logits.copy_(new)

    def start_(self, word_counts: Tensor) -> None:
        """See :meth:`Topics.start_`. Forgets what word vectors said of earlier topics."""
        if self.meaning is not None:
            self.meaning.forget_()
        super().start_(word_counts)

    @property
    def start_smoothing(self) -> float:
        """See :attr:`Topics.start_smoothing`. Equals the smoothing."""
        return self.smoothing

    def draw_(self, word_counts: Tensor, rng: np.random.Generator) -> None:
        """See :meth:`Topics.draw_`.

        The prior of the draw is Dirichlet(β + s), where s are the pseudo-tokens of keywords and
        word vectors, which stay as fitted. A fit's own prior, Dirichlet(1 + smoothing), suits modes
        but would pull draws towards uniform topics. Every draw first moves β by a slice step
        (:func:`drawn_concentration`), so that topics and β have a posterior together.
        """
        pseudo = word_counts.new_zeros(self.num_topics, 1)
        if self.meaning is not None:
            pseudo = self.meaning.pseudo_tokens().mT.to(word_counts)
        allowed = word_counts.new_full((self.num_topics,), self.num_words)
        if self.keywords is not None:
            pseudo = self.keywords.add_to_(pseudo + torch.zeros_like(word_counts))
            allowed[len(self.keywords) :] -= len(self.keywords.excluded)
        beta = drawn_concentration(self._draw_concentration, word_counts, pseudo, allowed, rng)
        self._draw_concentration = beta
        drawn = rng.standard_gamma((word_counts + pseudo + beta).numpy())
        self.set_(torch.from_numpy(drawn.clip(min=1e-300)).to(self.device))

    def extra_repr(self) -> str:
        """Sizes and smoothing, for ``repr``."""
        return f"{super().extra_repr()}, smoothing={self.smoothing}"


def near_uniform(num_topics: int, num_words: int, generator: torch.Generator | None) -> Tensor:
    """Random word probabilities ``(num_topics, num_words)`` near uniform.

    They vary by about 10 %, which is enough to tell the topics apart.
    """
    noise = torch.randn(num_words, num_topics, generator=generator, dtype=torch.float64)
    return torch.softmax(0.1 * noise, 0).mT


def drawn_concentration(
    concentration: float,
    counts: Tensor,
    pseudo: Tensor,
    num_words: Tensor,
    rng: np.random.Generator,
) -> float:
    """Symmetric part β of a Dirichlet's concentration after a slice step (*Neal 2003, §4*).

    The step is one of log β with stepping out, and leaves the posterior of β unchanged, with the
    topics integrated out. The prior is Gamma(1, 1), which has β between 0.025 and 3.7 with 95 %
    probability and matters only beside few words and tokens.

    Args:
        concentration: The current β.
        counts: ``(num_topics, num_words)`` float64.
        pseudo: ``(num_topics, num_words)`` s, the constant part of the concentration, or
            ``(num_topics, 1)`` zeros.
        num_words: ``(num_topics,)`` number of words that each topic may have, float64.
        rng: Random number generator.
    """
    sums, occurs = pseudo.sum(1), counts > 0
    tokens, known = counts[occurs], pseudo.expand_as(counts)[occurs]

    def log_density(x: float) -> float:
        words, topics = math.exp(x) + known, math.exp(x) * num_words + sums
        value = ((words + tokens).lgamma() - words.lgamma()).sum() + topics.lgamma().sum()
        return float(value - (topics + counts.sum(1)).lgamma().sum()) + x - math.exp(x)

    start = math.log(concentration)
    least = log_density(start) - rng.standard_exponential()
    low = start - rng.random()
    high = low + 1.0
    while log_density(low) > least:
        low -= 1.0
    while log_density(high) > least:
        high += 1.0
    while log_density(x := rng.uniform(low, high)) < least:
        low, high = (x, high) if x < start else (low, x)
    return math.exp(x)


#: Bound on the rounds of an M-step.
ROUNDS = 25


class LevelTopics(DirichletTopics):
    """Base class of topics with a shared part, and deviations from it by level of documents.

    An M-step improves factors of the word probabilities in rounds. Within :meth:`updated_often` it
    keeps the factors and makes a single round, and the parameters follow at the end of the context.
    A subclass defines :meth:`_factorised`, :meth:`_improved`, :meth:`_keep` and :meth:`forward`.
    """

    _factors: Any = None

    double_probs = Topics.double_probs
    with_words = Topics.with_words
    probs_and_log_prior = Topics.probs_and_log_prior

    @contextmanager
    def updated_often(self) -> Iterator[None]:
        """See :meth:`Topics.updated_often`. An M-step is a single round, in the model's dtype."""
        before = self._factors = self._factorised(self.logits.dtype)
        self._pseudo = self._pseudo_tokens()
        self._cached = before.probs(self.dtype).flatten(0, 1).mT
        try:
            yield
        finally:
            if self._factors is not before:
                self._keep(self._factors)
            self._cached = self._factors = self._pseudo = None

    @torch.no_grad()
    def m_step(self, word_counts: Tensor) -> None:
        """Raise the log joint density given expected counts. Repeated calls reach the maximum.

        Args:
            word_counts: ``(num_topics, num_levels * num_words)`` expected tokens.
        """
        often = self._factors is not None
        if self.meaning is not None:
            self.meaning.tokens.copy_(word_counts.sum(1))
        counts = word_counts.mT.unflatten(0, (self.num_levels, self.num_words))
        counts = self._allowed(counts, 0.0)
        factors = self._factors if often else self._factorised(torch.float64)
        factors = self._improved(counts, factors, 1 if often else ROUNDS)
        if often:
            self._factors, self._cached = factors, factors.probs(self.dtype).flatten(0, 1).mT
        else:
            self._keep(factors)

    def start_(self, word_counts: Tensor) -> None:
        """See :meth:`Topics.start_`. Forgets what word vectors said of earlier topics."""
        if self.meaning is not None:
            self.meaning.forget_()
        pseudo = torch.as_tensor(self._pseudo_tokens(), dtype=word_counts.dtype)
        counts = word_counts + pseudo.clamp_min(probability_floor(self.logits.dtype)).t()
        self.set_(counts if self.keywords is None else self.keywords.add_to_(counts))

    def _pseudo_counts(self, dtype: torch.dtype) -> float | Tensor:
        """Pseudo-counts of the shared part: ``(num_words, num_topics)``, or one number."""
        pseudo = self._pseudo_tokens() if self._pseudo is None else self._pseudo
        if self.keywords is not None:
            pseudo = pseudo + torch.zeros_like(self.logits, dtype=dtype)
            self.keywords.add_to_(pseudo.mT)
        return pseudo if isinstance(pseudo, float) else pseudo.to(dtype)

    def _factorised(self, dtype: torch.dtype) -> Any:
        """The parameters as factors of probabilities."""
        raise undefined(self, "_factorised")

    def _improved(self, counts: Tensor, factors: Any, rounds: int) -> Any:
        """Factors of a higher log joint density.

        Args:
            counts: ``(num_levels, num_words, num_topics)`` expected tokens.
            factors: The present factors.
            rounds: Largest number of rounds.
        """
        raise undefined(self, "_improved")

    def _keep(self, factors: Any) -> None:
        """Set the parameters from factors of probabilities."""
        raise undefined(self, "_keep")


def softmax_by_level(logits: Tensor) -> Tensor:
    """Probabilities ``(num_levels * num_words, num_topics)``; words of a level sum to 1.

    Args:
        logits: ``(num_levels, num_words, num_topics)``.
    """
    weights = (logits - logits.detach().amax(1, keepdim=True)).exp()
    return (weights / weights.sum(1, keepdim=True)).flatten(0, 1)
