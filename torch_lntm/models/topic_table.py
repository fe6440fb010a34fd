"""TopicTable, which prints the topics of a model in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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


class TopicTable(list[TopicSummary]):
    """Topics of a model in words: the largest first, or by number if their shares are unknown.

    It is a list of :class:`TopicSummary` that prints as text, and is displayed as a table in
    notebooks. :meth:`TopicModel.topic_table` and
    :meth:`~torch_lntm.inference.FitResult.topic_table` make it.

    Args:
        topics: The topics.
        names: Names of all topics of the model by number, for the lists of correlated topics.

    Example:
        >>> table = result.topic_table(top_n=3)
        >>> len(table), len(table[0].words)
        (10, 3)
        >>> print(table)
        share: posterior mean of the proportion, averaged over the documents
        topic   share   top words
        ...
    """

    def __init__(self, topics: Iterable[TopicSummary] = (), names: Sequence[str] = ()) -> None:
        super().__init__(topics)
        self.names = names

    def __getitem__(self, index: Any) -> Any:
        """The topic in a row of the table, or a table of the topics in a slice of rows."""
        found = super().__getitem__(index)
        return TopicTable(found, self.names) if isinstance(index, slice) else found

    def frame(self) -> pd.DataFrame:
        """A row for each topic.

        The columns are ``topic``, ``name``, ``share``, ``words``, and ``correlated`` and
        ``opposed``: names of topics with their correlations.
        """
        import pandas

        columns = ["topic", "name", "share", "words", "correlated", "opposed"]
        frame = pandas.DataFrame(
            [[getattr(t, name) for name in columns] for t in self], None, columns
        )
        frame["words"] = frame["words"].map(" ".join)
        for relation in ("correlated", "opposed"):
            frame[relation] = [
                ", ".join(f"{self.names[k]} ({r:+.4f})" for k, r in pairs)
                for pairs in frame[relation]
            ]
        return frame.astype({"share": float})

    def terms(self) -> pd.DataFrame:
        """A row for each word of each topic: ``topic``, ``term``, and its probability ``beta``."""
        import pandas

        columns = ["topic", "term", "beta"]
        rows = [(t.topic, *x) for t in self for x in zip(t.words, t.probabilities, strict=True)]
        return pandas.DataFrame(rows, columns=columns)

    @property
    def has_shares(self) -> bool:
        """Whether the shares of the topics are known."""
        return any(topic.share is not None for topic in self)

    def __repr__(self) -> str:
        """The table as text: a line for each topic, and below it a line of correlated topics."""
        has_correlations = any(topic.correlated or topic.opposed for topic in self)
        align = "<" if any(topic.name != str(topic.topic) for topic in self) else ">"
        width = max([5, *(len(topic.name) for topic in self)])
        lines = []
        if self.has_shares:
            lines.append("share: posterior mean of the proportion, averaged over the documents")
        share = "share   " if self.has_shares else ""
        words = "top words, most correlated topics" if has_correlations else "top words"
        lines.append(f"{'topic':<{width}}   {share}{words}")
        for topic in self:
            share = f"{_percent(topic.share):>6}   " if self.has_shares else " "
            lines.append(f"{topic.name:{align}{width}}  {share}{' '.join(topic.words)}")
            partners = [
                f"{relation} " + ", ".join(f"{self.names[k]} ({signed(r)})" for k, r in pairs)
                for relation, pairs in (("with", topic.correlated), ("against", topic.opposed))
                if pairs
            ]
            if partners:
                lines.append(" " * (width + 2 + len(share)) + "; ".join(partners))
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The table for notebooks: topics, shares if they are known, and words."""
        frame = self.frame()[["name", "share", "words"]]
        frame["share"] = [_percent(topic.share) for topic in self]
        frame.columns = ["topic", "share", "top words"]
        shown = frame if self.has_shares else frame.drop(columns="share")
        return str(shown.to_html(index=False, border=0, justify="left"))


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def signed(number: float) -> str:
    """A number with its sign, the minus as wide as the plus."""
    return f"{number:+.2f}".replace("-", "−")
