"""Pictures of a fitted model; they need the extra ``viz``: pip install 'torch-lntm[viz]'."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from torch_lntm.errors import ConfigError
from torch_lntm.guides import Posterior
from torch_lntm.models import IndependentFactorPrior, TopicModel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Blue and orange, which every common colour blindness tells apart, and the map between them.
_NEGATIVE, _POSITIVE, _NEUTRAL = "#2166ac", "#c25b00", "#4d4d4d"
_DIVERGING = ("#123c69", _NEGATIVE, "#92c5de", "#f7f7f7", "#f9be82", _POSITIVE, "#7a3600")


def topic_labels(model: TopicModel, num_words: int = 2) -> list[str]:
    """A short name for each topic: its number and its most probable words.

    Args:
        model: The model.
        num_words: Words in a name; 0 for the number alone.

    Returns:
        ``num_topics`` names such as ``"3 fire sydney"``.
    """
    if model.vocabulary is None or num_words < 1:
        return [str(k) for k in range(model.num_topics)]
    top = model.topics.probs.detach().topk(min(num_words, model.num_words), -1).indices.tolist()
    vocabulary = model.vocabulary
    return [" ".join([str(k), *(vocabulary[v] for v in words)]) for k, words in enumerate(top)]


def correlation_heatmap(
    model: TopicModel,
    *,
    labels: Sequence[str] | None = None,
    cluster: bool = True,
    ax: Axes | None = None,
) -> Axes:
    """Correlations between topics as a heat map, blue for negative and orange for positive.

    Args:
        model: The model.
        labels: A name for each topic; by default its number and first words.
        cluster: Put correlated topics next to each other instead of going by number.
        ax: Axes to draw into; by default those of a new figure of suitable size.

    Returns:
        The axes.

    Raises:
        ConfigError: matplotlib is missing, or there is another number of labels than of topics.
    """
    plt = _pyplot()
    from matplotlib.colors import LinearSegmentedColormap

    correlation = model.topic_correlation().detach().cpu().numpy()
    names = _names(model, labels)
    order = _seriation(correlation) if cluster else np.arange(len(names))
    shown = correlation[np.ix_(order, order)]
    np.fill_diagonal(shown, np.nan)  # always 1: it would only dull the colours of the others
    size = len(names)
    if ax is None:
        side = min(max(3.5, 0.28 * size + 1.0), 16.0)
        _, ax = plt.subplots(figsize=(side + 2.4, side), layout="compressed")
    limit = max(0.1, float(np.nanmax(np.abs(shown))))
    colours = LinearSegmentedColormap.from_list("blue_orange", _DIVERGING)
    image = ax.imshow(shown, cmap=colours.with_extremes(bad="#d9d9d9"), vmin=-limit, vmax=limit)
    fontsize = float(np.clip(520 / size, 3, 9))
    ax.set_xticks(range(size), [names[k].split(" ")[0] for k in order], fontsize=fontsize)
    ax.set_yticks(range(size), [names[k] for k in order], fontsize=fontsize)
    ax.set_xticks(np.arange(size) - 0.5, minor=True)
    ax.set_yticks(np.arange(size) - 0.5, minor=True)
    ax.grid(which="minor", color="white", linewidth=0.6)
    ax.tick_params(which="both", length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)
    bar = ax.figure.colorbar(image, ax=ax, fraction=0.046, pad=0.03)
    bar.set_label("correlation")
    bar.outline.set_visible(False)
    ax.set_title("Topic correlations")
    return ax


def correlation_graph(
    model: TopicModel,
    *,
    shares: Sequence[float] | Tensor | None = None,
    num_edges: int | None = None,
    negative: bool = False,
    labels: Sequence[str] | None = None,
    seed: int = 0,
    ax: Axes | None = None,
) -> Axes:
    """The strongest correlations between topics as a graph: correlated topics lie together.

    Args:
        model: The model.
        shares: ``(num_topics,)`` mean proportions, shown as the areas of the topics.
        num_edges: Correlations to draw, the strongest first; by default 1.5 for each topic.
        negative: Draw negative correlations too, dashed in blue, not only the positive ones.
        labels: A name for each topic; by default its number and first words.
        seed: Seed of the placement's start.
        ax: Axes to draw into; by default those of a new figure.

    Returns:
        The axes.

    Raises:
        ConfigError: matplotlib or networkx is missing, or there is another number of labels or
            shares than of topics.
    """
    plt = _pyplot()
    networkx = _require("networkx")
    from matplotlib.lines import Line2D

    correlation = model.topic_correlation().detach().cpu().numpy()
    names = _names(model, labels)
    size = len(names)
    if shares is not None and len(shares) != size:
        raise ConfigError(f"{len(shares)} shares for {size} topics; expected as many")
    if ax is None:
        side = float(np.clip(1.45 * np.sqrt(size), 3.5, 14))
        _, ax = plt.subplots(figsize=(1.4 * side, side), layout="constrained")

    # Springs of length 1 - r between all pairs, not only those drawn, so that topics without a
    # line have their place too.
    rest = np.clip(1 - correlation, 0.3, 1.7)
    graph = networkx.complete_graph(size)
    start = networkx.random_layout(graph, seed=seed)
    distance = {i: dict(enumerate(row)) for i, row in enumerate(rest.tolist())}
    place = networkx.kamada_kawai_layout(graph, dist=distance, pos=start)
    window = ax.get_window_extent()
    box = np.array([window.width, window.height]) / ax.figure.dpi
    points = _spread(np.array([place[k] for k in range(size)]), box)

    edges = _strongest(correlation, int(1.5 * size) if num_edges is None else num_edges, negative)
    limit = max((abs(correlation[edge]) for edge in edges), default=1.0)
    for i, j in edges:
        r = correlation[i, j]
        ax.plot(
            *points[[i, j]].T,
            color=_POSITIVE if r > 0 else _NEGATIVE,
            linestyle="-" if r > 0 else (0, (3, 2)),
            linewidth=0.5 + 3.5 * abs(r) / limit,
            alpha=0.8,
            zorder=1,
        )
    weights = np.full(size, 1 / size) if shares is None else np.asarray(shares, dtype=float)
    areas = 130 + 600 * weights / max(float(weights.max()), 1e-12)
    ax.scatter(
        points[:, 0],
        points[:, 1],
        s=areas,
        color="#e9e9e9",
        edgecolor=_NEUTRAL,
        linewidth=0.8,
        zorder=2,
    )
    for k, name in enumerate(names):
        number, _, words = name.partition(" ")
        x, y = points[k].tolist()
        ax.text(x, y, number, ha="center", va="center", fontsize=8, zorder=4)
        ax.annotate(
            words,
            (x, y),
            xytext=(0, -np.sqrt(areas[k]) / 2 - 2),
            textcoords="offset points",
            ha="center",
            va="top",
            fontsize=7.5,
            zorder=3,
            bbox={"boxstyle": "round,pad=0.1", "facecolor": "white", "alpha": 0.75, "linewidth": 0},
        )
    if negative:
        ax.legend(
            [Line2D([], [], color=_POSITIVE), Line2D([], [], color=_NEGATIVE, linestyle="--")],
            ["positive", "negative"],
            frameon=False,
            fontsize=8,
        )
    ax.set_xlim(points[:, 0].min() - 0.6, points[:, 0].max() + 0.6)
    ax.set_ylim(points[:, 1].min() - 0.45, points[:, 1].max() + 0.3)
    ax.set_axis_off()
    meaning = "line width: correlation" + ("" if shares is None else ", area: share")
    ax.set_title(f"Correlated topics ({meaning})", fontsize=10)
    return ax


def _spread(points: np.ndarray, box: np.ndarray) -> np.ndarray:
    """Points moved, where they are too close, so that names of some 16 letters do not overlap.

    Args:
        points: ``(num_points, 2)`` places, whatever their unit.
        box: ``(2,)`` inches of the picture they fill.
    """
    room = np.array([1.15, 0.5])  # inches that a circle with its name takes
    span = np.maximum(np.ptp(points, axis=0), 1e-9)
    points = (points - points.min(0)) / span * np.maximum(box - room, room)
    for _ in range(200):
        gap = points[:, None] - points
        overlap = room - np.abs(gap)
        close = (overlap > 1e-3).all(-1)
        np.fill_diagonal(close, False)
        if not close.any():
            break
        # Along the axis that needs the shorter way, half by each.
        axis = overlap.argmin(-1)
        step = np.take_along_axis(np.sign(gap) * overlap, axis[..., None], -1)[..., 0]
        push = np.where(close, step, 0.0) / 2
        points = points + np.stack(
            [np.where(axis == 0, push, 0.0).sum(1), np.where(axis == 1, push, 0.0).sum(1)], -1
        )
    return points


def _strongest(correlation: np.ndarray, number: int, negative: bool) -> list[tuple[int, int]]:
    """The pairs of topics with the strongest correlations."""
    rows, columns = np.triu_indices(len(correlation), 1)
    strength = correlation[rows, columns]
    strength = np.abs(strength) if negative else strength
    order = np.argsort(-strength, kind="stable")[: max(number, 0)]
    order = order[strength[order] > 0]
    return list(zip(rows[order].tolist(), columns[order].tolist(), strict=True))


def document_proportions(
    posterior: Posterior,
    document: int = 0,
    *,
    level: float = 0.9,
    num_samples: int = 1000,
    seed: int = 0,
    labels: Sequence[str] | None = None,
    num_topics: int | None = 12,
    ax: Axes | None = None,
) -> Axes:
    """One document's topic proportions: posterior means with equal-tailed intervals.

    Args:
        posterior: What ``guide.posterior(batch)`` gave.
        document: Its position in the batch.
        level: Probability that each interval covers.
        num_samples: Draws behind the means and intervals.
        seed: Seed of these.
        labels: A name for each topic, such as :func:`topic_labels` gives; by default its number.
        num_topics: How many of the largest to show; None for all.
        ax: Axes to draw into; by default those of a new figure of suitable size.

    Returns:
        The axes.

    Raises:
        ConfigError: matplotlib is missing, there is no such document, a level outside (0, 1), or
            another number of labels than of topics.
    """
    plt = _pyplot()
    num_docs = posterior.num_docs
    if not -num_docs <= document < num_docs:
        raise ConfigError(f"document {document} of a posterior of {num_docs} documents")
    if not 0 < level < 1:
        raise ConfigError(f"level is {level}; expected a probability between 0 and 1")
    draws = posterior.draw_theta(document % num_docs, num_samples, (seed,)).cpu()
    tail = (1 - level) / 2
    lower, upper = torch.quantile(draws, torch.tensor([tail, 1 - tail]).double(), dim=0).numpy()
    mean = draws.mean(0).numpy()
    names = [str(k) for k in range(len(mean))] if labels is None else list(labels)
    if len(names) != len(mean):
        raise ConfigError(f"{len(names)} labels for {len(mean)} topics; expected as many")
    shown = np.argsort(-mean, kind="stable")[:num_topics][::-1]
    rows = np.arange(len(shown))
    if ax is None:
        _, ax = plt.subplots(figsize=(6.0, 0.3 * len(shown) + 1.1), layout="constrained")
    ax.hlines(rows, lower[shown], upper[shown], color=_NEGATIVE, linewidth=2.2, alpha=0.55)
    ax.plot(mean[shown], rows, "o", color=_NEGATIVE, markersize=6, clip_on=False)
    ax.set_yticks(rows, [names[k] for k in shown], fontsize=9)
    ax.set_xlim(0, min(1.0, 1.05 * float(upper.max())))
    ax.set_ylim(-0.6, len(shown) - 0.4)
    ax.set_xlabel(f"topic proportion: posterior mean and {level:.0%} interval")
    ax.grid(axis="x", color="#dddddd", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    return ax


def source_plot(
    model: TopicModel,
    source: int | None = None,
    *,
    num_topics: int = 4,
    num_words: int = 4,
    ax: Axes | None = None,
) -> Axes:
    """The topics at either end of each source, in the spirit of *Putthividhya et al. 2009, Fig. 2*.

    A bar is what one unit of the source adds to the topic's logit, less the mean over topics:
    orange topics come with the source where it is positive, blue ones where it is negative. Order,
    sign and rotation of the sources are conventions; see
    :class:`~torch_lntm.models.IndependentFactorPrior`.

    Args:
        model: The model.
        source: Which source to show; all of them by default.
        num_topics: Topics at each end, of those with a loading of its sign.
        num_words: Words of each topic.
        ax: Axes to draw into; by default those of a new figure of suitable size.

    Returns:
        The axes.

    Raises:
        ConfigError: matplotlib is missing, the model has no sources or not this one, or a number is
            below 1.
    """
    plt = _pyplot()
    prior = model.prior
    if not isinstance(prior, IndependentFactorPrior):
        raise ConfigError(f"the model, {prior.kind}, has no sources; iftm has them")
    if source is not None and not 0 <= source < prior.num_sources:
        raise ConfigError(f"source {source} of a model with {prior.num_sources} sources")
    if num_topics < 1 or num_words < 1:
        raise ConfigError(
            f"num_topics is {num_topics} and num_words {num_words}; expected at least 1"
        )
    loadings = prior.centred_mixing().cpu().numpy()
    words = [_shortened(name) for name in topic_labels(model, num_words)]
    rows: list[tuple[str, float]] = []  # a source's name, and with a loading its topics' names
    for number in range(prior.num_sources) if source is None else [source]:
        order = np.argsort(-loadings[:, number], kind="stable")
        ranked = [(words[k], float(loadings[k, number])) for k in order]
        rows.append((f"source {number}", np.nan))
        rows += [row for row in ranked if row[1] > 0][:num_topics]
        rows += [row for row in ranked if row[1] < 0][-num_topics:]
    values = np.array([value for _, value in rows])
    places = np.arange(len(rows))
    figure = None
    if ax is None:
        height = 0.21 * len(rows) + 0.9
        figure, ax = plt.subplots(figsize=(6.0, height), layout="constrained")
    ax.barh(places, values, 0.7, color=np.where(values < 0, _NEGATIVE, _POSITIVE))
    ax.axvline(0, color=_NEUTRAL, linewidth=0.8)
    # Words are words, also between dollar signs.
    labels = ax.set_yticks(places, [name for name, _ in rows], fontsize=8.5, parse_math=False)
    for tick, value in zip(labels, values, strict=True):
        tick.label1.set_fontweight("bold" if np.isnan(value) else "normal")
    limit = 1.06 * np.nanmax(np.abs(values), initial=1e-12)
    ax.set_xlim(-limit, limit)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_xlabel("change of a topic's logit per unit of the source", fontsize=9)
    ax.grid(axis="x", color="#dddddd", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.tick_params(axis="y", length=0)
    ax.tick_params(axis="x", labelsize=8.5)
    ax.locator_params(axis="x", nbins=7)
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    if figure is not None:
        # As wide as the longest name needs, beside bars of a fixed width.
        widest = max(label.get_window_extent().width for label in ax.get_yticklabels())
        figure.set_figwidth(3.8 + widest / figure.dpi)
    return ax


def _shortened(name: str, letters: int = 24) -> str:
    """A name without the ends of very long words."""
    return " ".join(w if len(w) <= letters else f"{w[: letters - 1]}…" for w in name.split(" "))


def _names(model: TopicModel, labels: Sequence[str] | None) -> list[str]:
    names = topic_labels(model) if labels is None else list(labels)
    if len(names) != model.num_topics:
        raise ConfigError(f"{len(names)} labels for {model.num_topics} topics; expected as many")
    return names


def _seriation(correlation: np.ndarray) -> np.ndarray:
    """An order of the topics that puts correlated ones next to each other."""
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    if len(correlation) < 3:
        return np.arange(len(correlation))
    distance = squareform(np.clip(1 - correlation, 0, 2), checks=False)
    return leaves_list(linkage(distance, "average", optimal_ordering=True))


def _pyplot() -> Any:
    return _require("matplotlib.pyplot")


def _require(module: str) -> Any:
    """An optional module, or the error that names what to install."""
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"plotting needs {module.split('.')[0]}, which cannot be imported ({error}); install "
            "it by pip install 'torch-lntm[viz]'"
        ) from error
