"""Regressions against statsmodels, and their pooling against its definition."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from torch_lntm.effects.regression import Part, regress
from torch_lntm.errors import ConfigError

NUM_DRAWS, NUM_DOCS, NUM_TERMS, NUM_OUTCOMES, NUM_CLUSTERS = 4, 40, 3, 2, 6


@pytest.fixture(scope="module")
def problem() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(NUM_DOCS), rng.normal(size=(NUM_DOCS, 2))])
    noise = rng.normal(size=(NUM_DRAWS, NUM_DOCS, NUM_OUTCOMES)) * np.exp(x[:, 1:2])
    return {
        "x": x,
        "y": x @ rng.normal(size=(NUM_TERMS, NUM_OUTCOMES)) + noise,
        "weights": rng.uniform(0.5, 2.0, NUM_DOCS),
        "clusters": rng.permutation(np.arange(NUM_DOCS) % NUM_CLUSTERS),
    }


def in_parts(
    problem: dict[str, np.ndarray], sizes: tuple[int, ...] = (NUM_DOCS,), draws: int = NUM_DRAWS
) -> Callable[[], Iterator[Part]]:
    def parts() -> Iterator[Part]:
        first = 0
        for size in sizes:
            rows = slice(first, first + size)
            first += size
            yield Part(
                torch.from_numpy(problem["x"][rows]),
                torch.from_numpy(problem["y"][:draws, rows]),
                torch.from_numpy(problem["weights"][rows]),
                torch.from_numpy(problem["clusters"][rows]),
            )

    return parts


@pytest.mark.slow  # the import of statsmodels
@pytest.mark.parametrize("kind", ["classical", "HC0", "HC1", "HC2", "HC3", "clusters"])
def test_one_draw_equals_the_weighted_regression_of_statsmodels(problem, kind) -> None:
    statsmodels = pytest.importorskip("statsmodels.api")
    clusters = NUM_CLUSTERS if kind == "clusters" else None
    found = regress(in_parts(problem, draws=1), "HC3" if clusters else kind, clusters)
    options = {"cov_type": "nonrobust" if kind == "classical" else kind}
    if clusters:
        options = {"cov_type": "cluster", "cov_kwds": {"groups": problem["clusters"]}}
    for k in range(NUM_OUTCOMES):
        fit = statsmodels.WLS(problem["y"][0, :, k], problem["x"], problem["weights"]).fit(
            **options
        )
        np.testing.assert_allclose(found.coefficients[k].numpy(), fit.params, rtol=1e-9)
        np.testing.assert_allclose(found.within[k].numpy(), fit.cov_params(), rtol=1e-8)
    assert found.freedom == (NUM_CLUSTERS - 1 if clusters else NUM_DOCS - NUM_TERMS)


@pytest.mark.parametrize("kind", ["classical", "HC3", "clusters"])
def test_draws_are_pooled_by_rubins_rules(problem, kind) -> None:
    clusters = NUM_CLUSTERS if kind == "clusters" else None
    options = ("HC3" if clusters else kind, clusters)
    pooled = regress(in_parts(problem), *options)
    single = []
    for s in range(NUM_DRAWS):
        one = {**problem, "y": problem["y"][s : s + 1]}
        single.append(regress(in_parts(one, draws=1), *options))
    coefficients = np.stack([one.coefficients.numpy() for one in single])
    within = np.stack([one.within.numpy() for one in single])
    np.testing.assert_allclose(pooled.coefficients.numpy(), coefficients.mean(0), rtol=1e-9)
    np.testing.assert_allclose(pooled.within.numpy(), within.mean(0), rtol=1e-8)
    for k in range(NUM_OUTCOMES):
        between = np.cov(coefficients[:, k].T)
        np.testing.assert_allclose(pooled.between[k].numpy(), between, rtol=1e-8)
    assert pooled.num_draws == NUM_DRAWS


@pytest.mark.parametrize("kind", ["classical", "HC2", "clusters"])
def test_documents_may_come_in_parts(problem, kind) -> None:
    clusters = NUM_CLUSTERS if kind == "clusters" else None
    options = ("HC3" if clusters else kind, clusters)
    whole = regress(in_parts(problem), *options)
    parts = regress(in_parts(problem, (1, 7, 20, 12)), *options)
    for name in ("coefficients", "within", "between"):
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name))


def test_impossible_regressions_are_refused(problem) -> None:
    with pytest.raises(ConfigError, match="3 documents with words for 3 coefficients"):
        regress(in_parts(problem, (3,)))
    with pytest.raises(ConfigError, match="1 cluster; expected at least 2"):
        regress(in_parts(problem), "HC3", 1)
    with pytest.raises(ConfigError, match="standard_errors is 'white'"):
        regress(in_parts(problem), "white")  # type: ignore[arg-type]
