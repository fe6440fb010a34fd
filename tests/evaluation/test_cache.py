"""The cache language model of held-out tokens, against its formula."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import torch_lntm as lntm
from torch_lntm.corpus import Corpus, DocumentBatch, WordHoldOut
from torch_lntm.errors import ConfigError
from torch_lntm.evaluation import document_completion
from torch_lntm.evaluation.completion.cache import counts_at, held_out_words
from torch_lntm.evaluation.completion.theta import theta_modes
from torch_lntm.models import TopicModel, ctm, lda

NUM_WORDS = 7
TOPICS = np.random.default_rng(0).dirichlet(np.full(NUM_WORDS, 0.7), 3)
#: Two documents have nothing observed, or nothing held out.
OBSERVED = np.array(
    [[3, 0, 1, 0, 2, 0, 0], [0, 1, 0, 0, 0, 0, 4], [0] * 7, [1, 2, 0, 4, 1, 6, 0], [0] * 7]
)
HELD_OUT = np.array(
    [[1, 1, 0, 2, 0, 1, 0], [0, 0, 2, 1, 0, 0, 1], [2, 0, 0, 0, 1, 0, 0], [0] * 7, [0] * 7]
)


def hold_out(
    observed: np.ndarray = OBSERVED, held_out: np.ndarray = HELD_OUT
) -> WordHoldOut[Corpus]:
    corpus = Corpus.from_matrix(observed + held_out)
    rows = np.repeat(np.arange(corpus.num_docs), np.diff(corpus.row_offsets))
    return WordHoldOut(corpus, observed[rows, corpus.word_index].astype(np.int64))


def expected(q: np.ndarray, a: float) -> np.ndarray:
    """Scores of the documents, words of which the topics give the probabilities q."""
    p = (OBSERVED + a * q) / (OBSERVED.sum(1, keepdims=True) + a)
    return (HELD_OUT * np.log(p)).sum(1)


def model_of(name: str) -> TopicModel:
    make, topics = {"ctm": ctm}.get(name, lda), torch.from_numpy(TOPICS)
    return make(*topics.shape, topics=topics, dtype=torch.float64)


@pytest.mark.parametrize("a", [0.3, 8.0, 300.0])
@pytest.mark.parametrize("predictive", ["mode", "mean"])
def test_document_completion_equals_the_formula(device, predictive, a) -> None:
    model = model_of("lda").to(device)  # its means of theta are exact: no draws
    guide = lntm.guides.make_guide(None, model)
    result = document_completion(
        model, hold_out(), guide=guide, theta=predictive, cache_weight=a, max_docs=2
    )
    theta = guide.posterior(hold_out().observed.batch(device=device, dtype=torch.float64))
    q = theta.theta_mode().cpu().numpy() @ TOPICS
    np.testing.assert_allclose(result.log_predictive.numpy(), expected(q, a), rtol=1e-9)
    assert f"own words (a = {a:.4g})" in repr(result)


@pytest.mark.parametrize("name", ["ctm", "lda"])
def test_completion_at_the_mode_equals_the_formula(name) -> None:
    model = model_of(name)
    result = document_completion(model, hold_out(), theta="mode", cache_weight=5.0)
    plain = document_completion(model, hold_out(), theta="mode")
    assert "own words" in result.method
    assert "own words" not in plain.method
    # Of a document without observed words, the topics say all.
    assert result.log_predictive[2].item() == pytest.approx(plain.log_predictive[2].item())
    theta = theta_modes(model, hold_out().observed.batch(dtype=torch.float64)).numpy()
    np.testing.assert_allclose(result.log_predictive.numpy(), expected(theta @ TOPICS, 5.0))


@pytest.mark.slow
def test_exact_completion_equals_the_formula() -> None:
    """Its score is that of the topics alone, at theta's exact mean, put into the formula."""
    # Each document once with each word held out: the scores are the log probabilities of words.
    observed = np.tile(OBSERVED[:2], (NUM_WORDS, 1))
    held_out = np.repeat(np.eye(NUM_WORDS, dtype=np.int64), 2, 0)
    plain, own = (
        document_completion(
            model_of("ctm"), hold_out(observed, held_out), cache_weight=a, tolerance=0.002
        )
        for a in (None, 4.0)
    )
    assert own.within_tolerance
    q, p = (x.log_predictive.exp().view(NUM_WORDS, 2).T.numpy() for x in (plain, own))
    np.testing.assert_allclose(p.sum(1), 1.0, atol=0.02)
    lengths = OBSERVED[:2].sum(1, keepdims=True)
    np.testing.assert_allclose(p, (OBSERVED[:2] + 4.0 * q) / (lengths + 4.0), atol=0.01)
    # The topics have a share of the tokens, and of the simulation's error.
    assert own.simulation_error < plain.simulation_error


def test_each_group_uses_its_own_topics() -> None:
    """The cache has columns of the vocabulary for documents of every group."""
    counts = OBSERVED + HELD_OUT + 1
    corpus = Corpus.from_matrix(counts, metadata={"party": ["a", "b", "a", "b", "b"]})
    model = lntm.models.stm(3, corpus, content="party", dtype="float64")
    with torch.no_grad():
        for parameter in model.topics.parameters():
            noise = np.random.default_rng(2).normal(size=tuple(parameter.shape))
            parameter.add_(torch.from_numpy(noise))
    guide = lntm.guides.make_guide(None, model)
    split = model.encode(corpus).hold_out_words(seed=1)
    observed, held_out = (part.to_scipy().toarray() for part in split)
    batch = split.observed.batch(dtype=torch.float64)
    theta = guide.posterior(batch, covariances=False).theta_mode().numpy()
    q = np.zeros(counts.shape)
    for rows, topics in model.topics.by_level(batch, model.topics.double_probs):
        q[rows.numpy()] = theta[rows.numpy()] @ topics.detach().numpy()
    p = (observed + 3.0 * q) / (observed.sum(1, keepdims=True) + 3.0)
    result = document_completion(model, split, theta="mode", guide=guide, cache_weight=3.0)
    np.testing.assert_allclose(result.log_predictive, (held_out * np.log(p)).sum(1), rtol=1e-9)


def test_counts_are_found_for_the_words_of_another_batch() -> None:
    seen, unseen = (part.batch() for part in hold_out())
    rows, words = unseen.row_index.numpy(), unseen.word_index.numpy()
    assert counts_at(seen, unseen).tolist() == OBSERVED[rows, words].tolist()
    nothing = Corpus.from_matrix(np.zeros_like(OBSERVED), allow_empty=True).batch()
    assert counts_at(nothing, unseen).tolist() == [0.0] * unseen.nnz
    words, counts = torch.tensor([5, 0, 2, 1]), torch.tensor([1.0, 2.0, 3.0, 4.0])
    sizes = (torch.tensor([0, 3, 4]), words, counts, (2, NUM_WORDS))
    unsorted = DocumentBatch.from_csr(torch.sparse_csr_tensor(*sizes, check_invariants=False))
    two = hold_out().held_out.batch([0, 1])
    dense = np.array([[2, 0, 3, 0, 0, 1, 0], [0, 4, 0, 0, 0, 0, 0]])
    assert counts_at(unsorted, two).tolist() == dense[two.row_index, two.word_index].tolist()


def test_expected_topic_counts_equal_theta_times_the_gradient() -> None:
    model, split = model_of("ctm"), hold_out()
    seen, unseen = (part.batch(dtype=torch.float64) for part in split)
    words = held_out_words(model, seen, unseen, 2.0)
    theta = torch.from_numpy(np.random.default_rng(1).dirichlet(np.ones(3), (2, 5)))
    small = 1e-6 * torch.eye(3, dtype=torch.float64)
    up, down = (
        torch.stack([words.log_likelihood(theta + sign * step) for step in small], -1)
        for sign in (1.0, -1.0)
    )
    value, counts = words.expected_counts(theta)
    torch.testing.assert_close(counts, theta * (up - down) / 2e-6, rtol=1e-6, atol=1e-7)
    q = theta.numpy() @ TOPICS
    for chain in range(2):
        np.testing.assert_allclose(value[chain], expected(q[chain], 2.0), rtol=1e-9)


def test_invalid_arguments_are_refused() -> None:
    model = model_of("ctm")
    guide = lntm.guides.make_guide(None, model)
    for bad in (0, -1.0, math.nan, math.inf, "2", True):
        with pytest.raises(ConfigError, match="cache_weight is"):
            document_completion(model, hold_out(), theta="mode", guide=guide, cache_weight=bad)
        with pytest.raises(ConfigError, match="cache_weight is"):
            document_completion(model, hold_out(), theta="mode", cache_weight=bad)
