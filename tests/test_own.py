"""User priors, guides, topics and words: the code of their pages works with everything."""

from __future__ import annotations

import copy
import math
import re
import sys
import warnings
from pathlib import Path
from types import ModuleType

import numpy as np
import pyro
import pytest
import torch
from oracles.grids import Quadrature
from pyro.infer import MCMC, NUTS, SVI, Trace_ELBO
from pyro.optim import Adam
from support.markdown import code_of
from torch import Tensor

import torch_lntm as lntm
from torch_lntm.cli import main
from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError, IncompatibleGuideError
from torch_lntm.evaluation import AIS, document_completion, log_likelihood
from torch_lntm.guides import GUIDES, guides_for, make_guide
from torch_lntm.inference import DocumentHMC, VariationalEM
from torch_lntm.inference.chains.joint import JointChain
from torch_lntm.inference.em.monte_carlo import TopicAscent
from torch_lntm.io import load_model, save_model
from torch_lntm.models import DirichletTopics, TopicModel, ctm
from torch_lntm.models.parts import is_up_to_date
from torch_lntm.models.registry import CONSTRUCTORS

#: Fits take a second or more each.
pytestmark = pytest.mark.slow

NUM_TOPICS, NUM_WORDS, NUM_DOCS = 3, 12, 40
PRIORS, PARTS = ("toeplitz", "covariates"), ("embedded", "periods", "background")
each_prior = pytest.mark.parametrize("kind", PRIORS)
each_part = pytest.mark.parametrize("kind", PARTS)
each_kind = pytest.mark.parametrize("kind", PRIORS + PARTS)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    rng = np.random.default_rng(0)
    counts = rng.multinomial(25, rng.dirichlet(np.full(NUM_WORDS, 0.3), NUM_DOCS))
    made = Corpus.from_matrix(counts, [f"word{v}" for v in range(NUM_WORDS)])
    x = np.stack([np.ones(NUM_DOCS), rng.normal(size=NUM_DOCS)], 1)
    years = np.tile([2001, 2002, 2003, 2003], NUM_DOCS // 4)
    return made.with_covariates({"x": x}).with_metadata({"year": years})


@pytest.fixture(scope="module")
def own_code(corpus):
    """The names defined by the code of the pages, each run from top to bottom."""
    module = ModuleType("own_code")
    module.__dict__["corpus"] = corpus
    before = dict(CONSTRUCTORS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lntm.errors.ConvergenceWarning)
        code = re.sub(r"^corpus = .*\n", "", code_of("own_parts.md"), flags=re.MULTILINE)
        exec(compile(code, "own_parts.md", "exec"), module.__dict__)
    sys.modules["own_code"] = module
    yield module
    del sys.modules["own_code"], GUIDES["mode"]
    CONSTRUCTORS.clear()
    CONSTRUCTORS.update(before)


# -- priors and guides ---------------------------------------------------------------------------


def make_model(own_code, kind: str, dtype: torch.dtype = torch.float64) -> TopicModel:
    generator = torch.Generator().manual_seed(0)
    topics = DirichletTopics(NUM_TOPICS, NUM_WORDS, dtype=dtype, generator=generator)
    if kind == "toeplitz":
        return TopicModel(own_code.ToeplitzPrior(NUM_TOPICS, dtype=dtype), topics)
    return TopicModel(own_code.CovariatePrior(NUM_TOPICS, 2, dtype=dtype), topics)


@pytest.mark.long
@each_prior
def test_user_priors_and_guides_keep_their_contracts(own_code, corpus, kind) -> None:
    model, batch = make_model(own_code, kind), corpus.batch(np.arange(4), dtype=torch.float64)
    lntm.testing.check_prior(model.prior, batch, exact_m_step=kind == "covariates")
    names = guides_for(model)
    assert {"taylor", "laplace", "blei-lafferty", "khan-bouchard", "mode"} <= set(names)
    for name in names:
        guide = make_guide(name, model, tolerance=1e-8, max_iterations=500)
        lntm.testing.check_guide(guide, batch)
        assert guide(batch.to(dtype=torch.float32)).dtype == torch.float64


@each_prior
@pytest.mark.parametrize("name", ["taylor", "mode"])
def test_variational_em_fits_user_priors(own_code, corpus, kind, name) -> None:
    model = make_model(own_code, kind)
    before = {key: value.clone() for key, value in model.prior.state_dict().items()}
    guide = make_guide(name, model)
    brief = {"start_epochs": 3, "stepwise_epochs": 1, "max_iterations": 3}
    result = VariationalEM(model, guide, progress=False, **brief).fit(corpus)
    assert all(math.isfinite(record["objective"]) for record in result.history)
    moved = [not torch.equal(before[key], value) for key, value in model.prior.state_dict().items()]
    assert any(moved)
    completion = document_completion(model, corpus, theta="mode", guide=guide)
    assert 1.0 < completion.perplexity < NUM_WORDS


@pytest.mark.usefixtures("back_end")
@each_prior
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
    by_importance = log_likelihood(model, corpus[:8], num_draws=2000)
    by_chains = log_likelihood(model, corpus[:8], AIS(num_chains=16, num_temperatures=100))
    # 8 differences at 5 standard errors each: false-failure rate 5e-6.
    error = (by_importance.standard_error**2 + by_chains.standard_error**2).sqrt()
    difference = (by_importance.log_likelihood - by_chains.log_likelihood).abs()
    assert bool((difference < 5 * error + 1e-3).all())


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


@pytest.mark.parametrize("lengths", [[3, -1], [2.5], [math.nan, 1], 4, [math.inf], [1e19], [True]])
def test_invalid_lengths_are_refused(own_code, lengths) -> None:
    with pytest.raises(ConfigError, match="expected a whole number of tokens for each document"):
        make_model(own_code, "toeplitz").generate(lengths)
    with pytest.raises(ConfigError, match=r"seed is 1\.5"):
        make_model(own_code, "toeplitz").generate([3], seed=1.5)


def test_generate_refuses_covariates_with_a_wrong_number_of_rows(own_code) -> None:
    with pytest.raises(lntm.errors.CorpusError, match=r"covariate 'x': .* the 2 documents"):
        make_model(own_code, "covariates").generate([3, 4], covariates={"x": np.ones((3, 2))})


def test_variational_em_recovers_the_slopes(own_code) -> None:
    """The fit recovers the slopes, in any order of the documents."""
    rng = np.random.default_rng(3)
    topics = torch.from_numpy(rng.dirichlet(np.full(30, 0.1), NUM_TOPICS) + 1e-3)
    truth, model = (
        TopicModel(
            own_code.CovariatePrior(NUM_TOPICS, 2, dtype=torch.float64),
            DirichletTopics(NUM_TOPICS, 30, probs=topics, dtype=torch.float64),
        )
        for _ in range(2)
    )
    slopes = torch.tensor([[0.5, 0.0, -0.5], [1.0, -1.0, 0.0]], dtype=torch.float64)
    with torch.no_grad():
        truth.prior.weights.copy_(slopes)
        truth.prior.set_(covariance=0.3 * torch.eye(3))
    x = np.stack([np.ones(500), rng.normal(size=500)], 1)
    made, _ = truth.generate([80] * 500, covariates={"x": x}, seed=0)
    guide = make_guide("taylor", model)
    VariationalEM(model, guide, start="model", max_iterations=15, progress=False).fit(made)
    found = model.prior.weights.detach()
    found = found - found.mean(1, keepdim=True)
    # Regression on 500 documents has errors of about 0.05 per slope; slopes of 0 have errors of 1.
    assert float((found - slopes)[1].abs().max()) < 0.25


def test_registered_models_work_with_files_and_the_command_line(
    own_code, corpus, tmp_path, monkeypatch, capsys
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
    monkeypatch.chdir(tmp_path)
    corpus.save("corpus")
    common = ["--plugin", "own_code", "--no-progress"]
    sizes = ["--num-topics", "3", "--posterior", "mode", "--max-iterations", "2"]
    assert main(["fit", "corpus", "--model", "toeplitz", *sizes, "--out", "run", *common]) == 0
    assert main(["transform", "run", "corpus", "--out", "theta.csv", *common]) == 0
    assert len(Path("theta.csv").read_text().splitlines()) == NUM_DOCS + 1
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


class Unfinished(lntm.models.NormalPrior):
    def location(self, batch):
        return torch.zeros(NUM_TOPICS)


class UnfinishedTopics(lntm.models.Topics):
    def sites(self):
        return {}


def test_the_error_for_an_incomplete_part_names_the_method(corpus) -> None:
    guide = make_guide("taylor", TopicModel(Unfinished(3), DirichletTopics(3, NUM_WORDS)))
    with pytest.raises(NotImplementedError, match="Unfinished does not define scale_tril"):
        guide.posterior(corpus.batch())
    with pytest.raises(NotImplementedError, match="UnfinishedTopics does not define compute_pro"):
        _ = UnfinishedTopics(3, NUM_WORDS).probs


# -- topics and words ---------------------------------------------------------------------------


@pytest.fixture
def make_part(own_code, corpus):
    """A function that makes a model of a kind, with random parameters in float64."""

    def made(kind: str) -> TopicModel:
        sizes = (3, NUM_WORDS)
        if kind in PRIORS:
            return make_model(own_code, kind)
        if kind == "embedded":
            rho = torch.randn(NUM_WORDS, 8, generator=torch.Generator().manual_seed(1))
            model = own_code.embedded(*sizes, embeddings=rho, vocabulary=corpus.vocabulary)
        elif kind == "periods":
            periods = lntm.models.Levels.of(corpus, "year")
            model = own_code.periods_model(*sizes, periods=periods, vocabulary=corpus.vocabulary)
        else:
            background = torch.arange(1.0, NUM_WORDS + 1, dtype=torch.float64)
            model = own_code.background_model(*sizes, background=background)
        return model.double()

    return made


def batch_of(model: TopicModel, corpus: Corpus):
    return model.encode(corpus).batch(dtype=torch.float64)


@pytest.mark.usefixtures("back_end")
@each_part
def test_user_parts_keep_their_contracts(make_part, corpus, kind) -> None:
    model = make_part(kind)
    batch = batch_of(model, corpus[:6])
    lntm.testing.check_topics(model.topics, batch)
    lntm.testing.check_words(model.words, batch_of(make_part("embedded"), corpus[:6]))
    lntm.testing.check_guide(lntm.guides.TaylorGuide(model, tolerance=1e-8), batch)


@each_part
def test_variational_em_raises_its_bound(make_part, corpus, kind) -> None:
    model = make_part(kind)
    guide = lntm.guides.BleiLaffertyGuide(model, tolerance=1e-8)
    result = lntm.inference.VariationalEM(
        model, guide, start="model", max_iterations=12, tolerance=0.0, progress=False
    ).fit(corpus)
    objective = np.array([record["objective"] for record in result.history])
    assert bool((np.diff(objective) > -1e-6 * abs(objective[0])).all())
    assert objective[-1] > objective[0]


@each_kind
def test_monte_carlo_em_fits_user_models(make_part, corpus, kind) -> None:
    for update in make_part(kind).topics.updates:
        model = make_part(kind)
        engine = lntm.inference.MonteCarloEM(
            model, max_epochs=3, num_transitions=4, topic_update=update, progress=False
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", lntm.errors.ConvergenceWarning)
            result = engine.fit(corpus)
        assert result.history[-1]["perplexity"] < NUM_WORDS


@each_kind
def test_pyro_trains_and_samples_user_models(make_part, corpus, kind) -> None:
    model = make_part(kind)
    batch, guide = batch_of(model, corpus[:4]), lntm.guides.LaplaceGuide(model)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    svi = SVI(model, guide, Adam({"lr": 0.05}), Trace_ELBO())
    pyro.set_rng_seed(0)
    losses = [svi.step(batch) for _ in range(20)]
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
    for name, value in model.named_parameters():
        # The mean by covariates replaces that of the base class.
        replaced = (kind, name) == ("covariates", "prior.loc")
        assert torch.equal(value, before[name]) == replaced, name
    mcmc = MCMC(NUTS(model), num_samples=3, warmup_steps=3, disable_progbar=True)
    mcmc.run(batch, sample_topics=True)
    samples = mcmc.get_samples()
    assert {"eta", *model.topics.sites()} <= set(samples)
    assert all(bool(value.isfinite().all()) for value in samples.values())


@pytest.mark.usefixtures("back_end")
@pytest.mark.filterwarnings("ignore::torch_lntm.errors.UnreliableEstimateWarning")
@each_part
def test_evaluations_agree_with_quadrature(make_part, corpus, kind) -> None:
    model, few = make_part(kind), corpus[:8]
    exact = log_likelihood(model, few, Quadrature()).log_likelihood
    for method, settings in (
        ("importance", {"num_draws": 2000}),
        ("ais", {"num_chains": 64, "num_temperatures": 200}),
    ):
        found = lntm.evaluation.log_likelihood(
            model, few, method, seed=1, progress=False, **settings
        )
        error = 5 * found.standard_error + 1e-3
        assert bool(((found.log_likelihood - exact).abs() <= error).all()), method


def mixture(model: TopicModel, theta: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Probabilities of words in documents of groups, by the formulas of the pages."""
    probs = model.topics.probs.detach().unflatten(1, (-1, NUM_WORDS)).numpy()
    q = np.einsum("dk,dkv->dv", theta, probs[:, groups].transpose(1, 0, 2))
    if not hasattr(model.words, "background"):
        return q
    epsilon = float(model.words.logit.detach().sigmoid())
    return (1 - epsilon) * q + epsilon * model.words.background.numpy()


@each_part
def test_completion_predicts_single_tokens_as_the_model_says(make_part, corpus, kind) -> None:
    model = make_part(kind)
    hold_out = corpus.hold_out_words(0.5, seed=0)
    guide = lntm.guides.TaylorGuide(model)
    found = lntm.evaluation.document_completion(model, hold_out, guide=guide, theta="mode")
    seen = batch_of(model, hold_out.observed)
    theta = guide.posterior(seen).theta_mode()
    unseen = hold_out.held_out.to_scipy().toarray()
    groups = np.tile([0, 1, 2, 2], 10) if kind == "periods" else np.zeros(NUM_DOCS, int)
    expected = (unseen * np.log(mixture(model, theta.numpy(), groups))).sum(1)
    np.testing.assert_allclose(found.log_predictive.numpy(), expected, rtol=1e-6)


@each_part
def test_generated_words_have_the_probabilities_of_the_model(make_part, corpus, kind) -> None:
    model = make_part(kind)
    column = model.topics.content
    groups = {"content": np.arange(300) % 3} if column else None
    made, latents = model.generate([200] * 300, seed=0, covariates=groups)
    theta = torch.softmax(latents["eta"], -1).numpy()
    q = mixture(model, theta, groups["content"] if groups else np.zeros(300, int))
    expected, variance = 200 * q.sum(0), (200 * q * (1 - q)).sum(0)
    z = (made.to_scipy().toarray().sum(0) - expected) / np.sqrt(variance)
    assert np.abs(z).max() < 5.0


@each_part
def test_models_with_user_parts_survive_saving(make_part, corpus, kind, tmp_path) -> None:
    model = make_part(kind)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01)
    if kind != "background":
        model = model.float()
    lntm.save_model(model, tmp_path / kind)
    found = lntm.load_model(tmp_path / kind)
    for name, value in model.state_dict().items():
        assert torch.equal(found.state_dict()[name], value), name
    batch = batch_of(model, corpus).to(dtype=model.dtype)
    one, other = (lntm.guides.TaylorGuide(m).posterior(batch).mean for m in (model, found))
    assert torch.equal(one, other)


@each_part
def test_joint_chains_sample_user_parts_or_refuse_them_by_name(make_part, corpus, kind) -> None:
    model = make_part(kind)
    name = {"embedded": "EmbeddedTopics", "periods": "PeriodTopics"}.get(kind, "BackgroundWords")
    with pytest.raises(IncompatibleGuideError, match=f"{name} has no method draw_"):
        JointChain(model, corpus, warmup_steps=1)
    known = JointChain(model, corpus, warmup_steps=1, topics=False)
    before = model.topics.probs.detach().clone()
    known.sweep()
    assert torch.equal(known.model.topics.probs.detach(), before)


class TiedTopics(lntm.models.DirichletTopics):
    """Topics with a common probability of the first ten words."""

    def m_step(self, word_counts: Tensor) -> None:
        word_counts = word_counts.clone()
        word_counts[:, :10] = word_counts[:, :10].mean(1, keepdim=True)
        super().m_step(word_counts)


def test_joint_chains_keep_tied_topics_tied(corpus) -> None:
    topics = TiedTopics(3, NUM_WORDS)
    model = TopicModel(lntm.models.LogisticNormalPrior(3), topics)
    with pytest.raises(IncompatibleGuideError, match="TiedTopics has no method draw_ of its own"):
        JointChain(model, corpus, warmup_steps=1)


def test_set_reaches_probabilities_within_the_family(own_code) -> None:
    topics = own_code.EmbeddedTopics(3, 20 * torch.eye(NUM_WORDS, dtype=torch.float64))
    wanted = np.random.default_rng(0).dirichlet(np.full(NUM_WORDS, 2.0), 3)
    topics.set_(torch.from_numpy(wanted))
    np.testing.assert_allclose(topics.probs.detach().numpy(), wanted, atol=1e-4)


def test_a_continued_fit_by_gradients_keeps_adams_moments(make_part) -> None:
    counts = torch.rand(3, 3 * NUM_WORDS, dtype=torch.float64) * 9
    whole, parts = make_part("periods").topics, make_part("periods").topics
    ascent = TopicAscent(whole, 0.1)
    for epoch in range(4):
        ascent.step(counts, epoch)
    state = {}
    for epoch in range(4):
        ascent = TopicAscent(parts, 0.1)
        ascent.resume(state)
        state = copy.deepcopy(ascent.step(counts, epoch))
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(parts.state_dict()[name], value, msg=name)
