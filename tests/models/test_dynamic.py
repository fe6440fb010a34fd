"""Topics whose words move with ordered periods."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
import scipy.stats
import torch
from scipy.special import log_softmax

import torch_lntm as lntm
from tests.support.fits import break_at
from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError, CorpusError
from torch_lntm.inference import VariationalEM
from torch_lntm.models import DirichletTopics, DynamicTopics, Keywords, Periods
from torch_lntm.solvers import walk_evidence
from torch_lntm.solvers.walks import WalkHessian

NUM_TOPICS, NUM_WORDS = 3, 12
POSITIONS = (2000, 2001, 2003, 2004)
PERIODS = Periods("year", POSITIONS, tuple(map(float, POSITIONS)), (0.3, 0.2, 0.1, 0.4))
ONE = Periods("year", (2000,), (2000.0,), (1.0,))
KEYWORDS = Keywords.of({"first": [3, 4], "second": [7, 9]}, None, 20.0)


def topics_of(scale: float | None = 0.3, periods: Periods = PERIODS, **more: Any) -> DynamicTopics:
    options = {"smoothing": 0.1, "dtype": torch.float64, **more}
    topics = DynamicTopics(NUM_TOPICS, NUM_WORDS, periods, scale=scale, **options)
    topics.still = 0.0
    return topics


def counts_of(num_periods: int = 4, seed: int = 0) -> np.ndarray:
    """``(num_periods, num_topics, num_words)`` tokens, some cells empty."""
    rng = np.random.default_rng(seed)
    return np.floor(60 * rng.dirichlet(np.full(NUM_WORDS, 0.5), (num_periods, NUM_TOPICS)))


def in_columns(counts: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(counts.transpose(1, 0, 2).reshape(NUM_TOPICS, -1))


def by_period(topics: DynamicTopics) -> np.ndarray:
    """``(num_periods, num_topics, num_words)`` probabilities."""
    probs = topics.double_probs.unflatten(1, (topics.num_levels, NUM_WORDS))
    return probs.transpose(0, 1).numpy()


def posts(num_docs: int = 60, years: tuple[int, ...] = (1990, 1991, 1993)) -> Corpus:
    rng = np.random.default_rng(0)
    counts = rng.multinomial(25, rng.dirichlet(np.full(NUM_WORDS, 0.3), num_docs))
    metadata = {
        "year": np.array(years)[np.arange(num_docs) % len(years)],
        "day": np.arange(num_docs) % 28,
        "date": [f"2004-{1 + d % 12:02}-{1 + d % 28:02}" for d in range(num_docs)],
        "text": [f"{1 + d % 3}" for d in range(num_docs)],
        "party": ["left" if d % 2 else "right" for d in range(num_docs)],
    }
    return Corpus.from_matrix(counts, [f"w{v}" for v in range(NUM_WORDS)], metadata=metadata)


# -------------------------------------------------------------------- the M-step


@pytest.mark.slow
@pytest.mark.parametrize("keywords", [None, KEYWORDS])
@pytest.mark.parametrize(
    "scale", [0.3, *(pytest.param(x, marks=pytest.mark.long) for x in (0.01, 5.0))]
)
def test_the_m_step_matches_scipys_maximum(scale, keywords) -> None:
    counts, smoothing = torch.from_numpy(counts_of()), torch.full((NUM_TOPICS, NUM_WORDS), 0.1)
    smoothing, excluded = smoothing.double(), torch.zeros(NUM_TOPICS, NUM_WORDS)
    if keywords is not None:
        smoothing = keywords.add_to_(smoothing)
        excluded[len(keywords) :, [3, 4, 7, 9]] = -1e9
        counts = torch.where(excluded < 0, 0.0, counts)
    shares, gaps = torch.tensor(PERIODS.shares).double(), torch.tensor(PERIODS.gaps).double()

    def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
        logits = torch.tensor(x.reshape(counts.shape), requires_grad=True)
        value = (counts * torch.log_softmax(logits + excluded, 2)).sum()
        level = (shares[:, None, None] * logits).sum(0) + excluded
        value = value + (smoothing * torch.log_softmax(level, 1)).sum()
        value = value - (logits.diff(dim=0) ** 2 / (2 * scale**2 * gaps[:, None, None])).sum()
        (-value).backward()
        assert logits.grad is not None
        return -float(value.detach()), logits.grad.numpy().ravel()

    options = {"maxiter": 20000, "maxfun": 50000, "ftol": 1e-15, "gtol": 1e-9, "maxcor": 30}
    start = np.zeros(counts.numel())
    best = scipy.optimize.minimize(loss, start, jac=True, method="L-BFGS-B", options=options)
    topics = topics_of(scale, keywords=keywords)
    for _ in range(200):
        topics.m_step(in_columns(counts.numpy()))
    expected = np.exp(log_softmax(best.x.reshape(counts.shape) + excluded.numpy(), axis=2))
    np.testing.assert_allclose(by_period(topics), expected, atol=2e-4)
    found = float((in_columns(counts.numpy()) * topics.double_probs.log()).sum())
    assert found + float(topics.log_prior().detach()) == pytest.approx(-best.fun, abs=0.02)


@pytest.mark.parametrize("often", [False, True])
def test_every_m_step_raises_the_density(often) -> None:
    counts, topics = in_columns(counts_of()), topics_of()
    densities = []
    for _ in range(6):
        value = (counts * topics.double_probs.log()).sum() + topics.log_prior()
        densities.append(float(value.detach()))
        if often:
            with topics.updated_often():
                topics.m_step(counts)
        else:
            topics.m_step(counts)
    assert (np.diff(densities) > -1e-9).all()
    assert densities[1] > densities[0] + 1


@pytest.mark.parametrize("keywords", [None, KEYWORDS])
def test_a_scale_near_0_gives_plain_topics(keywords) -> None:
    counts, topics = counts_of(), topics_of(1e-7, keywords=keywords)
    topics.m_step(in_columns(counts))
    options = {"smoothing": 0.1, "keywords": keywords, "dtype": torch.float64}
    plain = DirichletTopics(NUM_TOPICS, NUM_WORDS, **options)
    plain.m_step(torch.from_numpy(counts.sum(0)))
    for probs in by_period(topics):
        np.testing.assert_allclose(probs, plain.probs.detach().numpy(), atol=1e-9)


def test_a_large_scale_gives_independent_periods() -> None:
    counts, topics = counts_of() + 5.0, topics_of(1e3, smoothing=0.0)
    for _ in range(20):
        topics.m_step(in_columns(counts))
    np.testing.assert_allclose(by_period(topics), counts / counts.sum(2, keepdims=True), rtol=1e-4)


@pytest.mark.slow
def test_reversed_time_gives_the_same_topics() -> None:
    counts, forward = counts_of(), topics_of()
    places = tuple(-x for x in PERIODS.positions[::-1])
    names = tuple(int(x) for x in places)
    backward = topics_of(periods=Periods("year", names, places, PERIODS.shares[::-1]))
    for _ in range(50):
        forward.m_step(in_columns(counts))
        backward.m_step(in_columns(counts[::-1].copy()))
    np.testing.assert_allclose(by_period(forward), by_period(backward)[::-1], atol=1e-9)


@pytest.mark.parametrize("scale", [0.3, None])
@pytest.mark.parametrize("keywords", [None, KEYWORDS])
@pytest.mark.parametrize("periods", [PERIODS, ONE])
def test_topics_agree_with_their_pyro_program(scale, periods, keywords) -> None:
    documents = posts(6).with_covariates({"content": np.arange(6) % len(periods.levels)})
    topics = topics_of(scale, periods, keywords=keywords)
    lntm.testing.check_topics(topics, documents.batch(), exact_m_step=scale is not None)


def test_still_words_change_the_topics_little() -> None:
    counts, exact, bounded = in_columns(counts_of()), topics_of(0.05), topics_of(0.05)
    bounded.still = 0.05
    for topics in (exact, bounded):
        topics.m_step(counts)
    assert 0 < int(bounded.differing_words.sum()) < int(exact.differing_words.sum())
    ratio = (bounded.double_probs / exact.double_probs).log().abs().max()
    assert float(ratio) < 0.05


def test_empty_counts_make_no_nan() -> None:
    for smoothing in (0.0, 0.1):
        counts, topics = counts_of(), topics_of(None, smoothing=smoothing)
        counts[:, 1] = 0.0  # a topic without tokens
        counts[2] = 0.0  # a period without tokens
        counts[:, :, 3] = 0.0  # a word that does not occur
        for _ in range(3):
            topics.m_step(in_columns(counts))
        assert torch.isfinite(topics.probs).all()
        assert torch.isfinite(topics.log_prior())


def test_the_hessian_of_walks_is_solved_and_inverted() -> None:
    rng = np.random.default_rng(0)
    diagonal, precisions = rng.gamma(1.0, size=(5, 2)), rng.gamma(2.0, size=(4, 2))
    right = rng.normal(size=(5, 2))
    hessian = WalkHessian.of(torch.from_numpy(diagonal), torch.from_numpy(precisions))
    own = hessian.variances()
    for j in range(2):
        dense = np.diag(diagonal[:, j])
        for t, p in enumerate(precisions[:, j]):
            dense[t : t + 2, t : t + 2] += p * np.array([[1, -1], [-1, 1]])
        inverse = np.linalg.inv(dense)
        found = hessian.solve(torch.from_numpy(right))[:, j]
        np.testing.assert_allclose(found, inverse @ right[:, j])
        np.testing.assert_allclose(own[:, j], np.diag(inverse))


# -------------------------------------------------------------------- scales by evidence


def simulated(num_periods: int = 10, tokens: int = 4000, seed: int = 0):
    """Tokens of one topic of 60 words, of which the first 6 move."""
    rng = np.random.default_rng(seed)
    level = np.sort(rng.normal(0, 1, 60))[::-1]
    steps = np.zeros((num_periods, 60))
    steps[1:, :6] = rng.normal(0, 0.4, (num_periods - 1, 6))
    logits = level + steps.cumsum(0)
    probs = np.exp(log_softmax(logits, axis=1))
    return np.stack([rng.multinomial(tokens, p) for p in probs]).astype(float), probs


def one_topic(counts: np.ndarray, scale: float | None = None) -> DynamicTopics:
    """One topic, with scales by evidence, fitted to tokens ``(num_periods, num_words)``."""
    size, places = len(counts), tuple(range(len(counts)))
    periods = Periods("year", places, tuple(map(float, places)), (1 / size,) * size)
    topics = DynamicTopics(1, counts.shape[1], periods, scale=scale, dtype=torch.float64)
    for _ in range(40):
        topics.m_step(torch.from_numpy(counts.reshape(1, -1)))
    return topics


@pytest.mark.long
def test_evidence_tells_moving_words_from_still_words() -> None:
    """In 16 corpora."""
    ratios, ranks = [], []
    for seed in range(16):
        moving, still = one_topic(simulated(seed=seed)[0]).variances[:, 0].sqrt().split([6, 54])
        ratios.append(float(moving.median() / still.median()))
        ranks.append(float((moving[:, None] > still).double().mean()))
    assert np.median(ratios) > 5
    assert np.mean(ranks) > 0.95


@pytest.mark.long
def test_bands_cover_the_true_probabilities() -> None:
    """95 % bands of 60 words in 10 periods, in 8 simulated corpora."""
    moving, still = [], []
    for seed in range(8):
        counts, probs = simulated(seed=seed)
        _, lower, upper = one_topic(counts).log_paths(0).bands()
        inside = (lower.numpy() <= probs) & (probs <= upper.numpy())
        moving.append(inside[:, :6].mean())
        still.append(inside[:, 6:].mean())
    assert 0.9 < np.mean(moving) < 0.99
    assert 0.9 < np.mean(still) < 0.99


@pytest.mark.slow
def test_repeated_tokens_widen_bands_instead_of_moving_words() -> None:
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.full(60, 1.0))
    counts = 8.0 * rng.multinomial(500, probs, 10)
    topics = one_topic(counts)
    assert float(topics.dispersion.median()) > 3
    assert float(topics.drift()[0, -1]) < 0.1


def normal_evidence(logs: np.ndarray, tokens: float, scale: float, dispersion: float) -> float:
    """Log density of the differences of logs = path + noise, noise variance dispersion/tokens."""
    size = len(logs)
    times = np.minimum.outer(np.arange(size), np.arange(size))
    covariance = dispersion * (scale**2 * times + np.eye(size) / tokens)
    differences = np.diff(np.eye(size), axis=0)
    own = differences @ covariance @ differences.T
    return scipy.stats.multivariate_normal(cov=own).logpdf(np.diff(logs))


def test_the_evidence_of_many_tokens_is_that_of_normal_walks() -> None:
    rng = np.random.default_rng(0)
    logs = np.stack([2e-4 * rng.normal(size=8).cumsum(), 3e-4 * rng.normal(size=8)], 1)
    tokens, scales = 1e8, (2.0**-14, 2.0**-12, 2.0**-10)
    counts = torch.from_numpy(tokens * np.exp(logs))
    rates, gaps = torch.full((8, 2), tokens).double(), torch.ones(7).double()
    dispersions = torch.tensor([1.0, 4.0, 16.0]).double()
    found = walk_evidence._log_evidence(counts, rates, gaps, scales, dispersions).numpy()
    for word in range(2):
        expected = [
            [normal_evidence(logs[:, word], tokens, s, float(d)) for d in dispersions]
            for s in scales
        ]
        distance = found[word] - np.array(expected)
        np.testing.assert_allclose(distance, distance.mean(), atol=0.01)


def test_the_evidence_of_few_tokens_is_close_to_the_integral() -> None:
    """Two periods, dispersion 1: the sum is Gamma, and quadrature integrates over the step."""
    counts, rates = np.array([[3.0], [17.0]]), np.array([[12.0], [9.0]])

    def density(step: float, scale: float) -> float:
        total = rates[0, 0] + rates[1, 0] * math.exp(step)
        log_likelihood = counts[1, 0] * step - counts.sum() * math.log(total)
        return math.exp(log_likelihood + counts.sum() * 2.5 - 0.5 * (step / scale) ** 2) / scale

    scales = (0.05, 0.2, 0.8, 2.0)
    expected = [math.log(scipy.integrate.quad(density, -6, 6, (s,), limit=200)[0]) for s in scales]
    arguments = torch.from_numpy(counts), torch.from_numpy(rates), torch.ones(1).double()
    found = walk_evidence._log_evidence(*arguments, scales, torch.ones(1).double())[0, :, 0].numpy()
    np.testing.assert_allclose(found - found[0], np.array(expected) - expected[0], atol=0.15)


def test_a_variance_has_the_mean_share_of_all_scales() -> None:
    scales, weights = np.array([0.01, 0.1, 1.0]), np.array([0.5, 0.3, 0.2])
    for tokens in (0.01, 3.0, 1e4):
        followed = tokens * scales**2
        share = (weights * followed / (1 + followed)).sum()
        arguments = (torch.from_numpy(x) for x in (scales, weights, np.array([tokens])))
        found = float(walk_evidence._mean_variances(*arguments))
        assert tokens * found / (1 + tokens * found) == pytest.approx(share)


@pytest.mark.slow
def test_words_with_few_tokens_stay_still() -> None:
    counts, _ = simulated(tokens=400)
    moves = one_topic(counts).differing_words[0].numpy()
    few = counts.sum(0) < walk_evidence.LEARNING_TOKENS
    assert few.sum() > 5
    assert not moves[few].any()
    assert moves[~few].any()


@pytest.mark.slow
def test_fits_count_the_repetitions_of_words() -> None:
    corpus = posts()
    model = lntm.models.stm(2, corpus, content="~ rw(year)")
    guide = lntm.guides.TaylorGuide(model)
    VariationalEM(model, guide, progress=False, max_iterations=1).fit(corpus)
    matrix = corpus.to_scipy().toarray().astype(float)
    expected = (matrix**2).sum(0) / np.maximum(matrix.sum(0), 1)
    topics: Any = model.topics
    np.testing.assert_allclose(topics.repeats, np.maximum(expected, 1), rtol=1e-6)


def test_documents_show_the_least_dispersion() -> None:
    """A word comes 10 times in a document or not at all; walking words would fit its periods."""
    rng = np.random.default_rng(0)
    counts = rng.poisson(2.0, (400, NUM_WORDS))
    counts[:, 0] = 10 * (rng.random(400) < 0.2)
    corpus = Corpus.from_matrix(counts, metadata={"year": np.arange(400) % 5})
    topics = DynamicTopics(1, NUM_WORDS, Periods.of(corpus, "~ rw(year)"))
    topics.prepare_(corpus)
    matrix = counts.astype(float)
    squares = (matrix**2).sum(0)
    np.testing.assert_allclose(topics.repeats, squares / matrix.sum(0), rtol=1e-6)
    lengths = matrix.sum(1)
    assert float(topics.length) == pytest.approx((lengths**2).sum() / lengths.sum(), rel=1e-6)
    by_year = np.stack([matrix[np.arange(400) % 5 == year].sum(0) for year in range(5)])
    topics.m_step(torch.from_numpy(by_year.reshape(1, -1)))
    assert float(topics.dispersion[0, 0]) > 5
    assert float(topics.dispersion[1:].max()) < 2


# -------------------------------------------------------------------- views over time


def fitted() -> DynamicTopics:
    topics = topics_of(0.3)
    topics.m_step(in_columns(counts_of()))
    return topics


def test_topics_of_a_period_are_those_of_its_columns() -> None:
    topics = fitted()
    for t, year in enumerate(POSITIONS):
        np.testing.assert_allclose(topics.at(year).probs, by_period(topics)[t])
    gap = topics.at(2002).probs.log()
    middle = 0.5 * (topics.at(2001).probs.log() + topics.at(2003).probs.log())
    torch.testing.assert_close(gap, torch.log_softmax(middle, 1))
    for far, end in ((1980, 2000), (2030, 2004)):
        torch.testing.assert_close(topics.at(far).probs, topics.at(end).probs)
    with pytest.raises(ConfigError, match="expected a number"):
        topics.at("spring")


def test_errors_grow_in_gaps_and_beyond_the_last_period() -> None:
    topics = fitted()
    paths = topics.log_paths(1, [0, 4], [2001, 2002, 2003, 2004, 2005, 2010])
    assert paths.log_probs.shape == paths.errors.shape == (6, 2)
    assert (paths.errors[1] > paths.errors[[0, 2]].mean(0)).all()
    assert (paths.errors[3:].diff(dim=0) > 0).all()
    unit = np.diff(PERIODS.positions).mean()
    growth = paths.errors[4].square() - paths.errors[3].square()
    torch.testing.assert_close(growth, 0.3**2 / unit * topics.dispersion[[0, 4], 1])


def test_changes_have_the_errors_of_contrasts() -> None:
    topics = fitted()
    change, error = topics.log_changes(0)
    probs = by_period(topics)[:, 0]
    np.testing.assert_allclose(change, np.log(probs[-1] / probs[0]))
    _, own = topics.log_changes(0, 2003, 2004)
    assert (own < error).all()
    assert (own > 0).all()


@pytest.mark.parametrize("num_topics", [2, 3])
def test_certainty_is_what_unknown_topics_leave_of_the_information(num_topics: int) -> None:
    """Against second derivatives of the log likelihood whose normalisers are held."""
    rng = np.random.default_rng(0)
    corpus = Corpus.from_matrix(rng.poisson(1.5, (40, 6)), metadata={"year": np.arange(40) % 3})
    periods = Periods.of(corpus, "~ rw(year)")
    probs = torch.from_numpy(rng.dirichlet(np.ones(6), num_topics))
    topics = DynamicTopics(num_topics, 6, periods, probs=probs, dtype=torch.float64)
    theta = torch.from_numpy(rng.dirichlet(np.ones(num_topics), 40))
    batch = topics.encode(corpus).batch(dtype=torch.float64)
    parts = zip(batch.split(15), theta.split(15), strict=True)
    topics.settle_(**topics.last_sums(parts))
    for v, counts in enumerate(torch.from_numpy(corpus.to_scipy().toarray()).double().mT):

        def log_likelihood(logits: torch.Tensor, counts: torch.Tensor = counts) -> torch.Tensor:
            return (counts * (theta * logits.exp()).sum(1).log()).sum()

        logits = probs[:, v].log()
        shares = theta * probs[:, v]
        tokens = counts @ (shares / shares.sum(1, keepdim=True))
        second = torch.autograd.functional.hessian(log_likelihood, logits)
        information = (tokens + topics.smoothing).diag() - second.detach()
        for k in range(num_topics):
            one, others = torch.eye(num_topics).double()[k], torch.ones(num_topics).double()
            basis = torch.stack([one, others - one])
            left = 1 / torch.linalg.inv(basis @ information @ basis.mT)[0, 0]
            expected = float(left / (tokens[k] + topics.smoothing))
            assert float(topics.certainty[v, k]) == pytest.approx(expected, rel=1e-9)
    old = {name: x for name, x in topics.state_dict().items() if name != "certainty"}
    topics.load_state_dict(old)
    assert (topics.certainty == 1).all()


@pytest.mark.slow
@pytest.mark.stat
def test_bands_of_still_words_hold_the_truth_though_topics_are_fitted() -> None:
    """In 3 corpora of short documents of several topics. Known topics would make 0.8 of them."""
    inside, as_if_known = [], []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        probs = rng.dirichlet(np.full(100, 0.3), 3)
        theta = rng.dirichlet(np.ones(3), 800)
        counts = rng.multinomial(50, theta @ probs)
        corpus = Corpus.from_matrix(counts, metadata={"year": np.arange(800) % 5})
        model = lntm.models.stm(3, corpus, content="~ rw(year)", seed=seed)
        lntm.inference.MonteCarloEM(model, progress=False, seed=seed).fit(corpus)
        topics: Any = model.topics
        similarity = probs**0.5 @ topics.mean_probs.detach().numpy().T ** 0.5
        for k, ours in zip(*scipy.optimize.linear_sum_assignment(-similarity), strict=True):
            seen = theta[:, k].sum() * 50 * probs[k] > 50
            certainty = topics.certainty.clone()
            for found in (inside, as_if_known):
                _, lower, upper = (x.numpy() for x in topics.log_paths(int(ours)).bands())
                found.append(((lower <= probs[k]) & (probs[k] <= upper))[:, seen].mean())
                topics.certainty.fill_(1.0)
            topics.certainty.copy_(certainty)
    assert 0.92 < np.mean(inside) < 0.98
    assert np.mean(as_if_known) < 0.87


@pytest.mark.slow
@pytest.mark.parametrize("scale", [None, 0.1])
def test_still_words_drift_by_noise_as_far_as_is_expected_of_them(scale) -> None:
    """Tokens of a known topic whose words stand still, so that all printed drift is noise.

    The mean drift of 12 corpora has a standard error of 3 % with the scale, and of 6 % by evidence.
    """
    rng = np.random.default_rng(0)
    printed, expected = [], []
    for _ in range(12):
        counts = rng.multinomial(20_000, rng.dirichlet(np.full(60, 1.0)), 8).astype(float)
        topics = one_topic(counts, scale)
        printed.append(float(topics.drift()[0, -1]))
        noise = topics.noise_drift()[0]
        expected.append(float(noise[-1]))
        assert float(noise[0]) == 0.0
    assert np.mean(printed) > 1e-4
    assert np.mean(printed) / np.mean(expected) == pytest.approx(1, abs=0.25)


def test_the_drift_is_the_total_variation_from_the_first_period() -> None:
    topics = fitted()
    probs = by_period(topics)
    expected = 0.5 * np.abs(probs - probs[:1]).sum(2).T
    np.testing.assert_allclose(topics.drift(), expected, atol=1e-12)


# -------------------------------------------------------------------- periods of a corpus


@pytest.mark.parametrize(
    ("formula", "levels", "gaps"),
    [
        ("~ rw(year)", (1990, 1991, 1993), (2 / 3, 4 / 3)),
        ("~ rw(text)", (1, 2, 3), (1.0, 1.0)),
        ("~ rw(day, width=7)", (0, 7, 14, 21), (1.0, 1.0, 1.0)),
        ("~ rw(date, bins='quarter')", ("2004Q1", "2004Q2", "2004Q3", "2004Q4"), (1.0,) * 3),
        ("~ rw(date, bins='month')", tuple(f"2004-{m:02}" for m in range(1, 13)), (1.0,) * 11),
    ],
)
def test_periods_of_numbers_dates_and_text(formula, levels, gaps) -> None:
    corpus = posts()
    periods = Periods.of(corpus, formula)
    assert periods.levels == levels
    np.testing.assert_allclose(periods.gaps, gaps)
    assert sum(periods.shares) == pytest.approx(1.0)
    again = Periods.from_json(json.loads(json.dumps(periods.to_json())))
    assert again == periods
    assert set(again.encode(corpus).encodings["content"].tolist()) == set(range(len(levels)))


@pytest.mark.parametrize("first", [0.0, 1990.0, 2004.0, -7.3, -2000.0])
@pytest.mark.parametrize("width", ["0.1", "0.2", "0.3", "1/12", "1/52", "0.25", "7"])
def test_every_width_keeps_the_periods_of_its_multiples(first, width) -> None:
    """Values at the starts of bins, made by a product or by repeated sums, and inside of bins."""
    size = float(np.divide(*map(float, ([*width.split("/"), "1"])[:2])))
    bins = np.repeat(np.arange(60), 2)
    product = np.where(np.arange(120) % 2, first + bins * size, first + (bins + 0.5) * size)
    summed = np.repeat(np.cumsum([first, *np.full(59, size)]), 2)
    for values in (product, summed):
        corpus = Corpus.from_matrix(np.ones((120, 2), int), metadata={"t": values})
        periods = Periods.of(corpus, f"~ rw(t, width={size!r})")
        assert periods.positions == tuple(range(60))
        np.testing.assert_array_equal(periods.encode(corpus).encodings["content"], bins)
        assert [periods.position(value) for value in values] == bins.tolist()
    assert periods.levels[:2] == pytest.approx((first, first + size), abs=1e-9)


def test_weeks_begin_on_mondays() -> None:
    corpus = posts(8).with_metadata({"date": ["2004-09-26", "2004-09-27"] * 4})
    assert Periods.of(corpus, "~ rw(date, bins='week')").levels == ("2004-09-20", "2004-09-27")


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("~ year", "expected '~ rw"),
        ("~ rw(year, size=3)", "bins or width alone"),
        ("~ rw(year, width=0)", "positive number"),
        ("~ rw(date, bins='decade')", "bins is 'decade'"),
        ("~ rw(year, bins='month')", "needs dates"),
        ("~ rw(year, width=100)", "the one level 1990"),
        ("~ rw(__import__('os'))", "expected '~ rw"),
    ],
)
def test_unsuitable_formulas_are_refused(formula, message) -> None:
    with pytest.raises(ConfigError, match=message):
        lntm.models.stm(2, posts(), content=formula)


def test_documents_of_unknown_periods_are_refused() -> None:
    model = lntm.models.stm(2, posts(), content="~ rw(year)")
    later = posts(4).with_metadata({"year": [1990, 1994, 1991, 1990]})
    with pytest.raises(CorpusError, match=r"period 1994 in document 1.*topics.at\(1994\)"):
        model.encode(later)
    future = model.with_parts(topics=model.topics.at(1994))
    assert future.encode(later).num_docs == 4
    with pytest.raises(CorpusError, match="'x' in document 0"):
        Periods.of(posts(4).with_metadata({"year": ["x", "y", "x", "y"]}), "~ rw(year)")


@pytest.mark.parametrize("text", ["NaT", "today", "2004", "20041001", "2004-10-01x", "2004-13-01"])
def test_text_among_dates_is_refused(text) -> None:
    dates = ["2004-09-30", "2004-10-01"] * 4
    with pytest.raises(CorpusError, match=f"'{text}' in document 7; expected a date"):
        Periods.of(posts(8).with_metadata({"date": [*dates[:7], text]}), "~ rw(date)")


def test_values_without_a_place_in_time_are_refused() -> None:
    dates, numbers = ["2004-09-30", "2004-10-01"] * 4, [1, 2] * 4
    corpus = posts(8).with_metadata({"date": dates, "year": numbers})
    of_dates, of_numbers = (Periods.of(corpus, f"~ rw({x})") for x in ("date", "year"))
    assert of_dates.place("2004Q4") == of_dates.place("2004-10") == of_dates.place("2004-10-01")
    for value in ("NaT", "12/10/2004", "October 2004", 5, None):
        with pytest.raises(ConfigError, match="expected a date"):
            of_dates.place(value)
    for value in (math.nan, math.inf, None, "x"):
        with pytest.raises(ConfigError, match="expected a number"):
            of_numbers.place(value)


@pytest.mark.parametrize("scale", [0.0, -1.0, 1e-30, 1e30, math.inf, math.nan])
def test_scales_beyond_the_bounds_are_refused(scale: float) -> None:
    with pytest.raises(ConfigError, match=r"content scale is .*; expected a number from 1e-10"):
        topics_of(scale)


# -------------------------------------------------------------------- fits and files


@pytest.mark.slow
def test_a_resumed_fit_equals_a_whole_fit(tmp_path) -> None:
    corpus = posts(90)

    def fit(name: str, broken: bool = False) -> torch.Tensor:
        model = lntm.models.stm(2, corpus, content="~ rw(year)")
        guide = lntm.guides.TaylorGuide(model)
        if broken:
            break_at(guide, 25, RuntimeError)
        em = VariationalEM(model, guide, progress=False, tolerance=0.0, max_iterations=4)
        em.fit(corpus, checkpoint=tmp_path / name)
        return model.topics.probs.detach()

    whole = fit("whole")
    with pytest.raises(RuntimeError):
        fit("killed", broken=True)
    assert torch.equal(fit("killed"), whole)
