"""The recipes of docs/pyro.md run and give correct results."""

from __future__ import annotations

from typing import Any

import pyro
import pytest
import torch
from pyro import poutine
from support.markdown import run_page


@pytest.fixture(scope="module")
def recipes() -> dict[str, Any]:
    """Names defined by the code of the page."""
    pytest.importorskip("gensim")
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    names = run_page("pyro.md")
    names["parameters"] = dict(pyro.get_param_store().items())  # each test begins without
    return names


@pytest.mark.long
def test_the_recipe_for_groups_counts_shared_priors_once(recipes) -> None:
    model, groups = recipes["model"], recipes["groups"]
    trace = poutine.trace(recipes["by_group"]).get_trace(groups)
    expected = model.log_prior()
    for name, batch in groups.items():
        loc = trace.nodes[f"loc_{name}"]["value"]
        eta = trace.nodes[f"{name}/eta"]["value"]
        of_eta = torch.distributions.MultivariateNormal(loc, model.prior.covariance)
        words = (torch.softmax(eta, -1) @ model.topics.probs).log()
        expected = expected + torch.distributions.Normal(0.0, 3.0).log_prob(loc).sum()
        expected = expected + of_eta.log_prob(eta).sum()
        expected = expected + (batch.to_csr().to_dense() * words).sum()
    torch.testing.assert_close(trace.log_prob_sum(), expected, rtol=1e-10, atol=0.0)


@pytest.mark.slow
def test_the_recipe_for_groups_raises_its_bound(recipes) -> None:
    losses = recipes["losses"]
    assert sum(losses[-5:]) < sum(losses[:5])
    centres = [recipes["parameters"][f"centre_{name}"] for name in recipes["groups"]]
    assert not torch.allclose(centres[0], centres[1])


@pytest.mark.slow
def test_every_recipe_fits_documents(recipes) -> None:
    draws = recipes["mcmc"].get_samples()
    assert draws["prior.loc"].shape == (3, 5)
    assert recipes["guide"].median()["eta"].shape == (recipes["corpus"].num_docs, 5)
