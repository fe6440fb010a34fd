"""Too few documents for a prior without pseudo-documents are reported."""

from __future__ import annotations

import pytest
import torch

import torch_lntm as lntm
from torch_lntm.errors import NumericalError


@pytest.mark.parametrize(
    ("model", "sums", "what"),
    [
        (
            lntm.models.ctm(3, 5, pseudo_documents=0.0),
            {"latent_sum": torch.ones(3), "latent_outer": torch.ones(3, 3)},
            "covariance",
        ),
        (
            lntm.models.lntm(3, 5, pseudo_documents=0.0),
            {"latent_sum": torch.ones(3), "latent_outer": torch.ones(3, 3)},
            "covariance",
        ),
        (
            lntm.models.iftm(3, 5, 2, pseudo_documents=0.0),
            {
                "eta_sum": torch.ones(3),
                "eta_square": torch.ones(3),
                "source_sum": torch.ones(2),
                "eta_source": torch.ones(3, 2),
                "source_outer": torch.ones(2, 2),
            },
            "mixing matrix",
        ),
    ],
)
def test_one_document_without_pseudo_documents_is_refused(model, sums, what):
    before = {name: tensor.clone() for name, tensor in model.prior.state_dict().items()}
    with pytest.raises(NumericalError, match=rf"1 documents and pseudo_documents=0 leave .*{what}"):
        model.prior.m_step(1.0, **sums)
    for name, tensor in model.prior.state_dict().items():
        assert torch.equal(tensor, before[name])


@pytest.mark.parametrize("make", [lntm.models.ctm, lntm.models.lntm])
def test_a_failed_m_step_on_a_gpu_leaves_parameters_that_fits_report(make, accelerator):
    """The sums are impossible or NaN, so the covariance is undetermined: parameters become NaN."""
    for value in (-1e9, torch.nan):
        model = make(3, 5).to(accelerator)
        outer = torch.full((3, 3), value, dtype=torch.float64, device=accelerator)
        model.prior.m_step(4.0, latent_sum=torch.zeros_like(outer[0]), latent_outer=outer)
        with pytest.raises(NumericalError, match=r"parameter prior\.\w+ is not finite"):
            model.check_parameters()
    model = make(3, 5, pseudo_documents=1e-9).to(accelerator)
    large = torch.full((3, 3), 1e8, dtype=torch.float64, device=accelerator)
    with pytest.raises(NumericalError, match=r"pseudo_documents=1e-09 .*; raise"):
        model.prior.m_step(3.0, latent_sum=large[0] * 0.0, latent_outer=-large)
