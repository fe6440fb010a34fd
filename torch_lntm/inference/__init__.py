"""Inference: variational and Monte-Carlo EM, chains of documents, and draws of proportions."""

from torch_lntm.guides.theta_draws import ThetaDraws
from torch_lntm.inference.chains.document_hmc import DocumentHMC
from torch_lntm.inference.chains.joint import JointChain as JointChain
from torch_lntm.inference.chains.joint import joint_draws
from torch_lntm.inference.chains.kept import KeptChains as KeptChains
from torch_lntm.inference.chains.samples import DocumentSamples
from torch_lntm.inference.documents import DocumentTopics, transform
from torch_lntm.inference.draws import DrawSource as DrawSource
from torch_lntm.inference.draws import theta_draws, topic_shares
from torch_lntm.inference.em.distributed import Processes
from torch_lntm.inference.em.documents import join_parts
from torch_lntm.inference.em.monte_carlo import MonteCarloEM
from torch_lntm.inference.em.result import FitResult
from torch_lntm.inference.em.result import MonteCarloResult as MonteCarloResult
from torch_lntm.inference.em.result import VariationalResult as VariationalResult
from torch_lntm.inference.em.schedule import Annealing
from torch_lntm.inference.em.statistics import Statistics as Statistics
from torch_lntm.inference.em.stepwise import StepwiseEM
from torch_lntm.inference.em.variational import VariationalEM
from torch_lntm.inference.steering import refine

__all__ = [
    "Annealing",
    "DocumentHMC",
    "DocumentSamples",
    "DocumentTopics",
    "FitResult",
    "MonteCarloEM",
    "Processes",
    "StepwiseEM",
    "ThetaDraws",
    "VariationalEM",
    "join_parts",
    "joint_draws",
    "refine",
    "theta_draws",
    "topic_shares",
    "transform",
]
