"""Inference engines: variational and Monte-Carlo EM, Hamiltonian Monte Carlo per document."""

from torch_lntm.inference.chains.arviz import to_arviz
from torch_lntm.inference.chains.document_hmc import DocumentHMC
from torch_lntm.inference.chains.joint import JointChain
from torch_lntm.inference.chains.samples import DocumentSamples
from torch_lntm.inference.documents import (
    DocumentTopics,
    SourceActivity,
    has_sources,
    source_prior,
    transform,
)
from torch_lntm.inference.draws import (
    DrawSource,
    KeptChainDraws,
    PosteriorSource,
    chain_draws,
    draw_source,
)
from torch_lntm.inference.em.monte_carlo_em import MonteCarloEM
from torch_lntm.inference.em.processes import Processes
from torch_lntm.inference.em.result import FitResult, MonteCarloResult
from torch_lntm.inference.em.statistics import (
    Statistics,
    expected_statistics,
    sampled_statistics,
)
from torch_lntm.inference.em.stepwise_em import StepwiseEM
from torch_lntm.inference.em.tempering import ANNEALING, Annealing
from torch_lntm.inference.em.variational_em import VariationalEM

__all__ = [
    "ANNEALING",
    "Annealing",
    "DocumentHMC",
    "DocumentSamples",
    "DocumentTopics",
    "DrawSource",
    "FitResult",
    "JointChain",
    "KeptChainDraws",
    "MonteCarloEM",
    "MonteCarloResult",
    "PosteriorSource",
    "Processes",
    "SourceActivity",
    "Statistics",
    "StepwiseEM",
    "VariationalEM",
    "chain_draws",
    "draw_source",
    "expected_statistics",
    "has_sources",
    "sampled_statistics",
    "source_prior",
    "to_arviz",
    "transform",
]
