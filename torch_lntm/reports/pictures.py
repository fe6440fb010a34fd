"""Charts and pictures for the report page: small multiples, and figures as SVG."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import pandas as pd
from markupsafe import Markup

from torch_lntm.plotting import tree_plot
from torch_lntm.plotting.lines import COLOURS
from torch_lntm.plotting.style import GRID, NEGATIVE, NEUTRAL, POSITIVE, format_number
from torch_lntm.reports.prevalence import Array, Axis, Prevalence, axis_of, differences
from torch_lntm.reports.tree import TopicTree

#: Most panels of a column, and the width and height of a line's chart on the page.
_PANELS, _WIDTH, _HEIGHT = 24, 186, 96
#: Matplotlib's settings, and the metadata that it leaves out.
_SETTINGS: dict[str, Any] = {"svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans"]}
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))

#: Colours of figures that are the page's own, which differ in light and dark themes.
_THEMED = {
    **{colour: f"var(--g{i})" for i, colour in enumerate(COLOURS[:6])},
    NEGATIVE: "var(--g0)",
    POSITIVE: "var(--g1)",
    NEUTRAL: "var(--quiet)",
    GRID: "var(--rule)",
    "#ffffff": "var(--paper)",
    "#000000": "var(--ink)",
}


class ByColumn(NamedTuple):
    """Proportions of topics by the levels or values of a column.

    Attributes:
        column: The column, or two of them.
        names: Name of each level or value.
        axis: Their positions on an axis, None for names; and a note on the axis for readers.
        topics: Number of each topic, or name of each group of topics.
        classes: Levels of the second column, or one empty name without it.
        values: ``(num_topics, num_classes, num_names, 3)`` proportions, and ends of their
            intervals; NaN without documents or without an interval.
        errors: ``(num_topics, num_classes, num_names)`` standard errors.
        counts: Documents of each level.
    """

    column: str
    names: Sequence[str]
    axis: Axis
    topics: Sequence[int | str]
    classes: Sequence[str]
    values: Array
    errors: Array
    counts: Sequence[int] | None = None

    def told(self, topic: int) -> str:
        """The proportions of the topic in a row, in words."""
        words = []
        for name, of_class in zip(self.classes, self.values[topic], strict=True):
            # Some of many values tell of a line.
            for i in range(0, len(self.names), max(1, len(self.names) * len(self.classes) // 12)):
                value, lower, upper = of_class[i].tolist()
                interval = "" if np.isnan(lower) else f", {lower:.2%} to {upper:.2%}"
                docs = "" if self.counts is None else f" ({self.counts[i]} documents)"
                words.append(f"{name} {self.names[i]}: {value:.2%}{interval}{docs}".strip())
        return "\n".join(words)


def draw_tree(tree: TopicTree) -> Markup:
    """The tree of the topics."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 0.22 * tree.num_topics + 1.0), layout="constrained")
    tree_plot(tree, ax=figure.add_subplot())
    told = (
        "Topics that merge further to the left are more similar. The lists below have the groups."
    )
    return Markup(to_svg(figure, "tree", "Tree of the topics", told))


def prevalence_by_column(prevalence: Prevalence) -> ByColumn:
    """Prevalence by the levels of a column."""
    levels, counts = prevalence.levels, prevalence.num_docs
    # A single document has an infinite interval, which would flatten all the others.
    finite = np.isfinite(prevalence.standard_error)
    ends = [np.where(finite, x, np.nan) for x in (prevalence.lower, prevalence.upper)]
    values = np.where(counts[:, None] > 0, [prevalence.mean, *ends], np.nan).transpose(2, 1, 0)
    about = (levels.column, levels.names, levels.axis, prevalence.columns, ("",))
    return ByColumn(*about, values[:, None], prevalence.standard_error.T[:, None], counts.tolist())


def effects_by_column(predictions: pd.DataFrame, column: str, by: str | None = None) -> ByColumn:
    """Expected proportions, :meth:`torch_lntm.effects.Effects.predict`, by a column's values.

    Args:
        predictions: The predictions, of ``predict(column)`` or of ``predict(column, by)``.
        column: The column.
        by: A column of classes.
    """
    topics = predictions["topic"].unique().tolist()
    # The columns of the values come before the estimates.
    at = list(predictions).index("estimate") - (1 if by is None else 2)
    of_topic = predictions.iloc[: len(predictions) // len(topics)]
    values = of_topic.iloc[:, at].unique().tolist()
    classes = [""] if by is None else of_topic.iloc[:, at + 1].astype(str).unique().tolist()
    names = [value if isinstance(value, str) else format_number(value) for value in values]
    numbers = predictions[["estimate", "lower", "upper", "std_error"]].to_numpy()
    table = numbers.reshape(len(topics), len(values), len(classes), 4).swapaxes(1, 2)
    axis = axis_of(values) if len(values) > 2 else (None, "")
    title = column if by is None else f"{column} and {by}"
    return ByColumn(title, names, axis, topics, classes, table[..., :3].clip(0), table[..., 3])


def draw_chart(shown: ByColumn) -> dict[str, Any] | None:
    """Small multiples: a panel for each topic and group of topics, all with the same scales.

    The scale of all panels ends above nineteen of twenty intervals and above all means, because a
    single wide interval would flatten the lines; what lies beyond is cut.

    Returns:
        For the template, the proportions as ``shown``; ``ticks``, texts and positions of the axis
        of proportions, in parts of the chart; ``notes`` for readers; and the ``panels``, those with
        the clearest differences first, groups before topics. A panel has its ``topic``, number or
        name; its numbers in words, ``told``; and ``lines``, for each class those of
        :func:`_drawn`. None for fewer than two names.
    """
    from matplotlib.ticker import MaxNLocator

    if len(shown.names) < 2:
        return None
    flat = (len(shown.topics), -1)
    values, errors = shown.values[..., 0].reshape(flat), shown.errors.reshape(flat)
    single = np.array([isinstance(topic, int) for topic in shown.topics])
    order = np.lexsort((-differences(values.T, errors.T), single))[:_PANELS].tolist()
    drawn = shown.values[order]
    ends = np.nanquantile(np.where(np.isnan(drawn[..., 2]), 0, drawn[..., 2]), 0.95)
    most = max(float(np.nanmax(drawn[..., 0])), float(ends), 1e-9)
    ticks = np.array(MaxNLocator(4, steps=[1, 2, 5, 10]).tick_values(0, most))
    parts = (shown.values / ticks[-1]).clip(0, 1)
    positions, note = shown.axis
    notes = [note] if note else []
    if len(shown.topics) > len(order):
        notes.append(f"Shown are the {len(order)} clearest differences of {len(shown.topics)}.")
    panels = [
        {
            "topic": shown.topics[i],
            "told": shown.told(i),
            "lines": [_drawn(x, positions) for x in parts[i]],
        }
        for i in order
    ]
    texts = [f"{100 * tick:.3g} %" if tick else "0" for tick in ticks]
    places = zip(texts, (ticks / ticks[-1]).tolist(), strict=True)
    return {"shown": shown, "panels": panels, "ticks": list(places), "notes": notes}


def _drawn(parts: Array, positions: Array | None) -> tuple[str, str, list[list[float]]]:
    """The path of a line, that of its band, and its points, in parts of the chart.

    Args:
        parts: ``(num_names, 3)`` means and ends of intervals, in parts of the largest proportion.
        positions: Positions of the names on an axis, if any.
    """
    points = parts.tolist()
    if positions is None:
        return "", "", points
    down = _HEIGHT * (1 - parts)
    across = _WIDTH * (positions - positions.min()) / max(float(np.ptp(positions)), 1e-9)
    line, band = "", ""
    for run in np.split(np.arange(len(parts)), np.flatnonzero(np.isnan(parts[:, 0]))):
        known = run[~np.isnan(parts[run, 0])]
        line += _path(across[known], down[known, 0])
        inner = known[~np.isnan(parts[known, 1])]
        edge = np.concatenate([inner, inner[::-1]])
        ends = np.concatenate([down[inner, 1], down[inner[::-1], 2]])
        band += _path(across[edge], ends) + "Z" * bool(len(inner))
    return line, band, points


def _path(across: Array, down: Array) -> str:
    """A path of SVG through points."""
    points = [f"{x:.1f} {y:.1f}" for x, y in zip(across, down, strict=True)]
    return "M" + "L".join(points) if points else ""


def sparkline(shares: Array, positions: Array | None) -> str:
    """The path of a topic's shares, on a scale of their own."""
    return _drawn(np.stack([shares] * 3, 1) / np.nanmax(shares).clip(1e-9), positions)[0]


def to_svg(figure: Any, name: str, title: str, description: str = "") -> str:
    """A figure as an SVG element.

    Args:
        figure: The figure.
        name: Name of the picture, which differs from those of the page's other pictures.
        title: What the picture is, for screen readers.
        description: What it shows, for screen readers.
    """
    import matplotlib

    file = io.BytesIO()
    settings: Any = _SETTINGS | {"svg.hashsalt": name}
    with matplotlib.rc_context(settings):
        figure.savefig(file, format="svg", metadata=_NO_METADATA)
    root = ElementTree.fromstring(file.getvalue())
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]  # in a page, names have no namespace
        found = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
        if element.tag == "g":
            found.pop("id", None)
        found.pop("target", None)  # a link opens here
        element.attrib = {key: _shortened(value) for key, value in found.items()}
        element.tail = None
        if element.tag == "style" or not (element.text or "").strip():
            element.text = None  # a style would apply to the whole page
    _add(root, "desc", description).set("id", f"{name}-description")
    _add(root, "title", title).set("id", f"{name}-picture")
    labels = f"{name}-picture {name}-description"
    root.attrib |= {"class": "picture", "role": "group", "aria-labelledby": labels}
    return ElementTree.tostring(root, encoding="unicode")


def _add(parent: ElementTree.Element, tag: str, text: str) -> ElementTree.Element:
    element = ElementTree.Element(tag)
    element.text = text
    parent.insert(0, element)
    return element


def _shortened(value: str) -> str:
    """An attribute with coordinates of one decimal, without the font, in the page's colours."""
    value = re.sub(r"\d+\.\d\d+", lambda found: f"{float(found[0]):.1f}", value)
    value = re.sub(r"#[0-9a-f]{6}\b", lambda found: _THEMED.get(found[0], found[0]), value)
    return re.sub(r"font-family: [^;]*;|\s*\n", " ", value).strip()
