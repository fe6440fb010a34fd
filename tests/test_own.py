"""User priors and guides: the examples of the documentation work with everything."""

from __future__ import annotations

import math
import sys
import warnings
from pathlib import Path
from types import ModuleType

import numpy as np
import pyro
import pytest
import torch
from pyro.infer import MCMC, NUTS, SVI, TraceMeanField_ELBO
from support.markdown import code_of

import torch_lntm as lntm
from studies.scores.accuracy import posterior_accuracy
from torch_lntm.cli import main
from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError
from torch_lntm.evaluation import AIS, document_completion, log_likelihood
from torch_lntm.guides import GUIDES, guides_for, make_guide
from torch_lntm.inference import DocumentHMC, MonteCarloEM, VariationalEM
from torch_lntm.inference.chains.joint import JointChain
from torch_lntm.io import load_model, save_model
from torch_lntm.models import DirichletTopics, TopicModel, ctm
from torch_lntm.models.priors.prior import is_up_to_date
from torch_lntm.models.registry import CONSTRUCTORS

DOCS = Path(__file__).resolve().parent.parent / "docs"
NUM_TOPICS, NUM_WORDS, NUM_DOCS = 3, 12, 40


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    rng = np.random.default_rng(0)
    counts = rng.multinomial(25, rng.dirichlet(np.full(NUM_WORDS, 0.3), NUM_DOCS))
    words = [f"word{v}" for v in range(NUM_WORDS)]
    made = Corpus.from_matrix(counts, words)
    x = np.stack([np.ones(NUM_DOCS), rng.normal(size=NUM_DOCS)], 1)
    return made.with_covariates({"x": x})


@pytest.fixture(scope="module")
def own_code(corpus):
    """The names defined by the code of the two pages, run from top to bottom."""
    module = ModuleType("own_code")
    module.__dict__["corpus"] = corpus
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lntm.errors.ConvergenceWarning)
        for page in ("own_prior.md", "own_guide.md"):
            exec(compile(code_of(page), page, "exec"), module.__dict__)
    sys.modules["own_code"] = module
    yield module
    del sys.modules["own_code"], CONSTRUCTORS["toeplitz"], GUIDES["mode"]


def make_model(own_code, kind: str, dtype: torch.dtype = torch.float64) -> TopicModel:
    generator = torch.Generator().manual_seed(0)
    topics = DirichletTopics(NUM_TOPICS, NUM_WORDS, dtype=dtype, generator=generator)
    if kind == "toeplitz":
        return TopicModel(own_code.ToeplitzPrior(NUM_TOPICS, dtype=dtype), topics)
    return TopicModel(own_code.CovariatePrior(NUM_TOPICS, 2, dtype=dtype), topics)


each_kind = pytest.mark.parametrize("kind", ["toeplitz", "covariates"])


@pytest.mark.slow
@each_kind
def test_user_priors_keep_the_contract(own_code, corpus, kind) -> None:
    prior = make_model(own_code, kind).prior
    batch = corpus.batch(np.arange(4), dtype=torch.float64)
    lntm.testing.check_prior(prior, batch, exact_m_step=kind == "covariates")


@pytest.mark.slow
@each_kind
def test_every_normal_guide_solves_user_priors(own_code, corpus, kind) -> None:
    model = make_model(own_code, kind)
    names = guides_for(model)
    assert {"taylor", "laplace", "blei-lafferty", "khan-bouchard", "mode"} <= set(names)
    for name in names:
        guide = make_guide(name, model, tolerance=1e-8, max_iterations=500)
        lntm.testing.check_guide(guide, corpus.batch(np.arange(4), dtype=torch.float64))


@pytest.mark.slow
@each_kind
@pytest.mark.parametrize("name", ["taylor", "laplace", "blei-lafferty", "khan-bouchard", "mode"])
def test_variational_em_fits_user_priors(own_code, corpus, kind, name) -> None:
    model = make_model(own_code, kind)
    before = {key: value.clone() for key, value in model.prior.state_dict().items()}
    guide = make_guide(name, model)
    result = VariationalEM(model, guide, max_iterations=3, progress=False).fit(corpus)
    assert all(math.isfinite(record["objective"]) for record in result.history)
    moved = [not torch.equal(before[key], value) for key, value in model.prior.state_dict().items()]
    assert any(moved)
    completion = document_completion(model, guide, corpus)
    assert 1.0 < completion.perplexity < NUM_WORDS


@pytest.mark.slow
@each_kind
def test_plain_pyro_runs_user_priors(own_code, corpus, kind) -> None:
    model = make_model(own_code, kind)
    batch = corpus.batch(np.arange(6), dtype=torch.float64)
    svi = SVI(
        model, make_guide("taylor", model), pyro.optim.Adam({"lr": 0.05}), TraceMeanField_ELBO()
    )
    losses = [svi.step(batch) for _ in range(30)]
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
    mcmc = MCMC(
        NUTS(model, max_tree_depth=4), num_samples=10, warmup_steps=10, disable_progbar=True
    )
    mcmc.run(corpus[:6].batch(dtype=torch.float64))
    assert mcmc.get_samples()["eta"].shape == (10, 6, NUM_TOPICS)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_guides_accept_batches_of_any_dtype(own_code, corpus, dtype) -> None:
    model = make_model(own_code, "covariates")
    batch = corpus.batch(np.arange(6), dtype=dtype)
    for name in guides_for(model):
        assert make_guide(name, model)(batch).dtype == torch.float64


@pytest.mark.slow
@each_kind
def test_samplers_and_evaluators_accept_user_priors(own_code, corpus, kind) -> None:
    model = make_model(own_code, kind)
    guide = make_guide("laplace", model)
    VariationalEM(model, guide, max_iterations=2, progress=False).fit(corpus)
    sampled = DocumentHMC(model, num_chains=2).run(
        corpus.batch(np.arange(5)), 100, 50, progress=False
    )
    # The mode of a posterior is closer to the posterior mean than the prior mean is.
    batch = corpus.batch(np.arange(5), dtype=torch.float64)
    exact, mode = sampled.mean("eta"), guide.posterior(batch).mean
    from_prior = (exact - model.prior.space(batch).centre).abs().mean()
    assert float((exact - mode).abs().mean()) < 0.5 * float(from_prior)
    by_importance = log_likelihood(model, corpus[:8], num_samples=2000)
    by_chains = log_likelihood(model, corpus[:8], AIS(num_chains=16, num_temperatures=100))
    # 8 differences at 5 standard errors each: false-failure rate 5e-6.
    error = (by_importance.standard_error**2 + by_chains.standard_error**2).sqrt()
    difference = (by_importance.log_likelihood - by_chains.log_likelihood).abs()
    assert bool((difference < 5 * error + 1e-3).all())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lntm.errors.LNTMWarning)
        accuracy = posterior_accuracy(
            model, guide, corpus, num_docs=3, num_chains=2, num_samples=300, warmup_steps=100
        )
    assert set(accuracy.guides) == {"laplace"}


@pytest.mark.slow
@each_kind
def test_monte_carlo_em_fits_user_priors(own_code, corpus, kind) -> None:
    model = make_model(own_code, kind)
    result = MonteCarloEM(model, max_epochs=3, num_transitions=10, progress=False).fit(corpus)
    assert result.history[-1]["perplexity"] < NUM_WORDS


def test_the_error_for_an_incomplete_prior_names_the_method(corpus) -> None:
    class Unfinished(lntm.models.NormalPrior):
        def location(self, batch):
            return torch.zeros(NUM_TOPICS)

    model = TopicModel(Unfinished(NUM_TOPICS), DirichletTopics(NUM_TOPICS, NUM_WORDS))
    with pytest.raises(NotImplementedError, match="Unfinished does not define scale_tril"):
        make_guide("taylor", model).posterior(corpus.batch())


def test_generate_draws_from_user_priors(own_code) -> None:
    model = make_model(own_code, "covariates")
    with torch.no_grad():
        model.prior.weights.copy_(torch.tensor([[0.0, 0.0, 0.0], [0.0, 3.0, 0.0]]))
    x = np.stack([np.ones(400), np.repeat([-1.0, 1.0], 200)], 1)
    made, latents = model.generate([10] * 400, covariates={"x": x}, seed=1)
    means = latents["eta"].unflatten(0, (2, 200)).mean(1)
    # Means of 200 unit normals: 5 standard errors are 0.35.
    expected = torch.tensor([[0.0, -3.0, 0.0], [0.0, 3.0, 0.0]], dtype=means.dtype)
    torch.testing.assert_close(means, expected, rtol=0, atol=0.35)
    assert made.covariates["x"].shape == (400, 2)
    _, same = model.generate([10] * 400, covariates={"x": x.astype(np.float32)}, seed=1)
    torch.testing.assert_close(same["eta"], latents["eta"], rtol=0, atol=0)


@pytest.mark.parametrize("lengths", [[3, -1], [2.5, 3], [math.nan, 1], 4])
def test_invalid_lengths_are_refused(own_code, lengths) -> None:
    with pytest.raises(ConfigError, match="expected a whole number of tokens for each document"):
        make_model(own_code, "toeplitz").generate(lengths)


def test_generate_refuses_covariates_with_a_wrong_number_of_rows(own_code) -> None:
    with pytest.raises(lntm.errors.CorpusError, match=r"covariate 'x': .* the 2 documents"):
        make_model(own_code, "covariates").generate([3, 4], covariates={"x": np.ones((3, 2))})


def test_variational_em_recovers_the_slopes(own_code) -> None:
    """The fit recovers the slopes, in any order of the documents."""
    rng = np.random.default_rng(3)
    topics = torch.from_numpy(rng.dirichlet(np.full(30, 0.1), NUM_TOPICS) + 1e-3)
    truth = TopicModel(
        own_code.CovariatePrior(NUM_TOPICS, 2, dtype=torch.float64),
        DirichletTopics(NUM_TOPICS, 30, probs=topics, dtype=torch.float64),
    )
    slopes = torch.tensor([[0.5, 0.0, -0.5], [1.0, -1.0, 0.0]], dtype=torch.float64)
    with torch.no_grad():
        truth.prior.weights.copy_(slopes)
        truth.prior.set_(covariance=0.3 * torch.eye(3))
    x = np.stack([np.ones(500), rng.normal(size=500)], 1)
    made, _ = truth.generate([80] * 500, covariates={"x": x}, seed=0)
    model = TopicModel(
        own_code.CovariatePrior(NUM_TOPICS, 2, dtype=torch.float64),
        DirichletTopics(NUM_TOPICS, 30, probs=topics, dtype=torch.float64),
    )
    guide = make_guide("taylor", model)
    VariationalEM(model, guide, start="model", max_iterations=15, progress=False).fit(made)
    found = model.prior.weights.detach()
    found = found - found.mean(1, keepdim=True)
    # Regression on 500 documents has errors of about 0.05 per slope; slopes of 0 have errors of 1.
    assert float((found - slopes)[1].abs().max()) < 0.25


@pytest.mark.slow
def test_registered_models_work_with_files_and_the_command_line(
    own_code, corpus, tmp_path, capsys
) -> None:
    unnamed = make_model(own_code, "toeplitz")
    with pytest.raises(ConfigError, match=r"models\.register"):
        save_model(unnamed, tmp_path / "model")
    assert not (tmp_path / "model").exists()
    model = own_code.toeplitz(NUM_TOPICS, NUM_WORDS)
    with torch.no_grad():
        model.prior.rho.fill_(0.4)
    save_model(model, tmp_path / "model")
    again = load_model(tmp_path / "model")
    assert type(again.prior) is own_code.ToeplitzPrior
    assert again.prior.rho.item() == pytest.approx(0.4)
    corpus.save(tmp_path / "corpus.npz")
    run = tmp_path / "run"
    arguments = ["--model", "toeplitz", "--num-topics", "3", "--posterior", "mode"]
    fit = [
        "fit",
        str(tmp_path / "corpus.npz"),
        *arguments,
        "--out",
        str(run),
        "--plugin",
        "own_code",
    ]
    assert main([*fit, "--no-progress", "--max-iterations", "2"]) == 0
    out = tmp_path / "theta.csv"
    transform = ["transform", str(run), str(tmp_path / "corpus.npz"), "--out", str(out)]
    assert main([*transform, "--plugin", "own_code", "--no-progress"]) == 0
    assert len(out.read_text().splitlines()) == NUM_DOCS + 1
    capsys.readouterr()


def test_a_subclass_with_a_new_mean_does_not_inherit_the_draw(own_code, corpus) -> None:
    """The base class draws a common mean of all documents; this prior has no common mean."""
    model = make_model(own_code, "covariates")
    assert is_up_to_date(ctm(2, 3).prior, "draw_", "location", "statistics")
    assert not is_up_to_date(model.prior, "draw_", "location", "statistics")
    with pytest.raises(lntm.errors.IncompatibleGuideError, match="no method draw_ of its own"):
        JointChain(model, corpus, warmup_steps=2)
    effects = lntm.effects.estimate(
        model, make_guide("laplace", model), corpus.with_metadata({"y": range(len(corpus))}), "~ y"
    )
    assert "coefficients" not in effects.summary()
