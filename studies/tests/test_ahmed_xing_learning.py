from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from studies.measure import Cells
from studies.papers import ahmed_xing_learning
from studies.papers.ahmed_xing_learning import (
    ERRORS,
    LearningResult,
    LearningSettings,
    contrasts,
    draw,
    figure,
    match,
    normal_divergence,
    run,
)
from torch_lntm.errors import ConfigError

TINY = LearningSettings(
    num_words=12,
    num_tokens=100,
    num_docs=80,
    prior_variance=4.0,
    repetitions=2,
    posteriors=("taylor", "blei-lafferty"),
    tolerances=(1e-3,),
    max_iterations=20,
)


@pytest.fixture(scope="module")
def result() -> LearningResult:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ahmed_xing_learning, "LIKELIHOOD_DOCS", 4)
        return run(TINY, Cells())


@pytest.mark.slow
def test_learns_every_model_by_every_method(result: LearningResult) -> None:
    assert len(result.rows) == 2 * 2 * 3
    for row in result.rows:
        assert 0.0 < row.theta < 1.0
        assert row.topics > 0.0
        assert row.density > 0.0
        assert np.shape(row.probs) == (3, 12)
        assert all(sum(topic) == pytest.approx(1.0, abs=1e-3) for topic in row.probs)
    # Where EM is not stuck, it comes closer to the truth than proportions that know nothing.
    _, _, theta = draw(TINY, 0)
    ignorant = float((theta - theta.mean(0)).abs().sum(1).mean()) / 2
    best = min(row.theta for row in result.rows if row.repetition == 0)
    assert best < 0.7 * ignorant


@pytest.mark.slow
def test_tables_have_medians_and_paired_differences(result: LearningResult) -> None:
    text = result.tables()
    assert all(f"* {name}: {meaning}" in text for name, meaning in ERRORS.items())
    found = result.errors(("blei-lafferty", "random", 1e-3), "theta")
    line = next(line for line in text.splitlines() if line.startswith("| Blei–Lafferty, 0.001"))
    assert f" {sum(found) / 2:.3f} " in line
    with pytest.raises(ConfigError, match="nothing was measured"):
        result.errors(("laplace", "random", 1e-3), "theta")


@pytest.mark.slow
def test_the_figure_has_a_point_for_every_model(result: LearningResult) -> None:
    axes = figure(result).axes
    assert len(axes) == 3
    for ax, error in zip(axes, ("theta", "topics", "density"), strict=True):
        points = [v for line in ax.lines if line.get_marker() != "None" for v in line.get_ydata()]
        assert sorted(points) == sorted(getattr(row, error) for row in result.rows)


def test_topics_are_matched_whatever_their_order() -> None:
    truth = torch.eye(3, 5).double() + 0.1
    order = torch.tensor([2, 0, 1])
    assert torch.equal(truth[order][match(truth[order], truth)], truth)


def test_contrasts_are_log_ratios_to_the_last_topic() -> None:
    truth, _, _ = draw(TINY, 0)
    loc, covariance = contrasts(truth, torch.tensor([1, 2, 0]))
    mean, spread = truth.prior.loc.tolist(), truth.prior.covariance.tolist()
    # Log ratios of topics 1 and 2 to topic 0, by the variance of a difference.
    assert loc.tolist() == pytest.approx([mean[1] - mean[0], mean[2] - mean[0]])
    for i, k in enumerate((1, 2)):
        expected = spread[k][k] + spread[0][0] - 2 * spread[k][0]
        assert float(covariance[i, i]) == pytest.approx(expected)
    between = spread[1][2] - spread[1][0] - spread[0][2] + spread[0][0]
    assert float(covariance[0, 1]) == pytest.approx(between)


def test_the_divergence_is_that_of_normal_distributions() -> None:
    loc, other = torch.tensor([0.2, -0.1]).double(), torch.tensor([0.0, 0.3]).double()
    wide, narrow = torch.eye(2).double(), 0.5 * torch.eye(2).double()
    # ½ (tr(S⁻¹ V) + |m|² − 2 + log det S / det V), S the wide one, for which S⁻¹ is itself.
    expected = 0.5 * (1.0 + 0.2**2 + 0.4**2 - 2.0 + math.log(4.0))
    assert normal_divergence(loc, narrow, other, wide) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"posteriors": ("blei-lafferty",)}, "expected taylor among them"),
        ({"posteriors": ("lda",)}, "posteriors are lda"),
        ({"starts": ("cold",)}, "starts are cold"),
        ({"tolerances": ()}, "at least one tolerance"),
        ({"num_docs": 1}, "num_docs is 1"),
        ({"prior_variance": math.nan}, "prior_variance is nan"),
    ],
)
def test_settings_are_checked(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LearningSettings(**change)
