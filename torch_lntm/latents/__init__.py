"""Latent spaces: coordinates of a document's latent variables, with their density and logits."""

from torch_lntm.latents.contrasts import ContrastSpace
from torch_lntm.latents.factor import FactorSpace, GaussianFactorSpace, LaplaceFactorSpace
from torch_lntm.latents.gamma import GammaSpace
from torch_lntm.latents.identified import IdentifiedSpace
from torch_lntm.latents.normal import EtaSpace, NormalSpace
from torch_lntm.latents.source_contrasts import SourceContrastSpace
from torch_lntm.latents.space import AffineLogits, LatentSpace
from torch_lntm.latents.sticks import StickSpace
from torch_lntm.latents.target import DocumentTarget

__all__ = [
    "AffineLogits",
    "ContrastSpace",
    "DocumentTarget",
    "EtaSpace",
    "FactorSpace",
    "GammaSpace",
    "GaussianFactorSpace",
    "IdentifiedSpace",
    "LaplaceFactorSpace",
    "LatentSpace",
    "NormalSpace",
    "SourceContrastSpace",
    "StickSpace",
]
