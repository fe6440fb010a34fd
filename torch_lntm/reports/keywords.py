"""Keyword topics in a report: the probability of their keywords, and the words beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.stats import beta
from torch import Tensor

from torch_lntm.errors import ConfigError
from torch_lntm.frames import Rows
from torch_lntm.models import TopicModel
from torch_lntm.plotting.style import rule, shorten
from torch_lntm.reports.sections import Block, PageData, Picture, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Colours of the keywords in the picture, in turn, and width of a letter as a share of the picture.
_COLOURS, _LETTER = ("#6d9bc9", "#9dbfe0", "#c6dbef"), 0.015


@dataclass(frozen=True)
class KeywordTopic:
    """A topic with keywords after a fit.

    Attributes:
        topic: Number of the topic.
        name: Name of the topic.
        keywords: The keywords, the most probable first.
        probabilities: Probabilities of the keywords in the topic.
        mass: Sum of ``probabilities``.
        lower: Lower bound of ``mass``.
        upper: Upper bound of ``mass``.
        rival: Name of a topic in which the keywords are more probable; ``None`` if the topic took
            hold.
        joined: Most probable words beside the keywords.
    """

    topic: int
    name: str
    keywords: tuple[str, ...]
    probabilities: tuple[float, ...]
    mass: float
    lower: float
    upper: float
    rival: str | None
    joined: tuple[str, ...]


@torch.no_grad()
def keyword_topics(
    model: TopicModel,
    shares: Sequence[float] | Tensor,
    num_tokens: float,
    *,
    level: float = 0.95,
    top_n: int = 10,
) -> Rows[KeywordTopic]:
    """The keyword topics of a fitted model.

    The interval of ``mass`` is the posterior of the words of a topic with known tokens: a Beta
    distribution around the fitted probability, with as many tokens as the topic has in the
    documents and in its prior. It leaves out the uncertainty of the tokens' topics;
    ``inference.joint_draws`` draws both.

    Args:
        model: A fitted model with keywords.
        shares: ``(num_topics,)`` mean proportions of the topics.
        num_tokens: Tokens of the documents.
        level: Coverage probability of the intervals.
        top_n: Words beside the keywords.

    Returns:
        The topics. ``frame()`` has a row for each, with the fields of :class:`KeywordTopic`.

    Raises:
        ConfigError: The model has no keywords, or the level is outside of 0 to 1.

    Example:
        >>> keywords = {"cricket": ["cricket", "match"]}
        >>> settings = {"vocabulary": corpus.vocabulary, "keywords": keywords}
        >>> cricket = lntm.models.lda(2, corpus.num_words, **settings)
        >>> topic = lntm.reports.keyword_topics(cricket, [0.5, 0.5], corpus.num_tokens)[0]
        >>> topic.name, topic.rival, topic.lower < topic.mass < topic.upper
        ('cricket', None, True)
    """
    lists = model.topics.keywords
    if lists is None:
        raise ConfigError("the model has no keywords; make it by models.ctm(..., keywords=...)")
    if not 0 < level < 1:
        raise ConfigError(f"level is {level}; expected a number between 0 and 1")
    probs = model.topics.mean_probs.detach().double().cpu()
    loads, names, tail = lists.loads(probs), model.topic_names, (1.0 - level) / 2.0
    pseudo = lists.tokens + getattr(model.topics, "smoothing", 0.0) * model.num_words
    order = model.topics.top_words(model.num_words)[0]
    rows: Rows[KeywordTopic] = Rows()
    for k, columns in enumerate(lists.columns):
        mass, tokens = float(loads[k, k]), float(shares[k]) * num_tokens + pseudo
        posterior = beta(mass * tokens + 1e-9, (1.0 - mass) * tokens + 1e-9)
        ranked = sorted(columns, key=lambda v: -float(probs[k, v]))
        beside = [v for v in order[k, : top_n + len(columns)].tolist() if v not in columns]
        best = int(loads[k].argmax())
        rows.append(
            KeywordTopic(
                topic=k,
                name=names[k],
                keywords=model.words_at(ranked),
                probabilities=tuple(probs[k, ranked].tolist()),
                mass=mass,
                lower=float(posterior.ppf(tail)),
                upper=float(posterior.ppf(1.0 - tail)),
                rival=None if best == k else names[best],
                joined=model.words_at(beside[:top_n]),
            )
        )
    return rows


def keyword_section(page: PageData) -> list[Block]:
    """The report's section on keywords."""
    shares = page.summary.overall.mean[0].tolist()
    rows = keyword_topics(page.model, shares, page.corpus.num_tokens, level=page.level)
    lost = [row for row in rows if row.rival is not None]
    state = "Every keyword topic took hold: its keywords are more probable in it than elsewhere."
    if lost:
        told = (f"the keywords of {row.name} are more probable in {row.rival}" for row in lost)
        state = f"Some topics lost their keywords: {'; '.join(told)}."
    table = Table(
        ("topic", "keywords", "on keywords", "from", "to", "words that joined"),
        [
            (r.name, " ".join(r.keywords), r.mass, r.lower, r.upper, " ".join(r.joined))
            for r in rows
        ],
        f"On keywords: probability of all keywords in the topic, with its {page.level:.0%} "
        "interval. The interval takes the tokens of the topic as known.",
    )
    described = "; ".join(f"{row.name} {row.mass:.1%}" for row in rows)
    caption = "Probability of the keywords in their topics, with intervals of the sums."
    return [state, Picture(keyword_chart(rows), f"Mass on keywords: {described}", caption), table]


def keyword_chart(rows: Sequence[KeywordTopic]) -> Figure:
    """Bars of the keywords' probabilities, a line for each topic, with the interval of their sum.

    Args:
        rows: The topics.
    """
    from matplotlib.figure import Figure

    end = max(row.upper for row in rows)
    figure = Figure(figsize=(7.6, 0.4 * len(rows) + 0.6), layout="constrained")
    ax = figure.add_subplot()
    for y, row in enumerate(rows):
        lefts = np.cumsum([0.0, *row.probabilities[:-1]])
        ax.barh(y, row.probabilities, 0.6, lefts, color=_COLOURS)
        for word, left, value in zip(row.keywords, lefts, row.probabilities, strict=True):
            if value > _LETTER * end * len(word):
                place = left + _LETTER * end / 2
                ax.text(place, y, word, va="center", fontsize=8, parse_math=False)
        ax.plot([row.lower, row.upper], [y + 0.4] * 2, color="#222222", linewidth=2)
    names = [shorten(row.name, 22) for row in rows]
    ax.set_yticks(range(len(rows)), names, parse_math=False)
    ax.set(xlim=(0, 1.02 * max(end, 1e-6)), ylim=(len(rows) - 0.4, -0.6))
    ax.xaxis.set_major_formatter("{x:.1%}")
    rule(ax, "x")
    return figure
