"""HMCSettings: settings of the documents' chains."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torch_lntm.errors import ConfigError, IncompatibleGuideError, require_whole
from torch_lntm.latents import LatentSpace
from torch_lntm.models import TopicModel

#: Default numbers of leapfrog steps, with a metric per document and with a common metric.
_FEW_STEPS, _MANY_STEPS = 5, 30


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
    step_size: float | Tensor | None
    target_accept: float
    jitter: float
    seed: int

    @classmethod
    def of(
        cls,
        model: TopicModel,
        *,
        num_chains: int = 1,
        mass_matrix: str | None = None,
        num_steps: int | None = None,
        step_size: float | Tensor | None = None,
        target_accept: float = 0.8,
        jitter: float = 0.2,
        seed: int = 0,
    ) -> HMCSettings:
        """Checked settings for a model, with the model's defaults.

        Args:
            model: The model.
            num_chains: See the attributes.
            mass_matrix: See the attributes. Defaults to the space's ``default_metric``.
            num_steps: See the attributes. Defaults to 5 with a metric from each document's own
                posterior, and to 30 otherwise.
            step_size: See the attributes.
            target_accept: See the attributes.
            jitter: See the attributes.
            seed: See the attributes.

        Raises:
            IncompatibleGuideError: The model's prior has no latent space.
            ConfigError: A setting is invalid.
        """
        space_type = space_type_of(model)
        posterior_metrics = list(space_type.posterior_metrics)
        metrics = [*posterior_metrics, "prior", "identity"]
        if mass_matrix is None:
            mass_matrix = space_type.default_metric
        if mass_matrix not in metrics:
            raise ConfigError(
                f"mass_matrix {mass_matrix!r}; expected one of {', '.join(metrics)} for a "
                f"{type(model.prior).__name__}"
            )
        if num_steps is None:
            num_steps = _FEW_STEPS if mass_matrix in posterior_metrics else _MANY_STEPS
        require_whole(1, num_chains=num_chains, num_steps=num_steps)
        if not 0 < target_accept < 1 or not 0 <= jitter < 1:
            raise ConfigError(
                f"target_accept is {target_accept} and jitter {jitter}; expected numbers between 0 "
                "and 1"
            )
        if step_size is not None:
            sizes = torch.as_tensor(step_size)
            if not bool((sizes.isfinite() & (sizes > 0)).all()):
                raise ConfigError(f"step_size is {step_size}; expected positive numbers")
        if not 0 <= seed < 2**63:
            raise ConfigError(f"seed is {seed}; expected a number from 0 to 2**63 - 1")
        return cls(num_chains, mass_matrix, num_steps, step_size, target_accept, jitter, seed)


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
