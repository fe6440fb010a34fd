"""Content covariates: topics whose words differ between levels of documents."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyro
import pytest
import scipy.optimize
import torch
from oracles.grids import Quadrature
from pyro.infer import SVI, Trace_ELBO
from scipy.special import log_softmax

import torch_lntm as lntm
from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError, CorpusError, MissingColumnError
from torch_lntm.guides import guides_for, make_guide
from torch_lntm.inference import MonteCarloEM, StepwiseEM, VariationalEM
from torch_lntm.models import ContentTopics, DirichletTopics, Levels, TopicModel

NUM_TOPICS, NUM_WORDS, NUM_DOCS = 3, 12, 40
LEVELS = Levels("party", ("Left", "Middle", "Right"))


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    rng = np.random.default_rng(0)
    counts = rng.multinomial(25, rng.dirichlet(np.full(NUM_WORDS, 0.3), NUM_DOCS))
    party = np.array(LEVELS.levels)[np.arange(NUM_DOCS) % 3]
    metadata = {"party": party, "age": rng.uniform(20, 60, NUM_DOCS), "same": ["x"] * NUM_DOCS}
    metadata["id"] = [f"d{d}" for d in range(NUM_DOCS)]
    return Corpus.from_matrix(counts, [f"w{v}" for v in range(NUM_WORDS)], metadata=metadata)


def topics_of(penalty: float = 2.0, smoothing: float = 0.1, levels: Levels = LEVELS, **more: Any):
    settings = {"penalty": penalty, "smoothing": smoothing, "dtype": torch.float64, **more}
    return ContentTopics(NUM_TOPICS, NUM_WORDS, levels, **settings)


def make(corpus: Corpus, prevalence: str | None = None, **settings: Any) -> TopicModel:
    """A model with differences between levels."""
    settings = {"content": "party", "dtype": "float64", **settings}
    model = lntm.models.stm(NUM_TOPICS, corpus, prevalence, **settings)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        model.topics.logits.normal_(generator=generator)
        model.topics.levels.normal_(generator=generator)
        model.topics.cells.normal_(generator=generator)
    return model


def by_hand(topics: ContentTopics) -> np.ndarray:
    """``(num_levels, num_topics, num_words)`` probabilities from the parameters."""
    shared, levels, cells = (
        x.detach().double().cpu().numpy() for x in (topics.logits, topics.levels, topics.cells)
    )
    return np.exp(log_softmax(shared.T + levels[:, None] + cells.transpose(0, 2, 1), axis=2))


# -------------------------------------------------------------------- the M-step


def counts_of(seed: int = 0, scale: float = 30.0) -> np.ndarray:
    """``(num_levels, num_topics, num_words)`` expected tokens, some cells empty."""
    rng = np.random.default_rng(seed)
    words = rng.dirichlet(np.full(NUM_WORDS, 0.3), NUM_TOPICS) * rng.uniform(
        0.2, 3, (3, NUM_TOPICS, NUM_WORDS)
    )
    return np.floor(scale * words * rng.integers(1, 4, (3, NUM_TOPICS, 1)))


def in_columns(counts: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(counts.transpose(1, 0, 2).reshape(NUM_TOPICS, -1))


@pytest.mark.slow
@pytest.mark.parametrize("penalty", [0.5, 4.0])
def test_the_m_step_matches_scipys_maximum(penalty) -> None:
    smoothing, counts = 0.1, counts_of()
    sizes = [NUM_TOPICS * NUM_WORDS, 3 * NUM_WORDS, 3 * NUM_TOPICS * NUM_WORDS]

    def parts(x: np.ndarray) -> list[np.ndarray]:
        shared, levels, cells = np.split(x, np.cumsum(sizes)[:-1])
        return [
            shared.reshape(NUM_TOPICS, NUM_WORDS),
            levels.reshape(3, 1, NUM_WORDS),
            cells.reshape(3, NUM_TOPICS, NUM_WORDS),
        ]

    def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
        """Minus the penalised likelihood; deviations are up − down, both nonnegative."""
        free = sizes[0]
        half = (len(x) - free) // 2
        up, down = x[free : free + half], x[free + half :]
        shared, levels, cells = parts(np.concatenate([x[:free], up - down]))
        log_phi = log_softmax(shared + levels + cells, axis=2)
        log_shared = log_softmax(shared, axis=1)
        value = (counts * log_phi).sum() + smoothing * log_shared.sum() - penalty * x[free:].sum()
        slope = counts - counts.sum(2, keepdims=True) * np.exp(log_phi)
        of_shared = slope.sum(0) + smoothing * (1 - NUM_WORDS * np.exp(log_shared))
        rest = np.concatenate([slope.sum(1).ravel(), slope.ravel()])
        gradient = np.concatenate([of_shared.ravel(), rest - penalty, -rest - penalty])
        return -value, -gradient

    total = sizes[0] + 2 * (sizes[1] + sizes[2])
    bounds = [(None, None)] * sizes[0] + [(0, None)] * (total - sizes[0])
    options = {"maxiter": 20000, "maxfun": 40000, "ftol": 1e-15, "gtol": 1e-8, "maxcor": 30}
    search = {"jac": True, "bounds": bounds, "method": "L-BFGS-B", "options": options}
    best = scipy.optimize.minimize(loss, np.zeros(total), **search)
    topics = topics_of(penalty, smoothing)
    # The counts barely determine the position of a shared topic between the levels: slow.
    for _ in range(8000):
        topics.m_step(in_columns(counts))
    found = (counts * np.log(by_hand(topics))).sum() + float(topics.log_prior().detach())
    assert found == pytest.approx(-best.fun, abs=1e-6)
    half = sizes[1] + sizes[2]
    deviations = best.x[sizes[0] : -half] - best.x[-half:]
    expected = log_softmax(sum(parts(np.concatenate([best.x[: sizes[0]], deviations]))), axis=2)
    np.testing.assert_allclose(by_hand(topics), np.exp(expected), atol=1e-5)


@pytest.mark.parametrize("often", [False, True])
def test_every_m_step_raises_the_density(often, device) -> None:
    counts, topics = counts_of(), topics_of().to(device)
    densities = []
    for _ in range(6):
        prior = float(topics.log_prior().detach())
        densities.append((counts * np.log(by_hand(topics))).sum() + prior)
        if often:
            with topics.updated_often():
                topics.m_step(in_columns(counts).to(device))
                inside = topics.probs.cpu()
            np.testing.assert_allclose(inside, in_columns(by_hand(topics)))
        else:
            topics.m_step(in_columns(counts).to(device))
    assert (np.diff(densities) > -1e-9).all()
    assert densities[1] > densities[0] + 1


def test_a_large_penalty_gives_plain_topics() -> None:
    counts, topics = counts_of(), topics_of(penalty=1e6, smoothing=0.1)
    topics.m_step(in_columns(counts))
    plain = DirichletTopics(NUM_TOPICS, NUM_WORDS, smoothing=0.1, dtype=torch.float64)
    plain.m_step(torch.from_numpy(counts.sum(0)))
    assert not topics.deviations.any()
    for g in range(3):
        block = topics.probs[:, g * NUM_WORDS : (g + 1) * NUM_WORDS]
        torch.testing.assert_close(block, plain.probs)


def test_deviations_are_zero_if_counts_are_as_expected() -> None:
    counts = np.broadcast_to(counts_of()[0], (3, NUM_TOPICS, NUM_WORDS)).copy()
    counts[1, 2, 5] += 40
    topics = topics_of(penalty=3.0)
    for _ in range(20):
        topics.m_step(in_columns(counts))
    deviations = topics.deviations
    assert deviations[2, 1, 5] > 0.3
    assert int((deviations.abs() > 0.3).sum()) == 1
    assert topics.num_free_parameters < NUM_TOPICS * (NUM_WORDS - 1) + 20


def test_empty_counts_make_no_nan() -> None:
    for smoothing in (0.0, 0.1):
        counts, topics = counts_of(), topics_of(smoothing=smoothing)
        counts[:, 1] = 0.0  # a topic without tokens
        counts[2] = 0.0  # a group without documents
        counts[:, :, 3] = 0.0  # a word that does not occur
        before = topics.logits[:, 1].detach().softmax(0)
        topics.m_step(in_columns(counts))
        assert torch.isfinite(topics.probs).all()
        assert torch.isfinite(topics.log_prior())
        expected = torch.full_like(before, 1 / NUM_WORDS) if smoothing else before
        torch.testing.assert_close(topics.logits[:, 1].detach().softmax(0), expected)


# -------------------------------------------------------------------- the program and its guides


def plain_of(model: TopicModel, level: str) -> TopicModel:
    return TopicModel(model.prior, model.topics.at(level), model.vocabulary)


def test_probabilities_match_the_parameters(corpus) -> None:
    topics = make(corpus).topics
    expected = in_columns(by_hand(topics))
    for found in (topics.probs.detach(), topics.double_probs, topics.probs_and_log_prior()[0]):
        torch.testing.assert_close(found.detach(), expected)
    for g, level in enumerate(LEVELS.levels):
        torch.testing.assert_close(topics.at(level).probs, torch.tensor(by_hand(topics)[g]))
    mean = torch.tensor(by_hand(topics).mean(0))
    torch.testing.assert_close(topics.mean_probs.detach(), mean)
    torch.testing.assert_close(topics.at().probs, mean)
    assert topics.top_words(2)[0].tolist() == mean.topk(2).indices.tolist()


@pytest.mark.slow
def test_every_guide_uses_the_topics_of_the_documents_group(corpus) -> None:
    model = make(corpus, "~ age")
    ready = model.encode(corpus)
    for name in guides_for(model):
        guide = make_guide(name, model, tolerance=1e-10, max_iterations=2000)
        whole = guide.posterior(ready.batch(dtype=torch.float64))
        for g, level in enumerate(LEVELS.levels):
            rows = np.arange(g, NUM_DOCS, 3)
            alone = make_guide(name, plain_of(model, level), tolerance=1e-10, max_iterations=2000)
            posterior = alone.posterior(ready.batch(rows, dtype=torch.float64))
            torch.testing.assert_close(whole.mean[rows], posterior.mean, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(
                whole.objective[rows], posterior.objective, rtol=1e-7, atol=1e-7
            )
    batch = ready.batch(np.arange(4), dtype=torch.float64)
    lntm.testing.check_guide(guide, model.check_batch(batch))


@pytest.mark.slow
def test_evaluators_use_the_topics_of_the_documents_group(corpus) -> None:
    model, rows = make(corpus), np.arange(1, NUM_DOCS, 3)
    alone, part = plain_of(model, "Middle"), corpus[rows]

    def scores(model: TopicModel, corpus: Corpus, **settings: Any) -> torch.Tensor:
        hold_out = corpus.hold_out_words(0.5, seed=0)
        guide = lntm.guides.LaplaceGuide(model)
        found = lntm.evaluation.document_completion(model, hold_out, guide=guide, **settings)
        return found.log_predictive

    for settings in ({"theta": "mode"}, {"theta": "mean", "num_draws": 5}):
        torch.testing.assert_close(scores(model, part, **settings), scores(alone, part, **settings))

    hold_out = part.hold_out_words(0.5, seed=0)
    modes = [lntm.evaluation.document_completion(m, hold_out, theta="mode") for m in (model, alone)]
    torch.testing.assert_close(modes[0].log_predictive, modes[1].log_predictive)

    def likelihood(model: TopicModel, corpus: Corpus, **settings: Any) -> torch.Tensor:
        found = lntm.evaluation.log_likelihood(model, corpus, progress=False, **settings)
        return found.log_likelihood

    quadrature = likelihood(model, corpus, method=Quadrature())[rows]
    torch.testing.assert_close(quadrature, likelihood(alone, part, method=Quadrature()))
    annealed = {"method": "ais", "num_chains": 4, "num_temperatures": 10}
    torch.testing.assert_close(
        likelihood(model, part, **annealed), likelihood(alone, part, **annealed)
    )


def test_the_dispersion_uses_the_topics_of_the_documents_groups(corpus, device) -> None:
    model = make(corpus).to(device)
    with torch.no_grad():
        model.topics.levels.zero_()
        model.topics.cells.zero_()
    plain = plain_of(model, "Left")

    def dispersion(model: TopicModel) -> float:
        guide = lntm.guides.TaylorGuide(model)
        return lntm.evaluation.residual_dispersion(model, guide, corpus).value

    # Deviations of 0 are not counted as parameters.
    assert dispersion(model) == pytest.approx(dispersion(plain), rel=1e-6)


@pytest.mark.slow
def test_content_models_run_under_pyro(corpus) -> None:
    model = make(corpus)
    batch = model.encode(corpus).batch(dtype=torch.float64)
    trace: Any = pyro.poutine.trace(model).get_trace(batch)
    theta = torch.softmax(trace.nodes["eta"]["value"], -1)
    levels = np.arange(NUM_DOCS) % 3
    words = np.einsum("dk,dkv->dv", theta.detach().numpy(), by_hand(model.topics)[levels])
    expected = (batch.to_csr().to_dense().numpy() * np.log(words)).sum(1)
    found = trace.nodes["counts"]["fn"].log_prob(trace.nodes["counts"]["value"])
    np.testing.assert_allclose(found.detach().numpy(), expected)

    with pytest.raises(ValueError, match="BagOfWords needs lengths"):
        pyro.poutine.uncondition(model)(batch)

    optimiser = pyro.optim.Adam({"lr": 0.01})
    before = model.topics.cells.detach().clone()
    SVI(model, lntm.guides.TaylorGuide(model), optimiser, Trace_ELBO()).step(batch)
    assert (model.topics.cells != before).any()

    trace = pyro.poutine.trace(model).get_trace(batch, sample_topics=True)
    sites = {"topics", "levels", "cells", "eta", "counts"}
    assert sites <= set(trace.nodes)
    table = trace.nodes["counts"]["fn"].topics.unflatten(1, (3, NUM_WORDS))
    torch.testing.assert_close(table.sum(-1), torch.ones(NUM_TOPICS, 3, dtype=torch.float64))


def test_generated_documents_have_words_of_their_group(corpus, device) -> None:
    model = make(corpus).to(device)
    levels = np.arange(300) % 3
    drawn, latents = model.generate([200] * 300, seed=0, covariates={"content": levels})
    theta = torch.softmax(latents["eta"], -1).cpu().numpy()
    words = np.einsum("dk,dkv->dv", theta, by_hand(model.topics)[levels])
    for g in range(3):
        counts = np.asarray(drawn.to_scipy()[levels == g].sum(0)).ravel()
        expected = 200 * words[levels == g].sum(0)
        # A chi-square statistic of 11 degrees of freedom exceeds 45 in 5 of a million runs.
        assert ((counts - expected) ** 2 / expected).sum() < 45
    with pytest.raises(ConfigError, match="whole number below 3"):
        model.generate([5, 5], covariates={"content": [0, -1]})


# -------------------------------------------------------------------- documents, fits, files


def test_new_documents_need_known_groups(corpus) -> None:
    model = make(corpus)
    ready = model.encode(corpus)
    assert ready.encodings["content"].tolist() == [d % 3 for d in range(NUM_DOCS)]
    known = corpus[np.array([2, 0])]
    assert model.encode(known).encodings["content"].tolist() == [2, 0]
    given = Corpus.from_matrix(known.to_scipy()).with_covariates({"content": [2, 0]})
    assert model.encode(given) is given
    other = known.with_metadata({"party": ["Left", "Green"]})
    with pytest.raises(CorpusError, match=r"'Green'.*knows Left, Middle, Right"):
        model.encode(other)
    lacking = known.with_metadata({"party": ["Left", None]})
    with pytest.raises(CorpusError, match=r"lacks a value in 1 documents.*document 1"):
        model.encode(lacking)
    with pytest.raises(MissingColumnError, match="no column 'party'"):
        model.encode(Corpus.from_matrix(known.to_scipy()))
    with pytest.raises(ConfigError, match="encode"):
        model(known.batch(dtype=torch.float64))
    for bad in ([0, 3], [-1, 0]):
        with pytest.raises(ConfigError, match="whole number below 3"):
            model(known.with_covariates({"content": bad}).batch(dtype=torch.float64))


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("age", "holds numbers such as"),
        ("same", "all documents the one level 'x'"),
        ("id", "has 40 different values in 40 documents"),
        (["party"], "expected the name of one column"),
    ],
)
def test_columns_without_usable_groups_are_refused(corpus, column, message) -> None:
    with pytest.raises(ConfigError, match=message):
        lntm.models.stm(2, corpus, content=column)


def test_invalid_settings_are_refused(corpus) -> None:
    for penalty in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="content penalty"):
            lntm.models.stm(2, corpus, content="party", content_penalty=penalty)
    with pytest.raises(MissingColumnError, match="no column 'nothing'"):
        lntm.models.stm(2, corpus, content="nothing")
    with pytest.raises(ConfigError, match=r"level 'Green'.*'Left', 'Middle', 'Right'"):
        make(corpus).topics.at("Green")


@pytest.mark.long
def test_every_engine_fits_content_models(corpus) -> None:
    model = make(corpus, "~ age", dtype="float32")
    guide = lntm.guides.TaylorGuide(model)
    fit = VariationalEM(model, guide, progress=False, max_iterations=3, restarts=2)
    whole = fit.fit(corpus)
    assert model.topics.deviations.any()
    before = model.topics.probs.detach()
    assert whole.statistics is not None
    StepwiseEM(model, guide, whole.statistics).update(corpus[:10])
    assert not torch.equal(model.topics.probs, before)
    MonteCarloEM(model, max_epochs=2, num_transitions=10, progress=False).fit(corpus)
    assert torch.isfinite(model.topics.probs).all()


def test_whole_numbers_and_truth_values_make_levels(corpus) -> None:
    for values in ([2004, 2008], [True, False]):
        given = corpus.with_metadata({"group": values * (NUM_DOCS // 2)})
        levels = Levels.of(given, "group")
        assert levels.levels == tuple(sorted(values))
        again = Levels.from_json(json.loads(json.dumps(levels.to_json())))
        assert again == levels
        attached = again.encode(given).encodings["content"]
        assert attached[:2].tolist() == [levels.levels.index(value) for value in values]


@pytest.mark.slow
def test_fits_recover_the_deviations_of_levels(device) -> None:
    """In one of two topics, the second group has two different words."""
    rng = np.random.default_rng(0)
    topics = np.full((2, 2, 20), 0.01)
    topics[:, 0, :6] = topics[:, 1, 10:16] = 1.0
    topics[1, 0, :2], topics[1, 0, 6:8] = 0.01, 1.0
    topics /= topics.sum(2, keepdims=True)
    levels, theta = np.arange(300) % 2, rng.dirichlet([0.4, 0.4], 300)
    counts = np.stack([rng.multinomial(60, theta[d] @ topics[levels[d]]) for d in range(300)])
    metadata = {"party": np.array(["Left", "Right"])[levels]}
    corpus = Corpus.from_matrix(counts, [f"w{v}" for v in range(20)], metadata=metadata)
    model = lntm.models.stm(2, corpus, "~ party", "party").to(device)
    guide = lntm.guides.TaylorGuide(model)
    result = VariationalEM(model, guide, progress=False).fit(corpus)
    assert result.stop_reason == "converged"
    levels = ("Left", "Right")
    found = np.stack([model.topics.at(g).probs.detach().cpu().numpy() for g in levels])
    found = found[:, np.argsort(-found[0, :, 3])]
    np.testing.assert_allclose(found, topics, atol=0.02)
    telling = lntm.reports.level_words(model).groupby(["topic", "level"])["word"]
    own = {key: set(words) for key, words in telling}
    topic = int(model.topics.mean_probs[:, 3].argmax())
    assert own[topic, "Left"] >= {"w0", "w1"}
    assert own[topic, "Right"] >= {"w6", "w7"}


def test_levels_survive_saving_and_loading(corpus, tmp_path) -> None:
    model = make(corpus, "~ age")
    lntm.save_model(model, tmp_path / "model")
    again = lntm.load_model(tmp_path / "model")
    assert again.topics.content == LEVELS
    assert again.topics.penalty == model.topics.penalty
    assert torch.equal(again.topics.probs, model.topics.probs)
    path = tmp_path / "model" / "model.json"
    about = json.loads(path.read_text())
    for bad in ({"column": "party", "levels": ["Left", "Right"]}, ["party"]):
        about["config"]["content"] = bad
        path.write_text(json.dumps(about))
        with pytest.raises(ConfigError):
            lntm.load_model(tmp_path / "model")


# -------------------------------------------------------------------- reports


def test_level_words_are_the_most_distinctive_words(corpus) -> None:
    model = make(corpus)
    found = lntm.reports.level_words(model, top_n=2)
    assert found["level"].unique().tolist() == list(LEVELS.levels)
    probs = by_hand(model.topics)
    telling = probs * np.log(probs / probs.mean(0))
    best = np.argsort(-telling[2, 1])[:2]
    rows = found[(found["topic"] == 1) & (found["level"] == LEVELS.levels[2])]
    assert rows["word"].tolist() == [f"w{v}" for v in best]
    np.testing.assert_allclose(rows["probability"], probs[2, 1, best])
    np.testing.assert_allclose(rows["average"], probs.mean(0)[1, best])
    with torch.no_grad():
        model.topics.levels.zero_()
        model.topics.cells.zero_()
    assert lntm.reports.level_words(model).empty
    with pytest.raises(ConfigError, match="the same in all documents"):
        lntm.reports.level_words(plain_of(model, "Left"))
