"""Plots show the numbers of models and draws, with labels that do not overlap."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from matplotlib import pyplot as plt
from support.pictures import WORDS, make_factor_model, make_model, small_corpus

import torch_lntm as lntm
from torch_lntm.errors import ConfigError
from torch_lntm.plotting import (
    correlation_graph,
    document_proportions,
    perspective_plot,
    source_plot,
)
from torch_lntm.plotting.topics import _plane
from torch_lntm.reports import topic_labels


def pairs_in(ax):
    return len(ax.collections[1].get_segments())


def test_the_graph_draws_the_strongest_positive_correlations():
    model = make_model()
    correlation = model.topic_correlation().numpy()
    pairs = np.sort(correlation[np.triu_indices(6, 1)])[::-1]
    least = float((pairs[1] + pairs[2]) / 2)
    assert least > 0.1
    ax = correlation_graph(model, min_correlation=least)
    assert pairs_in(ax) == 2
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels[-1] == f"correlation {pairs[0]:.2f}"
    every = correlation_graph(model, min_correlation=0)
    assert pairs_in(every) == min(9, (pairs > 0).sum())
    # Centring alone gives lda the correlation -1/(K - 1).
    plain = lntm.models.lda(4, len(WORDS), concentration=0.5, vocabulary=WORDS)
    assert pairs_in(correlation_graph(plain, min_correlation=0)) == 0


def test_coordinates_of_the_map_keep_the_distances_of_a_plane():
    def distances(points):
        return np.linalg.norm(points[:, None] - points, axis=-1)

    expected = distances(np.random.default_rng(0).normal(size=(7, 2)))
    np.testing.assert_allclose(distances(_plane(expected)), expected, atol=1e-12)
    assert _plane(np.zeros((1, 1))).tolist() == [[0.0, 0.0]]


def test_graph_areas_follow_the_shares():
    shares = np.array([0.5, 0.1, 0.1, 0.1, 0.1, 0.1])
    ax = correlation_graph(make_model(), shares=shares)
    areas = ax.collections[0].get_sizes()
    assert areas[0] > 2 * areas[1]
    assert np.ptp(areas[1:]) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_topics", "figsize"), [(2, (9, 4)), (15, (9.4, 4.6)), (25, (12, 6)), (60, None)]
)
def test_names_in_the_graph_cover_no_other_names_or_circles(num_topics, figsize):
    axes = None
    if figsize:
        _, (axes, _) = plt.subplots(
            1, 2, figsize=figsize, width_ratios=(1.75, 1), layout="constrained"
        )
    names = [f"{k} hollingworth firefighters" for k in range(num_topics)]
    ax = correlation_graph(make_model(num_topics), labels=names, ax=axes)
    assert axes is None or ax is axes
    ax.figure.canvas.draw()
    boxes = [text.get_window_extent() for text in ax.texts if "hollingworth" in text.get_text()]
    assert len(boxes) == num_topics
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    circles = ax.collections[0]
    middles = ax.transData.transform(circles.get_offsets())
    reach = np.sqrt(circles.get_sizes()) / 2 * ax.figure.dpi / 72
    for k, box in enumerate(boxes):
        nearest = np.clip(middles, [box.x0, box.y0], [box.x1, box.y1])
        covers = np.linalg.norm(nearest - middles, axis=1) < reach
        assert not covers[np.arange(num_topics) != k].any()
    assert all(ax.bbox.x0 <= box.x0 and box.x1 <= ax.bbox.x1 for box in boxes)


def test_the_source_plot_shows_the_largest_centred_loadings():
    model = make_factor_model()
    ax = source_plot(model, num_topics=2, top_n=3)
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


def test_perspectives_show_the_words_that_two_topics_use_differently():
    model = make_model()
    ax = perspective_plot(model, 1, 3, top_n=2)
    probs = model.topics.probs[[1, 3]].detach().double()
    parts = probs * (probs / probs.mean(0)).log()
    best = {WORDS[v] for row in parts for v in row.topk(2).indices.tolist()}
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert set(names) == best
    first, second = (x.get_offsets() for x in ax.collections if len(x.get_offsets()) == len(names))
    shown = [WORDS.index(name) for name in names]
    np.testing.assert_allclose(first[:, 0], probs[0, shown], rtol=1e-6)
    np.testing.assert_allclose(second[:, 0], probs[1, shown], rtol=1e-6)
    assert (np.diff(first[:, 0] / second[:, 0]) >= 0).all()


def test_perspectives_compare_two_groups_of_documents():
    corpus = lntm.Corpus.from_matrix(
        np.array([[5, 1, 0], [0, 2, 5]] * 3),
        ["a", "b", "c"],
        metadata={"party": ["left", "right"] * 3},
    )
    model = lntm.models.stm(2, corpus, content="party", seed=0)
    ax = perspective_plot(model, 0, groups=("right", "left"))
    told = [text.get_text() for text in ax.get_legend().get_texts()]
    assert told == ["right", "left"]
    with pytest.raises(ConfigError, match="expected two of the levels"):
        perspective_plot(model, 0, groups=("left", "middle"))


def test_document_proportions_show_means_and_quantiles_of_the_draws(monkeypatch):
    model = make_model()
    guide = lntm.guides.LaplaceGuide(model, tolerance=1e-12, max_iterations=500)
    draws = lntm.inference.theta_draws(guide, small_corpus(), 5)
    labels = lntm.reports.topic_labels(model)
    options = {"labels": labels, "num_topics": 4, "num_draws": 4000}
    # In single precision, a second solution may differ where its numbers lie elsewhere in memory.
    taken = draws.take(np.array([1]), 4000)
    monkeypatch.setattr(type(draws), "take", lambda *_: taken)
    ax = document_proportions(draws, 1, level=0.8, **options)
    theta = taken.theta[:, 0].double().numpy()
    mean = theta.mean(0)
    order = np.argsort(-mean)[:4][::-1]
    np.testing.assert_allclose(ax.lines[0].get_xdata(), mean[order], atol=1e-6)
    segments = np.array(ax.collections[0].get_segments())
    ends = np.quantile(theta, [0.1, 0.9], axis=0)[:, order]
    np.testing.assert_allclose(segments[:, :, 0], ends.T, atol=1e-6)
    assert [label.get_text() for label in ax.get_yticklabels()] == [labels[k] for k in order]


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda m, p: correlation_graph(m, labels=["a"]), "1 labels and 6 shares for 6 topics"),
        (lambda m, p: correlation_graph(m, shares=[1.0]), "1 shares for 6 topics"),
        (lambda m, p: correlation_graph(m, min_correlation=-0.1), "min_correlation is -0.1"),
        (lambda m, p: document_proportions(p, 3), "document 3 is not in ThetaDraws"),
        (lambda m, p: document_proportions(p, 0, level=1.0), "level is 1.0"),
        (lambda m, p: document_proportions(p, 0, labels=["a"]), "1 labels for 6 topics"),
        (lambda m, p: perspective_plot(m, 0), "give a second topic by other="),
        (lambda m, p: source_plot(m), "ctm, has no sources; iftm has"),
        (lambda m, p: source_plot(make_factor_model(), num_topics=0), "num_topics is 0"),
    ],
)
def test_invalid_arguments_are_refused(draw, message):
    model = make_model()
    corpus = lntm.Corpus.from_matrix(np.ones((2, len(WORDS))))
    draws = lntm.inference.theta_draws(lntm.guides.TaylorGuide(model), corpus, 2)
    with pytest.raises(ConfigError, match=message):
        draw(model, draws)
