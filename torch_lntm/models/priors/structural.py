"""StructuralPrior, a normal prior of eta whose mean is linear in documents' covariates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.errors import ConfigError, NotFittedError
from torch_lntm.models.priors.covariates import PREVALENCE, Covariates
from torch_lntm.models.priors.logistic_normal import LogisticNormalPrior
from torch_lntm.models.priors.prior import check_tensor
from torch_lntm.posteriors import Moments

#: Bounds of an estimated penalty, at whose lower end coefficients are free and at whose upper end
#: they are 0.
MIN_PENALTY, MAX_PENALTY = 1e-6, 1e8
#: Updates of the penalty in an M-step. They converge only linearly, but the next M-step continues
#: them.
EVIDENCE_STEPS = 20


class StructuralPrior(LogisticNormalPrior):
    """eta_d ~ Normal(Γᵀ(1, x_d), covariance), theta = softmax(eta).

    It is the prior of structural topic models (*Roberts, Stewart & Airoldi 2016*), whose mean
    depends on a document's covariates x_d, ``batch.covariates["prevalence"]``. They are
    standardised by the training documents' means and standard deviations, u = (x − means) / scales.
    The mean of eta is ``loc`` + ``slopes``ᵀu, so that ``loc`` belongs to a document with average
    covariates.

    Each row of slopes has the prior Normal(0, covariance / ``penalty``), whereas the prior of the
    intercept is flat. Given the documents' eta, the coefficients are therefore matrix-normal, with
    mean :attr:`coefficients`, covariance :meth:`coefficient_covariance` between rows, and
    ``covariance`` between topics.

    Args:
        num_topics: Number of topics K.
        covariates: Names, means and scales of the covariates, and their formula if any.
        slopes: ``(num_covariates, latent_dim)`` change of the prior mean per standard deviation of
            each covariate. Defaults to 0.
        penalty: Precision of the slopes' prior, relative to ``covariance``. By default, M-steps
            estimate it by maximising the evidence, starting from 1 (*MacKay 1992*).
        **settings: Settings of :class:`LogisticNormalPrior`, such as ``anchored`` and ``dtype``.
            ``loc`` is the prior mean of a document with average covariates.

    Attributes:
        covariates: The covariates.
        learn_penalty: Whether M-steps estimate the penalty.

    Raises:
        ConfigError: A shape or value is out of range.

    Example:
        >>> by_year = lntm.models.Covariates.of(posts, "~ year")
        >>> lntm.models.StructuralPrior(3, by_year).coefficients.tolist()
        [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """

    fitted_buffers = frozenset({"penalty", "gram"})
    penalty: Tensor
    gram: Tensor
    means: Tensor
    scales: Tensor

    def __init__(
        self,
        num_topics: int,
        covariates: Covariates,
        *,
        slopes: Tensor | None = None,
        penalty: float | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(num_topics, **settings)
        if penalty is not None and not MIN_PENALTY <= penalty <= MAX_PENALTY:
            raise ConfigError(
                f"penalty is {penalty}; expected a number from {MIN_PENALTY:g} to {MAX_PENALTY:g}, "
                "or None to estimate it"
            )
        self.covariates = covariates
        self.learn_penalty = penalty is None
        size = self.num_covariates
        if slopes is None:
            slopes = torch.zeros(size, self.latent_dim)
        slopes = check_tensor(slopes, "slopes", size, self.latent_dim)
        self.slopes = nn.Parameter(slopes.detach().clone().to(self.loc.dtype))
        start = 1.0 if penalty is None else penalty
        self.register_buffer("penalty", torch.tensor(start, dtype=torch.float64))
        # Buffers, so that they follow the model to its device. Files hold the covariates instead.
        for name in ("means", "scales"):
            values = torch.tensor(getattr(covariates, name), dtype=torch.float64)
            self.register_buffer(name, values, persistent=False)
        # Σ_d (1, u)(1, u)ᵀ of the last M-step's documents.
        self.register_buffer("gram", torch.zeros(1 + size, 1 + size, dtype=torch.float64))

    @property
    def num_covariates(self) -> int:
        """Number of covariates, excluding the intercept."""
        return len(self.covariates.names)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the rows of :attr:`coefficients`, ``"Intercept"`` first."""
        return ("Intercept", *self.covariates.names)

    @property
    def coefficients(self) -> Tensor:
        """Γ ``(1 + num_covariates, latent_dim)`` in the units of the covariates, float64."""
        rows = torch.cat([self.loc[None], self.slopes]).detach().double()
        return self._to_units() @ rows

    def coefficient_covariance(self) -> Tensor:
        """Covariance between the rows of Γ given the documents' eta, float64.

        ``(1 + num_covariates, 1 + num_covariates)``. Entries (p, k) and (q, j) of Γ have the
        covariance ``coefficient_covariance()[p, q] * covariance[k, j]``. In standard symbols the
        matrix is (XᵀX + R)⁻¹, which excludes the uncertainty of the documents' eta.

        Raises:
            NotFittedError: The prior has had no M-step yet.
        """
        units = self._to_units()
        return units @ self._row_covariance() @ units.mT

    def _row_covariance(self) -> Tensor:
        """(UᵀU + R)⁻¹, covariance of the coefficients of (1, u) given eta, float64."""
        self._require_fit()
        return torch.linalg.inv(self.gram + self._penalties().diag())

    def _require_fit(self) -> None:
        if float(self.gram[0, 0]) == 0:
            raise NotFittedError(
                "the model has not been fitted; fit it, for example by "
                "VariationalEM(model, guide).fit(corpus)"
            )

    def _penalties(self) -> Tensor:
        """Penalties ``(1 + num_covariates,)``: 0 for the intercept, ``penalty`` for the slopes."""
        slopes = self.penalty.expand(self.num_covariates)
        return torch.cat([slopes.new_zeros(1), slopes])

    def regressors(
        self, batch: DocumentBatch, *, of_levels: bool = True
    ) -> tuple[Tensor, Tensor] | None:
        """See :meth:`DocumentPrior.regressors`. An intercept and the standardised covariates."""
        u = self.standardised(batch)
        return torch.cat([u.new_ones(batch.num_docs, 1), u], 1), self._penalties()

    def _to_units(self) -> Tensor:
        """Matrix from coefficients of (1, u) to coefficients of (1, x), float64."""
        units = torch.eye(1 + self.num_covariates).to(self.gram)
        units[1:, 1:] = (1 / self.scales).diag()
        units[0, 1:] = -self.means / self.scales
        return units

    def encode(self, corpus: Corpus) -> Corpus:
        """See :meth:`DocumentPrior.encode`. Derives the array ``"prevalence"``.

        Documents that lack the columns keep an existing array. If they have neither, they get the
        covariates' means in the training documents, with a warning.
        """
        return self.covariates.encode(corpus)

    def standardised(self, batch: DocumentBatch) -> Tensor:
        """Covariates of a batch in standard units ``(num_docs, num_covariates)``, float64.

        Raises:
            ConfigError: The batch lacks covariates, or has another number of covariates.
        """
        if self.num_covariates == 0:
            return self.means.new_zeros(batch.num_docs, 0)
        x, shape = batch.covariates.get(PREVALENCE), (batch.num_docs, self.num_covariates)
        if x is None or tuple(x.shape) != shape:
            found = "no covariates" if x is None else f"covariates of shape {tuple(x.shape)}"
            raise ConfigError(
                f"the batch has {found}; expected {shape} for this model's prior mean: "
                f"{', '.join(self.covariates.names)}. Make the batch by "
                "model.encode(corpus).batch()"
            )
        return (x.double() - self.means) / self.scales

    def location(self, batch: DocumentBatch) -> Tensor:
        """See :meth:`NormalPrior.location`. The mean is ``(num_docs, latent_dim)``."""
        return self.loc + self.standardised(batch).to(self.slopes.dtype) @ self.slopes

    def statistics(self, moments: Moments, batch: DocumentBatch) -> dict[str, Tensor]:
        """See :meth:`NormalPrior.statistics`.

        Returns:
            The sums of a normal prior, and sums of the standardised covariates u:
            ``covariate_sum`` Σ_d u, ``covariate_outer`` Σ_d uuᵀ and ``covariate_latent`` Σ_d u E
            etaᵀ.
        """
        u, mean = self.standardised(batch), moments.mean.double()
        return super().statistics(moments, batch) | {
            "covariate_sum": u.sum(0),
            "covariate_outer": u.mT @ u,
            "covariate_latent": u.mT @ mean,
        }

    @torch.no_grad()
    def _fit_mean(
        self, num_docs: float, sums: Mapping[str, Tensor], learn: bool = True
    ) -> tuple[Tensor, Tensor, float]:
        """See :meth:`LogisticNormalPrior._fit_mean`. Sets the slopes, and learns the penalty.

        Because the intercept's flat prior is integrated out, covariates are centred at their mean:
        slopes = (UᵀU + penalty I)⁻¹ UᵀM. Each penalised row of slopes adds a vector to the
        covariance's scatter.
        """
        mean, scatter, _ = super()._fit_mean(num_docs, sums)
        centre = sums["covariate_sum"] / num_docs
        outer = sums["covariate_outer"] - num_docs * torch.outer(centre, centre)
        crossed = sums["covariate_latent"] - num_docs * torch.outer(centre, mean)
        values, vectors = torch.linalg.eigh((outer + outer.mT) / 2)
        values, rotated = values.clamp_min(0.0), vectors.mT @ crossed
        if learn and self.learn_penalty and self.num_covariates:
            self.penalty.copy_(self._by_evidence(values, rotated))
        slopes = vectors @ (rotated / (values + self.penalty)[:, None])
        self.gram[0, 0] = num_docs
        self.gram[0, 1:] = self.gram[1:, 0] = sums["covariate_sum"]
        self.gram[1:, 1:] = sums["covariate_outer"]
        self.slopes.copy_(slopes)
        location = mean - centre @ slopes
        return location, scatter - slopes.mT @ crossed, num_docs + self.num_covariates

    def _mean_covariance(self, num_docs: float) -> Tensor:
        """See :meth:`LogisticNormalPrior._mean_covariance`. Rows are intercept and slopes."""
        return self._row_covariance()

    def _move_mean(self, change: Tensor) -> None:
        super()._move_mean(change)
        self.slopes.add_(change[1:])

    @torch.no_grad()
    def draw_(self, num_docs: float, rng: np.random.Generator, **sums: Tensor) -> None:
        """See :meth:`LogisticNormalPrior.draw_`. The coefficients are matrix-normal.

        A learned penalty is drawn too, from the prior Gamma(½, ½), under which a slope in units of
        eta's standard deviation is standard Cauchy.
        """
        super().draw_(num_docs, rng, **sums)
        if self.learn_penalty and self.num_covariates:
            tril, slopes = self.scale_tril.double(), self.slopes.double()
            white = torch.linalg.solve_triangular(tril, slopes.mT, upper=False)
            self.penalty.fill_(drawn_penalty(white, rng))

    def _by_evidence(self, values: Tensor, rotated: Tensor) -> Tensor:
        """Penalty r at a stationary point of the evidence (*MacKay 1992, eq. 27*).

        r = dim γ / tr(Σ⁻¹ΓᵀΓ). Here γ = Σ_i λ_i/(λ_i + r) is the effective number of coefficients
        for each of the dim outcomes, Γ are the slopes, and Σ is the current covariance.

        Args:
            values: ``(num_covariates,)`` eigenvalues λ of UᵀU.
            rotated: ``(num_covariates, latent_dim)`` UᵀM in the basis of the eigenvectors.
        """
        squares = self._whitened(rotated).square().sum(1)
        penalty = self.penalty
        for _ in range(EVIDENCE_STEPS):
            determined = (values / (values + penalty)).sum()
            length = (squares / (values + penalty).square()).sum()
            penalty = self.latent_dim * determined / length.clamp_min(1e-300)
            penalty = penalty.clamp(MIN_PENALTY, MAX_PENALTY)
        return penalty

    def log_prior(self) -> Tensor:
        """See :meth:`LogisticNormalPrior.log_prior`. The slopes' prior is added."""
        log_det = 2 * self.scale_tril.double().diagonal().log().sum()
        precision = self.latent_dim * self.penalty.log() - log_det
        return super().log_prior() + 0.5 * (
            self.num_covariates * precision
            - self.penalty * self._whitened(self.slopes).square().sum()
        )

    def _whitened(self, rows: Tensor) -> Tensor:
        """Rows ``(..., latent_dim)`` in coordinates whose covariance is I, float64."""
        tril = self.scale_tril.double()
        return torch.linalg.solve_triangular(tril.mT, rows.double(), upper=True, left=False)

    def averaged(self) -> LogisticNormalPrior:
        """Prior of documents with unknown covariates, averaged over the training documents.

        It is normal around the average of the training documents' prior means, and the covariance
        of these means is added to its own.

        Returns:
            A plain prior that reads no covariates. ``model.with_parts(model.prior.averaged())``
            accepts any documents.

        Raises:
            NotFittedError: The prior has had no M-step yet.
        """
        self._require_fit()
        num_docs, total = self.gram[0, 0], self.gram[0, 1:]
        spread = self.gram[1:, 1:] / num_docs - torch.outer(total, total) / num_docs**2
        slopes = self.slopes.detach().double()
        loc = self.loc.detach() + (total / num_docs @ slopes).to(self.loc)
        return self._plain(loc, slopes.mT @ spread @ slopes)

    def _plain(self, loc: Tensor, spread: Tensor) -> LogisticNormalPrior:
        """The prior with another mean, and a covariance larger by ``spread``."""
        covariance = self.covariance.detach().double() + spread
        return LogisticNormalPrior(
            self.num_topics, loc=loc, covariance=covariance, **self._settings
        )

    @property
    def _settings(self) -> dict[str, Any]:
        return {
            "anchored": self.anchored,
            "pseudo_documents": self.pseudo_documents,
            "pseudo_variance": self.pseudo_variance,
            "dtype": self.loc.dtype,
        }

    def extra_repr(self) -> str:
        """Sizes and prior, for ``repr``."""
        names = ", ".join(self.covariates.names) or "no covariates"
        kind = "by evidence" if self.learn_penalty else f"{float(self.penalty):g}"
        return f"{super().extra_repr()}, penalty {kind}, mean linear in {names}"


def drawn_penalty(white: Tensor, rng: np.random.Generator) -> float:
    """A draw of a penalty given its whitened coefficients, under the prior Gamma(½, ½)."""
    rate = 0.5 + 0.5 * float(white.square().sum())
    drawn = rng.gamma(0.5 + 0.5 * white.numel()) / rate
    return min(max(drawn, MIN_PENALTY), MAX_PENALTY)
