"""Keyword topics in a report: the probability of their keywords, and the words beside them."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import beta
from torch import Tensor

from torch_lntm.errors import ConfigError
from torch_lntm.frames import Rows
from torch_lntm.models import TopicModel
from torch_lntm.reports.sections import Block, PageData, Picture, Section, Table

#: Colours of the keywords in the picture, in turn.
_COLOURS = ("#3b6ea5", "#6d9bc9", "#9dbfe0", "#c6dbef")
#: Sizes of the picture in pixels.
_NAME, _BARS, _ROW, _AXIS = 150, 560, 34, 26
#: Distances between two ticks of the axis, and the largest number of ticks.
_TICKS, _MOST_TICKS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2), 6


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
    num_words: int = 10,
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
        num_words: Words beside the keywords.

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
    loads = lists.loads(probs)
    names = model.topic_names
    pseudo = lists.tokens + getattr(model.topics, "smoothing", 0.0) * model.num_words
    order = model.topics.top_words(model.num_words)[0]
    rows: Rows[KeywordTopic] = Rows()
    for k, columns in enumerate(lists.columns):
        mass, tokens = float(loads[k, k]), float(shares[k]) * num_tokens + pseudo
        tail = (1.0 - level) / 2.0
        counts = (mass * tokens + 1e-9, (1.0 - mass) * tokens + 1e-9)
        ranked = sorted(columns, key=lambda v: -float(probs[k, v]))
        beside = [v for v in order[k, : num_words + len(columns)].tolist() if v not in columns]
        best = int(loads[k].argmax())
        rows.append(
            KeywordTopic(
                topic=k,
                name=names[k],
                keywords=model.words_at(ranked),
                probabilities=tuple(probs[k, ranked].tolist()),
                mass=mass,
                lower=float(beta.ppf(tail, *counts)),
                upper=float(beta.ppf(1.0 - tail, *counts)),
                rival=None if best == k else names[best],
                joined=model.words_at(beside[:num_words]),
            )
        )
    return rows


def keyword_sections(model: TopicModel) -> list[Section]:
    """The report's section on keywords, for models with keywords."""
    return [] if model.topics.keywords is None else [Section("Keywords", _contents)]


def _contents(page: PageData) -> list[Block]:
    """Contents of the section on keywords."""
    shares = page.summary.overall.mean[0].tolist()
    rows = keyword_topics(page.model, shares, page.corpus.num_tokens, level=page.level)
    lost = [row for row in rows if row.rival is not None]
    state = (
        "Every keyword topic took hold: its keywords are more probable in it than in any other "
        "topic."
        if not lost
        else "Some topics lost their keywords: "
        + "; ".join(f"the keywords of {row.name} are more probable in {row.rival}" for row in lost)
        + "."
    )
    table = Table(
        ("topic", "keywords", "on keywords", "from", "to", "words that joined"),
        [
            (
                row.name,
                " ".join(row.keywords),
                f"{row.mass:.1%}",
                f"{row.lower:.1%}",
                f"{row.upper:.1%}",
                " ".join(row.joined),
            )
            for row in rows
        ],
        f"On keywords: probability of all keywords in the topic, with its {page.level:.0%} "
        "interval. The interval takes the tokens of the topic as known.",
    )
    described = "; ".join(f"{row.name} {row.mass:.1%}" for row in rows)
    caption = "Probability of the keywords in their topics, with intervals of the sums."
    return [state, Picture(keyword_chart(rows), f"Mass on keywords: {described}", caption), table]


def keyword_chart(rows: Sequence[KeywordTopic]) -> bytes:
    """Bars of the keywords' probabilities, a line for each topic, as an SVG file.

    Args:
        rows: The topics.
    """
    end = max(max(row.upper for row in rows), 1e-6) * 1.02
    height = len(rows) * _ROW + _AXIS
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_NAME + _BARS + 20} {height}" '
        f'width="{_NAME + _BARS + 20}" height="{height}" font-family="sans-serif" font-size="12">'
    ]
    tick = min(size for size in _TICKS if end / size <= _MOST_TICKS)
    for step in np.arange(0.0, end, tick):
        x = _NAME + _BARS * step / end
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height - _AXIS}" stroke="#ddd"/>'
            f'<text x="{x:.1f}" y="{height - 8}" text-anchor="middle" fill="#666">'
            f"{100 * step:.3g} %</text>"
        )
    for line, row in enumerate(rows):
        top = line * _ROW + 5
        parts.append(
            f'<text x="{_NAME - 8}" y="{top + 16}" text-anchor="end">{html.escape(row.name[:22])}'
            "</text>"
        )
        x = float(_NAME)
        for place, (word, value) in enumerate(zip(row.keywords, row.probabilities, strict=True)):
            width = _BARS * value / end
            colour = "#fff" if place % len(_COLOURS) < 2 else "#222"
            parts.append(
                f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="22" '
                f'fill="{_COLOURS[place % len(_COLOURS)]}"/>'
            )
            if width > 7.5 * len(word):
                parts.append(
                    f'<text x="{x + 4:.1f}" y="{top + 15}" fill="{colour}">'
                    f"{html.escape(word)}</text>"
                )
            x += width
        left, right = (_NAME + _BARS * bound / end for bound in (row.lower, row.upper))
        parts.append(
            f'<line x1="{left:.1f}" x2="{right:.1f}" y1="{top + 25}" y2="{top + 25}" '
            'stroke="#222" stroke-width="2"/>'
        )
    return "".join([*parts, "</svg>"]).encode()
