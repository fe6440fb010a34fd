"""The structural topic model as an estimator, with scikit-learn's metadata routing."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import sklearn
from sklearn import clone
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline

import torch_lntm as lntm
from torch_lntm.errors import ConfigError, CorpusError, CorpusWarning

#: Fits take a second or more each.
pytestmark = pytest.mark.slow

NUM_DOCS = 60
PARTY = np.array(["left", "right"])[np.arange(NUM_DOCS) % 2]
META = pd.DataFrame({"party": PARTY, "year": 2000 + np.arange(NUM_DOCS) % 7})


def counts(seed: int = 0) -> sp.csr_matrix:
    """Documents whose words depend on their party."""
    rng = np.random.default_rng(seed)
    likely = (np.arange(8) % 2 == 0) == (PARTY == "left")[:, None]
    return sp.csr_matrix(rng.poisson(np.where(likely, 2.0, 0.5)))


def estimator(**options):
    settings = {"prevalence": "~ party", "posterior": "taylor", "max_iter": 2, "random_state": 0}
    fast = {"start_epochs": 2, "stepwise_epochs": 1}
    return lntm.StructuralTopicModel(2, device="cpu", **(fast | settings | options))


@pytest.fixture(scope="module")
def fitted():
    return estimator().fit(counts(), metadata=META)


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def test_a_fit_equals_the_fit_of_the_model_itself(fitted):
    corpus = lntm.Corpus.from_matrix(counts(), metadata=META)
    smoothing = 0.05 * min(1.0, corpus.num_tokens / (2 * 8))
    seed = int(np.random.RandomState(0).randint(2**31 - 1))
    model = lntm.models.stm(2, corpus, "~ party", seed=seed, topic_smoothing=smoothing)
    options = {"max_iterations": 2, "start_epochs": 2, "stepwise_epochs": 1, "progress": False}
    guide = lntm.guides.TaylorGuide(model)
    lntm.inference.VariationalEM(model, guide, seed=seed, **options).fit(corpus)
    np.testing.assert_array_equal(fitted.components_, model.topics.probs.detach().numpy())
    assert fitted.coefficient_names_ == ("Intercept", "party[T.right]")
    np.testing.assert_array_equal(fitted.coefficients_, model.prior.coefficients.detach().numpy())


def test_proportions_of_documents_without_words_follow_their_metadata(fitted):
    empty = np.zeros((2, 8))
    left, right = fitted.transform(empty, metadata={"party": ["left", "right"]})
    assert np.abs(left - right).max() > 0.05
    expected = np.exp(fitted.coefficients_[0])
    np.testing.assert_allclose(left, expected / expected.sum(), rtol=1e-4)
    with pytest.warns(CorpusWarning, match="has no column of the model's prevalence"):
        unknown = fitted.transform(empty[:1])
    assert min(left[0], right[0]) < unknown[0, 0] < max(left[0], right[0])


def test_every_method_takes_metadata(fitted):
    X, metadata = counts(1), {"party": PARTY}
    corpus = lntm.Corpus.from_matrix(X, metadata=metadata)
    theta = fitted.transform(X, metadata=metadata)
    np.testing.assert_array_equal(fitted.transform(corpus), theta)
    mode = fitted.posteriors(X, metadata=metadata).theta_mode().numpy()
    np.testing.assert_allclose(mode, theta, atol=0.02)
    score = fitted.score(X, metadata=metadata)
    assert score == fitted.held_out(X, metadata=metadata).nats_per_token
    assert fitted.perplexity(X, metadata=metadata) == pytest.approx(np.exp(-score))
    assert score == fitted.score(corpus)
    assert len(fitted.topics(X, top_n=3, metadata=metadata)[0].words) == 3
    again = clone(fitted).fit_transform(counts(), metadata=META)
    np.testing.assert_array_equal(again, fitted.transform(counts(), metadata=META))


def test_groups_of_content_have_words_of_their_own():
    model = estimator(prevalence=None, content="party").fit(counts(), metadata=META)
    assert model.model_.topics.num_levels == 2
    assert model.coefficient_names_ == ("Intercept",)
    with pytest.raises(CorpusError, match="party"):
        model.transform(counts())


def test_a_corpus_brings_its_metadata_and_an_array_of_covariates():
    corpus = lntm.Corpus.from_matrix(counts(), metadata=META)
    assert estimator().fit(corpus).coefficient_names_[1] == "party[T.right]"
    array = corpus.with_covariates({"prevalence": np.arange(NUM_DOCS)[:, None] / NUM_DOCS})
    assert estimator(prevalence=None).fit(array).coefficient_names_ == ("Intercept", "x0")


def test_partial_fit_learns_from_further_documents_with_metadata():
    model = estimator().partial_fit(counts(), metadata=META)
    before = model.components_
    model.partial_fit(counts(1), metadata=META)
    assert np.abs(model.components_ - before).max() > 0
    frame = pd.DataFrame(counts().toarray(), columns=list("abcdefgh"))
    named = estimator().partial_fit(frame, metadata=META).partial_fit(frame, metadata=META)
    assert list(named.feature_names_in_) == list("abcdefgh")


def test_missing_metadata_are_refused_with_advice():
    with pytest.raises(ConfigError, match=r"no metadata; pass the columns: fit\(X, metadata=fra"):
        estimator().fit(counts())
    with pytest.raises(CorpusError, match="expected one row for each of 60 documents, got 59"):
        estimator().fit(counts(), metadata=META[:-1])
    with pytest.raises(CorpusError, match="party"):
        estimator().fit(counts(), metadata={"year": META["year"]})


@pytest.mark.parametrize(
    ("model", "option"), [(lntm.CorrelatedTopicModel(2), "metadata"), (estimator(), "columns")]
)
def test_options_that_a_method_lacks_are_refused_by_its_name(model, option):
    message = f"{type(model).__name__}.fit takes no {option}; columns of documents are metadata="
    with pytest.raises(TypeError, match=message):
        model.fit(counts(), **{option: META})


def test_a_pipeline_routes_metadata_to_the_model(routing):
    words = np.array(["tax", "war", "vote", "poll", "court", "oil", "law", "bill"])
    texts = [" ".join(np.repeat(words, row)) for row in counts().toarray()]
    labels = np.arange(NUM_DOCS) // 2 % 2
    pipeline = make_pipeline(CountVectorizer(), estimator(), LogisticRegression(max_iter=1000)).fit(
        texts, labels, metadata=META
    )
    alone = estimator().fit(pipeline[0].transform(texts), metadata=META)
    np.testing.assert_array_equal(pipeline[1].components_, alone.components_)
    predicted = pipeline.predict_proba(texts, metadata=META)
    theta = alone.transform(pipeline[0].transform(texts), metadata=META)
    np.testing.assert_array_equal(predicted, pipeline[2].predict_proba(theta))
    with pytest.warns(CorpusWarning, match="no column of the model's prevalence"):
        pipeline.predict(texts)


def test_searches_and_cross_validation_route_the_rows_of_the_metadata(routing):
    search = GridSearchCV(
        estimator(), {"n_components": [1, 2], "prevalence": [None, "~ party"]}, cv=2
    ).fit(counts(), metadata=META)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.score(counts(1), metadata=META) < 0
    scores = cross_val_score(estimator(), counts(), cv=2, params={"metadata": META})
    assert np.isfinite(scores).all()


def test_pandas_output_keeps_the_index_of_the_documents():
    order = np.random.default_rng(0).permutation(NUM_DOCS)
    names = [f"d{d}" for d in order]
    X = pd.DataFrame(counts().toarray()[order], columns=list("abcdefgh"), index=names)
    metadata = META.set_index(pd.Index([f"d{d}" for d in range(NUM_DOCS)]))
    model = estimator().set_output(transform="pandas")
    outputs = [model.fit_transform(X, metadata=metadata), model.transform(X, metadata=metadata)]
    rows = META.iloc[order].reset_index(drop=True)
    expected = (
        estimator().fit(counts()[order], metadata=rows).transform(counts()[order], metadata=rows)
    )
    for theta in outputs:
        assert list(theta.index) == names
        np.testing.assert_array_equal(theta.to_numpy(), expected)
    corpus = lntm.Corpus.from_matrix(counts(), list("abcdefgh"), metadata=META)
    theta = model.set_output(transform="pandas").transform(corpus)
    assert list(theta.index) == list(getattr(corpus.metadata, "index", range(NUM_DOCS)))


def test_metadata_are_joined_by_the_index_of_the_counts(fitted):
    X = pd.DataFrame(counts().toarray())
    for method in (estimator().fit, fitted.transform, fitted.score):
        with pytest.raises(CorpusError, match="another order"):
            method(X, metadata=META[::-1])
    named = X.set_index(pd.Index([f"d{d}" for d in range(NUM_DOCS)]))
    meta = META.set_index(named.index)
    expected = fitted.transform(counts(), metadata=META)
    np.testing.assert_array_equal(fitted.transform(named, metadata=meta[::-1]), expected)
    with pytest.raises(CorpusError, match="other names"):
        fitted.transform(named, metadata=META)
