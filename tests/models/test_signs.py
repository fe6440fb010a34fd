"""Signs of eigenvectors differ between libraries of linear algebra, and change no result."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import torch_lntm as lntm
from torch_lntm.corpus import Corpus


def posts() -> Corpus:
    rng = np.random.default_rng(0)
    corpus = Corpus.from_matrix(rng.poisson(1.0, (24, 12)))
    return corpus.with_metadata(
        {"party": ["Left", "Right"] * 12, "author": [f"a{d % 5}" for d in range(24)]}
    )


def start_of_sources() -> Tensor:
    rng = np.random.default_rng(1)
    latents = torch.from_numpy(rng.standard_normal((50, 4)) @ rng.standard_normal((4, 4)))
    prior = lntm.models.IndependentFactorPrior(4, 2, dtype=torch.float64)
    prior.start(50.0, latent_sum=latents.sum(0), latent_outer=latents.mT @ latents)
    return prior.mixing.detach().clone()


def drawn_effects(prevalence: str) -> Tensor:
    """Effects by draws of the coefficients and of the documents."""
    corpus = posts()
    topics = torch.from_numpy(np.random.default_rng(2).dirichlet(np.ones(12), 3))
    model = lntm.models.stm(3, corpus, prevalence, topics=topics, dtype="float64")
    guide = lntm.guides.TaylorGuide(model)
    lntm.inference.VariationalEM(
        model, guide, start="model", max_iterations=2, tolerance=1e-9, progress=False
    ).fit(corpus)
    draws = lntm.inference.theta_draws(guide, corpus, 4, coefficients=True)
    assert len(draws.sources_of_uncertainty) == 2
    return draws.theta


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "work",
    [
        start_of_sources,
        lambda: drawn_effects("~ party"),
        lambda: drawn_effects("~ party + (1 | author)"),
    ],
    ids=["start of sources", "coefficients", "random terms"],
)
def test_signs_of_eigenvectors_change_nothing(work, monkeypatch) -> None:
    expected, eigh = work(), torch.linalg.eigh

    def flipped(matrix: Tensor) -> tuple[Tensor, Tensor]:
        values, vectors = eigh(matrix)
        return values, vectors * (1.0 - 2.0 * (torch.arange(len(values)) % 2))

    monkeypatch.setattr(torch.linalg, "eigh", flipped)
    torch.testing.assert_close(work(), expected, rtol=1e-9, atol=1e-11)
