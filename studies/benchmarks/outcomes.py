"""Outcomes that depend on topics: bias and coverage of regressions on shares that are not observed.

Documents have K topics of 200 words. A column x raises the first topic, and the outcome is
m = slope × (share of the first topic) + ½ x, plus normal noise of the standard deviation ½, or 1
with the log odds m. A structural model with x is fitted, and the effect of the first topic is
estimated by the methods below.

In designs with the name of a corpus, texts and x are real: x is 1 for positive reviews, or for
conservative blogs. A model fitted to all words of all documents (at most 10,000) gives draws of
each document's shares, another one for each replication. Given the model, such a draw and the words
have the model's joint distribution, which a posterior mean and the words do not. The outcome is
made from the draw. The estimators see some or all of the documents, and some words of each. Their
topics are those of the model (`known`), or fitted to the words they see (`found`). The slope is of
the topic whose share varies most.

The design `BTR` repeats the synthetic data of Ahrens et al. (2021), as the script
`BTR_synthetic.jl` of their package makes them. Topics are bars of three words each, documents have
four parts, and x is a standardised count of the first word. The outcome is −1, 0 and 1 times the
shares of the three topics among the words, plus 2 x, plus noise of variance 0.05. The slope is the
difference of 2 between the third topic and the first one.

The methods:

* `true shares`: a regression on the shares that made the documents, unknown in practice.
* `means`: on the posterior means, `result.transform()`.
* `draws`: on each of 25 draws of the shares, pooled by Rubin's rules.
* `cut`, `joint`: `outcomes.estimate` with these draws.

A row has a design: family, a corpus if texts are real, topics, documents, words of a document,
slope, and the origin of the topics if texts are real. `bias` is that of the mean estimate, with its
standard error over corpora. `covered` is the share of 95 % intervals that
hold the truth, for the first topic and for x.
"""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

import torch_lntm as lntm
from studies.measure import Cells, Study, check_choices, check_numbers, corpus_file
from studies.tables import table

NUM_WORDS, NOISE, OF_X = 200, 0.5, 0.5
#: Documents of a real corpus, and draws of their shares.
MAX_DOCS, DRAWS = 10_000, 20
CHAINS = ("cut", "joint")
METHODS = ("true shares", "means", "draws", *CHAINS)


@dataclass(frozen=True)
class Settings:
    """Settings of the study.

    Attributes:
        designs: Designs, each a family, a corpus, topics, documents, words of a document, the
            slope, and the origin of the topics; without the second and the last for simulated
            words.
        num_corpora: Corpora of each design.
        num_draws: Draws of each of two chains.
        chains: Methods by chains. The others cost little.
        threads: Threads.
    """

    designs: tuple[str, ...] = (
        "normal 4 500 15 2",
        "normal 10 500 15 2",
        "normal 4 500 50 2",
        "normal 10 500 50 2",
        "normal 4 500 200 2",
        "normal 10 500 200 2",
        "normal 4 2000 15 2",
        "normal 4 500 15 0.4",
        "binomial 4 500 15 2",
        "binomial 10 500 50 2",
        "normal 10 2000 15 2",
        "normal poliblog5k 10 1000 50 2 known",
        "normal poliblog5k 10 1000 50 2 found",
        "normal imdb100k 10 1000 50 2 known",
        "normal imdb100k 10 1000 50 2 found",
        "normal imdb100k 10 10000 50 2 known",
        "normal imdb100k 10 10000 50 2 found",
        "normal BTR 3 2000 100 2",
    )
    num_corpora: int = 100
    num_draws: int = 300
    chains: tuple[str, ...] = CHAINS
    threads: int = 1

    def __post_init__(self) -> None:
        """Check the numbers."""
        check_numbers(self, {"num_corpora": 1, "num_draws": 4, "threads": 1})
        check_choices(self, "chains", CHAINS)


def run(settings: Settings, cells: Cells) -> dict[str, Any]:
    """Estimates of every corpus of every design, corpus by corpus."""
    torch.set_num_threads(settings.threads)
    tasks = [(d, s) for s, d in product(range(settings.num_corpora), settings.designs)]
    found = cells.each(tasks, lambda task: measured(settings, *task))
    return {
        "settings": settings,
        "cells": [[*task, x] for task, x in zip(tasks, found, strict=True)],
    }


class Data(NamedTuple):
    """A corpus with the columns x and y, and what made it.

    Attributes:
        corpus: The documents.
        theta: ``(num_docs, num_topics)`` true shares.
        phi: ``(num_topics, num_words)`` true words of the topics.
        topic: Topic of the slope.
        against: Topic with which it is compared. None compares it with all others.
        of_x: True coefficient of x.
        model: Model of known topics, or None.
    """

    corpus: lntm.Corpus
    theta: Any
    phi: Any
    topic: int = 0
    against: int | None = None
    of_x: float = OF_X
    model: lntm.models.TopicModel | None = None


def made(design: str, seed: int) -> Data:
    """Simulated words and outcomes."""
    numbers = design.split()[1:]
    num_topics, num_docs, length = map(int, numbers[:3])
    rng = np.random.default_rng([seed, num_topics, num_docs, length])
    phi = rng.dirichlet(np.full(NUM_WORDS, 0.1), num_topics)
    x = rng.normal(size=num_docs)
    eta = 1.2 * rng.normal(size=(num_docs, num_topics))
    eta[:, 0] += 0.8 * x
    theta = np.exp(eta) / np.exp(eta).sum(1, keepdims=True)
    counts = np.stack([rng.multinomial(length, p) for p in theta @ phi])
    y = outcome(design.split()[0], float(numbers[3]) * theta[:, 0], x, rng)
    return Data(lntm.Corpus.from_matrix(counts, metadata={"x": x, "y": y}), theta, phi)


def outcome(family: str, part: Any, x: Any, rng: np.random.Generator) -> Any:
    """An outcome of the topic's part and of x."""
    mean = part + OF_X * x
    if family == "normal":
        return mean + NOISE * rng.normal(size=len(x))
    return (rng.random(len(x)) < 1 / (1 + np.exp(part.mean() - mean))).astype(float)


@functools.cache
def whole(name: str, num_topics: int) -> tuple[lntm.Corpus, lntm.models.TopicModel, Any]:
    """A real corpus with x, the model of all its words, and draws of the shares."""
    corpus = lntm.read_corpus(corpus_file(name))
    labels = corpus.metadata["label"].astype(str)
    rows = np.flatnonzero(~labels.str.startswith("unsup"))
    if len(rows) > MAX_DOCS:
        rows = np.sort(np.random.default_rng(0).choice(rows, MAX_DOCS, replace=False))
    x = labels.iloc[rows].str.match("pos|Conservative").to_numpy(float)
    corpus = lntm.Corpus.from_matrix(corpus.to_scipy()[rows], metadata={"x": x})
    model = lntm.models.stm(num_topics, corpus, prevalence="~ x")
    result = lntm.inference.MonteCarloEM(model, progress=False).fit(corpus)
    draws = lntm.inference.theta_draws(result.source, corpus, DRAWS, thinning=20, progress=False)
    return corpus, model, draws.theta.double().numpy()


def real(design: str, seed: int) -> Data:
    """Some documents of a real corpus with some of their words, and simulated outcomes."""
    family, name, *numbers, slope, topics = design.split()
    num_topics, num_docs, length = map(int, numbers)
    corpus, model, draws = whole(name, num_topics)
    rng = np.random.default_rng([seed, num_topics, num_docs, length])
    rows = np.sort(rng.choice(len(corpus), num_docs, replace=False))
    theta, x = draws[seed % DRAWS][rows], corpus.metadata["x"].to_numpy()[rows]
    topic = int(draws.mean(0).std(0).argmax())
    y = outcome(family, float(slope) * theta[:, topic], x, rng)
    counts = corpus.to_scipy()[rows].tolil()
    for i in range(num_docs):
        words = np.repeat(counts.rows[i], np.array(counts.data[i], int))
        kept = rng.choice(words, min(length, len(words)), replace=False)
        counts.rows[i], counts.data[i] = map(list, np.unique(kept, return_counts=True))
    some = lntm.Corpus.from_matrix(counts.tocsr(), metadata={"x": x, "y": y})
    phi = model.topics.probs.detach().double().numpy()
    known = model if topics == "known" else None
    return Data(some, theta, phi, topic, model=known)


def of_btr(design: str, seed: int) -> Data:
    """The synthetic data of Ahrens et al. (2021)."""
    num_topics, num_docs, length = map(int, design.split()[2:5])
    rng = np.random.default_rng([seed, num_docs])
    phi = np.kron(np.eye(num_topics), np.full((1, 3), 1 / 3))
    parts = rng.dirichlet(np.ones(num_topics), 4 * num_docs)
    parts = parts[parts[:, 0].argsort()].reshape(num_docs, 4, num_topics)
    # A word belongs to one topic, so the words tell the topics' shares among them.
    counts = rng.multinomial(length // 4, parts @ phi).sum(1)
    theta = counts.reshape(num_docs, num_topics, 3).sum(2) / length
    x = (counts[:, 0] - counts[:, 0].mean()) / counts[:, 0].std(ddof=1)
    y = theta @ np.array([-1.0, 0.0, 1.0]) + 2 * x + np.sqrt(0.05) * rng.normal(size=num_docs)
    corpus = lntm.Corpus.from_matrix(counts, metadata={"x": x, "y": y})
    return Data(corpus, theta, phi, topic=2, against=0, of_x=2.0)


def measured(settings: Settings, design: str, seed: int) -> dict[str, Any]:
    """Estimates and intervals of the slope and of x by each method, and CPU seconds."""
    family: Any = design.split()[0]
    make = of_btr if "BTR" in design else made if design.split()[1].isdigit() else real
    data = make(design, seed)
    corpus, model, num_topics = data.corpus, data.model, len(data.phi)
    x, y = (corpus.metadata[name].to_numpy() for name in ("x", "y"))
    start = time.process_time()
    if model is None:
        model = lntm.models.stm(num_topics, corpus, prevalence="~ x", seed=seed)
        result = lntm.inference.MonteCarloEM(model, seed=seed, progress=False).fit(corpus)
        means = result.transform().theta
        draws = lntm.inference.theta_draws(result.source, corpus, 25).theta
    else:
        draws = lntm.inference.theta_draws(lntm.inference.DocumentHMC(model), corpus, 25).theta
        means = draws.mean(0)
    fitted = np.sqrt(model.topics.probs.detach().double().numpy()) @ np.sqrt(data.phi).T
    # For each true topic, the fitted one.
    of_true = linear_sum_assignment(-fitted.T)[1]
    topic = of_true[data.topic]
    reference = None if data.against is None else int(of_true[data.against])
    seconds = {"fit": time.process_time() - start}

    def plugged(shares: Any, topic: int, against: int | None) -> list[list[float]]:
        """A regression on the topic's share; beside the others', if it has a reference."""
        kept = [topic, *(k for k in range(num_topics) if k not in (topic, against))]
        shares = np.asarray(shares, float)
        return regressed(family, y, shares[..., kept[: None if against is not None else 1]], x)

    estimates = {
        "true shares": plugged(data.theta[None], data.topic, data.against),
        "means": plugged(means[None], topic, reference),
        "draws": plugged(draws, topic, reference),
    }
    for method in settings.chains:
        start = time.process_time()
        found = lntm.outcomes.estimate(
            *(model, corpus, "y ~ topics + x"),
            family=family,
            draws=cast(Any, method),
            num_draws=settings.num_draws,
            topics=data.model is None,
            seed=seed,
            progress=False,
        )
        seconds[method] = time.process_time() - start
        rows = found.frame(reference=reference).set_index("term").loc[[f"topic {topic}", "x"]]
        estimates[method] = rows[["estimate", "lower", "upper", "ess", "rhat"]].to_numpy().tolist()
    return {"estimates": estimates, "seconds": seconds, "of_x": data.of_x}


def regressed(family: str, y: Any, shares: Any, x: Any) -> list[list[float]]:
    """Estimates and 95 % intervals of the first share and x.

    Args:
        family: The family.
        y: The outcome.
        shares: ``(num_draws, num_docs, num_shares)`` draws of shares, over which to pool.
        x: The column.
    """
    found = []
    for share in shares:
        z = np.column_stack([np.ones_like(x), share, x])
        at = np.zeros(z.shape[1])
        for _ in range(1 if family == "normal" else 30):
            p = z @ at if family == "normal" else 1 / (1 + np.exp(-z @ at))
            weight = np.ones_like(x) if family == "normal" else p * (1 - p)
            information = (z.T * weight) @ z
            at = at + np.linalg.solve(information, z.T @ (y - p))
        errors = y - (z @ at if family == "normal" else p)
        inverse = np.linalg.inv(information)
        variance = inverse @ (z.T * errors**2) @ z @ inverse  # robust, HC0
        found.append((at[[1, -1]], variance.diagonal()[[1, -1]]))
    points, variances = map(np.array, zip(*found, strict=True))
    between = points.var(0, ddof=1) if len(points) > 1 else 0.0
    half = 1.96 * np.sqrt(variances.mean(0) + (1 + 1 / len(points)) * between)
    mean = points.mean(0)
    rows: list[list[float]] = np.column_stack([mean, mean - half, mean + half]).tolist()
    return rows


def tables(result: dict[str, Any]) -> str:
    """A row for each design and method."""
    of_design: dict[str, list[Any]] = {}
    for design, _, cell in result["cells"]:
        of_design.setdefault(design, []).append(cell)
    lines = []
    for design, every in of_design.items():
        slope = next(float(x) for x in reversed(design.split()) if x not in ("known", "found"))
        of_x = every[0].get("of_x", OF_X)
        for method in METHODS:
            cells = [cell for cell in every if method in cell["estimates"]]
            if not cells:
                continue
            at = np.array([[row[:3] for row in cell["estimates"][method]] for cell in cells])
            covers = [(at[:, i, 1] <= b) & (b <= at[:, i, 2]) for i, b in enumerate((slope, of_x))]
            error = at[:, 0, 0].std(ddof=1) / np.sqrt(len(at)) if len(at) > 1 else np.nan
            shares = [
                f"{100 * c.mean():.0f} ± {100 * np.sqrt(c.mean() * (1 - c.mean()) / len(c)):.0f}"
                for c in covers
            ]
            seconds = [cell["seconds"].get(method, np.nan) for cell in cells]
            spent = "" if np.isnan(seconds).any() else f"{np.mean(seconds):.0f}"
            bias, of_bias = 100 * (at[:, 0, 0].mean() / slope - 1), 100 * error / slope
            width = (at[:, 0, 2] - at[:, 0, 1]).mean() / slope
            lines.append(
                [
                    *(design, f"{len(cells)}", method, f"{bias:+.1f} ± {of_bias:.1f}"),
                    *(f"{width:.2f}", *shares, spent),
                ]
            )
    header = ["design", "corpora", "method", "bias, %", "width", "covered, %", "x, %", "CPU s"]
    return table(header, lines)


STUDY = Study(
    Settings,
    run,
    tables,
    quick={"num_corpora": 2, "designs": ("normal 4 500 15 2",), "num_draws": 50},
    selects=("designs", "num_corpora", "chains"),
)
