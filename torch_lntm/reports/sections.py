"""Sections of a report page: a title, and a function that returns texts, tables and figures."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from markupsafe import Markup, escape

from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError, refuse_other_owner
from torch_lntm.inference import ThetaDraws
from torch_lntm.models import DynamicTopics, TopicModel
from torch_lntm.models.topic_table import TopicSummary
from torch_lntm.plotting.lines import path_plot
from torch_lntm.plotting.style import shorten
from torch_lntm.reports.labels import keyword_topics, moving_topics, words_by_period
from torch_lntm.reports.pictures import to_svg
from torch_lntm.reports.prevalence import CorpusSummary

#: Rise of a topic's share in the section on an outcome.
RISE = 0.1
#: Limits of the section on words over time: topics in the figure, words of a panel, panels in a
#: row; and width and height of a panel in inches.
_TOPICS, _LINES, _COLUMNS, _PANEL = 12, 4, 3, (3.6, 2.4)


@dataclass(frozen=True, eq=False)
class PageData:
    """Contents of a report page, given to the functions of further sections.

    Attributes:
        model: The fitted model.
        corpus: The documents of the page: a random sample of a large corpus.
        draws: Draws of the documents' topic proportions.
        summary: Posterior means of the documents, shares of the topics, and prevalence by column.
        topics: The topics, the largest first.
        names: Name of each topic, by its number. A topic without a name has words that tell it.
        scores: The scores of the page.
        settings: The settings of the fit, by name.
        level: Probability of every interval on the page.
    """

    model: TopicModel
    corpus: Corpus
    draws: ThetaDraws
    summary: CorpusSummary
    topics: Sequence[TopicSummary]
    names: Sequence[str]
    scores: pd.DataFrame
    settings: Mapping[str, Any]
    level: float


#: The sections of every page: functions by title.
_REGISTERED: dict[str, Callable[[PageData], Any]] = {}


def register_section(title: str, contents: Any = None) -> Any:
    """Add a section to every report page, including pages of ``torch-lntm report --plugin``.

    Args:
        title: Title of the section.
        contents: Function of the page's data, an object with the attributes ``model``, ``corpus``,
            ``draws``, ``summary``, ``topics``, ``names``, ``scores``, ``settings`` and ``level``.
            It returns a text, a data frame, a Matplotlib figure, or a list of them.
            ``register_section`` is a decorator if the function is left out.

    Returns:
        The function.

    Raises:
        ConfigError: The title is empty, of another type, or belongs to another function or to the
            package, or the contents cannot be called.

    Example:
        >>> @lntm.reports.register_section("Longest document")
        ... def longest(page):
        ...     return f"The longest document has {page.corpus.lengths.max()} words."
    """
    if contents is None:
        return lambda function: register_section(title, function)
    check_sections({title: contents})
    refuse_other_owner("section title", title, (_REGISTERED | _OWN).get(title), contents)
    _REGISTERED[title] = contents
    return contents


def check_sections(sections: Any) -> None:
    """Refuse what is no mapping of titles to functions."""
    if not isinstance(sections, Mapping):
        raise ConfigError(f"sections is a {type(sections).__name__}; expected functions by title")
    for title, contents in sections.items():
        if not (isinstance(title, str) and title.strip() and callable(contents)):
            raise ConfigError(f"section {(title, contents)!r:.80}; expected a title and a function")


def render_sections(
    sections: Mapping[str, Callable[[PageData], Any]], page: PageData, outcomes: Any = None
) -> list[tuple[str, Markup]]:
    """Titles and contents of the package's own sections, of registered ones and of further ones.

    Args:
        sections: Functions by title, for this page alone; see :func:`check_sections`.
        page: The page's data.
        outcomes: The result of ``lntm.outcomes.estimate``, which has a section if it is given.

    Raises:
        ConfigError: A section's function returns a value of another type.
    """
    chosen = dict(_OWN)
    if page.model.topics.keywords is None:
        del chosen["Keywords"]
    if not isinstance(page.model.topics, DynamicTopics):
        del chosen["Words over time"]
    chosen |= _REGISTERED
    if outcomes is not None:
        chosen["Outcome"] = functools.partial(outcome_section, outcomes)
    chosen |= sections
    return [
        (title, _blocks(title, f"section-{i}", contents(page)))
        for i, (title, contents) in enumerate(chosen.items(), 1)
    ]


def _blocks(title: str, name: str, contents: Any) -> Markup:
    """What a section returned, as HTML. Every text is escaped."""
    blocks = [*contents] if isinstance(contents, list | tuple) else [contents]
    parts = []
    for i, block in enumerate(blocks):
        if isinstance(block, str):
            parts.append(Markup("<p>") + escape(str(block)) + Markup("</p>"))
        elif isinstance(block, pd.DataFrame):
            parts.append(to_table(block, f"Table of {title}"))
        elif hasattr(block, "savefig"):
            told = block.get_label() or f"Figure of {title}"
            figure = to_svg(block, f"{name}-{i}", told)
            parts.append(Markup("<figure>") + Markup(figure) + Markup("</figure>"))
        else:
            raise ConfigError(
                f"the section {title!r:.60} returned {type(block).__name__}; expected text, a data "
                "frame, a Matplotlib figure, or a list of them"
            )
    return Markup("\n").join(parts)


def to_table(frame: pd.DataFrame, label: str) -> Markup:
    """A frame as an HTML table without its index; numbers have 4 digits."""
    # Pandas would print a missing integer as <NA>.
    frame = frame.apply(lambda x: x.astype(object).fillna("–") if x.dtype.kind in "iu" else x)
    with pd.option_context("display.max_colwidth", None):
        options: dict[str, Any] = {"border": 0, "justify": "left", "na_rep": "–"}
        table = frame.to_html(index=False, float_format=_number, **options)
    # No text has such a tag, because the texts are escaped.
    table = table.replace("<th>", '<th scope="col">')
    around = '<div class="scroll" tabindex="0" role="region" aria-label="{}">{}</div>'
    return Markup(around).format(label, Markup(table))


def _number(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else "–"


def _keywords(page: PageData) -> list[Any]:
    """Whether the keyword topics kept their keywords, as a text and a table."""
    topics = keyword_topics(page.model, page.summary.documents.topic_tokens, level=page.level)
    lost = topics[topics["rival"].notna()].to_dict("records")
    state = "Every topic kept its keywords, which are more probable in it than in any other topic."
    if lost:
        told = (f"the keywords of {x['name']} are more probable in {x['rival']}" for x in lost)
        state = f"Some topics lost their keywords: {'; '.join(told)}."
    names = ["topic", "keywords", "on keywords", "from", "to", "words that joined"]
    table = topics[["name", "keywords", "mass", "lower", "upper", "joined"]].set_axis(names, axis=1)
    note = (
        "On keywords: probability of all keywords in the topic, with its "
        f"{page.level:.0%} interval, which takes the topics of the tokens as known."
    )
    return [state, table, note]


def _words_over_time(page: PageData) -> list[Any]:
    """Top words by period, and words that rose or fell, as a figure and as a table."""
    periods: Any = page.model.topics.content
    ranked, names = [topic.topic for topic in page.topics], dict(enumerate(page.names))
    first, last = periods.levels[0], periods.levels[-1]
    intro = (
        f"The words of every topic follow a random walk over {len(periods.levels)} periods of "
        f"{periods.column}, from {first} to {last}. The table has the most probable words of each "
        "topic in some of them, and its drift: the share of its words that changed from the first "
        "period to the last. By noise alone, a topic whose words stand still has the drift beside "
        "it."
    )
    strip = words_by_period(page.model).iloc[ranked].replace({"topic": names})
    changes = moving_topics(page.model, level=page.level)
    if not len(changes):
        return [intro, strip, "Every interval of a change includes 1: the words stand still."]
    note = (
        "The figure shows the words of the topics with the largest drift, their probabilities on a "
        f"logarithmic scale with {page.level:.0%} bands. The table below it has the words whose "
        f"probability in {last}, divided by that in {first}, has an interval without 1. Each "
        "interval holds for its word alone."
    )
    table = changes.drop(columns=["name", "drift"]).replace({"topic": names})
    return [intro, strip, note, _paths(page, changes), table]


def _paths(page: PageData, changes: pd.DataFrame) -> Any:
    """Paths of the words of the topics with the largest drift, a panel for each topic."""
    from matplotlib.figure import Figure

    topics = changes.drop_duplicates("topic").nlargest(_TOPICS, "drift")["topic"]
    lines = math.ceil(len(topics) / _COLUMNS)
    figure = Figure(figsize=(_PANEL[0] * _COLUMNS, _PANEL[1] * lines), layout="constrained")
    figure.set_label("Paths of words of the topics with the largest drift")
    for place, topic in enumerate(topics, 1):
        ax = figure.add_subplot(lines, _COLUMNS, place)
        path_plot(page.model, topic, top_n=_LINES, level=page.level, ax=ax)
        ax.set_title(shorten(page.names[topic], 40), fontsize=9, parse_math=False)
        ax.set(xlabel="", ylabel="")
        ax.tick_params(which="both", labelsize=8)
    return figure


def outcome_section(outcomes: Any, page: PageData) -> list[Any]:
    """What the regression assumes, the largest effect in words, a figure and a table.

    Args:
        outcomes: The result of ``lntm.outcomes.estimate``.
        page: The page's data.
    """
    rows = outcomes.frame(page.level, per=RISE)
    topics = rows[~rows["term"].isin(outcomes.names)]
    largest = topics.loc[topics["estimate"].abs().idxmax()]
    name = " ".join(filter(None, (str(largest["term"]), str(largest.get("name", "")))))
    change = "higher" if largest["estimate"] > 0 else "lower"
    reading = (
        f"A document with ten percentage points more of {name}, and less of all other topics in "
        f"proportion, has {outcomes.measure} {change} by {abs(largest['estimate']):.3g} in "
        f"expectation; the {page.level:.0%} interval of this difference goes from "
        f"{largest['lower']:.3g} to {largest['upper']:.3g}. The figure and the table show the same "
        "difference for every topic, and for a column that of a rise by 1."
    )
    figure = outcomes.plot(page.level, per=RISE).figure
    figure.set_label("Effects of the topics on the outcome, with intervals")
    return [" ".join(outcomes.notes), reading, figure, rows]


#: The package's own sections: functions by title.
_OWN: dict[str, Callable[[PageData], Any]] = {
    "Keywords": _keywords,
    "Words over time": _words_over_time,
}
