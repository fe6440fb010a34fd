"""The padded and the sparse layout of words."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.problems import make_batch, random_problem

from torch_lntm.kernels.chains import PaddedWords, SparseWords


@pytest.mark.slow
def test_padded_and_sparse_words_agree(device: torch.device) -> None:
    """Documents of different sizes, with a first count above 1; one of them is empty."""
    problem = random_problem(lengths=(40, 0, 3, 12))
    batch = make_batch(problem.counts, device)
    topics = torch.from_numpy(problem.topics).to(device)
    sparse, padded = SparseWords(topics, batch), PaddedWords(topics, batch)
    rng = np.random.default_rng(0)
    # The number of chains may change: nothing is kept from the first.
    for num_chains in (3, 2, 5):
        drawn = rng.dirichlet(np.ones(len(topics)), (num_chains, batch.num_docs))
        theta = torch.from_numpy(drawn).to(device)
        value, counts = padded.expected_counts(theta)
        expected = sparse.expected_counts(theta)
        torch.testing.assert_close(value, expected[0])
        torch.testing.assert_close(counts, expected[1])
        torch.testing.assert_close(counts.sum(-1), batch.lengths.expand(num_chains, -1))
        torch.testing.assert_close(padded.log_likelihood(theta), value)
        torch.testing.assert_close(sparse.log_likelihood(theta), value)
        torch.testing.assert_close(padded.expected_topic_counts(theta), counts)
        torch.testing.assert_close(sparse.expected_topic_counts(theta), counts)
