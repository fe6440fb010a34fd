"""Pictures show what the model and posterior say, and their labels do not overlap."""

from __future__ import annotations

import itertools
import sys

import matplotlib as mpl
import numpy as np
import pytest
import torch
from scipy.stats import beta

import torch_lntm as lntm
from torch_lntm.errors import ConfigError
from torch_lntm.plotting import (
    correlation_graph,
    correlation_heatmap,
    document_proportions,
    source_plot,
    topic_labels,
)

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.colors import to_hex

WORDS = tuple(f"word{v:02}" for v in range(40))


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


def make_model(num_topics=6, **options):
    model = lntm.models.ctm(num_topics, len(WORDS), vocabulary=WORDS, **options)
    factor = torch.randn(
        num_topics, num_topics, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    model.prior.set_(covariance=factor @ factor.mT + 0.1 * torch.eye(num_topics))
    return model


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


def test_colours_run_from_blue_over_near_white_to_orange():
    colours = correlation_heatmap(make_model()).images[0].get_cmap()
    red, green, blue = colours(0.15)[:3]
    assert blue > red
    red, green, blue = colours(0.85)[:3]
    assert red > green > blue
    assert min(colours(0.5)[:3]) > 0.9


@pytest.mark.parametrize("num_topics", [2, 3, 25])
def test_every_size_has_a_picture(num_topics, tmp_path):
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
    with_negative = correlation_graph(model, num_edges=15, negative=True)
    colours = [to_hex(line.get_color()) for line in with_negative.lines]
    assert colours.count("#c25b00") == (strongest > 0).sum()
    assert colours.count("#2166ac") == (strongest < 0).sum()
    assert with_negative.get_legend() is not None


def test_graph_areas_follow_the_shares():
    shares = np.array([0.5, 0.1, 0.1, 0.1, 0.1, 0.1])
    areas = correlation_graph(make_model(), shares=shares).collections[0].get_sizes()
    assert areas[0] > 2 * areas[1]
    assert np.ptp(areas[1:]) == 0


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


def small_corpus():
    return lntm.Corpus.from_matrix(np.random.default_rng(0).poisson(1.0, (3, len(WORDS))))


def test_document_proportions_are_the_posteriors():
    model = make_model()
    posterior = lntm.guides.LaplaceGuide(model).posterior(small_corpus().batch())
    ax = document_proportions(
        posterior, 1, level=0.8, labels=topic_labels(model), num_topics=4, num_samples=4000
    )
    draws = posterior.draw_theta(1, 4000, (0,)).numpy()
    mean = draws.mean(0)
    order = np.argsort(-mean)[:4][::-1]
    np.testing.assert_allclose(ax.lines[0].get_xdata(), mean[order], atol=1e-6)
    segments = np.array(ax.collections[0].get_segments())
    ends = np.quantile(draws, [0.1, 0.9], axis=0)[:, order]
    np.testing.assert_allclose(segments[:, :, 0], ends.T, atol=1e-6)
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        topic_labels(model)[k] for k in order
    ]
    assert "80%" in ax.get_xlabel()
    # A document may be counted from the end.
    last, again = (document_proportions(posterior, d).lines[0].get_xdata() for d in (2, -1))
    assert np.array_equal(last, again)


def test_document_proportions_of_a_dirichlet_are_its_own():
    model = lntm.models.lda(6, len(WORDS), concentration=0.7)
    posterior = lntm.guides.DirichletGuide(model).posterior(small_corpus().batch())
    ax = document_proportions(posterior, 2, level=0.9, num_topics=None, num_samples=20_000)
    gamma = posterior.gamma[2].numpy()
    shown = [int(label.get_text()) for label in ax.get_yticklabels()]
    marginal = beta(gamma[shown], gamma.sum() - gamma[shown])
    # Six standard errors of 20,000 draws: of the mean; and of quantiles, through their probability.
    error = 6 * marginal.std() / np.sqrt(20_000)
    assert (np.abs(ax.lines[0].get_xdata() - marginal.mean()) < error).all()
    segments = np.array(ax.collections[0].get_segments())
    for end, probability in ((0, 0.05), (1, 0.95)):
        found = marginal.cdf(segments[:, end, 0])
        assert (np.abs(found - probability) < 6 * np.sqrt(0.05 * 0.95 / 20_000)).all()


# -------------------------------------------------------------------- sources


def make_factor_model(num_topics=6, num_sources=2, words=WORDS, **options):
    mixing = torch.randn(
        num_topics, num_sources, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    return lntm.models.iftm(
        num_topics, len(words), num_sources, mixing=mixing, vocabulary=words, **options
    )


def test_source_plot_shows_the_ends_of_the_centred_columns():
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


def test_source_plot_of_one_source_and_few_topics():
    model = make_factor_model(2, 1)
    ax = source_plot(model, 0)
    widths = [bar.get_width() for bar in ax.patches][1:]
    assert widths[0] == pytest.approx(-widths[1])
    both = make_factor_model()
    labels = [label.get_text() for label in source_plot(both, 1).get_yticklabels()]
    assert [label for label in labels if label.startswith("source")] == ["source 1"]
    _, axes = plt.subplots(1, 2)
    assert source_plot(model, ax=axes[1]) is axes[1]


@pytest.mark.parametrize(("num_topics", "num_sources"), [(20, 5), (20, 1), (2, 1)])
@pytest.mark.parametrize(
    "words", [WORDS, tuple(f"$unpronounceable{'w' * v}$" for v in range(len(WORDS)))]
)
def test_names_in_the_source_plot_are_whole_and_apart(num_topics, num_sources, words):
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


def test_pictures_go_into_given_axes():
    model = make_model()
    _, axes = plt.subplots(1, 2)
    assert correlation_heatmap(model, ax=axes[0]) is axes[0]
    assert correlation_graph(model, ax=axes[1]) is axes[1]


def test_labels():
    model = make_model()
    top = model.topics.probs[2].detach().topk(2).indices.tolist()
    assert topic_labels(model)[2] == f"2 {WORDS[top[0]]} {WORDS[top[1]]}"
    assert topic_labels(model, 0) == list("012345")
    assert topic_labels(lntm.models.ctm(2, 3)) == ["0", "1"]


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda m, p: correlation_heatmap(m, labels=["a"]), "1 labels for 6 topics"),
        (lambda m, p: correlation_graph(m, labels=["a"]), "1 labels for 6 topics"),
        (lambda m, p: correlation_graph(m, shares=[1.0]), "1 shares for 6 topics"),
        (lambda m, p: document_proportions(p, 3), "document 3 of a posterior of 2"),
        (lambda m, p: document_proportions(p, 0, level=1.0), "level is 1.0"),
        (lambda m, p: document_proportions(p, 0, labels=["a"]), "1 labels for 6 topics"),
        (lambda m, p: source_plot(m), "ctm, has no sources; iftm has"),
        (lambda m, p: source_plot(make_factor_model(), 2), "source 2 of a model with 2 sources"),
        (lambda m, p: source_plot(make_factor_model(), -1), "source -1 of a model"),
        (lambda m, p: source_plot(make_factor_model(), num_topics=0), "num_topics is 0"),
        (lambda m, p: source_plot(make_factor_model(), num_words=0), "num_words 0"),
    ],
)
def test_what_cannot_be_drawn_is_said(draw, message):
    model = make_model()
    corpus = lntm.Corpus.from_matrix(np.ones((2, len(WORDS))))
    posterior = lntm.guides.TaylorGuide(model).posterior(corpus.batch())
    with pytest.raises(ConfigError, match=message):
        draw(model, posterior)


@pytest.mark.parametrize("missing", ["matplotlib", "networkx"])
def test_a_missing_library_is_named_with_its_extra(monkeypatch, missing):
    for name in [name for name in sys.modules if name.split(".")[0] == missing]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ConfigError, match=rf"needs {missing}.*torch-lntm\[viz\]"):
        correlation_graph(make_model())
