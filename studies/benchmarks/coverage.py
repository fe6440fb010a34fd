"""Coverage of 95 % intervals of effects: the share of intervals that hold the truth.

Corpora are simulated from a structural topic model with one binary column. The true effect of the
column on the expected proportion of each topic comes from 200,000 draws. Each corpus gives an
estimate of the effect. The table gives the share of intervals that hold the true effect, over
corpora and topics, for these methods:

* `true theta`: regression on the proportions that made the documents, unknown in practice. It shows
  the regression alone.
* `mode`: regression on the posteriors' modes, treated as known proportions.
* `average`: draws around the modes with the average of the documents' covariances, the default of
  R's stm (`uncertainty="Global"`) and topica (`estimate_effect(model, nsims=...)`), both with
  Laplace's posteriors.
* `documents`: draws from every document's own posterior, stm's `"Local"`.
* `coefficients`: the default of `effects.estimate`, which draws the prior mean's coefficients too.
* `chains`: draws of chains, under a model fitted by chains.
* `joint`: draws of one chain over documents, topics and prior together, `inference.joint_draws`.
  With `starts`, `joint, 4 starts` has the draws of four chains from different starts, and `joint,
  longer` those of one chain with as many sweeps.

With `links`, `true theta`, `coefficients` and `joint` have further rows. `logit` is the difference
by `link="logit"`. `level` is the expected proportion at the lower value of x, by both links.
`spread` is the standard deviation of the topics' means of eta: with 2 instead of 0.5 some topics
are rare. With `continuous` the column is standard normal, and the effect is between 2 and -2.

All share one regression, with HC3 standard errors and t intervals. stm and topica use classical
standard errors by default; here they differ little, because half of the documents have each value.

`bias` is the mean of estimate over truth, weighted by the squared truth, less 1. `width` is the
mean width of the intervals over that of the linear regression on the true proportions. If topics
are `known`, the model has the true topics and fits the prior alone. Otherwise the model fits topics
too, and each true topic is matched with the most similar fitted topic. The study takes 30 minutes,
and 10 without chains.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from studies.measure import Cells, Study, check_numbers
from studies.tables import table
from torch_lntm import noise
from torch_lntm.corpus import Corpus
from torch_lntm.effects import Effects, estimate
from torch_lntm.evaluation import align_topics
from torch_lntm.guides import Guide, make_guide
from torch_lntm.inference import DocumentHMC, MonteCarloEM, VariationalEM, joint_draws
from torch_lntm.models import StructuralPrior, TopicModel, stm
from torch_lntm.models.priors.covariates import Covariates
from torch_lntm.models.topics.topics import FixedTopics

#: Draws behind the true effects.
TRUTH_DRAWS = 200_000
#: Transitions of the chains before the regressed draws and between them.
WARMUP, SAMPLES = 100, 200


@dataclass(frozen=True)
class Settings:
    """Settings of the study.

    Attributes:
        num_corpora: Simulated corpora of each design.
        lengths: Tokens of a document, one design each.
        effects: Standard deviations of the topics' slopes, one design each.
        num_docs: Documents of a corpus.
        num_topics: Topics.
        num_words: Words.
        guides: Posteriors with regressed draws.
        known: Whether topics are known. Both if not given.
        chains: Whether to fit and draw by chains too.
        joint: Whether to draw documents, topics and prior together too, from the last guide's fit.
        starts: Whether to add rows of joint chains from 4 starts, and of a longer one.
        links: Whether to add rows of the logit, and of expected proportions.
        spread: Standard deviation of the topics' means of eta.
        continuous: Whether the column is standard normal instead of binary.
        threads: Threads of torch.
    """

    num_corpora: int = 200
    lengths: tuple[int, ...] = (15, 150)
    effects: tuple[float, ...] = (0.2, 0.8)
    num_docs: int = 400
    num_topics: int = 5
    num_words: int = 200
    guides: tuple[str, ...] = ("taylor", "laplace")
    known: tuple[bool, ...] = (True, False)
    chains: bool = True
    joint: bool = True
    starts: bool = False
    links: bool = False
    spread: float = 0.5
    continuous: bool = False
    threads: int = 1

    @property
    def values(self) -> tuple[float, float]:
        """Values of the column between which the effect is."""
        return (2.0, -2.0) if self.continuous else (1.0, 0.0)

    def __post_init__(self) -> None:
        """Check the numbers."""
        check_numbers(
            self,
            {
                "num_corpora": 1,
                "lengths": 1,
                "num_docs": 10,
                "num_topics": 2,
                "num_words": 2,
                "threads": 1,
            },
        )


@dataclass(frozen=True)
class Result:
    """The intervals of every design.

    Attributes:
        settings: The settings.
        intervals: By design ``(length, effect, known)`` and corpus: the intervals of each method,
            ``(num_topics, 4)``: truth, estimate, lower and upper end.
    """

    settings: Settings
    intervals: list[dict[str, list[list[float]]]]


def designs(settings: Settings) -> Iterator[tuple[int, float, bool, int]]:
    """Length, effect, known topics or not, and number of each corpus."""
    yield from product(
        settings.lengths, settings.effects, settings.known, range(settings.num_corpora)
    )


def run(settings: Settings, cells: Cells) -> Result:
    """Estimate the effects of every simulated corpus."""
    torch.set_num_threads(settings.threads)
    return Result(
        settings, cells.each(designs(settings), lambda design: measure(settings, *design))
    )


def measure(
    settings: Settings, length: int, effect: float, known: bool, seed: int
) -> dict[str, list[list[float]]]:
    """The intervals of one corpus by every method."""
    truth, corpus, theta = simulate(settings, length, effect, seed)
    levels = true_levels(truth, settings.values)
    effects = levels[0] - levels[1]
    known_theta = theta.expand(2, -1, -1)
    linear = partial(estimate, corpus=corpus, formula="~ x", link="identity")
    found = {"true theta": rows(settings, effects, linear(truth, known_theta))}
    if settings.links:
        found |= rows_by_link(settings, "true theta", levels, corpus, (truth, known_theta))
    for name in settings.guides:
        model = make_model(corpus, truth, known)
        guide = make_guide(name, model)
        start: dict[str, Any] = {"start": "model", "max_iterations": 30} if known else {}
        VariationalEM(model, guide, progress=False, seed=seed, **start).fit(corpus)
        partner = align_topics(truth, model).partner
        draws = by_guide(model, guide, corpus)
        for method, given in draws.items():
            result = linear(model, given)
            found[f"{name}: {method}"] = rows(settings, effects, result, partner)
        for method, coefficients in (("documents", False), ("coefficients", True)):
            result = linear(model, guide, coefficients=coefficients, seed=seed)
            found[f"{name}: {method}"] = rows(settings, effects, result, partner)
        if settings.links:
            method, source = f"{name}: coefficients", (model, guide)
            found |= rows_by_link(settings, method, levels, corpus, source, partner, seed=seed)
    methods: dict[str, Any] = {"joint": {}} if settings.joint else {}
    if settings.joint and settings.starts:
        methods |= {"joint, longer": {"num_draws": 280}, "joint, 4 starts": {"num_chains": 4}}
    for method, options in methods.items():
        drawn = joint_draws(model, corpus, topics=not known, seed=seed, **options)
        partner = align_topics(truth, drawn.model).partner
        found[method] = rows(settings, effects, linear(model, drawn), partner)
        if settings.links:
            found |= rows_by_link(settings, method, levels, corpus, (model, drawn), partner)
    if settings.chains:
        model = make_model(corpus, truth, known)
        MonteCarloEM(model, progress=False, seed=seed, start="model" if known else "lda").fit(
            corpus
        )
        batch = model.encode(corpus).batch()
        samples = DocumentHMC(model, seed=seed).run(batch, SAMPLES, WARMUP, progress=False)
        result = linear(model, samples.theta().flatten(0, 1)[::4])
        found["hmc: chains"] = rows(settings, effects, result, align_topics(truth, model).partner)
    return found


def simulate(
    settings: Settings, length: int, effect: float, seed: int
) -> tuple[TopicModel, Corpus, Tensor]:
    """A model, documents drawn from it with the column ``x``, and their proportions."""
    rng = np.random.default_rng([seed, length, round(1000 * effect)])
    num_topics, num_words = settings.num_topics, settings.num_words
    if settings.continuous:
        x = rng.normal(size=settings.num_docs)
    else:
        x = rng.permutation(np.arange(settings.num_docs) % 2).astype(np.float64)
    column = Corpus.from_matrix(
        np.ones((settings.num_docs, num_words), np.int64), metadata={"x": x}
    )
    slopes = rng.normal(0.0, effect, (1, num_topics)) * x.std()
    probs = torch.from_numpy(rng.dirichlet(np.full(num_words, 0.1), num_topics) + 1e-5)
    prior = StructuralPrior(
        num_topics,
        Covariates.of(column, "~ x"),
        loc=torch.from_numpy(rng.normal(0.0, settings.spread, num_topics)),
        slopes=torch.from_numpy(slopes - slopes.mean()),
        covariance=torch.eye(num_topics),
        dtype=torch.float64,
    )
    truth = TopicModel(prior, FixedTopics(probs))
    u = x[:, None]
    corpus, latents = truth.generate(
        [length] * settings.num_docs, seed=seed, covariates={"prevalence": u}
    )
    return truth, corpus.with_metadata({"x": x}), truth.theta(latents["eta"])


def true_levels(truth: TopicModel, values: tuple[float, float]) -> Tensor:
    """Expected proportions at 2 values of x ``(2, num_topics)``."""
    prior = truth.prior
    assert isinstance(prior, StructuralPrior)
    keys = noise.document_keys(0, torch.zeros(1, dtype=torch.int64), TRUTH_DRAWS)[:, 0]
    deviations = noise.normal(keys, truth.num_topics) @ prior.scale_tril.double().mT
    intercept, slope = prior.coefficients
    at = [truth.theta(intercept + value * slope + deviations).mean(0) for value in values]
    return torch.stack(at).detach()


def make_model(corpus: Corpus, truth: TopicModel, known: bool) -> TopicModel:
    """A structural topic model to fit, with the true topics if they are known."""
    model = stm(truth.num_topics, corpus, "~ x")
    if not known:
        return model
    probs = truth.topics.probs.detach()
    return TopicModel(model.prior, FixedTopics(probs.to(model.dtype)))


def by_guide(model: TopicModel, guide: Guide[Any], corpus: Corpus) -> dict[str, Tensor]:
    """Draws of theta without all uncertainty, or without the documents' own part."""
    posterior = guide.posterior(model.encode(corpus).batch())
    mode = posterior.theta_mode().double()
    tril = torch.linalg.cholesky(posterior.covariance.double().mean(0))
    keys = noise.document_keys(0, posterior.index, 50)
    latent = posterior.mean.double() + noise.normal(keys, model.latent_dim) @ tril.mT
    return {"mode": mode.expand(2, -1, -1), "average": posterior.theta(latent)}


def rows(
    settings: Settings, truth: Tensor, effects: Effects, partner: Any = None
) -> list[list[float]]:
    """Truth, estimate and interval of the effect on each topic."""
    return as_rows(truth, effects.difference("x", *settings.values), partner)


def rows_by_link(
    settings: Settings,
    method: str,
    levels: Tensor,
    corpus: Corpus,
    source: tuple[TopicModel, Any],
    partner: Any = None,
    **options: Any,
) -> dict[str, list[list[float]]]:
    """Rows of the logit's effects, and of expected proportions by both links."""
    by_link = {
        "": estimate(*source, corpus, "~ x", link="identity", **options),
        ", logit": estimate(*source, corpus, "~ x", link="logit", **options),
    }
    difference = by_link[", logit"].difference("x", *settings.values)
    found = {f"{method}, logit": as_rows(levels[0] - levels[1], difference, partner)}
    for name, effects in by_link.items():
        points = effects.predict(x=settings.values[1])
        found[f"{method}, level{name}"] = as_rows(levels[1], points, partner)
    return found


def as_rows(truth: Tensor, found: pd.DataFrame, partner: Any = None) -> list[list[float]]:
    """Truth, estimate and interval of a number for each topic."""
    numbers = found[["estimate", "lower", "upper"]].to_numpy()
    numbers = numbers if partner is None else numbers[np.asarray(partner)]
    rows: list[list[float]] = np.column_stack([truth.numpy(), numbers]).round(5).tolist()
    return rows


def tables(result: Result) -> str:
    """A row for each design and method."""
    lines = []
    settings = result.settings
    of_design: dict[tuple[int, float, bool], list[dict[str, Any]]] = {}
    for (length, effect, known, _), cell in zip(designs(settings), result.intervals, strict=True):
        of_design.setdefault((length, effect, known), []).append(cell)
    for (length, effect, known), cells in of_design.items():
        for method in cells[0]:
            kind = "true theta, level" if ", level" in method else "true theta"
            base = np.array([cell[kind] for cell in cells])
            at = np.array([cell[method] for cell in cells])
            truth, found, lower, upper = at.transpose(2, 0, 1)
            covers = ((lower <= truth) & (truth <= upper)).mean(1)
            error = covers.std(ddof=1) / np.sqrt(len(covers)) if len(covers) > 1 else np.nan
            width = (upper - lower).mean() / (base[..., 3] - base[..., 2]).mean()
            bias = (truth * found).sum() / np.square(truth).sum() - 1
            lines.append(
                [
                    str(length),
                    f"{effect:g}",
                    "known" if known else "fitted",
                    method,
                    f"{100 * covers.mean():.1f} ± {100 * error:.1f}",
                    f"{bias:+.2f}",
                    f"{width:.2f}",
                ]
            )
    header = ["tokens", "slopes", "topics", "method", "covered, %", "bias", "width"]
    return table(header, lines)


STUDY = Study(Settings, run, tables, quick={"num_corpora": 3, "chains": False, "joint": False})
