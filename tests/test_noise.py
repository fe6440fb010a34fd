"""Random numbers as functions of keys: their bits, distributions and independence."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from torch_lntm import noise


def test_keys_agree_with_splitmix64(device: torch.device) -> None:
    """Against Python's integers, and the published outputs from the state 1234567."""

    def mix(bits: int) -> int:
        bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        bits = (bits ^ bits >> 27) * 0x94D049BB133111EB % 2**64
        return bits ^ bits >> 31

    def fold(key: int, data: int) -> int:
        return mix((key + (data + 1) * 0x9E3779B97F4A7C15) % 2**64)

    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    data = torch.arange(3, device=device)
    got = noise.fold_in(torch.full((3,), 1234567, device=device), data)
    assert [value % 2**64 for value in got.tolist()] == published
    index = torch.tensor([0, 5, 123456], device=device)
    keys = noise.fold_in(noise.document_keys(11, index, 2), 7)
    expected = [[fold(fold(fold(11, d), c), 7) for d in index.tolist()] for c in range(2)]
    assert [[value % 2**64 for value in row] for row in keys.tolist()] == expected


def test_split_folds_in_successive_numbers(device: torch.device) -> None:
    keys = noise.document_keys(3, torch.tensor([0, 5, 123456], device=device), 2)
    several = noise.split(keys, 4)
    assert several.shape == (4, 2, 3)
    for data in range(4):
        assert torch.equal(several[data], noise.fold_in(keys, data))
        # A number and a tensor of it wrap around alike.
        assert torch.equal(several[data], noise.fold_in(keys, torch.full_like(keys, data)))


def test_noise_has_its_distribution_and_no_correlations(device: torch.device) -> None:
    num_docs, num_chains, size = 2000, 2, 7
    index = torch.arange(num_docs, device=device)
    keys = noise.document_keys(0, index, num_chains)
    uniform = noise.uniform(keys, size).cpu().numpy()
    normal = noise.normal(keys, size).cpu().numpy()
    assert uniform.min() > 0
    assert uniform.max() < 1
    # 28 marginals of 2,000 documents; two tests each: false-failure rate 6e-5.
    for chain in range(num_chains):
        for entry in range(size):
            assert stats.kstest(uniform[chain, :, entry], "uniform").pvalue > 1e-6
            assert stats.kstest(normal[chain, :, entry], "norm").pvalue > 1e-6
    later = noise.normal(noise.fold_in(keys, 1), size).cpu().numpy()
    other = noise.normal(noise.document_keys(1, index, num_chains), size).cpu().numpy()
    columns = np.concatenate([normal, later, other]).transpose(0, 2, 1).reshape(-1, num_docs)
    neighbours = np.concatenate([columns[:, 1:], columns[:, :1]], 1)
    for values in (columns, columns**2):
        correlation = np.corrcoef(values, neighbours)
        np.fill_diagonal(correlation, 0.0)
        # 3,486 correlations with standard deviation 1/√2000, twice, at 6 of these: rate 1.4e-5;
        # squares have heavier tails, which 8 allow for.
        assert np.abs(correlation).max() < (6 if values is columns else 8) / math.sqrt(num_docs)


def test_noise_depends_on_document_and_chain_only(device: torch.device) -> None:
    keys = noise.document_keys(3, torch.tensor([4, 9, 2], device=device), 3)
    few = noise.document_keys(3, torch.tensor([2], device=device), 1)
    assert int(keys[0, 2]) == int(few[0, 0])
    assert len(set(keys.flatten().tolist())) == 9


@pytest.mark.parametrize("shape", [1e-3, 0.3, 1.0, 40.0])
def test_gamma_variates_have_the_gamma_distribution(shape: float, device: torch.device) -> None:
    """Kolmogorov–Smirnov, false-failure rate 1e-4 each, of logs: a tiny one underflows."""
    keys = noise.document_keys(0, torch.arange(50, device=device), 20)
    shapes = torch.full((20, 50, 8), shape, dtype=torch.float64, device=device)
    logs = noise.log_gamma(keys, shapes).flatten().cpu().numpy()
    assert np.isfinite(logs).all()
    assert stats.kstest(logs, stats.loggamma(shape).cdf).pvalue > 1e-4
    assert len(np.unique(logs)) == len(logs)


@pytest.mark.stat
def test_rejection_does_not_distort_gamma_variates() -> None:
    """A twentieth of the proposals is rejected at most, which only many draws show."""
    keys = noise.document_keys(0, torch.arange(8000), 20)
    logs = noise.log_gamma(keys, torch.ones(20, 8000, 8, dtype=torch.float64)).flatten()
    # Kolmogorov–Smirnov of 1,280,000 exponential variates: false-failure rate 1e-4.
    assert stats.kstest(logs.exp().numpy(), "expon").pvalue > 1e-4


def test_nan_shapes_give_nan_variates() -> None:
    keys = noise.document_keys(0, torch.arange(2), 1)
    shapes = torch.tensor([[1.0, math.nan], [2.0, 3.0]], dtype=torch.float64).expand(1, 2, 2)
    found = noise.log_gamma(keys, shapes)
    assert found.isnan().tolist() == [[[False, True], [False, False]]]
