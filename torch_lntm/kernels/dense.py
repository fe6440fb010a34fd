"""One document met by the weights of many draws or grid points."""

from __future__ import annotations

import torch
from torch import Tensor


def log_likelihood_at(
    logits: Tensor, words: Tensor, counts: Tensor, *, max_elements: int = 2**22
) -> Tensor:
    """Log likelihood Σ_v c_v log Σ_k θ_k φ_kv of one document at many topic proportions.

    The same function as :func:`torch_lntm.kernels.mixture_log_likelihood`, for many weights of one
    document instead of one weight of many: a dense product then, five times faster.

    Args:
        logits: ``(num_points, num_topics)`` logits of θ.
        words: ``(nnz, num_topics)`` probabilities of the document's words under each topic.
        counts: ``(nnz,)`` their counts.
        max_elements: Bound on the numbers held at once.

    Returns:
        ``(num_points,)`` nats, in the dtype of ``logits``.
    """
    tiny = torch.finfo(logits.dtype).tiny
    chunks = logits.split(max(1, max_elements // max(1, *words.shape)))
    return torch.cat(
        [(torch.softmax(x, -1) @ words.mT).clamp_min_(tiny).log_() @ counts for x in chunks]
    )
