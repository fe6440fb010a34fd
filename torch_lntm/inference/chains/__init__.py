"""Chains of every document of a batch: Hamiltonian Monte Carlo, its draws and their diagnostics."""

from torch_lntm.inference.chains.arviz import to_arviz
from torch_lntm.inference.chains.chains import Chains, Progress, warn_of_stuck
from torch_lntm.inference.chains.document_chains import DocumentChains, chains_for
from torch_lntm.inference.chains.document_hmc import DocumentHMC
from torch_lntm.inference.chains.joint import JointChain
from torch_lntm.inference.chains.samples import DocumentSamples
from torch_lntm.inference.chains.settings import HMCSettings

__all__ = [
    "Chains",
    "DocumentChains",
    "DocumentHMC",
    "DocumentSamples",
    "HMCSettings",
    "JointChain",
    "Progress",
    "chains_for",
    "to_arviz",
    "warn_of_stuck",
]
