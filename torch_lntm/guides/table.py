"""Table of the guides that suit a latent space, by default, for chains and for proposals."""

from __future__ import annotations

from typing import NamedTuple

from torch_lntm.errors import IncompatibleGuideError
from torch_lntm.latents import GammaSpace, LatentSpace, NormalSpace
from torch_lntm.latents.factor import GaussianFactorSpace, LaplaceFactorSpace
from torch_lntm.models import TopicModel
from torch_lntm.models.model import require_model

#: Most epochs of Monte-Carlo EM by default, but for priors whose chains mix slowly.
MAX_EPOCHS = 45


class Suited(NamedTuple):
    """Names of the guides that suit a latent space.

    Attributes:
        default: Default guide.
        centre: Guide whose posteriors are the centres of proposals and of normal approximations.
        mode: Guide whose posteriors are centred at the mode of theta on the softmax scale, or close
            to it.
        metrics: Guides whose posteriors can be the mass matrices of Hamiltonian chains, the default
            first. If there is none, chains move in the coordinates of the prior.
        leapfrogs: Leapfrog steps of a transition of Monte-Carlo EM, in the metric of the prior.
        epochs: Most epochs of Monte-Carlo EM.
    """

    default: str
    centre: str
    mode: str
    metrics: tuple[str, ...] = ()
    leapfrogs: int = 8
    epochs: int = MAX_EPOCHS


#: The guides of the priors' spaces. A subclass of a space shares the guides of its base class.
SUITED: dict[type[LatentSpace], Suited] = {
    GaussianFactorSpace: Suited("factor", "laplace", "taylor"),
    LaplaceFactorSpace: Suited("factor", "factor", "factor"),
    NormalSpace: Suited("taylor", "laplace", "laplace", ("laplace", "taylor")),
    # A topic without tokens has a long tail.
    GammaSpace: Suited("vb", "ep", "vb", leapfrogs=16, epochs=60),
}


def guides_suited(model: TopicModel) -> Suited:
    """The guides that suit the latent space of a model's prior.

    Raises:
        ConfigError: The argument is not a model.
        IncompatibleGuideError: The prior has a latent space that no guide suits by default.
    """
    require_model(model)
    space_type = model.prior.space_type
    for known, suited in SUITED.items():
        if issubclass(space_type, known):
            return suited
    raise IncompatibleGuideError(
        f"{type(model.prior).__name__} has the space {space_type.__name__}, which has no row in "
        "torch_lntm.guides.table.SUITED; add one, or use pyro.infer.NUTS, which works with every "
        "model"
    )
