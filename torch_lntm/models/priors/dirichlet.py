"""DirichletPrior, the prior of the generative aspect model."""

from __future__ import annotations

from collections.abc import Sequence

import pyro
import torch
from pyro.distributions import Dirichlet
from torch import Tensor, nn

from torch_lntm.corpus import DocumentBatch
from torch_lntm.errors import ConfigError
from torch_lntm.latents import GammaSpace
from torch_lntm.latents.sticks import StickSpace
from torch_lntm.models.priors.prior import MIN_PROPORTION, DocumentPrior, check_tensor
from torch_lntm.posteriors import Moments
from torch_lntm.solvers.concentration import fit_concentration

#: Largest total concentration of an inflated prior.
INFLATED_TOTAL = 1.0


class DirichletPrior(DocumentPrior):
    """theta ~ Dirichlet(concentration) (*Minka & Lafferty 2002, §2*).

    Args:
        num_topics: Number of topics K.
        concentration: ``(num_topics,)`` positive numbers, or a single number for all topics.
            Defaults to 1/K. Fits that learn the concentration begin with it only if
            ``start="model"``, because all other starts estimate a new one.
        symmetric: Learn a single number for all topics.
        learn_concentration: Whether M-steps and ``SVI`` change the concentration.
        dtype: Floating-point type.

    Raises:
        ConfigError: The concentration is not positive, has another shape, or is not symmetric for a
            symmetric prior.

    Example:
        >>> lntm.models.DirichletPrior(4, symmetric=True)
        DirichletPrior(4 topics, symmetric=True, learn_concentration=True)
    """

    latent = "theta"

    def __init__(
        self,
        num_topics: int,
        *,
        concentration: float | Sequence[float] | Tensor | None = None,
        symmetric: bool = False,
        learn_concentration: bool = True,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.num_topics = num_topics
        self.symmetric = symmetric
        self.learn_concentration = learn_concentration
        log_concentration = torch.empty(1 if symmetric else num_topics, dtype=dtype)
        if learn_concentration:
            self.log_concentration: Tensor = nn.Parameter(log_concentration)
        else:
            self.register_buffer("log_concentration", log_concentration)
        self.set_(1.0 / num_topics if concentration is None else concentration)

    @property
    def concentration(self) -> Tensor:
        """Concentration ``(num_topics,)``, differentiable."""
        return self.log_concentration.exp().expand(self.num_topics)

    @torch.no_grad()
    def set_(self, concentration: float | Sequence[float] | Tensor) -> None:
        """Set the concentration in place.

        Args:
            concentration: ``(num_topics,)``, or a single number.

        Raises:
            ConfigError: The concentration is not positive and finite, has another shape, or has
                unequal entries in a symmetric prior.
        """
        values = torch.as_tensor(concentration, dtype=torch.float64)
        if values.dim() == 0:
            values = values.expand(self.num_topics)
        rounded = values.to(self.log_concentration.dtype)
        check_tensor(rounded, "concentration", self.num_topics, positive=True)
        if self.symmetric and not torch.allclose(values, values[0]):
            raise ConfigError(
                "concentration has different entries; expected equal entries with symmetric=True"
            )
        self.log_concentration.copy_(values[: len(self.log_concentration)].log())

    def theta(self, latent: Tensor) -> Tensor:
        """Topic proportions ``(..., num_topics)``; theta is the latent variable."""
        return latent

    @property
    def space_type(self) -> type[GammaSpace]:
        """See :attr:`DocumentPrior.space_type`."""
        return GammaSpace

    def space(self, batch: DocumentBatch) -> GammaSpace:
        """See :meth:`DocumentPrior.space`. Logs of gamma variates, nearly standard normal."""
        concentration = self.concentration.detach().double()
        return GammaSpace(concentration, self.log_concentration.dtype)

    def identified(self, batch: DocumentBatch) -> StickSpace:
        """See :meth:`DocumentPrior.identified`. Logits of stick-breaking fractions."""
        return StickSpace.of(self.concentration.detach())

    def emit(self, batch: DocumentBatch) -> Tensor:
        """Emit the site ``"theta"``; see :meth:`DocumentPrior.emit`."""
        return pyro.sample("theta", Dirichlet(self.concentration))

    def statistics(self, moments: Moments, batch: DocumentBatch) -> dict[str, Tensor]:
        """See :meth:`DocumentPrior.statistics`.

        Returns:
            ``log_theta_sum`` ``(num_topics,)`` Σ_d E log theta.
        """
        return {"log_theta_sum": moments.expected_log_theta().sum(0)}

    @torch.no_grad()
    def m_step(self, num_docs: float, **sums: Tensor) -> None:
        """Set the concentration to its maximiser, by Newton (*Minka & Lafferty 2002, eq. 30*).

        Args:
            num_docs: Number of documents in the sums, without empty documents.
            **sums: ``log_theta_sum`` ``(num_topics,)`` Σ_d E log theta.
        """
        if self.learn_concentration and num_docs > 0:
            # The CPU is faster at many small steps, and then waits for the GPU only once.
            mean, start = sums["log_theta_sum"].double() / num_docs, self.concentration.double()
            self.set_(fit_concentration(mean.cpu(), start.cpu(), symmetric=self.symmetric))

    def start_latents(self, theta: Tensor) -> Tensor:
        """See :meth:`DocumentPrior.start_latents`. Proportions of at least 1e-4."""
        return theta.clamp_min(MIN_PROPORTION)

    def inflate_covariance(self) -> None:
        """See :meth:`DocumentPrior.inflate_covariance`.

        The total concentration becomes at most 1, while the mean of theta stays the same.
        """
        concentration = self.concentration.detach().double()
        total = float(concentration.sum())
        if self.learn_concentration and total > INFLATED_TOTAL:
            self.set_(concentration * (INFLATED_TOTAL / total))

    def contrast_covariance(self) -> Tensor:
        """Covariance ``(num_topics, num_topics)`` of the centred log proportions, float64.

        The covariance of log theta is diag Ψ′(α) − Ψ′(Σα), and centring removes the second term.
        """
        spread = torch.polygamma(1, self.concentration.detach().double()).diag_embed()
        spread = spread - spread.mean(0)
        return spread - spread.mean(1, keepdim=True)

    def extra_repr(self) -> str:
        """Sizes, for ``repr``."""
        return (
            f"{self.num_topics} topics, symmetric={self.symmetric}, "
            f"learn_concentration={self.learn_concentration}"
        )
