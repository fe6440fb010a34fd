"""WordCounts: sparse counts that behave as a dense tensor."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from support.problems import make_batch

from torch_lntm.corpus import DocumentBatch
from torch_lntm.distributions import WordCounts
from torch_lntm.distributions.word_counts import MAX_DENSE
from torch_lntm.errors import ConfigError

DENSE = torch.from_numpy(np.random.default_rng(0).poisson(0.7, (6, 3, 5)).astype(float))


@pytest.fixture
def counts(device: torch.device) -> WordCounts:
    """Six draws of three documents."""
    return WordCounts([make_batch(part.numpy(), device) for part in DENSE], (6,))


def huge(device: torch.device) -> DocumentBatch:
    """One word in each of a million documents, over a million words."""
    size = 10**6
    rows = torch.arange(size, device=device)
    return DocumentBatch(
        torch.arange(size + 1, device=device),
        rows,
        torch.ones(size, device=device),
        size,
        rows,
        size,
    )


def test_other_functions_get_dense_counts(counts, device) -> None:
    dense = DENSE.to(device)
    for function in (
        lambda c: c + 1,
        lambda c: 2 - c,
        lambda c: c.mean(0),
        lambda c: c.mT,
        lambda c: c[2],
        lambda c: c[-1].to_dense(),
        lambda c: c[:, 1],
        lambda c: c[0, 1, 2],
        lambda c: c.reshape(2, 3, 3, 5),
        lambda c: c.reshape(2, 3, 3, 5)[1],
        lambda c: c.reshape(2, 3, 3, 5)[1][2],
        lambda c: c.reshape(6, 15),
        lambda c: c.expand(4, 6, 3, 5),
        lambda c: c.unsqueeze(0),
        lambda c: c.float(),
        lambda c: c.to(dtype=torch.int64),
        lambda c: torch.stack([c, c]),
        lambda c: torch.stack([c[0], c[1], c[0]]),
        lambda c: torch.cat([c, c]),
        lambda c: torch.einsum("sdv,v->sd", c, c[0, 0]),
        lambda c: next(iter(c)),
        lambda c: c.detach().clone().data,
        lambda c: copy.deepcopy(c),
        lambda c: pickle.loads(pickle.dumps(c)),
    ):
        got, want = function(counts), function(dense)
        assert got.shape == want.shape
        assert got.dtype == want.dtype
        assert torch.equal(got, want)
    assert counts.cpu().tolist() == DENSE.tolist()
    np.testing.assert_array_equal(counts.cpu().numpy(), DENSE.numpy())
    assert float(counts.sum()) == float(dense.sum())


def test_a_single_batch_is_shared_by_all_leading_indices(counts, device) -> None:
    same = torch.stack([WordCounts(counts.batches[0])] * 4).reshape(2, 1, 2, 3, 5)
    assert isinstance(same, WordCounts)
    assert len(same.batches) == 1
    assert torch.equal(same, DENSE[0].to(device).expand(2, 1, 2, 3, 5))
    assert isinstance(same[1], WordCounts)


def test_pyro_handlers_keep_counts_sparse(device) -> None:
    counts = WordCounts(huge(device))
    assert counts.numel() == 10**12
    several = torch.stack([counts.detach(), counts]).reshape(2, 1, *counts.shape).double()
    assert isinstance(several, WordCounts)
    assert several.dtype == torch.float64
    assert several.expand(2, 7, *counts.shape).shape == (2, 7, 10**6, 10**6)
    assert several[1][0].to_sparse_csr().values().numel() == 10**6
    assert "nnz=1000000" in repr(several)


def test_very_large_counts_are_not_made_dense(device) -> None:
    counts = WordCounts(huge(device))
    for function in (lambda c: c.sum(), lambda c: c.numpy(), lambda c: c + 1):
        with pytest.raises(ConfigError, match=f"the limit is {MAX_DENSE:,}"):
            function(counts)
