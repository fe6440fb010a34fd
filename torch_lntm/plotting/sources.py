"""Pictures of the sources of an independent factor topic model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from torch_lntm.errors import ConfigError, require_whole
from torch_lntm.inference.documents import source_prior
from torch_lntm.models import TopicModel
from torch_lntm.plotting.style import NAME_LETTERS, NEGATIVE, NEUTRAL, POSITIVE, library, rule
from torch_lntm.reports.labels import topic_labels
from torch_lntm.reports.layout import shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
    prior = source_prior(model)
    if source is not None and not 0 <= source < prior.num_sources:
        raise ConfigError(f"source {source} of a model with {prior.num_sources} sources")
    require_whole(1, num_topics=num_topics, num_words=num_words)
    chosen = range(prior.num_sources) if source is None else [source]
    names = topic_labels(model, num_words)
    return plot_loadings(
        prior.centred_mixing().cpu().numpy(), names, chosen, num_topics=num_topics, ax=ax
    )


def plot_loadings(
    loadings: NDArray[np.float64],
    names: Sequence[str],
    sources: Iterable[int],
    *,
    num_topics: int,
    ax: Axes | None = None,
) -> Axes:
    """The picture of :func:`source_plot`, of given numbers.

    Args:
        loadings: ``(num_topics, num_sources)`` change of each topic's logit by a unit of a source.
        names: A name for each topic.
        sources: The sources to show.
        num_topics: Topics at each end.
        ax: Axes to draw into; by default those of a new figure of suitable size.

    Returns:
        The axes.

    Raises:
        ConfigError: matplotlib is missing.
    """
    plt = library("matplotlib.pyplot")
    words = [shorten(name, NAME_LETTERS) for name in names]
    rows: list[tuple[str, float]] = []  # a source's name, and with a loading its topics' names
    for number in sources:
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
    ax.barh(places, values, 0.7, color=np.where(values < 0, NEGATIVE, POSITIVE))
    ax.axvline(0, color=NEUTRAL, linewidth=0.8)
    # Words are words, also between dollar signs.
    labels = ax.set_yticks(places, [name for name, _ in rows], fontsize=8.5, parse_math=False)
    for tick, value in zip(labels, values, strict=True):
        tick.label1.set_fontweight("bold" if np.isnan(value) else "normal")
    limit = 1.06 * np.nanmax(np.abs(values), initial=1e-12)
    ax.set_xlim(-limit, limit)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_xlabel("change of a topic's logit per unit of the source", fontsize=9)
    rule(ax, "x")
    ax.tick_params(axis="x", labelsize=8.5)
    ax.locator_params(axis="x", nbins=7)
    if figure is not None:
        # As wide as the longest name needs, beside bars of a fixed width.
        widest = max(label.get_window_extent().width for label in ax.get_yticklabels())
        figure.set_figwidth(3.8 + widest / figure.dpi)
    return ax
