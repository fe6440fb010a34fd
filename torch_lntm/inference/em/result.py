"""What a fit leaves besides the fitted model."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.corpus import Corpus
from torch_lntm.guides import Guide
from torch_lntm.inference.chains.kept import KeptChains
from torch_lntm.inference.draws.shares import SHARE_DRAWS, topic_shares
from torch_lntm.inference.em.statistics import Statistics
from torch_lntm.models import TopicTable

StopReason = Literal[
    "converged", "stopped_early", "max_iterations", "stopped_by_callback", "interrupted"
]
#: The end of a fit in words, as it is printed, by its stop reason.
ENDS: dict[str, str] = {
    "converged": "converged",
    "stopped_early": "finished early, to avoid overfitting",
    "max_iterations": "finished all iterations",
    "stopped_by_callback": "stopped by its callback",
    "interrupted": "interrupted",
}
#: Largest number of documents whose posterior means are solved for the shares of a fit by a guide.
_SHARE_DOCS = 2000
#: Largest number of topics that a printed result lists.
_PRINTED_TOPICS = 20


@dataclass(frozen=True)
class FitResult:
    """What a fit leaves besides the fitted model.

    Attributes:
        history: One JSON-able record per epoch or iteration: ``phase``, ``iteration``,
            ``objective`` (nats per token: the guide's own objective, in the phases ``"score"``,
            ``"annealing"`` and ``"em"`` plus the parameters' log prior), ``seconds`` since the
            start and ``unconverged`` documents. Objectives compare within the phase ``"em"`` only:
            elsewhere the parameters change between batches.
        stop_reason: ``"converged"``, the last iteration changed the objective by no more than the
            tolerance; ``"max_iterations"``, the fit made all iterations that it was allowed;
            ``"stopped_by_callback"``, the callback returned True; or ``"interrupted"``, by Ctrl-C.
        num_unconverged: Documents that did not meet the guide's tolerance in the last E-step.
        means: ``(num_docs, latent_dim)`` the documents' posterior means in the last E-step; empty
            documents have the prior mean. Starting points for ``guide.posterior(batch, init)``. If
            several processes shared the fit, the first has all documents' means and the others
            have no rows.
        objective_name: What the objective is.
        seconds: Time the fit took, that of interrupted runs it continued included.
        statistics: Those of the last E-step, or of Monte-Carlo EM their running average, from
            which :class:`~torch_lntm.inference.StepwiseEM` goes on; None where the fit ended
            before it had any.
        posterior: Source of draws of the documents' proportions, for
            :func:`~torch_lntm.inference.theta_draws`, reports and effects: the fit's guide, or the
            chains of Monte-Carlo EM where they ended.
        corpus: The documents of the fit; None if they are not known.

    ``print(result)`` shows how the fit ended and the topics with their words and shares.
    """

    history: list[dict[str, Any]]
    stop_reason: StopReason
    num_unconverged: int
    means: Tensor
    objective_name: str
    seconds: float
    statistics: Statistics | None = field(default=None, kw_only=True)
    posterior: Guide[Any] | KeptChains = field(kw_only=True)
    corpus: Corpus | None = field(default=None, kw_only=True)

    @cached_property
    def topic_shares(self) -> Tensor | None:
        """Shares of the topics: posterior means of their proportions, averaged over documents.

        ``(num_topics,)`` float64, summing to 1, over the documents with words. The Monte-Carlo
        standard error of a share is at most about 0.1 percentage points. The shares are computed at
        the first use. They are None if this process does not have the fit's documents.
        """
        if self.corpus is None or len(self.means) != self.corpus.num_docs:
            return None
        with torch.no_grad():
            return self._mean_proportions(self.corpus, np.flatnonzero(self.corpus.lengths))

    def _mean_proportions(self, corpus: Corpus, rows: NDArray[np.int64]) -> Tensor:
        """Posterior means of the proportions ``(num_topics,)``, averaged over documents."""
        # Proportions at the modes are known for all documents. A sample of the documents gives
        # the difference between posterior means and modes.
        sample = rows
        if len(rows) > _SHARE_DOCS:
            sample = np.sort(np.random.default_rng(0).choice(rows, _SHARE_DOCS, replace=False))
        shift = topic_shares(self.posterior, corpus, rows=sample, means=self.means)
        shift -= self._proportions(self.means, sample).mean(0)
        return self._proportions(self.means, rows).mean(0) + shift

    def _proportions(self, latent: Tensor, rows: NDArray[np.int64]) -> Tensor:
        """Proportions ``(..., num_rows, num_topics)`` at latent variables of all documents."""
        model = self.posterior.model
        part = latent[..., torch.from_numpy(rows), :].to(model.device)
        return model.theta(part).double().cpu()

    def topic_table(self, *, num_words: int = 8, num_correlated: int = 0) -> TopicTable:
        """The topics in words with their shares, the largest first.

        Args:
            num_words: Words of each topic.
            num_correlated: Number of the most positively correlated topics listed with each topic,
                and of the most negatively correlated ones.

        Returns:
            The table. It prints as text, and shows as a table in notebooks.

        Raises:
            ConfigError: A number is below its minimum.

        Example:
            >>> print(result.topic_table(num_words=4))
            share: posterior mean of the proportion, averaged over the documents
            topic   share   top words
            ...
        """
        return self.posterior.model.topic_table(
            self.topic_shares, num_words=num_words, num_correlated=num_correlated
        )

    def __str__(self) -> str:
        return f"{self!r}\n\n{self._first_topics()!r}{self._more_topics()}"

    def _repr_html_(self) -> str:
        """How the fit ended, and the table of topics, for notebooks."""
        head, more = (f"<p>{html.escape(text)}</p>" for text in (repr(self), self._more_topics()))
        return head + self._first_topics()._repr_html_() + more

    def _first_topics(self) -> TopicTable:
        return self.topic_table()[:_PRINTED_TOPICS]

    def _more_topics(self) -> str:
        """Advice on the topics that a printed result leaves out."""
        more = self.posterior.model.num_topics - _PRINTED_TOPICS
        return f"\n{more} more topics: print(result.topic_table())" if more > 0 else ""

    def __repr__(self) -> str:
        last = self.history[-1] if self.history else {"iteration": 0, "objective": math.nan}
        return (
            f"FitResult({self.stop_reason} after {self.seconds:.1f} s, iteration "
            f"{last['iteration']}, {last['objective']:.4f} nats per token "
            f"[{self.objective_name}], {self.num_unconverged} documents unconverged)"
        )

    @property
    def ended(self) -> str:
        """How the fit ended, in words."""
        return ENDS[self.stop_reason]

    def settings(self) -> dict[str, str]:
        """How the fit ended, by name, as a report lists it."""
        found = {"ended": self.ended, "seconds": f"{self.seconds:.1f}"}
        if self.history:
            found[self.objective_name] = f"{self.history[-1]['objective']:.4f} nats per token"
        return found


@dataclass(frozen=True, repr=False)
class MonteCarloResult(FitResult):
    """What Monte-Carlo EM leaves besides the fitted model.

    As :class:`FitResult`, with these differences: ``stop_reason`` is ``"converged"`` where the
    search, before the averages, ended because it gained little, and ``"stopped_early"`` where it
    still gained but the corpus has so few tokens that other documents would lose by it
    (``min_gain`` of :class:`MonteCarloEM`); ``means`` are the means of the
    documents' last draws over their chains that move, ``num_unconverged`` counts the documents with
    a stuck chain, and a record of ``history`` also has the ``perplexity`` of the documents at their
    draws, ``acceptance``, ``divergences``, ``stuck`` chains, ``step_size``, and ``latent_mean`` and
    ``latent_std``, the mean of eta (or of theta, under a Dirichlet prior) and its standard
    deviation over documents, averaged over topics.
    Perplexities at draws are those of the training documents under proportions that know them.

    Attributes:
        chains: ``(num_chains, num_docs, dim)`` the last draws, on the CPU, by the names of the
            sites: ``eta``, with ``source`` under a factor prior, or ``theta``. NaN for empty
            documents. As ``means`` and ``moved``, those of all documents in the first process, and
            of none in the others that shared the fit.
        moved: ``(num_chains, num_docs)`` bool, the chain accepted a proposal since its step size
            was frozen (since it started, before).
    """

    chains: dict[str, Tensor] = field(default_factory=dict)
    moved: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.bool))

    def __repr__(self) -> str:
        last = self.history[-1] if self.history else {"iteration": 0, "perplexity": math.nan}
        return (
            f"MonteCarloResult({self.stop_reason} after {self.seconds:.1f} s, epoch "
            f"{last['iteration']}, perplexity {last['perplexity']:.2f} at the draws, "
            f"{self.num_unconverged} documents with a stuck chain)"
        )

    def _mean_proportions(self, corpus: Corpus, rows: NDArray[np.int64]) -> Tensor:
        """See :meth:`FitResult._mean_proportions`; from the last draws if these are enough."""
        if len(rows) * len(self.moved) < SHARE_DRAWS:
            return topic_shares(self.posterior, corpus, rows=rows)
        latent = self.posterior.model.prior.latent
        return self._proportions(self.chains[latent], rows).mean((0, 1))
