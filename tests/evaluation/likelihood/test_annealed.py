"""Annealed importance sampling of every model against quadrature, closed forms and itself."""

from __future__ import annotations

import math
import warnings
from functools import cache

import numpy as np
import pytest
import torch
from oracles.grids import Quadrature
from oracles.scores import z_scores
from scipy import integrate, special, stats

from torch_lntm import models
from torch_lntm.corpus import Corpus, synthetic_topics
from torch_lntm.errors import ConfigError, CorpusError, IncompatibleGuideError
from torch_lntm.evaluation import (
    AIS,
    Importance,
    LikelihoodEstimate,
    ais_bracket,
    log_likelihood,
)
from torch_lntm.evaluation.likelihood import annealed
from torch_lntm.evaluation.likelihood.annealed import AISBracket
from torch_lntm.models import TopicModel
from torch_lntm.sampling import ais

NUM_WORDS = 30
KINDS = ["ctm", "anchored", "lntm", "iftm", "lda"]
#: Models, and where their paths start.
PATHS = [
    pytest.param(kind, start, marks=[pytest.mark.long] * (kind in ("anchored", "lntm")))
    for kind in KINDS
    for start in ("prior", "posterior")[: 1 if kind == "lda" else 2]
]


def make_model(kind: str, num_topics: int = 3, seed: int = 0, **options: object) -> TopicModel:
    rng = np.random.default_rng(seed)
    topics = synthetic_topics(num_topics, NUM_WORDS, 0.2, seed=rng)
    options = {"topics": topics, "dtype": "float64", **options}
    if kind == "lda":
        alpha = torch.tensor(0.5 * np.exp(0.5 * rng.normal(size=num_topics)))
        return models.lda(num_topics, NUM_WORDS, concentration=alpha, **options)
    anchored = kind == "anchored"
    loc = torch.tensor(rng.normal(size=num_topics - anchored))
    if kind == "iftm":
        options = {"num_sources": 1, "mixing": torch.tensor(rng.normal(size=(num_topics, 1)))} | (
            options
        )
        return models.iftm(num_topics, NUM_WORDS, loc=loc, **options)
    if kind == "lntm":
        return models.lntm(num_topics, NUM_WORDS, loc=loc, **options)
    factor = rng.normal(size=(len(loc), len(loc)))
    covariance = torch.tensor(factor @ factor.T + 0.2 * np.eye(len(loc)))
    return models.ctm(
        num_topics, NUM_WORDS, anchored=anchored, loc=loc, covariance=covariance, **options
    )


def some_lengths(num_docs: int, longest: int = 25) -> np.ndarray:
    lengths = np.random.default_rng(0).integers(1, longest, num_docs)
    lengths[::9] = 0
    return lengths


def quietly(*args: object, **options: object) -> LikelihoodEstimate:
    """Without a warning of a few small effective sample sizes, which chance can bring."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*effective sample size.*", UserWarning)
        return log_likelihood(*args, **options)  # type: ignore[arg-type]


def exact(model: TopicModel, corpus: Corpus) -> torch.Tensor:
    return log_likelihood(model, corpus, Quadrature(101)).log_likelihood


def z_score(ratios: torch.Tensor) -> float:
    """Of the mean of ratios less 1 with expectation 0, by their spread over documents."""
    return float(ratios.mean() / ratios.std() * math.sqrt(len(ratios)))


@cache
def bracketed(kind: str, num_topics: int, start: str) -> tuple[AISBracket, torch.Tensor]:
    """Bounds of some hundred documents, and the truth."""
    model = make_model(kind, num_topics)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*effective sample size.*", UserWarning)
        bracket = ais_bracket(
            model,
            some_lengths(180, 15),
            AIS(
                num_chains=12,
                num_temperatures=25 if start == "prior" else 6,
                num_steps=4,
                start=start,
            ),
        )
    return bracket, exact(model, bracket.corpus)


@pytest.mark.long
@pytest.mark.parametrize(("kind", "start"), PATHS)
def test_estimates_are_within_their_error_of_quadrature(kind: str, start: str) -> None:
    # 160 documents. |z| < 4.5 of the mean: 7e-6; the mean of squared z-scores of skewed weights
    # of 12 chains lies within 0.5 and 2.2.
    bracket, truth = bracketed(kind, 3, start)
    used = bracket.lower.lengths > 0
    mean, square = z_scores(bracket.lower, truth)
    assert abs(mean) < 4.5
    assert 0.5 < square < 2.2
    assert float(bracket.lower.effective_sample_size[used].median()) > 6
    # In so few dimensions, trajectories of a quarter period are nearly always accepted.
    low, high = (0.7, 0.97) if start == "prior" else (0.9, 1.0)
    assert low < float(bracket.lower.acceptance[used].mean()) < high
    assert float((bracket.lower.log_likelihood - truth)[used].abs().max()) < 1.5


@pytest.mark.slow
@pytest.mark.stat
@pytest.mark.parametrize(("kind", "start"), PATHS)
def test_both_bounds_are_unbiased_and_bracket_the_truth(kind: str, start: str) -> None:
    # Documents are independent, forward and reverse weights unbiased in p(w) and 1/p(w): |z| < 4.5.
    bracket, truth = bracketed(kind, 3, start)
    used = bracket.lower.lengths > 0
    assert abs(z_score((bracket.lower.log_likelihood - truth)[used].expm1())) < 4.5
    assert abs(z_score((truth - bracket.upper)[used].expm1())) < 4.5
    below, above = (bracket.lower.log_likelihood - truth)[used], (bracket.upper - truth)[used]
    assert float(below.mean()) < 3 * float(below.std()) / math.sqrt(len(below))
    assert float(above.mean()) > -3 * float(above.std()) / math.sqrt(len(above))
    assert abs(bracket.mean_gap) < 0.2
    assert bracket.mean_gap == pytest.approx(float((above - below).mean()))
    spread = float((above - below).std()) / math.sqrt(len(above))
    assert bracket.mean_gap_standard_error == pytest.approx(spread)
    assert bracket.upper[::9].tolist() == [0.0] * 20


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "start"), [("ctm", "posterior"), ("ctm", "prior"), ("lda", "prior")]
)
def test_few_temperatures_are_unbiased(kind: str, start: str) -> None:
    """Step sizes that adapt to the chains, or a wrong target, would show: 400 documents."""
    model = make_model(kind, 2)
    corpus, _ = model.generate([6] * 400, seed=1)
    truth = exact(model, corpus)
    for count in (3, 5):
        settings = AIS(num_chains=8, num_temperatures=count, num_steps=2, start=start)
        estimate = quietly(model, corpus, settings, seed=count, max_docs=400)
        # Four tests at |z| < 4.5: 3e-5.
        assert abs(z_score((estimate.log_likelihood - truth).expm1())) < 4.5


@pytest.mark.slow
@pytest.mark.parametrize("start", ["posterior", "prior"])
def test_laplace_sources_agree_with_an_integral(start: str) -> None:
    """Two topics, one source: eta_0 − eta_1 given s is normal, s is Laplace."""
    mixing, precision = torch.tensor([[1.2], [-0.6]]), torch.tensor([3.0, 2.0])
    model = make_model(
        "iftm", 2, source="laplace", mixing=mixing.double(), noise_precision=precision
    )
    corpus, _ = model.generate([1, 4, 12, 25], seed=0)
    estimate = quietly(model, corpus, AIS(num_chains=200, num_temperatures=25, start=start))
    loc, topics = (x.detach().numpy() for x in (model.prior.loc, model.topics.probs))
    sd = math.sqrt(1 / 3 + 1 / 2)
    for d, counts in enumerate(corpus.to_scipy().toarray()):

        def likelihood(x: float, counts: np.ndarray = counts) -> float:
            theta = special.expit(x)
            return float(np.exp(counts @ np.log(theta * topics[0] + (1 - theta) * topics[1])))

        def density(x: float) -> float:
            """Of Laplace(0, 1.8) + Normal, by the known convolution."""
            b, y = 1.8, x - (loc[0] - loc[1])
            tails = [
                np.exp(sd**2 / (2 * b**2) - s * y / b) * stats.norm.cdf(s * y / sd - sd / b)
                for s in (1, -1)
            ]
            return float(sum(tails) / (2 * b))

        value, _ = integrate.quad(lambda x: density(x) * likelihood(x), -40, 40, limit=500)
        z = (float(estimate.log_likelihood[d]) - math.log(value)) / float(
            estimate.standard_error[d]
        )
        assert abs(z) < 5


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ctm", "lda"])
def test_estimates_equal_closed_forms(kind: str) -> None:
    flat = make_model(kind, 3, topics=torch.ones(3, NUM_WORDS))
    corpus, _ = flat.generate([7, 0, 40], seed=0)
    settings = AIS(num_chains=4, num_temperatures=5, start="prior")
    estimate = log_likelihood(flat, corpus, settings)
    expected = -math.log(NUM_WORDS) * torch.tensor([7.0, 0.0, 40.0]).double()
    torch.testing.assert_close(estimate.log_likelihood, expected)
    torch.testing.assert_close(estimate.effective_sample_size, torch.full((3,), 4.0).double())
    # One token has the prior mean of theta.
    model = make_model("lda", 3)
    words = Corpus.from_matrix(np.eye(NUM_WORDS, dtype=int))
    alpha = model.prior.concentration.detach()
    expected = (alpha / alpha.sum() @ model.topics.probs.detach()).log()
    single = quietly(model, words, AIS(num_chains=100, num_temperatures=10))
    z = (single.log_likelihood - expected) / single.standard_error
    assert float(z.abs().max()) < 5


@pytest.mark.long
def test_estimates_depend_on_the_seed_but_not_on_batches_and_devices(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind, start in (("ctm", "posterior"), ("ctm", "prior"), ("lda", "prior")):
        model = make_model(kind, 4)
        corpus, latents = model.generate(some_lengths(6), seed=0)
        settings = AIS(num_chains=3, num_temperatures=6, start=start)
        base = quietly(model, corpus, settings, seed=3)
        again = quietly(model, corpus, settings, seed=3)
        assert torch.equal(base.log_likelihood, again.log_likelihood)
        other = quietly(model, corpus, settings, seed=4)
        assert not torch.allclose(base.log_likelihood, other.log_likelihood, atol=1e-6)
        parts = quietly(model, corpus, settings, seed=3, max_docs=2)
        torch.testing.assert_close(base.log_likelihood, parts.log_likelihood, atol=1e-6, rtol=0)

        path = settings.path(model, corpus)
        together, alone = (
            annealed.anneal(model, corpus, path, latents, 0, max_docs, progress=False)
            for max_docs in (99, 1)
        )
        for name, values in together.items():
            torch.testing.assert_close(values, alone[name], atol=1e-6, rtol=1e-6)
        with monkeypatch.context() as patch:
            patch.setattr(annealed, "_MAX_NUMBERS_CPU", 100)
            small = quietly(model, corpus, settings, seed=3)
        torch.testing.assert_close(base.log_likelihood, small.log_likelihood, atol=1e-6, rtol=0)
        there = quietly(model.to(device), corpus, settings, seed=3)
        torch.testing.assert_close(base.log_likelihood, there.log_likelihood, atol=1e-6, rtol=0)


@pytest.mark.slow
def test_single_precision_models_are_computed_in_double() -> None:
    for kind in ("ctm", "iftm", "lda"):
        double = make_model(kind, 3)
        single = make_model(kind, 3, dtype="float32")
        corpus, _ = double.generate(some_lengths(10), seed=0)
        settings = AIS(num_chains=4, num_temperatures=8)
        values = [quietly(m, corpus, settings).log_likelihood for m in (single, double)]
        torch.testing.assert_close(*values, atol=1e-3, rtol=0)


def test_paths_have_the_fewest_coordinates() -> None:
    model, parts = make_model("iftm", 3), [np.arange(2)]
    corpus = Corpus.from_matrix(np.ones((2, model.num_words), int))
    # Gaussian sources are integrated out, and on the bridge also the shift that logits share.
    for targets, dim in ((annealed._from_prior, 3), (annealed._from_posterior, 2)):
        (target,) = targets(model, model.topics.double_probs, corpus, parts, 2)
        assert target.dim == dim


@pytest.mark.slow
def test_extreme_models_give_finite_estimates() -> None:
    topics = torch.tensor([[1.0, 1e-30, 1e-30], [1e-30, 1.0, 1e-30], [1e-30, 1e-30, 1.0]])
    corpus = Corpus.from_matrix(np.array([[1, 0, 0], [100_000, 0, 0], [3, 5, 1], [0, 0, 0]]))
    for model in (
        models.lda(3, 3, concentration=1e-6, topics=topics),
        models.ctm(3, 3, covariance=100.0 * torch.eye(3), topics=topics),
    ):
        with warnings.catch_warnings():
            problems = ".*(effective sample size|never moved|Pareto k|quadrature error).*"
            warnings.filterwarnings("ignore", problems, UserWarning)
            bracket = ais_bracket(model, [1, 0, 50], AIS(num_temperatures=20))
            methods = (AIS(num_temperatures=20), Importance(), Quadrature())
            found = [log_likelihood(model, corpus, each).log_likelihood for each in methods]
        for values in (bracket.upper, bracket.lower.log_likelihood, *found):
            assert bool(torch.isfinite(values).all())
        if model.name == "lda":  # a single topic has the first two documents
            for values in found[1:]:
                assert values[:2].tolist() == pytest.approx([-math.log(3)] * 2, abs=0.05)


def test_a_corpus_without_tokens_has_zero_log_likelihood() -> None:
    model = make_model("ctm")
    corpus, _ = model.generate([3, 0, 0], seed=0)
    empty = corpus[1:]
    estimate = log_likelihood(model, empty, "ais")
    assert estimate.log_likelihood.tolist() == [0.0, 0.0]
    assert estimate.effective_sample_size.tolist() == [16.0, 16.0]
    assert repr(estimate).endswith("0 documents, 0 tokens")
    with pytest.raises(CorpusError, match="no document has a token to score"):
        estimate.perplexity  # noqa: B018


def test_documents_with_unreliable_chains_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model("ctm", 5)
    corpus, _ = model.generate([3, 400], seed=0)
    with pytest.warns(
        UserWarning, match=r"1 of 2 documents have an effective .*positions 1"
    ) as got:
        log_likelihood(model, corpus, AIS(num_chains=4, num_temperatures=3, start="prior"))
    assert got[0].filename == __file__
    monkeypatch.setattr(
        ais.Transitions, "step_size", lambda self, position: self.log_step_size[0] * 0 + 1e6
    )
    with pytest.warns(UserWarning, match=r"2 of 2 documents have chains that never moved"):
        estimate = log_likelihood(model, corpus, AIS(num_chains=4, num_temperatures=15))
    assert estimate.acceptance.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_chains": 1}, "num_chains is 1; expected at least 2"),
        ({"num_steps": 0}, "num_steps is 0; expected at least 1"),
        ({"num_temperatures": 2}, "num_temperatures is 2; expected at least 3"),
        ({"start": "laplace"}, "start is 'laplace'; expected one of posterior, prior"),
    ],
)
def test_invalid_settings_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AIS(**settings)


def test_the_default_start_depends_on_the_prior() -> None:
    for kind in KINDS:
        model = make_model(kind)
        corpus, _ = model.generate([3], seed=0)
        path = AIS().path(model, corpus)
        assert path.start == ("prior" if kind == "lda" else "posterior")
        assert path.num_temperatures == (500 if kind == "lda" else 64)
        path = AIS(start="prior", num_steps=2).path(model, corpus)
        assert (path.start, path.num_temperatures, path.num_steps) == ("prior", 500, 2)
    with pytest.raises(IncompatibleGuideError, match=r"no normal approximation .*start='prior'"):
        log_likelihood(model, corpus, AIS(start="posterior"))


@pytest.mark.stat
def test_a_path_from_the_posterior_is_better_than_a_long_one_from_the_prior() -> None:
    # The default against four times as many temperatures; a ratio of variances far from 1.
    model = make_model("ctm", 6)
    corpus, _ = model.generate([60] * 12, seed=0)
    errors = [
        quietly(model, corpus, AIS(num_temperatures=count, start=start)).standard_error
        for start, count in (("posterior", 32), ("prior", 128))
    ]
    assert float(errors[0].square().mean()) < 0.5 * float(errors[1].square().mean())
