"""User topics and words: the code of their pages runs, and their classes work."""

from __future__ import annotations

import re
import sys
import warnings
from types import ModuleType, SimpleNamespace

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
from torch_lntm.inference.chains.joint import JointChain
from torch_lntm.inference.em.monte_carlo import TopicAscent
from torch_lntm.models import TopicModel
from torch_lntm.models.registry import CONSTRUCTORS

NUM_WORDS, NUM_DOCS = 12, 40
KINDS = ("embedded", "periods", "background")


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    rng = np.random.default_rng(0)
    counts = rng.multinomial(25, rng.dirichlet(np.full(NUM_WORDS, 0.3), NUM_DOCS))
    made = Corpus.from_matrix(counts, [f"word{v}" for v in range(NUM_WORDS)])
    return made.with_metadata({"year": np.tile([2001, 2002, 2003, 2003], 10)})


@pytest.fixture(scope="module")
def own_code(corpus):
    """The names defined by the code of the two pages, run from top to bottom."""
    module = ModuleType("own_code")
    module.__dict__["corpus"] = corpus
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lntm.errors.ConvergenceWarning)
        for page in ("own_topics.md", "own_words.md"):
            exec(compile(code_of(page), page, "exec"), module.__dict__)
    sys.modules["own_code"] = module
    yield module
    del sys.modules["own_code"]
    for name in KINDS:
        del CONSTRUCTORS[name]


@pytest.fixture
def make(own_code, corpus):
    """A function that makes a model of a kind, with random parameters in float64."""

    def make_model(kind: str) -> TopicModel:
        sizes = (3, NUM_WORDS)
        if kind == "embedded":
            rho = torch.randn(NUM_WORDS, 8, generator=torch.Generator().manual_seed(1))
            model = own_code.embedded(*sizes, embeddings=rho, vocabulary=corpus.vocabulary)
        elif kind == "periods":
            periods = lntm.models.Groups.of(corpus, "year")
            model = own_code.periods_model(*sizes, periods=periods, vocabulary=corpus.vocabulary)
        else:
            background = torch.arange(1.0, NUM_WORDS + 1, dtype=torch.float64)
            model = own_code.background_model(*sizes, background=background)
        return model.double()

    return make_model


def batch_of(model: TopicModel, corpus: Corpus):
    return model.encode(corpus).batch(dtype=torch.float64)


def test_the_classes_are_as_short_as_the_pages_say() -> None:
    text = code_of("own_topics.md")
    start = text.index("class EmbeddedTopics")
    lines = text[start : text.index("torch.manual_seed")].strip().splitlines()
    assert len(lines) <= 30
    assert re.findall(r"\._[a-z]", text + code_of("own_words.md")) == []


@pytest.mark.parametrize("kind", KINDS)
def test_user_parts_keep_their_contracts(make, corpus, kind) -> None:
    model = make(kind)
    batch = batch_of(model, corpus[:6])
    lntm.testing.check_topics(model.topics, batch)
    lntm.testing.check_words(model.words, batch_of(make("embedded"), corpus[:6]))
    lntm.testing.check_guide(lntm.guides.TaylorGuide(model, tolerance=1e-8), batch)


@pytest.mark.parametrize("kind", KINDS)
def test_variational_em_raises_its_bound(make, corpus, kind) -> None:
    model = make(kind)
    guide = lntm.guides.BleiLaffertyGuide(model, tolerance=1e-8)
    result = lntm.inference.VariationalEM(
        model, guide, start="model", max_iterations=12, tolerance=0.0, progress=False
    ).fit(corpus)
    objective = np.array([record["objective"] for record in result.history])
    assert bool((np.diff(objective) > -1e-6 * abs(objective[0])).all())
    assert objective[-1] > objective[0]


@pytest.mark.parametrize("kind", KINDS)
def test_monte_carlo_em_fits_user_parts(make, corpus, kind) -> None:
    for update in make(kind).topics.updates:
        model = make(kind)
        engine = lntm.inference.MonteCarloEM(
            model, max_epochs=4, num_transitions=10, topic_update=update, progress=False
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", lntm.errors.ConvergenceWarning)
            result = engine.fit(corpus)
        assert result.history[-1]["perplexity"] < NUM_WORDS


@pytest.mark.parametrize("kind", KINDS)
def test_svi_raises_the_elbo(make, corpus, kind) -> None:
    model = make(kind)
    batch, guide = batch_of(model, corpus), lntm.guides.LaplaceGuide(model)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    svi = SVI(model, guide, Adam({"lr": 0.05}), Trace_ELBO())
    pyro.set_rng_seed(0)
    losses = [svi.step(batch) for _ in range(40)]
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
    for name, value in model.named_parameters():
        assert not torch.equal(value, before[name]), name


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_stock_nuts_samples_topics_and_documents(make, corpus, kind) -> None:
    model = make(kind)
    batch = batch_of(model, corpus[:4])
    pyro.set_rng_seed(0)
    mcmc = MCMC(NUTS(model), num_samples=3, warmup_steps=3, disable_progbar=True)
    mcmc.run(batch, sample_topics=True)
    samples = mcmc.get_samples()
    assert {"eta", *model.topics.sites()} <= set(samples)
    assert all(bool(value.isfinite().all()) for value in samples.values())


def _by_quadrature(model: TopicModel, corpus: Corpus) -> Tensor:
    return lntm.evaluation.log_likelihood(model, corpus, Quadrature()).log_likelihood


@pytest.mark.filterwarnings("ignore::torch_lntm.errors.UnreliableEstimateWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_evaluations_agree_with_quadrature(make, corpus, kind) -> None:
    model, few = make(kind), corpus[:8]
    exact = _by_quadrature(model, few)
    for method, settings in (
        ("importance", {"num_samples": 2000}),
        ("ais", {"num_chains": 64, "num_temperatures": 200}),
    ):
        found = lntm.evaluation.log_likelihood(
            model, few, method, seed=1, progress=False, **settings
        )
        error = 5 * found.standard_error + 1e-3
        assert bool(((found.log_likelihood - exact).abs() <= error).all()), method


@pytest.mark.parametrize("kind", KINDS)
def test_completion_predicts_single_tokens_as_the_model_says(make, corpus, kind) -> None:
    model = make(kind)
    hold_out = corpus.hold_out_words(0.5, seed=0)
    guide = lntm.guides.TaylorGuide(model)
    found = lntm.evaluation.document_completion(model, guide, hold_out, theta="mode")
    seen = batch_of(model, hold_out.observed)
    theta = guide.posterior(seen).theta_mode()
    unseen = hold_out.held_out.to_scipy().toarray()
    groups = np.tile([0, 1, 2, 2], 10) if kind == "periods" else np.zeros(NUM_DOCS, int)
    probs = model.topics.probs.detach().unflatten(1, (-1, NUM_WORDS)).numpy()
    q = np.einsum("dk,dkv->dv", theta.numpy(), probs[:, groups].transpose(1, 0, 2))
    if kind == "background":
        epsilon = float(model.words.logit.detach().sigmoid())
        q = (1 - epsilon) * q + epsilon * model.words.background.numpy()
    expected = (unseen * np.log(q)).sum(1)
    np.testing.assert_allclose(found.log_predictive.numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_generated_words_have_the_probabilities_of_the_model(make, corpus, kind) -> None:
    model = make(kind)
    column = model.topics.column
    groups = {"content": np.arange(300) % 3} if column else None
    made, latents = model.generate([200] * 300, seed=0, covariates=groups)
    theta = torch.softmax(latents["eta"], -1).numpy()
    probs = model.topics.probs.detach().unflatten(1, (-1, NUM_WORDS)).numpy()
    chosen = groups["content"] if groups else np.zeros(300, int)
    q = np.einsum("dk,dkv->dv", theta, probs[:, chosen].transpose(1, 0, 2))
    if kind == "background":
        epsilon = float(model.words.logit.detach().sigmoid())
        q = (1 - epsilon) * q + epsilon * model.words.background.numpy()
    expected, variance = 200 * q.sum(0), (200 * q * (1 - q)).sum(0)
    z = (made.to_scipy().toarray().sum(0) - expected) / np.sqrt(variance)
    assert np.abs(z).max() < 5.0


@pytest.mark.parametrize("kind", KINDS)
def test_models_with_user_parts_survive_saving_and_loading(make, corpus, kind, tmp_path) -> None:
    model = make(kind)
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


def test_a_model_of_wrong_size_is_refused_before_allocation(make, tmp_path) -> None:
    lntm.save_model(make("embedded").float(), tmp_path / "model")
    file = tmp_path / "model" / "model.json"
    text = file.read_text()
    assert '"num_words": 12' in text
    file.write_text(text.replace('"num_words": 12', '"num_words": 1200000000'))
    with pytest.raises(ConfigError, match="topics and words"):
        lntm.load_model(tmp_path / "model")


@pytest.mark.slow
def test_the_command_line_fits_and_loads_user_parts(own_code, corpus, tmp_path, capsys) -> None:
    plugin = tmp_path / "own.py"
    code = code_of("own_topics.md")
    code = "\n".join(
        part for part in code.split("\n\n\n") if part.startswith(("import", "class Emb", "@lntm"))
    )
    plugin.write_text(code)
    corpus.save(tmp_path / "words.npz")
    run, own = str(tmp_path / "run"), ("--plugin", str(plugin))
    options = ("--model", "embedded", "--num-topics", "3", "--max-iterations", "3")
    fit = ("fit", str(tmp_path / "words.npz"), *own, *options, "--posterior", "taylor")
    assert main([*fit, "--out", run, "--no-progress"]) == 0
    assert lntm.load_run(run).model.topics.embeddings.shape == (NUM_WORDS, 8)
    capsys.readouterr()
    assert main(["topics", run, *own]) == 0
    assert "word" in capsys.readouterr().out


@pytest.mark.parametrize("kind", KINDS)
def test_joint_chains_sample_user_parts_or_refuse_them_by_name(make, corpus, kind) -> None:
    model = make(kind)
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


class GradientNamed(lntm.models.DirichletTopics):
    """Topics with a user method that has the name of an algorithm."""

    def gradient(self) -> SimpleNamespace:
        return SimpleNamespace()


def test_method_names_do_not_change_the_algorithm(corpus) -> None:
    prior = lntm.models.LogisticNormalPrior
    plain = TopicModel(prior(3), lntm.models.DirichletTopics(3, NUM_WORDS))
    named = TopicModel(prior(3), GradientNamed(3, NUM_WORDS))
    named.load_state_dict(plain.state_dict())
    for model in (plain, named):
        engine = lntm.inference.MonteCarloEM(model, max_epochs=2, progress=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", lntm.errors.ConvergenceWarning)
            engine.fit(corpus)
    assert torch.equal(plain.topics.probs, named.topics.probs)


def test_the_error_for_an_incomplete_subclass_names_the_method(corpus) -> None:
    class Unfinished(lntm.models.Topics):
        def sites(self):
            return {}

    model = TopicModel(lntm.models.LogisticNormalPrior(3), Unfinished(3, NUM_WORDS))
    with pytest.raises(NotImplementedError, match="Unfinished does not define compute_probs"):
        _ = model.topics.probs


def test_set_reaches_probabilities_within_the_family(own_code) -> None:
    topics = own_code.EmbeddedTopics(3, 20 * torch.eye(NUM_WORDS, dtype=torch.float64))
    wanted = np.random.default_rng(0).dirichlet(np.full(NUM_WORDS, 2.0), 3)
    topics.set_(torch.from_numpy(wanted))
    np.testing.assert_allclose(topics.probs.detach().numpy(), wanted, atol=1e-4)


def test_a_continued_fit_by_gradients_keeps_adams_moments(make) -> None:
    counts = torch.rand(3, 3 * NUM_WORDS, dtype=torch.float64) * 9
    whole, parts = make("periods").topics, make("periods").topics
    ascent = TopicAscent(whole, 0.1)
    for epoch in range(4):
        ascent.step(counts, epoch)
    state = {}
    for epoch in range(4):
        ascent = TopicAscent(parts, 0.1)
        ascent.resume(state)
        state = {name: value.clone() for name, value in ascent.step(counts, epoch).items()}
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(parts.state_dict()[name], value, msg=name)
