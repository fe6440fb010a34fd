from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy.stats import norm

from studies.measure import Cells
from studies.papers import ahmed_xing_learning
from studies.papers.ahmed_xing_fig5 import (
    STUDY,
    DensitySettings,
    by_model,
    density,
    figure,
    missed,
    run,
    simplex_grid,
    tables,
)
from studies.papers.ahmed_xing_learning import LearningResult, normal_divergence
from torch_lntm.errors import ConfigError

TINY = DensitySettings(num_words=12, num_tokens=60, num_docs=30, models=2, max_iterations=3)


@pytest.fixture(scope="module")
def result() -> LearningResult:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ahmed_xing_learning, "LIKELIHOOD_DOCS", 2)
        return run(TINY, Cells())


@pytest.mark.slow
def test_learns_each_model_from_both_starts_by_both_posteriors(result: LearningResult) -> None:
    models = by_model(result)
    assert list(models) == [0, 1]
    for learned in models.values():
        assert [(row.start, row.posterior) for row in learned] == [
            (start, posterior)
            for start in ("random", "lda")
            for posterior in ("taylor", "blei-lafferty")
        ]
    text = tables(result)
    assert "| 1: Blei–Lafferty, from LDA " in text
    assert f" {models[1][3].theta:.3f} " in text


@pytest.mark.slow
def test_the_figure_has_the_truth_first_and_two_rows_a_model(result: LearningResult) -> None:
    axes = figure(result).axes
    assert len(axes) == 2 * 2 * 5
    assert [ax.get_title() for ax in axes[:5]] == [
        "true",
        "Taylor,\nfrom random",
        "Blei–Lafferty,\nfrom random",
        "Taylor,\nfrom LDA",
        "Blei–Lafferty,\nfrom LDA",
    ]


def test_the_density_integrates_to_one_and_gives_the_divergence() -> None:
    loc, other = torch.tensor([0.2, -0.1]).double(), torch.tensor([0.0, 0.3]).double()
    wide, narrow = torch.eye(2).double(), 0.5 * torch.eye(2).double()
    cell = 1.0 / 400
    ticks = (torch.arange(400).double() + 0.5) * cell
    first, second = torch.meshgrid(ticks, ticks, indexing="ij")
    inside = first + second < 1.0
    theta = torch.stack([first, second, 1 - first - second], -1)[inside]
    p, q = density(loc, narrow, theta), density(other, wide, theta)
    assert float(p.sum()) * cell**2 == pytest.approx(1.0, abs=0.01)
    expected = float((p * (p / q).log()).sum()) * cell**2
    assert normal_divergence(loc, narrow, other, wide) == pytest.approx(expected, abs=0.01)


def test_the_mass_missed_is_that_of_two_normals_apart() -> None:
    loc, unit = torch.zeros(2).double(), torch.eye(2).double()
    assert missed(loc, unit, loc, unit) == 0.0
    other = torch.tensor([1.5, 0.0]).double()
    # Two unit normals a distance d apart overlap by 2 Φ(−d/2).
    expected = 1.0 - 2.0 * norm.cdf(-0.75)
    # Four standard errors of a mean of 20,000 draws that lie between 0 and 1.
    assert missed(loc, unit, other, unit) == pytest.approx(expected, abs=4 * 0.5 / math.sqrt(2e4))
    # A line has hardly any of the mass.
    line = torch.tensor([[1.0, 0.0], [0.0, 1e-8]]).double()
    assert missed(loc, unit, loc, line) > 0.99


def test_the_grid_is_inside_the_simplex() -> None:
    grid = simplex_grid(5)
    assert grid.shape == (15, 3)
    assert grid.min() > 0
    assert grid.sum(1) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"models": 0}, "models is 0"),
        ({"posteriors": ("laplace",)}, "expected taylor among them"),
        ({"starts": ("cold",)}, "starts are cold"),
        ({"tolerance": 0.0}, "tolerance is 0.0"),
        ({"num_docs": 1}, "num_docs is 1"),
    ],
)
def test_settings_are_checked(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(STUDY.settings(), **change)
