"""DiagonalNormalPrior: a normal prior of independent logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from pyro.distributions import Normal, TorchDistribution
from torch import Tensor, nn

from torch_lntm.corpus import DocumentBatch
from torch_lntm.models.priors.logistic_normal import LogisticNormalPrior
from torch_lntm.models.priors.prior import check_tensor


class DiagonalNormalPrior(LogisticNormalPrior):
    """eta ~ Normal(loc, diag std²), theta = softmax(eta), with a prior on the variances.

    The prior of the *ZhuSuan LNTM tutorial*, and the diagonal case of :class:`LogisticNormalPrior`.
    Each variance has an inverse-gamma prior, expressed as pseudo-data. For D documents with sum of
    squares S, the mode of a variance is (pseudo_documents × pseudo_variance + S) /
    (pseudo_documents + D). In the usual symbols, the shape is pseudo_documents/2 − 1 and the scale
    pseudo_documents × pseudo_variance / 2.

    Args:
        num_topics: Number of topics K.
        std: ``(num_topics,)`` prior standard deviations. Defaults to 1.
        **settings: Settings of :class:`LogisticNormalPrior`: ``loc``, ``pseudo_documents``,
            ``pseudo_variance`` and ``dtype``.

    Raises:
        ConfigError: A shape or value is out of range.

    Example:
        >>> lntm.models.DiagonalNormalPrior(3, std=torch.tensor([1.0, 2.0, 0.5]))
        DiagonalNormalPrior(3 topics, pseudo_documents=8.0, pseudo_variance=1.0)
    """

    form_of_covariance = (
        "diagonal, but logits are independent under this prior; give their standard deviations by "
        "std, or use ctm for a full covariance"
    )

    def __init__(self, num_topics: int, *, std: Tensor | None = None, **settings: Any) -> None:
        super().__init__(num_topics, **settings)
        self.set_(std=std)

    def _add_scale(self) -> None:
        """Make the parameters of the variances."""
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
            covariance: ``(num_topics, num_topics)``, diagonal: squared standard deviations.
            std: ``(num_topics,)``, an alternative to ``covariance``.

        Raises:
            ConfigError: The shape is different, an entry is not finite, the covariance is not
                diagonal, or a standard deviation is not positive.
        """
        if std is not None:
            std = check_tensor(std, "prior std", self.num_topics, positive=True)
            self.log_std.copy_(std.double().log())
        super().set_(loc=loc, covariance=covariance)

    def _write_scale(self, tril: Tensor) -> None:
        """Set the parameters from a diagonal Cholesky factor."""
        self.log_std.copy_(tril.diagonal().log())

    def _constrain_covariance(self, covariance: Tensor) -> Tensor:
        """The diagonal, because the variances of independent logits are maximised separately."""
        return covariance.diagonal().diag_embed()

    def _draw_covariance(self, scale: Tensor, freedom: float, rng: np.random.Generator) -> Tensor:
        """A draw of the variances of independent logits, each inverse-gamma."""
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
