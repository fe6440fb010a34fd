"""Joint chains draw from the posterior: each of their parts, and all together.

All together are tested as in *Geweke 2004, Getting it right*. Parameters are drawn from their
prior, documents from the model, and then sweeps of the chain take turns with new words for the
documents. Each state so visited is again a draw from the joint distribution, if and only if a sweep
leaves the posterior unchanged, so that all of them together have the prior's moments. A part that
is wrong shows more clearly alone, in the other tests.

The topics' concentration and the step sizes stand still: a chain that estimates the one, or is
still adapting the others, has no distribution of its own.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import gammaln
from scipy.stats import t as student

from torch_lntm.corpus import Corpus
from torch_lntm.inference import JointChain
from torch_lntm.models import (
    DirichletTopics,
    Keywords,
    LogisticNormalPrior,
    StructuralPrior,
    TopicModel,
)
from torch_lntm.models.priors.covariates import Covariates
from torch_lntm.models.topics import dirichlet
from torch_lntm.sampling.step_sizes import DualAveraging

NUM_TOPICS, NUM_WORDS, BETA = 2, 3, 0.5
#: Tokens of the documents, and a covariate of theirs.
LENGTHS, X = np.array([6, 8, 10, 12, 8]), np.array([-1.0, -0.5, 0.5, 1.0, 2.0])
#: Logits that are known, with their covariate: they make the flat prior of the intercept and the
#: wide ones of slopes and penalty a proper prior with moments.
KNOWN = np.array([[2.8, -2.6], [-1.6, 1.9], [-1.2, 1.4], [1.9, -1.6], [0.3, -0.4]])
KNOWN_X = np.array([2.0, 0.0, 1.6, 0.4, 0.5])
WEIGHT = 6.0
NUM_RUNS, NUM_SWEEPS, STEP_SIZE = 40, 10, 0.8
#: Probability that a test fails where nothing is wrong.
FALSE_ALARM = 1e-4

Array = NDArray[np.float64]


class State(NamedTuple):
    """Parameters, documents' logits and their words; the first axis is that of draws."""

    penalty: Array
    covariance: Array
    rows: Array
    topics: Array
    eta: Array
    counts: NDArray[np.int64]


def draw_states(size: int, rng: np.random.Generator) -> State:
    """Draws of everything, parameters from the prior given the known logits.

    The penalty is drawn from its marginal on a grid, then the covariance is inverse-Wishart, and
    intercept and slope are normal given it.
    """
    design = np.column_stack([np.ones_like(KNOWN_X), KNOWN_X])
    grid = np.exp(np.linspace(np.log(1e-5), np.log(100.0), 4000))
    precision = design.T @ design + grid[:, None, None] * np.diag([0.0, 1.0])
    mean = np.linalg.solve(precision, design.T @ KNOWN)
    explained = np.einsum("gik,gij,gjl->gkl", mean, precision, mean)
    scale = WEIGHT * np.eye(NUM_TOPICS) + KNOWN.T @ KNOWN - explained
    # |Σ|^(−WEIGHT/2) of the prior, and |Σ|^(−½) of each vector of logits. The slope has |Σ|^(−½)
    # too; integrating it out takes that away, and integrating the intercept |Σ|^(−½) more.
    freedom = int(WEIGHT) + len(KNOWN) - 1 - NUM_TOPICS - 1
    # Gamma(½, ½) and the slope's normaliser, times what the integrals leave. The points of the
    # grid are equally far apart in log penalty, which is another factor of the penalty.
    log_mass = 0.5 * np.log(grid) - 0.5 * grid + 0.5 * NUM_TOPICS * np.log(grid)
    log_mass -= 0.5 * NUM_TOPICS * np.linalg.slogdet(precision)[1]
    log_mass -= 0.5 * freedom * np.linalg.slogdet(scale)[1]
    mass = np.exp(log_mass - log_mass.max())
    cell = rng.choice(len(grid), size, p=mass / mass.sum())
    # A Wishart matrix is the sum of outer products of normal vectors.
    normal = rng.standard_normal((size, freedom, NUM_TOPICS))
    root = np.linalg.cholesky(scale)[cell]
    covariance = root @ np.linalg.inv(normal.mT @ normal) @ root.mT
    tril = np.linalg.cholesky(covariance)
    between = np.linalg.cholesky(np.linalg.inv(precision))[cell]
    rows = mean[cell] + between @ rng.standard_normal((size, 2, NUM_TOPICS)) @ tril.mT
    topics = rng.dirichlet(np.full(NUM_WORDS, BETA), (size, NUM_TOPICS))
    noise = rng.standard_normal((size, len(X), NUM_TOPICS))
    eta = rows[:, :1] + X[:, None] * rows[:, 1:] + noise @ tril.mT
    return State(grid[cell], covariance, rows, topics, eta, draw_words(topics, eta, rng))


def proportions(eta: Array) -> Array:
    """Topic proportions of logits."""
    powers = np.exp(eta)
    return powers / powers.sum(-1, keepdims=True)


def draw_words(topics: Array, eta: Array, rng: np.random.Generator) -> NDArray[np.int64]:
    """Word counts of the documents ``(num_draws, num_docs, num_words)``."""
    return rng.multinomial(LENGTHS, proportions(eta) @ topics)


def prior_features(state: State) -> Array:
    """Numbers of the prior's parameters whose means are compared ``(num_draws, num_features)``."""
    log_penalty = np.log(state.penalty)
    variances = np.diagonal(state.covariance, axis1=1, axis2=2)
    intercept, slope = state.rows.transpose(1, 2, 0)
    columns = [
        [log_penalty, log_penalty**2],
        np.log(variances.T),
        [state.covariance[:, 0, 1] / np.sqrt(variances.prod(1))],
        [np.log(np.linalg.det(state.covariance))],
        [*intercept, *slope, *np.abs(slope), intercept[0] * slope[0], slope[0] * slope[1]],
    ]
    return np.column_stack([column for group in columns for column in group])


def features(state: State) -> Array:
    """Those, and numbers of topics, documents and words."""
    theta = proportions(state.eta)[..., 0]
    probs = proportions(state.eta) @ state.topics
    log_likelihood = (state.counts * np.log(np.where(state.counts, probs, 1.0))).sum((1, 2))
    more = state.counts[..., 0] - state.counts[..., 1]
    topics = state.topics.reshape(len(state.topics), -1)
    distance = np.square(state.topics[:, 0] - state.topics[:, 1]).sum(1)
    columns = [topics, topics**2, distance, theta, np.square(theta - 0.5)]
    columns += [log_likelihood, ((theta - 0.5) * more).sum(1)]
    return np.column_stack([prior_features(state), *columns])


def assert_means(draws: Array, expected: Array, explained: int = 0) -> None:
    """The means of independent rows are as expected, by t tests that share ``FALSE_ALARM``.

    Args:
        draws: ``(num_draws, num_features)``.
        expected: ``(num_features,)``.
        explained: Degrees of freedom that the draws have lost.
    """
    num_draws, num_features = draws.shape
    error = draws.std(0, ddof=1 + explained) / np.sqrt(num_draws)
    statistic = np.abs(draws.mean(0) - expected) / error
    limit = student.isf(FALSE_ALARM / 2 / num_features, num_draws - 1 - explained)
    assert (statistic < limit).all(), np.round(statistic, 1)


def tensors_of(eta: Array, x: Array) -> dict[str, torch.Tensor]:
    """The sums that a structural prior draws from, of documents' logits and covariate."""
    sums = {
        "latent_sum": eta.sum(0),
        "latent_outer": eta.T @ eta,
        "covariate_sum": x.sum(keepdims=True),
        "covariate_outer": np.array([[x @ x]]),
        "covariate_latent": x[None] @ eta,
    }
    return {name: torch.from_numpy(value) for name, value in sums.items()}


class InformedPrior(StructuralPrior):
    """A structural prior that has seen the known logits as well."""

    def __init__(self) -> None:
        one = Covariates(("x",), (0.0,), (1.0,))
        super().__init__(NUM_TOPICS, one, pseudo_documents=WEIGHT, dtype=torch.float64)

    def draw_(self, num_docs: float, rng: np.random.Generator, **sums: Any) -> None:
        known = tensors_of(KNOWN, KNOWN_X)
        both = {name: value + known[name] for name, value in sums.items()}
        super().draw_(num_docs + len(KNOWN), rng, **both)


def corpus_of(counts: NDArray[np.int64]) -> Corpus:
    """The documents with their covariate."""
    return Corpus.from_matrix(counts).with_covariates({"prevalence": X[:, None]})


def place(chain: JointChain, state: State) -> None:
    """Move a chain to a state, the only one of its axis."""
    prior: Any = chain.model.prior
    penalty, covariance, rows, topics, eta = (torch.as_tensor(values) for values in state[:-1])
    prior.set_(loc=rows[0, 0], covariance=covariance[0])
    with torch.no_grad():
        prior.slopes.copy_(rows[0, 1:])
        prior.penalty.copy_(penalty[0])
    chain.model.topics.set_(topics[0])
    chain._latents = {"eta": eta}


def prior_of(prior: Any) -> list[Array]:
    """The parameters of an informed prior, in the order of a state."""
    rows = torch.cat([prior.loc[None], prior.slopes])
    values = (prior.penalty, prior.covariance, rows)
    return [value.detach()[None].numpy().copy() for value in values]


def swept(chain: JointChain, counts: NDArray[np.int64]) -> State:
    """Where a chain is after a sweep over documents of these words ``(1, num_docs, num_words)``."""
    chain._observe(corpus_of(counts[0]).batch(dtype=torch.float64))
    chain.sweep()
    topics = chain.model.topics.probs.detach()[None].numpy()
    eta = chain._latents["eta"].numpy()
    return State(*prior_of(chain.model.prior), topics, eta, counts)


@pytest.fixture(scope="module")
def reference() -> State:
    """Many draws of everything, for the moments."""
    return draw_states(100_000, np.random.default_rng(0))


@pytest.mark.long
def test_a_sweep_leaves_the_joint_posterior_unchanged(reference: State, monkeypatch) -> None:
    """All parts together. Runs begin at exact draws, so that their means are independent."""
    monkeypatch.setattr(dirichlet, "improved_concentration", lambda *arguments: BETA)
    rng = np.random.default_rng(1)
    starts = draw_states(NUM_RUNS, rng)
    model = TopicModel(InformedPrior(), DirichletTopics(NUM_TOPICS, NUM_WORDS, dtype=torch.float64))
    chain = JointChain(model, corpus_of(starts.counts[0]), warmup_steps=1)
    step_size = torch.full((1, len(X)), STEP_SIZE, dtype=torch.float64)
    adapted = DualAveraging.start(step_size)._replace(log_average=step_size.log())
    chain._progress = adapted._replace(num_updates=1)
    means = []
    for run in range(NUM_RUNS):
        state = State(*(values[run : run + 1] for values in starts))
        place(chain, state)
        visited = []
        for _ in range(NUM_SWEEPS):
            state = swept(chain, draw_words(state.topics, state.eta, rng))
            visited.append(features(state)[0])
        means.append(np.mean(visited, 0))
    # What the runs' starts explain of their differences is taken away: its mean is known.
    expected = features(reference).mean(0)
    away, found = features(starts) - expected, np.array(means)
    centred = away - away.mean(0)
    found -= away * (centred * found).sum(0) / np.square(centred).sum(0)
    assert_means(found, expected, explained=1)


@pytest.mark.long
def test_a_structural_prior_is_drawn_from_its_posterior(reference: State) -> None:
    """The known logits alone. Means of 20 draws in turn are as good as independent."""
    prior, rng = InformedPrior(), np.random.default_rng(0)
    nothing = tensors_of(np.zeros((1, NUM_TOPICS)), np.zeros(1))
    drawn = []
    for _ in range(1200):
        prior.draw_(0, rng, **nothing)
        drawn.append(prior_of(prior))
    parameters = (np.concatenate(values) for values in zip(*drawn, strict=True))
    state = State(*parameters, reference.topics, reference.eta, reference.counts)
    found = prior_features(state).reshape(60, 20, -1).mean(1)
    assert_means(found, prior_features(reference).mean(0))


@pytest.mark.long
@pytest.mark.parametrize(
    "keywords",
    [
        None,
        Keywords({"a": {"w0": 0, "w2": 2}}, 3.0, exclusive=False),
        Keywords({"a": {"w0": 0}}, 3.0),
    ],
)
def test_topics_are_drawn_from_their_posterior(monkeypatch, keywords) -> None:
    """Against all the topics that twelve tokens can have, at known proportions.

    Means of 40 draws in turn are as good as independent.
    """
    monkeypatch.setattr(dirichlet, "improved_concentration", lambda *arguments: BETA)
    counts = np.array([[4, 1, 0], [0, 2, 1], [1, 0, 3]])
    theta = np.array([[0.9, 0.1], [0.5, 0.5], [0.15, 0.85]])
    document, word = (np.repeat(index, counts[counts > 0]) for index in np.nonzero(counts))
    assigned = np.array(list(itertools.product(range(NUM_TOPICS), repeat=len(word))))
    cell = np.eye(NUM_TOPICS * NUM_WORDS)[assigned * NUM_WORDS + word].sum(1)
    alpha = BETA + cell.reshape(-1, NUM_TOPICS, NUM_WORDS)
    log_mass = np.log(theta[document, assigned]).sum(1)
    if keywords is not None:
        columns = list(keywords.columns[0])
        alpha[:, 0, columns] += 3.0 / len(columns)
    if keywords is not None and keywords.exclusive:
        log_mass[alpha[:, 1, 0] > BETA] = -np.inf
        alpha[:, 1, 0] = 1e-9
    total = alpha.sum(2, keepdims=True)
    log_mass += gammaln(alpha).sum((1, 2)) - gammaln(total).sum((1, 2))
    mass = np.exp(log_mass) / np.exp(log_mass).sum()
    mean = alpha / total
    square = mean * (alpha + 1) / (total + 1)
    expected = np.tensordot(mass, np.stack([mean, square], 1), 1)

    prior = LogisticNormalPrior(NUM_TOPICS, dtype=torch.float64)
    topics = DirichletTopics(NUM_TOPICS, NUM_WORDS, keywords=keywords, dtype=torch.float64)
    model = TopicModel(prior, topics)
    chain = JointChain(model, Corpus.from_matrix(counts), warmup_steps=1)
    drawn = []
    for _ in range(2040):
        chain._draw_topics(torch.from_numpy(theta))
        drawn.append(chain.model.topics.probs.detach().numpy())
    found = np.stack([drawn, np.square(drawn)], 1)[40:].reshape(50, 40, -1).mean(1)
    possible = expected.ravel() > 1e-6
    assert found[:, ~possible].max(initial=0.0) < 1e-100
    assert_means(found[:, possible], expected.ravel()[possible])
