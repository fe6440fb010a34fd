"""Special functions against SciPy and bracketing root finders."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.special import logsumexp, wrightomega

from torch_lntm.solvers.special import inverse_mean_root, log_mean_rate, wright_omega

DTYPES = [torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES)
def test_wright_omega(device, dtype) -> None:
    x = np.concatenate([np.linspace(-700, 700, 2801), np.linspace(-5, 5, 1001), np.logspace(2, 6)])
    points = torch.from_numpy(x).to(device, dtype)
    got = wright_omega(points).double().cpu().numpy()
    expected = wrightomega(points.double().cpu().numpy())
    normal = expected > torch.finfo(dtype).tiny
    np.testing.assert_allclose(got[normal], expected[normal], rtol=30 * torch.finfo(dtype).eps)
    assert np.all(got[~normal] <= torch.finfo(dtype).tiny)


@pytest.mark.parametrize("dtype", DTYPES)
def test_wright_omega_of_large_arguments(device, dtype) -> None:
    largest = torch.finfo(dtype).max
    x = np.concatenate([np.logspace(5, np.log10(largest) - 0.01, 2000), [1e6, 1.01e6, largest]])
    points = torch.from_numpy(x).to(device, dtype)
    # From the definition: ω = x − log x / (1 + 1/ω) there, to far below rounding.
    exact = points.double().cpu().numpy()
    omega = exact - np.log(exact)
    for _ in range(3):
        omega = exact - np.log(omega)
    got = wright_omega(points).double().cpu().numpy()
    np.testing.assert_allclose(got, omega, rtol=10 * torch.finfo(dtype).eps)
    limit = torch.tensor([torch.inf, largest], dtype=dtype, device=device, requires_grad=True)
    value = wright_omega(limit)
    assert value.tolist() == [torch.inf, pytest.approx(largest)]
    (slope,) = torch.autograd.grad(value.sum(), limit, create_graph=True)
    assert slope.tolist() == [1.0, 1.0]
    (curvature,) = torch.autograd.grad(slope.sum(), limit)
    assert curvature.tolist() == [0.0, 0.0]


def test_wright_omega_without_a_rate(device) -> None:
    """The limit for an empty document."""
    x = torch.tensor([-torch.inf, 1.0], dtype=torch.float64, device=device, requires_grad=True)
    value = wright_omega(x)
    assert value.tolist() == [0.0, pytest.approx(1.0, rel=1e-15)]
    value.sum().backward()
    assert x.grad.tolist() == [0.0, pytest.approx(0.5, rel=1e-15)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("exponent", [0.5, 5.0])
def test_inverse_mean_root(device, dtype, exponent) -> None:
    """Holds for rates that underflow too, which occur with variances in the thousands."""
    grid = np.array(
        list(
            itertools.product(
                [1e-8, 1e-4, 1e-2, 1.0, 1e2, 1e7], [-20_000, -5000, -100, -20, -3, 0, 1, 12.0]
            )
        )
    )
    expected = []
    for p, r in grid:

        def f(y: float, p: float = p, r: float = r) -> float:
            return 1 - p * np.exp(y) - np.exp(min(r + y + exponent * np.exp(y), 500.0))

        expected.append(np.exp(brentq(f, -60, 1 - np.log(p), xtol=1e-14, rtol=1e-14)))
    precision, log_rate = torch.from_numpy(grid).to(device, dtype).unbind(1)
    got = inverse_mean_root(precision, log_rate, exponent)
    np.testing.assert_allclose(got.tolist(), expected, rtol=2e-6)


def test_inverse_mean_root_without_a_rate(device) -> None:
    precision = torch.tensor([1e-6, 1.0, 1e6], dtype=torch.float64, device=device)
    none = torch.full_like(precision, -torch.inf)
    torch.testing.assert_close(inverse_mean_root(precision, none, 0.5), 1 / precision)


def test_log_mean_rate(device) -> None:
    rng = np.random.default_rng(0)
    logits, half = rng.normal(size=(3, 4)), rng.gamma(1.0, size=(3, 4)) * 1000
    lengths = np.array([3.0, 0.0, 50.0])
    with np.errstate(divide="ignore"):
        expected = np.log(lengths)[:, None] + logits - logsumexp(logits + half, axis=1)[:, None]
    arrays = [torch.from_numpy(a).to(device) for a in (logits, half, lengths)]
    np.testing.assert_allclose(log_mean_rate(*arrays).tolist(), expected, rtol=1e-12)
