"""The study of time and memory against sizes: its fits, exponents and tables."""

from __future__ import annotations

import math

import numpy as np
import pytest

from studies.benchmarks import scale
from studies.measure import Cells
from torch_lntm.errors import ConfigError

TINY = scale.Settings(
    num_docs=200,
    tokens_per_doc=10,
    num_topics=4,
    num_words=40,
    factors=(1.0, 2.0),
    processes=(1, 2),
    process_docs=200,
    max_epochs=2,
)


def test_one_quantity_at_a_time_differs_from_the_base_fit() -> None:
    found = list(scale.fits(TINY))
    sizes = [(c.num_docs, c.tokens_per_doc, c.num_topics, c.num_words) for _, _, c, _ in found]
    base = (200, 10, 4, 40)
    for (quantity, value, _, processes), size in zip(found, sizes, strict=True):
        changed = {a for a, b in zip(size, base, strict=True) if a != b}
        assert changed <= {value}
        assert processes == (value if quantity == "processes" else 1)
    assert len(set(sizes)) == 5


def test_exponents() -> None:
    x = np.array([1.0, 2, 4, 8])
    assert scale.exponent(x.tolist(), (3 * x**1.5).tolist()) == pytest.approx((1.5, 0))
    # By hand: log costs in units of log 2 are 0, 1, 1, so the slope is 1/2 and the residuals are
    # -1/6, 1/3, -1/6, with the sum of squares 1/6 over one degree of freedom and x'x = 2.
    assert scale.exponent([1, 2, 4], [1, 2, 2]) == pytest.approx((0.5, math.sqrt(1 / 12)))
    slope, error = scale.exponent([1, 2], [5, 20])
    assert slope == pytest.approx(2)
    assert math.isnan(error)


@pytest.mark.slow
def test_fits_and_tables() -> None:
    costs = scale.run(TINY, Cells())
    of = {(cost.quantity, cost.value): cost for cost in costs}
    assert len(of) == 10
    assert of["documents", 400].tokens == pytest.approx(2 * of["documents", 200].tokens, rel=0.1)
    assert of["processes", 2].tokens == pytest.approx(of["processes", 1].tokens / 2, rel=0.2)
    for cost in costs:
        assert cost.epoch_seconds > 0
        assert cost.peak_mb > 0
    text = scale.tables(costs)
    assert "| tokens of a document |    20 |" in text
    assert "| exponents " in text


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="max_epochs is 1"):
        scale.Settings(max_epochs=1)
    with pytest.raises(ConfigError, match="factors is 0"):
        scale.Settings(factors=(0.0, 1.0))
