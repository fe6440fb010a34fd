"""Chains with an outcome draw from the joint posterior of shares, coefficients and topics.

As in *Geweke 2004*, new words and outcomes of the documents take turns with sweeps of the chain,
which then visit the prior.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import t as student

from torch_lntm.corpus import Corpus
from torch_lntm.inference import JointChain
from torch_lntm.models import DirichletPrior, DirichletTopics, LogisticNormalPrior, TopicModel
from torch_lntm.models.topics.topics import FixedTopics
from torch_lntm.outcomes import families
from torch_lntm.outcomes.chain import OutcomeChain
from torch_lntm.sampling.step_sizes import DualAveraging

PHI = np.array([[0.6, 0.3, 0.1], [0.1, 0.3, 0.6]])
LENGTHS, X = np.array([3, 6, 9, 3, 6, 4, 5, 3]), np.linspace(-1.0, 1.0, 8)
SCALE = 2.5  # of the coefficients' prior
NUM_RUNS, NUM_SWEEPS = 100, 20

Array = Any


def draw_words(theta: Array, rng: np.random.Generator) -> Array:
    return rng.multinomial(LENGTHS, theta @ PHI)


def draw_outcome(kind: str, mean: Array, variance: float, rng: np.random.Generator) -> Array:
    if kind == "normal":
        return mean + np.sqrt(variance) * rng.standard_normal(mean.shape)
    if kind == "binomial":
        return (rng.random(mean.shape) < 1 / (1 + np.exp(-mean))).astype(float)
    return rng.poisson(np.exp(mean)).astype(float)


def features(kind: str, theta: Array, coefficients: Array, variance: float, y: Array) -> Array:
    first, (a, b, c) = theta[:, 0] - 0.5, coefficients
    squeezed = np.arctan(y)
    numbers = [a, b, c, a * a, b * b, c * c, a * b, *first, *first**2, np.mean(first * squeezed)]
    numbers += [first.sum() * (a - b), squeezed.mean() * c, np.mean(squeezed)]
    return np.array([*numbers, *([np.log(variance)] if kind == "normal" else [])])


def draw_state(kind: str, prior: str, rng: np.random.Generator) -> tuple[Array, Array, float]:
    """Shares, coefficients and variance from their priors."""
    if prior == "dirichlet":
        theta = rng.dirichlet([0.7, 1.4], len(X))
    else:
        eta = rng.standard_normal((len(X), 2))
        theta = np.exp(eta) / np.exp(eta).sum(1, keepdims=True)
    variance = 0.5 / rng.gamma(0.5) if kind == "normal" else 1.0
    return theta, SCALE * rng.standard_normal(3), variance


def make_chain(kind: str, prior: str, counts: Array, y: Array) -> OutcomeChain:
    of_documents: Any = LogisticNormalPrior(2, dtype=torch.float64)
    if prior == "dirichlet":
        of_documents = DirichletPrior(2, concentration=np.array([0.7, 1.4]), dtype=torch.float64)
    model = TopicModel(of_documents, FixedTopics(torch.from_numpy(PHI)))
    family: Any = {"normal": families.Normal, "binomial": families.Binomial}.get(
        kind, families.Poisson
    )(y + np.arange(len(y)), X[:, None], 2)
    family.means, family.scales, family.x = np.zeros(1), np.ones(1), X[:, None]
    family.y, family.centre, family.unit = y, 0.0, 1.0
    options: Any = {"warmup_steps": 1, "topics": False, "prior": False}
    chain = OutcomeChain(model, Corpus.from_matrix(counts), family, cut=False, **options)
    step_size = torch.full((1, len(X)), 0.6, dtype=torch.float64)
    adapted = DualAveraging.start(step_size)._replace(log_average=step_size.log())
    chain._progress = adapted._replace(num_updates=1)
    return chain


def place(
    chain: OutcomeChain, theta: Array, coefficients: Array, variance: float, rng: Any
) -> None:
    """Move a chain to a state. Logits of a normal prior have a mean of their own besides."""
    latent = theta
    if "eta" in chain._latents:
        centred = np.log(theta) - np.log(theta).mean(1, keepdims=True)
        latent = centred + rng.standard_normal((len(X), 1)) / np.sqrt(2)
    chain.theta, chain.family.coefficients = theta, coefficients
    chain._latents = {site: torch.from_numpy(latent)[None] for site in chain._latents}
    chain._logits = torch.from_numpy(np.log(theta))[None]
    if isinstance(chain.family, families.Normal):
        chain.family.variance = variance


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "prior"),
    [("normal", "normal"), ("binomial", "normal"), ("poisson", "normal"), ("normal", "dirichlet")],
)
def test_a_sweep_leaves_the_posterior_unchanged(kind: str, prior: str, monkeypatch) -> None:
    """Runs begin at exact draws, so that their means are independent."""
    monkeypatch.setattr(families, "PRIOR_SCALE", SCALE)
    rng = np.random.default_rng(3)

    def exact() -> tuple[Any, ...]:
        theta, coefficients, variance = draw_state(kind, prior, rng)
        y = draw_outcome(kind, theta @ coefficients[:2] + X * coefficients[2], variance, rng)
        return theta, coefficients, variance, y

    expected = np.mean([features(kind, *exact()) for _ in range(40_000)], 0)
    chain = make_chain(kind, prior, draw_words(exact()[0], rng), np.arange(8.0) % 2)
    starts, means = [], []
    for _ in range(NUM_RUNS):
        theta, coefficients, variance, y = exact()
        starts.append(features(kind, theta, coefficients, variance, y))
        place(chain, theta, coefficients, variance, rng)
        visited = []
        for _ in range(NUM_SWEEPS):
            family: Any = chain.family
            counts = draw_words(chain.theta, rng)
            mean = family.predictor(chain.theta)
            family.y = y = draw_outcome(kind, mean, getattr(family, "variance", 1.0), rng)
            chain._observe(Corpus.from_matrix(counts).batch(dtype=torch.float64))
            chain.sweep()
            variance = getattr(family, "variance", 1.0)
            visited.append(features(kind, chain.theta, family.coefficients, variance, y))
        means.append(np.mean(visited, 0))
    # The part of the runs' means that their starts explain is subtracted: its mean is known.
    away, found = np.array(starts) - expected, np.array(means)
    centred = away - away.mean(0)
    found -= away * (centred * found).sum(0) / np.square(centred).sum(0)
    error = found.std(0, ddof=2) / np.sqrt(NUM_RUNS)
    statistic = np.abs(found.mean(0) - expected) / error
    limit = student.isf(1e-4 / 2 / len(expected), NUM_RUNS - 2)
    assert (statistic < limit).all(), np.round(statistic, 1)


def test_shares_given_an_outcome_follow_their_density(monkeypatch) -> None:
    """Against quadrature over the difference of two logits, at known coefficients."""
    rng, y = np.random.default_rng(7), np.full(len(X), 1.5)
    counts = draw_words(np.full((len(X), 2), 0.5), rng)
    chain = make_chain("normal", "normal", counts, y)
    monkeypatch.setattr(chain.family, "draw_", lambda theta, rng: None)
    place(chain, chain.theta, np.array([2.0, -2.0, 0.5]), 0.5, rng)
    found = []
    for _ in range(3000):
        chain.sweep()
        found.append(chain.theta[:, 0])
    grid = np.linspace(-12.0, 12.0, 2001)
    share = 1 / (1 + np.exp(-grid))
    mean = 4.0 * share - 2.0 + 0.5 * X[:, None]
    log_mass = -(grid**2) / 4 - (y[:, None] - mean) ** 2 / (2 * 0.5)
    log_mass += counts @ np.log(np.outer(PHI[0], share) + np.outer(PHI[1], 1 - share))
    mass = np.exp(log_mass - log_mass.max(1, keepdims=True))
    expected = mass @ share / mass.sum(1)
    drawn = np.array(found).reshape(50, 60, -1).mean(1)
    error = drawn.std(0, ddof=1) / np.sqrt(50)
    assert (np.abs(drawn.mean(0) - expected) < 4.5 * error).all()


def make_posts(num_docs: int = 40) -> Corpus:
    rng = np.random.default_rng(0)
    counts = rng.multinomial(12, rng.dirichlet(np.full(10, 0.3), num_docs))
    return Corpus.from_matrix(counts)


def test_cut_topics_do_not_know_the_outcome() -> None:
    """They are those of a chain without an outcome; joint ones are not."""
    corpus = make_posts()
    model = TopicModel(LogisticNormalPrior(3), DirichletTopics(3, 10))
    y = np.random.default_rng(1).standard_normal(40)
    options: Any = {"warmup_steps": 3, "seed": 5}
    alone = JointChain(model, corpus, **options)
    chains = {}
    for cut in (True, False):
        family = families.Normal(y, np.zeros((40, 0)), 3)
        chains[cut] = OutcomeChain(model, corpus, family, cut=cut, **options)
    for _ in range(4):
        for chain in (alone, *chains.values()):
            chain.sweep()
    assert torch.equal(chains[True].model.topics.probs, alone.model.topics.probs)
    assert not torch.equal(chains[False].model.topics.probs, alone.model.topics.probs)
    assert 0 < chains[True].acceptance <= 1
