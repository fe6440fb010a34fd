"""Outcomes that depend on topics: bias and coverage of regressions on shares that are not observed.

Documents have K topics of 200 words. A column x raises the first topic, and the outcome is
m = slope × (share of the first topic) + ½ x, plus normal noise of the standard deviation ½, or 1
with the log odds m. A structural model with x is fitted, and the effect of the first topic is
estimated by:

* `true shares`: a regression on the shares that made the documents, unknown in practice.
* `means`: on the posterior means, `result.transform()`.
* `draws`: on each of 25 draws of the shares, pooled by Rubin's rules.
* `cut`, `joint`: `outcomes.estimate` with these draws.

A row has a design: family, topics, documents, words of a document, and slope. `bias` is that of the
mean estimate, with its standard error over corpora. `covered` is the share of 95 % intervals that
hold the truth, for the first topic and for x.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.optimize import linear_sum_assignment

import torch_lntm as lntm
from studies.measure import Cells, Study, check_numbers
from studies.tables import table

NUM_WORDS, NOISE, OF_X = 200, 0.5, 0.5
METHODS = ("true shares", "means", "draws", "cut", "joint")


@dataclass(frozen=True)
class Settings:
    """Settings of the study.

    Attributes:
        designs: Designs, each a family, topics, documents, words of a document and the slope.
        num_corpora: Corpora of each design.
        num_draws: Draws of each of two chains.
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
    )
    num_corpora: int = 100
    num_draws: int = 300
    threads: int = 1

    def __post_init__(self) -> None:
        """Check the numbers."""
        check_numbers(self, {"num_corpora": 1, "num_draws": 4, "threads": 1})


def run(settings: Settings, cells: Cells) -> dict[str, Any]:
    """Estimates of every corpus of every design, corpus by corpus."""
    torch.set_num_threads(settings.threads)
    tasks = [(d, s) for s, d in product(range(settings.num_corpora), settings.designs)]
    found = cells.each(tasks, lambda task: measured(settings, *task))
    return {
        "settings": settings,
        "cells": [[*task, x] for task, x in zip(tasks, found, strict=True)],
    }


def measured(settings: Settings, design: str, seed: int) -> dict[str, Any]:
    """Estimates and intervals of the slope and of x by each method, and CPU seconds."""
    family: Any
    family, *numbers = design.split()
    num_topics, num_docs, length = map(int, numbers[:3])
    rng = np.random.default_rng([seed, num_topics, num_docs, length])
    phi = rng.dirichlet(np.full(NUM_WORDS, 0.1), num_topics)
    x = rng.normal(size=num_docs)
    eta = 1.2 * rng.normal(size=(num_docs, num_topics))
    eta[:, 0] += 0.8 * x
    theta = np.exp(eta) / np.exp(eta).sum(1, keepdims=True)
    counts = np.stack([rng.multinomial(length, p) for p in theta @ phi])
    mean = float(numbers[3]) * theta[:, 0] + OF_X * x
    if family == "normal":
        y = mean + NOISE * rng.normal(size=num_docs)
    else:
        mean = mean - float(numbers[3]) * theta[:, 0].mean()
        y = (rng.random(num_docs) < 1 / (1 + np.exp(-mean))).astype(float)
    columns = pd.DataFrame({"x": x, "y": y})
    corpus = lntm.Corpus.from_matrix(counts, metadata=columns)
    start = time.process_time()
    model = lntm.models.stm(num_topics, corpus, prevalence="~ x", seed=seed)
    result = lntm.inference.MonteCarloEM(model, seed=seed, progress=False).fit(corpus)
    fitted = np.sqrt(model.topics.probs.detach().double().numpy()) @ np.sqrt(phi).T
    topic = int(linear_sum_assignment(-fitted)[1].tolist().index(0))
    means = result.transform().theta.double().numpy()[:, topic]
    draws = lntm.inference.theta_draws(result.source, corpus, 25).theta.double().numpy()
    seconds = {"fit": time.process_time() - start}
    estimates = {
        "true shares": regressed(family, y, theta[None, :, 0], x),
        "means": regressed(family, y, means[None], x),
        "draws": regressed(family, y, draws[:, :, topic], x),
    }
    for method in ("cut", "joint"):
        start = time.process_time()
        found = lntm.outcomes.estimate(
            *(model, corpus, "y ~ topics + x"),
            family=family,
            draws=method,
            num_draws=settings.num_draws,
            seed=seed,
            progress=False,
        )
        seconds[method] = time.process_time() - start
        rows = found.frame().set_index("term").loc[[f"topic {topic}", "x"]]
        estimates[method] = rows[["estimate", "lower", "upper", "ess", "rhat"]].to_numpy().tolist()
    return {"estimates": estimates, "seconds": seconds}


def regressed(family: str, y: Any, shares: Any, x: Any) -> list[list[float]]:
    """Estimates and 95 % intervals of share and x, pooled over draws ``(num_draws, num_docs)``."""
    found = []
    for share in shares:
        z = np.column_stack([np.ones_like(x), share, x])
        at = np.zeros(3)
        for _ in range(1 if family == "normal" else 30):
            p = z @ at if family == "normal" else 1 / (1 + np.exp(-z @ at))
            weight = np.ones_like(x) if family == "normal" else p * (1 - p)
            information = (z.T * weight) @ z
            at = at + np.linalg.solve(information, z.T @ (y - p))
        errors = y - (z @ at if family == "normal" else p)
        inverse = np.linalg.inv(information)
        variance = inverse @ (z.T * errors**2) @ z @ inverse  # robust, HC0
        found.append((at[1:], variance.diagonal()[1:]))
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
    for design, cells in of_design.items():
        slope = float(design.split()[-1])
        for method in METHODS:
            at = np.array([[row[:3] for row in cell["estimates"][method]] for cell in cells])
            covers = [(at[:, i, 1] <= b) & (b <= at[:, i, 2]) for i, b in enumerate((slope, OF_X))]
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
    selects=("designs", "num_corpora"),
)
