"""Plots of sources show loadings with readable names."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from matplotlib import pyplot as plt
from matplotlib.colors import to_hex
from support.pictures import WORDS, make_factor_model

from torch_lntm.plotting import source_plot
from torch_lntm.reports import topic_labels


def test_the_source_plot_shows_the_largest_centred_loadings():
    model = make_factor_model()
    ax = source_plot(model, num_topics=2, num_words=3)
    mixing = model.prior.mixing.detach().double().numpy()
    loadings = mixing - mixing.mean(0)
    names = topic_labels(model, 3)
    rows, values = [], []
    for source in range(2):
        order = np.argsort(-loadings[:, source])
        ends = [*order[:2], *order[-2:]]
        rows += [f"source {source}", *(names[k] for k in ends)]
        values += [np.nan, *loadings[ends, source]]
    assert [label.get_text() for label in ax.get_yticklabels()] == rows
    np.testing.assert_allclose([bar.get_width() for bar in ax.patches], values, rtol=1e-6)
    low, high = ax.get_xlim()
    assert low == -high
    assert high > np.nanmax(np.abs(values))
    top, bottom = ax.get_ylim()[1], ax.get_ylim()[0]
    assert top < 0 < len(rows) - 1 < bottom  # the first row on top
    colours = [to_hex(bar.get_facecolor()) for bar in ax.patches]
    assert colours[1:5] == ["#c25b00", "#c25b00", "#2166ac", "#2166ac"]


def test_the_source_plot_can_show_one_source_and_few_topics():
    model = make_factor_model(2, 1)
    ax = source_plot(model, 0)
    widths = [bar.get_width() for bar in ax.patches][1:]
    assert widths[0] == pytest.approx(-widths[1])
    both = make_factor_model()
    labels = [label.get_text() for label in source_plot(both, 1).get_yticklabels()]
    assert [label for label in labels if label.startswith("source")] == ["source 1"]
    _, axes = plt.subplots(1, 2)
    assert source_plot(model, ax=axes[1]) is axes[1]


@pytest.mark.slow
@pytest.mark.parametrize(("num_topics", "num_sources"), [(20, 5), (20, 1), (2, 1)])
@pytest.mark.parametrize(
    "words", [WORDS, tuple(f"$unpronounceable{'w' * v}$" for v in range(len(WORDS)))]
)
def test_names_in_the_source_plot_are_complete_and_do_not_overlap(num_topics, num_sources, words):
    ax = source_plot(make_factor_model(num_topics, num_sources, words), num_words=6)
    ax.figure.canvas.draw()
    picture = ax.figure.bbox
    boxes = [label.get_window_extent() for label in ax.get_yticklabels()]
    assert all(picture.x0 <= box.x0 and box.x1 <= ax.bbox.x0 for box in boxes)
    assert all(picture.y0 <= box.y0 and box.y1 <= picture.y1 for box in boxes)
    assert all(lower.y1 <= upper.y0 for upper, lower in itertools.pairwise(boxes))
    ticks = [label.get_window_extent() for label in ax.get_xticklabels() if label.get_text()]
    inside = [box for box in ticks if ax.bbox.x0 <= (box.x0 + box.x1) / 2 <= ax.bbox.x1]
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(inside))
    # The bars keep their room beside the longest names.
    assert ax.bbox.width / ax.figure.dpi > 3.0
    name = ax.xaxis.label.get_window_extent()
    assert picture.x0 <= name.x0
    assert name.x1 <= picture.x1
    assert name.y0 >= picture.y0
