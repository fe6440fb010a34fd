"""The Pyro program: densities of its sites against SciPy's, and generated corpora."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from oracles import gaussian as oracle
from pyro import poutine
from scipy import stats
from scipy.special import softmax
from support.pairs import FAMILIES, make_counts, make_model, prior_draws
from support.problems import make_batch, random_problem

from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.errors import ConfigError
from torch_lntm.guides import DirichletGuide, TaylorGuide
from torch_lntm.inference import VariationalEM
from torch_lntm.models import TopicModel


def trace_at(model: TopicModel, batch: DocumentBatch, **latents: torch.Tensor) -> Any:
    trace = poutine.trace(poutine.condition(model, latents)).get_trace(batch)
    trace.compute_log_prob()
    return trace


def array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().cpu().double().numpy()


def reference(model: TopicModel, values: dict[str, np.ndarray]) -> np.ndarray:
    """Log density ``(num_docs,)`` of a document's sites, by SciPy."""
    prior: Any = model.prior
    if "theta" in values:
        alpha = array(prior.concentration)
        # Without the last proportion: SciPy's check of the sum is too strict for float32.
        return np.array([stats.dirichlet.logpdf(theta[:-1], alpha) for theta in values["theta"]])
    loc, eta = array(prior.loc), values["eta"]
    if "source" not in values:
        return stats.multivariate_normal(loc, array(prior.covariance)).logpdf(eta)
    of_sources = stats.norm if prior.source == "gaussian" else stats.laplace
    mean = loc + values["source"] @ array(prior.mixing).T
    noise = stats.norm.logpdf(eta, mean, array(prior.noise_precision) ** -0.5)
    return of_sources.logpdf(values["source"]).sum(-1) + noise.sum(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("family", [*FAMILIES, "anchored"])
def test_the_programs_densities_match_scipy(family, dtype, device) -> None:
    if family == "anchored":
        model = random_problem(anchored=True).model(device, dtype)
    else:
        model = make_model(family, dtype=dtype).to(device)
    counts = make_counts((30, 0, 1))
    batch = make_batch(counts, device, dtype, corpus_size=30)
    latents = prior_draws(model, 3, device)
    trace = trace_at(model, batch, **latents)
    values = {site: array(value) for site, value in latents.items()}
    tolerance = 2e-5 if dtype == torch.float32 else 1e-10

    found = sum(trace.nodes[site]["unscaled_log_prob"] for site in values)
    expected = reference(model, values)
    np.testing.assert_allclose(array(found), expected, rtol=tolerance, atol=tolerance)
    theta = values.get("theta")
    if theta is None:
        theta = softmax(np.hstack([values["eta"], np.zeros((3, int(family == "anchored")))]), 1)
    words = [
        oracle.log_likelihood(np.log(t), array(model.topics.probs), c)
        for t, c in zip(theta, counts, strict=True)
    ]
    found = trace.nodes["counts"]["unscaled_log_prob"]
    np.testing.assert_allclose(array(found), words, rtol=tolerance, atol=tolerance)
    # A batch of 3 documents from a corpus of 30 counts 10 times, the priors of parameters once.
    for site in (*values, "counts"):
        node = trace.nodes[site]
        torch.testing.assert_close(node["log_prob"], 10 * node["unscaled_log_prob"])
        assert [frame.name for frame in node["cond_indep_stack"]] == ["documents"]
    factors = [trace.nodes[name]["log_prob"] for name in ("topics_prior", "document_prior")]
    torch.testing.assert_close(sum(f.sum() for f in factors), model.log_prior())
    assert set(trace.param_nodes) == {name for name, _ in model.named_parameters()}


def test_generated_corpora_have_the_lengths_and_seed_asked_for(device) -> None:
    problem = random_problem(3, anchored=True)
    model = problem.model(device, vocabulary=[f"w{v}" for v in range(15)])
    lengths = [5, 0, 40]
    (corpus, latents), (again, latents_again) = (model.generate(lengths, seed=4) for _ in range(2))
    other, _ = model.generate(lengths, seed=5)
    assert corpus.lengths.tolist() == lengths
    assert corpus.vocabulary == model.vocabulary
    assert corpus.fingerprint() == again.fingerprint() != other.fingerprint()
    # The read-only lengths of a corpus are accepted.
    assert model.generate(corpus.lengths, seed=4)[0].fingerprint() == corpus.fingerprint()
    assert torch.equal(latents["eta"], latents_again["eta"])
    for kept in (torch.tensor(lengths).bfloat16(), torch.tensor([5.0, 0, 40], requires_grad=True)):
        assert model.generate(kept, seed=4)[0].fingerprint() == corpus.fingerprint()
    for bad in ([10**19], [-1], [2.5], [True], [None], [[3]], [float("nan")]):
        with pytest.raises(ConfigError, match="expected a whole number of tokens"):
            model.generate(bad)
    with pytest.raises(ConfigError, match="seed is None"):
        model.generate(lengths, seed=None)

    num_docs = 20_000
    corpus, latents = model.generate([1] * num_docs, seed=6)
    eta = latents["eta"]
    assert not eta.requires_grad
    x = eta.cpu().numpy() - problem.loc
    root = np.linalg.cholesky(np.linalg.inv(problem.covariance))
    white = x @ root
    outer = np.einsum("di,dj->dij", white, white).mean(0)
    # Two means, two variances and a covariance at 5.5 standard errors, and one χ² test: together
    # they fail by chance in fewer than 2 runs in 10⁶.
    assert np.all(np.abs(white.mean(0)) < 5.5 / np.sqrt(num_docs))
    assert np.all(np.abs(outer - np.eye(2)) < 5.5 * np.sqrt((1 + np.eye(2)) / num_docs))
    theta = softmax(np.hstack([eta.cpu().numpy(), np.zeros((num_docs, 1))]), axis=1)
    words = np.asarray(corpus.to_scipy().sum(0)).ravel()
    expected = theta.sum(0) @ problem.topics
    assert stats.chisquare(words, expected).pvalue > 1e-6


def test_low_precision_models_are_refused_everywhere() -> None:
    model = make_model("ctm").half()
    corpus = Corpus.from_matrix(make_counts())
    for use in (
        lambda: model.generate([3, 4]),
        lambda: model.encode(corpus),
        lambda: VariationalEM(model, TaylorGuide(model), progress=False).fit(corpus),
    ):
        with pytest.raises(ConfigError, match=r"float16.*model.float"):
            use()


@pytest.mark.parametrize("family", ["ctm", "iftm(source='gaussian')"])
def test_posteriors_are_unaffected_by_later_changes_of_parameters(family) -> None:
    model = make_model(family)
    batch = Corpus.from_matrix(make_counts()).batch(dtype=torch.float64)
    guide = TaylorGuide(model)
    posterior = guide.posterior(batch)
    before = posterior.kl().clone()
    assert guide.bound(batch, posterior).isfinite().all()
    with torch.no_grad():
        model.prior.loc += 1.0
    assert torch.equal(posterior.kl(), before)
    with pytest.raises(ConfigError, match="solved at other parameters of the prior"):
        guide.bound(batch, posterior)


def test_a_dirichlet_guides_bound_uses_the_current_prior() -> None:
    model = make_model("lda")
    batch = Corpus.from_matrix(make_counts()).batch(dtype=torch.float64)
    guide = DirichletGuide(model)
    posterior = guide.posterior(batch)
    with torch.no_grad():
        model.prior.log_concentration += 2.0
    solved_now = guide.bound(batch)
    assert (guide.bound(batch, posterior) <= solved_now + 1e-9).all()
