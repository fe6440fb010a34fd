"""Errors of differences over splits, on simulated scores whose variances are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import t as student

from studies.benchmarks.splits import Scores, difference
from torch_lntm.errors import ConfigError


def simulated(
    rng: np.random.Generator, *, seeds: float, documents: float, same: bool, num_docs: int = 200
) -> tuple[list[Scores], list[Scores]]:
    """Three splits: ours is better by 0.1 nats, plus a seed's and the documents' deviations."""
    ours, theirs = [], []
    own = rng.normal(0, documents, num_docs)
    for split in range(3):
        index = torch.arange(num_docs) + (0 if same else split * num_docs)
        if not same:
            own = rng.normal(0, documents, num_docs)
        tokens = torch.full((num_docs,), 10)
        base = -60 + rng.normal(0, 5, num_docs)
        gain = 10 * (0.1 + rng.normal(0, seeds) + own + rng.normal(0, 0.1, num_docs))
        ours.append(Scores(index, torch.from_numpy(base + gain), tokens))
        theirs.append(Scores(index, torch.from_numpy(base), tokens))
    return ours, theirs


@pytest.mark.stat
@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize(("seeds", "documents"), [(0.0, 0.3), (0.03, 0.3), (0.05, 0.05)])
def test_the_error_is_the_spread_of_repeated_studies(
    seeds: float, documents: float, same: bool
) -> None:
    """400 studies: the ratio of the two variances has a standard error near 0.09.

    Truncation at zero adds to the variance where seeds do not differ, hence the room above. The
    bounds are 4 standard errors below, and 4 above plus the truncation.
    """
    rng = np.random.default_rng(1)
    found = [
        difference(*simulated(rng, seeds=seeds, documents=documents, same=same)) for _ in range(400)
    ]
    gains = np.array([one.gain for one in found])
    expected = seeds**2 / 3 + (documents**2 / (1 if same else 3) + 0.1**2 / 3) / 200
    assert abs(gains.mean() - 0.1) < 4 * math.sqrt(expected / 400)
    ratio = np.mean([one.error**2 for one in found]) / expected
    truncation = 0.4 if seeds < 0.04 else 0.0
    assert 1 - 4 * 0.09 < ratio < 1 + 4 * 0.09 + truncation


def test_errors_by_hand() -> None:
    """Two splits of equal size: no documents' spread, differences 0.1 and 0.3."""

    def scores(gain: float, split: int) -> Scores:
        nats = torch.full((4,), -6 + gain, dtype=torch.float64)
        return Scores(torch.arange(4) + 4 * split, nats, torch.ones(4))

    ours = [scores(0.1, 0), scores(0.3, 1)]
    found = difference(ours, [scores(0.0, 0), scores(0.0, 1)])
    assert found.gain == pytest.approx(0.2)
    # Over 8 documents: deviations of 0.1, variance of the mean 8 x 0.01 / 7 / 8.
    assert found.document_error**2 == pytest.approx(0.01 / 7)
    # Between: 0.01 is A / 2 - V, with V = 0.01 / 7.
    between = 2 * (0.01 + 0.01 / 7)
    assert found.seed_spread**2 == pytest.approx(between)
    assert found.error**2 == pytest.approx(0.01 / 7 + between / 2)
    degrees = found.error**4 / ((between / 2) ** 2 / 1 + (0.01 / 7) ** 2 / 7)
    assert found.p == pytest.approx(2 * student.sf(0.2 / found.error, degrees))
    assert 1 < degrees < 2


def test_a_single_split_has_no_error_of_seeds() -> None:
    scores = Scores(torch.arange(3), torch.tensor([-5.0, -6.0, -7.0]), torch.ones(3))
    found = difference([scores], [scores])
    assert found.gain == 0
    assert math.isnan(found.error)
    assert found.document_error == 0


def test_other_tokens_and_other_splits_are_refused() -> None:
    one = Scores(torch.arange(2), torch.zeros(2), torch.ones(2))
    other = Scores(torch.arange(2), torch.zeros(2), torch.full((2,), 2))
    with pytest.raises(ConfigError, match="different held-out tokens"):
        difference([one], [other])
    with pytest.raises(ConfigError, match="different held-out tokens"):
        difference([one, one], [one])
