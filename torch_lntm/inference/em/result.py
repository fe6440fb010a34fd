"""What a fit leaves besides the fitted model."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from torch_lntm.guides import Guide
from torch_lntm.inference.chains.kept import KeptChains
from torch_lntm.inference.em.statistics import Statistics

StopReason = Literal["converged", "stopped_early", "max_iterations", "interrupted"]
#: The end of a fit in words, as it is printed, by its stop reason.
ENDS: dict[str, str] = {
    "converged": "converged",
    "stopped_early": "finished early, to avoid overfitting",
    "max_iterations": "finished all iterations",
    "interrupted": "interrupted",
}


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
            tolerance; ``"max_iterations"``, the fit made all iterations that it was allowed; or
            ``"interrupted"``, by Ctrl-C.
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
    """

    history: list[dict[str, Any]]
    stop_reason: StopReason
    num_unconverged: int
    means: Tensor
    objective_name: str
    seconds: float
    statistics: Statistics | None = field(default=None, kw_only=True)
    posterior: Guide[Any] | KeptChains = field(kw_only=True)

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
