"""DynamicTopics, whose words follow random walks over ordered periods."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from pyro.distributions import Normal, TorchDistribution
from torch import Tensor, nn

from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.errors import ConfigError, require_level, require_whole
from torch_lntm.kernels.contraction import sum_over_docs
from torch_lntm.kernels.mixture import probability_floor, word_probabilities
from torch_lntm.models.levels import Level, Periods
from torch_lntm.models.topics.dirichlet import LevelTopics, softmax_by_level
from torch_lntm.models.topics.topics import FixedTopics
from torch_lntm.solvers.walk_evidence import (
    DISPERSIONS,
    LEARNING_TOKENS,
    SCALES,
    Evidence,
    learn_weights,
    learned_variances,
    pseudo_weights,
)
from torch_lntm.solvers.walks import WalkHessian, WalkPrior, Walks, walking_words

#: Largest number of entries of a table of words by topics by periods.
LARGEST_TABLE = 2**28
#: Least scale that users may set. Its inverse is the largest.
LEAST_SCALE = 1e-10


class DynamicTopics(LevelTopics):
    """Topics whose word probabilities move from period to period.

    Each word of a topic follows a random walk: φ_tkv ∝ exp(logits_kv + path_tkv), whose steps are
    path_tkv − path_(t−1)kv ~ Normal(0, s²_kv Δ_t) for the gap Δ_t between the periods (*Blei &
    Lafferty 2006; Wang, Blei & Heckerman 2008*). Paths have mean 0 over the training tokens, so
    that the logits are a word's level, with the prior of :class:`DirichletTopics`. Because most
    words of a topic stand still and only a few move, an M-step learns the variance s²_kv of every
    word by its evidence, together with the prior that all words share.

    Errors know that the topics of the tokens are latent (*Louis 1982*). Let r be the topics' shares
    of each token, and hold the normalisers. Known topics would give a word's logits in all topics
    the information Σ c diag(r), and the covariance Σ c (diag(r) − r rᵀ) of the topics takes away
    all but Σ c r rᵀ. If the logits of the other topics have one common error, one topic is left
    with Σ c r² − (Σ c r (1 − r))² / Σ c (1 − r)². This is 0 if all tokens have equal shares, and
    ``certainty`` is its ratio to Σ c r, pooled over the periods.

    Args:
        num_topics: Number of topics K.
        num_words: Size of the vocabulary V.
        periods: The T periods.
        scale: Standard deviation s of all steps over the mean gap. Defaults to a deviation for each
            word of each topic, learned by M-steps.
        **settings: Settings of :class:`DirichletTopics` for the levels, such as ``smoothing``,
            ``probs``, ``keywords`` and ``dtype``.

    Attributes:
        logits: ``(num_words, num_topics)`` levels.
        steps: ``(num_periods - 1, num_words, num_topics)`` steps of the paths.
        variances: ``(num_words, num_topics)`` variances s² of a step over the mean gap.
        dispersion: ``(num_words, num_topics)`` variance of the tokens of a word over Poisson's.
            Because documents repeat words, a token says less about a path, and ``dispersion`` ·
            ``variances`` is the variance of a step.
        repeats: ``(num_words,)`` tokens of a word in the document of its average token. Fits count
            them, because dispersions are at least those that the documents show.
        length: Tokens of all words in the document of an average token, also counted.
        scale_weights: Weights of the scales in the prior of the words
            (:data:`~torch_lntm.solvers.walk_evidence.SCALES`).
        dispersion_weights: The same for the dispersions.
        certainty: ``(num_words, num_topics)`` share of the tokens' information that is left because
            their topics are unknown. Fits by EM learn it at their end; it is 1 before.
        tokens: ``(num_periods, num_topics)`` expected tokens of the last M-step, which determine
            the width of bands.

    Raises:
        ConfigError: A size, ``scale``, ``smoothing`` or ``probs`` is out of range, or the table of
            T · V · K probabilities is too large.

    Example:
        >>> years = lntm.models.Periods.of(posts, "~ rw(year)")
        >>> topics = lntm.models.DynamicTopics(5, posts.num_words, years)
        >>> topics.num_levels > 1, topics.at(2030).num_words == posts.num_words
        (True, True)
    """

    content: Periods
    variances: Tensor
    dispersion: Tensor
    certainty: Tensor
    tokens: Tensor
    repeats: Tensor
    length: Tensor
    scale_weights: Tensor
    dispersion_weights: Tensor
    determined: Tensor
    shares: Tensor
    gaps: Tensor

    def __init__(
        self,
        num_topics: int,
        num_words: int,
        periods: Periods,
        *,
        scale: float | None = None,
        **settings: Any,
    ) -> None:
        if scale is not None and not LEAST_SCALE <= scale <= 1 / LEAST_SCALE:
            raise ConfigError(
                f"content scale is {scale}; expected a number from {LEAST_SCALE} to "
                f"{1 / LEAST_SCALE:g}, or None for scales by evidence"
            )
        count = len(periods.levels)
        size = num_topics * num_words * count
        if size > LARGEST_TABLE:
            raise ConfigError(
                f"{count} periods, {num_words:,} words and {num_topics} topics make tables of "
                f"{size:,} numbers; expected at most {LARGEST_TABLE:,}. Take longer periods "
                "(rw(date, bins='year'), rw(day, width=30)), fewer topics, or fewer words"
            )
        super().__init__(num_topics, num_words, content=periods, **settings)
        self.scale = None if scale is None else float(scale)
        # A word is still if its tokens could move its path by at most this number.
        self.still = 0.03
        self._visits = 0
        self.steps = nn.Parameter(self.logits.new_zeros(count - 1, num_words, num_topics))
        for name in ("shares", "gaps"):
            tensor = torch.tensor(getattr(periods, name), dtype=torch.float64)
            self.register_buffer(name, tensor, persistent=False)
        shapes: dict[str, tuple[int, ...]] = {
            "variances": (num_words, num_topics),
            "tokens": (count, num_topics),
            "dispersion": (num_words, num_topics),
            "certainty": (num_words, num_topics),
            "repeats": (num_words,),
            "length": (),
            "scale_weights": (len(self._scales),),
            "dispersion_weights": (len(DISPERSIONS),),
            "determined": (),
        }
        self.fitted_buffers |= frozenset(shapes)
        for name, shape in shapes.items():
            self.register_buffer(name, self.logits.detach().new_zeros(shape))
        self.repeats.fill_(1.0)
        self._forget()

    @property
    def paths(self) -> Tensor:
        """``(num_periods, num_words, num_topics)`` deviations of the logits from the levels."""
        return self._paths(self.steps.detach())

    @property
    def differing_words(self) -> Tensor:
        """See :attr:`Topics.differing_words`. Words with a path of their own."""
        return self._moves(self.steps.detach()).mT

    @property
    def num_free_parameters(self) -> int:
        """See :attr:`Topics.num_free_parameters`. Steps count as far as tokens determine them."""
        return self.num_topics * (self.num_words - 1) + round(float(self.determined))

    @torch.no_grad()
    def set_(self, probs: Tensor) -> None:
        """See :meth:`Topics.set_`. All steps become 0, and variances start anew."""
        super().set_(probs)
        if hasattr(self, "steps"):  # the base class sets the topics before steps exist
            self._forget()

    def prepare_(self, corpus: Corpus) -> None:
        """See :meth:`Topics.prepare_`. Counts how often documents repeat each word."""
        super().prepare_(corpus)
        whole = corpus.whole
        repeats = whole.word_squares / np.maximum(whole.word_totals, 1)
        self.repeats.copy_(torch.from_numpy(np.maximum(repeats, 1.0)))
        self.length.fill_(whole.square_lengths / max(whole.num_tokens, 1))

    def sites(self) -> Mapping[str, TorchDistribution]:
        """See :meth:`Topics.sites`: ``"topics"`` (levels) and ``"steps"``."""
        gaps = self.gaps.to(self.dtype)[:, None]
        scale = (self.variances.mT.unsqueeze(1) * gaps).sqrt()
        return {**super().sites(), "steps": Normal(torch.zeros_like(scale), scale).to_event(3)}

    def compute_probs(  # type: ignore[override]
        self, *, topics: Tensor, steps: Tensor
    ) -> Tensor:
        """See :meth:`Topics.compute_probs`."""
        paths = self._paths(steps.movedim(-2, 0)).movedim(0, -2)
        topics = super().compute_probs(topics=topics)
        return torch.softmax(topics.log().unsqueeze(-2) + paths, -1).flatten(-2)

    def latents(self) -> dict[str, Tensor]:
        """See :meth:`Topics.latents`."""
        return super().latents() | {"steps": self.steps.permute(2, 0, 1)}

    def log_prior(self, normalisers: Tensor | None = None) -> Tensor:
        """See :meth:`Topics.log_prior`. The steps' prior is added, for the present variances."""
        weights = 1 / (self.gaps[:, None, None] * self.variances.double())
        energy = (self.steps.double().square() * weights).sum()
        return super().log_prior(normalisers) - 0.5 * energy

    # -- views -------------------------------------------------------------------------------------

    def at(self, level: Level | None = None) -> FixedTopics:
        """See :meth:`Topics.at`.

        Args:
            level: A value of the column, or the name of a period. Between two periods the logits
                are interpolated; outside of all periods they stay constant, because a random walk
                has no trend. Defaults to the mean over periods.

        Raises:
            ConfigError: The value is no number or date.

        Example:
            >>> by_year = lntm.models.stm(5, posts, content="~ rw(year)").topics
            >>> by_year.at(2030).num_topics
            5
        """
        if level is None:
            return super().at()
        return FixedTopics(self._logits_at([level])[0].softmax(0).mT.to(self.dtype))

    @torch.no_grad()
    def drift(self) -> Tensor:
        """``(num_topics, num_periods)`` float64: distance of every topic from its first period.

        It is the total variation, the share of the topic's tokens that would have to be other
        words. Noise alone makes it positive; see :meth:`noise_drift`.
        """
        probs = self.double_probs.unflatten(1, (self.num_levels, self.num_words))
        return 0.5 * (probs - probs[:, :1]).abs().sum(-1)

    @torch.no_grad()
    def noise_drift(self) -> Tensor:
        """``(num_topics, num_periods)`` float64: :meth:`drift` to expect if no word moved.

        The tokens of every period then differ from their expectation by chance alone, and each
        moving word turns this noise into a change of its path, as the learned variances allow.
        """
        found = torch.zeros(self.num_topics, self.num_levels, dtype=torch.float64)
        moves = self._moves(self.steps)
        for k in range(self.num_topics):
            words = moves[:, k].nonzero().squeeze(1)
            _, dispersion, hessian = self._walk_variance(k, words, certainty=False)
            probs = self._logits_at(self.content.levels, k).softmax(1)[:, words]
            expected = self.tokens.double()[:, k, None] * probs
            for t in range(1, self.num_levels):
                contrast = torch.zeros_like(probs)
                contrast[0], contrast[t] = -1, 1
                variance = dispersion * (hessian.solve(contrast).square() * expected).sum(0)
                # The mean size of a normal number is √(2/π) standard deviations.
                found[k, t] = (probs[0] * (variance / (2 * math.pi)).sqrt()).sum()
        return found

    @torch.no_grad()
    def log_paths(
        self, topic: int, words: Sequence[int] | None = None, values: Sequence[Level] | None = None
    ) -> LogPaths:
        """Log probabilities of words over time, with their standard errors.

        The errors cover the uncertainty of the paths and of the tokens' topics, to which the random
        walk adds its variance between periods and beyond the last.

        Args:
            topic: The topic's number.
            words: Positions of the words in the vocabulary. Defaults to all words.
            values: Periods, or further values of the column. Defaults to the periods.

        Raises:
            ConfigError: The topic is unknown, or a value is no number or date.
        """
        require_whole(0, topic=topic)
        if topic >= self.num_topics:
            raise ConfigError(f"topic {topic}; expected a number below {self.num_topics}")
        selected = slice(None) if words is None else torch.as_tensor(list(words))
        values = self.content.levels if values is None else values
        logits = self._logits_at(values, topic)
        log_probs = logits - logits.logsumexp(1, keepdim=True)
        log_probs = log_probs.clamp_min(math.log(probability_floor(log_probs.dtype)))
        variance, dispersion, hessian = self._walk_variance(topic, selected)
        own = dispersion * hessian.variances()
        rows = []
        for value in values:
            left, weight, beyond = self._between(value)
            row = own[left]
            if weight > 0:
                both = 2 * weight * (1 - weight) * hessian.ahead[left] * own[left + 1]
                row = (1 - weight) ** 2 * row + weight**2 * own[left + 1] + both
                row = row + weight * (1 - weight) * variance * self.gaps[left]
            rows.append((row + variance * beyond).sqrt())
        return LogPaths(tuple(values), log_probs[:, selected], torch.stack(rows))

    @torch.no_grad()
    def log_changes(
        self, topic: int, first: Level | None = None, last: Level | None = None
    ) -> tuple[Tensor, Tensor]:
        """Changes of the log probabilities between two periods, and their standard errors.

        Args:
            topic: The topic's number.
            first: The earlier period. Defaults to the first.
            last: The later period. Defaults to the last.

        Returns:
            Two tensors ``(num_words,)``, float64.

        Raises:
            ConfigError: The topic or a period is unknown.
        """
        levels = self.content.levels
        early = self.content.position(levels[0] if first is None else first)
        late = self.content.position(levels[-1] if last is None else last)
        log_probs = self.log_paths(topic).log_probs
        _, dispersion, hessian = self._walk_variance(topic, slice(None))
        contrast = torch.zeros_like(hessian.pivots)
        contrast[early] -= 1
        contrast[late] += 1
        variance = dispersion * (contrast * hessian.solve(contrast)).sum(0)
        return log_probs[late] - log_probs[early], variance.clamp_min(0.0).sqrt()

    def extra_repr(self) -> str:
        """Sizes, smoothing and periods, for ``repr``."""
        periods, scale = self.content, "by evidence" if self.scale is None else f"{self.scale:g}"
        return (
            f"{self.num_topics} topics, {self.num_words} words, {self.num_levels} periods of "
            f"{periods.column} from {periods.levels[0]} to {periods.levels[-1]}, "
            f"smoothing={self.smoothing}, scale {scale}"
        )

    # -- fitting -----------------------------------------------------------------------------------

    def _improved(self, counts: Tensor, factors: Walks, rounds: int) -> Walks:
        prior = self._prior()
        walks = walking_words(
            counts,
            factors,
            prior,
            still=self.still,
            fewest=LEARNING_TOKENS if self.scale is None else 0.0,
            floor=probability_floor(self.logits.dtype),
            rounds=rounds,
            # Tolerance of an M-step, in nats per token.
            tolerance=1e-6,
        )
        self.tokens.copy_(counts.sum(1))
        self._visits += 1
        # Of many M-steps in a row, these learn variances: the first, and each of this distance.
        if len(self.gaps) and (rounds > 1 or self._visits % 16 == 1):
            self._learn(counts, walks)
        return walks

    @torch.no_grad()
    def last_sums(self, documents: Iterable[tuple[DocumentBatch, Tensor]]) -> dict[str, Tensor]:
        """See :meth:`Topics.last_sums`: Σ c r and Σ c r² of every word and topic."""
        probs = self.double_probs
        totals = probs.new_zeros(2, self.num_words, self.num_topics)
        for batch, theta in documents:
            batch, theta = self.assign_levels(batch).to(dtype=torch.float64), theta.double()
            mixed = word_probabilities(theta, probs, batch)
            for power, total in enumerate(totals, 1):
                own = sum_over_docs(batch.counts / mixed**power, theta**power, batch)
                own *= probs.mT**power
                total += own.unflatten(0, (-1, self.num_words)).sum(0)
        return {"tokens": totals[0], "squares": totals[1]}

    @torch.no_grad()
    def settle_(self, tokens: Tensor, squares: Tensor) -> None:  # type: ignore[override]
        """See :meth:`Topics.settle_`. Pseudo-tokens have known topics."""
        pseudo = self._prior().smoothing + 1e-12
        tokens, squares = tokens + pseudo, squares + pseudo
        unsure = tokens - squares
        others = (tokens.sum(1, keepdim=True) - tokens - unsure).clamp_min(1e-12)
        self.certainty.copy_(((squares - unsure.square() / others) / tokens).clamp(1e-6, 1.0))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        # Older files lack it.
        state_dict.setdefault(f"{prefix}certainty", torch.ones_like(self.certainty))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _learn(self, counts: Tensor, walks: Walks) -> None:
        """Learn variances and dispersions by their evidence."""
        repeats, length = self.repeats.double(), float(self.length)
        evidence = Evidence.of(counts, walks, self.gaps, repeats, length, self._scales)
        weights = self.scale_weights.double(), self.dispersion_weights.double()
        learn_weights(evidence, *weights)
        variances, dispersion = learned_variances(evidence, *weights)
        self.scale_weights.copy_(weights[0])
        self.dispersion_weights.copy_(weights[1])
        self.variances.copy_(variances.view_as(self.variances))
        self.dispersion.copy_(dispersion.view_as(self.dispersion))
        followed = (evidence.tokens * variances)[walks.moving]
        self.determined.copy_(len(self.gaps) * (followed / (1 + followed)).sum())

    @torch.no_grad()
    def _factorised(self, dtype: torch.dtype) -> Walks:
        """The parameters as factors, in float64 because most words need only a few numbers."""
        self._visits = 0
        level = self._shared_probs()
        steps = self.steps.detach()
        moving = self._moves(steps).flatten().nonzero().squeeze(1)
        rarest = level.argmin(0)[None, None].expand(len(steps), 1, -1)
        shift = self._paths(steps.gather(1, rarest).double()).squeeze(1)
        return Walks(level, shift, moving, self._paths(steps.flatten(1)[:, moving].double()))

    @torch.no_grad()
    def _keep(self, factors: Walks) -> None:
        self.logits.copy_(factors.level.log())
        self.steps.copy_(factors.shift.diff(dim=0)[:, None].expand_as(self.steps))
        if len(self.gaps):
            own = factors.paths.diff(dim=0).to(self.dtype)
            self.steps.view(len(self.gaps), -1)[:, factors.moving] = own

    def forward(self) -> Tensor:
        """See :meth:`Topics.forward`."""
        logits = self._allowed(self.logits) + self._paths(self.steps)
        return self._floored(softmax_by_level(logits)).mT

    def _paths(self, steps: Tensor) -> Tensor:
        """Paths ``(num_periods, ...)`` of mean 0 over the shares, from steps."""
        paths = torch.cat([steps.new_zeros(1, *steps.shape[1:]), steps.cumsum(0)])
        return paths - torch.tensordot(self.shares.to(paths.dtype), paths, 1)

    def _moves(self, steps: Tensor) -> Tensor:
        """``(num_words, num_topics)`` whether the steps differ from those of the rarest word."""
        rarest = self._shared_probs().argmin(0)[None, None].expand(len(steps), 1, -1)
        return (steps != steps.gather(1, rarest)).any(0)

    def _prior(self) -> WalkPrior:
        variances = self.variances.double()
        pseudo = torch.as_tensor(self._pseudo_counts(torch.float64), dtype=torch.float64)
        pseudo = pseudo.to(self.device).expand_as(variances)
        return WalkPrior(pseudo, self.shares.double(), self.gaps.double(), variances)

    @torch.no_grad()
    def _forget(self) -> None:
        """Set steps to 0, and variances to those of the start."""
        # Standard deviation of a step over the mean gap, at the start of a fit.
        start = 0.03 if self.scale is None else self.scale
        self.steps.zero_()
        self.tokens.zero_()
        self.variances.fill_(start**2)
        self.dispersion.fill_(1.0)
        self.certainty.fill_(1.0)
        self.determined.zero_()
        scales, dispersions = (
            torch.tensor(x, dtype=torch.float64) for x in (self._scales, DISPERSIONS)
        )
        of_scales, of_dispersions = pseudo_weights(scales, dispersions)
        self.scale_weights.copy_(of_scales)
        self.dispersion_weights.copy_(of_dispersions)

    @property
    def _scales(self) -> tuple[float, ...]:
        """Scales of words, of which the evidence chooses."""
        return SCALES if self.scale is None else (self.scale,)

    # -- periods and values between them -----------------------------------------------------------

    def _between(self, value: Level) -> tuple[int, float, float]:
        """The period before a value, the weight of the next one, and the gap to all periods."""
        place, known = self.content.place(value), np.array(self.content.positions)
        unit = float(np.diff(known).mean()) if len(known) > 1 else 1.0
        if place >= known[-1] or place < known[0]:
            nearest = len(known) - 1 if place >= known[-1] else 0
            return nearest, 0.0, abs(place - float(known[nearest])) / unit
        left = int(np.searchsorted(known, place, side="right")) - 1
        return left, float((place - known[left]) / (known[left + 1] - known[left])), 0.0

    @torch.no_grad()
    def _logits_at(self, values: Sequence[Level], topic: int | None = None) -> Tensor:
        """Logits at some values, ``(num_values, num_words, num_topics)``, or of a single topic."""
        columns: slice | int = slice(None) if topic is None else topic
        logits = self._allowed(self.logits.double())[:, columns]
        paths = self._paths(self.steps[..., columns].double())
        rows = []
        for value in values:
            left, weight, _ = self._between(value)
            path = paths[left]
            if weight > 0:
                path = (1 - weight) * path + weight * paths[left + 1]
            rows.append(logits + path)
        return torch.stack(rows)

    def _walk_variance(
        self, topic: int, words: slice | Tensor, certainty: bool = True
    ) -> tuple[Tensor, Tensor, WalkHessian]:
        """Variances of the steps of words, their dispersions, and the Hessian of their paths.

        Args:
            topic: The topic's number.
            words: Positions of the words.
            certainty: Whether tokens count by their certainty, because their topics are unknown.
        """
        variance = self.variances.double()[words, topic]
        dispersion = self.dispersion.double()[words, topic]
        probs = self._logits_at(self.content.levels, topic).softmax(1)[:, words]
        expected = self.tokens.double()[:, topic, None] * probs
        if certainty:
            expected = expected * self.certainty.double()[words, topic]
        precisions = 1 / (self.gaps.double()[:, None] * variance)
        return (
            dispersion * variance,
            dispersion,
            WalkHessian.of(expected.clamp_min(1e-12), precisions),
        )


class LogPaths(NamedTuple):
    """Log probabilities of words over time.

    Attributes:
        values: The periods, or values of the column.
        log_probs: ``(num_values, num_words)`` log probabilities, float64.
        errors: ``(num_values, num_words)`` their standard errors.
    """

    values: tuple[Level, ...]
    log_probs: Tensor
    errors: Tensor

    def bands(self, level: float = 0.95) -> tuple[Tensor, Tensor, Tensor]:
        """Probabilities, and the lower and upper ends of their intervals.

        Args:
            level: Probability of the intervals, at every period by itself.

        Raises:
            ConfigError: The level is not between 0 and 1.
        """
        width = quantile_of(level) * self.errors
        lower, upper = (self.log_probs - width).exp(), (self.log_probs + width).exp()
        return self.log_probs.exp(), lower, upper.clamp_max(1.0)


def quantile_of(level: float) -> float:
    """Half the width of a normal interval, in standard errors.

    Raises:
        ConfigError: The level is not between 0 and 1.
    """
    require_level(level)
    return float(torch.special.ndtri(torch.tensor(0.5 + 0.5 * level, dtype=torch.float64)))


def require_moving(topics: object) -> DynamicTopics:
    """The topics, if their words move with time.

    Raises:
        ConfigError: They do not.
    """
    if not isinstance(topics, DynamicTopics):
        raise ConfigError(
            "the words of the model's topics do not move with time; make it by "
            "models.stm(num_topics, corpus, content='~ rw(year)')"
        )
    return topics
