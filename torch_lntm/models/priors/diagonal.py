"""The logistic-normal prior with independent logits."""

from __future__ import annotations

import numpy as np
import torch
from pyro.distributions import Normal, TorchDistribution
from torch import Tensor, nn

from torch_lntm.corpus import DocumentBatch
from torch_lntm.errors import ConfigError
from torch_lntm.models.priors.logistic_normal import LogisticNormalPrior
from torch_lntm.models.priors.prior import check_tensor


class DiagonalNormalPrior(LogisticNormalPrior):
    """eta ~ Normal(loc, diag std²), theta = softmax(eta), with a prior on the variances.

    *ZhuSuan LNTM tutorial.* The prior of each variance is inverse-gamma, written by its weight as
    in :class:`LogisticNormalPrior`, of which this is the diagonal: the mode of a variance given D
    documents with sum of squares S is (pseudo_documents × pseudo_variance + S) / (pseudo_documents
    + D). In the usual symbols the shape is pseudo_documents/2 − 1 and the scale pseudo_documents ×
    pseudo_variance / 2.

    Args:
        num_topics: Number of topics K.
        loc: ``(num_topics,)`` prior mean; zero by default.
        std: ``(num_topics,)`` prior standard deviations; one by default.
        pseudo_documents: Weight of the variances' prior; by default 2K + 2. 0 gives maximum
            likelihood.
        pseudo_variance: Variance that this prior stands for; by default as for
            :class:`LogisticNormalPrior`.
        dtype: Floating-point type.

    Raises:
        ConfigError: A shape or value that cannot be used.
    """

    def __init__(
        self,
        num_topics: int,
        *,
        loc: Tensor | None = None,
        std: Tensor | None = None,
        pseudo_documents: float | None = None,
        pseudo_variance: float | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(
            num_topics,
            loc=loc,
            pseudo_documents=pseudo_documents,
            pseudo_variance=pseudo_variance,
            dtype=dtype,
        )
        self.set_(std=std)

    def _add_scale(self) -> None:
        """The parameters that hold the variances."""
        self.log_std = nn.Parameter(torch.zeros_like(self.loc))

    @property
    def std(self) -> Tensor:
        """Standard deviations of eta ``(num_topics,)``, differentiable."""
        return self.log_std.exp()

    @property
    def scale_tril(self) -> Tensor:
        """Lower Cholesky factor of the covariance ``(num_topics, num_topics)``: diag std."""
        return self.std.diag_embed()

    @torch.no_grad()
    def set_(
        self,
        *,
        loc: Tensor | None = None,
        covariance: Tensor | None = None,
        std: Tensor | None = None,
    ) -> None:
        """Set the mean, the standard deviations or both in place.

        Args:
            loc: ``(num_topics,)``.
            covariance: ``(num_topics, num_topics)``, diagonal: the squares of the standard
                deviations.
            std: ``(num_topics,)``, in its place.

        Raises:
            ConfigError: Another shape, a non-finite entry, a covariance that is not diagonal, or a
                standard deviation that is not positive.
        """
        if std is not None:
            std = check_tensor(std, "prior std", self.num_topics, positive=True)
            self.log_std.copy_(std.double().log())
        super().set_(loc=loc, covariance=covariance)

    def _check_covariance(self, covariance: Tensor) -> None:
        """One that is not diagonal."""
        if bool((covariance != covariance.diagonal().diag_embed()).any()):
            raise ConfigError(
                "prior covariance is not diagonal, but logits are independent under this prior; "
                "give their standard deviations by std, or take ctm for a full covariance"
            )

    def _write_scale(self, tril: Tensor) -> None:
        """The diagonal of a factor that has nothing else."""
        self.log_std.copy_(tril.diagonal().log())

    def _constrain_covariance(self, covariance: Tensor) -> Tensor:
        """The diagonal: variances of independent logits have maximisers of their own."""
        return covariance.diagonal().diag_embed()

    def _draw_covariance(self, scale: Tensor, freedom: float, rng: np.random.Generator) -> Tensor:
        """Variances of independent logits: each is inverse-gamma."""
        squares = rng.chisquare(freedom + self.latent_dim - 1, self.latent_dim)
        return (scale.diagonal().cpu() / torch.from_numpy(squares)).diag_embed()

    def distribution(self, batch: DocumentBatch) -> TorchDistribution:
        """See :meth:`NormalPrior.distribution`."""
        return Normal(self.location(batch), self.std).to_event(1)

    def extra_repr(self) -> str:
        """Sizes and prior, for ``repr``."""
        return (
            f"{self.num_topics} topics, pseudo_documents={self.pseudo_documents}, "
            f"pseudo_variance={self.pseudo_variance}"
        )
