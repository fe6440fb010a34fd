"""The next steps after a fit, as methods: tables, draws of theta, effects and a report."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from torch import Tensor

from torch_lntm.corpus import Corpus
from torch_lntm.corpus.readers import read_documents
from torch_lntm.errors import ConfigError
from torch_lntm.inference.documents import DocumentTopics, Estimate, transform
from torch_lntm.inference.draws import DrawSource
from torch_lntm.models import TopicGroups, TopicModel
from torch_lntm.models.topic_table import TopicTable

if TYPE_CHECKING:
    from torch_lntm.effects import Effects
    from torch_lntm.inference.steering import RefinedResult


class Fitted(ABC):
    """Base class of the results of fits, and of runs that are saved in folders.

    Its methods use the documents of the fit unless you give them others. A run loaded from a folder
    has no documents of its own, so give them to the methods or to ``load_run``.

    Attributes:
        model: The fitted model.
        corpus: The documents of the fit, or ``None`` if they are unknown.
    """

    model: TopicModel
    corpus: Corpus | None
    #: Groups of topics that methods take by default.
    groups: TopicGroups | None = None
    #: Whether the topics are fixed, because they belong to other documents.
    frozen = False

    @property
    @abstractmethod
    def source(self) -> DrawSource:
        """What draws theta after this fit: its guide, or its chains."""

    @property
    def reading(self) -> Mapping[str, Any]:
        """Options by which the texts of the fit became words."""
        return {} if self.corpus is None else self.corpus.counting

    @property
    @abstractmethod
    def topic_shares(self) -> Tensor | Sequence[float] | None:
        """Shares of the topics in the documents of the fit, ``(num_topics,)``."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Settings and results of the fit by name, for a report."""

    @property
    def training(self) -> Corpus:
        """The documents of the fit, without any that it held out."""
        return self.check_corpus()

    def topic_table(self, *, top_n: int = 8, num_correlated: int = 0) -> TopicTable:
        """The topics in words with their shares, the largest first.

        Args:
            top_n: Number of words for each topic.
            num_correlated: Largest number of positively correlated topics to list for each topic,
                and of negatively correlated topics.

        Returns:
            The table. It prints as text, is displayed as a table in notebooks, and has a
            ``frame()``.

        Raises:
            ConfigError: ``top_n`` is below 1, or ``num_correlated`` is below 0.

        Example:
            >>> print(result.topic_table(top_n=4))
            share: posterior mean of the proportion, averaged over the documents
            topic   share   top words
            ...
        """
        return self.model.topic_table(self.topic_shares, top_n=top_n, num_correlated=num_correlated)

    def transform(
        self, corpus: Any = None, estimate: Estimate | None = None, **options: Any
    ) -> DocumentTopics:
        """Topic proportions of documents; see :func:`~torch_lntm.inference.transform`.

        Args:
            corpus: Documents in any form: a corpus over the model's vocabulary, texts, a frame, a
                path or counts. Defaults to the documents of the fit.
            estimate: ``"mode"`` or ``"mean"``.
            **options: Options of :func:`~torch_lntm.inference.transform`.

        Example:
            >>> result.transform(test).theta.shape == (len(test), 10)
            True
            >>> result.transform(["police rescued people"]).theta.shape
            torch.Size([1, 10])
        """
        options = {"groups": self.groups, **options}
        return transform(self.source, self.check_corpus(corpus), estimate, **options)

    def document_table(self, corpus: Any = None, **options: Any) -> pd.DataFrame:
        """A row for each document with its columns, tokens and topic proportions.

        Args:
            corpus: Documents over the model's vocabulary. Defaults to the documents of the fit.
            **options: Options of :meth:`transform`.

        Example:
            >>> result.document_table(test).loc[:, "topic_0":"topic_9"].shape == (len(test), 10)
            True
        """
        return self.transform(corpus, **options).frame()

    def effects(self, formula: str, corpus: Corpus | None = None, **options: Any) -> Effects:
        """Effects of metadata columns on the topics; see :func:`~torch_lntm.effects.estimate`.

        Args:
            formula: Formula of the columns, such as ``"~ party * year"``.
            corpus: The documents with the columns. Defaults to the documents of the fit.
            **options: Options of :func:`~torch_lntm.effects.estimate`.
        """
        from torch_lntm.effects import estimate

        options = {"source": None, **options}
        return estimate(self, corpus=corpus, formula=formula, **options)

    def report(
        self, path: str | Path | None = None, corpus: Corpus | None = None, **options: Any
    ) -> Path:
        """Write a page about the fit; see :func:`~torch_lntm.reports.report`.

        Args:
            path: The HTML file. Defaults to the default of :func:`~torch_lntm.reports.report`.
            corpus: The documents to show. Defaults to the documents of the fit.
            **options: Options of :func:`~torch_lntm.reports.report`.

        Returns:
            The file.
        """
        from torch_lntm.reports import report

        options = {"groups": self.groups, **options}
        return report(self, self.check_corpus(corpus), path, **options)

    def split(self, topic: int | str, into: int = 2, **options: Any) -> Any:
        """Split a topic into parts, and go on; see :func:`~torch_lntm.inference.refine`.

        Args:
            topic: The topic, by number or name.
            into: Number of parts.
            **options: Options of :func:`~torch_lntm.inference.refine`.
        """
        return self._refine(split={topic: into}, **options)

    def absorb(self, *topics: Any, **options: Any) -> Any:
        """Let the first of some topics, or of a list, absorb the others, and go on.

        See :func:`~torch_lntm.inference.refine`.
        """
        is_list = len(topics) == 1 and isinstance(topics[0], (list, tuple))
        return self._refine(absorb=[topics[0] if is_list else topics], **options)

    def forbid(self, *words: str, **options: Any) -> Any:
        """Leave words out, and go on; see :func:`~torch_lntm.inference.refine`."""
        return self._refine(forbid=words, **options)

    def move(self, *words: str, to: int | str, **options: Any) -> Any:
        """Move words to a topic, and go on; see :func:`~torch_lntm.inference.refine`."""
        return self._refine(move=dict.fromkeys(words, to), **options)

    def _summary(self, source: DrawSource, corpus: Corpus) -> Any:
        from torch_lntm.reports import summarise_corpus

        return summarise_corpus(source, corpus, progress=False)

    def _refine(self, **changes: Any) -> Any:
        from torch_lntm.inference.steering import refine

        return refine(self, **changes)

    def continued(self, refined: RefinedResult) -> Any:
        """A refined fit in the form of this one, a result."""
        return refined

    def check_corpus(self, corpus: Any = None) -> Corpus:
        """The documents that a caller gives, or those of the fit.

        Args:
            corpus: A corpus, or documents in another form (a path, texts, a data frame or counts),
                whose words are counted over the model's vocabulary.

        Raises:
            ConfigError: The documents of the fit are unknown.
        """
        found = self.corpus if corpus is None else corpus
        if found is None:
            raise ConfigError("the documents of the fit are unknown here; give them as corpus")
        if isinstance(found, Corpus):
            return found
        return read_documents(found, self.model.vocabulary, self.reading)[0]
