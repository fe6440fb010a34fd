"""Samples in ArviZ, whose diagnostics are an oracle for this package's."""

from __future__ import annotations

import warnings
from types import ModuleType
from typing import Any

import pytest
import torch
from support.pairs import make_counts, make_model
from support.problems import make_batch

from torch_lntm.inference.chains.document_hmc import DocumentHMC


@pytest.fixture(scope="module")
def az() -> ModuleType:
    with warnings.catch_warnings():
        # 0.x announces 1.0 on import; what 0.x itself calls is its own matter.
        warnings.simplefilter("ignore")
        return pytest.importorskip("arviz", reason="needs ArviZ: pip install 'torch-lntm[arviz]'")


@pytest.mark.slow
def test_diagnostics_agree_with_arviz(az: ModuleType) -> None:
    """R-hat is the same; sizes are where chains are long beside their autocorrelation.

    ArviZ divides the autocovariance at lag t by n, Pyro by n − t, and ArviZ adds half a pair where
    it stops: of the order of the autocorrelation time, 15 at the most, in n = 750.
    """
    # Autocorrelated chains, of short trajectories, with repeats.
    batch = make_batch(make_counts(), corpus_size=9).select(torch.tensor([4, 1, 2]))
    kernel = DocumentHMC(make_model("ctm"), num_chains=3, mass_matrix="taylor", num_steps=3)
    samples = kernel.run(batch, 1500, 20, progress=False)
    sites = {"theta": samples.theta(), **samples.latents}
    data = az.from_dict(posterior={name: draws.numpy() for name, draws in sites.items()})
    for quantity in ("theta", "eta"):

        def theirs(function: Any, method: str, name: str = quantity) -> torch.Tensor:
            return torch.from_numpy(function(data, method=method)[name].values)

        rhat = samples.rhat(quantity)  # type: ignore[arg-type]
        torch.testing.assert_close(rhat, theirs(az.rhat, "split"), rtol=1e-9, atol=1e-9)
        close = {"rtol": 0.03, "atol": 0.0}
        for kind in ("bulk", "mean"):
            size = samples.effective_sample_size(quantity, kind)  # type: ignore[arg-type]
            torch.testing.assert_close(size, theirs(az.ess, kind), **close)
            assert 300 < float(size.min()) < 0.5 * 4500
        error = samples.mcse(quantity)  # type: ignore[arg-type]
        torch.testing.assert_close(error, theirs(az.mcse, "mean"), **close)
