"""Latent spaces: coordinates of a document's latent variables, with their density and logits."""

from torch_lntm.latents.factor import FactorSpace as FactorSpace
from torch_lntm.latents.gamma import GammaSpace as GammaSpace
from torch_lntm.latents.normal import EtaSpace, NormalSpace
from torch_lntm.latents.space import LatentSpace
from torch_lntm.latents.target import DocumentTarget

__all__ = ["DocumentTarget", "EtaSpace", "LatentSpace", "NormalSpace"]
