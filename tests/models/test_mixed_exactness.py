"""Random terms of prevalence are drawn from their posterior (*Geweke 2004, Getting it right*).

Logits of some documents are known. Logits of further documents are drawn from the model, and
parameters are drawn given all logits, in turn. The parameters then have the posterior given the
known logits alone, which has a form that needs no chain: penalties on a grid, then the covariance,
then the coefficients.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import t as student

import torch_lntm as lntm
from torch_lntm.corpus import Corpus
from torch_lntm.models.priors.mixed import MixedPrior
from torch_lntm.posteriors import Draws

DIM, WEIGHT, NUM_LEVELS = 2, 6.0, 3
#: Documents with known logits, then the others.
LEVEL = np.array([0, 0, 0, 1, 1, 1, 2, 2, 2, 0, 1, 1, 2])
X = np.array([-1.0, 0.5, 1.2, 0.3, -0.8, 1.0, -1.5, 0.2, 0.6, 1.5, -0.4, 0.9, -2.0])
KNOWN = np.array(
    [
        1.9,
        -1.2,
        0.8,
        -0.5,
        0.4,
        -1.6,
        -0.9,
        0.7,
        0.2,
        1.3,
        -1.4,
        0.1,
        1.1,
        1.0,
        -0.2,
        0.6,
        -0.6,
        1.4,
    ]
).reshape(9, DIM)
#: Probability that the test fails where nothing is wrong.
FALSE_ALARM = 1e-4

Array = NDArray[np.float64]


def reference(x: Array, size: int, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """Penalties, covariances and coefficients given the known logits.

    Args:
        x: ``(num_known, 2 + NUM_LEVELS)`` intercept, standardised column, and levels.
        size: Number of draws.
        rng: Random number generator.
    """
    logs = np.linspace(np.log(1e-4), np.log(200.0), 160)
    slope, level = (np.exp(values).ravel() for values in np.meshgrid(logs, logs))
    rows = [0 * slope, slope, *[level] * NUM_LEVELS]
    precision = x.T @ x + np.stack(rows, 1)[:, :, None] * np.eye(len(rows))
    mean = np.linalg.solve(precision, x.T @ KNOWN)
    explained = np.einsum("gik,gij,gjl->gkl", mean, precision, mean)
    scale = WEIGHT * np.eye(DIM) + KNOWN.T @ KNOWN - explained
    freedom = int(WEIGHT) + len(KNOWN) - 1 - DIM - 1
    # Gamma(½, ½) priors on a grid of logarithms, and the normalisers of slopes and effects.
    log_mass = 0.5 * np.log(slope * level) - 0.5 * (slope + level)
    log_mass += 0.5 * DIM * (np.log(slope) + NUM_LEVELS * np.log(level))
    log_mass -= 0.5 * DIM * np.linalg.slogdet(precision)[1]
    log_mass -= 0.5 * freedom * np.linalg.slogdet(scale)[1]
    mass = np.exp(log_mass - log_mass.max())
    cell = rng.choice(len(mass), size, p=mass / mass.sum())
    normal = rng.standard_normal((size, freedom, DIM))
    root = np.linalg.cholesky(scale)[cell]
    covariance = root @ np.linalg.inv(normal.mT @ normal) @ root.mT
    between = np.linalg.cholesky(np.linalg.inv(precision))[cell]
    noise = rng.standard_normal((size, len(rows), DIM))
    rows_of = mean[cell] + between @ noise @ np.linalg.cholesky(covariance).mT
    return np.stack([slope, level], 1)[cell], covariance, rows_of


def features(penalties: Array, covariance: Array, rows: Array) -> Array:
    """Numbers whose means are compared ``(num_draws, num_features)``."""
    logs = np.log(penalties)
    variances = np.diagonal(covariance, axis1=1, axis2=2)
    correlation = covariance[:, 0, 1] / np.sqrt(variances.prod(1))
    flat = rows[:, 1:].reshape(len(rows), -1)
    products = rows[:, 2] * rows[:, 3]
    columns = [logs, logs**2, np.log(variances), correlation, rows[:, 0], flat, np.abs(flat)]
    return np.column_stack([*columns, products])


@pytest.mark.long
def test_random_terms_are_drawn_from_their_posterior() -> None:
    columns = {"x": X, "g": np.array(["a", "b", "c"])[LEVEL]}
    corpus = Corpus.from_matrix(np.ones((len(X), 2), np.int64), metadata=columns)
    formula, settings = (
        "~ x + (1 | g)",
        {"pseudo_documents": WEIGHT, "pseudo_variance": 1.0, "dtype": "float64"},
    )
    model = lntm.models.stm(DIM, corpus, formula, **settings)
    prior = model.prior
    assert isinstance(prior, MixedPrior)
    batch = model.encode(corpus).batch(dtype=torch.float64)
    rng, num_known = np.random.default_rng(0), len(KNOWN)
    weights = torch.ones(1, len(X), dtype=torch.float64)
    found = []
    for _ in range(4100):
        mean = prior.location(batch).detach().numpy()[num_known:]
        root = prior.scale_tril.detach().numpy()
        fresh = mean + rng.standard_normal(mean.shape) @ root.T
        eta = torch.from_numpy(np.concatenate([KNOWN, fresh]))[None]
        prior.draw_(len(X), rng, **prior.statistics(Draws({"eta": eta}, eta, weights), batch))
        rows = torch.cat([prior.loc[None], prior.slopes, prior.level_effects]).detach().numpy()
        penalties = [float(prior.penalty), *prior.level_penalties.tolist()]
        found.append((np.array(penalties), prior.covariance.detach().numpy().copy(), rows.copy()))
    drawn = features(*(np.array(values) for values in zip(*found, strict=True)))[100:]
    # Means of 100 draws in turn are as good as independent.
    means = drawn.reshape(40, 100, -1).mean(1)
    design = np.column_stack([np.ones(len(X)), (X - X.mean()) / X.std(), np.eye(3)[LEVEL]])
    expected = features(*reference(design[:num_known], 200_000, np.random.default_rng(1))).mean(0)
    statistic = np.abs(means.mean(0) - expected) / (means.std(0, ddof=1) / np.sqrt(40))
    limit = student.isf(FALSE_ALARM / 2 / means.shape[1], 39)
    assert (statistic < limit).all(), np.round(statistic, 1)
