"""DirichletMultinomial: documents that repeat their words.

The words of document d are drawn from p_d ~ Dirichlet(a s_d), with s_d the mixture of topics
(*Doyle & Elkan 2009, Accounting for burstiness in topic models*). With p_d integrated out, the
probability of its N tokens in a given order is

    Γ(a) / Γ(a + N) Π_v Γ(c_v + x_v) / Γ(x_v)        x_v = a s_v,

over the stored counts c alone. As a grows, the words become independent draws from s_d.

The first token of a word always comes from the topics, and a later one often repeats it. The number
of tokens that came from the topics has the expectation

    t_v = x_v (ψ(c_v + x_v) − ψ(x_v))    between 1 and c_v, and 1 where c_v is 1.

It is the derivative of the log probability in log s_v. Around any x the terms are bounded from
below by those of t independent draws (*Minka 2000, Estimating a Dirichlet distribution, appendix*),

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
from torch_lntm.models.words.words import Words

#: Bounds of a concentration that is fitted; at the upper one words are independent draws.
LOWEST, HIGHEST = 1e-3, 1e7
#: Largest change of its logarithm in an M-step; and curvature, in tokens, that counts as none.
MAX_STEP, NEGLIGIBLE = 1.0, 1e-6


class DirichletMultinomial(Words):
    """Documents repeat their words, as the concentration a says.

    After N tokens of a document the next one comes from the topics with probability a / (a + N),
    and else repeats one of the N. Topics are then less about single documents.

    >>> import torch_lntm as lntm
    >>> model = lntm.models.ctm(10, 500, bursty=True)
    >>> model.words
    DirichletMultinomial()

    Args:
        concentration: a, where a fit starts: tokens of a document from which its own words weigh
            as much as its topics.
        dtype: Floating-point type of the parameter.

    Attributes:
        log_concentration: log a ``()``, a parameter. Its prior is flat.

    Raises:
        ConfigError: ``concentration`` is not one positive, finite number.
    """

    def __init__(self, concentration: float = 200.0, *, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        number = torch.as_tensor(concentration, dtype=torch.float64)
        if number.dim() > 0 or not 0 < float(number) < math.inf:
            raise ConfigError(f"concentration is {concentration}; expected one positive number")
        self.log_concentration = nn.Parameter(number.log().to(dtype))

    @property
    def concentration(self) -> Tensor:
        """The number a ``()``, float64, with its gradient."""
        return self.log_concentration.double().exp()

    @property
    def cache_weight(self) -> float:
        """See :attr:`Words.cache_weight`; a."""
        return float(self.concentration.detach())

    def log_terms(self, probability: Tensor, cells: Cells) -> Tensor:
        """See :meth:`CountLikelihood.log_terms`; differentiable in the concentration too."""
        rate = self.concentration.to(probability.device) * probability.double()
        at, counts = cells.repeated
        rising = log_rising(counts, rate[..., at])
        if isinstance(at, slice):  # the first cells of each row
            rest = slice(counts.shape[-1], None)
            return torch.cat([rising, rate[..., rest].log() * cells.counts[..., rest]], -1)
        return rate.log().index_copy(-1, at, rising)

    def tokens(self, probability: Tensor, cells: Cells) -> Tensor:
        """See :meth:`CountLikelihood.tokens`."""
        found = cells.counts.to(probability.dtype).expand_as(probability).clone()
        at, counts = cells.repeated
        found[..., at] = self._tokens_at(probability[..., at], counts)
        return found

    def slopes(self, probability: Tensor, cells: Cells) -> Tensor:
        """See :meth:`CountLikelihood.slopes`."""
        found = cells.counts / probability
        at, counts = cells.repeated
        repeated = probability[..., at]
        found[..., at] = self._tokens_at(repeated, counts) / repeated
        return found

    def _tokens_at(self, probability: Tensor, counts: Tensor) -> Tensor:
        rate = self.concentration.detach() * probability.double()
        return tokens_from_topics(counts, rate).to(probability.dtype)

    def length_term(self, lengths: Tensor) -> Tensor:
        """See :meth:`CountLikelihood.length_term`."""
        a = self.concentration
        return torch.lgamma(a) - torch.lgamma(a + lengths.double())

    def for_single_tokens(self) -> CountLikelihood:
        """See :meth:`CountLikelihood.for_single_tokens`; independent draws."""
        return INDEPENDENT

    @torch.no_grad()
    def statistics(
        self, probability: Tensor, batch: DocumentBatch, weights: Tensor | None = None
    ) -> dict[str, Tensor]:
        """See :meth:`Words.statistics`: ``log_concentration`` ``(2,)`` float64.

        With g and h the log likelihood's derivatives in log a: −h, and g − h log a. Sums of these
        over batches that were met at different a still say where the maximum is; sums of g do not.
        """
        a, lengths = self.concentration, batch.lengths.double()
        entries, counts = batch.repeated
        # For words that no topic has, the square of the rate would be 0.
        rate = (a * probability[entries].double()).clamp_min(1e-100)
        tokens = tokens_from_topics(counts, rate)
        bend = rate.square() * (torch.polygamma(1, counts + rate) - torch.polygamma(1, rate))
        # For a word with a single token the first derivative is 1 and the second 0.
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
        """A step in log a toward the maximum of the log likelihood, by sums over all batches.

        It is Newton's where the log likelihood is concave, as near the maximum. Elsewhere the step
        has a bounded size, and the log likelihood may be a little lower after it.
        """
        bend, line = log_concentration
        present = self.log_concentration.double()
        slope = line - bend * present
        # Where the log likelihood is not concave, or nearly flat, the step has the largest size;
        # 0 where the documents say nothing.
        step = slope / torch.maximum(bend, slope.abs() / MAX_STEP).clamp_min(NEGLIGIBLE)
        found = (present + step).clamp(math.log(LOWEST), math.log(HIGHEST))
        self.log_concentration.copy_(found)

    @torch.no_grad()
    def draw_words(
        self, words: Tensor, document: Tensor, generator: torch.Generator | None
    ) -> Tensor:
        """See :meth:`CountLikelihood.draw_words`.

        After N tokens the next is a copy of one of them with probability N / (a + N).
        """
        token = torch.arange(len(document), device=document.device)
        first = torch.searchsorted(document, document)
        before = token - first
        chance, choice = torch.rand(
            2, len(document), generator=generator, dtype=torch.float64, device=document.device
        )
        copies = chance * (self.concentration + before) < before
        source = torch.where(copies, first + (choice * before).long(), token)
        # A copy of a copy is one of its source.
        while not torch.equal(source[source], source):
            source = source[source]
        return words[source]

    @torch.no_grad()
    def draw_tokens(
        self, probability: Tensor, batch: DocumentBatch, rng: np.random.Generator
    ) -> Tensor:
        """See :meth:`Words.draw_tokens`.

        A token that follows i others of its word came from the topics with probability
        x / (x + i).
        """
        counts = batch.counts.round().long()
        entry = torch.arange(batch.nnz, device=batch.device).repeat_interleave(counts)
        others = torch.arange(len(entry), device=batch.device) - (counts.cumsum(0) - counts)[entry]
        rate = (self.concentration * probability)[entry]
        u = torch.from_numpy(rng.random(len(rate))).to(rate)
        return torch.bincount(entry[u * (rate + others) <= rate], minlength=batch.nnz)

    @torch.no_grad()
    def overdispersion(self, lengths: Tensor) -> Tensor:
        """See :meth:`Words.overdispersion`; (N + a) / (1 + a)."""
        return (lengths + self.concentration) / (1 + self.concentration)


def tokens_from_topics(counts: Tensor, rate: Tensor) -> Tensor:
    """Expected tokens that came from the topics, x (ψ(c + x) − ψ(x)).

    Args:
        counts: c, float64.
        rate: x = a s, positive, float64, of a shape that broadcasts.
    """
    return rate * (torch.digamma(counts + rate) - torch.digamma(rate))


def log_rising(counts: Tensor, rate: Tensor) -> Tensor:
    """Log Γ(c + x) − log Γ(x); arguments as of :func:`tokens_from_topics`."""
    return torch.lgamma(counts + rate) - torch.lgamma(rate)
