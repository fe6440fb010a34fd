"""Joint chains of factor priors, and of priors that stay fixed, draw from the posterior.

The tests follow *Geweke 2004, Getting it right*, as in ``test_joint_exactness.py``: sweeps of the
chain take turns with new words for the documents, from exact draws of everything. All states then
have the moments of the exact draws, if a sweep leaves the posterior unchanged.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import t as student

import torch_lntm as lntm
from torch_lntm.corpus import Corpus
from torch_lntm.errors import IncompatibleGuideError, NumericalError
from torch_lntm.inference import JointChain, joint_draws
from torch_lntm.models import DirichletPrior, DirichletTopics, IndependentFactorPrior, TopicModel
from torch_lntm.models.topics import dirichlet
from torch_lntm.sampling.step_sizes import DualAveraging

NUM_WORDS, BETA = 3, 0.5
LENGTHS = np.array([6, 8, 10, 12, 8])
NUM_RUNS, NUM_SWEEPS = 60, 15
#: Sources and logits that are known: they make the flat prior of loc a proper prior with moments.
SOURCES = np.array([[1.2], [-0.9], [0.4], [-1.6], [0.7], [0.1]])
LOGITS = np.array([[1.1, -1.0], [-0.6, 1.2], [0.1, -0.5], [-1.9, 1.1], [0.9, -0.2], [0.4, 0.3]])
WEIGHT = 6.0
#: Probability that a test fails where nothing is wrong.
FALSE_ALARM = 1e-4
CONCENTRATION = np.array([0.7, 1.4])

Array = NDArray[np.float64]
#: Arrays of draws by name; the first axis is that of draws.
State = dict[str, Array]


def draw_words(topics: Array, theta: Array, rng: np.random.Generator) -> NDArray[np.int64]:
    """Word counts of the documents ``(num_draws, num_docs, num_words)``."""
    return rng.multinomial(LENGTHS, theta @ topics)


def features(state: State) -> Array:
    """Numbers whose means are compared ``(num_draws, num_features)``."""
    theta, topics, counts = (state[name] for name in ("theta", "topics", "counts"))
    size = len(theta)
    log_likelihood = (counts * np.log(np.where(counts, theta @ topics, 1.0))).sum((1, 2))
    more = counts[..., 0] - counts[..., 1]
    columns = [topics.reshape(size, -1), topics.reshape(size, -1) ** 2]
    columns += [np.square(topics[:, 0] - topics[:, 1]).sum(1), theta[..., 0]]
    columns += [np.square(theta[..., 0] - 0.5), log_likelihood]
    columns += [((theta[..., 0] - 0.5) * more).sum(1)]
    if "variance" in state:
        mixing, log_variance = state["mixing"][..., 0], np.log(state["variance"])
        columns += [log_variance, log_variance**2, state["loc"], mixing, mixing**2]
        columns += [mixing.prod(1), np.square(state["source"]).mean((1, 2))]
    return np.column_stack(columns)


def draw_factor_prior(source: str, size: int, rng: np.random.Generator) -> State:
    """Draws of a factor prior given the known documents, the noise on a grid.

    The prior of a topic's noise variance ψ and its row a of A is
    ψ^(−w/2) exp(−w (1 + Var s × a²) / (2ψ)).
    """
    spread = {"gaussian": 1.0, "laplace": 2.0}[source]
    grid = np.exp(np.linspace(np.log(1e-3), np.log(1e3), 6000))
    design = np.column_stack([SOURCES, np.ones(len(SOURCES))])
    precision = design.T @ design + np.diag([WEIGHT * spread, 0.0])
    mean = np.linalg.solve(precision, design.T @ LOGITS).T
    drawn = np.empty((size, 2, 2))
    variance = np.empty((size, 2))
    for k in range(2):
        # exp(−quadratic / (2ψ)), with the quadratic's least value over a and loc, and ψ for the
        # normal integral over both. The grid has equal steps of log ψ: a further factor ψ.
        least = WEIGHT + LOGITS[:, k] @ LOGITS[:, k] - mean[k] @ precision @ mean[k]
        power = 1.0 - WEIGHT / 2 - len(LOGITS) / 2 + 1.0
        log_mass = power * np.log(grid) - least / (2 * grid)
        mass = np.exp(log_mass - log_mass.max())
        variance[:, k] = grid[rng.choice(len(grid), size, p=mass / mass.sum())]
        root = np.linalg.cholesky(np.linalg.inv(precision))
        noise = rng.standard_normal((size, 2)) @ root.T
        drawn[:, k] = mean[k] + np.sqrt(variance[:, k, None]) * noise
    return {"variance": variance, "mixing": drawn[..., :1], "loc": drawn[..., 1]}


def draw_states(kind: str, size: int, rng: np.random.Generator) -> State:
    """Draws of everything."""
    topics = rng.dirichlet(np.full(NUM_WORDS, BETA), (size, 2))
    shape = (size, len(LENGTHS))
    if kind == "dirichlet":
        theta = rng.dirichlet(CONCENTRATION, shape)
        state = {"theta": theta}
    else:
        state = draw_factor_prior(kind, size, rng)
        draw = rng.standard_normal if kind == "gaussian" else rng.laplace
        source = draw(size=(*shape, 1))
        noise = rng.standard_normal((*shape, 2)) * np.sqrt(state["variance"])[:, None]
        eta = state["loc"][:, None] + source @ state["mixing"].mT + noise
        theta = np.exp(eta) / np.exp(eta).sum(-1, keepdims=True)
        state |= {"source": source, "eta": eta, "theta": theta}
    return state | {"topics": topics, "counts": draw_words(topics, theta, rng)}


class InformedPrior(IndependentFactorPrior):
    """A factor prior that has seen the known documents as well."""

    def draw_(self, num_docs: float, rng: np.random.Generator, **sums: Any) -> None:
        known = {
            "eta_sum": LOGITS.sum(0),
            "eta_square": np.square(LOGITS).sum(0),
            "source_sum": SOURCES.sum(0),
            "eta_source": LOGITS.T @ SOURCES,
            "source_outer": SOURCES.T @ SOURCES,
        }
        both = {name: value + torch.from_numpy(known[name]) for name, value in sums.items()}
        super().draw_(num_docs + len(LOGITS), rng, **both)


def make_chain(kind: str, counts: NDArray[np.int64]) -> JointChain:
    """A chain with constant step sizes."""
    prior: Any
    if kind == "dirichlet":
        prior = DirichletPrior(2, concentration=CONCENTRATION, dtype=torch.float64)
    else:
        settings: Any = {"source": kind, "pseudo_documents": WEIGHT, "pseudo_variance": 1.0}
        prior = InformedPrior(2, 1, **settings, dtype=torch.float64)
    model = TopicModel(prior, DirichletTopics(2, NUM_WORDS, dtype=torch.float64))
    corpus = Corpus.from_matrix(counts)
    chain = JointChain(model, corpus, warmup_steps=1, prior=kind != "dirichlet")
    step_size = torch.full((1, len(LENGTHS)), 0.6, dtype=torch.float64)
    adapted = DualAveraging.start(step_size)._replace(log_average=step_size.log())
    chain._progress = adapted._replace(num_updates=1)
    return chain


def place(chain: JointChain, state: State) -> None:
    """Move a chain to a state, the only one of its axis."""
    tensors = {name: torch.from_numpy(value) for name, value in state.items()}
    prior: Any = chain.model.prior
    if "variance" in state:
        precision = 1 / tensors["variance"][0]
        prior.set_(loc=tensors["loc"][0], mixing=tensors["mixing"][0], noise_precision=precision)
        chain._latents = {name: tensors[name] for name in ("source", "eta")}
    else:
        chain._latents = {"theta": tensors["theta"]}
    chain.model.topics.set_(tensors["topics"][0])


def swept(chain: JointChain, state: State, rng: np.random.Generator) -> State:
    """The state after new words and a sweep."""
    counts = draw_words(state["topics"], state["theta"], rng)
    chain._observe(Corpus.from_matrix(counts[0]).batch(dtype=torch.float64))
    theta = chain.sweep()[None].numpy()
    found = {name: value.numpy() for name, value in chain._latents.items()} | {"theta": theta}
    prior: Any = chain.model.prior
    if "variance" in state:
        values = {"loc": prior.loc, "mixing": prior.mixing, "variance": 1 / prior.noise_precision}
        found |= {name: value.detach()[None].numpy().copy() for name, value in values.items()}
    topics = chain.model.topics.probs.detach()[None].numpy()
    return found | {"topics": topics, "counts": counts}


@pytest.mark.long
@pytest.mark.parametrize("kind", ["gaussian", "laplace", "dirichlet"])
def test_a_sweep_leaves_the_joint_posterior_unchanged(kind: str, monkeypatch) -> None:
    """Runs begin at exact draws, so their means are independent."""
    monkeypatch.setattr(dirichlet, "improved_concentration", lambda *arguments: BETA)
    expected = features(draw_states(kind, 100_000, np.random.default_rng(0))).mean(0)
    rng = np.random.default_rng(1)
    starts = draw_states(kind, NUM_RUNS, rng)
    chain = make_chain(kind, starts["counts"][0])
    means = []
    for run in range(NUM_RUNS):
        state = {name: values[run : run + 1] for name, values in starts.items()}
        place(chain, state)
        visited = []
        for _ in range(NUM_SWEEPS):
            state = swept(chain, state, rng)
            visited.append(features(state)[0])
        means.append(np.mean(visited, 0))
    # The part of the runs' means that their starts explain is subtracted: its mean is known.
    away, found = features(starts) - expected, np.array(means)
    centred = away - away.mean(0)
    found -= away * (centred * found).sum(0) / np.square(centred).sum(0)
    error = found.std(0, ddof=2) / np.sqrt(NUM_RUNS)
    statistic = np.abs(found.mean(0) - expected) / error
    limit = student.isf(FALSE_ALARM / 2 / len(expected), NUM_RUNS - 2)
    assert (statistic < limit).all(), np.round(statistic, 1)


@pytest.mark.stat
@pytest.mark.parametrize("source", ["gaussian", "laplace"])
def test_a_factor_prior_is_drawn_from_its_posterior(source: Any) -> None:
    """Draws are independent, given the known documents alone."""
    settings: Any = {"source": source, "pseudo_documents": WEIGHT, "dtype": torch.float64}
    prior, rng = InformedPrior(2, 1, **settings), np.random.default_rng(0)
    names = {"eta_sum": 2, "eta_square": 2, "source_sum": 1, "eta_source": (2, 1)}
    nothing = {name: torch.zeros(shape).double() for name, shape in names.items()}
    nothing["source_outer"] = torch.zeros(1, 1).double()
    drawn = []
    for _ in range(2000):
        prior.draw_(0, rng, **nothing)
        rows = torch.cat([prior.mixing, prior.loc[:, None]], 1).flatten()
        values = [-prior.log_noise_precision, rows, rows.square()]
        drawn.append(torch.cat(values).detach().numpy())
    exact = draw_factor_prior(source, 200_000, np.random.default_rng(1))
    rows = np.concatenate([exact["mixing"], exact["loc"][..., None]], 2).reshape(200_000, -1)
    expected = np.column_stack([np.log(exact["variance"]), rows, rows**2]).mean(0)
    found = np.array(drawn)
    statistic = np.abs(found.mean(0) - expected) / (found.std(0) / np.sqrt(len(found)))
    assert (statistic < student.isf(FALSE_ALARM / 2 / len(expected), len(found))).all(), statistic


def test_too_few_documents_for_a_proper_posterior_are_refused() -> None:
    prior = IndependentFactorPrior(3, 1, pseudo_documents=0.0)
    with pytest.raises(NumericalError, match="4 documents and pseudo_documents=0 leave the noise"):
        prior.draw_(4, np.random.default_rng(0))


@pytest.mark.slow
def test_fixed_priors_stay_and_are_named() -> None:
    rng = np.random.default_rng(0)
    corpus = Corpus.from_matrix(rng.multinomial(20, rng.dirichlet(np.full(10, 0.3), 40)))
    model = lntm.models.lda(3, 10, seed=1)
    with pytest.raises(IncompatibleGuideError, match=r"DirichletPrior has no .*prior=False"):
        joint_draws(model, corpus)
    draws = joint_draws(model, corpus, num_draws=3, warmup_steps=5, prior=False)
    assert draws.fixed == ("the prior's parameters",)
    assert draws.sources_of_uncertainty == ("the documents' proportions", "the topics' words")
    concentration = draws.model.prior.concentration  # type: ignore[operator]
    assert torch.equal(concentration, model.prior.concentration)  # type: ignore[arg-type]
    assert not torch.equal(draws.model.topics.probs, model.topics.probs)
    torch.testing.assert_close(draws.theta.sum(-1), torch.ones(3, 40))
    factors = lntm.models.iftm(4, 10, 2, seed=1)
    assert joint_draws(factors, corpus, num_draws=2, warmup_steps=5).fixed == ()
    kept = joint_draws(factors, corpus, num_draws=2, warmup_steps=5, topics=False, prior=False)
    assert kept.fixed == ("the topics' words", "the prior's parameters")


@pytest.mark.slow
def test_topics_of_groups_stay_fixed() -> None:
    rng = np.random.default_rng(0)
    counts = rng.multinomial(20, rng.dirichlet(np.full(10, 0.3), 40))
    corpus = Corpus.from_matrix(counts, metadata={"side": np.arange(40) % 2})
    model = lntm.models.stm(3, corpus, content="side")
    with pytest.raises(IncompatibleGuideError, match=r"without groups or periods.*topics=False"):
        joint_draws(model, corpus)
    draws = joint_draws(model, corpus, num_draws=2, warmup_steps=5, topics=False)
    assert draws.fixed == ("the topics' words",)
