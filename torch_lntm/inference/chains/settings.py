"""HMCSettings: settings of the documents' chains."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from torch_lntm.errors import IncompatibleGuideError
from torch_lntm.latents import LatentSpace
from torch_lntm.models import TopicModel


@dataclass(frozen=True, eq=False)
class HMCSettings:
    """Settings of Hamiltonian Monte Carlo; see :class:`DocumentHMC` for details.

    Attributes:
        num_chains: Number of chains of each document.
        mass_matrix: ``"prior"``, ``"identity"``, or a key of the space's ``posterior_metrics``.
        num_steps: Number of leapfrog steps of a transition.
        step_size: Constant step size, as a number or ``(num_chains, num_docs)``. ``None`` searches
            and adapts step sizes.
        target_accept: Mean acceptance probability that the adaptation aims at.
        jitter: Largest relative change of a step size between transitions.
        seed: Seed of all random numbers.
    """

    num_chains: int
    mass_matrix: str
    num_steps: int
    step_size: float | Tensor | None = None
    target_accept: float = 0.8
    jitter: float = 0.2
    seed: int = 0


def space_type_of(model: TopicModel) -> type[LatentSpace]:
    """Class of the latent space of the model's prior.

    Raises:
        IncompatibleGuideError: The prior has no latent space.
    """
    try:
        return model.prior.space_type
    except (AttributeError, NotImplementedError):
        name = type(getattr(model, "prior", model)).__name__
        raise IncompatibleGuideError(
            f"DocumentHMC needs a latent space, and {name} has none; a prior has one if it defines "
            "space_type and space. pyro.infer.NUTS works with every model"
        ) from None
