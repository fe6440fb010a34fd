"""Meaning: topics that expect words near their own vectors."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import normalized_mutual_info_score

import torch_lntm as lntm
from torch_lntm.corpus import Corpus, WordVectors
from torch_lntm.errors import ConfigError
from torch_lntm.inference import DocumentHMC, MonteCarloEM, VariationalEM, transform
from torch_lntm.models import (
    ContentTopics,
    DirichletTopics,
    DynamicTopics,
    Keywords,
    Levels,
    Periods,
    TopicModel,
)
from torch_lntm.models.topics.meaning import COMPLETION_STEPS, PRIOR_TOKENS, Meaning

NUM_TOPICS, NUM_WORDS, DIMENSION = 3, 30, 4
VOCABULARY = [f"w{v}" for v in range(NUM_WORDS)]
NO_SUMS = {"due": torch.ones(()), "usual": torch.ones(())}


def vectors(num_words: int = NUM_WORDS, missing: int = 5, seed: int = 0) -> WordVectors:
    """Random vectors of all words but some."""
    rows = np.random.default_rng(seed).standard_normal((num_words, DIMENSION)).astype(np.float32)
    rows[3 : 3 + missing] = np.nan
    return WordVectors(rows)


def make_corpus(num_docs: int = 300, length: int = 8, seed: int = 0) -> tuple[Corpus, np.ndarray]:
    """Short documents whose topics follow the vectors, and their word probabilities."""
    rng = np.random.default_rng(seed)
    scores = 2.0 * vectors(missing=0).vectors @ rng.standard_normal((DIMENSION, NUM_TOPICS))
    topics = np.exp(scores).T / np.exp(scores).sum(0)[:, None]
    theta = rng.dirichlet(np.full(NUM_TOPICS, 0.2), num_docs)
    counts = np.stack([rng.multinomial(length, p) for p in theta @ topics])
    counts[0] += 1
    party = np.array(["left", "right"])[np.arange(num_docs) % 2]
    year = 2000 + np.arange(num_docs) % 3
    return Corpus.from_matrix(counts, VOCABULARY, metadata={"party": party, "year": year}), topics


def expected_counts(num_levels: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    size = (NUM_TOPICS, num_levels * NUM_WORDS)
    return 50 * torch.rand(size, generator=generator, dtype=torch.float64).pow(3)


def topics_of(kind: str = "shared", **settings: Any) -> DirichletTopics:
    """Topics in float64 whose prior has learned from some counts."""
    corpus, _ = make_corpus()
    options: dict[str, Any] = {"dtype": torch.float64, "smoothing": 0.1}
    options |= {"word_vectors": vectors(), "vector_strength": 40.0, **settings}
    topics: DirichletTopics
    if kind == "content":
        levels = Levels.of(corpus, "party")
        topics = ContentTopics(NUM_TOPICS, NUM_WORDS, levels, penalty=2.0, **options)
    elif kind == "time":
        topics = DynamicTopics(NUM_TOPICS, NUM_WORDS, Periods.of(corpus, "~ rw(year)"), **options)
    else:
        topics = DirichletTopics(NUM_TOPICS, NUM_WORDS, **options)
    topics.prepare_(corpus)
    for _ in range(8):
        topics.learn_(expected_counts(topics.num_levels), **NO_SUMS)
    return topics


def meaning_of(topics: Any) -> Meaning:
    assert isinstance(topics.meaning, Meaning)
    return topics.meaning


# -- the prior -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["shared", "keywords", "content", "time"])
def test_topics_with_vectors_keep_the_contract(kind: str) -> None:
    corpus, _ = make_corpus(8)
    lists = Keywords.of({"a": ["w1", "w4"], "b": ["w9"]}, VOCABULARY, 20.0)
    topics = topics_of(kind, **({"keywords": lists} if kind == "keywords" else {}))
    assert {f"meaning.{name}" for name in Meaning.fitted} <= topics.fitted_buffers
    exact = kind in ("shared", "keywords")
    batch = topics.encode(corpus).batch(dtype=torch.float64)
    lntm.testing.check_topics(topics, batch, exact_m_step=exact)


def test_words_follow_their_vectors_and_keep_their_frequency_without_one() -> None:
    corpus, _ = make_corpus()
    meaning = meaning_of(topics_of())
    rows, known = vectors().vectors.astype(np.float64), vectors().found
    frequencies = (corpus.word_totals + 0.5) / (corpus.word_totals + 0.5).sum()
    weights = (
        frequencies[known]
        * np.exp((rows[known] - rows[known].mean(0)) @ meaning.topic_vectors.numpy().T).T
    )
    expected = np.tile(frequencies, (NUM_TOPICS, 1))
    expected[:, known] = frequencies[known].sum() * weights / weights.sum(1, keepdims=True)
    np.testing.assert_allclose(meaning.expected().mT, expected, rtol=1e-6)


def test_the_m_step_adds_the_words_that_topics_expect() -> None:
    topics, counts = topics_of(), expected_counts()
    meaning = meaning_of(topics)
    topics.m_step(counts)
    tokens = counts + 0.1 + 40.0 * meaning.expected().mT
    torch.testing.assert_close(topics.probs.detach(), tokens / tokens.sum(1, keepdim=True))
    torch.testing.assert_close(topics.belief, 40.0 / (40.0 + counts.sum(1)))
    with topics.updated_often():
        topics.m_step(counts)
    torch.testing.assert_close(topics.probs.detach(), tokens / tokens.sum(1, keepdim=True))


def test_vectors_of_topics_maximise_the_tokens_due_to_them() -> None:
    topics, counts = topics_of(), expected_counts()
    meaning = meaning_of(topics)
    for _ in range(200):
        topics.learn_(counts, **NO_SUMS)
    prior = 40.0 * meaning.expected()
    due = counts.mT * prior / ((counts.mT - 1).clamp_min(0) + 0.1 + prior)
    due = due[meaning.found]
    alpha = meaning.coefficients.clone().requires_grad_()
    scores = (
        meaning.log_frequencies[meaning.found][:, None] + meaning.vectors[meaning.found] @ alpha.mT
    )
    loss = (due * scores.log_softmax(0)).sum() - alpha.square().sum() / 2
    (gradient,) = torch.autograd.grad(loss, alpha)
    assert float(gradient.abs().max()) < 1e-4 * float(due.sum())


def test_sums_predict_half_of_a_document_by_topics_that_never_met_it() -> None:
    corpus, _ = make_corpus(6)
    topics, counts = topics_of(), expected_counts()
    counts[0] *= 1e-4  # less than the own part of a document
    theta = torch.rand(6, NUM_TOPICS, dtype=torch.float64)
    theta /= theta.sum(1, keepdim=True)
    found = topics.prior_sums(counts, [(corpus.batch(dtype=torch.float64), theta)])
    prior = 40.0 * meaning_of(topics).expected().mT.numpy()
    probs, n, dense = topics.probs.detach().numpy(), counts.numpy(), corpus.to_scipy().toarray()

    def words(d: int, c: float) -> np.ndarray:
        own = theta[d].numpy()[:, None] * probs
        own *= dense[d] / own.sum(0)
        rest = np.maximum(n - own, 0) + 0.1 + c / 40.0 * prior
        return rest / (np.maximum(n.sum(1) - own.sum(1), 0) + NUM_WORDS * 0.1 + c)[:, None]

    halves, proportions = [], []
    for d, document in enumerate(dense):
        given = np.zeros(NUM_WORDS)
        for place, v in enumerate(document.nonzero()[0]):
            given[v] = document[v] // 2 if place % 2 == 0 else (document[v] + 1) // 2
        tokens = start = n.sum(1) / n.sum() * PRIOR_TOKENS
        for _ in range(COMPLETION_STEPS):
            posterior = tokens[:, None] * words(d, 40.0)
            tokens = start + posterior / posterior.sum(0) @ given
        halves.append(document - given)
        proportions.append(tokens / tokens.sum())

    def log_likelihood(c: float) -> float:
        predicted = [z @ words(d, c) for d, z in enumerate(proportions)]
        return float((halves * np.log(predicted)).sum())

    # The sums differ by the derivative of the log likelihood in log c.
    slope = 40.0 * (log_likelihood(40.01) - log_likelihood(39.99)) / 0.02
    assert float(found["due"] - found["usual"]) == pytest.approx(slope, rel=1e-5)
    both = zip((corpus[:3], corpus[3:]), theta.split(3), strict=True)
    parts = [(half.batch(dtype=torch.float64), t) for half, t in both]
    for name, value in topics.prior_sums(counts, parts).items():
        torch.testing.assert_close(value, found[name])


def test_levels_of_equal_words_have_the_sums_of_shared_topics() -> None:
    corpus, _ = make_corpus(6)
    shared, content, counts = topics_of(), topics_of("content"), expected_counts()
    meaning_of(content).load_state_dict(meaning_of(shared).state_dict())
    content.set_(shared.probs.detach())
    theta = torch.full((6, NUM_TOPICS), 1 / NUM_TOPICS, dtype=torch.float64)
    batch = content.encode(corpus).batch(dtype=torch.float64)
    found = content.prior_sums(torch.cat([counts / 2, counts / 2], 1), [(batch, theta)])
    torch.testing.assert_close(found, shared.prior_sums(counts, [(batch, theta)]))


def test_the_strength_follows_the_sums_within_its_bounds() -> None:
    topics, found = DirichletTopics(NUM_TOPICS, NUM_WORDS, word_vectors=vectors()), []
    topics.prepare_(make_corpus()[0])
    for due in (1.0, 1.5, *[1e9] * 8, *[1e-9] * 9):
        topics.learn_(expected_counts(), due=torch.tensor(due), usual=torch.ones(()))
        found.append(float(meaning_of(topics).strength))
    assert found[:3] == [10.0, 22.5, 90.0]
    assert (found[9], found[-1]) == (1e5, 1.0)
    for due in (float("nan"), 1.0):
        topics.learn_(expected_counts(), due=torch.tensor(due), usual=torch.ones(()))
        assert meaning_of(topics).strength.isnan()


def test_vectors_of_many_dimensions_keep_their_principal_components() -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((400, 6)) @ rng.standard_normal((6, 150))
    few, many = (Meaning(WordVectors(x.astype(np.float32)), 2) for x in (rows[:, :90], rows))
    assert few.coefficients.shape == (2, 90)
    assert many.coefficients.shape == (2, 100)
    assert many.topic_vectors.shape == (2, 150)
    products = rows - rows.mean(0)
    products = products @ products.T / np.square(products).sum(1).mean()
    found = (many.vectors @ many.vectors.mT / many.vectors.square().sum(1).mean()).numpy()
    np.testing.assert_allclose(found, products, atol=1e-4)


@pytest.mark.parametrize("factor", [1.0, 300.0])
def test_vectors_of_few_directions_and_a_word_of_most_tokens_do_not_stop_learning(
    factor: float,
) -> None:
    rng = np.random.default_rng(1 if factor == 1.0 else 2)
    rows = rng.standard_normal((60, 2)) @ rng.standard_normal((2, 100))
    rows[0] *= factor
    totals = np.full((1, 60), 500)
    totals[0, 0] = 400_000
    meaning = Meaning(WordVectors(rows.astype(np.float32)), 3, 1e5)
    meaning.prepare_(Corpus.from_matrix(totals))
    counts = torch.from_numpy(30_000 * rng.gamma(0.3, 1.0, (60, 3))).float()
    for _ in range(60):
        meaning.learn_(counts, torch.full_like(counts, 0.05), **NO_SUMS)
    prior = 1e5 * meaning.expected()
    due = (counts * prior / ((counts - 1).clamp_min(0) + 0.05 + prior)).double()
    alpha = meaning.coefficients.double().requires_grad_()
    scores = meaning.log_frequencies.double()[:, None] + meaning.vectors.double() @ alpha.mT
    loss = (due * scores.log_softmax(0)).sum() - alpha.square().sum() / 2
    (gradient,) = torch.autograd.grad(loss, alpha)
    assert float(gradient.abs().max()) < 1e-3 * float(due.sum())


@pytest.mark.parametrize("scale", [1e-43, 1e-20, 0.7, 1e20, 3e37])
def test_equal_vectors_tell_nothing_and_others_do_at_any_scale(scale: float) -> None:
    rows = np.tile(np.array([0.1, 0.3, 0.9]), (1001, 1))
    assert Meaning(WordVectors((scale * rows).astype(np.float32)), 2).vectors.abs().max() < 1e-6
    rows = scale * np.random.default_rng(0).standard_normal((50, 3))
    meaning = Meaning(WordVectors(rows.astype(np.float32)), 2)
    assert bool(meaning.axes.isfinite().all())
    assert scale < 1e-30 or float(meaning.vectors.square().mean()) == pytest.approx(1.0)


# -- fits ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ctm", "iftm", "lda", "content", "time", "bursty"])
def test_fits_of_every_model_learn_what_topics_mean(name: str) -> None:
    corpus, _ = make_corpus()
    options: dict[str, Any] = {"word_vectors": vectors(missing=0)}
    if name in ("content", "time"):
        options["content"] = "party" if name == "content" else "~ rw(year)"
        model = lntm.models.stm(NUM_TOPICS, corpus, **options)
    else:
        family = lntm.models.ctm if name == "bursty" else getattr(lntm.models, name)
        model = (
            family(NUM_TOPICS, corpus, bursty=name == "bursty", **options)
            if (name != "lda")
            else lntm.models.lda(NUM_TOPICS, corpus, **options)
        )
    MonteCarloEM(model, max_epochs=4, progress=False).fit(corpus)
    meaning = meaning_of(model.topics)
    assert float(meaning.strength) > 0
    assert bool(meaning.coefficients.abs().amax(1).gt(0.1).all())
    assert bool(((model.topics.belief > 0) & (model.topics.belief < 1)).all())


@pytest.mark.slow
def test_vectors_help_to_predict_short_documents_and_other_vectors_do_not() -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((400, 8)).astype(np.float32)
    scores = rows @ rng.standard_normal((8, 4))
    probs = np.exp(scores).T / np.exp(scores).sum(0)[:, None]
    theta = rng.dirichlet(np.full(4, 0.2), 600)
    counts = np.stack([rng.multinomial(10, p) for p in theta @ probs])
    words = [f"w{v}" for v in range(400)]
    train, test = (Corpus.from_matrix(x, words) for x in (counts[:200], counts[200:]))
    scores = []
    for given in (None, rows, rng.permutation(rows)):
        model = lntm.models.ctm(4, train, word_vectors=given)
        MonteCarloEM(model, max_epochs=20, progress=False).fit(train)
        scores.append(lntm.evaluation.document_completion(model, test, progress=False))
    for other in (scores[0], scores[2]):
        gain, error = lntm.evaluation.paired_difference(scores[1], other)
        assert gain > 0.05 + 3 * error


@pytest.mark.slow
def test_an_interrupted_fit_continues_with_the_same_meaning(tmp_path: Path) -> None:
    corpus, _ = make_corpus()

    def fitted(**options: Any) -> TopicModel:
        model = lntm.models.ctm(NUM_TOPICS, corpus, word_vectors=vectors())
        MonteCarloEM(model, max_epochs=6, min_gain=0.0, progress=False).fit(corpus, **options)
        return model

    path = tmp_path / "fit.safetensors"
    fitted(checkpoint=path, checkpoint_seconds=0.0, callback=lambda x: x["iteration"] == 3)
    found, expected = fitted(checkpoint=path), fitted()
    torch.testing.assert_close(found.state_dict(), expected.state_dict(), rtol=0.0, atol=0.0)
    lntm.io.save_model(expected, tmp_path / "model")
    loaded = lntm.io.load_model(tmp_path / "model")
    torch.testing.assert_close(loaded.state_dict(), expected.state_dict(), rtol=0.0, atol=0.0)
    assert loaded.topics.meaning.is_learned


@pytest.mark.slow
def test_a_fit_goes_on_with_the_strength_with_which_it_began(tmp_path: Path) -> None:
    corpus, _ = make_corpus()
    for strength in (50.0, 60.0, None):
        options: dict[str, Any] = {"word_vectors": vectors(), "vector_strength": strength}
        topics = DirichletTopics(NUM_TOPICS, NUM_WORDS, **options)
        model = TopicModel(lntm.models.LogisticNormalPrior(NUM_TOPICS), topics)
        engine = MonteCarloEM(model, max_epochs=1, progress=False)
        with nullcontext() if strength == 50.0 else pytest.raises(ConfigError, match="another fit"):
            engine.fit(corpus, checkpoint=tmp_path / "fit", checkpoint_seconds=0.0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["shared", "content"])
def test_another_fit_learns_anew_and_one_from_the_model_goes_on(kind: str) -> None:
    corpus, _ = make_corpus()
    prior = lntm.models.LogisticNormalPrior(NUM_TOPICS, dtype=torch.float64)
    model = TopicModel(prior, topics_of(kind, vector_strength=None), VOCABULARY)

    def fitted(**options: Any) -> dict[str, torch.Tensor]:
        MonteCarloEM(model, max_epochs=4, progress=False, **options).fit(corpus)
        return {name: value.clone() for name, value in model.state_dict().items()}

    found, rounds = fitted(), meaning_of(model.topics).rounds.item()
    torch.testing.assert_close(fitted(), found, rtol=0.0, atol=0.0)
    fitted(start="model")
    assert rounds < int(meaning_of(model.topics).rounds) < 2 * rounds


@pytest.mark.slow
def test_a_given_strength_stays_and_variational_em_learns_too() -> None:
    corpus, _ = make_corpus()
    model = lntm.models.ctm(NUM_TOPICS, corpus, word_vectors=vectors(), vector_strength=77.0)
    guide = lntm.guides.TaylorGuide(model)
    VariationalEM(model, guide, max_iterations=3, progress=False).fit(corpus)
    assert float(meaning_of(model.topics).strength) == 77.0
    assert bool(meaning_of(model.topics).coefficients.any())


@pytest.mark.slow
def test_variational_em_without_stepwise_epochs_learns_too() -> None:
    corpus, _ = make_corpus()
    model = lntm.models.ctm(NUM_TOPICS, corpus, word_vectors=vectors())
    guide = lntm.guides.TaylorGuide(model)
    VariationalEM(model, guide, start="model", max_iterations=3, progress=False).fit(corpus)
    meaning = meaning_of(model.topics)
    assert float(meaning.strength) > 0
    assert bool(meaning.coefficients.any())


@pytest.mark.slow
def test_topics_of_two_languages_meet_by_their_vectors() -> None:
    rng = np.random.default_rng(0)
    num_words, num_topics, num_docs = 300, 6, 1200
    rows = rng.standard_normal((num_words, 16))
    scores = 1.2 * rows @ rng.standard_normal((16, num_topics)) + rng.gumbel(size=(num_words, 1))
    probs = np.exp(scores).T / np.exp(scores).sum(0)[:, None]
    theta, language = rng.dirichlet(np.full(num_topics, 0.15), num_docs), np.arange(num_docs) % 2
    counts = np.zeros((num_docs, 2, num_words), dtype=np.int64)
    for document, (mixture, row) in enumerate(zip(theta @ probs, language, strict=True)):
        counts[document, row] = rng.multinomial(15, mixture)
    shifted = rows + 0.3 * rng.standard_normal(rows.shape)
    given = WordVectors(np.concatenate([rows, shifted]).astype(np.float32))
    words = [f"{name}{v}" for name in ("en", "de") for v in range(num_words)]
    corpus = Corpus.from_matrix(counts.reshape(num_docs, -1), words)
    scores = {}
    for start in ("lda", "vectors"):
        model = lntm.models.ctm(num_topics, corpus, word_vectors=given)
        MonteCarloEM(model, start=start, max_epochs=20, progress=False).fit(corpus)
        found = transform(DocumentHMC(model), corpus, progress=False).theta.argmax(1).numpy()
        truth = normalized_mutual_info_score(theta.argmax(1), found)
        scores[start] = truth, normalized_mutual_info_score(language, found)
    assert scores["vectors"][0] > scores["lda"][0] + 0.2
    assert scores["vectors"][1] < 0.05 < 0.4 < scores["lda"][1]


# -- new words, and errors -------------------------------------------------------------------------


@pytest.mark.slow
def test_a_model_meets_words_that_it_has_never_seen(tmp_path: Path) -> None:
    corpus, _ = make_corpus()
    model = lntm.models.ctm(NUM_TOPICS, corpus, word_vectors=vectors(missing=0))
    MonteCarloEM(model, max_epochs=6, progress=False).fit(corpus)
    meaning = meaning_of(model.topics)
    expected = meaning.expected()
    like = (expected / expected.sum(1, keepdim=True)).argmax(0).tolist()  # of one topic each
    new = {f"new{k}": vectors(missing=0).vectors[v] for k, v in enumerate(like)}
    longer = model.with_words([*new, "w1", "unknown"], new)
    assert longer.vocabulary is not None
    assert longer.vocabulary[NUM_WORDS:] == tuple(new)
    known = longer.topics.probs.detach()[:, :NUM_WORDS]
    old = model.topics.probs.detach()
    torch.testing.assert_close(known / known.sum(1, keepdim=True), old, rtol=0.0, atol=0.02)
    found = longer.topics.probs.detach()[:, NUM_WORDS:]
    smoothing, c = model.topics.smoothing, float(meaning.strength)
    share = 0.5 / torch.from_numpy(corpus.word_totals[like] + 0.5)  # of a word without tokens
    tokens = smoothing + c * meaning.expected()[like].mT * share
    sizes = meaning.tokens + c + smoothing * NUM_WORDS
    torch.testing.assert_close(found, (tokens / sizes[:, None]).float(), rtol=0.1, atol=1e-5)
    assert meaning.vectors.shape[0] == NUM_WORDS
    lntm.io.save_model(longer, tmp_path / "longer")
    loaded = lntm.io.load_model(tmp_path / "longer")
    torch.testing.assert_close(loaded.state_dict(), longer.state_dict(), rtol=0.0, atol=0.0)
    texts = Corpus.from_matrix(np.eye(3, dtype=np.int64) * 6, list(new))
    theta = transform(DocumentHMC(model), texts, new_words=new, progress=False).theta
    texts = texts.with_vocabulary(longer.vocabulary)
    assert torch.equal(theta, transform(DocumentHMC(longer), texts, progress=False).theta)


@pytest.mark.parametrize("fitted", [True, False])
def test_known_words_keep_their_shares_among_each_other(fitted: bool) -> None:
    lists = Keywords.of({"a": ["w1", "w4"], "b": ["w9"]}, VOCABULARY, 20.0)
    topics = topics_of(keywords=lists)
    topics.set_(expected_counts() + 0.01)
    if fitted:
        topics.m_step(expected_counts())
    known = topics.with_words(vectors(4, 0)).probs.detach()[:, :NUM_WORDS]
    torch.testing.assert_close(known / known.sum(1, keepdim=True), topics.probs.detach())


def test_a_model_that_knows_all_words_stays_the_same() -> None:
    model = lntm.models.ctm(NUM_TOPICS, make_corpus(8)[0], word_vectors=vectors())
    table = {"w1": np.ones(DIMENSION)}
    assert model.with_words(["w1", "w2"], table) is model
    assert model.with_words(["new", "w2"], table) is model
    texts = Corpus.from_matrix(np.ones((2, 2), dtype=np.int64), ["w1", "new"])
    with pytest.warns(UserWarning, match="dropped 2 of 4 tokens"):
        theta = transform(DocumentHMC(model), texts, new_words=table, progress=False).theta
    assert theta.shape == (2, NUM_TOPICS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"word_vectors": vectors(20)}, "20 words"),
        (
            {"word_vectors": WordVectors(np.full((NUM_WORDS, 2), np.nan, np.float32))},
            "no word has a vector",
        ),
        ({"word_vectors": vectors(), "vector_strength": 0.0}, "vector strength"),
        ({"vector_strength": 50.0}, "give word_vectors"),
    ],
)
def test_unusable_vectors_are_refused(options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DirichletTopics(NUM_TOPICS, NUM_WORDS, **options)


def test_models_without_vectors_take_no_new_words() -> None:
    corpus, _ = make_corpus()
    for model in (
        lntm.models.ctm(NUM_TOPICS, corpus),
        lntm.models.stm(NUM_TOPICS, corpus, content="party", word_vectors=vectors()),
    ):
        with pytest.raises(ConfigError, match="new words"):
            model.with_words(["new"], {"new": np.ones(DIMENSION)})
