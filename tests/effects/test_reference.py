"""Coefficients and effects of a fit, against Pyro's NUTS over documents and coefficients."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import MCMC, NUTS
from pyro.ops.stats import effective_sample_size
from torch import Tensor

import torch_lntm as lntm
from torch_lntm.corpus import Corpus
from torch_lntm.guides import Guide, make_guide
from torch_lntm.inference import VariationalEM
from torch_lntm.models import StructuralPrior, TopicModel
from torch_lntm.models.priors.covariates import Covariates
from torch_lntm.models.topics.topics import FixedTopics

NUM_DOCS, LENGTH, NUM_TOPICS, NUM_WORDS = 24, 400, 3, 12
WARMUP, SAMPLES = 100, 500


class Fitted(NamedTuple):
    corpus: Corpus
    model: TopicModel
    guide: Guide
    design: Tensor  # (num_docs, 2): 1 and the standardised column


@pytest.fixture(scope="module")
def fitted() -> Fitted:
    """A fit of documents of which one column is known, under the topics that made them."""
    rng = np.random.default_rng(0)
    x = np.arange(NUM_DOCS) % 2.0
    topics = torch.from_numpy(rng.dirichlet(np.full(NUM_WORDS, 0.3), NUM_TOPICS) + 1e-3)
    prior = StructuralPrior(
        NUM_TOPICS,
        Covariates(("x",), (0.5,), (0.5,)),
        anchored=True,
        slopes=torch.tensor([[0.5, -0.3]]),
        covariance=0.5 * torch.eye(2),
        dtype=torch.float64,
    )
    known = FixedTopics(topics.double())
    made, _ = TopicModel(prior, known).generate(
        [LENGTH] * NUM_DOCS, covariates={"prevalence": x[:, None]}
    )
    corpus = Corpus.from_matrix(made.to_scipy(), metadata={"x": x})
    new = lntm.models.stm(NUM_TOPICS, corpus, "~ x", anchored=True, dtype="float64")
    model = TopicModel(new.prior, known)
    guide = make_guide("laplace", model, tolerance=1e-8, max_iterations=500)
    engine = VariationalEM(
        model, guide, start="model", max_iterations=300, tolerance=1e-7, progress=False
    )
    assert engine.fit(corpus).stop_reason == "converged"
    u = torch.from_numpy((x - x.mean()) / x.std())
    return Fitted(corpus, model, guide, torch.stack([torch.ones_like(u), u], 1))


def log_density(
    params: dict[str, Tensor],
    counts: Tensor,
    u: Tensor,
    topics: Tensor,
    precision: Tensor,
    penalty: float,
) -> Tensor:
    """The model of ``fitted`` up to a constant, written with nothing of the package."""
    loc, slopes, eta = params["loc"], params["slopes"], params["eta"]
    deviations = eta - loc - u[:, None] * slopes
    log_prior = -0.5 * (penalty * slopes @ precision @ slopes)
    log_eta = -0.5 * ((deviations @ precision) * deviations).sum()
    theta = torch.softmax(torch.cat([eta, torch.zeros_like(eta[:, :1])], 1), 1)
    return log_prior + log_eta + (counts * (theta @ topics).log()).sum()


def arguments(fitted: Fitted) -> tuple[Tensor, Tensor, Tensor, Tensor, float]:
    """What :func:`log_density` takes after the parameters."""
    model = fitted.model
    return (
        torch.from_numpy(fitted.corpus.to_scipy().toarray()).double(),
        fitted.design[:, 1],
        model.topics.probs.detach(),
        torch.linalg.inv(model.prior.covariance.detach()),
        float(model.prior.penalty),
    )


@pytest.mark.slow
@torch.no_grad()
def test_the_program_accepts_any_coefficients(fitted) -> None:
    """Its density differs from the reference's by a constant, wherever the coefficients are."""
    model = fitted.model
    batch = model.encode(fitted.corpus).batch(dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    differences = []
    for _ in range(3):
        loc, slopes = torch.randn(2, 2, generator=generator, dtype=torch.float64)
        eta = torch.randn(NUM_DOCS, 2, generator=generator, dtype=torch.float64)
        at = poutine.substitute(model, {"prior.loc": loc, "prior.slopes": slopes[None]})
        got = poutine.trace(poutine.condition(at, {"eta": eta})).get_trace(batch)
        expected = log_density({"loc": loc, "slopes": slopes, "eta": eta}, *arguments(fitted))
        differences.append(float(got.log_prob_sum() - expected))
    np.testing.assert_allclose(differences, differences[0], atol=1e-8)


@pytest.mark.long
def test_coefficients_and_effects_have_the_posterior_of_nuts(fitted) -> None:
    """At the penalty and the covariance that the fit found.

    Laplace's method takes the mode of a document's posterior for its mean, which is off by the
    order of one over the tokens. At 400 tokens that moves coefficients and effects by 0.13 of their
    standard deviations or less, and these by 2 %; 0.25 and 5 % are allowed. Else there is only
    Monte-Carlo error: 5 standard errors of each of 14 numbers, once in 100,000 runs.
    """
    prior = fitted.model.prior
    pyro.set_rng_seed(0)
    given = arguments(fitted)
    kernel = NUTS(potential_fn=lambda params: -log_density(params, *given), max_tree_depth=3)
    start = {"loc": prior.loc.detach(), "slopes": prior.slopes.detach()[0]}
    start["eta"] = torch.zeros(NUM_DOCS, 2).double()
    mcmc = MCMC(
        kernel, num_samples=SAMPLES, warmup_steps=WARMUP, initial_params=start, disable_progbar=True
    )
    mcmc.run()
    drawn = mcmc.get_samples()
    coefficients = torch.stack([drawn["loc"], drawn["slopes"]], 1)
    x = fitted.design

    # Given eta, coefficients are matrix-normal: exactly so, whatever the documents' posteriors.
    precision = x.mT @ x + torch.tensor([0.0, float(prior.penalty)]).diag()
    given_eta = torch.linalg.solve(precision, x.mT @ drawn["eta"])
    in_units = torch.tensor([[1.0, -1.0], [0.0, 2.0]]).double()  # of x, from those of (1, u)
    rows = torch.linalg.cholesky(prior.coefficient_covariance())
    columns = prior.scale_tril.detach()
    residual = torch.linalg.solve(rows, in_units @ (coefficients - given_eta))
    white = torch.linalg.solve_triangular(columns, residual.mT, upper=False).flatten(1)
    size = effective(white.square())
    assert float(size.min()) > 200
    error = (white.square().mean(0) - 1).abs() / (2 / size).sqrt()
    assert float(error.max()) < 5

    # What the fit says of them.
    found = in_units @ coefficients
    mean, spread = found.mean(0), found.std(0)
    allowed = 0.25 + 5 / effective(found.flatten(1)).sqrt().view(2, 2)
    off = (prior.coefficients - mean).abs() / spread
    assert bool((off < allowed).all()), off

    # Effects: the same regression of NUTS's draws, by hand.
    theta = torch.softmax(torch.cat([drawn["eta"], torch.zeros(SAMPLES, NUM_DOCS, 1)], -1), -1)
    raw = torch.stack([torch.ones(NUM_DOCS), (x[:, 1] > 0)], 1).double()
    pseudo = torch.linalg.pinv(raw)
    slopes = (pseudo @ theta)[:, 1]
    leverage = (raw @ pseudo).diagonal()
    residuals = (theta - raw @ (pseudo @ theta)) / (1 - leverage)[:, None]
    within = (pseudo[1].square()[:, None] * residuals.square()).sum(1)
    variance = within.mean(0) + slopes.var(0)
    effects = lntm.effects.estimate(
        fitted.model, fitted.guide, fitted.corpus, "~ x", num_draws=400, link="identity"
    )
    size = effective(slopes)
    for k, row in enumerate(effects.table().query("term == 'x'").itertuples()):
        noise = slopes[:, k].std() * (1 / size[k] + 1 / 400).sqrt()
        off = abs(row.estimate - float(slopes[:, k].mean()))
        assert off < 0.25 * row.std_error + 5 * float(noise)
        # The two variances between draws have relative errors √(2/size).
        between = float(slopes[:, k].var() / variance[k])
        ratio = row.std_error / math.sqrt(float(variance[k]))
        allowed = 0.05 + 5 * 0.5 * between * math.sqrt(2 / float(size[k]) + 2 / 400)
        assert abs(ratio - 1) < allowed


def effective(draws: Tensor) -> Tensor:
    """Effective sample sizes of ``(num_draws, n)`` draws of one chain, at most their number."""
    return effective_sample_size(draws[None]).clamp_max(len(draws))
