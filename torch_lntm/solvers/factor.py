"""Posteriors under independent factor models (Putthividhya, Attias & Nagarajan 2009).

The prior is eta = μ + A s + ε, ε ~ N(0, Λ⁻¹) with Λ diagonal, and sources s that are standard
normal or Laplace, ½e^{−|s|} each. Whitened coordinates are z = (s, e) with eta = μ + A s + Λ^{-½}e:
L more than eta has, so that nothing here costs more than num_topics × num_sources a document.

The posterior is q(s) q(eta), q(s) = N(s̄, B⁻¹) and q(eta_k) = N(x̄_k, ν_k²), on the tangent bound

    loglik(e^x̄) − N·lse(x̄ + ν²/2) + E log p(eta | s) + E log p(s) + H(q)

with Laplace sources replaced by their dual, −|s| ≥ −|η|/2 − s²/(2|η|) (*eqs 2–3 and 11*), |η| at
its optimum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torch_lntm.corpus.batch import DocumentBatch
from torch_lntm.errors import ConfigError
from torch_lntm.kernels import expected_topic_counts
from torch_lntm.solvers.contrasts import triangular_factor
from torch_lntm.solvers.gaussian import GaussianPosterior, GaussianPrior, inverse_cholesky
from torch_lntm.solvers.mean import Objective, maximise_mean
from torch_lntm.solvers.special import inverse_mean_root, log_mean_rate, wright_omega

#: Updates of variances, |η| and B at the starting means.
START_STEPS = 3
#: Joint ascent steps in means and sources per round.
MEAN_STEPS = 2


@dataclass(frozen=True, eq=False)
class FactorPrior:
    """The prior of the module's docstring.

    As an :class:`~torch_lntm.solvers.gaussian.EtaPrior` it is the prior with Gaussian sources,
    N(loc, AAᵀ + Λ⁻¹), with F = [A, Λ^{-½}].

    Attributes:
        loc: ``(num_topics,)`` μ.
        mixing: ``(num_topics, num_sources)`` A.
        noise_precision: ``(num_topics,)`` diagonal of Λ, positive.
        source: ``"gaussian"`` or ``"laplace"``.
    """

    loc: Tensor
    mixing: Tensor
    noise_precision: Tensor
    source: str = "gaussian"

    @property
    def dim(self) -> int:
        """Dimension of eta."""
        return self.loc.shape[0]

    @property
    def num_sources(self) -> int:
        """Number of sources."""
        return self.mixing.shape[1]

    @property
    def anchored(self) -> bool:
        """Always False: the logits are eta."""
        return False

    @cached_property
    def noise_std(self) -> Tensor:
        """λ^{-½} ``(num_topics,)`` float64."""
        return self.noise_precision.double().rsqrt()

    @cached_property
    def gram(self) -> Tensor:
        """AᵀΛA ``(num_sources, num_sources)`` float64."""
        scaled = self.mixing.double() / self.noise_std[:, None]
        return scaled.mT @ scaled

    @cached_property
    def source_tril(self) -> Tensor:
        """Lower Cholesky factor of (AᵀΛA + I)⁻¹ ``(num_sources, num_sources)``, float64."""
        return self.source_tril_at(self.gram.new_ones(1, self.num_sources), None)[0]

    def source_tril_at(self, scale: Tensor, index: Tensor | None) -> Tensor:
        """Lower Cholesky factors of B⁻¹ = (AᵀΛA + diag 1/|η|)⁻¹ (*eq. 13*).

        Args:
            scale: ``(num_docs, num_sources)`` float64 |η|^½.
            index: ``(num_docs,)`` corpus positions, to name documents in an error; None for none.

        Returns:
            ``(num_docs, num_sources, num_sources)`` float64.
        """
        # In s/|η|^½, where the precision is at least I. Reversed, X is upper triangular in the end.
        precision = (scale[:, :, None] * self.gram * scale[:, None, :]).flip(1, 2)
        precision.diagonal(dim1=-2, dim2=-1).add_(1.0)
        if index is None:
            index = torch.arange(len(scale), device=scale.device)
        return scale[:, :, None] * inverse_cholesky(precision, index).mT.flip(1, 2)

    @cached_property
    def log_det(self) -> Tensor:
        """log|AAᵀ + Λ⁻¹|, scalar float64."""
        log_std = self.noise_std.log().sum()
        return 2.0 * (log_std - self.source_tril.diagonal().log().sum())

    def lift(self, eta: Tensor) -> Tensor:
        """Logits of eta: itself."""
        return eta

    def sources(self, eta: Tensor, tril: Tensor) -> Tensor:
        """B⁻¹AᵀΛ(eta − μ), the best sources of given eta (*eqs 9 and 12*).

        Args:
            eta: ``(..., num_topics)``.
            tril: ``(..., num_sources, num_sources)`` lower factor of B⁻¹.

        Returns:
            ``(..., num_sources)`` float64.
        """
        weighted = (eta.double() - self.loc) * self.noise_precision.double()
        projected = weighted @ self.mixing.double()
        return (tril @ (tril.mT @ projected[..., None])).squeeze(-1)

    def noise(self, eta: Tensor, source: Tensor) -> Tensor:
        """Λ^½(eta − μ − A s) ``(..., num_topics)`` float64."""
        residual = eta.double() - self.loc - source.double() @ self.mixing.double().mT
        return residual / self.noise_std

    def whiten(self, eta: Tensor) -> Tensor:
        """The shortest z ``(..., num_sources + num_topics)`` of eta ``(..., num_topics)``."""
        source = self.sources(eta, self.source_tril)
        return torch.cat([source, self.noise(eta, source)], -1).to(eta.dtype)

    def unwhiten(self, z: Tensor) -> Tensor:
        """The eta μ + A s + Λ^{-½}e of z = (s, e) ``(..., num_sources + num_topics)``."""
        return self.loc + self.push(z)

    def push(self, z: Tensor) -> Tensor:
        """A s + Λ^{-½}e ``(..., num_topics)`` of z ``(..., num_sources + num_topics)``."""
        source, noise = z[..., : self.num_sources], z[..., self.num_sources :]
        return source @ self.mixing.mT.to(z.dtype) + noise * self.noise_std.to(z.dtype)

    def pull(self, gradient: Tensor) -> Tensor:
        """Gradients in z ``(..., num_sources + num_topics)`` from those in eta."""
        noise = gradient * self.noise_std.to(gradient.dtype)
        return torch.cat([gradient @ self.mixing.to(gradient.dtype), noise], -1)

    def select(self, rows: Tensor) -> FactorPrior:
        """The prior of some of the documents: itself, which all share."""
        return self

    def require_gaussian(self) -> None:
        """Refuse sources that are not Gaussian, with which eta has no normal prior.

        Raises:
            ConfigError: They are not.
        """
        if self.source != "gaussian":
            raise ConfigError(
                f"with {self.source} sources eta has no normal prior; expected gaussian sources"
            )

    @cached_property
    def _marginal(self) -> GaussianPrior:
        factor = torch.cat([self.mixing.double(), self.noise_std.diag_embed()], 1)
        return GaussianPrior(self.loc, triangular_factor(factor))

    def marginal(self) -> GaussianPrior:
        """The prior of eta with the sources integrated out, N(loc, AAᵀ + Λ⁻¹), dense.

        Raises:
            ConfigError: The sources are not Gaussian.
        """
        self.require_gaussian()
        return self._marginal


def conditional_sources(prior: FactorPrior, eta: Tensor) -> tuple[Tensor, Tensor]:
    """The sources given eta, N(B⁻¹AᵀΛ(eta − μ), B⁻¹) with B = AᵀΛA + I: exact if Gaussian.

    Args:
        prior: With Gaussian sources.
        eta: ``(..., num_topics)``.

    Returns:
        Mean ``(..., num_sources)`` and Cholesky factor of the covariance, which all eta share,
        ``(num_sources, num_sources)``; both in the dtype of ``eta``.

    Raises:
        ConfigError: The sources are not Gaussian.
    """
    prior.require_gaussian()
    tril = prior.source_tril
    return prior.sources(eta, tril).to(eta.dtype), tril.to(eta.dtype)


@dataclass(eq=False, kw_only=True)
class FactorPosterior(GaussianPosterior):
    """q(s) q(eta) of a batch of documents; the normal posterior of eta is diagonal.

    Attributes:
        prior: The prior it was solved under.
        source_mean: ``(num_docs, num_sources)`` s̄.
        source_root: ``(num_docs, num_sources, num_sources)`` float64 lower Cholesky factor of B⁻¹,
            the covariance of the sources. (The paper writes N(s; s̄, B) for a B that is the
            precision.) With Gaussian sources all documents share one, of which this is a view.
    """

    prior: FactorPrior
    source_mean: Tensor
    source_root: Tensor

    @property
    def source_tril(self) -> Tensor:
        """``source_root`` in the dtype of the means."""
        return self.source_root.to(self.mean.dtype)

    @property
    def source_covariance(self) -> Tensor:
        """B⁻¹ ``(num_docs, num_sources, num_sources)``."""
        return (self.source_root @ self.source_root.mT).to(self.mean.dtype)

    @property
    def source_std(self) -> Tensor:
        """Posterior standard deviations of the sources ``(num_docs, num_sources)``."""
        return self.source_root.square().sum(-1).sqrt().to(self.mean.dtype)

    def kl(self) -> Tensor:
        """KL(q(s) q(eta) ‖ p(s) p(eta | s)) of each document ``(num_docs,)`` float64 nats.

        Of Laplace sources the dual's upper bound on it, in which E|s_l| is sqrt(E s_l²).
        """
        assert self.std is not None
        root = self.source_root
        residual = self.prior.noise(self.mean, self.source_mean)
        ratio = self.std.double() / self.prior.noise_std
        spread = (root * (self.prior.gram @ root)).sum((-2, -1))
        eta = 0.5 * (ratio.square() - 1.0 - 2.0 * ratio.log() + residual.square()).sum(-1)
        second = self.source_mean.double().square() + root.square().sum(-1)
        return eta + 0.5 * spread + source_divergence(self.prior.source, second, root)

    def sums(self) -> dict[str, Tensor]:
        """What the prior's M-step takes, float64 sums over the documents (*eqs 15–17*).

        Returns:
            ``eta_sum`` and ``eta_square`` ``(num_topics,)``, ``source_sum`` ``(num_sources,)``,
            ``eta_source`` ``(num_topics, num_sources)`` and ``source_outer``
            ``(num_sources, num_sources)``: expectations of eta, eta², s, eta sᵀ and ssᵀ.
        """
        mean, source = self.mean.double(), self.source_mean.double()
        return {
            "eta_sum": mean.sum(0),
            "eta_square": (mean.square() + self.variance.double()).sum(0),
            "source_sum": source.sum(0),
            "eta_source": mean.mT @ source,
            "source_outer": source.mT @ source
            + torch.einsum("dij,dkj->ik", self.source_root, self.source_root),
        }


def source_divergence(source: str, second_moment: Tensor, root: Tensor) -> Tensor:
    """KL(q(s) ‖ p(s)), for Laplace sources the dual's upper bound on it.

    Args:
        source: ``"gaussian"`` or ``"laplace"``.
        second_moment: ``(num_docs, num_sources)`` float64 E s².
        root: ``(num_docs, num_sources, num_sources)`` float64 Cholesky factor of q's covariance.

    Returns:
        ``(num_docs,)`` float64 nats.
    """
    num_sources = root.shape[-1]
    log_det = root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    if source == "gaussian":
        return 0.5 * (second_moment.sum(-1) - num_sources) - log_det
    constant = math.log(2.0) - 0.5 * math.log(2.0 * math.pi * math.e)
    return second_moment.sqrt().sum(-1) + num_sources * constant - log_det


@dataclass(eq=False)
class _Sources:
    """q(s) of all documents, and the whitened coordinates (s/|η|^½, e) that it makes.

    In these the dual's quadratic is ½|z|², so that for fixed |η| and B the bound as a function of
    means and sources is :class:`~torch_lntm.solvers.mean.Objective`.

    Attributes:
        prior: The prior.
        scale: ``(num_docs, num_sources)`` float64 |η|^½; ones if Gaussian.
        root: ``(num_docs, num_sources, num_sources)`` float64 Cholesky factor of B⁻¹ at that |η|.
    """

    prior: FactorPrior
    scale: Tensor
    root: Tensor

    @classmethod
    def start(cls, prior: FactorPrior, index: Tensor) -> _Sources:
        """At |η| = 1, the optimum without data."""
        scale = prior.gram.new_ones(len(index), prior.num_sources)
        root = prior.source_tril.expand(len(index), -1, -1)
        return cls(prior, scale, root.clone() if prior.source == "laplace" else root)

    def lift(self, eta: Tensor) -> Tensor:
        return eta

    def _rescaled(self, z: Tensor) -> Tensor:
        source = z[..., : self.prior.num_sources] * self.scale.to(z.dtype)
        return torch.cat([source, z[..., self.prior.num_sources :]], -1)

    def source_mean(self, z: Tensor) -> Tensor:
        """s̄ ``(num_docs, num_sources)``, float64."""
        return z[:, : self.prior.num_sources].double() * self.scale

    def whiten(self, eta: Tensor) -> Tensor:
        source = self.prior.sources(eta, self.root)
        return torch.cat([source / self.scale, self.prior.noise(eta, source)], -1).to(eta.dtype)

    def unwhiten(self, z: Tensor) -> Tensor:
        return self.prior.unwhiten(self._rescaled(z))

    def push(self, z: Tensor) -> Tensor:
        return self.prior.push(self._rescaled(z))

    def pull(self, gradient: Tensor) -> Tensor:
        return self._rescaled(self.prior.pull(gradient))

    def select(self, rows: Tensor) -> _Sources:
        # Indexing would write out the one factor that Gaussian sources share.
        shared = self.prior.source == "gaussian"
        root = self.root[: len(rows)] if shared else self.root[rows]
        return _Sources(self.prior, self.scale[rows], root)

    def assign(self, rows: Tensor, part: _Sources) -> None:
        """Take the values of some of the documents from ``part``."""
        if self.prior.source == "laplace":
            self.scale[rows], self.root[rows] = part.scale, part.root

    def second_moment(self, z: Tensor) -> Tensor:
        """E s² ``(num_docs, num_sources)``, float64."""
        return self.source_mean(z).square() + self.root.square().sum(-1)

    def bound_terms(self, z: Tensor) -> Tensor:
        """The bound's terms in q(s) beyond −½|z|² ``(num_docs,)``, float64.

        ½|s̄|²_{1/|η|} − ½ tr AᵀΛAB⁻¹ − KL(q(s) ‖ p(s)); tr AᵀΛAB⁻¹ = L − tr diag(1/|η|)B⁻¹.
        """
        shortest = z[:, : self.prior.num_sources].double().square().sum(-1)
        trace = self.prior.num_sources - (self.root / self.scale[:, :, None]).square().sum((-2, -1))
        divergence = source_divergence(self.prior.source, self.second_moment(z), self.root)
        return 0.5 * (shortest - trace) - divergence

    def updated(self, z: Tensor, index: Tensor) -> _Sources:
        """With |η|, then B, at their optimum (*eqs 13–14*); Gaussian sources have nothing to do."""
        if self.prior.source == "gaussian":
            return self
        scale = self.second_moment(z).pow(0.25)
        return _Sources(self.prior, scale, self.prior.source_tril_at(scale, index))


def update_mean(
    topic_counts: Tensor,
    centre: Tensor,
    log_normaliser: Tensor,
    half_variance: Tensor,
    noise_precision: Tensor,
    lengths: Tensor,
) -> Tensor:
    """The x̄ that maximises the bound at fixed responsibilities, ξ, ν² and sources (*eqs 7–8*).

    t = n/λ + c − x̄ is ω(log u), log u = log N − log ξ − log λ + n/λ + c + ν²/2. (u itself, and the
    paper's start t = log u where that is negative, are no use.) Where t > 1, x̄ follows from log t,
    in which n/λ does not cancel.

    Args:
        topic_counts: ``(num_docs, num_topics)`` n, expected tokens of each topic.
        centre: ``(num_docs, num_topics)`` c = A s̄ + μ.
        log_normaliser: ``(num_docs,)`` log ξ.
        half_variance: ``(num_docs, num_topics)`` ν²/2.
        noise_precision: ``(num_topics,)`` λ.
        lengths: ``(num_docs,)`` N.

    Returns:
        ``(num_docs, num_topics)`` x̄; c for an empty document.
    """
    log_rate = (lengths.log() - log_normaliser)[:, None] - noise_precision.log() + half_variance
    pull = topic_counts / noise_precision + centre
    t = wright_omega(log_rate + pull)
    return torch.where(t > 1.0, t.clamp_min(1.0).log() - log_rate, pull - t)


def _coordinate_update(
    batch: DocumentBatch, topics: Tensor, sources: _Sources, z: Tensor, half_variance: Tensor
) -> Tensor:
    """The paper's round at fixed ν²: ξ and responsibilities, then x̄, then s̄ (*eqs 4, 5, 7–9*)."""
    prior = sources.prior
    eta = sources.unwhiten(z.double())
    counts = expected_topic_counts(torch.softmax(eta.to(z.dtype), -1), topics, batch)
    mean = update_mean(
        counts.double(),
        eta - z[:, prior.num_sources :] * prior.noise_std,
        torch.logsumexp(eta + half_variance, -1),
        half_variance.double(),
        prior.noise_precision.double(),
        batch.lengths.double(),
    )
    return sources.whiten(mean).to(z.dtype)


def _noise_divergence(prior: FactorPrior, variance: Tensor) -> Tensor:
    """Σ_k ½(λν² − 1 − log λν²) ``(num_docs,)`` float64, KL of the variances of eta given s."""
    ratio = variance.double() * prior.noise_precision.double()
    return 0.5 * (ratio - 1.0 - ratio.log()).sum(-1)


def factor(
    batch: DocumentBatch,
    topics: Tensor,
    prior: FactorPrior,
    *,
    start: Tensor,
    tolerance: float,
    max_iterations: int,
) -> FactorPosterior:
    """Solve q(s) q(eta) by coordinate ascent on the tangent bound.

    *Putthividhya et al. 2009, §2.2–2.3.1.* A round is the paper's (the Wright omega update of x̄
    between those of ξ, the responsibilities and s̄), then two Newton steps in x̄ and s̄ together,
    then |η|, B and s̄ of Laplace sources, then each ν_k² with ξ held (*eq. 6*, of which the print
    is twice the derivative). No update lowers the bound. The Newton steps are what makes it fast:
    ξ ties all x̄_k together and s̄ to them, and the paper's rounds alone took ten times as many
    (*measured on 500 documents of* ``ap`` *with 50 topics and 12 sources: 97 rounds against 9.6,
    6 times the time; 138 against 13 with Laplace sources*).

    With A = 0 this is Blei–Lafferty's posterior of eta under N(μ, Λ⁻¹). Its bound is then theirs
    if the sources are Gaussian; with Laplace sources the dual costs log 2 + ½ − ½ log 2π = 0.274
    nats a source.

    Args:
        batch: Documents.
        topics: ``(num_topics, num_words)``.
        prior: Prior of eta and its sources.
        start: ``(num_docs, num_topics)`` starting means.
        tolerance: Gain of the bound per round, nats, at which a document has converged.
        max_iterations: Bound on the rounds.

    Returns:
        The posterior; its objective is the bound on log p(w). An empty document has x̄ = μ, s̄ = 0
        and ν² = 1/λ; its bound is below 0 too, since q(s) q(eta) is the prior only if A = 0 and the
        sources are Gaussian.

    Raises:
        NumericalError: B of some documents is not positive definite.
    """
    sources = _Sources.start(prior, batch.index)
    z = sources.whiten(start)
    # As if every topic were equally likely; see blei_lafferty. Then, at no pass over the words,
    # what suits the starting means: warm ones are spared most of their rounds.
    variance = 1.0 / (prior.noise_precision + batch.lengths[:, None] / prior.dim)
    precision = prior.noise_precision.expand_as(variance)
    for _ in range(START_STEPS):
        log_rate = log_mean_rate(start, 0.5 * variance, batch.lengths)
        variance = inverse_mean_root(precision, log_rate, 0.5)
        sources = sources.updated(z, batch.index)
        z = sources.whiten(start)
    bound = torch.full((batch.num_docs,), -torch.inf, dtype=torch.float64, device=z.device)
    iterations = torch.zeros_like(batch.index)
    converged = torch.zeros_like(bound, dtype=torch.bool)
    rows, current = torch.arange(batch.num_docs, device=z.device), batch
    for iteration in range(max_iterations):
        part, half = sources.select(rows), 0.5 * variance[rows]
        position, value, _, _ = maximise_mean(
            Objective(current, topics, part, half),
            _coordinate_update(current, topics, part, z[rows], half),
            tolerance=0.1 * tolerance,
            max_iterations=MEAN_STEPS,
        )
        z[rows] = position
        new_bound = value + part.bound_terms(position) - _noise_divergence(prior, variance[rows])
        gain = new_bound - bound[rows]
        bound[rows] = new_bound
        iterations[rows] += 1
        epsilon = 4.0 * torch.finfo(z.dtype).eps
        done = gain <= (epsilon * new_bound.abs()).clamp_min(tolerance)
        # A bound that fell by more than rounding makes it is a failure, not convergence. The
        # logits' own rounding counts once a token.
        eta = part.unwhiten(position.double())
        size = new_bound.abs() + current.lengths * eta.abs().amax(-1)
        converged[rows] = done & (gain >= -(epsilon * size).clamp_min(tolerance))
        # The last round ends with the means, so that the bound is the posterior's.
        if bool(done.all()) or iteration + 1 == max_iterations:
            break
        keep = (~done).nonzero().squeeze(-1)
        if len(keep) < len(rows):
            rows, current = rows[keep], current.select(keep)
            part, position, half = part.select(keep), position[keep], half[keep]
            eta = eta[keep]
        part = part.updated(position, current.index)
        sources.assign(rows, part)
        z[rows] = part.whiten(eta).to(z.dtype)
        log_rate = log_mean_rate(eta.to(z.dtype), half, current.lengths)
        precision = prior.noise_precision.expand_as(log_rate)
        variance[rows] = inverse_mean_root(precision, log_rate, 0.5)
    return FactorPosterior(
        prior=prior,
        mean=sources.unwhiten(z),
        converged=converged,
        iterations=iterations,
        objective=bound,
        std=variance.sqrt(),
        source_mean=sources.source_mean(z).to(z.dtype),
        source_root=sources.root,
    )


@dataclass(eq=False, kw_only=True)
class LowRankPosterior(GaussianPosterior):
    """Normal posteriors of eta with covariance diag(d) + WWᵀ; no dense matrix unless asked for.

    The precision is Σ⁻¹ + diag w − wwᵀ/N, Σ the marginal covariance of eta and w = N·theta at the
    mean (*Ahmed & Xing 2007, eq. 9*): densities and divergences come from that form, in which
    nothing cancels, draws and variances from the other.

    Attributes:
        prior: The prior it was solved under, with Gaussian sources.
        diagonal: ``(num_docs, num_topics)`` d.
        loading: ``(num_docs, num_topics, num_sources + 1)`` W.
        weights: ``(num_docs, num_topics)`` w.
        log_det: ``(num_docs,)`` float64 log|Σ| − log|V|.
    """

    prior: FactorPrior
    diagonal: Tensor
    loading: Tensor
    weights: Tensor
    log_det: Tensor

    @cached_property
    def scale_tril(self) -> Tensor:
        """Lower Cholesky factor of the covariance ``(num_docs, num_topics, num_topics)``."""
        return triangular_factor(torch.cat([self.diagonal.sqrt().diag_embed(), self.loading], -1))

    @property
    def covariance(self) -> Tensor:
        """Covariance of eta ``(num_docs, num_topics, num_topics)``."""
        return self.diagonal.diag_embed() + self.loading @ self.loading.mT

    @cached_property
    def variance(self) -> Tensor:
        """Marginal variances of eta ``(num_docs, num_topics)``."""
        return self.diagonal + self.loading.square().sum(-1)

    def covariance_sum(self) -> Tensor:
        """Σ_d V_d ``(num_topics, num_topics)`` float64, without forming any V_d."""
        loading = self.loading.double().movedim(1, 0).flatten(1)
        return self.diagonal.double().sum(0).diag_embed() + loading @ loading.mT

    def kl(self) -> Tensor:
        """KL(posterior ‖ marginal prior of eta) of each document ``(num_docs,)`` float64 nats.

        ½[|z|² + log|Σ| − log|V| − tr NHV], z the whitened mean and NH = diag w − wwᵀ/N.
        """
        z = self.prior.whiten(self.mean.double())
        w, loading = self.weights.double(), self.loading.double()
        theta = w / w.sum(-1, keepdim=True).clamp_min(1.0)
        centred = loading - theta[:, None, :] @ loading
        trace = (w * self.diagonal * (1.0 - theta)).sum(-1)
        trace = trace + (w[..., None] * centred.square()).sum((-2, -1))
        return 0.5 * (z.square().sum(-1) + self.log_det - trace)

    def log_prob(self, eta: Tensor) -> Tensor:
        """Log density ``(..., num_docs)`` of eta ``(..., num_docs, num_topics)``, nats."""
        centred = eta.double() - self.mean.double()
        # The whitened coordinates of a difference: eta's prior precision without its mean.
        z = self.prior.whiten(centred + self.prior.loc)
        w = self.weights.double()
        theta = w / w.sum(-1, keepdim=True).clamp_min(1.0)
        spread = w * (centred - (theta * centred).sum(-1, keepdim=True)).square()
        constant = self.prior.dim * math.log(2 * math.pi) + self.prior.log_det - self.log_det
        return (-0.5 * (z.square().sum(-1) + spread.sum(-1) + constant)).to(self.mean.dtype)

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Draws of eta ``(num_samples, num_docs, num_topics)``."""
        noise = torch.randn(
            num_samples,
            self.num_docs,
            self._noise_dim,
            generator=generator,
            dtype=self.mean.dtype,
            device=self.mean.device,
        )
        dim = self.prior.dim
        shared = torch.einsum("dkj,sdj->sdk", self.loading, noise[..., dim:])
        return self.mean + self.diagonal.sqrt() * noise[..., :dim] + shared

    @property
    def _noise_dim(self) -> int:
        return self.prior.dim + self.loading.shape[-1]

    def _deviations(self, noise: Tensor, rows: slice) -> Tensor:
        std, loading = self.diagonal[rows].sqrt().to(noise), self.loading[rows].to(noise)
        dim = self.prior.dim
        shared = torch.einsum("dkj,sj->sdk", loading, noise[:, dim:])
        return noise[:, None, :dim] * std + shared
