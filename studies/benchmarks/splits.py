"""Differences between two systems over several splits, with errors of documents and of seeds.

Every split has its own hold-out and its own fit of each system. Let D_s be the difference on split
s, w_s the split's share of all scored tokens, and D = sum_s w_s D_s. The model is

    D_s = delta + a_s + e_s,

with a_s of variance A, common to all documents of a split, from the seeds of both fits, and e_s
from the sampled documents. The variance of D is A sum_s w_s^2 + V, with V the variance over
documents. Scores of one document in several splits are one cluster. With v_s, the variance of e_s
over the documents of split s, the spread between splits has the mean

    E sum_s w_s (D_s - D)^2 = A (1 - sum_s w_s^2) + sum_s w_s v_s - V,

which gives A by the method of moments, as in DerSimonian and Laird (1986), Meta-analysis in
clinical trials. A negative estimate becomes 0. The estimate of A has a degree of freedom less than
there are splits, and that of V one less than there are documents. Student's t takes the degrees of
the sum of both (Satterthwaite 1946), which are 2 where the seeds of three splits dominate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from scipy.stats import t as student

from torch_lntm.evaluation import CompletionResult, paired_difference


class Scores(NamedTuple):
    """Scores of the documents of one split.

    Attributes:
        documents: ``(num_docs,)`` positions of the documents in the corpus.
        nats: ``(num_docs,)`` nats of their held-out tokens.
        tokens: ``(num_docs,)`` numbers of their held-out tokens.
    """

    documents: torch.Tensor
    nats: torch.Tensor
    tokens: torch.Tensor


class Difference(NamedTuple):
    """A difference over several splits, nats per token.

    Attributes:
        gain: The difference. It is positive if the first system is better.
        error: Standard error over documents and seeds. NaN for a single split.
        document_error: Standard error over documents alone.
        seed_spread: Standard deviation of a split's difference over the seeds of both fits.
        p: Probability of a difference as large by chance, two-sided, by Student's t.
    """

    gain: float
    error: float
    document_error: float
    seed_spread: float
    p: float


def pooled(splits: Sequence[Scores]) -> CompletionResult:
    """Scores of several splits, added up by document of the corpus."""
    parts = zip(*splits, strict=True)
    documents, nats, tokens = (torch.cat(list(part)) for part in parts)
    positions, place = documents.long().unique(return_inverse=True)
    total = torch.zeros(2, len(positions), dtype=torch.float64)
    total.index_add_(1, place, torch.stack([nats.double(), tokens.double()]))
    return CompletionResult(total[0], total[1].long(), "given", "pooled")


def difference(ours: Sequence[Scores], theirs: Sequence[Scores]) -> Difference:
    """Compare two systems on the same splits.

    Args:
        ours: Scores of a system on each split.
        theirs: Scores of another system on the same splits, in the same order.

    Raises:
        ConfigError: The systems scored different tokens.
    """
    together = pooled(ours)
    gain, document_error = paired_difference(together, pooled(theirs))
    of_documents = len(together.log_predictive) - 1
    each = [
        paired_difference(pooled([mine]), pooled([other]))
        for mine, other in zip(ours, theirs, strict=True)
    ]
    tokens = torch.tensor([float(scores.tokens.sum()) for scores in ours], dtype=torch.float64)
    weights = (tokens / tokens.sum()).tolist()
    if len(each) == 1:
        p = _p(gain, document_error, of_documents)
        return Difference(gain, math.nan, document_error, math.nan, p)
    spread = sum(w * (d - gain) ** 2 for w, (d, _) in zip(weights, each, strict=True))
    within = sum(w * error**2 for w, (_, error) in zip(weights, each, strict=True))
    squares = sum(w**2 for w in weights)
    variance = max(0.0, (spread - within + document_error**2) / (1.0 - squares))
    error = math.sqrt(document_error**2 + variance * squares)
    inverse = (variance * squares) ** 2 / (len(each) - 1) + document_error**4 / of_documents
    p = _p(gain, error, error**4 / max(inverse, 1e-300))
    return Difference(gain, error, document_error, math.sqrt(variance), p)


def _p(gain: float, error: float, degrees: float) -> float:
    """Two-sided probability of a gain as large; NaN without an error."""
    return 2 * float(student.sf(abs(gain) / error, degrees)) if error > 0 else math.nan
