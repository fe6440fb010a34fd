"""VB's E-step, the fit of a Dirichlet and second-order counts against independent references."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from oracles import dirichlet as oracle
from scipy.optimize import minimize
from scipy.special import digamma, gammaln, log_expit, logsumexp
from scipy.stats import kstest
from sklearn.decomposition import LatentDirichletAllocation
from support.problems import make_batch
from torch.distributions import Dirichlet, kl_divergence

from torch_lntm.errors import NumericalError
from torch_lntm.guides import make_guide
from torch_lntm.models import lda
from torch_lntm.noise import document_keys
from torch_lntm.posteriors.dirichlet import DirichletPosterior, expected_log_theta
from torch_lntm.solvers.concentration import (
    LARGEST_TOTAL_CONCENTRATION,
    SMALLEST_CONCENTRATION,
    fit_concentration,
)
from torch_lntm.solvers.options import SolveOptions
from torch_lntm.solvers.vb import dirichlet_bound, second_order_word_counts, vb

ALPHA = np.array([0.4, 1.5, 0.1, 0.8])


def problem(num_topics: int = 4, lengths: tuple[int, ...] = (40, 1, 0, 90, 7)):
    """Counts ``(num_docs, num_words)`` of documents of these lengths, and topics."""
    rng = np.random.default_rng(1)
    topics = rng.dirichlet(np.full(30, 0.3), num_topics)
    theta = rng.dirichlet(np.ones(num_topics), len(lengths))
    counts = [rng.multinomial(n, p @ topics) for n, p in zip(lengths, theta, strict=True)]
    return np.stack(counts).astype(float), topics


def solve(
    counts: np.ndarray,
    topics: np.ndarray,
    alpha: np.ndarray,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float64,
    *,
    tolerance: float = 1e-12,
    max_iterations: int = 20_000,
    start: np.ndarray | None = None,
) -> DirichletPosterior:
    num_docs, num_topics = len(counts), len(topics)
    equal = np.full((num_docs, num_topics), 1 / num_topics)
    return vb(
        make_batch(counts, device, dtype),
        torch.from_numpy(topics).to(device, dtype),
        torch.from_numpy(alpha).to(device, dtype),
        SolveOptions(
            torch.from_numpy(equal if start is None else start).to(device, dtype),
            tolerance,
            max_iterations,
        ),
    )


# Variational Bayes.


@pytest.mark.slow
def test_agrees_with_the_printed_updates(device) -> None:
    counts, topics = problem()
    post = solve(counts, topics, ALPHA, device)
    assert bool(post.converged.all())
    for d, document in enumerate(counts):
        start = np.full(4, (ALPHA.sum() + document.sum()) / 4)
        gamma, q = oracle.vb_updates(document, topics, ALPHA, start, 500)
        np.testing.assert_allclose(post.gamma[d].cpu(), gamma, atol=1e-8)
        bound = oracle.vb_bound(document, topics, ALPHA, q)
        assert float(post.objective[d]) == pytest.approx(bound, abs=1e-8)


@pytest.mark.parametrize("alpha", [0.05, 2.0])
def test_agrees_with_scikit_learn(device, alpha) -> None:
    counts, topics = problem(lengths=(40, 1, 90, 7))
    peer = LatentDirichletAllocation(
        4, doc_topic_prior=alpha, max_doc_update_iter=20_000, mean_change_tol=1e-10
    )
    # Topics of a fit would be exp(E log topics). The topics stand in for them.
    peer.components_ = peer.exp_dirichlet_component_ = topics
    peer.doc_topic_prior_, peer.n_features_in_ = alpha, topics.shape[1]
    gamma, _ = peer._e_step(counts, cal_sstats=False, random_init=False)
    post = solve(counts, topics, np.full(4, alpha), device)
    np.testing.assert_allclose(post.gamma.cpu(), gamma, atol=1e-4)
    np.testing.assert_allclose(post.mean.cpu(), peer.transform(counts), atol=1e-5)


@pytest.mark.parametrize("num_topics", [2, 3])
def test_bound_is_below_the_evidence(device, num_topics) -> None:
    counts, topics = problem(num_topics, (30, 1, 0, 8))
    alpha = np.array([0.7, 1.5, 0.9])[:num_topics]
    for max_iterations in (1, 3, 20_000):
        post = solve(counts, topics, alpha, device, max_iterations=max_iterations)
        for d, document in enumerate(counts):
            gap = oracle.log_evidence(document, topics, alpha) - float(post.objective[d])
            assert -1e-9 < gap < 3.0
            # One token: q(z) is exact but q(theta) is not its mixture. No token: the bound is
            # exact.
            assert (gap > 1e-3) == (document.sum() > 0)


@pytest.mark.slow
def test_bound_does_not_fall(device) -> None:
    counts, topics = problem(lengths=(40, 1, 0, 90, 7, 300, 20, 3))
    last = torch.full((8,), -torch.inf, dtype=torch.float64, device=device)
    for iterations in range(1, 60):
        post = solve(counts, topics, ALPHA, device, max_iterations=iterations)
        assert bool((post.iterations <= iterations).all())
        assert bool((post.objective >= last - 1e-10).all())
        last = post.objective


def test_long_steps_halve_the_updates_to_the_same_optimum(device, monkeypatch) -> None:
    counts, topics = problem(lengths=(60,) * 8)
    fast = solve(counts, topics, ALPHA, device)
    monkeypatch.setattr("torch_lntm.solvers.vb.LONG_STEP", 1.0)
    plain = solve(counts, topics, ALPHA, device)
    assert bool((fast.converged & plain.converged).all())
    torch.testing.assert_close(fast.gamma, plain.gamma, rtol=0, atol=1e-7)
    assert int(fast.iterations.sum()) < 0.7 * int(plain.iterations.sum())


def test_the_bound_holds_for_any_gamma(device) -> None:
    counts, topics = problem(2, (30, 1, 0, 8))
    alpha = np.array([0.7, 1.5])
    gamma = torch.tensor([[3.0, 1e-3], [2.0, 9.0], [0.7, 1.5], [40.0, 1.0]], dtype=torch.float64)
    bound = dirichlet_bound(
        make_batch(counts, device),
        torch.from_numpy(topics).to(device),
        torch.from_numpy(alpha).to(device),
        gamma.to(device),
    )
    for d, document in enumerate(counts):
        g = gamma[d].numpy()
        expectation = digamma(g) - digamma(g.sum())
        kl = (g - alpha) @ expectation + oracle.log_multivariate_beta(alpha)
        kl -= oracle.log_multivariate_beta(g)
        likelihood = document @ np.log(np.exp(expectation) @ topics)
        assert float(bound[d]) == pytest.approx(likelihood - kl, abs=1e-9)
        assert float(bound[d]) <= oracle.log_evidence(document, topics, alpha) + 1e-9


def test_unconverged_documents_are_marked(device) -> None:
    counts, topics = problem()
    post = solve(counts, topics, ALPHA, device, max_iterations=2)
    assert post.converged.tolist() == [False, False, True, False, False]
    assert post.iterations.tolist() == [2, 2, 2, 2, 2]
    done = solve(counts, topics, ALPHA, device, tolerance=1e-5)
    again = solve(counts, topics, ALPHA, device, tolerance=1e-4, start=done.mean.cpu().numpy())
    assert again.iterations.tolist() == [1] * 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("alpha", [1e-4, 1.0, 1e4])
def test_extreme_counts_and_concentrations_give_finite_results(device, dtype, alpha) -> None:
    counts, topics = problem(num_topics=50, lengths=(40, 1, 0, 7))
    counts = np.vstack([counts, 1e6 * counts[:1]])
    concentration = np.full(50, alpha)
    post = solve(counts, topics, concentration, device, dtype, tolerance=1e-5)
    assert post.gamma.dtype == post.objective.dtype == torch.float64
    assert bool(post.converged.all())
    assert bool((post.gamma >= 0.999 * alpha).all())
    total = torch.from_numpy(50 * alpha + counts.sum(1)).to(device)
    torch.testing.assert_close(post.gamma.sum(-1), total, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(post.gamma[2].cpu(), torch.full((50,), alpha).double())
    assert abs(float(post.objective[2])) < 1e-9
    exact = solve(counts, topics, concentration, device, tolerance=1e-5)
    torch.testing.assert_close(post.objective, exact.objective, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_word_of_a_vanished_topic_keeps_a_finite_bound(device, dtype) -> None:
    topics = np.array([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]])
    counts, alpha = np.array([[30.0, 1.0, 0.0]]), np.array([1e-4, 1e-4])
    start = np.array([[1.0, 0.0]])
    post = solve(counts, topics, alpha, device, dtype, start=start)
    expected = torch.tensor([[30.0001, 1.0001]], dtype=torch.float64, device=device)
    torch.testing.assert_close(post.gamma, expected, rtol=1e-6, atol=1e-6)
    evidence = oracle.log_multivariate_beta(expected[0].cpu().numpy()) + np.log(0.5)
    evidence -= oracle.log_multivariate_beta(alpha)
    assert float(post.objective[0]) == pytest.approx(evidence, abs=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("small", [0.1, 1e-3, 1e-8])
def test_the_default_start_reaches_topics_of_small_concentration(device, dtype, small) -> None:
    """At the prior mean the topic's weight exp Ψ(γ_k) would vanish at once, for good."""
    topics = np.array([[0.5, 0.4999, 5e-5, 5e-5], [1e-4, 1e-4, 0.5, 0.4998]])
    counts, alpha = np.array([[0.0, 0, 25, 25]]), np.array([1.0, small])
    model = lda(2, 4, concentration=alpha, topics=topics, dtype=dtype).to(device)
    batch = make_batch(counts, device, model.dtype)
    # Over the log odds of theta, in which its prior is exp(α_0 x − (Σα) softplus(x)) / 𝔅(α).
    x = np.linspace(-60, 60, 40_001)
    log_theta = np.stack([log_expit(x), log_expit(-x)], 1)
    log_joint = log_theta @ alpha + counts[0] @ np.log(np.exp(log_theta) @ topics).T
    evidence = logsumexp(log_joint) + np.log(x[1] - x[0])
    evidence += gammaln(alpha.sum()) - gammaln(alpha).sum()
    for name in ("vb", "ep"):
        post = make_guide(name, model).posterior(batch)
        assert bool(post.converged)
        assert float(post.mean[0, 1]) > 0.95
        assert float(post.objective) == pytest.approx(evidence, abs=0.1)


def test_a_start_at_zero_for_a_topic_is_equal_in_every_dtype(device) -> None:
    topics = np.array([[0.5, 0.4999, 5e-5, 5e-5], [1e-4, 1e-4, 0.5, 0.4998]])
    counts, alpha = np.array([[0.0, 0, 5e5, 5e5], [20, 0, 3, 0]]), np.array([1.0, 1e-6])
    start = np.array([[1.0, 1e-12], [1.0, 0.0]])
    single, double = (
        solve(counts, topics, alpha, device, dtype, start=start, tolerance=1e-6)
        for dtype in (torch.float32, torch.float64)
    )
    torch.testing.assert_close(single.objective, double.objective, rtol=1e-4, atol=1e-3)


def test_an_empty_batch_has_an_empty_posterior(device) -> None:
    post = solve(np.zeros((0, 30)), problem()[1], ALPHA, device)
    assert post.gamma.shape == (0, 4)
    assert post.theta_samples(3).shape == (3, 0, 4)


def test_failures_name_the_document(device) -> None:
    counts, topics = problem()
    topics[:, counts[3] > 0] = np.nan
    topics[:, counts[0] > 0] = 0.1
    with pytest.raises(NumericalError, match="variational Bayes") as caught:
        solve(counts, topics, ALPHA, device, max_iterations=5)
    assert 3 in caught.value.documents
    assert 0 not in caught.value.documents


# The concentration.


def objective(alpha: np.ndarray, target: np.ndarray) -> float:
    return float(gammaln(alpha.sum()) - gammaln(alpha).sum() + (alpha - 1) @ target)


def gradient(alpha: np.ndarray, target: np.ndarray) -> np.ndarray:
    return digamma(alpha.sum()) - digamma(alpha) + target


def fit(target: np.ndarray, start: float = 1.0, symmetric: bool = False) -> np.ndarray:
    first = torch.full((len(target),), start, dtype=torch.float64)
    return fit_concentration(torch.from_numpy(target), first, symmetric=symmetric).numpy()


@pytest.mark.parametrize("start", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("scale", [0.02, 1.0, 300.0])
def test_concentration_agrees_with_scipy(scale, start) -> None:
    truth = scale * np.array([0.3, 2.0, 0.05, 1.0])
    theta = np.random.default_rng(0).gamma(truth + 1, size=(400, 4))
    target = np.log(theta / theta.sum(1, keepdims=True)).mean(0)
    target = 0.5 * target + 0.5 * (digamma(truth) - digamma(truth.sum()))
    found = minimize(
        lambda u: -objective(np.exp(u), target),
        np.log(truth),
        jac=lambda u: -gradient(np.exp(u), target) * np.exp(u),
        options={"gtol": 1e-9},
    )
    np.testing.assert_allclose(fit(target, start), np.exp(found.x), rtol=1e-4)
    # The objective alone would leave gradients up to 1e-10.
    assert np.abs(gradient(fit(target, start), target)).max() < 1e-13 * np.abs(target).max()


def test_symmetric_concentration_agrees_with_scipy() -> None:
    target = np.array([-9.0, -1.5, -3.0])
    found = minimize(lambda u: -objective(np.full(3, np.exp(u[0])), target), [0.0], tol=1e-12)
    alpha = fit(target, symmetric=True)
    np.testing.assert_allclose(alpha, np.exp(found.x[0]), rtol=1e-5)
    assert objective(alpha, target) < objective(fit(target), target)


@pytest.mark.parametrize("total", [1e-2, 1.0, 1e4])
def test_concentration_is_recovered_from_its_own_expectation(total) -> None:
    truth = total * np.random.default_rng(2).dirichlet(np.full(200, 5.0))
    target = digamma(truth) - digamma(truth.sum())
    for start in (1e-6, 1.0, 1e3):
        np.testing.assert_allclose(fit(target, start), truth, rtol=1e-6)


def test_extreme_concentrations_stay_within_their_limits() -> None:
    vanishing = fit(np.array([-1e4, -0.7, -0.7]))
    assert vanishing[0] == pytest.approx(1e-4, rel=1e-2)
    assert np.abs(gradient(vanishing, np.array([-1e4, -0.7, -0.7]))).max() < 1e-5
    hopeless = fit(np.array([-1e300, -0.7, -0.7]))
    assert hopeless[0] == SMALLEST_CONCENTRATION
    same = np.array([0.7, 0.2, 0.1])
    alpha = fit(np.log(same))
    assert alpha.sum() == pytest.approx(LARGEST_TOTAL_CONCENTRATION, rel=1e-6)
    np.testing.assert_allclose(alpha / alpha.sum(), same, atol=1e-4)
    uniform = fit(np.full(3, -np.log(3)), symmetric=True)
    np.testing.assert_allclose(uniform, LARGEST_TOTAL_CONCENTRATION / 3, rtol=1e-6)
    np.testing.assert_array_equal(fit(np.zeros(1)), [1.0])


# Second-order word counts.


def second_order(gamma, topics, counts, device="cpu") -> np.ndarray:
    tensors = [torch.from_numpy(x).to(device) for x in (gamma, topics)]
    return second_order_word_counts(*tensors, make_batch(counts, device)).cpu().numpy()


def test_second_order_counts_agree_with_the_printed_sums(device, monkeypatch) -> None:
    counts, topics = problem()
    gamma = ALPHA + np.random.default_rng(3).gamma(1.0, size=(5, 4)) * counts.sum(1)[:, None]
    documents = zip(counts, gamma, strict=True)
    expected = sum(oracle.second_order_counts(c, topics, g) for c, g in documents)
    np.testing.assert_allclose(second_order(gamma, topics, counts, device), expected, rtol=1e-12)
    for max_elements in (1, 16 * 7, 16 * 30):
        monkeypatch.setattr("torch_lntm.solvers.vb.MAX_ELEMENTS", max_elements)
        chunked = second_order(gamma, topics, counts, device)
        np.testing.assert_allclose(chunked, expected, rtol=1e-12)


def test_the_error_of_second_order_counts_has_the_stated_order() -> None:
    word = np.array([[0.5], [0.1], [0.3]])
    shape = np.array([0.5, 0.3, 0.2])
    errors, plug_in_errors, sums = [], [], []
    for total in (20.0, 40.0, 80.0):
        gamma = total * shape
        exact = oracle.expected_responsibilities(gamma, word[:, 0])
        assert exact.sum() == pytest.approx(1.0, abs=1e-6)
        counts = second_order(gamma[None], word, np.ones((1, 1)))[:, 0]
        plug_in = word[:, 0] * np.exp(digamma(gamma))
        errors.append(np.abs(counts - exact).max())
        plug_in_errors.append(np.abs(plug_in / plug_in.sum() - exact).max())
        sums.append(abs(counts.sum() - 1))
    # The error falls as 1/γ₀²: twice γ₀ divides it by about 4. The plug-in's error halves.
    for values, power in ((errors, 2), (sums, 2), (plug_in_errors, 1)):
        rates = np.log2(np.array(values[:-1]) / values[1:])
        np.testing.assert_allclose(rates, power, atol=0.25)


def test_second_order_counts_of_impossible_words_and_empty_batches(device) -> None:
    topics = np.array([[0.0, 1e-200, 1.0], [0.0, 2e-200, 0.0]])
    gamma = np.array([[3.0, 2.0], [1e-4, 1e-4]])
    counts = np.array([[5.0, 1.0, 2.0], [0.0, 0.0, 4.0]])
    found = second_order(gamma, topics, counts, device)
    np.testing.assert_array_equal(found[:, 0], 0.0)
    assert found[:, 1].sum() == pytest.approx(1.0, abs=0.01)
    assert np.isfinite(found).all()
    assert found[1, 2] == 0.0
    np.testing.assert_array_equal(second_order(gamma, topics, 0 * counts, device), 0.0)


# The posterior.


def posterior(
    gamma: list[list[float]], device: torch.device | str = "cpu", first: int = 0
) -> DirichletPosterior:
    """The posterior of the documents from position ``first`` on."""
    num_docs = len(gamma)
    return DirichletPosterior(
        concentration=torch.tensor([0.4, 1.5, 0.1], dtype=torch.float64, device=device),
        gamma=torch.tensor(gamma, dtype=torch.float64, device=device),
        index=torch.arange(first, first + num_docs, device=device),
        converged=torch.ones(num_docs, dtype=torch.bool, device=device),
        iterations=torch.ones(num_docs, dtype=torch.int64, device=device),
        objective=torch.zeros(num_docs, dtype=torch.float64, device=device),
    )


def test_posterior_agrees_with_torch(device) -> None:
    post = posterior([[3.0, 0.2, 1.0], [0.4, 1.5, 0.1], [1e3, 1e5, 2e-3]], device)
    q = Dirichlet(post.gamma)
    prior = Dirichlet(post.concentration)
    torch.testing.assert_close(post.kl(), kl_divergence(q, prior), rtol=1e-9, atol=1e-9)
    assert float(post.kl()[1]) == pytest.approx(0.0, abs=1e-12)
    torch.testing.assert_close(post.mean, q.mean)
    torch.testing.assert_close(post.theta_mean(), q.mean)
    torch.testing.assert_close(post.theta_mode(), q.mean)
    torch.testing.assert_close(post.variance, q.variance)
    torch.testing.assert_close(post.covariance.diagonal(dim1=1, dim2=2), q.variance)
    torch.testing.assert_close(
        post.covariance.sum(-1), torch.zeros_like(q.mean), rtol=0, atol=1e-12
    )
    total = digamma(post.gamma.cpu().numpy()) - digamma(post.gamma.sum(1).cpu().numpy())[:, None]
    np.testing.assert_allclose(post.expected_log_theta().cpu(), total, rtol=1e-9)
    np.testing.assert_allclose(expected_log_theta(post.gamma).cpu(), total, rtol=1e-9)
    assert post.num_docs == 3


def test_draws_have_the_posteriors_moments(device) -> None:
    post = posterior([[3.0, 0.2, 1.0], [40.0, 1.5, 0.1]], device)
    num_draws = 20_000
    draws = post.theta_samples(num_draws, seed=5)
    assert draws.shape == (num_draws, 2, 3)
    torch.testing.assert_close(draws.sum(-1), torch.ones_like(draws[..., 0]))
    error = (post.variance / num_draws).sqrt()
    # 6 means at 6 standard errors: false-failure rate 1e-8.
    assert bool(((draws.mean(0) - post.mean).abs() < 6 * error).all())
    centred = draws - post.mean
    outer = centred[..., :, None] * centred[..., None, :]
    error = outer.std(0) / num_draws**0.5
    assert bool(((outer.mean(0) - post.covariance).abs() < 6 * error).all())
    lower, upper = post.theta_interval(0.8, num_draws=4000, seed=1)
    inside = ((draws > lower) & (draws < upper)).double().mean(0)
    assert bool(((inside - 0.8).abs() < 6 * 0.009).all())


def test_draws_depend_only_on_the_document_and_the_key(device) -> None:
    post = posterior([[3.0, 0.2, 1.0], [40.0, 1.5, 0.1]], device)
    alone = posterior([[40.0, 1.5, 0.1]], device, first=1)
    key = document_keys(3, post.index, 5)
    draws = post.draw(key)
    assert draws.shape == (5, 2, 3)
    assert torch.equal(draws[:, 1:], alone.draw(key[:, 1:]))
    assert not torch.equal(draws, post.draw(document_keys(4, post.index, 5)))
    assert torch.equal(post.theta_samples(5, seed=3)[:, 1], alone.theta_samples(5, seed=3)[:, 0])


def test_draws_of_tiny_parameters_are_corners() -> None:
    draws = posterior([[2e-4, 1e-4, 1e-4]]).theta_samples(4000)[:, 0]
    assert bool(torch.isfinite(draws).all())
    torch.testing.assert_close(draws.sum(-1), torch.ones_like(draws[:, 0]))
    assert float((draws.amax(-1) > 0.999).double().mean()) > 0.99
    share = (draws > 0.5).double().mean(0)
    np.testing.assert_allclose(share, [0.5, 0.25, 0.25], atol=6 * 0.5 / 4000**0.5)
    # log theta is far below the range of a plain gamma variate, and still has its distribution.
    small = posterior([[0.05, 1.0, 1.0]]).theta_samples(4000)[:, 0, 0].numpy()
    assert kstest(small, "beta", args=(0.05, 2.0)).pvalue > 1e-6
