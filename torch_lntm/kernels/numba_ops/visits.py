"""Visits of chains: some transitions of each, while its document is in the cache."""

# mypy: ignore-errors

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from torch_lntm.kernels.numba_ops.blocks import (
    NOWHERE,
    fill,
    product,
    softmax_,
    square_norm,
    words_log_likelihood,
    words_pass,
)
from torch_lntm.kernels.numba_ops.noise import fill_normal, folded, uniform_number
from torch_lntm.kernels.numba_ops.vectors import *

Array = Any

#: Scale c in log σ(cz), as in :mod:`torch_lntm.latents.gamma`.
_UNIT_LOGISTIC = math.pi / math.sqrt(3.0)


class Map(NamedTuple):
    """Logits as a function of z = (x, e): loc + Mx + scale · e, where e may be missing.

    Rows are padded with zeros to multiples of ``WIDTH``. Products skip the zeros above and below
    the others in ``WIDTH`` columns at a time, which halves the work of a triangular M.

    Attributes:
        loc: ``(1 or num_docs, num_topics)`` logits at z = 0.
        push: The transpose of M, a row for each component of x.
        push_range: ``(2, columns / WIDTH)`` int64 first row and end of what is not 0.
        pull: M, a row for each topic.
        pull_range: As ``push_range``.
        scale: ``(width,)`` padded with zeros, or empty without e.
        dim: Number of components of z.
        num_laplace: Number of first components of z with density ½ exp(−|z|). All others are
            standard normal.
        gamma: ``(5, width)`` rows α, 1/α, 1/√(1 + α), log(1 + α) and 1 of a
            :class:`~torch_lntm.latents.gamma.GammaSpace`, with 0 as the last in the padding; or
            ``(5, 0)``. The logits are then its x(z), and loc, M and scale are empty.
        exact: ``gamma`` in float64.
        log_normaliser: Constant of the log density of z, in nats.
    """

    loc: Array
    push: Array
    push_range: Array
    pull: Array
    pull_range: Array
    scale: Array
    dim: int
    num_laplace: int
    gamma: Array
    exact: Array
    log_normaliser: float


class State(NamedTuple):
    """State of chains, overwritten; ``num_rows`` is num_chains × num_docs, chain by chain.

    Attributes:
        position: ``(num_rows, dim)`` z.
        log_prior: ``(num_rows,)`` float64 nats.
        log_likelihood: ``(num_rows,)`` float64 nats.
        gradient: ``(num_rows, dim)`` gradient of the log likelihood in z.
    """

    position: Array
    log_prior: Array
    log_likelihood: Array
    gradient: Array


class Randomness(NamedTuple):
    """Random numbers of transitions, or the keys that they are drawn by.

    Attributes:
        keys: ``(num_rows,)`` int64 keys of the chains, or empty.
        momentum: ``(num_transitions, num_rows, dim)``, or empty with keys.
        acceptance_uniform: ``(num_transitions, num_rows)`` float64, or empty with keys.
        step_uniform: ``(num_transitions, num_rows)`` float64, or empty with keys.
    """

    keys: Array
    momentum: Array
    acceptance_uniform: Array
    step_uniform: Array


class Adaptation(NamedTuple):
    """Step sizes of chains and the state of their dual averaging, overwritten; all float64.

    Attributes:
        step_size: ``(num_rows,)`` of the next transition.
        log_step_size: ``(num_rows,)``, or empty for constant step sizes.
        log_average: ``(num_rows,)``, or empty.
        shortfall: ``(num_rows,)``, or empty.
        centre: ``(num_rows,)``, or empty. Not overwritten.
    """

    step_size: Array
    log_step_size: Array
    log_average: Array
    shortfall: Array
    centre: Array


class Settings(NamedTuple):
    """Numbers that all chains of a visit share.

    Attributes:
        evaluate: Whether to compute densities and gradients at the start, and counts if they are
            asked for.
        num_past: Transitions before this visit.
        warmup_steps: Transitions that adapt step sizes.
        num_steps: Leapfrog steps of a transition.
        jitter: Largest relative change of a step size.
        max_error: Energy error above which a transition is divergent, nats.
        target_accept: Acceptance probability that the adaptation aims at.
        log_longest: Logarithm of the upper bound on step sizes.
        shrinkage: γ of dual averaging.
        delay: t₀ of dual averaging.
        forgetting: κ of dual averaging.
    """

    evaluate: bool
    num_past: int
    warmup_steps: int
    num_steps: int
    jitter: float
    max_error: float
    target_accept: float
    log_longest: float
    shrinkage: float
    delay: float
    forgetting: float


class Outcome(NamedTuple):
    """Diagnostics of each transition, ``(num_transitions, num_rows)`` each, overwritten.

    Attributes:
        acceptance: Acceptance probability, float64.
        accepted: Whether the proposal was accepted, bool.
        energy_error: Nats, float64.
        divergent: Bool.
        step_size: Step size of the next transition, float64.
    """

    acceptance: Array
    accepted: Array
    energy_error: Array
    divergent: Array
    step_size: Array


class Counts(NamedTuple):
    """What the expected counts at the chains' last positions are made of, overwritten.

    Attributes:
        theta: ``(num_rows, num_topics)`` proportions, or no rows if they are not asked for.
        ratio: ``(num_chains, nnz)`` counts divided by the words' probabilities s.
    """

    theta: Array
    ratio: Array


# -- priors ----------------------------------------------------------------------------------------


@inlined
def _log_gamma(z, gamma, k):
    """Value, slope and curvature at z of :class:`~torch_lntm.latents.gamma.GammaSpace`'s x."""
    cast = gamma.dtype.type
    none, one, minus = lanes_of(cast(0)), lanes_of(cast(1)), lanes_of(cast(-1))
    unit = lanes_of(cast(_UNIT_LOGISTIC))
    inverse, slope, constant = load(gamma, (1, k)), load(gamma, (2, k)), load(gamma, (3, k))
    scaled = times(unit, z)
    opposite = times(minus, scaled)
    # e^−|cz|, and with it log σ(cz) = min(cz, 0) − log(1 + e^−|cz|) and σ(−cz).
    tail = exp(times(minus, larger(scaled, opposite)))
    log_sigmoid = times(minus, plus(larger(opposite, none), log(plus(one, tail))))
    below = over(where_above(scaled, none, tail, one), plus(one, tail))
    steep = times(unit, inverse)
    curvature = times(times(unit, steep), times(below, plus(below, minus)))
    return (
        fma(inverse, log_sigmoid, fma(slope, z, constant)),
        fma(steep, below, slope),
        curvature,
    )


@inlined
def _prior_gradient(chart, block, i):
    """Gradient h of the log prior at z; for Dirichlet priors also the slopes of the logits."""
    z, h = block.z, block.h
    if chart.gamma.shape[1]:
        # e^x stays finite, and the energy of a chain so far out is large enough to be rejected.
        minus, most = lanes_of(z.dtype.type(-1)), lanes_of(z.dtype.type(-80))
        for k in range(0, chart.gamma.shape[1], WIDTH):
            value, slope, curvature = _log_gamma(load(z, (i, k)), chart.gamma, k)
            x = exp(times(minus, larger(times(minus, value), most)))
            excess = fma(minus, x, load(chart.gamma, (0, k)))
            gradient = fma(excess, slope, over(curvature, slope))
            store(h, (i, k), times(load(chart.gamma, (4, k)), gradient))
            store(block.bend, k, slope)
        return
    minus = lanes_of(z.dtype.type(-1))
    for k in range(0, z.shape[1], WIDTH):
        store(h, (i, k), times(minus, load(z, (i, k))))
    for k in range(chart.num_laplace):
        h[i, k] = np.sign(-z[i, k])


@inlined
def _log_prior(chart, z, i):
    """Log density of a row of z, nats, in float64."""
    if chart.gamma.shape[1]:
        double, terms, minus = chart.exact, lanes_of(0.0), lanes_of(-1.0)
        for k in range(0, double.shape[1], WIDTH):
            value, slope, _ = _log_gamma(doubled(load(z, (i, k))), double, k)
            x = exp(times(minus, larger(times(minus, value), lanes_of(-700.0))))
            term = fma(load(double, (0, k)), value, plus(log(slope), times(minus, x)))
            terms = fma(load(double, (4, k)), term, terms)
        return sum_lanes(terms) - chart.log_normaliser
    total = -0.5 * square_norm(z, i)
    for k in range(chart.num_laplace):
        x = np.float64(z[i, k])
        total += 0.5 * x * x - abs(x)
    return total - chart.log_normaliser


@inlined
def _logits(chart, block, i):
    """Complete the products of a row of z with M to its logits."""
    logits = block.theta
    if chart.gamma.shape[1]:
        nowhere = logits.dtype.type(NOWHERE)
        for k in range(0, logits.shape[1], WIDTH):
            value = _log_gamma(load(block.z, (i, k)), chart.gamma, k)[0]
            inside = load(chart.gamma, (4, k))
            outside = fma(lanes_of(-nowhere), inside, lanes_of(nowhere))
            store(logits, (i, k), fma(inside, value, outside))
        return
    offset = len(chart.push)
    for k in range(0, logits.shape[1], WIDTH):
        x = plus(load(logits, (i, k)), load(block.loc, (i, k)))
        if k < len(chart.scale):
            x = fma(load(chart.scale, k), load(block.z, (i, offset + k)), x)
        store(logits, (i, k), x)


@inlined
def _write_counts(block, documents, counts, i):
    """Write a row's proportions, and its words' counts divided by their probabilities."""
    num_docs, row, begin = len(documents.lengths), block.row[i], block.begin[i]
    doc, own, theta = row % num_docs, counts.theta[row], block.theta[i]
    for k in range(len(own)):
        own[k] = theta[k]
    # Slices, because a compiler makes vectors of loops that begin at 0.
    into = counts.ratio[
        row // num_docs, documents.row_offsets[doc] : documents.row_offsets[doc + 1]
    ]
    ratio = block.ratio[i, begin : begin + len(into)]
    for j in range(len(into)):
        into[j] = ratio[j]


@inlined
def _evaluate(block, documents, chart, num_rows, with_value):
    """Gradients of log likelihood and log prior at the block's z, and what is asked for."""
    num_docs, a = len(documents.lengths), documents.concentration
    cast, theta, slope = block.z.dtype.type, block.theta, block.slope
    width = theta.shape[1]
    product(block.z, chart.push, chart.push_range, theta)
    for i in range(num_rows):
        doc, begin, end = block.row[i] % num_docs, block.begin[i], block.end[i]
        _logits(chart, block, i)
        softmax_(theta, i)
        rows, counts, s, ratio = block.words, block.counts, block.s, block.ratio[i]
        t, g, floor = theta[i], slope[i], documents.floor
        words_pass(rows, counts, s, ratio, t, g, a, floor, begin, end)
        total = lanes_of(cast(0))
        for k in range(0, width, WIDTH):
            own = times(load(slope, (i, k)), load(theta, (i, k)))
            store(slope, (i, k), own)
            total = plus(total, own)
        lost = -documents.lengths[doc]
        if a < math.inf:
            lost = -sum_lanes(total)
        for k in range(0, width, WIDTH):
            own = fma(lanes_of(lost), load(theta, (i, k)), load(slope, (i, k)))
            store(slope, (i, k), own)
        if with_value:
            block.value[i] = words_log_likelihood(counts, s, begin, end, a)
            if a < math.inf:
                block.value[i] += documents.length_terms[doc]
    product(slope, chart.pull, chart.pull_range, block.g)
    offset = len(chart.push)
    for i in range(num_rows):
        _prior_gradient(chart, block, i)
        for k in range(0, len(chart.scale), WIDTH):
            g = times(load(chart.scale, k), load(slope, (i, k)))
            store(block.g, (i, offset + k), g)
        for k in range(0, chart.gamma.shape[1], WIDTH):
            store(block.g, (i, k), times(load(block.bend, k), load(slope, (i, k))))


# -- visits of chains ------------------------------------------------------------------------------


@inlined
def _read(numbers, row, into, i):
    """Copy a row of numbers into a padded row of a block, whose padding may have become NaN."""
    into[i] = 0
    for k in range(numbers.shape[1]):
        into[i, k] = numbers[row, k]


@inlined
def _start(block, state, num_rows):
    """Read the state of the chains of a block."""
    for i in range(num_rows):
        row = block.row[i]
        block.prior[i], block.likelihood[i] = state.log_prior[row], state.log_likelihood[row]
        _read(state.position, row, block.position, i)
        _read(state.gradient, row, block.gradient, i)


@inlined
def _finish(block, state, num_rows):
    """Write the state of the chains of a block."""
    for i in range(num_rows):
        row = block.row[i]
        state.log_prior[row], state.log_likelihood[row] = block.prior[i], block.likelihood[i]
        for k in range(state.position.shape[1]):
            state.position[row, k], state.gradient[row, k] = (
                block.position[i, k],
                block.gradient[i, k],
            )


@inlined
def _keep(block, documents, counts, i, prior):
    """Make a proposal the state of its chain, and write its counts if they are asked for."""
    for k in range(0, block.z.shape[1], WIDTH):
        store(block.position, (i, k), load(block.z, (i, k)))
        store(block.gradient, (i, k), load(block.g, (i, k)))
    block.prior[i], block.likelihood[i] = prior, block.value[i]
    if len(counts.theta):
        _write_counts(block, documents, counts, i)


@inlined
def _draw(block, drawn, settings, step_size, dim, number, i):
    """Momentum and step size of a row's transition; returns its uniform number for acceptance.

    The keys are those of :func:`torch_lntm.sampling.hmc.draw`: number 0 of a transition's key is
    for the momentum, 1 for the acceptance and 2 for the jitter.
    """
    row, r = block.row[i], block.r
    # A divergence may have left NaN in the padding.
    for k in range(dim, r.shape[1]):
        r[i, k] = block.h[i, k] = 0
    if len(drawn.keys):
        key = folded(np.uint64(drawn.keys[row]), settings.num_past + number)
        fill_normal(folded(key, 0), block.draws, r[i, :dim])
        chance, shift = uniform_number(folded(key, 1), 0), uniform_number(folded(key, 2), 0)
    else:
        _read(drawn.momentum[number], row, r, i)
        chance = drawn.acceptance_uniform[number, row]
        shift = drawn.step_uniform[number, row]
    block.epsilon[i] = step_size * (1.0 + settings.jitter * (2.0 * shift - 1.0))
    block.kinetic[i] = square_norm(block.r, i)
    return chance


@inlined_in_any_order
def _kick_and_drift_by(metric, block, i, weight, kick, drift):
    """As :func:`_kick_and_drift`, with a metric W ``(dim, dim)``: r + Wᵀ(…) and z + W r."""
    z, r, g, h = block.z[i], block.r[i], block.g[i], block.h[i]
    for j in range(len(metric)):
        row, pull = metric[j], kick * (weight * g[j] + h[j])
        for k in range(len(row)):
            r[k] += pull * row[k]
    for j in range(len(metric)):
        row, push = metric[j], z.dtype.type(0)
        for k in range(len(row)):
            push += row[k] * r[k]
        z[j] += drift * push


@inlined
def _kick_and_drift(block, factor, num_docs, i, weight, kick, drift):
    """Add kick ε × the gradient of the log density to r, and then drift ε r to z.

    The weight is the inverse temperature of the likelihood.
    """
    kick, drift = kick * block.epsilon[i], drift * block.epsilon[i]
    if factor.shape[1]:
        metric = factor[0 if len(factor) == 1 else block.row[i] % num_docs]
        _kick_and_drift_by(metric, block, i, weight, kick, drift)
        return
    weights, kicks, drifts = lanes_of(weight), lanes_of(kick), lanes_of(drift)
    for k in range(0, block.z.shape[1], WIDTH):
        g = fma(weights, load(block.g, (i, k)), load(block.h, (i, k)))
        r = fma(kicks, g, load(block.r, (i, k)))
        store(block.r, (i, k), r)
        store(block.z, (i, k), fma(drifts, r, load(block.z, (i, k))))


@inlined
def _adapt(adaptation, settings, row, number, acceptance):
    """Step size after a transition, as :class:`~torch_lntm.sampling.step_sizes.DualAveraging`."""
    count = settings.num_past + number + 1
    if count > settings.warmup_steps or len(adaptation.log_step_size) == 0:
        return adaptation.step_size[row]
    delayed = (count + settings.delay) / math.sqrt(count)
    centre = adaptation.centre[row]
    least = (centre - settings.log_longest) * settings.shrinkage * delayed
    shortfall = max(adaptation.shortfall[row] + (settings.target_accept - acceptance), least)
    log_step_size = centre - shortfall / (settings.shrinkage * delayed)
    weight = count**-settings.forgetting
    log_average = weight * log_step_size + (1.0 - weight) * adaptation.log_average[row]
    adaptation.shortfall[row] = shortfall
    adaptation.log_step_size[row] = log_step_size
    adaptation.log_average[row] = log_average
    adaptation.step_size[row] = math.exp(
        log_average if count == settings.warmup_steps else log_step_size
    )
    return adaptation.step_size[row]


@inlined
def _judge(block, prior, settings, outcome, temperature, number, i):
    """Acceptance probability of a row's proposal, and whether it is accepted."""
    start = -block.prior[i] - temperature * block.likelihood[i] + 0.5 * block.kinetic[i]
    error = (-prior - temperature * block.value[i] + 0.5 * square_norm(block.r, i)) - start
    # Written so that a NaN counts as divergent.
    valid = error > -math.inf and error <= settings.max_error
    acceptance = math.exp(min(-error, 0.0)) if valid else 0.0
    accepted = block.chance[i] < acceptance
    row = block.row[i]
    outcome.acceptance[number, row], outcome.energy_error[number, row] = acceptance, error
    outcome.accepted[number, row], outcome.divergent[number, row] = accepted, not valid
    return acceptance, accepted


@inlined
def _propose(block, chart, drawn, adaptation, settings, number, i):
    """Draw the momentum and step size of a row's transition, and the gradient of its prior."""
    step_size = adaptation.step_size[block.row[i]]
    block.chance[i] = _draw(block, drawn, settings, step_size, chart.dim, number, i)
    _prior_gradient(chart, block, i)


@kernel
def visit(
    block,
    documents,
    chart,
    state,
    drawn,
    temperature,
    factor,
    adaptation,
    settings,
    outcome,
    counts,
    offsets,
    first,
    end,
):
    """Move the chains of the blocks ``first:end`` by some transitions.

    Args:
        block: Work space.
        documents: :class:`Documents`.
        chart: :class:`Map` from z to the logits.
        state: :class:`State`, overwritten.
        drawn: :class:`Randomness`.
        temperature: Inverse temperature of the likelihood.
        factor: ``(num_docs, dim, dim)`` W of the chains' metric, or ``(1, dim, dim)`` for all
            documents; ``(1, 0, 0)`` for W = I.
        adaptation: :class:`Adaptation`, overwritten.
        settings: :class:`Settings`.
        outcome: :class:`Outcome`, overwritten.
        counts: :class:`Counts`, overwritten.
        offsets: Offsets of the blocks in the items, from :func:`divide`.
        first: First block.
        end: End of the blocks.
    """
    num_docs, cast = len(documents.lengths), block.z.dtype.type
    weight = cast(temperature)
    num_chains = len(state.log_prior) // max(1, num_docs)
    num_transitions = outcome.acceptance.shape[0]
    for b in range(first, end):
        num_rows = offsets[b + 1] - offsets[b]
        fill(block, documents, num_chains, chart.loc, offsets[b], offsets[b + 1])
        _start(block, state, num_rows)
        # Transition −1 only evaluates the states. The code of all functions is copied to where they
        # are called, so the evaluation stands here once.
        for number in range(-1 if settings.evaluate else 0, num_transitions):
            moves = number >= 0
            for i in range(num_rows):
                for k in range(0, block.z.shape[1], WIDTH):
                    store(block.z, (i, k), load(block.position, (i, k)))
                    store(block.g, (i, k), load(block.gradient, (i, k)))
                if moves:
                    _propose(block, chart, drawn, adaptation, settings, number, i)
                    _kick_and_drift(block, factor, num_docs, i, weight, cast(0.5), cast(1))
            num_steps = settings.num_steps if moves else 1
            for step in range(num_steps):
                last = step == num_steps - 1
                _evaluate(block, documents, chart, num_rows, last)
                kick, drift = (cast(0.5), cast(0)) if last else (cast(1), cast(1))
                for i in range(num_rows if moves else 0):
                    _kick_and_drift(block, factor, num_docs, i, weight, kick, drift)
            for i in range(num_rows):
                row, prior = block.row[i], _log_prior(chart, block.z, i)
                accepted = number < 0
                if moves:
                    chance, accepted = _judge(
                        block, prior, settings, outcome, temperature, number, i
                    )
                    step_size = _adapt(adaptation, settings, row, number, chance)
                    outcome.step_size[number, row] = step_size
                if accepted:
                    _keep(block, documents, counts, i, prior)
        _finish(block, state, num_rows)
