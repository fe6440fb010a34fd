"""Estimators follow scikit-learn's conventions, and agree with models, guides and engines."""

from __future__ import annotations

import functools
import math
import pickle
import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse as sp
import torch
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import MaxAbsScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import torch_lntm as lntm
from torch_lntm import recipes
from torch_lntm.errors import ConfigError, CorpusError

#: Fits take a second or more each.
pytestmark = pytest.mark.slow

FAST = {"max_iter": 1, "start_epochs": 2, "stepwise_epochs": 1}
SETTINGS = {
    "ctm": (lntm.CorrelatedTopicModel, {"posterior": "taylor", **FAST}),
    "lntm": (lntm.LogisticNormalTopicModel, {"max_iter": 2, "start": "documents"}),
    "iftm": (lntm.IndependentFactorTopicModel, {"n_sources": 2, "posterior": "factor", **FAST}),
    "lda": (lntm.AspectModel, {"posterior": "vb", **FAST}),
}
ESTIMATORS = {
    name: functools.partial(make, 3, random_state=0, device="cpu", **settings)
    for name, (make, settings) in SETTINGS.items()
}
TEXTS = [
    "goal match team goal league",
    "match team player goal",
    "market bank stock shares market",
    "bank shares stock price",
    "league player team match",
    "price market bank trade",
] * 4
WORDS = sorted({word for text in TEXTS for word in text.split()})


def counts(num_docs: int = 30, num_words: int = 8, seed: int = 0) -> sp.csr_matrix:
    """Documents of two kinds, which do not share words."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(2, size=num_docs)[:, None]
    rates = np.where(np.arange(num_words) % 2 == kind, 2.0, 0.0)
    return sp.csr_matrix(rng.poisson(rates))


@pytest.fixture(scope="module")
def fitted():
    return ESTIMATORS["ctm"]().fit(counts())


# -- fitting -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_fit_finds_the_two_kinds_of_documents(name):
    X = counts(60)
    estimator = ESTIMATORS[name]()
    theta = estimator.fit_transform(X)
    assert theta.shape == (60, 3)
    np.testing.assert_allclose(theta.sum(1), 1.0, rtol=1e-5)
    assert estimator.components_.shape == (3, 8)
    np.testing.assert_allclose(estimator.components_.sum(1), 1.0, rtol=1e-5)
    # Rows of the two kinds have words in even and in odd columns.
    even = estimator.components_[:, ::2].sum(1)
    mixed = theta @ even
    is_even = X.toarray()[:, ::2].sum(1) > 0
    assert mixed[is_even].mean() > mixed[~is_even].mean() + 0.3
    correlation = estimator.topic_correlation_
    np.testing.assert_allclose(correlation, correlation.T)
    np.testing.assert_allclose(np.diag(correlation), 1.0)
    assert estimator.model_.name == name
    assert name != "iftm" or estimator.mixing_.shape == (3, 2)
    assert estimator.n_iter_ >= 1
    assert estimator.stop_reason_ in ("converged", "stopped_early", "max_iterations")


def test_a_fit_equals_the_recipes_fit():
    X = counts()
    estimator = ESTIMATORS["ctm"]().set_params(random_state=np.random.RandomState(7)).fit(X)
    seed = int(np.random.RandomState(7).randint(2**31 - 1))
    smoothing = 0.05 * min(1.0, X.sum() / (3 * 8))
    model = lntm.models.ctm(3, 8, seed=seed, topic_smoothing=smoothing)
    guide = lntm.guides.TaylorGuide(model)
    options = {"max_iterations": 1, "start_epochs": 2, "stepwise_epochs": 1, "progress": False}
    lntm.inference.VariationalEM(model, guide, seed=seed, **options).fit(X)
    np.testing.assert_array_equal(estimator.components_, model.topics.probs.detach().numpy())


def test_auto_chooses_a_posterior_by_the_documents(monkeypatch):
    make = lntm.CorrelatedTopicModel
    monkeypatch.setattr(recipes, "MAX_VISITS", 1)
    estimator = make(2, random_state=0, num_transitions=1).fit(counts())
    assert len(estimator.history_) == 4  # the fewest of a large corpus
    estimator = make(2, max_iter=1, random_state=0).fit(counts())
    assert estimator.recipe_.posterior == "hmc"
    assert len(estimator.history_) == 1  # one that was asked for


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"posterior": "hmc", "restarts": 3}, "restarts is"),
        ({"n_components": None}, "n_components is None"),
        ({"n_components": 0}, "n_components is 0"),
        ({"max_iter": 0}, "max_iter is 0"),
        ({"device": "gpu"}, "device 'gpu'"),
        ({"posterior": "vb", "score_method": "harmonic", **FAST}, "score_method is 'harmonic'"),
    ],
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        lntm.AspectModel(**options).fit(counts()).score(counts())


def test_ctrl_c_leaves_a_fitted_estimator_and_ends_a_search_of_scikit_learn(monkeypatch):
    maximise = lntm.inference.Statistics.maximise
    calls = []

    def interrupted(self, model):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        maximise(self, model)

    monkeypatch.setattr(lntm.inference.Statistics, "maximise", interrupted)
    options = {"start_epochs": 1, "stepwise_epochs": 1, "tolerance": 0.0}
    estimator = lntm.CorrelatedTopicModel(2, posterior="taylor", max_iter=99, **options)
    search = GridSearchCV(estimator, {"n_components": [2, 3]}, cv=2)
    with pytest.raises(KeyboardInterrupt):
        search.fit(counts(40))
    assert len(calls) == 4
    assert not hasattr(search, "cv_results_")
    calls.clear()
    estimator.fit(counts(5))
    assert estimator.stop_reason_ == "interrupted"
    assert estimator.transform(counts(5)).shape == (5, 2)


@pytest.mark.parametrize("posterior", ["taylor", "hmc"])
def test_partial_fit_continues_a_fit_made_in_inference_mode(posterior):
    X = counts(40)
    estimators = [
        lntm.CorrelatedTopicModel(3, posterior=posterior, max_iter=2, random_state=0)
        for _ in range(2)
    ]
    with torch.inference_mode():
        estimators[0].fit(X).partial_fit(X)
    estimators[1].fit(X).partial_fit(X)
    for estimator in estimators:
        estimator.partial_fit(X)
    np.testing.assert_array_equal(estimators[0].components_, estimators[1].components_)


def test_auto_uses_an_accelerator(accelerator):
    X = counts(12)
    estimator = ESTIMATORS["ctm"]().set_params(device="auto").fit(X)
    assert estimator.model_.device.type == accelerator.type
    on_cpu = ESTIMATORS["ctm"]().fit(X)
    np.testing.assert_allclose(estimator.components_, on_cpu.components_, atol=1e-3)
    np.testing.assert_allclose(estimator.transform(X), on_cpu.transform(X), atol=1e-2)
    assert estimator.score(X) == pytest.approx(on_cpu.score(X), abs=1e-2)
    assert estimator.posteriors(X).mean.device.type == accelerator.type
    assert len(estimator.partial_fit(X).topics(X)) == 3
    assert estimator.topic_correlation_.shape == (3, 3)


# -- documents -----------------------------------------------------------------------------------


def test_all_forms_of_counts_give_equal_results(fitted):
    X = counts(10, seed=1)
    theta = fitted.transform(X)
    for form in (X.toarray(), X.tocoo(), sp.csr_array(X), X.astype(float), X.tolil()):
        np.testing.assert_array_equal(fitted.transform(form), theta)
    table = pa.Table.from_pandas(pd.DataFrame(X.toarray(), columns=list("abcdefgh")))
    by_name = ESTIMATORS["ctm"]().fit(pd.DataFrame(counts().toarray(), columns=list("abcdefgh")))
    np.testing.assert_array_equal(by_name.transform(table), theta)
    np.testing.assert_array_equal(fitted.transform(lntm.Corpus.from_matrix(X)), theta)
    again = ESTIMATORS["ctm"]().fit(lntm.Corpus.from_matrix(counts()))
    np.testing.assert_array_equal(again.transform(X), theta)
    assert again.n_features_in_ == 8


def test_transform_returns_the_mode_of_the_posterior(fitted):
    X = counts(10, seed=1)
    posterior = fitted.posteriors(X)
    np.testing.assert_allclose(fitted.transform(X), posterior.theta_mode().numpy(), atol=0.02)
    assert posterior.mean.shape == (10, 3)
    assert posterior.covariance.shape == (10, 3, 3)
    lower, upper = posterior.theta_interval(0.8, num_draws=100)
    assert bool((lower <= upper).all())
    assert posterior.num_docs == 10


def test_documents_without_words_have_the_priors_proportions(fitted):
    X = counts(6, seed=2).tolil()
    X[2] = 0
    theta = fitted.transform(X)
    prior = torch.softmax(fitted.model_.prior.loc, 0).detach().numpy()
    np.testing.assert_allclose(theta[2], prior, rtol=1e-5)
    np.testing.assert_allclose(fitted.transform(np.zeros((2, 8))), [prior, prior], rtol=1e-5)
    refitted = clone(fitted).fit(X)
    assert np.isfinite(refitted.components_).all()
    with pytest.raises(CorpusError, match="no tokens"):
        clone(fitted).fit(np.zeros((3, 8)))


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (-np.ones((3, 8)), "Negative values in data passed to CorrelatedTopicModel.fit"),
        (np.full((3, 8), 0.5), "whole numbers .*give raw counts, not weights such as tf-idf"),
        (TEXTS, "expected counts, got texts .*put a CountVectorizer"),
        (pd.Series(TEXTS), "expected counts, got texts"),
        (pd.DataFrame({"n": [1], "text": TEXTS[:1]}), "expected counts, got texts"),
        ([{"text": text} for text in TEXTS], "expected counts, got texts or dictionaries; put a"),
        (train_test_split(lntm.example_corpus())[0], r"give them corpus\.to_scipy\(\)"),
    ],
)
def test_values_that_are_not_counts_are_refused(X, message):
    with pytest.raises(ValueError, match=message):
        ESTIMATORS["ctm"]().fit(X)


def test_an_estimator_before_its_fit_raises():
    for method in ("transform", "score", "topics"):
        with pytest.raises(NotFittedError):
            getattr(lntm.CorrelatedTopicModel(), method)(counts())


# -- scores --------------------------------------------------------------------------------------


def test_scores_equal_the_scores_of_evaluation(fitted):
    X = counts(20, seed=3)
    corpus = lntm.Corpus.from_matrix(X)
    expected = lntm.evaluation.document_completion(fitted.model_, corpus)
    assert expected.theta == "exact"
    assert fitted.score(X) == expected.nats_per_token
    assert math.isclose(fitted.perplexity(X), expected.perplexity)
    assert torch.equal(fitted.held_out(X).log_predictive, expected.log_predictive)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lntm.LNTMWarning)
        other = clone(fitted).set_params(score_method="importance").fit(counts())
        expected = lntm.evaluation.log_likelihood(other.model_, corpus, "importance")
        assert other.score(X) == expected.nats_per_token


# -- partial_fit ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ESTIMATORS)
def test_partial_fit_learns_from_later_documents(name):
    X = counts(60)
    is_even = X.toarray()[:, ::2].sum(1) > 0
    odd = X[~is_even]
    estimator = ESTIMATORS[name]().partial_fit(X[is_even])
    assert estimator.score(odd) < math.log(0.1)  # words that have not been seen
    for _ in range(3):
        assert estimator.partial_fit(odd) is estimator
    assert estimator.score(odd) > math.log(0.2)  # of four words
    np.testing.assert_allclose(estimator.transform(X).sum(1), 1.0, rtol=1e-5)


def test_partial_fit_continues_a_fit():
    X = counts(40)
    estimator = ESTIMATORS["ctm"]().fit(X)
    before = estimator.components_
    shares = {t.topic: t.share for t in estimator.topics(vocabulary=list("abcdefgh"))}
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares == pytest.approx({t.topic: t.share for t in estimator.topics(X)}, abs=0.05)
    assert estimator.partial_fit(X[:2]).topics()[0].share is None
    # Two documents of forty weigh little.
    assert 0 < np.abs(estimator.components_ - before).max() < 0.1
    unchanged = estimator.components_
    estimator.partial_fit(np.zeros((3, 8)))
    np.testing.assert_array_equal(estimator.components_, unchanged)
    with pytest.raises(ValueError, match="9 features"):
        estimator.partial_fit(np.ones((3, 9)))


# -- names ---------------------------------------------------------------------------------------


def test_words_come_from_a_vectorizer_its_vocabulary_or_a_frame():
    vectorizer = CountVectorizer().fit(TEXTS)
    X = vectorizer.transform(TEXTS)
    named = [vectorizer, vectorizer.vocabulary_, vectorizer.get_feature_names_out(), WORDS]
    for vocabulary in named:
        estimator = ESTIMATORS["ctm"](vocabulary=vocabulary).fit(X)
        assert estimator.model_.vocabulary == tuple(WORDS)
    assert clone(ESTIMATORS["ctm"](vocabulary=vectorizer)).fit(X).model_.vocabulary == tuple(WORDS)
    frame = pd.DataFrame(X.toarray(), columns=WORDS)
    estimator = ESTIMATORS["ctm"]().fit(frame)
    assert estimator.model_.vocabulary == tuple(WORDS)
    assert list(estimator.feature_names_in_) == WORDS
    with pytest.raises(ValueError, match="feature names"):
        estimator.transform(frame[WORDS[::-1]])
    [first, *_] = estimator.topics(frame, top_n=3)
    assert set(first.words) <= set(WORDS)
    assert len(first.words) == 3
    assert first.share == max(topic.share for topic in estimator.topics(frame))
    with pytest.raises(CorpusError, match="in the order of the frame's columns"):
        ESTIMATORS["ctm"](vocabulary=WORDS[::-1]).fit(pd.DataFrame(X.toarray(), columns=WORDS))


def test_a_model_in_a_pipeline_gets_its_words_from_the_vectorizer():
    vectorizer, model = CountVectorizer(), ESTIMATORS["ctm"]()
    make_pipeline(vectorizer, model).fit(TEXTS)
    unnamed, named = model.topics()[0].words, model.topics(vocabulary=vectorizer)[0].words
    assert [WORDS[int(word.removeprefix("#"))] for word in unnamed] == list(named)
    assert model.model_.vocabulary is None


def test_output_can_be_a_data_frame_with_names(fitted):
    names = [f"correlatedtopicmodel{k}" for k in range(3)]
    assert list(fitted.get_feature_names_out()) == names
    frame = pd.DataFrame(counts(5).toarray(), index=list("abcde"))
    estimator = ESTIMATORS["ctm"]().set_output(transform="pandas")
    theta = estimator.fit_transform(frame)
    assert list(theta.columns) == names
    assert list(theta.index) == list("abcde")
    corpus = lntm.Corpus.from_matrix(counts(5))
    assert list(estimator.transform(corpus).columns) == names


# -- among scikit-learn's tools ------------------------------------------------------------------


def test_an_estimator_works_in_a_pipeline_and_a_grid_search():
    labels = [0, 0, 1, 1, 0, 1] * 4
    pipeline = make_pipeline(CountVectorizer(), ESTIMATORS["lda"](), LogisticRegression(C=100.0))
    search = GridSearchCV(pipeline, {"aspectmodel__n_components": [1, 2]}, cv=2)
    search.fit(TEXTS, labels)
    assert search.best_params_ == {"aspectmodel__n_components": 2}
    assert search.score(TEXTS, labels) > 0.9
    unknown = search.best_estimator_[:-1].transform(["zzz", ""])
    np.testing.assert_allclose(unknown.sum(1), 1.0, rtol=1e-5)


def test_from_model_wraps_a_model_from_a_file(fitted, tmp_path):
    X = counts(9, seed=4)
    lntm.save_model(fitted.model_, tmp_path / "model")
    model = lntm.load_model(tmp_path / "model")
    twin = lntm.CorrelatedTopicModel.from_model(model, posterior="taylor", device="cpu")
    assert pickle.loads(pickle.dumps(fitted)).get_params() == fitted.get_params()
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(twin)).transform(X), twin.transform(X))
    assert twin.n_components == 3
    np.testing.assert_allclose(twin.transform(X), fitted.transform(X), atol=1e-6)
    assert twin.score(X) == pytest.approx(fitted.score(X))
    with pytest.raises(ConfigError, match="has none; call fit"):
        twin.partial_fit(X)
    assert clone(twin).fit(X).partial_fit(X).components_.shape == (3, 8)
    with pytest.raises(ConfigError, match=r"AspectModel is an estimator of lda, .*ctm"):
        lntm.AspectModel.from_model(model)


@pytest.mark.parametrize("source", ["vocabulary", "corpus", "frame"])
def test_frames_of_other_words_are_refused(source) -> None:
    words = [f"w{v}" for v in range(8)]
    frame = pd.DataFrame(counts().toarray(), columns=words)
    corpus = lntm.Corpus.from_matrix(counts(), words)
    X = {"vocabulary": counts(), "corpus": corpus, "frame": frame}[source]
    vocabulary = words if source == "vocabulary" else None
    estimator = lntm.CorrelatedTopicModel(2, max_iter=1, vocabulary=vocabulary).fit(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(estimator.transform(frame), estimator.transform(corpus))
    for other in (words[::-1], ["unknown", *words[1:]], [*words[1:], "unknown"]):
        with pytest.raises(ValueError, match=r"words of the fit in their order|feature names"):
            estimator.transform(frame.set_axis(other, axis=1))


def test_parameters_are_those_of_the_model_and_the_engines() -> None:
    params = lntm.CorrelatedTopicModel().get_params()
    assert (params["topic_smoothing"], params["restarts"], params["bursty"]) == (None, 1, False)
    assert not {"prevalence", "num_topics"} & {*params}
    assert {"concentration", "topics_update"} <= {*lntm.AspectModel().get_params()}
    with pytest.raises(TypeError, match="colour"):
        lntm.AspectModel(2, colour=1)
    search = GridSearchCV(ESTIMATORS["ctm"](), {"topic_smoothing": [0.01, 5.0]}, cv=2)
    search.fit(counts(40))
    assert search.best_params_ == {"topic_smoothing": 0.01}
    changed = clone(search.best_estimator_).set_params(topic_smoothing=0.7).fit(counts())
    assert changed.model_.topics.smoothing == 0.7


def test_keywords_are_column_names_of_a_data_frame() -> None:
    rng = np.random.default_rng(0)
    counts = rng.multinomial(20, rng.dirichlet(np.full(8, 0.3), 40))
    frame = pd.DataFrame(counts, columns=list("abcdefgh"))
    settings = {"keywords": {"one": ["g", "h"]}, "posterior": "taylor", "random_state": 0}
    estimator = lntm.CorrelatedTopicModel(2, max_iter=1, device="cpu", **settings)
    clone(estimator).fit(frame)
    estimator.fit(frame)
    assert estimator.model_.topics.keywords.columns == ((6, 7),)
    assert estimator.model_.topic_names == ("one", "1")
    estimator.set_params(vocabulary=list("abcdefgh")).fit(counts)
    assert estimator.model_.topics.keywords.columns == ((6, 7),)
    with pytest.raises(ConfigError, match="keywords is "):
        lntm.LogisticNormalTopicModel(2, **settings).fit(frame)


def test_word_vectors_are_found_by_column_or_by_word() -> None:
    X, words = counts(40, seed=5), list("abcdefgh")
    table = np.random.default_rng(0).normal(size=(8, 2))
    settings = {"max_iter": 2, "posterior": "taylor", "random_state": 0, "device": "cpu"}
    by_column = lntm.CorrelatedTopicModel(2, word_vectors=table, **settings).fit(X)
    mapping = dict(zip(words[::-1], table[::-1], strict=True))
    by_word = lntm.CorrelatedTopicModel(2, word_vectors=mapping, vocabulary=words, **settings)
    assert (clone(by_word).fit(X).transform(X) == by_column.transform(X)).all()
    assert (by_column.model_.topics.belief > 0).all()
    with pytest.raises(ConfigError, match="row for each of 8 words"):
        lntm.AspectModel(2, word_vectors=table[:3], **settings | {"posterior": "vb"}).fit(X)
    with pytest.raises(ConfigError, match="need the words of the columns"):
        lntm.CorrelatedTopicModel(2, word_vectors=mapping, **settings).fit(X)


def test_unions_and_column_transformers_take_the_proportions_and_the_index(fitted):
    X, words = counts(12, seed=5), list("abcdefgh")
    theta = clone(fitted).fit_transform(X)
    union = FeatureUnion([("topics", clone(fitted)), ("counts", MaxAbsScaler())])
    np.testing.assert_array_equal(union.fit_transform(X).toarray()[:, :3], theta)
    frame = pd.DataFrame(X.toarray(), index=range(12)[::-1], columns=words).assign(more=1.0)
    columns = ColumnTransformer([("topics", clone(fitted), words)]).set_output(transform="pandas")
    found = columns.fit_transform(frame)
    assert found.index.equals(frame.index)
    np.testing.assert_array_equal(found, theta)


# Short fits: what they find is tested elsewhere.
SHORT = {"start_epochs": 1, "stepwise_epochs": 1}


@parametrize_with_checks([lntm.CorrelatedTopicModel(posterior="taylor", max_iter=1, **SHORT)])
def test_the_correlated_model_follows_scikit_learns_conventions(estimator, check):
    check(estimator)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::torch_lntm.errors.ConvergenceWarning")  # one epoch is few
@parametrize_with_checks(
    [
        lntm.LogisticNormalTopicModel(max_iter=1),
        lntm.IndependentFactorTopicModel(posterior="factor", max_iter=1, **SHORT),
        lntm.AspectModel(posterior="vb", max_iter=1, **SHORT),
        lntm.StructuralTopicModel(posterior="taylor", max_iter=1, **SHORT),
    ]
)
def test_every_estimator_follows_scikit_learns_conventions(estimator, check):
    check(estimator)
