"""Keywords, by which a user says before a fit what a topic is about."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError, KeywordWarning, warn

#: Default pseudo-tokens on the keywords of a topic: before a fit, and in a fit as a share of the
#: tokens of an average topic.
TOKENS, TOKEN_SHARE = 200.0, 0.02
#: Shares in the initial topics: of a topic's keywords, and of the words beside them. The
#: frequencies of the corpus have the remaining share.
KEYWORD_SHARE, NEIGHBOUR_SHARE = 0.5, 0.25


@dataclass(frozen=True)
class Keywords:
    """Keywords of the first topics of a model, with their columns in the vocabulary.

    Every keyword of a topic gets s pseudo-tokens, which draw the topic to its keywords and leave
    its other words free. This follows from keyATM (*Eshima, Imai & Sasaki 2024*), where the words
    of topic k mix two distributions: φ_k = (1 − π_k) φ_k^free + π_k φ_k^key, with φ^free ~
    Dirichlet(1 + β) over all words and φ^key ~ Dirichlet(1 + s) over the keywords S_k. The
    documents determine φ_k but not π_k, so the prior alone decides between the two distributions.
    With π_k ~ Beta(1 + s · abs(S_k), 1 + β · V), the highest log density of all splits of φ_k is,
    up to a constant,

        (β + s) Σ_v∈S log φ_kv + β Σ_v∉S log φ_kv,

    so that M-steps and draws keep their closed forms. It departs from keyATM's own π_k ~ Beta(1, 1)
    and s = 0.1, because these are worth only a few nats for a topic and do not keep it on its
    keywords.

    Exclusive keywords are absent from topics without keywords, where φ_kv is 0 and the prior is a
    Dirichlet distribution over the remaining words. All tokens of a keyword then count for topics
    with keywords.

    Attributes:
        lists: Columns of the keywords in the vocabulary by word, by the names of the topics, which
            are in the order of the topics. The word ``#17`` stands for column 17.
        strength: Pseudo-tokens on the keywords of each topic, in equal parts. ``None`` is 2 % of
            the tokens of an average topic in fits, and 200 before a fit.
        exclusive: Whether the keywords are absent from topics without keywords.

    Example:
        >>> lntm.models.Keywords.of({"pets": ["cat", "dog"]}, ["cat", "dog", "tax"])
        Keywords(pets: cat, dog)
    """

    lists: Mapping[str, Mapping[str, int]]
    strength: float | None = None
    exclusive: bool = True

    def __post_init__(self) -> None:
        """Check the strength.

        Raises:
            ConfigError: The strength is negative or not finite.
        """
        if self.strength is not None and not 0 <= self.strength < math.inf:
            raise ConfigError(f"keyword strength is {self.strength}; expected a number >= 0")

    @classmethod
    def of(
        cls,
        keywords: Any,
        vocabulary: Sequence[str] | None,
        strength: float | None = None,
        exclusive: bool = True,
    ) -> Keywords:
        """Look up keywords in a vocabulary.

        Unknown keywords are left out, and both they and shared ones cause a
        :class:`~torch_lntm.errors.KeywordWarning`.

        Args:
            keywords: Words by the name of their topic, such as ``{"economy": ["tax", "budget"]}``.
                Columns of the vocabulary (whole numbers) may stand in for words, and the data of
                :meth:`to_json` are accepted too, without warnings.
            vocabulary: Words of the vocabulary, in the order of the columns.
            strength: As for the class.
            exclusive: As for the class.

        Raises:
            ConfigError: The keywords are of another type, a topic has no known keywords, or words
                are given without a vocabulary.
        """
        if isinstance(keywords, Keywords):
            return cls(keywords.lists, strength, exclusive)
        if not isinstance(keywords, Mapping) or not keywords:
            raise ConfigError(
                f"keywords are {keywords!r:.80}; expected words by the name of their topic, such "
                "as {'economy': ['tax', 'budget']}"
            )
        lists = {name: dict(_pairs(name, entry, vocabulary)) for name, entry in keywords.items()}
        for name, columns in lists.items():
            if not columns:
                raise ConfigError(
                    f"no keyword of the topic {name!r} is in the vocabulary; give it others, or "
                    "leave it out"
                )
        return cls(lists, strength, exclusive)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the topics with keywords, in the order of the topics."""
        return tuple(self.lists)

    @property
    def columns(self) -> tuple[tuple[int, ...], ...]:
        """Columns of each topic's keywords in the vocabulary."""
        return tuple(tuple(columns.values()) for columns in self.lists.values())

    def to_json(self) -> dict[str, dict[str, int]]:
        """Columns of the keywords by word, by name of the topic; JSON-able."""
        return {name: dict(columns) for name, columns in self.lists.items()}

    @classmethod
    def from_json(cls, data: Any) -> Keywords:
        """Keywords from the data of :meth:`to_json`.

        Raises:
            ConfigError: The data are damaged.
        """
        return cls.of(data, None)

    def __len__(self) -> int:
        """Number of topics with keywords."""
        return len(self.lists)

    def __repr__(self) -> str:
        """Names and words in a line."""
        rows = (f"{name}: {', '.join(words)}" for name, words in self.lists.items())
        return f"Keywords({'; '.join(rows)})"

    def topic_names(self, num_topics: int) -> tuple[str, ...]:
        """Names of all topics. Free topics have their numbers."""
        return (*self.names, *map(str, range(len(self), num_topics)))

    def check_sizes(self, num_topics: int, num_words: int) -> None:
        """Raise unless a model of these sizes has the topics and the columns.

        Raises:
            ConfigError: More topics have keywords than there are topics, a column is outside of the
                vocabulary, or no words are left for topics without keywords.
        """
        if len(self) > num_topics:
            raise ConfigError(
                f"{len(self)} topics have keywords, and num_topics is {num_topics}; expected at "
                "least as many, because num_topics counts topics with keywords and free topics"
            )
        last = max(map(max, self.columns))
        if last >= num_words:
            raise ConfigError(
                f"a keyword is column {last} of a vocabulary of {num_words} words; expected a "
                "smaller number"
            )
        if num_topics > len(self) and len(self.excluded) == num_words:
            raise ConfigError(
                f"all {num_words} words are keywords, and not all of {num_topics} topics have "
                "keywords; give every topic keywords, or pass exclusive_keywords=False"
            )

    def for_corpus(self, corpus: Corpus, num_topics: int) -> Keywords:
        """These keywords, with a strength by the training documents if they have none.

        Args:
            corpus: The training documents.
            num_topics: Number of topics.
        """
        if self.strength is not None:
            return self
        return replace(self, strength=TOKEN_SHARE * corpus.whole.num_tokens / num_topics)

    # -- the prior ---------------------------------------------------------------------------------

    @property
    def tokens(self) -> float:
        """Pseudo-tokens on the keywords of each topic."""
        return TOKENS if self.strength is None else self.strength

    @cached_property
    def entries(self) -> tuple[Tensor, Tensor, Tensor]:
        """Topics, columns and pseudo-tokens of all keywords, each ``(num_keywords,)``."""
        sizes = torch.tensor([len(columns) for columns in self.columns])
        topics = torch.arange(len(self)).repeat_interleave(sizes)
        columns = torch.tensor([v for at in self.columns for v in at])
        tokens = (self.tokens / sizes.double()).repeat_interleave(sizes)
        return topics, columns, tokens

    @cached_property
    def excluded(self) -> Tensor:
        """``(n,)`` columns of the words that are absent from topics without keywords, ascending."""
        different = self.entries[1].unique()
        return different if self.exclusive else different[:0]

    def exclude_(self, table: Tensor, value: float) -> Tensor:
        """Set the excluded words of topics without keywords to a value, in place.

        Args:
            table: ``(..., num_words, num_topics)``.
            value: The value.

        Returns:
            The table.
        """
        table[..., self.excluded.to(table.device), len(self) :] = value
        return table

    def add_to_(self, counts: Tensor) -> Tensor:
        """Add the pseudo-tokens to counts in place, and set counts of excluded words to 0.

        Args:
            counts: ``(num_topics, num_words)``.

        Returns:
            The counts.
        """
        topics, columns, tokens = (x.to(counts.device) for x in self.entries)
        counts[topics, columns] += tokens.to(counts.dtype)
        self.exclude_(counts.mT, 0.0)
        return counts

    def log_density(self, logits: Tensor, normalisers: Tensor, smoothing: float) -> Tensor:
        """The keywords' part of the log prior density, up to a constant (scalar, float64 nats).

        Excluded words have no smoothing, so theirs is taken back.

        Args:
            logits: ``(num_topics, num_words)`` logits of the words.
            normalisers: ``(num_topics,)`` log-sum-exp of the words that are not excluded, float64.
            smoothing: Pseudo-counts of every word in every topic.
        """
        topics, columns, tokens = (x.to(logits.device) for x in self.entries)
        density = (tokens * (logits[topics, columns].double() - normalisers[topics])).sum()
        free = logits[len(self) :, self.excluded.to(logits.device)].double()
        return density - smoothing * (free - normalisers[len(self) :, None]).sum()

    # -- starts and checks -------------------------------------------------------------------------

    def initial_topics(self, corpus: Corpus) -> NDArray[np.float64]:
        """Initial word probabilities of the keyword topics from their documents.

        A topic mixes its keywords by their frequency, the words of documents that contain them, and
        the frequencies of the corpus. A document with keywords of several topics is shared between
        them.

        Args:
            corpus: The documents.

        Returns:
            ``(num_keyword_topics, num_words)``, all positive.
        """
        topics, columns, _ = (x.numpy() for x in self.entries)
        size = (corpus.num_words, len(self))
        members = sp.csr_matrix((np.ones(len(topics)), (columns, topics)), shape=size)
        frequency = corpus.word_totals + 1.0
        neighbours = np.zeros((len(self), corpus.num_words))
        for start in range(0, corpus.num_docs, 100_000):  # many documents do not fit in memory
            part = corpus[start : start + 100_000].to_scipy().astype(np.float64)
            different = (part > 0).astype(np.float64) @ members
            weights = different.power(2).toarray()
            weights /= np.maximum(different.sum(1).A1[:, None], 1.0)
            neighbours += (part.T @ weights).T
        neighbours += frequency / frequency.sum()  # for topics without documents
        keys = members.T.toarray() * frequency
        background = 1.0 - KEYWORD_SHARE - NEIGHBOUR_SHARE
        return np.asarray(
            KEYWORD_SHARE * keys / keys.sum(1, keepdims=True)
            + NEIGHBOUR_SHARE * neighbours / neighbours.sum(1, keepdims=True)
            + background * frequency / frequency.sum()
        )

    def loads(self, probs: Tensor) -> Tensor:
        """Probability of each keyword list in each topic.

        Args:
            probs: ``(num_topics, num_words)`` word probabilities.

        Returns:
            ``(num_keyword_topics, num_topics)``.
        """
        return torch.stack([probs[:, list(columns)].sum(1) for columns in self.columns])

    def check_corpus(self, corpus: Corpus) -> None:
        """Warn of keywords in few documents."""
        documents = corpus.whole.document_frequency
        for name, columns in self.lists.items():
            for word, column in columns.items():
                # Keywords in fewer documents get a warning.
                if documents[column] < 5:
                    _warn(
                        f"keyword {word!r} of the topic {name!r} occurs in {documents[column]} "
                        f"documents, and says little about the topic"
                    )

    def check_topics(self, probs: Tensor) -> None:
        """Warn of keyword topics whose keywords are more probable in another topic.

        Args:
            probs: ``(num_topics, num_words)`` word probabilities.
        """
        loads, names = self.loads(probs), self.topic_names(len(probs))
        for topic, best in enumerate(loads.argmax(1).tolist()):
            if best != topic:
                _warn(
                    f"the topic {names[topic]!r} lost its keywords: they have the probability "
                    f"{float(loads[topic, best]):.3f} in the topic {names[best]!r} and "
                    f"{float(loads[topic, topic]):.3f} in their own. Raise keyword_strength, or "
                    "choose other keywords"
                )


def _warn(message: str) -> None:
    warn(message, KeywordWarning)


def _pairs(name: Any, entry: Any, vocabulary: Sequence[str] | None) -> Iterator[tuple[str, int]]:
    """Words and columns of a topic.

    Args:
        name: Name of the topic.
        entry: Words, columns, or columns by word.
        vocabulary: Words of the vocabulary.
    """
    if not isinstance(name, str) or not name.strip():
        raise ConfigError(f"the topic of keywords {name!r} has no name; expected a text")
    if isinstance(entry, Mapping):
        for word, column in entry.items():
            yield str(word), _column(name, column, vocabulary)
        return
    if isinstance(entry, str) or not isinstance(entry, Sequence):
        raise ConfigError(f"keywords of the topic {name!r} are {entry!r:.60}; expected a list")
    position = None if vocabulary is None else {word: v for v, word in enumerate(vocabulary)}
    for word in entry:
        if not isinstance(word, str):
            column = _column(name, word, vocabulary)
            yield f"#{column}" if vocabulary is None else vocabulary[column], column
        elif position is None:
            raise ConfigError(
                f"keyword {word!r} of the topic {name!r} needs a vocabulary; pass the words of the "
                "columns as vocabulary, or give columns in place of words"
            )
        elif word in position:
            yield word, position[word]
        else:
            close = get_close_matches(word, position, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            _warn(
                f"keyword {word!r} of the topic {name!r} is not in the vocabulary and is left out"
                f"{hint}"
            )


def _column(name: str, column: Any, vocabulary: Sequence[str] | None) -> int:
    """Column of a keyword. Without a vocabulary, :meth:`Keywords.check_sizes` compares its size."""
    stop = 2**63 if vocabulary is None else len(vocabulary)
    if not isinstance(column, int | np.integer) or not 0 <= column < stop:
        raise ConfigError(
            f"keywords of the topic {name!r} hold {column!r:.60}; expected words, or columns of "
            f"the vocabulary from 0 to {stop - 1}"
        )
    return int(column)
