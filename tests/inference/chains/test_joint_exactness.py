"""Joint chains draw from the posterior: each of their parts, and all together.

All together are tested as in *Geweke 2004, Getting it right*. Parameters are drawn from their
prior, documents from the model, and then sweeps of the chain take turns with new words for the
documents. Each state so visited is again a draw from the joint distribution, if and only if a sweep
leaves the posterior unchanged, so that all of them together have the prior's moments. A part that
is wrong shows more clearly alone, in the other tests.

The step sizes stand still: a chain that is still adapting them has no distribution of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import gammaln, softmax
from scipy.stats import t as student

from torch_lntm.corpus import Corpus, WordVectors
from torch_lntm.inference import JointChain
from torch_lntm.models import (
    DirichletMultinomial,
    DirichletPrior,
    DirichletTopics,
    IndependentFactorPrior,
    Keywords,
    LogisticNormalPrior,
    StructuralPrior,
    TopicModel,
)
from torch_lntm.models.priors.covariates import Covariates
from torch_lntm.sampling.step_sizes import DualAveraging

NUM_TOPICS, NUM_WORDS = 2, 3
#: Tokens of the documents, and a covariate of theirs.
LENGTHS, X = np.array([6, 8, 10, 12, 8]), np.array([-1.0, -0.5, 0.5, 1.0, 2.0])
#: Logits that are known, with their covariate: they make the flat prior of the intercept and the
#: wide ones of slopes and penalty a proper prior with moments.
KNOWN = np.array([[2.8, -2.6], [-1.6, 1.9], [-1.2, 1.4], [1.9, -1.6], [0.3, -0.4]])
KNOWN_X = np.array([2.0, 0.0, 1.6, 0.4, 0.5])
#: Sources and logits that a factor prior knows: they do the same for its flat loc.
SOURCES = np.array([[1.2], [-0.9], [0.4], [-1.6], [0.7], [0.1]])
LOGITS = np.array([[1.1, -1.0], [-0.6, 1.2], [0.1, -0.5], [-1.9, 1.1], [0.9, -0.2], [0.4, 0.3]])
CONCENTRATION = np.array([0.7, 1.4])
WEIGHT = 6.0
STEP_SIZE = 0.6
#: Probability that a test fails where nothing is wrong.
FALSE_ALARM = 1e-4

Array = NDArray[np.float64]
#: Arrays of draws by name; the first axis is that of draws.
State = dict[str, Array]


def draw_structural_prior(size: int, rng: np.random.Generator) -> State:
    """Draws of a structural prior given the known logits.

    Penalty and pseudo-variance are drawn from their marginal on a grid, then the covariance is
    inverse-Wishart, and intercept and slope are normal given it.
    """
    design = np.column_stack([np.ones_like(KNOWN_X), KNOWN_X])
    grid = np.exp(np.linspace(np.log(1e-5), np.log(100.0), 400))
    variance = np.exp(np.linspace(np.log(1e-4), np.log(100.0), 300))
    precision = design.T @ design + grid[:, None, None] * np.diag([0.0, 1.0])
    mean = np.linalg.solve(precision, design.T @ KNOWN)
    explained = np.einsum("gik,gij,gjl->gkl", mean, precision, mean)
    scale = KNOWN.T @ KNOWN - explained[:, None]
    scale = scale + WEIGHT * variance[:, None, None] * np.eye(NUM_TOPICS)
    # |Σ|^(−WEIGHT/2) of the prior, and |Σ|^(−½) of each vector of logits. The slope has |Σ|^(−½)
    # too; integrating it out takes that away, and integrating the intercept |Σ|^(−½) more.
    freedom = int(WEIGHT) + len(KNOWN) - 1 - NUM_TOPICS - 1
    # Gamma(½, ½) and the slope's normaliser, times what the integrals leave. The points of the
    # grid are equally far apart in log penalty, which is another factor of the penalty.
    log_mass = 0.5 * np.log(grid) - 0.5 * grid + 0.5 * NUM_TOPICS * np.log(grid)
    log_mass -= 0.5 * NUM_TOPICS * np.linalg.slogdet(precision)[1]
    log_mass = log_mass[:, None] - 0.5 * freedom * np.linalg.slogdet(scale)[1]
    # Gamma(½, ½) of the pseudo-variance, the normaliser of its inverse-Wishart prior, and the grid.
    log_mass += (0.5 + 0.5 * (WEIGHT - NUM_TOPICS - 1) * NUM_TOPICS) * np.log(variance)
    mass = np.exp(log_mass - 0.5 * variance - log_mass.max()).ravel()
    cell, column = divmod(rng.choice(mass.size, size, p=mass / mass.sum()), len(variance))
    # A Wishart matrix is the sum of outer products of normal vectors.
    normal = rng.standard_normal((size, freedom, NUM_TOPICS))
    root = np.linalg.cholesky(scale[cell, column])
    covariance = root @ np.linalg.inv(normal.mT @ normal) @ root.mT
    tril = np.linalg.cholesky(covariance)
    between = np.linalg.cholesky(np.linalg.inv(precision))[cell]
    rows = mean[cell] + between @ rng.standard_normal((size, 2, NUM_TOPICS)) @ tril.mT
    known = {"penalty": grid[cell], "pseudo": variance[column]}
    return known | {"covariance": covariance, "rows": rows}


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
    shape = (size, len(LENGTHS))
    noise = rng.standard_normal((*shape, NUM_TOPICS))
    state: State = {}
    if kind == "structural":
        state = draw_structural_prior(size, rng)
        rows, tril = state["rows"], np.linalg.cholesky(state["covariance"])
        state["eta"] = rows[:, :1] + X[:, None] * rows[:, 1:] + noise @ tril.mT
    elif kind != "dirichlet":
        state = draw_factor_prior(kind, size, rng)
        draw = rng.standard_normal if kind == "gaussian" else rng.laplace
        state["source"] = source = draw(size=(*shape, 1))
        mean = state["loc"][:, None] + source @ state["mixing"].mT
        state["eta"] = mean + noise * np.sqrt(state["variance"])[:, None]
    if "eta" in state:
        state["theta"] = np.exp(state["eta"]) / np.exp(state["eta"]).sum(-1, keepdims=True)
    else:
        state["theta"] = rng.dirichlet(CONCENTRATION, shape)
    state["beta"] = rng.standard_exponential(size)
    # A gamma number of shape β is one of shape β + 1 times u^(1/β), which may be too small for exp.
    beta, shape = state["beta"][:, None, None], (size, NUM_TOPICS, NUM_WORDS)
    state["topics"] = softmax(
        np.log(rng.standard_gamma(beta + 1, shape)) - rng.standard_exponential(shape) / beta, 2
    )
    return state | {"counts": draw_words(state, rng)}


def draw_words(state: State, rng: np.random.Generator) -> NDArray[np.int64]:
    """Word counts of the documents ``(num_draws, num_docs, num_words)``."""
    probs = state["theta"] @ state["topics"]
    return rng.multinomial(LENGTHS, probs / probs.sum(-1, keepdims=True))


def prior_features(state: State) -> Array:
    """Numbers of the prior's parameters whose means are compared ``(num_draws, num_features)``."""
    columns: list[Any] = [np.zeros((len(next(iter(state.values()))), 0))]
    if "penalty" in state:
        log_penalty = np.log(state["penalty"])
        variances = np.diagonal(state["covariance"], axis1=1, axis2=2)
        intercept, slope = state["rows"].transpose(1, 2, 0)
        log_pseudo = np.log(state["pseudo"])
        columns += [log_penalty, log_penalty**2, log_pseudo, log_pseudo**2, np.log(variances)]
        columns += [state["covariance"][:, 0, 1] / np.sqrt(variances.prod(1))]
        columns += [np.log(np.linalg.det(state["covariance"])), *intercept, *slope]
        columns += [*np.abs(slope), intercept[0] * slope[0], slope[0] * slope[1]]
    if "variance" in state:
        mixing, log_variance = state["mixing"][..., 0], np.log(state["variance"])
        columns += [log_variance, log_variance**2, state["loc"], state["loc"] ** 2]
        columns += [mixing, mixing**2, mixing.prod(1)]
    return np.column_stack(columns)


def features(state: State) -> Array:
    """Those, and numbers of topics, documents and words."""
    theta, topics, counts = (state[name] for name in ("theta", "topics", "counts"))
    log_likelihood = (counts * np.log(np.where(counts, theta @ topics, 1.0))).sum((1, 2))
    more = counts[..., 0] - counts[..., 1]
    flat = topics.reshape(len(topics), -1)
    log_beta = np.log(state["beta"])
    columns = [flat, flat**2, np.square(topics[:, 0] - topics[:, 1]).sum(1), theta[..., 0]]
    columns += [log_beta, log_beta**2, log_beta * np.square(flat).sum(1)]
    columns += [np.square(theta[..., 0] - 0.5), log_likelihood]
    columns += [((theta[..., 0] - 0.5) * more).sum(1)]
    if "source" in state:
        columns += [np.square(state["source"]).mean((1, 2))]
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


class InformedStructuralPrior(StructuralPrior):
    """A structural prior that has seen the known logits as well."""

    def __init__(self) -> None:
        one = Covariates(("x",), (0.0,), (1.0,))
        super().__init__(NUM_TOPICS, one, pseudo_documents=WEIGHT, dtype=torch.float64)

    def draw_(self, num_docs: float, rng: np.random.Generator, **sums: Any) -> None:
        known = tensors_of(KNOWN, KNOWN_X)
        both = {name: value + known[name] for name, value in sums.items()}
        super().draw_(num_docs + len(KNOWN), rng, **both)


class InformedFactorPrior(IndependentFactorPrior):
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


def corpus_of(counts: NDArray[np.int64]) -> Corpus:
    """The documents with their covariate."""
    return Corpus.from_matrix(counts).with_covariates({"prevalence": X[:, None]})


def make_chain(kind: str, counts: NDArray[np.int64]) -> JointChain:
    """A chain with constant step sizes."""
    prior: Any
    if kind == "dirichlet":
        prior = DirichletPrior(NUM_TOPICS, concentration=CONCENTRATION, dtype=torch.float64)
    elif kind == "structural":
        prior = InformedStructuralPrior()
    else:
        settings: Any = {"source": kind, "pseudo_documents": WEIGHT, "pseudo_variance": 1.0}
        prior = InformedFactorPrior(NUM_TOPICS, 1, **settings, dtype=torch.float64)
    model = TopicModel(prior, DirichletTopics(NUM_TOPICS, NUM_WORDS, dtype=torch.float64))
    chain = JointChain(model, corpus_of(counts), warmup_steps=1, prior=kind != "dirichlet")
    step_size = torch.full((1, len(LENGTHS)), STEP_SIZE, dtype=torch.float64)
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
    elif "penalty" in state:
        prior.set_(loc=tensors["rows"][0, 0], covariance=tensors["covariance"][0])
        prior.pseudo_variance = float(tensors["pseudo"][0])
        with torch.no_grad():
            prior.slopes.copy_(tensors["rows"][0, 1:])
            prior.penalty.copy_(tensors["penalty"][0])
    chain._latents = {site: tensors[site] for site in chain._latents}
    chain.model.topics.set_(tensors["topics"][0].clip(1e-300))
    chain.model.topics._draw_concentration = float(state["beta"][0])


def prior_of(prior: Any) -> State:
    """The parameters of an informed prior."""
    values: dict[str, Any] = {}
    if isinstance(prior, InformedFactorPrior):
        values = {"loc": prior.loc, "mixing": prior.mixing, "variance": 1 / prior.noise_precision}
    elif isinstance(prior, InformedStructuralPrior):
        rows = torch.cat([prior.loc[None], prior.slopes])
        values = {"penalty": prior.penalty, "covariance": prior.covariance, "rows": rows}
        values["pseudo"] = torch.tensor(prior.pseudo_variance)
    return {name: value.detach()[None].numpy().copy() for name, value in values.items()}


def swept(chain: JointChain, state: State, rng: np.random.Generator) -> State:
    """The state after new words and a sweep."""
    counts = draw_words(state, rng)
    chain._observe(corpus_of(counts[0]).batch(dtype=torch.float64))
    theta = chain.sweep()[None].numpy()
    found = {name: value.numpy() for name, value in chain._latents.items()} | {"theta": theta}
    topics = chain.model.topics.probs.detach()[None].numpy()
    found |= {"topics": topics, "beta": np.array([chain.model.topics._draw_concentration])}
    return found | prior_of(chain.model.prior) | {"counts": counts}


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "num_runs", "num_sweeps"),
    [("structural", 60, 15), ("gaussian", 60, 15), ("laplace", 60, 15), ("dirichlet", 240, 30)],
)
def test_a_sweep_leaves_the_joint_posterior_unchanged(
    kind: str, num_runs: int, num_sweeps: int
) -> None:
    """Runs begin at exact draws, so their means are independent.

    The longest runs show a concentration that sweeps maximise rather than draw: its logarithm's
    mean is then 7 errors away. Shorter ones do not, because it moves slowly.
    """
    expected = features(draw_states(kind, 100_000, np.random.default_rng(0))).mean(0)
    rng = np.random.default_rng(1)
    starts = draw_states(kind, num_runs, rng)
    chain = make_chain(kind, starts["counts"][0])
    means = []
    for run in range(num_runs):
        state = {name: values[run : run + 1] for name, values in starts.items()}
        place(chain, state)
        visited = []
        for _ in range(num_sweeps):
            state = swept(chain, state, rng)
            visited.append(features(state)[0])
        means.append(np.mean(visited, 0))
    # The part of the runs' means that their starts explain is subtracted: its mean is known.
    away, found = features(starts) - expected, np.array(means)
    centred = away - away.mean(0)
    found -= away * (centred * found).sum(0) / np.square(centred).sum(0)
    assert_means(found, expected, explained=1)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["structural", "gaussian", "laplace"])
def test_a_prior_is_drawn_from_its_posterior(kind: Any) -> None:
    """Given what is known alone. Means of 20 draws in turn are as good as independent."""
    rng = np.random.default_rng(0)
    prior: Any
    if kind == "structural":
        prior, nothing = (
            InformedStructuralPrior(),
            tensors_of(np.zeros((1, NUM_TOPICS)), np.zeros(1)),
        )
        exact = draw_structural_prior(200_000, rng)
    else:
        settings: Any = {"source": kind, "pseudo_documents": WEIGHT, "dtype": torch.float64}
        prior = InformedFactorPrior(NUM_TOPICS, 1, **settings)
        shapes = {"eta_sum": (2,), "eta_square": (2,), "source_sum": (1,), "eta_source": (2, 1)}
        shapes["source_outer"] = (1, 1)
        nothing = {name: torch.zeros(shape).double() for name, shape in shapes.items()}
        exact = draw_factor_prior(kind, 200_000, rng)
    drawn = []
    for _ in range(2000):
        prior.draw_(0, rng, **nothing)
        drawn.append(prior_features(prior_of(prior))[0])
    found = np.array(drawn).reshape(100, 20, -1).mean(1)
    assert_means(found, prior_features(exact).mean(0))


@pytest.mark.long
@pytest.mark.parametrize(
    ("keywords", "vectors", "bursts"),
    [
        (None, False, None),
        (None, False, 4.0),
        (Keywords({"a": {"w0": 0, "w2": 2}}, 3.0, exclusive=False), False, None),
        (Keywords({"a": {"w0": 0}}, 3.0), False, None),
        (Keywords({"a": {"w0": 0}}, 3.0), True, None),
    ],
)
def test_topics_are_drawn_from_their_posterior(keywords, vectors: bool, bursts) -> None:
    """Against all the topics that twelve tokens can have, at known proportions.

    Means of 40 draws in turn are as good as independent. A bursty token may also repeat an earlier
    one of its word, and then has no topic.
    """
    counts = np.array([[4, 1, 0], [0, 2, 1], [1, 0, 3]])
    theta = np.array([[0.9, 0.1], [0.5, 0.5], [0.15, 0.85]])
    prior = LogisticNormalPrior(NUM_TOPICS, dtype=torch.float64)
    settings: Any = {"keywords": keywords, "dtype": torch.float64}
    pseudo = np.zeros((NUM_TOPICS, NUM_WORDS))
    if vectors:
        given = WordVectors(np.array([[0.0, 1.0], [1.0, 0.5], [-2.0, 0.0]], np.float32))
        settings |= {"word_vectors": given, "vector_strength": 5.0}
    topics = DirichletTopics(NUM_TOPICS, NUM_WORDS, **settings)
    if topics.meaning is not None:
        topics.meaning.coefficients.copy_(torch.tensor([[1.0, 0.5], [-0.5, 1.0]]))
        weights = np.exp((topics.meaning.vectors @ topics.meaning.coefficients.mT).numpy()).T
        pseudo += 5.0 * weights / weights.sum(1, keepdims=True)
    expected = expected_topics(counts, theta, pseudo, keywords, bursts)

    words = None if bursts is None else DirichletMultinomial(bursts)
    chain = JointChain(
        TopicModel(prior, topics, words=words), Corpus.from_matrix(counts), warmup_steps=1
    )
    drawn = []
    for _ in range(2040):
        chain._draw_topics(torch.from_numpy(theta))
        probs = chain.model.topics.probs.detach().numpy()
        log_beta = np.log(chain.model.topics._draw_concentration)
        drawn.append([*probs.flat, *np.square(probs).flat, log_beta, log_beta**2])
    found = np.array(drawn)[40:].reshape(50, 40, -1).mean(1)
    possible = np.abs(expected) > 1e-6
    assert found[:, ~possible].max(initial=0.0) < 1e-100
    assert_means(found[:, possible], expected[possible])


def expected_topics(counts: Any, theta: Array, pseudo: Array, keywords: Any, bursts: Any) -> Array:
    """Means and mean squares of the topics and of log β, by sums over assignments and a grid."""
    document, word = (np.repeat(index, counts[counts > 0]) for index in np.nonzero(counts))
    earlier = np.concatenate([np.arange(c) for c in counts[counts > 0]])
    # A token's factors: its topics, and that it repeats one of the earlier tokens of its word.
    factors = np.column_stack(
        [(bursts or 1.0) * theta[document], earlier if bursts else 0 * earlier]
    )
    cells, mass = np.zeros((1, NUM_TOPICS, NUM_WORDS)), np.ones(1)
    for v, factor in zip(word, factors, strict=True):
        one = np.zeros((NUM_TOPICS + 1, NUM_TOPICS, NUM_WORDS))
        one[range(NUM_TOPICS), range(NUM_TOPICS), v] = 1
        cells, mass = (cells[:, None] + one).reshape(-1, *one.shape[1:]), np.outer(mass, factor)
        cells, same = np.unique(cells[mass.ravel() > 0], axis=0, return_inverse=True)
        mass = np.bincount(same.ravel(), mass.ravel()[mass.ravel() > 0])
    allowed = np.ones_like(pseudo, bool)
    if keywords is not None:
        columns = list(keywords.columns[0])
        pseudo[0, columns] += 3.0 / len(columns)
        allowed[1, columns] = not keywords.exclusive
    cells, mass = (x[(cells * ~allowed).sum((1, 2)) == 0] for x in (cells, mass))
    # The grid has equal steps of log β, hence a factor β.
    log_beta = np.linspace(-14.0, 4.0, 361)[:, None, None, None]
    alpha = np.where(allowed, np.exp(log_beta) + pseudo, 1e-12)
    after = alpha + cells
    log_mass = (gammaln(after) - gammaln(alpha)).sum((2, 3)) - (
        gammaln(after.sum(3)) - gammaln(alpha.sum(3))
    ).sum(2)
    log_mass = log_mass + np.log(mass) + (log_beta - np.exp(log_beta))[..., 0, 0]
    share = np.exp(log_mass - log_mass.max())
    share /= share.sum()
    total = after.sum(3, keepdims=True)
    mean = after / total
    square = mean * (after + 1) / (total + 1)
    of_beta = [(share.sum(1) * log_beta.ravel() ** power).sum() for power in (1, 2)]
    moments = [(share[..., None, None] * x).sum((0, 1)).ravel() for x in (mean, square)]
    return np.concatenate([*moments, of_beta])
