"""IndependentFactorPrior, under which eta is a linear mixture of a few sources."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np
import pyro
import torch
from pyro.distributions import Laplace, Normal
from torch import Tensor, nn

from torch_lntm.corpus import DocumentBatch
from torch_lntm.errors import ConfigError, require_one, require_whole
from torch_lntm.latents import FactorSpace
from torch_lntm.latents.contrasts import ContrastSpace, SourceContrastSpace
from torch_lntm.latents.factor import GaussianFactorSpace, LaplaceFactorSpace
from torch_lntm.latents.identified import IdentifiedSpace
from torch_lntm.models.priors.prior import (
    PseudoDocuments,
    centred_logits,
    check_tensor,
    inflation_factor,
)
from torch_lntm.posteriors import Moments

Source = Literal["gaussian", "laplace"]


class IndependentFactorPrior(PseudoDocuments):
    """eta = A s + loc + noise, independent sources s, theta = softmax(eta).

    The model is that of *Putthividhya et al. 2009, §2*. Its sources are standard normal, or Laplace
    with density ½ exp(−abs(s)) and variance 2, and the noise is normal with a precision per topic.
    With Gaussian sources, eta is Normal(loc, AAᵀ + Λ⁻¹).

    The parameters have a prior, expressed as pseudo-data as in
    :class:`~torch_lntm.models.LogisticNormalPrior`: ``pseudo_documents`` documents of independent
    logits with variance ``pseudo_variance``, whose sources have the variance of their prior and are
    uncorrelated with the logits. It shrinks the columns of A and keeps the noise away from 0.

    Different parameters can describe the same distribution of theta, so fits end with
    :meth:`canonicalise_`, which chooses among them. It rotates Gaussian sources to the principal
    axes of A with centred columns, whereas Laplace sources cannot be rotated. It then sorts the
    sources by the norms of their centred columns, and makes the entry of largest absolute value in
    each column positive.

    Args:
        num_topics: Number of topics K.
        num_sources: Number of sources L < K, because eta has K - 1 contrasts.
        source: ``"gaussian"`` or ``"laplace"``.
        loc: ``(num_topics,)`` mean of eta. Defaults to 0.
        mixing: ``(num_topics, num_sources)`` A. Defaults to small random numbers.
        noise_precision: ``(num_topics,)`` diagonal of Λ. Defaults to 1.
        pseudo_documents: Weight of the parameters' prior. Defaults to 2, a weak prior, because the
            small number of sources restricts the covariance already. 0 gives maximum likelihood.
        pseudo_variance: As for :class:`~torch_lntm.models.LogisticNormalPrior`.
        dtype: Floating-point type.
        generator: Random number generator of the default mixing matrix.

    Raises:
        ConfigError: A shape or value is out of range.

    Example:
        >>> prior = lntm.models.IndependentFactorPrior(12, 3, source="laplace")
        >>> prior.num_sources, prior.source_variance
        (3, 2.0)
    """

    latent = "eta"
    has_correlations = True

    def __init__(
        self,
        num_topics: int,
        num_sources: int,
        *,
        source: Source = "gaussian",
        loc: Tensor | None = None,
        mixing: Tensor | None = None,
        noise_precision: Tensor | None = None,
        pseudo_documents: float | None = None,
        pseudo_variance: float | None = None,
        dtype: torch.dtype = torch.float32,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        require_one(get_args(Source), source=source)
        require_whole(0, num_topics=num_topics, num_sources=num_sources)
        most = max(1, num_topics - 1)
        if not 1 <= num_sources <= most:
            raise ConfigError(
                f"num_sources is {num_sources}; expected 1 to {most}: {num_topics} topics have "
                f"{num_topics - 1} contrasts, and more sources cannot be told apart"
            )
        self.num_topics = num_topics
        self.num_sources = num_sources
        self.source: Source = source
        weight = 2.0 if pseudo_documents is None else pseudo_documents
        self._set_pseudo_documents("the parameters", weight, pseudo_variance)
        self.loc = nn.Parameter(torch.zeros(num_topics, dtype=dtype))
        self.mixing = nn.Parameter(torch.empty(num_topics, num_sources, dtype=dtype))
        self.log_noise_precision = nn.Parameter(torch.zeros(num_topics, dtype=dtype))
        if mixing is None:
            noise = torch.randn(num_topics, num_sources, generator=generator, dtype=torch.float64)
            mixing = 0.1 * noise
        self.set_(loc=loc, mixing=mixing, noise_precision=noise_precision)

    @property
    def source_variance(self) -> float:
        """Prior variance of a source: 1 if Gaussian, 2 if Laplace."""
        return self.space_type.source_variance

    @property
    def noise_precision(self) -> Tensor:
        """Diagonal of Λ ``(num_topics,)``."""
        return self.log_noise_precision.exp()

    @property
    def covariance(self) -> Tensor:
        """Marginal covariance of eta ``(num_topics, num_topics)``: AAᵀ × Var s + Λ⁻¹."""
        mixing = self.mixing.double()
        noise = (-self.log_noise_precision.double()).exp().diag_embed()
        return (self.source_variance * mixing @ mixing.mT + noise).to(self.loc.dtype)

    @torch.no_grad()
    def set_(
        self,
        *,
        loc: Tensor | None = None,
        mixing: Tensor | None = None,
        noise_precision: Tensor | None = None,
    ) -> None:
        """Set some of the parameters in place.

        Args:
            loc: ``(num_topics,)``.
            mixing: ``(num_topics, num_sources)``.
            noise_precision: ``(num_topics,)``.

        Raises:
            ConfigError: The shape is different, an entry is not finite, a noise precision is not
                positive, or a column of A is 0. EM would keep such a column at 0.
        """
        if loc is not None:
            self.loc.copy_(check_tensor(loc, "loc", self.num_topics))
        if mixing is not None:
            mixing = check_tensor(mixing, "mixing", self.num_topics, self.num_sources)
            zero = (mixing == 0).all(0).nonzero().flatten().tolist()
            if zero:
                raise ConfigError(
                    f"mixing: the column of source {zero[0]} is 0, and EM would keep it at 0; give "
                    "it small random values, or use fewer sources"
                )
            self.mixing.copy_(mixing)
        if noise_precision is not None:
            rounded = noise_precision.to(self.loc.dtype)
            check_tensor(rounded, "noise_precision", self.num_topics, positive=True)
            self.log_noise_precision.copy_(noise_precision.double().log())

    def theta(self, latent: Tensor) -> Tensor:
        """Topic proportions ``(..., num_topics)`` from eta ``(..., num_topics)``."""
        return torch.softmax(latent, -1)

    @property
    def space_type(self) -> type[GaussianFactorSpace] | type[LaplaceFactorSpace]:
        """See :attr:`DocumentPrior.space_type`."""
        return GaussianFactorSpace if self.source == "gaussian" else LaplaceFactorSpace

    def space(self, batch: DocumentBatch) -> FactorSpace:
        """See :meth:`DocumentPrior.space`. z = (s, e), sources and whitened noise."""
        parameters = (self.loc, self.mixing, self.noise_precision)
        return self.space_type(*(parameter.detach().clone() for parameter in parameters))

    def identified(self, batch: DocumentBatch) -> IdentifiedSpace:
        """See :meth:`DocumentPrior.identified`. Contrasts of eta, and sources if Laplace."""
        space = self.space(batch)
        if isinstance(space, GaussianFactorSpace):
            return ContrastSpace.of(space.marginal())
        assert isinstance(space, LaplaceFactorSpace)
        return SourceContrastSpace.of(space)

    def emit(self, batch: DocumentBatch) -> Tensor:
        """Emit the sites ``"source"`` and ``"eta"``; see :meth:`DocumentPrior.emit`."""
        loc, scale = self.loc.new_zeros(self.num_sources), self.loc.new_ones(self.num_sources)
        family = Normal if self.source == "gaussian" else Laplace
        source = pyro.sample("source", family(loc, scale).to_event(1))
        # Samplers pass float64 sources even for a float32 model: its log densities are float64.
        mean = self.loc + source @ self.mixing.mT.to(source.dtype)
        noise = Normal(mean, (-0.5 * self.log_noise_precision).exp())
        return pyro.sample("eta", noise.to_event(1))

    def log_prior(self) -> Tensor:
        """Log density, up to a constant, of the prior of A and Λ (scalar).

        ½ pseudo_documents × Σ_k [log λ_k − λ_k (pseudo_variance + Var s × a_kᵀa_k)].
        """
        log_precision = self.log_noise_precision.double()
        spread = self.mixing.double().square().sum(1) * self.source_variance
        terms = log_precision - log_precision.exp() * (self.pseudo_variance + spread)
        return 0.5 * self.pseudo_documents * terms.sum()

    def statistics(self, moments: Moments, batch: DocumentBatch) -> dict[str, Tensor]:
        """See :meth:`DocumentPrior.statistics`.

        Returns:
            The sums of :meth:`m_step`: sums of sources and eta. If the sources are integrated out
            of the moments, ``latent_sum`` and ``latent_outer`` of eta.
        """
        eta_sum, sources = moments.mean.double().sum(0), moments.source_sums()
        if sources is None:
            return {"latent_sum": eta_sum, "latent_outer": moments.outer_sum()}
        return {
            "eta_sum": eta_sum,
            "eta_square": moments.square_sum(),
            "source_sum": sources.source,
            "eta_source": sources.eta_source,
            "source_outer": sources.outer,
        }

    @torch.no_grad()
    def m_step(self, num_docs: float, **sums: Tensor) -> None:
        """Set A, loc and Λ to their joint maximisers (*Putthividhya et al. 2009, eqs 15–17*).

        In the paper, the updates of A and loc each depend on the other. Here they are solved
        together, as a regression of eta on the sources and 1. In both, R_ss contains the sources'
        covariances, and so the residuals of eq. 17 contain a_kᵀB⁻¹a_k.

        Args:
            num_docs: Number of documents in the sums, without empty documents.
            **sums: ``eta_sum`` ``(K,)``, ``eta_square`` ``(K,)``, ``source_sum`` ``(L,)``,
                ``eta_source`` ``(K, L)`` and ``source_outer`` ``(L, L)``: Σ_d E of eta, of its
                squares, of the sources, and of the products. Or ``latent_sum`` and
                ``latent_outer``, for a posterior of eta alone: the moments of Gaussian sources then
                follow from the moments of eta at the current parameters.

        Raises:
            NumericalError: The documents are too few to determine A under the prior.
        """
        if num_docs == 0:
            return
        if "latent_outer" in sums:
            sums = self._with_sources(num_docs, sums["latent_sum"], sums["latent_outer"])
        _, weights, residual = self._regress(num_docs, sums)
        variance = residual / (self.pseudo_documents + num_docs)
        floor = torch.finfo(self.loc.dtype).eps * sums["eta_square"].double() / num_docs
        self.loc.copy_(weights[:, -1])
        self.mixing.copy_(weights[:, :-1])
        self.log_noise_precision.copy_(-torch.maximum(variance, floor).log())

    def _regress(
        self, num_docs: float, sums: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Regression of eta on the sources and 1, with the prior of A and Λ.

        Args:
            num_docs: As for :meth:`m_step`.
            sums: As for :meth:`m_step`, with sums of the sources.

        Returns:
            Second moments ``(L + 1, L + 1)`` of the sources and 1, coefficients ``(K, L + 1)``: the
            columns of A, then loc, and residual sums of squares ``(K,)``; float64.

        Raises:
            NumericalError: The documents are too few to determine A under the prior.
        """
        pseudo = self.pseudo_documents * self.source_variance
        outer = sums["source_outer"].double().clone()
        outer.diagonal().add_(pseudo)
        mean = sums["source_sum"].double()[:, None]
        design = torch.cat(
            [torch.cat([outer, mean], 1), torch.cat([mean.mT, mean.new_full((1, 1), num_docs)], 1)]
        )
        response = torch.cat([sums["eta_source"].double(), sums["eta_sum"].double()[:, None]], 1)
        weights, info = torch.linalg.solve_ex(design, response, left=False)
        self._check_solved(info, num_docs, "the prior's mixing matrix")
        # Residual sum of squares at the maximiser of A and loc, including their prior.
        residual = sums["eta_square"].double() - (weights * response).sum(1)
        residual += self.pseudo_documents * self.pseudo_variance
        return design, weights, residual

    @torch.no_grad()
    def draw_(self, num_docs: float, rng: np.random.Generator, **sums: Tensor) -> None:
        """Set A, loc and Λ to a draw from their posterior given the documents' sources and eta.

        The noise variance of each topic is inverse gamma. Given the variance, the topic's row of A
        and its loc are normal. The prior of the variance is a density of the variance, as in
        :meth:`LogisticNormalPrior.draw_`.

        Args:
            num_docs: Number of documents in the sums.
            rng: Random number generator.
            **sums: As for :meth:`m_step`, from exact values of sources and eta.

        Raises:
            NumericalError: The documents and ``pseudo_documents`` are too few for a proper
                posterior.
        """
        # ψ^(−(pseudo_documents + D)/2), times ψ^½ for each coefficient that is integrated out.
        shape = (self.pseudo_documents + num_docs - self.num_sources - 3) / 2
        if shape <= 0:
            raise self._improper(num_docs, f"the noise of {self.num_sources} sources")
        design, weights, residual = self._regress(num_docs, sums)
        gamma = torch.from_numpy(rng.standard_gamma(shape, self.num_topics)).to(residual)
        variance = residual / 2 / gamma
        white = torch.from_numpy(rng.standard_normal(tuple(weights.shape))).to(weights)
        root = torch.linalg.cholesky(design)
        change = torch.linalg.solve_triangular(root, white, upper=False, left=False)
        weights = weights + variance.sqrt()[:, None] * change
        self.loc.copy_(weights[:, -1])
        self.mixing.copy_(weights[:, :-1])
        self.log_noise_precision.copy_(-variance.log())

    def _with_sources(
        self, num_docs: float, latent_sum: Tensor, latent_outer: Tensor
    ) -> dict[str, Tensor]:
        """Moments of sources and eta from moments of eta, by p(s | eta) of Gaussian sources."""
        if self.source != "gaussian":
            raise ConfigError(
                "moments of eta determine the moments of Gaussian sources, but not of Laplace "
                "sources; use a posterior or draws with sources"
            )
        loc, mixing = self.loc.double(), self.mixing.double()
        weighted = mixing.mT * self.log_noise_precision.double().exp()
        eye = torch.eye(self.num_sources, dtype=loc.dtype, device=loc.device)
        # The matrix is at least I, so its inverse exists.
        covariance = torch.linalg.inv_ex(weighted @ mixing + eye).inverse
        gain = covariance @ weighted  # E[s | eta] = gain (eta − loc)
        total, outer = latent_sum.double(), latent_outer.double()
        shifted = outer - torch.outer(total, loc)  # Σ eta (eta − loc)ᵀ
        scatter = shifted - torch.outer(loc, total - num_docs * loc)
        return {
            "eta_sum": total,
            "eta_square": outer.diagonal(),
            "source_sum": gain @ (total - num_docs * loc),
            "eta_source": shifted @ gain.mT,
            "source_outer": num_docs * covariance + gain @ scatter @ gain.mT,
        }

    def start_latents(self, theta: Tensor) -> Tensor:
        """See :meth:`DocumentPrior.start_latents`. Centred log proportions."""
        return centred_logits(theta)

    @torch.no_grad()
    def start(self, num_docs: float, **sums: Tensor) -> None:
        """See :meth:`DocumentPrior.start`. Principal factors of the centred log proportions."""
        loc = sums["latent_sum"] / num_docs
        covariance = sums["latent_outer"] / num_docs - torch.outer(loc, loc)
        values, vectors = torch.linalg.eigh((covariance + covariance.mT) / 2)
        values, vectors = values.flip(0), vectors.flip(1)
        # The chains of sources depend on these signs, which each device's library chooses its own
        # way.
        vectors = vectors * _signs(vectors)
        # The lower bound 0.01 keeps columns nonzero; variance 0.1 is added to the noise.
        minor = values[self.num_sources :]
        noise_variance = minor.sum().clamp_min(0.0) / max(1, len(minor))
        gain = (values[: self.num_sources] - noise_variance).clamp_min(0.01)
        mixing = vectors[:, : self.num_sources] * gain.sqrt()
        noise = (covariance.diagonal() - mixing.square().sum(1)).clamp_min(0.0) + 0.1
        mixing = mixing / math.sqrt(self.source_variance)
        self.set_(loc=loc, mixing=mixing, noise_precision=1.0 / noise)

    @torch.no_grad()
    def inflate_covariance(self) -> None:
        """See :meth:`DocumentPrior.inflate_covariance`. Sources and noise keep their shares."""
        scale = inflation_factor(self.contrast_covariance())
        if scale > 1.0:
            self.set_(
                mixing=self.mixing * math.sqrt(scale), noise_precision=self.noise_precision / scale
            )

    def centred_mixing(self) -> Tensor:
        """A with centred columns, which is the part that the softmax identifies; float64."""
        mixing = self.mixing.detach().double()
        return mixing - mixing.mean(0)

    def contrast_covariance(self) -> Tensor:
        """Covariance ``(num_topics, num_topics)`` of the centred logits of theta, float64."""
        mixing = self.centred_mixing()
        noise = (-self.log_noise_precision.detach().double()).exp().diag_embed()
        noise = noise - noise.mean(0)
        noise = noise - noise.mean(1, keepdim=True)
        return self.source_variance * mixing @ mixing.mT + noise

    @torch.no_grad()
    def canonicalise_(self) -> dict[str, Tensor]:
        """Rotate, sort and sign the sources by the convention in the class's docstring."""
        mixing = self.mixing.double()
        rotation = torch.eye(self.num_sources, dtype=torch.float64, device=mixing.device)
        if self.source == "gaussian":
            rotation = torch.linalg.svd(self.centred_mixing(), full_matrices=False).Vh.mT
        centred = mixing @ rotation
        centred = centred - centred.mean(0)
        order = centred.norm(dim=0).argsort(descending=True, stable=True)
        rotation, centred = rotation[:, order], centred[:, order]
        rotation = rotation * _signs(centred)
        self.mixing.copy_(mixing @ rotation)
        return {"source": rotation}

    def extra_repr(self) -> str:
        """Sizes and prior, for ``repr``."""
        return f"{super().extra_repr()}, {self.num_sources} {self.source} sources"


def _signs(columns: Tensor) -> Tensor:
    """Signs ``(1, n)`` that make the entry of largest absolute value of each column positive."""
    largest = columns.gather(0, columns.abs().argmax(0, keepdim=True))
    return torch.where(largest < 0, -1.0, 1.0).to(columns)
