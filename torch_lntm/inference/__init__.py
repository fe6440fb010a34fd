"""Inference: variational and Monte-Carlo EM, chains of documents, and draws of proportions."""

from torch_lntm.inference.chains.arviz import to_arviz
from torch_lntm.inference.chains.document_hmc import DocumentHMC
from torch_lntm.inference.chains.joint import JointChain
from torch_lntm.inference.chains.kept import KeptChains
from torch_lntm.inference.chains.samples import DocumentSamples
from torch_lntm.inference.documents import (
    DocumentTopics,
    SourceActivity,
    source_prior,
    transform,
)
from torch_lntm.inference.draws import (
    DrawnDocuments,
    DrawSource,
    ThetaDraws,
    enough_draws,
    joint_draws,
    theta_draws,
    topic_shares,
)
from torch_lntm.inference.em.distributed import Processes
from torch_lntm.inference.em.monte_carlo import MonteCarloEM
from torch_lntm.inference.em.parts import join_parts
from torch_lntm.inference.em.result import FitResult, MonteCarloResult
from torch_lntm.inference.em.schedule import ANNEALING, Annealing
from torch_lntm.inference.em.statistics import (
    Statistics,
    expected_statistics,
    sampled_statistics,
)
from torch_lntm.inference.em.stepwise import StepwiseEM
from torch_lntm.inference.em.variational import VariationalEM

__all__ = [
    "ANNEALING",
    "Annealing",
    "DocumentHMC",
    "DocumentSamples",
    "DocumentTopics",
    "DrawSource",
    "DrawnDocuments",
    "FitResult",
    "JointChain",
    "KeptChains",
    "MonteCarloEM",
    "MonteCarloResult",
    "Processes",
    "SourceActivity",
    "Statistics",
    "StepwiseEM",
    "ThetaDraws",
    "VariationalEM",
    "enough_draws",
    "expected_statistics",
    "join_parts",
    "joint_draws",
    "sampled_statistics",
    "source_prior",
    "theta_draws",
    "to_arviz",
    "topic_shares",
    "transform",
]
