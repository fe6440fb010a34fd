"""Plots of correlations show the model's numbers, with labels that do not overlap."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from matplotlib.colors import to_hex
from support.pictures import WORDS, make_model

import torch_lntm as lntm
from torch_lntm.plotting import correlation_graph, correlation_heatmap


def shown_correlations(ax):
    """The heat map's entries by topic number, whatever their order in the picture."""
    numbers = [int(label.get_text().split()[0]) for label in ax.get_yticklabels()]
    assert [int(label.get_text()) for label in ax.get_xticklabels()] == numbers
    values = np.empty((len(numbers), len(numbers)))
    values[np.ix_(numbers, numbers)] = ax.images[0].get_array().filled(np.nan)
    return values


@pytest.mark.parametrize("cluster", [False, True])
def test_heat_map_shows_the_correlations(cluster):
    model = make_model()
    ax = correlation_heatmap(model, cluster=cluster)
    expected = model.topic_correlation().numpy()
    np.fill_diagonal(expected, np.nan)
    np.testing.assert_allclose(shown_correlations(ax), expected)
    low, high = ax.images[0].get_clim()
    assert low == -high  # centred at 0
    assert high == pytest.approx(np.nanmax(np.abs(expected)))


def test_heat_map_puts_correlated_topics_side_by_side():
    model = lntm.models.ctm(4, 5)
    covariance = torch.eye(4)
    covariance[0, 2] = covariance[2, 0] = covariance[1, 3] = covariance[3, 1] = 0.9
    model.prior.set_(covariance=covariance)
    ax = correlation_heatmap(model)
    numbers = [int(label.get_text()) for label in ax.get_yticklabels()]
    assert {frozenset(numbers[:2]), frozenset(numbers[2:])} == {
        frozenset({0, 2}),
        frozenset({1, 3}),
    }


@pytest.mark.slow
@pytest.mark.parametrize("num_topics", [2, 3, 25])
def test_plots_work_for_every_number_of_topics(num_topics, tmp_path):
    model = make_model(num_topics)
    for name, ax in (("map", correlation_heatmap(model)), ("graph", correlation_graph(model))):
        ax.figure.savefig(tmp_path / f"{name}.png", dpi=40)


def test_graph_draws_the_strongest_positive_correlations():
    model = make_model()
    correlation = model.topic_correlation().numpy()
    strongest = np.sort(correlation[np.triu_indices(6, 1)])[::-1]
    ax = correlation_graph(model, num_edges=2)
    assert len(ax.lines) == 2
    assert ax.lines[0].get_linewidth() > ax.lines[1].get_linewidth()
    assert strongest[1] > 0
    assert {to_hex(line.get_color()) for line in ax.lines} == {"#c25b00"}
    with_negative = correlation_graph(model, num_edges=15, min_correlation=0, negative=True)
    colours = [to_hex(line.get_color()) for line in with_negative.lines]
    assert colours.count("#c25b00") == (strongest > 0).sum()
    assert colours.count("#2166ac") == (strongest < 0).sum()
    assert with_negative.get_legend() is not None


def test_graph_areas_follow_the_shares():
    shares = np.array([0.5, 0.1, 0.1, 0.1, 0.1, 0.1])
    areas = correlation_graph(make_model(), shares=shares).collections[0].get_sizes()
    assert areas[0] > 2 * areas[1]
    assert np.ptp(areas[1:]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("num_topics", [5, 20, 60])
def test_names_in_the_graph_do_not_overlap(num_topics):
    ax = correlation_graph(make_model(num_topics))
    ax.figure.canvas.draw()
    boxes = [text.get_window_extent() for text in ax.texts if text.get_text().startswith("word")]
    assert len(boxes) == num_topics
    overlaps = [
        (i, j) for i, a in enumerate(boxes) for j, b in enumerate(boxes[:i]) if a.overlaps(b)
    ]
    assert overlaps == []


@pytest.mark.slow
@pytest.mark.parametrize(("num_topics", "figsize"), [(15, (9.4, 4.6)), (25, (12, 6))])
def test_long_names_cover_no_other_names_or_circles(num_topics, figsize):
    model = make_model(num_topics)
    _, axes = plt.subplots(1, 2, figsize=figsize, width_ratios=(1.75, 1), layout="constrained")
    names = [f"{k} hollingworth firefighters" for k in range(num_topics)]
    ax = correlation_graph(model, labels=names, ax=axes[0])
    ax.figure.canvas.draw()
    boxes = [text.get_window_extent() for text in ax.texts if "hollingworth" in text.get_text()]
    assert len(boxes) == num_topics
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    (circles,) = ax.collections
    middles = ax.transData.transform(circles.get_offsets())
    reach = np.sqrt(circles.get_sizes()) / 2 * ax.figure.dpi / 72
    for k, box in enumerate(boxes):
        nearest = np.clip(middles, [box.x0, box.y0], [box.x1, box.y1])
        covers = np.linalg.norm(nearest - middles, axis=1) < reach
        assert not covers[np.arange(num_topics) != k].any()


def test_plots_can_use_existing_axes():
    model = make_model()
    _, axes = plt.subplots(1, 2)
    assert correlation_heatmap(model, ax=axes[0]) is axes[0]
    assert correlation_graph(model, ax=axes[1]) is axes[1]


@pytest.mark.slow
def test_weak_correlations_stay_pale_and_have_no_line():
    model = lntm.models.lda(4, len(WORDS), concentration=0.5, vocabulary=WORDS)
    strongest = model.topic_correlation().abs().fill_diagonal_(0).max()
    assert 0.01 < strongest < 0.35  # centring alone gives -1/(K - 1)
    heat = correlation_heatmap(lntm.models.lda(20, len(WORDS), concentration=0.5))
    assert heat.images[0].get_clim() == (-0.3, 0.3)
    ax = correlation_graph(model, num_edges=6)
    assert len(ax.lines) == 0
    assert "no correlation of 0.1 or more" in {text.get_text() for text in ax.texts}


def test_lines_have_at_least_the_requested_correlation():
    model = make_model()
    correlation = model.topic_correlation().numpy()
    pairs = np.sort(correlation[np.triu_indices(6, 1)])[::-1]
    least = float((pairs[1] + pairs[2]) / 2)
    assert least > 0.1
    ax = correlation_graph(model, min_correlation=least)
    assert len(ax.lines) == 2
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels[-1] == f"correlation {pairs[0]:.2f}"


def test_lines_and_topics_lie_inside_the_axes():
    ax = correlation_graph(make_model(30), num_edges=60, min_correlation=0)
    (left, right), (high, low) = ax.get_xlim(), ax.get_ylim()
    for line in ax.lines:
        x, y = line.get_data()
        assert left <= min(x) <= max(x) <= right
        assert low <= min(y) <= max(y) <= high
