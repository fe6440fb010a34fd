"""Documents of float32 models that are solved in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.pairs import make_model
from support.problems import Problem, make_batch, random_problem

from torch_lntm.errors import NumericalError
from torch_lntm.guides import make_guide
from torch_lntm.kernels.mixture import probability_floor
from torch_lntm.latents import NormalSpace
from torch_lntm.latents.factor import LaplaceFactorSpace
from torch_lntm.latents.linalg import inverse_cholesky
from torch_lntm.models import TopicModel, ctm, iftm, lntm
from torch_lntm.posteriors import NormalPosterior
from torch_lntm.solvers.khan_bouchard import khan_bouchard
from torch_lntm.solvers.options import SolveOptions
from torch_lntm.solvers.precision import _exact, has_lost_words, needs_float64
from torch_lntm.solvers.taylor import taylor

NORMAL = ("taylor", "laplace", "blei-lafferty", "khan-bouchard")
ALL = pytest.mark.parametrize("name", [*NORMAL, "factor", "taylor-factor"])
SETTINGS = {"tolerance": 1e-3, "max_iterations": 1000}


def models(name: str, device: torch.device) -> tuple[TopicModel, TopicModel]:
    """A model in float32 and in float64. Guides with names ending in factor get a factor model."""
    if name.endswith("factor"):
        family = f"iftm(source='{'laplace' if name == 'factor' else 'gaussian'}')"
        single, double = (make_model(family, dtype=d).to(device) for d in ("float32", "float64"))
    else:
        problem = random_problem(diagonal=True)
        single, double = (problem.model(device, d) for d in (torch.float32, torch.float64))
    double.load_state_dict({k: v.double() for k, v in single.state_dict().items()})
    return single, double


def solve(name: str, model: TopicModel, counts: np.ndarray, **options: float) -> NormalPosterior:
    guide = make_guide(name.removesuffix("-factor"), model, **{**SETTINGS, **options})
    return guide.posterior(make_batch(counts, model.device, model.dtype))


def long_and_short() -> np.ndarray:
    """Documents of 10⁶ tokens between others, one of them of a single word."""
    rng = np.random.default_rng(0)
    lengths = (30, 1_000_000, 0, 3, 1_000_000)
    counts = np.stack([rng.multinomial(n, rng.dirichlet(np.ones(15))) for n in lengths])
    counts[4] = 1_000_000 * (np.arange(15) == 7)
    return counts.astype(float)


@pytest.mark.slow
@ALL
def test_a_long_document_of_a_float32_model_is_solved_in_float64(device, name) -> None:
    single, double = models(name, device)
    counts = long_and_short()
    # Tight tolerances, because in flat parts of the bound the remaining error depends on rounding.
    got, exact = (solve(name, model, counts, tolerance=1e-8) for model in (single, double))
    assert got.mean.dtype == got.covariance.dtype == torch.float32
    assert got.objective.dtype == torch.float64
    assert bool(got.converged.all())
    assert type(got.space) is type(solve(name, single, counts[:1]).space)
    assert got.space.dtype == torch.float32
    std = exact.variance.sqrt()
    for d in (1, 4):
        # In float32 the bound stands still where a round gains less than 0.3 nats: by
        # variational Bayes after 13 and 98 rounds of 37 and 106. Topics that differ by rounding
        # move the last round by up to 5.
        assert abs(int(got.iterations[d]) - int(exact.iterations[d])) <= 6
        # The rounding of the topics moves a mean by up to 0.015 of its spread. Variational Bayes
        # in float32 is off by 100 times its spread.
        distance = (got.mean[d] - exact.mean[d]).abs() / std[d]
        assert float(distance.max()) < 0.05
        torch.testing.assert_close(got.variance[d].double(), exact.variance[d], rtol=1e-4, atol=0.0)
        # The topics of the two models differ by their rounding, which counts once per token.
        assert float(got.objective[d]) == pytest.approx(float(exact.objective[d]), rel=1e-7)
    # The other documents have the results of a batch without the long ones.
    for d in (0, 2, 3):
        alone = solve(name, single, counts[d : d + 1], tolerance=1e-8)
        torch.testing.assert_close(got.mean[d], alone.mean[0], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(got.covariance[d], alone.covariance[0], rtol=1e-3, atol=1e-4)
    assert got.index.tolist() == [0, 1, 2, 3, 4]
    if name == "factor":
        for field in ("source_mean", "source_covariance"):
            found, expected = getattr(got, field), getattr(exact, field)
            torch.testing.assert_close(found.double(), expected, rtol=1e-2, atol=1e-3)
    assert bool(got.kl().isfinite().all())


def test_prior_means_stay_with_their_documents(device) -> None:
    problem = random_problem()
    model = problem.model(device, torch.float32)
    topics = model.topics.probs.detach()
    batch = make_batch(long_and_short(), device, torch.float32)
    plain = model.prior.space(batch)
    loc = plain.loc + torch.arange(5.0, device=device)[:, None]
    space = NormalSpace(loc, plain.tril)
    whole = taylor(batch, topics, space, SolveOptions(loc, **SETTINGS))
    assert torch.equal(whole.space.loc, loc)
    for d in range(5):
        row = torch.tensor([d], device=device)
        alone = taylor(
            batch.select(row), topics, space.select(row), SolveOptions(loc[row], **SETTINGS)
        )
        torch.testing.assert_close(whole.mean[d], alone.mean[0], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(whole.kl()[d], alone.kl()[0], rtol=1e-3, atol=1e-3)


def test_length_tolerance_and_prior_variance_decide_about_float64(device) -> None:
    counts = np.diag([100.0, 8000.0, 9000.0, 0.0, 100_000.0])
    eye = torch.eye(5, dtype=torch.float64, device=device)
    batch = make_batch(counts, device, torch.float32)

    def found(std: float, tolerance: float, dtype: torch.dtype = torch.float32) -> list[bool]:
        space = NormalSpace(torch.zeros(5, dtype=dtype, device=device), std * eye)
        return needs_float64(batch.to(dtype=dtype), space, tolerance).tolist()

    assert found(1.0, 1e-4) == [False, False, True, False, True]
    # Rounding below the tolerance does no harm.
    assert found(1.0, 1e-2) == [False, False, False, False, True]
    assert found(1.0, 1.0) == [False] * 5
    # Under a prior variance of 1e4 the matrices decide, at any tolerance.
    assert found(1e2, 1.0) == [True, True, True, False, True]
    assert found(1e2, 1e-4, torch.float64) == [False] * 5
    mixing = torch.full((5, 1), 7e1, device=device)
    space = LaplaceFactorSpace(torch.zeros(5, device=device), mixing, torch.ones(5, device=device))
    assert needs_float64(batch, space, 1.0).tolist() == [True, True, True, False, True]


def test_a_word_repeated_a_million_times_under_a_wide_prior(device) -> None:
    """Precisions with eigenvalues up to 1e10, whose small eigenvalues float32 loses."""
    rng = np.random.default_rng(0)
    rotation = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    covariance = rotation * np.logspace(-8, 4, 4) @ rotation.T
    topics = rng.dirichlet(np.ones(15), 5)
    counts = np.vstack([1e6 * np.eye(15)[:1], np.ones((1, 15))])
    problem = Problem(counts, topics, np.zeros(4), (covariance + covariance.T) / 2)
    single, double = (problem.model(device, t) for t in (torch.float32, torch.float64))
    for name in NORMAL:
        got, exact = solve(name, single, counts), solve(name, double, counts)
        assert got.converged.tolist() == exact.converged.tolist()
        torch.testing.assert_close(got.objective, exact.objective, rtol=1e-5, atol=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", NORMAL)
def test_distant_prior_means_and_the_largest_counts_are_solved(device, name) -> None:
    rng = np.random.default_rng(0)
    topics = torch.from_numpy(rng.dirichlet(np.ones(15), 5)).float()
    counts = rng.multinomial(1_000_000, rng.dirichlet(np.ones(15)), 2).astype(float)
    counts[1] = (2.0**31 - 1) * (np.arange(15) == 7)
    settings = {
        "loc": torch.tensor([-50.0, 50.0, -50.0, 50.0, -50.0]),
        "std": torch.logspace(-4, 2, 5),
        "topics": topics,
    }
    single, double = (
        lntm(5, 15, dtype=dtype, **settings).to(device) for dtype in ("float32", "float64")
    )
    got, exact = solve(name, single, counts), solve(name, double, counts)
    assert got.converged.tolist() == exact.converged.tolist()
    torch.testing.assert_close(got.objective, exact.objective, rtol=1e-6, atol=0.0)
    torch.testing.assert_close(got.mean.double(), exact.mean, rtol=1e-3, atol=1e-3)


# Factorisation.


@pytest.mark.slow
def test_khan_bouchard_recomputes_failed_precisions_in_float64(device) -> None:
    """The solver itself, without float64 for the whole document."""
    root = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 6)))[0]
    covariance = torch.from_numpy(root * np.logspace(-2, 5, 6) @ root.T)
    tril = torch.linalg.cholesky((covariance + covariance.mT) / 2).to(device)
    space = NormalSpace(torch.zeros(6, device=device), tril)
    batch = make_batch(np.full((1, 8), 4000.0), device, torch.float32)
    topics = torch.from_numpy(np.random.default_rng(1).dirichlet(np.ones(8), 6)).float().to(device)
    post = khan_bouchard.__wrapped__(  # type: ignore[attr-defined]
        batch, topics, space, SolveOptions(torch.zeros(1, 6, device=device), **SETTINGS)
    )
    assert bool(post.variance.isfinite().all())


def test_a_failed_float32_precision_is_recomputed_in_float64(device) -> None:
    factor = np.random.default_rng(0).normal(size=(60, 10))
    exact = torch.from_numpy(1e10 * factor @ factor.T + np.eye(60)).to(device)
    assert int(torch.linalg.cholesky_ex(exact.float().double()).info) != 0
    batch = torch.stack([torch.eye(60, dtype=torch.float64, device=device), exact])
    asked = []

    def recompute(rows: torch.Tensor) -> torch.Tensor:
        asked.append(rows.tolist())
        return batch[rows]

    inverse = inverse_cholesky(batch.float(), torch.tensor([7, 8], device=device), recompute)
    assert asked == [[1]]
    assert inverse.dtype == torch.float32
    torch.testing.assert_close(inverse[0], torch.eye(60, device=device))
    expected = torch.linalg.inv(torch.linalg.cholesky(exact))
    torch.testing.assert_close(inverse[1].double(), expected, rtol=1e-4, atol=1e-6)
    with pytest.raises(NumericalError, match="first at position 8") as caught:
        inverse_cholesky(batch.float(), torch.tensor([7, 8], device=device))
    assert caught.value.documents == (8,)


# Words of improbable topics only.


def divided(device: torch.device, gap: float, dtype: str, name: str = "taylor") -> TopicModel:
    """Two topics without a word in common, the first less probable by e^gap."""
    settings = {
        "loc": torch.tensor([-gap / 2, gap / 2]),
        "topics": torch.tensor([[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]]),
        "dtype": dtype,
    }
    if name.endswith("factor"):
        return iftm(2, 4, 1, source="gaussian", **settings).to(device)
    return ctm(2, 4, **settings).to(device)


@ALL
def test_a_topic_below_the_float32_floor_is_reached(device, name) -> None:
    # The last document is long too, so it needs float64 from the start.
    counts = np.array([[0.0, 0, 3, 0], [30, 20, 0, 0], [3, 2, 1, 1], [9000, 0, 9000, 0]])
    single, double = (divided(device, 80.0, t, name) for t in ("float32", "float64"))
    got, exact = (solve(name, m, counts, tolerance=1e-6) for m in (single, double))
    assert bool(got.converged.all())
    torch.testing.assert_close(got.theta_mode().double(), exact.theta_mode(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got.objective, exact.objective, rtol=1e-6, atol=1e-3)
    assert 0.1 < float(got.theta_mode()[1, 0]) < 0.5
    # The document alone gives the same result.
    part = solve(name, single, counts[:3], tolerance=1e-6)
    torch.testing.assert_close(part.theta_mode(), got.theta_mode()[:3], rtol=1e-4, atol=1e-5)


@ALL
def test_a_document_with_a_topic_below_the_float64_floor_has_not_converged(device, name) -> None:
    counts = np.array([[0.0, 0, 3, 0], [30, 20, 0, 0]])
    for dtype in ("float32", "float64"):
        post = solve(name, divided(device, 800.0, dtype, name), counts)
        assert post.converged.tolist() == [True, False]
        assert bool(post.objective.isfinite().all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_lost_words_are_marked(device, dtype) -> None:
    topics = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.5, 0.0]], dtype=dtype, device=device)
    # A word of the first topic, of both topics, and of no topic.
    batch = make_batch(np.eye(3), device, dtype)
    tiny = 0.1 * torch.finfo(dtype).tiny
    for small, expected in ((tiny, True), (1e-3, False)):
        weights = torch.tensor([[small, 1.0]], dtype=dtype, device=device).expand(3, -1)
        assert has_lost_words(batch, topics, weights).tolist() == [expected, False, False]
    other = torch.tensor([[1.0, tiny]], dtype=dtype, device=device).expand(3, -1)
    assert has_lost_words(batch, topics, other).tolist() == [False] * 3


def test_float32_zeros_become_float64_zeros_if_some_topic_has_the_word(device) -> None:
    floor, zero = probability_floor(torch.float32), probability_floor(torch.float64)
    # No topic has the last word.
    topics = torch.tensor([[0.5, 0.5, floor, floor], [floor, 0.3, 0.7, floor]], device=device)
    kept = float(topics[0, 3])
    expected = torch.tensor([[0.5, 0.5, zero, kept], [zero, 0.3, 0.7, kept]], dtype=torch.float64)
    torch.testing.assert_close(_exact(topics).cpu(), expected, rtol=1e-7, atol=0.0)
