"""Document completion, its standard error, and the unigram baseline."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import special
from support.pairs import FAMILIES
from support.pairs import make_model as make_member

from torch_lntm.corpus import Corpus, synthetic_topics
from torch_lntm.errors import ConfigError, CorpusError
from torch_lntm.evaluation import document_completion, unigram_perplexity
from torch_lntm.evaluation.completion.theta import theta_modes
from torch_lntm.evaluation.per_token import per_token
from torch_lntm.guides import EPGuide, FactorGuide, LaplaceGuide, TaylorGuide, make_guide
from torch_lntm.models import TopicModel, ctm, lda

NUM_WORDS = 30


def make_model(num_topics: int = 4, **kwargs) -> TopicModel:
    topics = kwargs.pop("topics", synthetic_topics(num_topics, NUM_WORDS, 0.1))
    return ctm(num_topics, NUM_WORDS, topics=topics, dtype="float64", **kwargs)


@pytest.fixture(scope="module")
def model() -> TopicModel:
    return make_model(covariance=3.0 * torch.eye(4))


@pytest.fixture(scope="module")
def corpus(model: TopicModel) -> Corpus:
    lengths = np.random.default_rng(0).integers(0, 40, 80)
    lengths[:3] = [0, 1, 2]
    return model.generate(lengths, seed=0)[0]


@pytest.mark.parametrize("predictive", ["mode", "mean"])
def test_uniform_topics_have_perplexity_v(corpus: Corpus, predictive: str) -> None:
    uniform = make_model(topics=torch.ones(4, NUM_WORDS))
    result = document_completion(uniform, corpus, guide=TaylorGuide(uniform), theta=predictive)
    assert result.perplexity == pytest.approx(NUM_WORDS, rel=1e-12)
    assert result.perplexity_standard_error == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("guide_name", ["taylor", "laplace", "blei-lafferty", "khan-bouchard"])
def test_scores_at_the_mode_equal_a_calculation_by_hand(
    model: TopicModel, corpus: Corpus, guide_name: str
) -> None:
    guide = make_guide(guide_name, model)
    result = document_completion(
        model, corpus, theta="mode", guide=guide, observed_fraction=0.3, seed=4
    )
    observed, held_out = corpus.hold_out_words(0.3, seed=4)
    theta = guide.posterior(observed.batch(dtype=torch.float64)).theta_mode().numpy()
    counts = held_out.to_scipy().toarray()
    log_words = np.log(theta @ model.topics.probs.detach().numpy())
    np.testing.assert_allclose(result.log_predictive, (counts * log_words).sum(1), rtol=1e-9)
    assert result.held_out_tokens.tolist() == counts.sum(1).tolist()
    expected = math.exp(-(counts * log_words).sum() / counts.sum())
    assert result.perplexity == pytest.approx(expected)
    assert (result.theta, result.observed_fraction, result.seed) == ("mode", 0.3, 4)
    assert result.num_docs == int((counts.sum(1) > 0).sum())


def at(theta: np.ndarray, model: TopicModel, counts: np.ndarray) -> np.ndarray:
    """Scores of held-out counts at proportions ``(num_docs, num_topics)``."""
    return (counts * np.log(theta @ model.topics.probs.detach().numpy())).sum(1)


@pytest.mark.slow
def test_scores_at_the_mean_equal_averages_over_samples(model: TopicModel, corpus: Corpus) -> None:
    # Against draws of the posterior object itself.
    guide = LaplaceGuide(model)
    hold_out = corpus[:20].hold_out_words()
    posterior = guide.posterior(hold_out.observed.batch(dtype=torch.float64))
    theta = posterior.theta_samples(20_000, seed=9).numpy()
    result = document_completion(model, hold_out, guide=guide, theta="mean", num_draws=20_000)
    expected = at(theta.mean(0), model, hold_out.held_out.to_scipy().toarray())
    np.testing.assert_allclose(result.log_predictive, expected, atol=0.05)
    assert "20000 draws" in result.method
    assert result.observed_fraction is None
    assert "a hold-out of your own" in repr(result)


@pytest.mark.parametrize("family", FAMILIES[2:])
def test_scores_by_factor_and_dirichlet_posteriors_are_those_at_their_parameters(family) -> None:
    model, rng = make_member(family), np.random.default_rng(0)
    guide = EPGuide(model) if family == "lda" else FactorGuide(model)
    corpus, _ = model.generate(rng.integers(0, 30, 30), seed=0)
    observed, held_out = corpus.hold_out_words(0.5, seed=0)
    posterior, counts = guide.posterior(observed.batch()), held_out.to_scipy().toarray()
    if family == "lda":
        gamma = posterior.gamma.numpy()
        theta = gamma / gamma.sum(1, keepdims=True)
    else:
        theta = special.softmax(posterior.mean.numpy(), -1)
    for estimate in ("mode", "mean") if family == "lda" else ("mode",):
        result = document_completion(model, corpus, guide=guide, theta=estimate)
        np.testing.assert_allclose(result.log_predictive, at(theta, model, counts), rtol=1e-9)
        if family == "lda":
            assert "exact" in result.method
            assert "draws" not in result.method


@pytest.mark.parametrize("predictive", ["mode", "mean"])
def test_scores_do_not_depend_on_batches(
    model: TopicModel, corpus: Corpus, predictive: str
) -> None:
    guide = TaylorGuide(model)
    options = {"theta": predictive, "num_draws": 20}
    whole = document_completion(model, corpus, guide=guide, **options)
    parts = document_completion(model, corpus, guide=guide, max_docs=7, **options)
    torch.testing.assert_close(whole.log_predictive, parts.log_predictive, atol=1e-6, rtol=0)


def test_documents_with_fewer_than_two_tokens_are_left_out(
    model: TopicModel, corpus: Corpus
) -> None:
    result = document_completion(model, corpus, theta="mode", guide=TaylorGuide(model))
    assert result.log_predictive[:2].tolist() == [0.0, 0.0]
    assert result.held_out_tokens[:3].tolist() == [0, 0, 1]
    short = Corpus.from_matrix(np.eye(3, NUM_WORDS, dtype=int))
    with pytest.raises(CorpusError, match="not one held-out token"):
        document_completion(model, short, theta="mode", guide=TaylorGuide(model))


def test_the_standard_error_equals_the_jackknifes(corpus: Corpus) -> None:
    # The delta method and the jackknife of a ratio agree to order 1/num_docs.
    result = unigram_perplexity(corpus[::2], corpus)
    values, lengths = result.log_predictive.numpy(), corpus.lengths
    keep = lengths > 0
    values, lengths = values[keep], lengths[keep]
    leave_one_out = np.exp(-(values.sum() - values) / (lengths.sum() - lengths))
    num_docs = len(values)
    jackknife = math.sqrt((num_docs - 1) * leave_one_out.var())
    assert result.perplexity_standard_error == pytest.approx(jackknife, rel=0.05)


def test_the_standard_error_of_a_single_document_is_infinite() -> None:
    value, error = per_token(torch.tensor([-6.0, 0.0]), torch.tensor([3, 0]))
    assert (value, error) == (-2.0, math.inf)


def test_unigram_perplexity_uses_smoothed_word_frequencies() -> None:
    train = Corpus.from_matrix([[3, 1, 0], [1, 0, 0]], vocabulary=["a", "b", "c"])
    held_out = Corpus.from_matrix([[1, 1, 1], [0, 0, 0]], vocabulary=["a", "b", "c"])
    result = unigram_perplexity(train, held_out, smoothing=1.0)
    assert result.perplexity == pytest.approx((8**3 / (5 * 2 * 1)) ** (1 / 3))
    assert result.theta == "unigram"
    assert "2 training documents, plus 1 for each word" in repr(result)
    with pytest.raises(ConfigError, match="smoothing is 0"):
        unigram_perplexity(train, held_out, smoothing=0.0)
    other = Corpus.from_matrix([[1, 1, 1]], vocabulary=["a", "c", "b"])
    with pytest.raises(CorpusError, match="different vocabularies"):
        unigram_perplexity(train, other)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"theta": "map"}, "theta is 'map'; expected one of mode, mean, exact"),
        ({"num_draws": 0}, "num_draws is 0"),
        ({"max_docs": 0}, "max_docs is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"theta": "mean"}, "expected a guide"),
    ],
)
def test_invalid_settings_are_refused(
    model: TopicModel, corpus: Corpus, settings: dict, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        document_completion(model, corpus, **{"theta": "mode", **settings})


def test_modes_of_single_precision_are_those_of_double_precision() -> None:
    corpus, model = Corpus.from_matrix([[3, 0, 1], [0, 2, 2]]), lda(2, 3, seed=0)
    modes = [theta_modes(model, corpus.batch(dtype=x)) for x in (torch.float32, torch.float64)]
    torch.testing.assert_close(modes[0], modes[1], rtol=0, atol=0)
