"""Measurement, the posterior of documents at frozen topics, as frames."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import scipy.stats
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.corpus import Corpus
from torch_lntm.corpus.metadata import complete_column
from torch_lntm.errors import require_level
from torch_lntm.guides.theta_draws import ThetaDraws
from torch_lntm.inference.fitted import Fitted
from torch_lntm.models import TopicGroups, TopicModel
from torch_lntm.models.topic_groups import with_groups


@dataclass(frozen=True, eq=False, repr=False)
class Measurement(Fitted):
    """Topics of documents by a codebook, with the uncertainty of each document's posterior.

    It has the methods of a fit, such as :meth:`effects`, :meth:`document_table` and :meth:`report`,
    which all use the same draws. They are made at their first use.

    Attributes:
        model: The codebook's model.
        corpus: The documents.
        draws: Draws of the documents' proportions from their exact posteriors.
        hash: The codebook's hash.
        groups: The codebook's groups of topics, if any.
        num_seen: Number of documents that were documents of discovery too.
    """

    model: TopicModel
    corpus: Corpus
    draws: ThetaDraws
    hash: str
    groups: TopicGroups | None = None
    num_seen: int = 0

    @property
    def source(self) -> ThetaDraws:
        """The draws."""
        return self.draws

    @property
    def means(self) -> NDArray[np.float64]:
        """Posterior means of the documents' proportions, ``(num_docs, num_topics)``."""
        means = np.empty((self.corpus.num_docs, self.model.num_topics))
        for part in self.draws:
            means[part.rows] = part.theta.double().mean(0).numpy()
        return means

    @property
    def topic_shares(self) -> Tensor:
        """Means of the topics' shares in the documents with words, ``(num_topics,)``."""
        return torch.from_numpy(self.means[self.corpus.nonempty].mean(0))

    def settings(self) -> dict[str, Any]:
        """Facts about the measurement by name, for a report."""
        return {"codebook": self.hash, "documents of discovery": self.num_seen}

    def frame(self, by: str | None = None, *, level: float = 0.95) -> pd.DataFrame:
        """Shares of topics and groups in each document, or in each larger whole, with intervals.

        A whole, such as a book whose chapters are the documents, has the share of each topic among
        its tokens: draw by draw, the sum of its documents' tokens times their proportions. An
        interval covers the uncertainty of the documents' posteriors. It is that of the beta
        distribution with the draws' mean and variance, so that it stays between 0 and 1.

        Args:
            by: Column of the metadata that names each document's whole. Defaults to the documents.
            level: Probability of the intervals.

        Returns:
            A row for each document or whole and each topic, then each group: the document's name or
            the column ``by``, ``tokens``, ``topic`` (its number, or the name of a group), ``name``,
            ``share``, ``lower`` and ``upper``.

        Raises:
            ConfigError: ``level`` is out of range.
            CorpusError: The column is missing or lacks a value.

        Example:
            >>> book = lntm.codebook(result, groups={"news": [3, 7]})
            >>> measured = book.measure(test)
            >>> measured.frame().columns.tolist()
            ['document', 'tokens', 'topic', 'name', 'share', 'lower', 'upper']
        """
        require_level(level)
        lengths = self.corpus.lengths.astype(np.float64)
        codes, wholes = np.arange(len(lengths)), self.corpus.metadata.index
        if by is not None:
            codes, wholes = pd.factorize(complete_column(by, self.corpus.metadata), sort=True)
        tokens = np.bincount(codes, lengths, len(wholes))
        # A whole without words has the prior's proportions, as its documents do.
        weights = lengths + (tokens[codes] == 0)
        weights = torch.from_numpy(weights / np.bincount(codes, weights)[codes])
        names = [*range(self.model.num_topics), *(self.groups.names if self.groups else ())]
        moments = torch.zeros(2, len(wholes), len(names), dtype=torch.float64)
        sums = torch.zeros(self.draws.num_draws if by else 0, *moments.shape[1:]).double()
        for part in self.draws:
            theta = with_groups(part.theta.double(), self.groups)
            if by is None:
                moments[:, part.rows] = torch.stack([theta.mean(0), theta.var(0)])
            else:
                at = torch.from_numpy(codes[part.rows])
                sums.index_add_(1, at, weights[part.rows, None] * theta)
        if by is not None:
            moments = torch.stack([sums.mean(0), sums.var(0)])
        columns = {
            by or "document": np.repeat(wholes, len(names)),
            "tokens": np.repeat(tokens.astype(np.int64), len(names)),
            "topic": names * len(wholes),
            "name": [*self.model.topic_names, *names[self.model.num_topics :]] * len(wholes),
        }
        return pd.DataFrame(columns | beta_interval(moments.flatten(1), level))

    def __repr__(self) -> str:
        seen = f", {self.num_seen} of them documents of discovery" if self.num_seen else ""
        return (
            f"Measurement({self.corpus.num_docs} documents{seen}, {self.draws.num_draws} draws, "
            f"by codebook {self.hash[:12]})"
        )


def beta_interval(moments: Tensor, level: float) -> dict[str, NDArray[Any]]:
    """Means, and intervals of the beta distributions, by means and variances ``(2, n)``."""
    mean, variance = moments.numpy()
    share = mean.clip(0.0, 1.0)
    spread = np.maximum(share * (1 - share), 1e-300)
    size = np.maximum(spread / np.maximum(variance, 1e-16 * spread) - 1, 1e-3)
    a, b = np.maximum(size * share, 1e-12), np.maximum(size * (1 - share), 1e-12)
    lower, upper = scipy.stats.beta.interval(level, a, b)
    return {"share": share, "lower": lower, "upper": upper}
