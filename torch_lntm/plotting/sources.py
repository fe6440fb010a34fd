"""Plots of the sources of an independent factor topic model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from torch_lntm.errors import ConfigError, require_whole
from torch_lntm.inference.documents import source_prior
from torch_lntm.models import TopicModel
from torch_lntm.plotting import style

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
    """Plot the topics at both ends of each source, after *Putthividhya et al. 2009, Fig. 2*.

    The length of a bar is the change of the topic's logit per unit of the source, minus the mean
    over topics. Orange topics occur with a positive source, blue topics with a negative source.
    Order, sign and rotation of the sources are conventions; see
    :class:`~torch_lntm.models.IndependentFactorPrior`.

    Args:
        model: The model.
        source: Number of the source. Defaults to all sources.
        num_topics: Most topics at each end. Each end has loadings of one sign.
        num_words: Words of each topic.
        ax: Axes to draw into. Defaults to a new figure.

    Returns:
        The axes.

    Raises:
        ConfigError: The model has no sources, the source does not exist, or
            a number is below 1.

    Example:
        >>> factors = lntm.models.iftm(10, corpus.num_words, num_sources=2)
        >>> lntm.plotting.source_plot(factors, num_topics=2).get_xlabel()
        "change of a topic's logit per unit of the source"
    """
    prior = source_prior(model)
    if source is not None and not 0 <= source < prior.num_sources:
        raise ConfigError(f"source {source} of a model with {prior.num_sources} sources")
    require_whole(1, num_topics=num_topics, num_words=num_words)
    sources = range(prior.num_sources) if source is None else [source]
    names = style.topic_labels(model, num_words)
    return plot_loadings(
        prior.centred_mixing().cpu().numpy(), names, sources, num_topics=num_topics, ax=ax
    )


def plot_loadings(
    loadings: NDArray[np.float64],
    names: Sequence[str],
    sources: Iterable[int],
    *,
    num_topics: int,
    ax: Axes | None = None,
) -> Axes:
    """Plot loadings as :func:`source_plot` does.

    Args:
        loadings: ``(num_topics, num_sources)`` changes of the topics' logits per unit of a source.
        names: Names of the topics.
        sources: Numbers of the sources to show.
        num_topics: Topics at each end.
        ax: Axes to draw into. Defaults to a new figure.

    Returns:
        The axes.
    """
    import matplotlib.pyplot as plt

    words = [style.shorten(name, style.NAME_LETTERS) for name in names]
    rows: list[tuple[str, float]] = []  # (source, NaN), followed by (topic, loading) pairs
    for number in sources:
        order = np.argsort(-loadings[:, number], kind="stable")
        ranked = [(words[k], float(loadings[k, number])) for k in order]
        rows.append((f"source {number}", np.nan))
        rows += [row for row in ranked if row[1] > 0][:num_topics]
        rows += [row for row in ranked if row[1] < 0][-num_topics:]
    values = np.array([value for _, value in rows])
    positions = np.arange(len(rows))
    figure = None
    if ax is None:
        height = 0.21 * len(rows) + 0.9
        figure, ax = plt.subplots(figsize=(6.0, height), layout="constrained")
    ax.barh(positions, values, 0.7, color=np.where(values < 0, style.NEGATIVE, style.POSITIVE))
    ax.axvline(0, color=style.NEUTRAL, linewidth=0.8)
    # parse_math would read words between dollar signs as formulas.
    labels = ax.set_yticks(positions, [name for name, _ in rows], fontsize=8.5, parse_math=False)
    for tick, value in zip(labels, values, strict=True):
        tick.label1.set_fontweight("bold" if np.isnan(value) else "normal")
    limit = 1.06 * np.nanmax(np.abs(values), initial=1e-12)
    ax.set_xlim(-limit, limit)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_xlabel("change of a topic's logit per unit of the source", fontsize=9)
    style.rule(ax, "x")
    ax.tick_params(axis="x", labelsize=8.5)
    ax.locator_params(axis="x", nbins=7)
    if figure is not None:
        # The bars have a fixed width; the longest name determines the rest.
        widest = max(label.get_window_extent().width for label in ax.get_yticklabels())
        figure.set_figwidth(3.8 + widest / figure.dpi)
    return ax
