"""TopicTable: the topics of a model in words, as a table to print."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class TopicSummary:
    """One topic in words.

    Attributes:
        topic: Number of the topic, from 0, as in ``model.topics.probs``.
        name: Name of the topic. Defaults to its number, as text.
        share: Posterior mean of the topic's proportion, averaged over the documents. ``None`` in
            the table of a model without documents.
        words: Most probable words. ``#17`` stands for column 17 if the model has no vocabulary.
        probabilities: Probabilities of ``words``.
        correlated: Pairs ``(topic, correlation)`` with the highest positive correlations of the
            centred logits.
        opposed: Pairs ``(topic, correlation)`` with the most negative correlations.
    """

    topic: int
    name: str
    share: float | None
    words: tuple[str, ...]
    probabilities: tuple[float, ...]
    correlated: tuple[tuple[int, float], ...]
    opposed: tuple[tuple[int, float], ...]


@dataclass(frozen=True, repr=False)
class TopicTable(Sequence[TopicSummary]):
    """Topics of a model in words: the largest first, or by number if their shares are unknown.

    The table prints as text, and is displayed as a table in notebooks. It is a sequence of
    :class:`TopicSummary`, made by :meth:`TopicModel.topic_table` and
    :meth:`~torch_lntm.inference.FitResult.topic_table`.

    Attributes:
        topics: The topics.
        names: Names of all topics of the model, by number.

    Example:
        >>> table = result.topic_table(num_words=3)
        >>> len(table), len(table[0].words)
        (10, 3)
        >>> print(table)
        share: posterior mean of the proportion, averaged over the documents
        topic   share   top words
        ...
    """

    topics: tuple[TopicSummary, ...]
    names: tuple[str, ...] = ()

    @overload
    def __getitem__(self, index: int) -> TopicSummary: ...
    @overload
    def __getitem__(self, index: slice) -> TopicTable: ...
    def __getitem__(self, index: int | slice) -> TopicSummary | TopicTable:
        """The topic in a row of the table, or a table of the topics in a slice of rows."""
        if isinstance(index, slice):
            return TopicTable(self.topics[index], self.names)
        return self.topics[index]

    def __len__(self) -> int:
        return len(self.topics)

    def __iter__(self) -> Iterator[TopicSummary]:
        return iter(self.topics)

    def frame(self) -> pd.DataFrame:
        """A row for each topic.

        The columns are ``topic``, ``name``, ``share``, ``words``, and ``correlated`` and
        ``opposed``: names of topics with their correlations.
        """
        import pandas

        columns = ["topic", "name", "share", "words", "correlated", "opposed"]
        rows = [
            (
                t.topic,
                t.name,
                t.share,
                " ".join(t.words),
                *map(self._pairs, (t.correlated, t.opposed)),
            )
            for t in self.topics
        ]
        return pandas.DataFrame(rows, columns=columns).astype({"share": float})

    def terms(self) -> pd.DataFrame:
        """A row for each word of each topic: ``topic``, ``term``, and its probability ``beta``."""
        import pandas

        rows = [
            (t.topic, *pair)
            for t in self.topics
            for pair in zip(t.words, t.probabilities, strict=True)
        ]
        return pandas.DataFrame(rows, columns=["topic", "term", "beta"])

    def _pairs(self, pairs: Sequence[tuple[int, float]]) -> str:
        return ", ".join(f"{self._name(k).strip()} ({r:+.4f})" for k, r in pairs)

    @property
    def has_shares(self) -> bool:
        """Whether the shares of the topics are known."""
        return any(topic.share is not None for topic in self.topics)

    def __repr__(self) -> str:
        """The table as text: a line for each topic, and below it a line of correlated topics."""
        has_correlations = any(topic.correlated or topic.opposed for topic in self.topics)
        has_names = any(topic.name != str(topic.topic) for topic in self.topics)
        width = max([5, *(len(topic.name) for topic in self.topics)])
        lines = []
        if self.has_shares:
            lines.append("share: posterior mean of the proportion, averaged over the documents")
        lines.append(
            f"{'topic':<{width}}   "
            + ("share   " if self.has_shares else "")
            + ("top words, most correlated topics" if has_correlations else "top words")
        )
        indent = " " * (width + (11 if self.has_shares else 3))
        for topic in self.topics:
            share = f"{_percent(topic.share):>6}   " if self.has_shares else " "
            name = f"{topic.name:{'<' if has_names else '>'}{width}}"
            lines.append(f"{name}  {share}{' '.join(topic.words)}")
            partners = [
                " ".join([relation, *(f"{self._name(k)} ({signed(r)})" for k, r in pairs)])
                for relation, pairs in (("with", topic.correlated), ("against", topic.opposed))
                if pairs
            ]
            if partners:
                lines.append(indent + "   ".join(partners))
        return "\n".join(lines)

    def _name(self, topic: int) -> str:
        """Name of a topic, as wide as 4 digits for a number."""
        return f"{self.names[topic] if self.names else topic:>4}"

    def _repr_html_(self) -> str:
        """The table for notebooks: topics, shares if they are known, and words."""
        frame = self.frame()[["name", "share", "words"]].assign(
            share=[_percent(t.share) for t in self]
        )
        frame = frame.rename(columns={"name": "topic", "words": "top words"})
        shown = frame if self.has_shares else frame.drop(columns="share")
        return str(shown.to_html(index=False, border=0, justify="left"))


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def signed(number: float) -> str:
    """A number with its sign, the minus as wide as the plus."""
    return f"{number:+.2f}".replace("-", "−")
