"""How many documents mini-batches have, and how running averages over them forget."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from torch_lntm.inference.em.schedule import (
    default_batch_docs,
    default_step_docs,
    documents_per_block,
    running_weight,
)


def test_blocks_are_a_hundredth_of_the_corpus_within_bounds() -> None:
    """40 to 400 documents; of short ones 1,200 tokens at least; never over a quarter."""
    sizes = [documents_per_block(n, 100.0) for n in (20, 2000, 7000, 18_000, 75_000, 1_000_000)]
    assert sizes == [5, 40, 70, 180, 400, 400]
    assert documents_per_block(4500, 10.0) == 120
    assert documents_per_block(18_000, 10.0) == 180


def test_mini_batches_are_eight_blocks_or_a_quarter_of_the_corpus() -> None:
    sizes = [default_batch_docs(n, 100.0) for n in (1, 50, 300, 2000, 7000, 18_000, 1_000_000)]
    assert sizes == [1, 13, 75, 320, 560, 1440, 3200]
    assert default_batch_docs(3000, 10.0) == 750
    assert default_batch_docs(9000, 10.0) == 960


def test_stochastic_steps_have_enough_tokens_for_every_topic() -> None:
    """240 tokens a topic, if that is 64 documents or more, and neither too few nor too many."""
    assert default_step_docs(10_000, 100.0, 50) == 120
    assert default_step_docs(10_000, 100.0, 5) == 64
    assert default_step_docs(10_000, 6.0, 400) == 1024
    assert default_step_docs(100, 6.0, 50) == 13


def test_weights_integrate_the_replaced_share_of_the_memory() -> None:
    """By steps so small that each replaces its share of the memory."""
    step = 1e-3
    for seen, size in ((0.0, 5.0), (20.0, 10.0), (45.0, 25.0), (100.0, 40.0)):
        units = np.arange(seen, seen + size, step) / 10.0 + step / 20.0
        memory = np.minimum(units, 5.0) ** 0.3 + np.maximum(units - 5.0, 0.0)
        left = np.prod(1.0 - step / 10.0 / memory)
        assert running_weight(seen, size, 10.0, 50.0) == pytest.approx(1.0 - left, rel=3e-4)


@pytest.mark.parametrize("averaging_start", [math.inf, 700.0])
def test_the_decay_of_old_documents_does_not_depend_on_mini_batches(averaging_start: float) -> None:
    left = []
    for size in (1, 5, 40, 400):
        parts = range(600, 1000, size)
        weights = (running_weight(n, size, 50.0, averaging_start) for n in parts)
        left.append(math.prod(1.0 - weight for weight in weights))
    assert left == pytest.approx([left[0]] * 4)


def test_plain_averaging_gives_all_documents_equal_weights() -> None:
    """While averaging, what is kept of each of two mini-batches of one size is the same."""
    weights = [running_weight(7.0 * n, 7.0, 10.0, 10.0) for n in range(2, 40)]
    for first, second in itertools.pairwise(weights):
        assert first * (1.0 - second) == pytest.approx(second)
