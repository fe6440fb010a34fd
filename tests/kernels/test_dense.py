"""The dense likelihood of one document at many points."""

from __future__ import annotations

import torch

from torch_lntm.kernels.likelihood import Cells, log_likelihood_at
from torch_lntm.kernels.mixture import mixture_log_likelihood


def test_log_likelihood_at_equals_the_sparse_kernel_for_any_chunks(lee) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(50, 4, generator=generator, dtype=torch.float64)
    topics = torch.rand(4, lee.num_words, generator=generator, dtype=torch.float64)
    topics /= topics.sum(1, keepdim=True)
    batch = lee[3].batch(dtype=torch.float64)
    repeated = batch.select(torch.zeros(50, dtype=torch.int64))
    expected = mixture_log_likelihood(torch.softmax(logits, -1), topics, repeated)
    words = topics.mT[batch.word_index]
    for max_elements in (1, 1000, 2**22):
        values = log_likelihood_at(logits, words, Cells.of(batch), max_elements=max_elements)
        torch.testing.assert_close(values, expected)
