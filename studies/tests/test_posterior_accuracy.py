"""Accuracy of posteriors, against quadrature and for guides with known errors."""

from __future__ import annotations

import warnings
from functools import cache

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import softmax

from studies.scores.accuracy import PosteriorAccuracy, posterior_accuracy
from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.errors import ConfigError, IncompatibleGuideError
from torch_lntm.guides import (
    BleiLaffertyGuide,
    EPGuide,
    LaplaceGuide,
    TaylorGuide,
    make_guide,
)
from torch_lntm.models import TopicModel, ctm, iftm, lda
from torch_lntm.posteriors import NormalPosterior

NUM_WORDS = 8
LOC = np.array([0.4, -0.6, 0.1])
MIXING = np.array([[1.2, 0.3], [-0.4, 0.9], [0.2, -1.0]])
PRECISION = np.array([1.5, 2.0, 1.0])
COVARIANCE = MIXING @ MIXING.T + np.diag(1 / PRECISION)
ALPHA = np.array([0.6, 1.5, 0.9])
CENTRE = np.eye(3) - 1 / 3
SAMPLES = {"ctm": 800, "iftm": 500, "lda": 1000}


def make_topics(informative: bool = True) -> np.ndarray:
    rng = np.random.default_rng(0)
    rows = rng.dirichlet(np.full(NUM_WORDS, 0.4), 3) * 0.95 + 0.05 / NUM_WORDS
    return rows if informative else np.tile(rows[:1], (3, 1))


def make_model(kind: str, topics: np.ndarray) -> TopicModel:
    options = {"topics": torch.from_numpy(topics), "dtype": "float64"}
    if kind == "ctm":
        loc, covariance = torch.from_numpy(LOC), torch.from_numpy(COVARIANCE)
        return ctm(3, NUM_WORDS, loc=loc, covariance=covariance, **options)
    if kind == "iftm":
        names = {"loc": LOC, "mixing": MIXING, "noise_precision": PRECISION}
        tensors = {name: torch.from_numpy(value) for name, value in names.items()}
        return iftm(3, NUM_WORDS, 2, **tensors, **options)
    return lda(3, NUM_WORDS, concentration=torch.from_numpy(ALPHA), **options)


def make_corpus(lengths: tuple[int, ...] = (25, 0, 2, 8, 0, 1, 60)) -> Corpus:
    rng, topics = np.random.default_rng(1), make_topics()
    return Corpus.from_matrix(
        np.stack([rng.multinomial(n, rng.dirichlet(np.ones(3)) @ topics) for n in lengths])
    )


def measure(model: TopicModel, guides: object, corpus: Corpus, **options) -> PosteriorAccuracy:
    return posterior_accuracy(model, guides, corpus, **options)


# -- by quadrature -------------------------------------------------------------------------------


def grid(kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The variable compared, theta, and log prior density at points of a grid."""
    if kind == "lda":
        # Logits as coordinates: the Dirichlet's density there has no poles.
        axis = np.linspace(-18, 14, 321)
        y = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
        theta = softmax(np.hstack([y, np.zeros((len(y), 1))]), 1)
        scale = np.sqrt(stats.dirichlet(ALPHA).var())
        return theta / scale, theta, np.log(theta) @ ALPHA
    difference = np.hstack([np.eye(2), -np.ones((2, 1))])
    mean, cov = difference @ LOC, difference @ COVARIANCE @ difference.T
    axes = [
        np.linspace(m - 7 * s, m + 7 * s, 241)
        for m, s in zip(mean, np.diag(cov) ** 0.5, strict=True)
    ]
    y = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2)
    logits = np.hstack([y, np.zeros((len(y), 1))])
    scale = np.sqrt(np.diag(CENTRE @ COVARIANCE @ CENTRE))
    return (
        logits @ CENTRE / scale,
        softmax(logits, 1),
        stats.multivariate_normal(mean, cov).logpdf(y),
    )


def by_quadrature(kind: str, guide, corpus: Corpus) -> list[dict[str, float]]:
    """The four distances of each document with tokens, from the guide's own moments."""
    x, theta, log_prior = grid(kind)
    counts = corpus.to_scipy().toarray()
    posterior = guide.posterior(corpus.batch(dtype=torch.float64))
    rng = np.random.default_rng(2)
    result = []
    for d in np.flatnonzero(counts.sum(1)):
        weights = softmax(log_prior + np.log(theta @ make_topics()) @ counts[d])
        mean = weights @ x
        covariance = (x - mean).T * weights @ (x - mean)
        centre, spread = posterior.mean[d].numpy(), posterior.covariance[d].numpy()
        if kind == "lda":
            scale = np.sqrt(stats.dirichlet(ALPHA).var())
            theirs, theta_mean = centre / scale, centre
            theirs_covariance = spread / np.outer(scale, scale)
        else:
            scale = np.sqrt(np.diag(CENTRE @ COVARIANCE @ CENTRE))
            theirs = CENTRE @ centre / scale
            theirs_covariance = CENTRE @ spread @ CENTRE / np.outer(scale, scale)
            theta_mean = softmax(rng.multivariate_normal(centre, spread, 50_000), 1).mean(0)
        ratio = np.diag(theirs_covariance) / np.diag(covariance)
        result.append(
            {
                "mean_error": np.sqrt(np.mean((theirs - mean) ** 2)),
                "std_ratio": np.exp(0.5 * np.mean(np.log(ratio))),
                "covariance_error": np.linalg.norm(theirs_covariance - covariance)
                / np.linalg.norm(covariance),
                "total_variation": 0.5 * np.abs(theta_mean - weights @ theta).sum(),
            }
        )
    return result


@pytest.mark.slow
@pytest.mark.stat
@pytest.mark.parametrize("kind", ["ctm", "iftm", "lda"])
def test_distances_equal_distances_by_quadrature(kind: str) -> None:
    """Within 5 times the noise that the result itself states, at five documents and two guides.

    A distance moves by at most its noise per standard error: about 40 values, false-failure rate
    below 1e-3. (The noise of a distance is the root mean square of errors in several dimensions;
    the least of their effective number is 2.)
    """
    names = {"ctm": ("taylor", "blei-lafferty"), "iftm": ("factor", "taylor"), "lda": ("vb", "ep")}
    model, corpus = make_model(kind, make_topics()), make_corpus()
    guides = {name: make_guide(name, model) for name in names[kind]}
    result = measure(model, guides, corpus, num_draws=SAMPLES[kind], warmup_steps=150)
    assert result.index.tolist() == [0, 2, 3, 5, 6]
    assert result.lengths.tolist() == [25, 2, 8, 1, 60]
    assert bool(result.reliable.all())
    for name, guide in guides.items():
        for d, expected in enumerate(by_quadrature(kind, guide, corpus)):
            for key, value in expected.items():
                noise = float(getattr(result.noise, key)[d])
                found = float(getattr(result.guides[name], key)[d])
                if key == "std_ratio":
                    found, value, noise = np.log(found), np.log(value), np.log(noise)
                assert abs(found - value) < 5.0 * noise, (name, d, key)
                assert noise < 0.15


# -- by guides wrong by a known amount -----------------------------------------------------------


class Distorted(LaplaceGuide):
    """Laplace's posterior with its mean moved and its spread scaled."""

    shift = torch.zeros(3, dtype=torch.float64)
    factor = 1.0

    def posterior(self, batch: DocumentBatch, init=None, **kwargs) -> NormalPosterior:
        posterior = super().posterior(batch, init, **kwargs)
        posterior.mean = posterior.mean + self.shift
        posterior.whitened = posterior.whitened * self.factor
        return posterior


def distorted(model: TopicModel, shift: np.ndarray, factor: float) -> Distorted:
    guide = Distorted(model)
    guide.shift, guide.factor = torch.from_numpy(shift), factor
    return guide


@cache
def blank() -> tuple[TopicModel, Corpus, PosteriorAccuracy]:
    """Words that say nothing of the topics: the posterior is the prior, and Laplace's exact."""
    model = make_model("ctm", make_topics(informative=False))
    corpus = make_corpus((5,) * 60)
    scale = np.sqrt(np.diag(CENTRE @ COVARIANCE @ CENTRE))
    guides = {
        "exact": LaplaceGuide(model),
        # The common part of a shift is not to be seen.
        "moved": distorted(model, scale * CENTRE[0] + 7.0, 1.0),
        "narrow": distorted(model, np.zeros(3), 0.5),
    }
    return model, corpus, measure(model, guides, corpus, num_draws=400, warmup_steps=150)


@pytest.mark.slow
@pytest.mark.stat
def test_an_exact_posterior_has_the_distance_of_the_noise() -> None:
    """Ratios to the noise stated, over 60 documents that share nothing, within 5 standard errors.

    A distance squared has the noise squared as its mean, with at most the relative standard
    deviation 1 of two dimensions: 0.13 over the documents. That of the total variation is in
    proportion to the noise itself: at most 0.6 a document, 0.08 over all.
    """
    _, _, result = blank()
    assert int(result.reliable.sum()) > 50
    exact, noise = result.guides["exact"], result.noise
    for key in ("mean_error", "covariance_error"):
        ratio = (getattr(exact, key) / getattr(noise, key)).square()
        assert abs(float(ratio.mean()) - 1.0) < 0.65, key
    z = exact.std_ratio.log() / noise.std_ratio.log()
    # The median of |z| is 0.67, with a standard error of 0.10 over 60.
    assert 0.3 < float(z.abs().median()) < 1.2
    variation = exact.total_variation / noise.total_variation
    assert abs(float(variation.mean()) - 1.0) < 0.4
    assert float(exact.mean_error.max()) < 0.2


@pytest.mark.slow
def test_deliberate_errors_are_measured() -> None:
    """Tolerances are five times the noise of an average over 60 documents, and more."""
    _, _, result = blank()
    used, noise = result.reliable, result.average("noise")
    moved, narrow = result.average("moved"), result.average("narrow")
    scale = np.sqrt(np.diag(CENTRE @ COVARIANCE @ CENTRE))
    shift = np.sqrt(np.mean((CENTRE @ (scale * CENTRE[0]) / scale) ** 2))
    assert moved["mean_error"][0] == pytest.approx(shift, abs=0.02)
    assert moved["std_ratio"][0] == pytest.approx(1.0, abs=0.01)
    assert narrow["std_ratio"][0] == pytest.approx(0.5, abs=0.01)
    assert narrow["covariance_error"][0] == pytest.approx(0.75, abs=0.02)
    assert narrow["mean_error"][0] == pytest.approx(noise["mean_error"][0], abs=0.03)
    at_mean = softmax(LOC + scale * CENTRE[0] + 7.0)
    assert at_mean[0] > softmax(LOC)[0]
    assert moved["total_variation"][0] > 3 * noise["total_variation"][0]
    values = result.guides["moved"].mean_error[used]
    error = float(values.std()) / np.sqrt(int(used.sum()))
    assert moved["mean_error"][1] == pytest.approx(error)


# -- what a result is ----------------------------------------------------------------------------


@pytest.mark.slow
def test_distances_of_a_document_do_not_depend_on_its_batch() -> None:
    model, corpus = make_model("ctm", make_topics()), make_corpus()
    options = {"num_draws": 100, "warmup_steps": 10}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*are left out", UserWarning)
        together = measure(model, TaylorGuide(model), corpus, **options)
        parts = measure(model, TaylorGuide(model), corpus, max_docs=2, **options)
    for key, value in vars(together.guides["taylor"]).items():
        torch.testing.assert_close(getattr(parts.guides["taylor"], key), value, rtol=1e-3, atol=0)
    assert list(together.guides) == ["taylor"]


@pytest.mark.slow
def test_documents_are_drawn_at_random_from_those_with_tokens() -> None:
    model, corpus = make_model("ctm", make_topics()), make_corpus((3, 0) * 10)
    options = {"num_docs": 6, "num_draws": 100, "warmup_steps": 5}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*are left out", UserWarning)
        chosen = [
            measure(model, TaylorGuide(model), corpus, seed=seed, **options).index.tolist()
            for seed in (0, 0, 1)
        ]
    assert chosen[0] == chosen[1] != chosen[2]
    assert all(len(set(part)) == 6 and part == sorted(part) for part in chosen)
    assert all(position % 2 == 0 for part in chosen for position in part)


@pytest.mark.slow
def test_chains_too_short_are_left_out_with_a_warning() -> None:
    model, corpus = make_model("lda", make_topics()), make_corpus()
    with pytest.warns(UserWarning, match=r"chains of 5 of 5 documents \(positions 0, 2, 3, 5, 6\)"):
        result = measure(model, EPGuide(model), corpus, num_chains=2, num_draws=100, warmup_steps=5)
    assert not bool(result.reliable.any())
    assert np.isnan(result.average("ep")["mean_error"][0])
    assert result.to_dict()["posteriors"]["ep"]["average"]["mean_error"]["mean"] is None
    assert "0 of 5 documents" in repr(result)


@pytest.mark.slow
def test_averages_leave_out_unreliable_documents() -> None:
    _, _, result = blank()
    few = torch.zeros_like(result.reliable)
    few[[3, 8]] = True
    part = PosteriorAccuracy(**{**vars(result), "reliable": few})
    expected = result.guides["narrow"].covariance_error[[3, 8]].mean()
    assert part.average("narrow")["covariance_error"][0] == pytest.approx(float(expected))
    assert part.to_dict()["num_reliable"] == 2


def test_invalid_arguments_are_refused() -> None:
    model, corpus = make_model("ctm", make_topics()), make_corpus()
    guide = TaylorGuide(model)
    for options, named in (
        ({"num_docs": 0}, "num_docs is 0"),
        ({"num_chains": 1}, "num_chains is 1; expected at least 2"),
        ({"num_draws": 50}, "num_draws is 50"),
        ({"warmup_steps": -1}, "warmup_steps is -1"),
        ({"seed": -1}, "seed is -1"),
        ({"max_docs": 0}, "max_docs is 0"),
    ):
        with pytest.raises(ConfigError, match=named):
            measure(model, guide, corpus, **options)
    for guides in ({}, {"noise": guide}):
        with pytest.raises(ConfigError, match="guides are named"):
            measure(model, guides, corpus)
    with pytest.raises(ConfigError, match="no document with tokens"):
        measure(model, guide, make_corpus()[[1, 4]])
    with pytest.raises(ConfigError, match="corpus has 3 words and the model 8"):
        measure(model, guide, Corpus.from_matrix(np.ones((2, 3), dtype=int)))
    other = make_model("ctm", make_topics())
    with pytest.raises(IncompatibleGuideError, match=r"another model.*BleiLaffertyGuide\(model\)"):
        measure(other, {"a": TaylorGuide(other), "b": BleiLaffertyGuide(model)}, corpus)
