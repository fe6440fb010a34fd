"""Coordinates of the latent variables with an effect on the likelihood, for integrals.

The random numbers of proposals come from NumPy on the CPU. Because they depend only on the seed and
the document's position, they are equal in every batch and on every device.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.errors import undefined
from torch_lntm.latents.space import LatentSpace

#: Degrees of freedom of Student-t proposals.
STUDENT = 5.0


class IdentifiedSpace(LatentSpace):
    """Coordinates of the latent variables with an effect on the likelihood.

    A prior's ``identified(batch)`` returns such a space. A document's probability is an integral
    over z, for which the space offers draws around an approximate posterior from a guide. All
    numbers are float64.
    """

    #: Descriptions of the proposals by name. The first proposal is the default.
    proposals: ClassVar[Mapping[str, str]]
    #: Whether the space has :meth:`normal`. Logits are then affine in z.
    has_normal: ClassVar[bool] = False

    @abstractmethod
    def proper(self, posterior: Any) -> Tensor:
        """Whether each document's posterior can be the centre of draws, ``(num_docs,)`` bool.

        Args:
            posterior: Posterior of the batch from the space's guide for centres
                (:mod:`torch_lntm.guides.table`), or from a guide of its kind.
        """

    @abstractmethod
    def proposal(
        self, name: str, posterior: Any, row: int, document: tuple[Tensor, Tensor]
    ) -> Proposal:
        """The proposal for a single document.

        Args:
            name: A name in :attr:`proposals`.
            posterior: A guide's posterior of the whole batch.
            row: Position of the document in the batch.
            document: Probabilities ``(nnz, num_topics)`` of its words under each topic, and their
                counts ``(nnz,)``.
        """

    def normal(
        self, posterior: Any, rows: Tensor, documents: Iterable[tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """Normal approximations of the posteriors of this space's documents, with tokens.

        Args:
            posterior: A guide's posterior of these documents, and possibly of others.
            rows: ``(num_docs,)`` int64 rows of the documents in ``posterior``.
            documents: Words of each document, as for :meth:`proposal`. Read at most once.

        Returns:
            Means ``(num_docs, dim)`` and Cholesky factors of the covariances ``(num_docs, dim,
            dim)``, float64.
        """
        raise undefined(self, "normal")


@dataclass(frozen=True, eq=False)
class Proposal:
    """Distribution q of a document's coordinates z.

    Attributes:
        space: Coordinates, as a space of this document alone.
        draw: Function of the number of draws and a key. The key seeds the generator; it consists of
            nonnegative integers such as (seed, position in the corpus). The function returns z
            ``(num_draws, dim)`` and log q(z) ``(num_draws,)``, float64 nats.
    """

    space: LatentSpace
    draw: Callable[[int, Sequence[int]], tuple[Tensor, Tensor]]


def elliptical_draws(
    loc: Tensor, tril: Tensor, degrees_of_freedom: float, num_draws: int, key: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Draws of a multivariate Student-t or normal distribution.

    Args:
        loc: ``(dim,)`` float64 centre.
        tril: ``(dim, dim)`` float64 scale, lower triangular.
        degrees_of_freedom: Degrees of freedom; infinite for a normal.
        num_draws: Number of draws.
        key: Seed of the generator, as for :class:`Proposal`.

    Returns:
        Draws ``(num_draws, dim)`` and their log densities ``(num_draws,)``.
    """
    noise = draw_noise(num_draws, len(loc), key, degrees_of_freedom).to(loc.device)
    log_density = noise_log_density(noise, degrees_of_freedom) - tril.diagonal().log().sum()
    return loc + noise @ tril.mT, log_density


def draw_noise(
    num_draws: int, dim: int, key: Sequence[int], degrees_of_freedom: float = math.inf
) -> Tensor:
    """Standard normal or Student-t numbers, as a function of the key alone.

    Args:
        num_draws: Number of draws.
        dim: Dimension of each draw.
        key: Seed of the generator, as for :class:`Proposal`.
        degrees_of_freedom: Degrees of freedom. Defaults to infinity, for a normal distribution.

    Returns:
        ``(num_draws, dim)`` float64, on the CPU.
    """
    rng = np.random.default_rng(list(key))
    noise = rng.standard_normal((num_draws, dim))
    if math.isfinite(degrees_of_freedom):
        half = degrees_of_freedom / 2.0
        noise *= np.sqrt(half / rng.standard_gamma(half, size=(num_draws, 1)))
    return torch.from_numpy(noise)


def noise_log_density(noise: Tensor, degrees_of_freedom: float = math.inf) -> Tensor:
    """Log density ``(...)`` of the distribution of :func:`draw_noise` at noise ``(..., dim)``."""
    dim = noise.shape[-1]
    squared = noise.square().sum(-1)
    if math.isinf(degrees_of_freedom):
        return -0.5 * (squared + dim * math.log(2.0 * math.pi))
    nu = degrees_of_freedom
    constant = (
        math.lgamma((nu + dim) / 2.0) - math.lgamma(nu / 2.0) - 0.5 * dim * math.log(nu * math.pi)
    )
    return constant - 0.5 * (nu + dim) * torch.log1p(squared / nu)


def log_gamma_variates(rng: np.random.Generator, shapes: NDArray[np.float64]) -> Tensor:
    """Logs of gamma variates, finite even if the variates would underflow for small shapes.

    In distribution, log G(a) = log G(a + 1) + log(U)/a.
    """
    larger = np.log(rng.standard_gamma(shapes + 1.0))
    return torch.from_numpy(larger + np.log1p(-rng.random(shapes.shape)) / shapes)
