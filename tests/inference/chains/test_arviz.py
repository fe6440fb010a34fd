"""Samples in ArviZ, whose diagnostics are an oracle for this package's."""

from __future__ import annotations

import warnings
from types import ModuleType
from typing import Any

import pytest
import torch
from pyro.infer import MCMC
from support.pairs import make_counts, make_model
from support.problems import make_batch

from torch_lntm import errors
from torch_lntm.inference.chains.arviz import to_arviz
from torch_lntm.inference.chains.document_hmc import DocumentHMC
from torch_lntm.inference.chains.samples import DocumentSamples


@pytest.fixture(scope="module")
def az() -> ModuleType:
    with warnings.catch_warnings():
        # 0.x announces 1.0 on import; what 0.x itself calls is its own matter.
        warnings.simplefilter("ignore")
        return pytest.importorskip("arviz", reason="needs ArviZ: pip install 'torch-lntm[arviz]'")


def draw(family: str = "ctm", num_chains: int = 3, num_draws: int = 60) -> DocumentSamples:
    """Autocorrelated chains, of short trajectories, with repeats."""
    batch = make_batch(make_counts(), corpus_size=9)
    batch = batch.select(torch.tensor([4, 1, 2]))
    kernel = DocumentHMC(
        make_model(family),
        num_chains=num_chains,
        mass_matrix="prior" if family == "lda" else "taylor",
        num_steps=3,
    )
    return kernel.run(batch, num_draws, 20, progress=False)


@pytest.mark.slow
def test_diagnostics_agree_with_arviz(az: ModuleType) -> None:
    """R-hat is the same; sizes are where chains are long beside their autocorrelation.

    ArviZ divides the autocovariance at lag t by n, Pyro by n − t, and ArviZ adds half a pair where
    it stops: of the order of the autocorrelation time, 15 at the most, in n = 750.
    """
    samples = draw(num_draws=1500)
    data = to_arviz(samples)
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


@pytest.mark.parametrize("family", ["ctm", "iftm(source='laplace')", "lda"])
def test_exported_groups_have_named_dimensions_and_coordinates(az: ModuleType, family: str) -> None:
    samples = draw(family, num_chains=2, num_draws=8)
    data = to_arviz(samples)
    posterior, stats = data["posterior"], data["sample_stats"]
    sizes = {"chain": 2, "draw": 8, "document": 3, "topic": 4}
    main = samples.model.prior.latent
    for name in ("theta", main):
        assert dict(posterior[name].sizes) == sizes
    assert set(posterior.data_vars) == {"theta", *samples.latents}
    torch.testing.assert_close(torch.from_numpy(posterior[main].values), samples.latents[main])
    torch.testing.assert_close(torch.from_numpy(posterior["theta"].values), samples.theta())
    if "source" in family:
        assert posterior["source"].dims == ("chain", "draw", "document", "source_dim")
        source = torch.from_numpy(posterior["source"].values)
        torch.testing.assert_close(source, samples.latents["source"])
    for group in (posterior, stats):
        assert group["document"].values.tolist() == [4, 1, 2]
    one = posterior[main].sel(document=1, chain=1, topic=2).values
    torch.testing.assert_close(torch.from_numpy(one), samples.latents[main][1, :, 1, 2])
    expected = {
        "acceptance_rate": samples.acceptance,
        "step_size": samples.step_size,
        "moved": samples.moved,
        "divergences": samples.divergences,
    }
    for name, values in expected.items():
        dims = ("document",) if name == "divergences" else ("chain", "document")
        assert stats[name].dims == dims
        assert torch.equal(torch.from_numpy(stats[name].values), values)
    assert len(az.summary(data, var_names=["theta"])) == 12


def test_arviz_1_gets_a_data_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """As from ArviZ 1.0 on, which needs a later Python than the oldest supported."""
    xarray = pytest.importorskip("xarray")
    modules = {"arviz": ModuleType("arviz"), "xarray": xarray}
    monkeypatch.setattr(errors, "import_module", modules.__getitem__)
    data = to_arviz(draw(num_draws=4))
    assert isinstance(data, xarray.DataTree)
    assert data["posterior/theta"].dims == ("chain", "draw", "document", "topic")
    assert data["sample_stats/divergences"].dims == ("document",)


@pytest.mark.parametrize("family", ["ctm", "lda"])
def test_arviz_reads_chains_of_pyro(az: ModuleType, family: str) -> None:
    batch = make_batch(make_counts())
    kernel = DocumentHMC(make_model(family), num_steps=3)
    mcmc = MCMC(kernel, num_samples=6, warmup_steps=4, num_chains=1, disable_progbar=True)
    mcmc.run(batch)
    draws = mcmc.get_samples(group_by_chain=True)
    data = az.from_dict(posterior={site: value.numpy() for site, value in draws.items()})
    main = data["posterior"][kernel.model.prior.latent]
    assert main.dims[:2] == ("chain", "draw")
    assert main.shape == (1, 6, 5, 4)
