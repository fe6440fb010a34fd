"""Normal priors of eta with a free mean, and a full or diagonal covariance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from pyro.distributions import Normal, TorchDistribution
from torch import Tensor, nn

from torch_lntm.corpus import DocumentBatch
from torch_lntm.errors import ConfigError
from torch_lntm.models.priors.normal import NormalPrior
from torch_lntm.models.priors.prior import PseudoDocuments, check_tensor, inflation_factor


class LogisticNormalPrior(PseudoDocuments, NormalPrior):
    """eta ~ Normal(loc, covariance), theta = softmax(eta), with a prior on the covariance.

    The covariance has an inverse-Wishart prior, expressed as pseudo-data: ``pseudo_documents``
    documents of K independent logits with variance ``pseudo_variance``. For D documents with
    scatter S, the mode of the covariance is (pseudo_documents × P + S) / (pseudo_documents + D),
    with P = pseudo_variance × I (times I + 11ᵀ if anchored, for the same distribution of theta). In
    the usual symbols, Ψ = pseudo_documents × P and ν + latent_dim + 1 = pseudo_documents. The prior
    is there because the maximum-likelihood estimate of the covariance may diverge. The variance
    defaults to a value that suits the fit:

    ============================================ ==============================================
    fit                                          ``pseudo_variance``
    ============================================ ==============================================
    variational EM                               1
    Monte-Carlo EM                               10
    Monte-Carlo EM, a token or more per topic    average variance of the fitted logits, 0.1 to 10
    and document
    ============================================ ==============================================

    Args:
        num_topics: Number of topics K.
        anchored: Fix the last topic's component at 0.
        loc: ``(latent_dim,)`` prior mean. Defaults to 0.
        covariance: ``(latent_dim, latent_dim)`` prior covariance. Defaults to the covariance of K
            independent unit normals or, if anchored, of their differences from the last.
        pseudo_documents: Weight of the covariance's prior. Defaults to 2K + 2, a weak proper prior.
            0 gives maximum likelihood.
        pseudo_variance: Variance of the logits in the pseudo-documents; its default is in the table
            above.
        dtype: Floating-point type.

    Raises:
        ConfigError: A shape or value is out of range.

    Example:
        >>> lntm.models.LogisticNormalPrior(3)
        LogisticNormalPrior(3 topics, pseudo_documents=8.0, pseudo_variance=1.0)
    """

    def __init__(
        self,
        num_topics: int,
        *,
        anchored: bool = False,
        loc: Tensor | None = None,
        covariance: Tensor | None = None,
        pseudo_documents: float | None = None,
        pseudo_variance: float | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(num_topics, anchored=anchored)
        weight = 2 * num_topics + 2 if pseudo_documents is None else pseudo_documents
        self._set_pseudo_documents("the covariance", weight, pseudo_variance)
        dim = self.latent_dim
        self.loc = nn.Parameter(torch.zeros(dim, dtype=dtype))
        self._add_scale()
        if covariance is None:
            # Differences between K unit normals and the last have covariance I + 11ᵀ.
            covariance = torch.eye(dim) + (torch.ones(dim, dim) if anchored else 0)
        self.set_(loc=torch.zeros(dim) if loc is None else loc, covariance=covariance)

    def _add_scale(self) -> None:
        """Make the parameters of the covariance."""
        dim = self.latent_dim
        self.unconstrained_tril = nn.Parameter(self.loc.new_empty(dim, dim))

    def location(self, batch: DocumentBatch) -> Tensor:
        """See :meth:`NormalPrior.location`. The mean is ``loc``."""
        return self.loc

    @property
    def scale_tril(self) -> Tensor:
        """Lower Cholesky factor of the covariance ``(latent_dim, latent_dim)``, differentiable."""
        raw = self.unconstrained_tril
        return raw.tril(-1) + raw.diagonal().exp().diag_embed()

    @torch.no_grad()
    def set_(self, *, loc: Tensor | None = None, covariance: Tensor | None = None) -> None:
        """Set the mean, the covariance or both in place.

        Args:
            loc: ``(latent_dim,)``.
            covariance: ``(latent_dim, latent_dim)``.

        Raises:
            ConfigError: The shape is different, an entry is not finite, or the covariance is not
                symmetric positive definite.
        """
        dim = self.latent_dim
        if loc is not None:
            self.loc.copy_(check_tensor(loc, "prior mean", dim))
        if covariance is not None:
            covariance = check_tensor(covariance, "prior covariance", dim, dim).double()
            possible = self._constrain_covariance(covariance)
            scale = covariance.diagonal().abs().max().clamp_min(1e-300) if dim else 1.0
            if ((covariance - possible).abs() > 5e-6 * scale).any():
                raise ConfigError(
                    "prior covariance is not symmetric; pass (C + C.T) / 2"
                    if self.has_correlations
                    else "prior covariance is not diagonal, but logits are independent under this "
                    "prior; give their standard deviations by std, or use ctm for a full covariance"
                )
            tril, info = torch.linalg.cholesky_ex(possible)
            if int(info) != 0:
                raise ConfigError(
                    "prior covariance is not positive definite: its leading block of size "
                    f"{int(info)} is singular or indefinite; add a small multiple of the identity"
                )
            self._write_scale(tril)

    def _write_scale(self, tril: Tensor) -> None:
        """Set the parameters from a Cholesky factor of the covariance, float64."""
        raw = tril.tril(-1) + tril.diagonal().log().diag_embed()
        self.unconstrained_tril.copy_(raw)

    def _constrain_covariance(self, covariance: Tensor) -> Tensor:
        """The maximiser within this prior's family, from the unconstrained maximiser."""
        return (covariance + covariance.mT) / 2

    @torch.no_grad()
    def m_step(self, num_docs: float, **sums: Tensor) -> None:
        """Set mean and covariance to their maximisers (*Khan & Bouchard 2009, eqs 39–40*).

        The covariance maximises the likelihood times its inverse-Wishart prior.

        Args:
            num_docs: Number of documents in the sums, without empty documents.
            **sums: ``latent_sum`` ``(latent_dim,)`` Σ_d E[eta_d] and ``latent_outer``
                ``(latent_dim, latent_dim)`` Σ_d E[eta_d eta_dᵀ].

        Raises:
            NumericalError: The documents and ``pseudo_documents`` are too few, or the sums are not
                finite. On a GPU, if ``pseudo_documents`` × ``pseudo_variance`` is at least 1, the
                check is left out, because the host would wait for its result. The parameters then
                become NaN, and fits report the NaN.
        """
        if num_docs == 0:
            return
        mean, scatter, num_vectors = self._fit_mean(num_docs, sums)
        pseudo_scatter = self.pseudo_documents * self._prior_covariance()
        covariance = (pseudo_scatter + (scatter + scatter.mT) / 2) / (
            self.pseudo_documents + num_vectors
        )
        tril, info = torch.linalg.cholesky_ex(self._constrain_covariance(covariance))
        self._check_solved(info, num_docs, "the prior's covariance")
        self._write_scale(tril.where(info == 0, torch.nan))
        self.loc.copy_(mean)

    def _fit_mean(
        self, num_docs: float, sums: Mapping[str, Tensor], learn: bool = True
    ) -> tuple[Tensor, Tensor, float]:
        """Maximiser of the mean, for any covariance.

        Args:
            num_docs: As for :meth:`m_step`.
            sums: As for :meth:`m_step`.
            learn: Whether to update hyperparameters of the mean too.

        Returns:
            The mean ``(latent_dim,)``, the scatter about it ``(latent_dim, latent_dim)``, and the
            number of normal vectors in the scatter.
        """
        mean = sums["latent_sum"] / num_docs
        return mean, sums["latent_outer"] - num_docs * torch.outer(mean, mean), num_docs

    @torch.no_grad()
    def draw_(self, num_docs: float, rng: np.random.Generator, **sums: Tensor) -> None:
        """Set mean and covariance to a draw from their posterior given the documents' eta.

        The covariance is inverse-Wishart, and the mean is normal given the covariance. A default
        ``pseudo_variance`` is drawn too, from the prior Gamma(½, ½). All other priors and
        sums are as in :meth:`m_step`.

        Args:
            num_docs: Number of documents in the sums.
            rng: Random number generator.
            **sums: As for :meth:`m_step`, from exact values of eta.

        Raises:
            NumericalError: The documents and ``pseudo_documents`` are too few for a proper
                posterior.
        """
        mean, scatter, _ = self._fit_mean(num_docs, sums, learn=False)
        # |Σ|^(−(pseudo_documents + D)/2), times |Σ|^½ of the flat mean that is integrated out.
        freedom = self.pseudo_documents + num_docs - self.latent_dim - 2
        if freedom < self.latent_dim:
            raise self._improper(num_docs, f"the covariance of {self.latent_dim} logits")
        scale = self.pseudo_documents * self._prior_covariance() + (scatter + scatter.mT) / 2
        self.set_(loc=mean, covariance=self._draw_covariance(scale, freedom, rng).to(scale))
        unit = self.pseudo_documents / self.pseudo_variance * self._prior_covariance()
        total = torch.cholesky_solve(unit, self.scale_tril.double()).diagonal().sum()
        self._draw_variance(self._prior_count, float(total), rng)
        self._move_mean(self._draw_change(num_docs, rng) @ self.scale_tril.double().mT)

    @property
    def _prior_count(self) -> float:
        """Degrees of freedom of the covariance's prior times its dimension; 0 if improper."""
        freedom = self.pseudo_documents - self.latent_dim - 1
        return freedom * self.latent_dim if freedom >= self.latent_dim else 0.0

    def _draw_covariance(self, scale: Tensor, freedom: float, rng: np.random.Generator) -> Tensor:
        """A draw from the inverse Wishart of a scale ``(latent_dim, latent_dim)``."""
        # A slow import, for joint chains only.
        from scipy.stats import invwishart

        draw = invwishart.rvs(freedom, scale.cpu().numpy(), random_state=rng)
        covariance = torch.from_numpy(np.reshape(draw, tuple(scale.shape)))
        return (covariance + covariance.mT) / 2

    def _mean_covariance(self, num_docs: float) -> Tensor:
        """Covariance between rows of the mean given eta, relative to ``covariance``; float64."""
        return torch.full((1, 1), 1.0 / num_docs, dtype=torch.float64, device=self.loc.device)

    def _draw_change(self, num_docs: float, rng: np.random.Generator) -> Tensor:
        """Draw ``(num_rows, latent_dim)`` with the covariance between rows of the mean; float64."""
        rows = torch.linalg.cholesky(self._mean_covariance(num_docs))
        return rows @ torch.from_numpy(rng.standard_normal((len(rows), self.latent_dim))).to(rows)

    def _move_mean(self, change: Tensor) -> None:
        """Add a change ``(num_rows, latent_dim)`` to the rows of the mean."""
        self.loc.add_(change[0])

    def start(self, num_docs: float, **sums: Tensor) -> None:
        """See :meth:`DocumentPrior.start`. Moments of the log proportions, plus 0.1 I.

        The covariance's prior is left out of this rough estimate.
        """
        mean, scatter, num_vectors = self._fit_mean(num_docs, sums)
        covariance = (scatter + scatter.mT) / 2 / num_vectors
        covariance.diagonal().add_(0.1)
        self.set_(loc=mean, covariance=self._constrain_covariance(covariance))

    def inflate_covariance(self) -> None:
        """See :meth:`DocumentPrior.inflate_covariance`. Correlations stay."""
        scale = inflation_factor(self.contrast_covariance())
        if scale > 1.0:
            self.set_(covariance=self.covariance.detach().double() * scale)

    def regressors(
        self, batch: DocumentBatch, *, of_levels: bool = True
    ) -> tuple[Tensor, Tensor] | None:
        """See :meth:`DocumentPrior.regressors`. An intercept only."""
        ones = torch.ones(batch.num_docs, 1, dtype=torch.float64, device=self.loc.device)
        return ones, ones.new_zeros(1)

    def _prior_covariance(self) -> Tensor:
        """Covariance of the pseudo-documents, float64. Anchoring leaves the contrasts the same."""
        eye = torch.eye(len(self.loc), dtype=torch.float64, device=self.loc.device)
        # Differences between K independent components and the last have covariance I + 11ᵀ.
        return self.pseudo_variance * (eye + 1.0 if self.anchored else eye)

    def log_prior(self) -> Tensor:
        """Log density of the inverse-Wishart prior at the covariance, up to a constant (scalar).

        −½ pseudo_documents × (log|Σ| + tr Σ⁻¹S), for the covariance S of the pseudo-documents.
        """
        tril = self.scale_tril.double()
        if self.pseudo_documents == 0:
            return tril.new_zeros(())
        root = torch.linalg.cholesky(self._prior_covariance())
        whitened = torch.linalg.solve_triangular(tril, root, upper=False)
        log_det = 2 * tril.diagonal().log().sum()
        return -0.5 * self.pseudo_documents * (log_det + whitened.square().sum())

    def extra_repr(self) -> str:
        """Sizes and prior, for ``repr``."""
        return super().extra_repr() + (", anchored" if self.anchored else "")


class DiagonalNormalPrior(LogisticNormalPrior):
    """eta ~ Normal(loc, diag std²), theta = softmax(eta), with a prior on the variances.

    It is the prior of the *ZhuSuan LNTM tutorial*, and the diagonal case of
    :class:`LogisticNormalPrior`. Each variance has an inverse-gamma prior, expressed as
    pseudo-data. For D documents with sum of squares S, the mode of a variance is (pseudo_documents
    × pseudo_variance + S) / (pseudo_documents + D). In the usual symbols, the shape is
    pseudo_documents/2 − 1 and the scale pseudo_documents × pseudo_variance / 2.

    Args:
        num_topics: Number of topics K.
        std: ``(num_topics,)`` prior standard deviations. Defaults to 1.
        **settings: Settings of :class:`LogisticNormalPrior`: ``loc``, ``pseudo_documents``,
            ``pseudo_variance`` and ``dtype``.

    Raises:
        ConfigError: A shape or value is out of range.

    Example:
        >>> lntm.models.lntm(3, 500, std=torch.tensor([1.0, 2.0, 0.5])).prior
        DiagonalNormalPrior(3 topics, pseudo_documents=8.0, pseudo_variance=1.0)
    """

    has_correlations = False

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

    @property
    def _prior_count(self) -> float:
        return (self.pseudo_documents - 2) * self.latent_dim

    def _draw_covariance(self, scale: Tensor, freedom: float, rng: np.random.Generator) -> Tensor:
        """A draw of the variances of independent logits, each inverse-gamma."""
        squares = rng.chisquare(freedom + self.latent_dim - 1, self.latent_dim)
        return (scale.diagonal().cpu() / torch.from_numpy(squares)).diag_embed()

    def distribution(self, batch: DocumentBatch) -> TorchDistribution:
        """See :meth:`NormalPrior.distribution`."""
        return Normal(self.location(batch), self.std).to_event(1)
