"""Posteriors under independent factor models (Putthividhya, Attias & Nagarajan 2009).

The prior and its coordinates z = (s, e) are those of :mod:`torch_lntm.latents.factor`. The
posterior is q(s) q(eta), with q(s) = N(s̄, B⁻¹) and q(eta_k) = N(x̄_k, ν_k²). It maximises the
tangent bound

    loglik(e^x̄) − N·lse(x̄ + ν²/2) + E log p(eta | s) + E log p(s) + H(q)

with Laplace sources replaced by their dual, −|s| ≥ −|η|/2 − s²/(2|η|) (*eqs 2–3 and 11*), at the
best |η|.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torch_lntm.corpus.batch import DocumentBatch
from torch_lntm.latents.factor import FactorSpace
from torch_lntm.posteriors.normal import FactorPosterior
from torch_lntm.solvers.active import ActiveSet, bound_rounding, converged_or_failed
from torch_lntm.solvers.ascent import Objective, Secant, Words, maximise_mean
from torch_lntm.solvers.options import SolveOptions
from torch_lntm.solvers.precision import in_sufficient_precision
from torch_lntm.solvers.special import inverse_mean_root, log_mean_rate, wright_omega


@dataclass(eq=False)
class _Sources:
    """q(s) of all documents, and its whitened coordinates (s/|η|^½, e).

    The dual's quadratic is ½|z|² there, so that for fixed |η| and B the bound as a function of
    means and sources is :class:`~torch_lntm.solvers.ascent.Objective`. Gaussian sources have |η| =
    1, and a common B for all documents.

    Attributes:
        space: The prior of eta and its sources.
        scale: ``(num_docs, num_sources)`` float64 |η|^½; a single row if all documents share it.
        variance: ``(num_docs, num_sources)`` float64 diag B⁻¹, or a single row.
        log_volume: ``(num_docs,)`` float64 ½ log|B⁻¹|, or a single number.
    """

    space: FactorSpace
    scale: Tensor
    variance: Tensor
    log_volume: Tensor

    @classmethod
    def start(cls, space: FactorSpace) -> _Sources:
        """Sources at |η| = 1, the optimum without data, shared by all documents."""
        variance = space.source_tril.square().sum(-1)
        return cls(
            space, torch.ones_like(variance)[None], variance[None], space.source_log_volume[None]
        )

    def lift(self, eta: Tensor) -> Tensor:
        return eta

    def _rescaled(self, z: Tensor) -> Tensor:
        if self.space.shares_source_covariance:  # the scale is 1
            return z
        source = z[..., : self.space.num_sources] * self.scale.to(z.dtype)
        noise = z[..., self.space.num_sources :]
        return torch.cat([source, noise.expand(*source.shape[:-1], -1)], -1)

    def source_mean(self, z: Tensor) -> Tensor:
        """Source means s̄ ``(num_docs, num_sources)``, float64."""
        return z[:, : self.space.num_sources].double() * self.scale

    def whiten(self, eta: Tensor, source: Tensor) -> Tensor:
        return torch.cat([source / self.scale, self.space.noise(eta, source)], -1).to(eta.dtype)

    def unwhiten(self, z: Tensor) -> Tensor:
        return self.space.unwhiten(self._rescaled(z))

    def push(self, z: Tensor) -> Tensor:
        return self.space.push(self._rescaled(z))

    def pull(self, gradient: Tensor) -> Tensor:
        return self._rescaled(self.space.pull(gradient))

    def select(self, rows: Tensor) -> _Sources:
        space = self.space.select(rows)
        if space.shares_source_covariance:
            return _Sources(space, self.scale, self.variance, self.log_volume)
        return _Sources(space, self.scale[rows], self.variance[rows], self.log_volume[rows])

    def assign(self, rows: Tensor, part: _Sources) -> None:
        """Take the values of some of the documents from ``part``."""
        self.scale[rows], self.variance[rows] = part.scale, part.variance
        self.log_volume[rows] = part.log_volume

    def second_moment(self, z: Tensor) -> Tensor:
        """E s² ``(num_docs, num_sources)``, float64."""
        return self.source_mean(z).square() + self.variance

    def bound_terms(self, z: Tensor) -> Tensor:
        """Terms of the bound in q(s) beyond −½|z|² ``(num_docs,)``, float64.

        ½|s̄|²_{1/|η|} − ½ tr AᵀΛAB⁻¹ − KL(q(s) ‖ p(s)); tr AᵀΛAB⁻¹ = L − tr diag(1/|η|)B⁻¹.
        """
        shortest = z[:, : self.space.num_sources].double().square().sum(-1)
        trace = self.space.num_sources - (self.variance / self.scale.square()).sum(-1)
        divergence = self.space.source_divergence(self.second_moment(z), self.log_volume)
        return 0.5 * (shortest - trace) - divergence

    def updated(self, z: Tensor, eta: Tensor, index: Tensor) -> tuple[_Sources, Tensor]:
        """Sources with |η|, then B and s̄ at their optimum given eta (*eqs 12–14*), and z there.

        Args:
            z: ``(num_docs, dim)`` point of the second moments for |η|.
            eta: ``(num_docs, num_topics)``.
            index: ``(num_docs,)`` corpus positions.
        """
        scale = self.space.source_scale(self.second_moment(z))
        if scale is None:
            return self, self.space.whiten(eta)
        mean, *moments = self.space.source_normals(eta, scale, index)
        sources = _Sources(self.space, scale, *moments)
        return sources, sources.whiten(eta, mean)


def update_mean(
    topic_counts: Tensor,
    centre: Tensor,
    log_normaliser: Tensor,
    half_variance: Tensor,
    noise_precision: Tensor,
    lengths: Tensor,
) -> Tensor:
    """The x̄ that maximises the bound at fixed responsibilities, ξ, ν² and sources (*eqs 7–8*).

    t = n/λ + c − x̄ is ω(log u), with log u = log N − log ξ − log λ + n/λ + c + ν²/2. u itself can
    overflow, and the paper's start t = log u is useless for negative log u. For t > 1, x̄ follows
    from log t, because n/λ would cancel in n/λ + c − t.

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


def _updated_variance(
    space: FactorSpace, mean: Tensor, half_variance: Tensor, lengths: Tensor
) -> Tensor:
    """The ν² that maximises the bound at fixed means and ξ (*eq. 6*)."""
    log_rate = log_mean_rate(mean, half_variance, lengths)
    return inverse_mean_root(space.noise_precision, log_rate, 0.5)


def _noise_divergence(space: FactorSpace, variance: Tensor) -> Tensor:
    """KL of the variances of eta given s, Σ_k ½(λν² − 1 − log λν²) ``(num_docs,)`` float64."""
    ratio = variance.double() * space.noise_precision.double()
    return 0.5 * (ratio - 1.0 - ratio.log()).sum(-1)


@in_sufficient_precision
def factor(
    batch: DocumentBatch, topics: Tensor, space: FactorSpace, options: SolveOptions
) -> FactorPosterior:
    """Solve q(s) q(eta) by coordinate ascent on the tangent bound.

    *Putthividhya et al. 2009, §2.2–2.3.1.* The first round is the paper's: the Wright omega update
    of x̄ between the updates of ξ, the responsibilities and s̄. Far from the optimum it leads to
    better optima than Newton's steps. Later rounds take a Newton step in x̄ and s̄ together, then
    update |η|, B and s̄ of Laplace sources, then each ν_k² at fixed ξ (*eq. 6*; the printed
    equation is twice the derivative). No update lowers the bound. The Newton steps are what makes
    it fast, because ξ ties all x̄_k together and s̄ to them, and the paper's rounds alone take 10
    times as many.

    With A = 0 the result is Blei–Lafferty's posterior of eta under N(μ, Λ⁻¹). The bound then equals
    theirs if the sources are Gaussian. With Laplace sources the dual costs log 2 + ½ − ½ log 2π =
    0.274 nats per source.

    Args:
        batch: Documents.
        topics: ``(num_topics, num_words)``.
        space: The prior of eta and its sources.
        options: Starting means ``(num_docs, num_topics)``. A document has converged if its bound
            gains less than the tolerance, in nats, in a round.

    Returns:
        The posterior. Its objective is the bound on log p(w). An empty document has x̄ = μ, s̄ = 0
        and ν² = 1/λ. Its bound is below 0 too, since q(s) q(eta) is the prior only if A = 0 and the
        sources are Gaussian.

    Raises:
        NumericalError: B of some documents is not positive definite.
    """
    sources, z, variance, bound = _first_round(batch, topics, space, options.start)
    active, current = ActiveSet(batch.num_docs, z.device), batch
    # The pass over the words at the end of a round also serves the start of the next, and the
    # secant stays nearly valid even if the sources' coordinates change.
    words: Words | None = None
    secant: Secant | None = None
    for iteration in range(options.max_iterations):
        rows = active.rows
        part, half = sources.select(rows), 0.5 * variance[rows]
        point, secant, *_ = maximise_mean(
            Objective(current, topics, part, half),
            z[rows],
            tolerance=0.1 * options.tolerance,
            # Joint ascent steps in means and sources per round; each costs a pass over the words.
            max_iterations=1,
            words=words,
            secant=secant,
        )
        z[rows] = point.z
        new_bound = (
            point.value + part.bound_terms(point.z) - _noise_divergence(space, variance[rows])
        )
        gain = new_bound - bound[rows]
        bound[rows] = new_bound
        rounding = bound_rounding(new_bound, current.lengths, point.words.logits)
        active.step(*converged_or_failed(gain, options.tolerance, rounding))
        current, part, position, half, words, secant = active.drop_stopped(
            current, part, point.z, half, point.words, secant.after_small_gains(gain)
        )
        # The last round ends with the means, so the bound is the bound of the returned posterior.
        if active.finished or iteration + 1 == options.max_iterations:
            break
        # Gaussian sources need no update, and z is the shortest already.
        if not space.shares_source_covariance:
            part, z[active.rows] = part.updated(position, words.logits, current.index)
            sources.assign(active.rows, part)
        variance[active.rows] = _updated_variance(space, words.logits, half, current.lengths)
    root = space.source_tril
    if not space.shares_source_covariance:
        root = space.source_tril_at(sources.scale, batch.index)
    return FactorPosterior(
        space=space,
        index=batch.index,
        mean=sources.unwhiten(z),
        converged=active.converged,
        iterations=active.iterations,
        objective=bound,
        std=variance.sqrt(),
        source_mean=sources.source_mean(z).to(z.dtype),
        source_root=root.expand(batch.num_docs, -1, -1),
    )


def _first_round(
    batch: DocumentBatch, topics: Tensor, space: FactorSpace, start: Tensor
) -> tuple[_Sources, Tensor, Tensor, Tensor]:
    """The paper's round, from starting means.

    Returns:
        Sources, z, variances of eta and bound of every document.
    """
    # The variances start as in blei_lafferty. They are then fitted to the starting means, without a
    # pass over the words. The second fit counts as part of the first round. Documents with a start
    # as good as their posterior are then done after a single round.
    share = 0.5 * (torch.softmax(start, -1) + 1.0 / space.num_topics)
    variance = 1.0 / (space.noise_precision + batch.lengths[:, None] * share)
    variance = _updated_variance(space, start, 0.5 * variance, batch.lengths)
    sources, z = _Sources.start(space), space.whiten(start)
    if not space.shares_source_covariance:
        sources, z = sources.updated(z, start, batch.index)
    point = Objective(batch, topics, sources, 0.5 * variance).evaluate(z)
    bound = point.value + sources.bound_terms(z) - _noise_divergence(space, variance)
    variance = _updated_variance(space, start, 0.5 * variance, batch.lengths)
    # The paper's x̄ at fixed ν² and sources: ξ, then x̄ given responsibilities (*eqs 4, 7–8*).
    eta, half = point.words.logits, 0.5 * variance
    centre = eta - z[:, space.num_sources :] * space.noise_std.to(z.dtype)
    log_normaliser = torch.logsumexp(eta + half, -1)
    rest = (space.noise_precision, batch.lengths)
    mean = update_mean(point.words.topic_counts, centre, log_normaliser, half, *rest)
    sources, z = sources.updated(z, mean, batch.index)
    return sources, z, variance, bound
