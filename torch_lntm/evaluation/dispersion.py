"""The dispersion of a model's residuals, which reveals structure that the topics miss."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_lntm.corpus import Corpus
from torch_lntm.errors import TooFewDocumentsError, require_whole
from torch_lntm.evaluation.checks import check_arguments
from torch_lntm.guides import Guide
from torch_lntm.guides.guide import require_guide
from torch_lntm.models import TopicModel

#: Smallest expected count of a cell that adds a degree of freedom.
LEAST_COUNT = 0.01
#: Most cells of a dense block of expected counts.
BLOCK = 2**23


@dataclass(frozen=True)
class Dispersion:
    """Dispersion of the residuals of a model's counts.

    Attributes:
        value: The dispersion, which is 1 if the counts vary as much as the model predicts, and
            larger if the model has too few topics.
        standard_error: Standard error over documents.
        num_docs: Number of documents used.
    """

    value: float
    standard_error: float
    num_docs: int


@torch.no_grad()
def residual_dispersion(
    model: TopicModel, guide: Guide[Any], corpus: Corpus, *, max_docs: int = 1000
) -> Dispersion:
    """Dispersion of a model's residuals, to choose the number of topics (*Taddy 2012, §4.2*).

    The dispersion is Σ_dv (c − Nq)²/(Nq(1 − q)) divided by its degrees of freedom, where q =
    θ_dᵀφ_v at the mode of θ_d. A pair of a document and a word is a cell. The degrees of freedom
    are the number of cells with Nq above 0.01, less the number of words and the free parameters of
    theta and of the topics. In a bursty model with concentration a, the variance is (N + a)/(1 + a)
    times as large.

    Compare only models with similar numbers of parameters. Most expected counts in a document are
    far below 1, so that each fitted word probability lowers the sum by two or three, but the
    degrees of freedom by only one. The more parameters a correct model has, the lower is therefore
    its dispersion. Content covariates add many (``studies/pages/decisions.md``).

    Args:
        model: The model.
        guide: A guide of the model.
        corpus: The documents of the fit.
        max_docs: Most documents to use, a fixed random sample of the documents with words.
            Each document takes a row of expected counts over the whole vocabulary.

    Returns:
        The dispersion.

    Raises:
        TooFewDocumentsError: There are fewer degrees of freedom than parameters.

    Example:
        >>> lntm.evaluation.residual_dispersion(model, guide, train)
        Dispersion(value=..., num_docs=270)
    """
    require_whole(1, max_docs=max_docs)
    corpus = check_arguments(model, corpus, seed=0, max_docs=1)
    require_guide(guide, model)
    rows = nonempty = corpus.nonempty
    if len(rows) > max_docs:  # no even spacing: documents may come in a periodic order
        rows = np.sort(np.random.default_rng(0).choice(rows, max_docs, replace=False))
    topics = model.topics.double_probs
    max_docs = max(1, BLOCK // model.num_words)
    sums: list[Tensor] = []
    for batch in corpus.batches(max_docs, order=rows, device=model.device, dtype=model.dtype):
        posterior = guide.posterior(batch, covariances=False)
        theta = posterior.theta(posterior.mean.double())
        for rows_of_group, topics_of_group in model.topics.by_level(batch, topics):
            part, q = batch.select(rows_of_group), theta[rows_of_group] @ topics_of_group
            expected = q * part.lengths.double()[:, None]
            inflation = model.words.overdispersion(part.lengths.double())[:, None]
            variance = expected * (1 - q) * inflation
            # Σ (c − m)²/v = Σ m²/v + Σ (c² − 2cm)/v. The second sum needs the nonzero counts only.
            squares = (expected / (1 - q) / inflation).sum(1)
            cell = (part.row_index, part.word_index)
            counts = part.counts.double()
            extra = (counts - 2 * expected[cell]) * counts / variance[cell]
            squares.index_add_(0, part.row_index, extra)
            cells = (expected > LEAST_COUNT).sum(1).double()
            sums.append(torch.stack([squares, cells]).cpu())
    squares, cells = torch.cat(sums, 1)
    # A document uses up K − 1 degrees of freedom for theta, and an equal share of the topics'.
    shared = model.num_words + model.topics.num_free_parameters
    freedom = cells - (model.num_topics - 1) - shared / len(nonempty)
    total = float(freedom.sum())
    if total <= 0:
        raise TooFewDocumentsError(
            f"{len(nonempty)} documents have fewer degrees of freedom than the model has "
            f"parameters with {model.num_topics} topics; take fewer topics"
        )
    value = float(squares.sum()) / total
    residual = squares - value * freedom
    error = math.sqrt(float(residual.square().sum())) / total
    return Dispersion(value, error, len(rows))
