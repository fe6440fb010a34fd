"""Results of fits: what a fit returns besides the fitted model."""

from __future__ import annotations

import html
import math
from abc import abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.corpus import Corpus
from torch_lntm.guides import Guide
from torch_lntm.inference.chains.kept import KeptChains
from torch_lntm.inference.draws import MOST_DRAWS, SHARE_DRAWS, theta_draws, topic_shares
from torch_lntm.inference.em.statistics import Statistics
from torch_lntm.inference.fitted import Fitted
from torch_lntm.models import TopicModel
from torch_lntm.models.topic_table import TopicTable

StopReason = Literal[
    "converged",
    "stopped_early",
    "max_iterations",
    "stopped_by_callback",
    "interrupted",
    "terminated",
]
#: Printed description of a fit's end, by its stop reason.
ENDS: dict[str, str] = {
    "converged": "converged",
    "stopped_early": "finished early, to avoid overfitting",
    "max_iterations": "finished all iterations",
    "stopped_by_callback": "stopped by its callback",
    "interrupted": "interrupted",
    "terminated": "terminated by SIGTERM",
}
#: Largest number of documents whose posterior means are computed for the topic shares of a fit by a
#: guide, largest number that is drawn for the intervals, and fewest draws of each.
_SHARE_DOCS, _INTERVAL_DOCS, _INTERVAL_DRAWS = 2000, 5000, 10
#: Number of documents whose proportions are computed at once, to bound memory.
_ROWS_AT_ONCE = 2**16
#: Largest number of topics that ``print(result)`` shows.
_PRINTED_TOPICS = 20


@dataclass(frozen=True, repr=False)
class FitResult(Fitted):
    """Result of a fit: :class:`VariationalResult` or :class:`MonteCarloResult`.

    ``print(result)`` shows how the fit ended, and the topics with their words and shares. The next
    steps of an analysis are methods: :meth:`topic_table`, :meth:`document_table`,
    :meth:`transform`, :meth:`effects` and :meth:`report`.

    Attributes:
        history: One JSON-able record for each epoch or iteration, with ``phase``, ``iteration``,
            ``objective`` (nats per token), ``seconds`` since the start, and the number of
            ``unconverged`` documents. The objective is that of the guide (``objective_name``), and
            in the phases ``"score"``, ``"annealing"`` and ``"em"`` it includes the log prior of the
            parameters. Compare objectives within ``"em"`` only, because in the stochastic phases
            the parameters change from batch to batch.
        stop_reason: Why the fit ended. ``"converged"``: the last iteration changed the objective by
            at most the tolerance. ``"max_iterations"``: it made all allowed iterations.
            ``"stopped_by_callback"``: the callback returned True. ``"interrupted"`` and
            ``"terminated"``: Ctrl-C or SIGTERM came.
        num_unconverged: Number of documents whose posterior missed the guide's tolerance in the
            last E-step.
        means: ``(num_docs, latent_dim)`` posterior means of the documents in the last E-step, which
            are good starting points ``init`` for ``guide.posterior(batch, init)``. Empty documents
            have the prior mean. In a fit by several processes, the first process has the means of
            all documents and the others have an empty tensor; in a fit of a corpus in parts, each
            has the means of its own documents.
        objective_name: Description of the objective.
        seconds: Time of the fit, including earlier runs continued from a checkpoint.
        statistics: Statistics of the last E-step, or the running average of Monte-Carlo EM, from
            which :class:`~torch_lntm.inference.StepwiseEM` continues. ``None`` if the fit ended
            before its first E-step, or between restarts.
        corpus: The documents of the fit, or ``None``.

    Example:
        >>> result.means.shape == (len(train), model.latent_dim)
        True
        >>> print(result)
        VariationalResult(...
        share: posterior mean of the proportion, averaged over the documents
        ...
    """

    history: list[dict[str, Any]]
    stop_reason: StopReason
    num_unconverged: int
    means: Tensor
    objective_name: str
    seconds: float
    statistics: Statistics | None = field(default=None, kw_only=True)
    corpus: Corpus | None = field(default=None, kw_only=True)
    #: Topic shares over all parts, if the corpus was fitted in parts.
    whole_shares: Tensor | None = field(default=None, kw_only=True)

    @property
    @abstractmethod
    def source(self) -> Guide[Any] | KeptChains:
        """Source of draws of theta: the guide of the fit, or the chains of Monte-Carlo EM."""

    @property
    def model(self) -> TopicModel:  # type: ignore[override]
        """The fitted model."""
        return self.source.model

    @cached_property
    def topic_shares(self) -> Tensor | None:
        """Shares of the topics: posterior means of their proportions, averaged over documents.

        ``(num_topics,)`` float64, summing to 1, over the documents with words. They are computed at
        their first use, with a Monte-Carlo standard error of at most about 0.1 percentage points.
        ``None`` if this process lacks the documents or their means.
        """
        if self.whole_shares is not None:
            return self.whole_shares
        if self.corpus is None or len(self.means) != self.corpus.num_docs:
            return None
        with torch.no_grad():
            return self._topic_shares(self.corpus)

    @cached_property
    def topic_intervals(self) -> Tensor | None:
        """Lower and upper ends ``(2, num_topics)`` of 95 % intervals of :attr:`topic_shares`.

        They are those of :func:`~torch_lntm.reports.summarise_corpus`, by 10 to 50 draws of each
        document. For more than 5,000 documents, a random 5,000 of them are drawn, and their
        standard errors are scaled to the number of all. ``None`` if the shares are ``None``, or
        if the corpus was fitted in parts.
        """
        if self.topic_shares is None or self.corpus is None or self.whole_shares is not None:
            return None
        of_draws, num_docs = self._prevalence, self.corpus.num_nonempty
        if num_docs <= _INTERVAL_DOCS:
            return torch.from_numpy(np.concatenate([of_draws.lower, of_draws.upper]))
        error = torch.from_numpy(of_draws.standard_error[0]) * (_INTERVAL_DOCS / num_docs) ** 0.5
        reach = NormalDist().inv_cdf(0.975) * error
        return torch.stack([self.topic_shares - reach, self.topic_shares + reach]).clamp(0, 1)

    @cached_property
    def _prevalence(self) -> Any:
        """The topics in all documents, or in a sample of them, by draws."""
        assert self.corpus is not None
        rows = _sample(self.corpus.nonempty, _INTERVAL_DOCS)
        num_draws = min(max(math.ceil(SHARE_DRAWS / len(rows)), _INTERVAL_DRAWS), MOST_DRAWS)
        about: Any = {"rows": rows, "keep": False, "progress": False}
        draws = theta_draws(self.source, self.corpus, num_draws, **about)
        return self._summary(draws.of_selection(rows), self.corpus[rows]).overall

    def _topic_shares(self, corpus: Corpus) -> Tensor:
        return self.shares_of(corpus.nonempty)

    @abstractmethod
    def shares_of(self, rows: NDArray[np.int64]) -> Tensor:
        """Posterior means of the proportions ``(num_topics,)``, averaged over documents.

        Args:
            rows: Positions of the documents.
        """

    def _proportions(self, latent: Tensor, rows: NDArray[np.int64]) -> Tensor:
        """Proportions ``(..., num_rows, num_topics)`` at latent variables of all documents."""
        part = latent[..., torch.from_numpy(rows), :].to(self.model.device)
        return self.model.theta(part).double().cpu()

    def __str__(self) -> str:
        return f"{self!r}\n\n{self._first_topics()!r}{self._more_topics()}"

    def _repr_html_(self) -> str:
        """End of the fit and table of topics, for notebooks."""
        head, more = (f"<p>{html.escape(text)}</p>" for text in (repr(self), self._more_topics()))
        return head + self._first_topics()._repr_html_() + more

    def _first_topics(self) -> TopicTable:
        return self.topic_table()[:_PRINTED_TOPICS]

    def _more_topics(self) -> str:
        """Line about the remaining topics, below a printed result."""
        more = self.model.num_topics - _PRINTED_TOPICS
        return f"\n{more} more topics: print(result.topic_table())" if more > 0 else ""

    @property
    def ended(self) -> str:
        """How the fit ended, in words."""
        return ENDS[self.stop_reason]

    def settings(self) -> dict[str, str]:
        """Entries of a report about the end of the fit, by name."""
        entries = {"ended": self.ended, "seconds": f"{self.seconds:.1f}"}
        if self.history:
            entries[self.objective_name] = f"{self.history[-1]['objective']:.4f} nats per token"
        return entries


@dataclass(frozen=True, repr=False)
class VariationalResult(FitResult):
    """Result of variational EM; see :class:`FitResult`.

    Attributes:
        guide: The guide of the fit.
    """

    guide: Guide[Any] = field(kw_only=True)

    @property
    def source(self) -> Guide[Any]:
        """The guide of the fit."""
        return self.guide

    def __repr__(self) -> str:
        last = self.history[-1] if self.history else {"iteration": 0, "objective": math.nan}
        return (
            f"VariationalResult({self.ended}; iteration {last['iteration']}, {self.seconds:.1f} s, "
            f"{last['objective']:.4f} nats per token "
            f"[{self.objective_name}], {self.num_unconverged} documents unconverged)"
        )

    def shares_of(self, rows: NDArray[np.int64]) -> Tensor:
        """See :meth:`FitResult.shares_of`."""
        assert self.corpus is not None
        # All documents have their proportions at the mode already, so a sample suffices for the
        # average difference between posterior means and modes.
        sample = _sample(rows, _SHARE_DOCS)
        shift = topic_shares(self.guide, self.corpus, rows=sample, means=self.means)
        shift -= self._proportions(self.means, sample).mean(0)
        return self._proportions(self.means, rows).mean(0) + shift


@dataclass(frozen=True, repr=False)
class MonteCarloResult(FitResult):
    """Result of Monte-Carlo EM; see :class:`FitResult`.

    Attributes of :class:`FitResult` differ as follows:

    * ``stop_reason``: ``"converged"`` if the search ended because of a small gain, and
      ``"stopped_early"`` if it ended early to avoid overfitting a corpus of few tokens. See
      ``min_gain`` of :class:`MonteCarloEM`.
    * ``means``: averages of the documents' last draws over the moving chains, or over all chains
      of a document if none moved. Before the first epoch all documents have the means of the
      start.
    * ``num_unconverged``: number of documents with a stuck chain.
    * ``history``: records also have the ``perplexity`` of the documents at their draws,
      ``acceptance``, ``divergences``, ``stuck`` chains and ``step_size``. The perplexity at draws
      is lower than the perplexity of new documents, because the draws are fitted to the same words.

    Attributes:
        chains: The chains in their last state, ready to be continued. ``chains.latents`` has the
            last draws ``(num_chains, num_docs, dim)`` by the names of the sites: ``eta``, with
            ``source`` under a factor prior, or ``theta``. They are NaN for empty documents, and
            there are none before the first epoch. Processes have the rows of the same documents as
            in ``means``.
        moved: ``(num_chains, num_docs)`` bool: the chain accepted a proposal after its step size
            was frozen. If the fit ended during warm-up, in any of its transitions.
    """

    chains: KeptChains = field(kw_only=True)
    moved: Tensor = field(kw_only=True)

    @property
    def source(self) -> KeptChains:
        """The chains of the fit."""
        return self.chains

    def __repr__(self) -> str:
        last = self.history[-1] if self.history else {"iteration": 0, "perplexity": math.nan}
        return (
            f"MonteCarloResult({self.ended}; epoch {last['iteration']}, {self.seconds:.1f} s, "
            f"training perplexity {last['perplexity']:.2f}, "
            f"{self.num_unconverged} documents with a stuck chain)"
        )

    def _topic_shares(self, corpus: Corpus) -> Tensor:
        # A small corpus has too few last draws.
        if corpus.num_nonempty * len(self.moved) < SHARE_DRAWS:
            if corpus.num_nonempty <= _INTERVAL_DOCS:
                return torch.from_numpy(self._prevalence.mean[0])
            return topic_shares(self.chains, corpus)
        return self.shares_of(corpus.nonempty)

    def shares_of(self, rows: NDArray[np.int64]) -> Tensor:
        """Proportions ``(num_topics,)`` at the last draws, averaged over documents, in float64.

        Args:
            rows: Positions of the documents.
        """
        assert self.corpus is not None
        if not self.chains.latents:  # the fit ended before its first visit
            return topic_shares(self.chains, self.corpus, rows=rows)
        draws = self.chains.latents[self.model.prior.latent]
        total = torch.zeros((), dtype=torch.float64)
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            part = self._proportions(draws, rows[start : start + _ROWS_AT_ONCE])
            total = total + part.sum((0, 1))
        return total / (len(draws) * len(rows))


def _sample(rows: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """A random sample of positions, or all if there are few."""
    if len(rows) <= size:
        return rows
    return np.sort(np.random.default_rng(0).choice(rows, size, replace=False))
