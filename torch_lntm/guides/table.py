"""Which guides suit a latent space: the default guide, and the guides of chains and proposals."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from torch_lntm.errors import IncompatibleGuideError
from torch_lntm.latents import GammaSpace, LatentSpace, NormalSpace
from torch_lntm.latents.factor import GaussianFactorSpace, LaplaceFactorSpace
from torch_lntm.models import TopicModel


class Suited(NamedTuple):
    """Names of the guides that suit a latent space.

    Attributes:
        default: Default guide.
        centre: Guide whose posteriors are the centres of proposals and of normal approximations.
        metrics: Guides of the mass matrices of Hamiltonian chains, by names of the mass matrices.
            The posterior of the first guide is the mode of the document, as well as any.
        metric: Default mass matrix: a name in ``metrics``, or ``"prior"`` for I.
    """

    default: str
    centre: str
    metrics: Mapping[str, str]
    metric: str


#: The guides of the priors' spaces. A subclass of a space has the guides of its base class.
SUITED: dict[type[LatentSpace], Suited] = {
    GaussianFactorSpace: Suited("factor", "laplace", {"taylor": "taylor"}, "prior"),
    LaplaceFactorSpace: Suited("factor", "factor", {"taylor": "factor"}, "prior"),
    NormalSpace: Suited("taylor", "laplace", {"laplace": "laplace", "taylor": "taylor"}, "laplace"),
    GammaSpace: Suited("vb", "ep", {}, "prior"),
}


def guides_suited(model: TopicModel) -> Suited:
    """The guides that suit the latent space of a model's prior.

    Raises:
        IncompatibleGuideError: The prior has no latent space, or a space that no guide suits by
            default.
    """
    with suppress(AttributeError, NotImplementedError):
        for known, suited in SUITED.items():
            if issubclass(model.prior.space_type, known):
                return suited
    prior = type(getattr(model, "prior", model)).__name__
    raise IncompatibleGuideError(
        f"{prior} has no latent space of a known type: guides and chains need a prior that defines "
        "space_type and space, and a row in torch_lntm.guides.table.SUITED. pyro.infer.NUTS works "
        "with every model"
    )
