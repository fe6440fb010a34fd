"""DirichletMultinomial, the likelihood of documents that repeat their words.

The words of document d are drawn from p_d ~ Dirichlet(a s_d), where s_d is the mixture of topics
(*Doyle & Elkan 2009, Accounting for burstiness in topic models*). Integrating out p_d gives the
probability of its N tokens in a given order,

    Γ(a) / Γ(a + N) Π_v Γ(c_v + x_v) / Γ(x_v)        x_v = a s_v,

where the product only runs over words with a stored count c_v. As a grows, the words become
independent draws from s_d.

The first token of a word always comes from the topics, whereas a later one often repeats an earlier
token. The number of tokens from the topics has the expectation

    t_v = x_v (ψ(c_v + x_v) − ψ(x_v))    between 1 and c_v, and 1 for c_v = 1.

The expectation is the derivative of the log probability in log s_v. For any x, the terms of t
independent draws bound the terms from below, with equality at y = x (*Minka 2000, Estimating a
Dirichlet distribution, appendix*),

    log Γ(c + y) / Γ(y)  ≥  log Γ(c + x) / Γ(x) + t (log y − log x).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from torch_lntm.corpus import DocumentBatch
from torch_lntm.errors import ConfigError
from torch_lntm.kernels.likelihood import INDEPENDENT, Cells, CountLikelihood
from torch_lntm.models.parts import is_up_to_date
from torch_lntm.models.words.words import Words

#: Bounds of a fitted concentration. At the upper bound, words are almost independent draws.
LOWEST, HIGHEST = 1e-3, 1e7


class DirichletMultinomial(Words):
    """Likelihood of documents that repeat their words, with concentration a.

    After N tokens of a document, the next token comes from the topics with probability a / (a + N),
    and otherwise repeats one of the N tokens. Topics then depend less on single documents.

    Args:
        concentration: Initial value of a, in tokens. After a tokens of a document, these tokens
            weigh as much as the topics in the prediction of the next token.
        dtype: Floating-point type of the parameter.

    Attributes:
        log_concentration: log a ``()``, a parameter with a flat prior.

    Raises:
        ConfigError: ``concentration`` is not a single positive, finite number.

    Example:
        >>> bursty = lntm.models.ctm(10, 500, bursty=True)
        >>> bursty.words, round(bursty.words.cache_weight, 3)
        (DirichletMultinomial(), 200.0)
    """

    def __init__(self, concentration: float = 200.0, *, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        number = torch.as_tensor(concentration, dtype=torch.float64)
        if number.dim() > 0 or not 0 < float(number) < math.inf:
            raise ConfigError(f"concentration is {concentration}; expected one positive number")
        self.log_concentration = nn.Parameter(number.log().to(dtype))

    @property
    def concentration(self) -> Tensor:
        """Concentration a ``()``, float64, differentiable."""
        return self.log_concentration.double().exp()

    @property
    def compiled_concentration(self) -> float | None:
        """See :attr:`CountLikelihood.compiled_concentration`. The concentration a."""
        density = "log_terms", "tokens", "slopes", "length_term"
        known = is_up_to_date(self, "compiled_concentration", *density)
        return self.cache_weight if known else None

    @property
    def cache_weight(self) -> float:
        """See :attr:`Words.cache_weight`. The weight is a."""
        return float(self.concentration.detach())

    def log_terms(self, probability: Tensor, cells: Cells) -> Tensor:
        """See :meth:`CountLikelihood.log_terms`. Differentiable in the concentration too."""
        rate = self.concentration.to(probability.device) * probability.double()
        at, counts = cells.repeated
        rising = log_rising(counts, rate[..., at])
        if isinstance(at, slice):  # the first cells of each row
            single = slice(counts.shape[-1], None)
            return torch.cat([rising, rate[..., single].log() * cells.counts[..., single]], -1)
        return rate.log().index_copy(-1, at, rising)

    def tokens(self, probability: Tensor, cells: Cells) -> Tensor:
        """See :meth:`CountLikelihood.tokens`."""
        tokens = cells.counts.to(probability.dtype).expand_as(probability).clone()
        at, counts = cells.repeated
        tokens[..., at] = self._tokens_at(probability[..., at], counts)
        return tokens

    def slopes(self, probability: Tensor, cells: Cells) -> Tensor:
        """See :meth:`CountLikelihood.slopes`."""
        slopes = cells.counts / probability
        at, counts = cells.repeated
        repeated = probability[..., at]
        slopes[..., at] = self._tokens_at(repeated, counts) / repeated
        return slopes

    def _tokens_at(self, probability: Tensor, counts: Tensor) -> Tensor:
        rate = self.concentration.detach() * probability.double()
        return tokens_from_topics(counts, rate).to(probability.dtype)

    def length_term(self, lengths: Tensor) -> Tensor:
        """See :meth:`CountLikelihood.length_term`."""
        a = self.concentration
        return torch.lgamma(a) - torch.lgamma(a + lengths.double())

    def for_single_tokens(self) -> CountLikelihood:
        """See :meth:`CountLikelihood.for_single_tokens`. The first token is an independent draw."""
        return INDEPENDENT

    @torch.no_grad()
    def statistics(
        self, probability: Tensor, batch: DocumentBatch, weights: Tensor | None = None
    ) -> dict[str, Tensor]:
        """See :meth:`Words.statistics`: ``log_concentration`` ``(2,)`` float64.

        The entries are −h and g − h log a, for the first and second derivatives g and h of the log
        likelihood in log a. Their sums determine the maximum even if the batches were visited at
        different values of a, unlike the sums of g alone.
        """
        a, lengths = self.concentration, batch.lengths.double()
        entries, counts = batch.repeated
        # The bound keeps the square of the rate positive for words outside all topics.
        rate = (a * probability[entries].double()).clamp_min(1e-100)
        tokens = tokens_from_topics(counts, rate)
        bend = rate.square() * (torch.polygamma(1, counts + rate) - torch.polygamma(1, rate))
        # A word with a single token has the derivatives 1 and 0.
        of_words = torch.stack([tokens - 1.0, tokens + bend])
        shared = a * (torch.digamma(a + lengths) - torch.digamma(a))
        shared_bend = a.square() * (torch.polygamma(1, a + lengths) - torch.polygamma(1, a))
        of_documents = torch.stack([batch.row_offsets.diff() - shared, -shared - shared_bend])
        if weights is not None:
            of_documents = of_documents * weights.double()
            of_words = of_words * weights.double()[batch.row_index[entries]]
        slope, curvature = of_documents.sum(1) + of_words.sum(1)
        line = slope - curvature * self.log_concentration.double()
        return {"log_concentration": torch.stack([-curvature, line])}

    @torch.no_grad()
    def m_step(self, *, log_concentration: Tensor) -> None:  # type: ignore[override]
        """Step in log a towards the maximum of the log likelihood, by sums over all batches.

        Near the maximum the log likelihood is concave, and this is a Newton step of at most 1.
        Where it is convex the step has size 1, which may lower the log likelihood slightly.
        """
        bend, line = log_concentration
        current = self.log_concentration.double()
        slope = line - bend * current
        # The step has the largest size if the log likelihood is convex or nearly flat, and is 0 if
        # the slope is negligible too.
        # The largest change of log a is 1, and a curvature of 1e-6 tokens counts as 0.
        step = slope / torch.maximum(bend, slope.abs()).clamp_min(1e-6)
        self.log_concentration.copy_((current + step).clamp(math.log(LOWEST), math.log(HIGHEST)))

    @torch.no_grad()
    def draw_words(
        self, words: Tensor, document: Tensor, generator: torch.Generator | None
    ) -> Tensor:
        """See :meth:`CountLikelihood.draw_words`.

        After N tokens, the next token copies one of them with probability N / (a + N).
        """
        token = torch.arange(len(document), device=document.device)
        first = torch.searchsorted(document, document)
        before = token - first
        chance, choice = torch.rand(
            2, len(document), generator=generator, dtype=torch.float64, device=document.device
        )
        copies = chance * (self.concentration + before) < before
        source = torch.where(copies, first + (choice * before).long(), token)
        # Copies of copies: follow the sources to their first token.
        while not torch.equal(source[source], source):
            source = source[source]
        return words[source]

    @torch.no_grad()
    def draw_tokens(
        self, probability: Tensor, batch: DocumentBatch, rng: np.random.Generator
    ) -> Tensor:
        """See :meth:`Words.draw_tokens`.

        A token that follows i tokens of its word came from the topics with probability x / (x + i).
        """
        counts = batch.counts.round().long()
        entry = torch.arange(batch.nnz, device=batch.device).repeat_interleave(counts)
        earlier = torch.arange(len(entry), device=batch.device) - (counts.cumsum(0) - counts)[entry]
        rate = (self.concentration * probability)[entry]
        u = torch.from_numpy(rng.random(len(rate))).to(rate)
        return torch.bincount(entry[u * (rate + earlier) <= rate], minlength=batch.nnz)

    @torch.no_grad()
    def overdispersion(self, lengths: Tensor) -> Tensor:
        """See :meth:`Words.overdispersion`. The ratio is (N + a) / (1 + a)."""
        return (lengths + self.concentration) / (1 + self.concentration)


def tokens_from_topics(counts: Tensor, rate: Tensor) -> Tensor:
    """Expected tokens that came from the topics, x (ψ(c + x) − ψ(x)).

    Args:
        counts: c, float64.
        rate: x = a s, positive, float64, broadcast against the counts.
    """
    return rate * (torch.digamma(counts + rate) - torch.digamma(rate))


def log_rising(counts: Tensor, rate: Tensor) -> Tensor:
    """Log Γ(c + x) − log Γ(x), with the arguments of :func:`tokens_from_topics`."""
    return torch.lgamma(counts + rate) - torch.lgamma(rate)
