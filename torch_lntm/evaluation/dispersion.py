"""Dispersion of the residuals: whether topics leave structure in the counts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torch_lntm.corpus import Corpus
from torch_lntm.errors import TooFewDocumentsError, require_whole
from torch_lntm.evaluation.checks import check_arguments
from torch_lntm.guides import Guide, require_guide
from torch_lntm.models import TopicModel

#: Expected counts above which a cell counts as a degree of freedom.
LEAST_COUNT = 0.01
#: Cells of a dense block of expected counts.
BLOCK = 2**23


@dataclass(frozen=True)
class Dispersion:
    """Dispersion of the residuals of a model's counts.

    Attributes:
        value: The dispersion: 1 where the counts vary as much as the model says, more where there
            are too few topics.
        standard_error: Its standard error over documents.
        num_docs: Documents that it was found from.
    """

    value: float
    standard_error: float
    num_docs: int

    def __repr__(self) -> str:
        return (
            f"Dispersion({self.value:.3f} ± {self.standard_error:.2g}, {self.num_docs} documents)"
        )


@torch.no_grad()
def residual_dispersion(
    model: TopicModel, guide: Guide[Any], corpus: Corpus, *, max_documents: int = 1000
) -> Dispersion:
    """Dispersion of the residuals by the number of topics (*Taddy 2012, §4.2*).

    Σ_dv (c − Nq)²/(Nq(1 − q)) over its degrees of freedom, with q = θ_dᵀφ_v at the mode of θ_d: the
    cells with Nq above 0.01, less the words, less the parameters. Of a bursty model with the
    concentration a the variance is (N + a)/(1 + a) times as large.

    Where expected counts are far below 1, as those of most words in a document are, every fitted
    word probability takes two or three from the sum, of which the degrees of freedom count one.
    So the more parameters for the counts, the lower the dispersion of a model that is right, and
    content covariates have many (``docs/decisions.md``). Compare models of like numbers of them.

    Args:
        model: The model.
        guide: A posterior for it.
        corpus: The documents that it was fitted to.
        max_documents: Documents to look at, at most, evenly spaced among those with words: every
            word of the vocabulary has an expected count in each.

    Returns:
        The dispersion.

    Raises:
        TooFewDocumentsError: There are fewer degrees of freedom than parameters.
    """
    require_whole(1, max_documents=max_documents)
    corpus = check_arguments(model, corpus, seed=0, max_docs=1)
    require_guide(guide, model)
    nonempty = corpus.nonempty
    step = max(1, math.ceil(len(nonempty) / max_documents))
    rows = nonempty[::step]
    topics = model.topics.double_probs
    at_once = max(1, BLOCK // model.num_words)
    sums: list[Tensor] = []
    for batch in corpus.batches(at_once, order=rows, device=model.device, dtype=model.dtype):
        posterior = guide.means(batch)
        theta = posterior.theta(posterior.mean.double())
        for rows_of_group, topics_of_group in model.topics.by_group(batch, topics):
            part, q = batch.select(rows_of_group), theta[rows_of_group] @ topics_of_group
            expected = q * part.lengths.double()[:, None]
            times = model.words.overdispersion(part.lengths.double())[:, None]
            variance = expected * (1 - q) * times
            # Σ (c − m)²/v = Σ m²/v + Σ (c² − 2cm)/v, the last over the counts that are not 0.
            squares = (expected / (1 - q) / times).sum(1)
            at = (part.row_index, part.word_index)
            counts = part.counts.double()
            extra = (counts - 2 * expected[at]) * counts / variance[at]
            squares.index_add_(0, part.row_index, extra)
            cells = (expected > LEAST_COUNT).sum(1).double()
            sums.append(torch.stack([squares, cells]).cpu())
    squares, cells = torch.cat(sums, 1)
    # Each document has proportions of its own, and its share of what all have in common.
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
