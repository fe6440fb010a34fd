"""Expectation propagation against quadrature and against its equations as printed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from oracles import dirichlet as oracle
from oracles.dirichlet import log_multivariate_beta as log_beta
from scipy.special import digamma
from support.problems import make_batch

from torch_lntm.errors import NumericalError
from torch_lntm.posteriors import DirichletPosterior
from torch_lntm.solvers.ep import ep
from torch_lntm.solvers.options import SolveOptions

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def solve(
    counts: np.ndarray,
    topics: np.ndarray,
    alpha: np.ndarray,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float64,
    init: torch.Tensor | None = None,
    tolerance: float = 0.0,
    max_iterations: int = 3000,
) -> DirichletPosterior:
    """EP posteriors, by default as tight as the dtype allows."""
    batch = make_batch(np.atleast_2d(counts), device, dtype)
    start = batch.counts.new_zeros(batch.nnz, len(topics)) if init is None else init
    return ep(
        batch,
        torch.from_numpy(topics).to(device, dtype),
        torch.from_numpy(alpha).to(device),
        SolveOptions(start, tolerance, max_iterations),
    )


def random_documents(
    num_topics: int, num_docs: int, seed: int, num_words: int = 8
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts, topics and α of documents of 1 to 40 tokens."""
    rng = np.random.default_rng(seed)
    topics = rng.dirichlet(np.full(num_words, 0.5), num_topics)
    alpha = rng.uniform(0.3, 2.0, num_topics)
    theta = rng.dirichlet(alpha, num_docs)
    lengths = rng.integers(1, 41, num_docs)
    counts = [rng.multinomial(n, p @ topics) for n, p in zip(lengths, theta, strict=True)]
    return np.array(counts, dtype=float), topics, alpha


# Independent references, one document at a time.


def printed_moments(g: np.ndarray, p: np.ndarray) -> np.ndarray:
    """γ' of eqs 19 and 23–25, term by term."""
    z = (p * g).sum() / g.sum()
    m = g / g.sum() * (p + (p * g).sum()) / (1 + g.sum()) / z
    m2 = g / g.sum() * (g + 1) / (g.sum() + 1) * (2 * p + (p * g).sum()) / (2 + g.sum()) / z
    return (m - m2).sum() / (m2 - m**2).sum() * m


def printed_ep(
    counts: np.ndarray, topics: np.ndarray, alpha: np.ndarray, passes: int
) -> tuple[np.ndarray, np.ndarray, float]:
    """γ, β and the evidence after some passes of eqs 16–22 with the step 1/n_w; s_w as stored.

    The paper leaves the order of the words open; here the most frequent come first.
    """
    gamma = alpha.copy()
    beta, log_s = np.zeros(topics.T.shape), np.zeros(len(counts))
    order = sorted(np.nonzero(counts)[0], key=lambda w: -counts[w])
    for _ in range(passes):
        for w in order:
            cavity = gamma - beta[w]
            if (cavity <= 0).any():
                continue
            matched = printed_moments(cavity, topics[:, w])
            mu = 1 / counts[w]
            new = mu * (matched - cavity) + (1 - mu) * beta[w]
            gamma, beta[w] = gamma + counts[w] * (new - beta[w]), new
            z = (topics[:, w] * cavity).sum() / cavity.sum()
            log_s[w] = np.log(z) + log_beta(cavity) - log_beta(matched)
    return (
        gamma,
        beta,
        log_beta(gamma) - log_beta(alpha) + float(counts @ log_s),
    )


def vb_bound(counts: np.ndarray, topics: np.ndarray, alpha: np.ndarray) -> float:
    """The bound of eqs 8–9 at the fixed point of eqs 10–11."""
    start = alpha + counts.sum() / len(alpha)
    _, q = oracle.vb_updates(counts, topics, alpha, start, 500)
    return oracle.vb_bound(counts, topics, alpha, q)


# Results.


def test_one_token_is_exact(device) -> None:
    topics = np.random.default_rng(0).dirichlet(np.ones(6), 4)
    alpha = np.array([0.2, 1.0, 3.0, 0.7])
    post = solve(np.eye(6), topics, alpha, device)
    mean = alpha / alpha.sum()
    np.testing.assert_allclose(post.objective.cpu(), np.log(mean @ topics), rtol=1e-12)
    weights = topics.T * mean / (mean @ topics)[:, None]
    expected = (alpha + weights) / (alpha.sum() + 1)
    np.testing.assert_allclose(post.mean.cpu(), expected, rtol=1e-12)
    # The summed variance of the mixture of Dirichlet(α + e_k) is exact too.
    second = np.array(
        [
            sum(
                w * ((alpha + e) * (alpha + e + 1)).sum() / (alpha.sum() + 1) / (alpha.sum() + 2)
                for w, e in zip(row, np.eye(4), strict=True)
            )
            for row in weights
        ]
    )
    spread = second - (expected**2).sum(1)
    np.testing.assert_allclose(post.variance.sum(-1).cpu(), spread, rtol=1e-10)


def test_equal_topics_are_exact(device) -> None:
    word = np.random.default_rng(1).dirichlet(np.ones(5))
    alpha, counts = np.array([0.1, 2.0, 0.5]), np.array([3.0, 0, 1, 12, 1])
    post = solve(counts, np.tile(word, (3, 1)), alpha, device)
    np.testing.assert_allclose(post.objective.cpu(), [counts @ np.log(word)], rtol=1e-12)
    np.testing.assert_allclose(post.gamma.cpu()[0], alpha, rtol=1e-10)
    assert int(post.iterations) == 1


def test_topics_without_common_words_are_exact(device) -> None:
    # Every term is then a power of a single θ_k, and the posterior is a Dirichlet.
    counts, alpha = np.array([3.0, 1, 0.5, 7.3]), np.array([0.8, 1.5])
    topics = np.array([[0.4, 0, 0.6, 0], [0, 0.9, 0, 0.1]])
    post = solve(counts, topics, alpha, device)
    gamma = alpha + (topics > 0) @ counts
    np.testing.assert_allclose(post.gamma.cpu()[0], gamma, rtol=1e-9)
    truth = log_beta(gamma) - log_beta(alpha) + counts @ np.log(topics.max(0))
    np.testing.assert_allclose(post.objective.cpu(), [truth], rtol=1e-9)
    assert bool(post.converged.all())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_topics", "typical", "worst", "mean"), [(2, 0.005, 0.1, 0.03), (3, 0.05, 0.4, 0.06)]
)
def test_evidence_and_mean_against_quadrature(device, num_topics, typical, worst, mean) -> None:
    counts, topics, alpha = random_documents(num_topics, 20, seed=num_topics)
    post = solve(counts, topics, alpha, device)
    assert bool(post.converged.all())
    log_evidence = np.array([oracle.log_evidence(row, topics, alpha) for row in counts])
    means = [oracle.posterior_mean(row, topics, alpha) for row in counts]
    errors = np.abs(post.objective.cpu().numpy() - log_evidence)
    gaps = log_evidence - [vb_bound(row, topics, alpha) for row in counts]
    assert (gaps > -1e-9).all()
    assert np.median(errors) < typical
    assert errors.max() < worst
    assert np.median(gaps) > 10 * np.median(errors)
    assert (gaps > errors)[counts.sum(1) > 1].mean() > 0.9
    np.testing.assert_allclose(post.mean.cpu(), means, atol=mean)


@pytest.mark.slow
def test_agrees_with_the_equations_as_printed(device) -> None:
    counts, topics, alpha = random_documents(5, 12, seed=0)
    batch = make_batch(counts)
    # With counts of 1 and 2 the steps agree too, and so does every pass.
    few = np.minimum(counts, 2)
    for passes in (1, 3):
        post = solve(few, topics, alpha, device, max_iterations=passes)
        for d, row in enumerate(few):
            gamma, beta, _ = printed_ep(row, topics, alpha, passes)
            np.testing.assert_allclose(post.gamma.cpu()[d], gamma, atol=1e-10)
            sites = post.sites.cpu()[batch.row_offsets[d] : batch.row_offsets[d + 1]]
            np.testing.assert_allclose(sites, beta[row > 0], atol=1e-10)
    post = solve(counts, topics, alpha, device)
    assert bool(post.converged.all())
    for d, row in enumerate(counts):
        gamma, _, evidence = printed_ep(row, topics, alpha, 600)
        np.testing.assert_allclose(post.gamma.cpu()[d], gamma, atol=1e-8)
        assert float(post.objective[d]) == pytest.approx(evidence, abs=1e-8)


@DTYPES
def test_moments_match_at_every_word(device, dtype) -> None:
    counts, topics, alpha = random_documents(4, 20, seed=4)
    counts[0] *= 3.5
    post = solve(counts, topics, alpha, device, dtype)
    assert bool(post.converged.all())
    assert post.gamma.dtype == post.objective.dtype == torch.float64
    assert post.sites.dtype == dtype
    gamma, sites = post.gamma.cpu().numpy(), post.sites.double().cpu().numpy()
    tolerance = 1e-3 if dtype == torch.float32 else 1e-10
    rows, columns = np.nonzero(counts)
    for d, v, site in zip(rows, columns, sites, strict=True):
        matched = printed_moments(gamma[d] - site, topics[:, v])
        np.testing.assert_allclose(matched, gamma[d], rtol=tolerance)
    total = np.tile(alpha, (len(counts), 1))
    np.add.at(total, rows, counts[rows, columns][:, None] * sites)
    np.testing.assert_allclose(gamma, total, rtol=1e-12)


# Difficult documents.


def skipping_document() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A document with small α and sharp topics, in which the printed algorithm skips words."""
    rng = np.random.default_rng(0)
    topics = rng.dirichlet(np.full(60, 0.05), 12) + 1e-6
    topics /= topics.sum(1, keepdims=True)
    theta = rng.dirichlet(np.full(12, 0.3))
    return rng.multinomial(60, theta @ topics).astype(float), topics, np.full(12, 0.05)


@pytest.mark.slow
def test_words_with_a_nonpositive_cavity_are_skipped(device) -> None:
    counts, topics, alpha = skipping_document()
    few = np.minimum(counts, 2)
    gamma, beta, _ = printed_ep(few, topics, alpha, 1)
    assert (gamma - beta[few > 0] <= 0).any()
    # After a single pass, the evidence is finite and the document has not converged at any
    # tolerance.
    post = solve(few, topics, alpha, device, tolerance=1e9, max_iterations=1)
    np.testing.assert_allclose(post.gamma.cpu()[0], gamma, atol=1e-10)
    assert bool(torch.isfinite(post.objective).all())
    assert not bool(post.converged.any())
    # The next pass skips them, and then draws the document half way back to its prior.
    after, beta, _ = printed_ep(few, topics, alpha, 2)
    half = (alpha + after) / 2
    second = solve(few, topics, alpha, device, max_iterations=2)
    np.testing.assert_allclose(second.gamma.cpu()[0], half, atol=1e-10)
    # A start whose β are just too large at a single word. Half of them would be valid, but the
    # document has not converged.
    lowest = float((post.gamma[0] - post.sites).min())
    scale = 1.01 * alpha[0] / (alpha[0] - lowest)
    once = solve(
        few, topics, alpha, device, init=scale * post.sites, tolerance=1e9, max_iterations=1
    )
    assert bool((once.gamma[0] - once.sites > 0).all())
    assert not bool(once.converged.any())
    # With enough passes, EP reaches a fixed point without skipped words.
    post = solve(counts, topics, alpha, device)
    assert bool(post.converged.all())
    cavities = post.gamma[0] - post.sites
    assert bool((cavities > 0).all())
    for v, cavity in zip(np.nonzero(counts)[0], cavities.cpu().numpy(), strict=True):
        matched = printed_moments(cavity, topics[:, v])
        np.testing.assert_allclose(matched, post.gamma.cpu()[0], rtol=1e-6)


def test_skipped_words_enter_the_evidence_by_the_variational_term(device) -> None:
    # β with γ − β < 0 at both words, and no pass: all terms of the evidence are variational.
    counts, topics = np.array([1.0, 1.0]), np.array([[0.7, 0.3], [0.4, 0.6]])
    alpha = np.array([1.0, 1.0])
    sites = torch.tensor([[2.5, -1.6], [-1.6, 2.5]], dtype=torch.float64, device=device)
    post = solve(counts, topics, alpha, device, init=sites, max_iterations=0)
    gamma = np.array([1.9, 1.9])
    expected = digamma(gamma) - digamma(gamma.sum())
    inner = np.log(topics.T @ np.exp(expected)).sum() + (alpha - gamma) @ expected
    truth = inner + log_beta(gamma) - log_beta(alpha)
    assert float(post.objective) == pytest.approx(truth, abs=1e-12)
    assert not bool(post.converged)


def test_warm_start(device) -> None:
    counts, topics, alpha = random_documents(4, 15, seed=5)
    first = solve(counts, topics, alpha, device)
    kept = first.sites.clone()
    again = solve(counts, topics, alpha, device, init=first.sites, tolerance=1e-10)
    assert torch.equal(first.sites, kept)
    assert bool((again.iterations == 1).all())
    torch.testing.assert_close(again.gamma, first.gamma, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(again.objective, first.objective, rtol=1e-10, atol=1e-10)
    # Under a smaller α some γ = α + Σ n β are not positive. These documents start from zeros.
    smaller = alpha * 0.02
    cold = solve(counts, topics, smaller, device, max_iterations=1)
    warm = solve(counts, topics, smaller, device, init=first.sites, max_iterations=1)
    afresh = ((first.gamma.cpu() - torch.from_numpy(alpha - smaller)) <= 0).any(-1)
    assert bool(afresh.any())
    assert not bool(afresh.all())
    same = (warm.gamma == cold.gamma).all(-1).cpu()
    assert torch.equal(same, afresh)


@pytest.mark.slow
def test_float32_is_close_to_float64(device) -> None:
    counts, topics, alpha = random_documents(6, 30, seed=7)
    topics = topics * 0.999 + 0.001 / topics.shape[1]
    counts[0] *= 10.0
    single = solve(counts, topics, alpha, device, torch.float32, tolerance=1e-5)
    double = solve(counts, topics, alpha, device)
    assert bool(single.converged.all())
    torch.testing.assert_close(single.mean, double.mean, rtol=0.0, atol=3e-5)
    torch.testing.assert_close(single.objective, double.objective, rtol=0.0, atol=3e-4)


@pytest.mark.slow
@DTYPES
def test_extreme_counts_and_concentrations_give_finite_results(device, dtype) -> None:
    rng = np.random.default_rng(8)
    num_topics, num_words = 200, 400
    topics = rng.dirichlet(np.full(num_words, 0.05), num_topics)
    topics[:, 0] = 0.0  # impossible
    counts = np.zeros((5, num_words))
    counts[1, 3] = 1e4
    counts[2, 0] = 2.0
    counts[3] = rng.multinomial(5000, topics[:3].mean(0))
    counts[4, 1:] = 0.5
    alpha = np.full(num_topics, 0.02)
    post = solve(counts, topics, alpha, device, dtype, tolerance=1e-4, max_iterations=8)
    for values in (post.gamma, post.objective, post.sites):
        assert bool(torch.isfinite(values).all())
    assert bool((post.gamma > 0).all())
    assert bool(post.converged[0])
    np.testing.assert_array_equal(post.gamma.cpu()[0], alpha)
    assert float(post.objective[0]) == 0.0
    # The impossible word carries no information on theta, and costs a finite number of nats.
    np.testing.assert_allclose(post.gamma.cpu()[2], alpha, rtol=1e-4)
    assert float(post.objective[2]) < -100.0


def test_float32_converges_near_corners(device) -> None:
    # Nearly all of γ is at one topic, in some documents the first and in others the second.
    rng = np.random.default_rng(9)
    topics = 0.99 * rng.dirichlet(np.full(30, 0.1), 2) + 0.01 / 30
    counts = np.array([rng.multinomial(300, topics[k]) for k in (0, 1, 0, 1, 0, 1)], dtype=float)
    alpha = np.full(2, 0.01)
    single = solve(counts, topics, alpha, device, torch.float32, tolerance=1e-5, max_iterations=100)
    double = solve(counts, topics, alpha, device, tolerance=1e-12, max_iterations=200)
    assert bool(single.converged.all())
    assert bool(double.converged.all())
    total = double.gamma.sum(-1)
    torch.testing.assert_close(single.gamma.sum(-1), total, rtol=1e-4, atol=0.0)


@pytest.mark.parametrize(
    ("count", "scale", "limit"),
    [
        (0.5, 1.0, None),
        (2.0, 1.0, None),
        (4.0, 1.0, None),
        (50.0, 1.0, "half"),
        (50.0, 0.02, "one"),
    ],
)
def test_steps_follow_the_stated_rule(device, count, scale, limit) -> None:
    # The step is half of the way for all copies. It is shortened until no γ_k falls below half its
    # value, but at least as long as the move to γ'.
    alpha, word = scale * np.array([0.5, 0.5, 1.0]), np.array([0.6, 0.4, 0.03])
    topics = np.stack([word, 1.0 - word], 1)
    post = solve(np.array([count, 0.0]), topics, alpha, device, max_iterations=1)
    move = printed_moments(alpha, word) - alpha
    step, longest = max(min(count, 1.0), count / 2), 0.5 / (-move / alpha).max()
    assert limit == (None if longest > step else "half" if longest > 1.0 else "one")
    step = min(step, max(longest, 1.0))
    np.testing.assert_allclose(post.gamma.cpu()[0], alpha + step * move, rtol=1e-11)
    np.testing.assert_allclose(post.sites.cpu()[0], step / count * move, rtol=1e-11)


def test_huge_counts_converge(device) -> None:
    topics = np.array([[0.7, 0.3], [0.1, 0.9]])
    counts, alpha = np.array([[1e4, 2e4]]), np.array([1.0, 1.0])
    post = solve(counts, topics, alpha, device, tolerance=1e-8, max_iterations=200)
    assert bool(post.converged)
    # θ is known to 1e-2; its mean is where the word has its frequency, 0.1 + 0.6 θ = 1/3.
    assert float(post.mean[0, 0]) == pytest.approx((1 / 3 - 0.1) / 0.6, abs=1e-3)


@pytest.mark.parametrize(
    ("alpha", "word"),
    # With the largest topic first, and with another topic first.
    [([3000.0, 1e-7], [0.4, 0.5]), ([1e-7, 3000.0, 2e-7], [0.5, 0.4, 0.7])],
)
def test_small_concentrations_do_not_cancel(device, alpha, word) -> None:
    # γ' differs from γ by parts in 1e12 here; eq. 25 as printed loses them.
    mpmath = pytest.importorskip("mpmath")
    alpha, word = np.array(alpha), np.array(word)
    topics = np.stack([1.0 - word, word], 1)
    post = solve(np.array([0.0, 1.0]), topics, alpha, device, max_iterations=1)
    mpmath.mp.dps = 60
    g, p = [mpmath.mpf(a) for a in alpha], [mpmath.mpf(b) for b in word]
    total, joint = sum(g), sum(a * b for a, b in zip(p, g, strict=True))
    m = [a * (b + joint) / joint / (1 + total) for a, b in zip(g, p, strict=True)]
    m2 = [
        a * (a + 1) * (2 * b + joint) / joint / (total + 1) / (total + 2)
        for a, b in zip(g, p, strict=True)
    ]
    scale = (sum(m) - sum(m2)) / (sum(m2) - sum(a * a for a in m))
    site = [float(scale * a - b) for a, b in zip(m, g, strict=True)]
    np.testing.assert_allclose(post.sites.cpu()[0], site, rtol=1e-11)
    printed = printed_moments(alpha, word) - alpha
    assert np.abs(printed / site - 1).max() > 1e-6


def test_failed_documents_are_named(device) -> None:
    topics = np.array([[0.5, 0.5], [np.nan, 0.5]])
    counts = np.array([[0.0, 1.0], [1.0, 0.0]])
    with pytest.raises(NumericalError, match="1 document") as info:
        solve(counts, topics, np.ones(2), device, max_iterations=3)
    assert info.value.documents == (1,)
