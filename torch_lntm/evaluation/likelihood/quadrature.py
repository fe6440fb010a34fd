"""Quadrature over the proportions of two or three topics."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

import torch

from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError, require_whole
from torch_lntm.evaluation.checks import corpus_space, warn_of_documents
from torch_lntm.evaluation.likelihood.documents import documents, guide_for
from torch_lntm.evaluation.likelihood.estimate import LikelihoodEstimate, LikelihoodMethod
from torch_lntm.guides import Guide
from torch_lntm.models import TopicModel
from torch_lntm.sampling.quadrature import marginal_by_quadrature

#: Largest numerical error of a document's quadrature without a warning, nats.
QUADRATURE_TOLERANCE = 1e-3


@dataclass(frozen=True, eq=False)
class Quadrature(LikelihoodMethod):
    """Quadrature for 2 or 3 topics, exact to many digits. Laplace sources are not supported.

    Args:
        num_points: Points on each of the K − 1 axes, odd and at least 11.
        guide: Guide whose posterior centres the grid. A rough posterior suffices. Defaults to the
            guide of :class:`Importance`.

    Raises:
        ConfigError: The number of points is even or too small.
    """

    num_points: int = 201
    guide: Guide[Any] | None = None

    name: ClassVar[str] = "quadrature"

    def __post_init__(self) -> None:
        require_whole(0, num_points=self.num_points)
        if self.num_points < 11 or self.num_points % 2 == 0:
            raise ConfigError(f"num_points is {self.num_points}; expected an odd number from 11 up")

    def compute(
        self, model: TopicModel, corpus: Corpus, seed: int, max_docs: int, progress: bool
    ) -> LikelihoodEstimate:
        """See :meth:`LikelihoodMethod.compute`. The seed is ignored.

        Raises:
            ConfigError: The model has more than 3 topics or fewer than 2, or the integral of its
                prior has more dimensions than the contrasts of the topics.
        """
        if not 2 <= model.num_topics <= 3:
            raise ConfigError(
                f"quadrature is for 2 or 3 topics, the model has {model.num_topics}; "
                "take method='importance' or 'ais'"
            )
        space = corpus_space(model, corpus)
        if not space.has_grid:
            raise ConfigError(
                f"quadrature is not for this {type(model.prior).__name__}, whose integral has more "
                "dimensions than contrasts of its topics; take method='importance' or 'ais'"
            )
        guide = guide_for(model, self.guide, space)
        values = torch.zeros(corpus.num_docs, dtype=torch.float64)
        errors = torch.zeros_like(values)
        for d in chain.from_iterable(documents(model, corpus, guide, max_docs, progress)):
            value, error = marginal_by_quadrature(
                d.space, d.posterior, d.row, d.words, d.cells, self.num_points, model.words
            )
            values[d.position], errors[d.position] = value.cpu(), error.cpu()
        warn_of_documents(errors > QUADRATURE_TOLERANCE, "a quadrature error", "raise num_points")
        points = self.num_points ** (model.num_topics - 1)
        return LikelihoodEstimate(
            log_likelihood=values,
            standard_error=errors,
            lengths=torch.tensor(corpus.lengths),
            method=self.name,
            description=f"quadrature on {points} points",
            num_samples=points,
            corpus_name=corpus.name,
        )
