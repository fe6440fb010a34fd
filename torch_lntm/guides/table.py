"""Which guides suit a latent space: the default guide, and the guides of chains and proposals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch_lntm.errors import IncompatibleGuideError
from torch_lntm.latents import GammaSpace, LatentSpace, NormalSpace
from torch_lntm.latents.factor import GaussianFactorSpace, LaplaceFactorSpace


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


def guides_suited(space_type: type[LatentSpace]) -> Suited:
    """The guides that suit a latent space.

    Args:
        space_type: Class of the space, such as ``model.prior.space_type``.

    Raises:
        IncompatibleGuideError: No guide is known to suit the space.
    """
    for known, suited in SUITED.items():
        if issubclass(space_type, known):
            return suited
    raise IncompatibleGuideError(
        f"there is no default guide for a {space_type.__name__}; name a guide, or register one: "
        "torch_lntm.guides.table.SUITED[space_type] = ..."
    )
