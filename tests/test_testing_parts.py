"""The checks of topics and words: the package's own pass, and broken ones fail."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pyro.distributions import Normal
from torch import nn

from torch_lntm import models, testing
from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.models import DirichletMultinomial, DirichletTopics
from torch_lntm.models.topics.normal import NormalTopics
from torch_lntm.models.topics.topics import FixedTopics
from torch_lntm.models.words.words import Multinomial

NUM_WORDS = 10


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    rng = np.random.default_rng(0)
    counts = rng.poisson(0.8, (6, NUM_WORDS)) * rng.integers(1, 4, (6, NUM_WORDS))
    counts[0] = 0
    columns = {"party": np.array(["a", "b"] * 3)}
    return Corpus.from_matrix(counts, allow_empty=True).with_metadata(columns)


@pytest.fixture(scope="module")
def batch(corpus) -> DocumentBatch:
    return corpus.batch(dtype=torch.float64)


@pytest.mark.parametrize(
    "topics",
    [
        DirichletTopics(3, NUM_WORDS),
        DirichletTopics(3, NUM_WORDS, smoothing=0.0),
        NormalTopics(3, NUM_WORDS),
        NormalTopics(3, NUM_WORDS, scale=0.5),
        FixedTopics(torch.rand(3, NUM_WORDS, generator=torch.Generator().manual_seed(0))),
    ],
    ids=repr,
)
def test_topics_keep_their_contract(topics, batch) -> None:
    testing.check_topics(topics, batch)


@pytest.mark.parametrize("penalty", [0.3, 3.0])
def test_topics_of_groups_keep_their_contract(corpus, penalty) -> None:
    groups = models.Levels.of(corpus, "party")
    topics = models.ContentTopics(3, NUM_WORDS, groups, penalty=penalty)
    testing.check_topics(topics, groups.encode(corpus).batch(dtype=torch.float64))


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [Multinomial(), DirichletMultinomial(), DirichletMultinomial(2.0)]
)
def test_words_keep_their_contract(words, batch) -> None:
    testing.check_words(words, batch)


class _OtherPrior(DirichletTopics):
    def log_prior(self, normalisers=None):
        # A factor would change the density little if the topics' own change is small.
        return super().log_prior(normalisers) + 100 * self.probs[0, 0]


class _OtherProbs(NormalTopics):
    def compute_probs(self, *, topics):
        return super().compute_probs(topics=1.01 * topics)


class _LowersTheDensity(DirichletTopics):
    def m_step(self, word_counts):
        super().m_step(word_counts.flip(1))


class _OtherGradient(NormalTopics):
    def gradient_(self, word_counts):
        super().gradient_(word_counts)
        self.logits.grad *= 1.01


class _ForgetsAnAttribute(DirichletTopics):
    def __init__(self):
        super().__init__(3, NUM_WORDS)
        self.shift = torch.zeros(NUM_WORDS, 1)

    def forward(self):
        return torch.softmax(self.logits + self.shift.to(self.logits), 0).mT

    def load_state_dict(self, *args, **kwargs):
        self.shift = self.shift + torch.linspace(0.0, 1.0, NUM_WORDS)[:, None]
        return super().load_state_dict(*args, **kwargs)


class _Free(models.Topics):
    """Topics as a softmax of scores, with one method to replace."""

    def __init__(self) -> None:
        super().__init__(3, NUM_WORDS)
        self.scores = nn.Parameter(torch.zeros(3, NUM_WORDS))

    def compute_probs(self, **latents):
        return torch.softmax(latents.popitem()[1], -1)


class _EachNumberASite(_Free):
    def sites(self):
        return {"scores": Normal(torch.zeros_like(self.scores), 1.0)}


class _OtherGroup(models.ContentTopics):
    def by_level(self, batch, probs):
        return [(rows, probs[:, :NUM_WORDS]) for rows, _ in super().by_level(batch, probs)]


@pytest.mark.parametrize(
    ("topics", "message"),
    [
        (_OtherPrior(3, NUM_WORDS), "log_prior\\(\\) is not the density"),
        (_OtherProbs(3, NUM_WORDS), "other probabilities than probs"),
        (_LowersTheDensity(3, NUM_WORDS), "start_\\(\\) explains|lowers the log density"),
        (_OtherGradient(3, NUM_WORDS), "gradient_\\(\\) of logits"),
        (_ForgetsAnAttribute(), "state dictionary"),
        (_EachNumberASite(), r"the site scores has the batch shape \(3, 10\).*\.to_event\(2\)"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_check_topics_finds_broken_topics(topics, message, batch) -> None:
    with pytest.raises(AssertionError, match=message):
        testing.check_topics(topics, batch)


def test_check_topics_finds_topics_of_a_wrong_group(corpus) -> None:
    groups = models.Levels.of(corpus, "party")
    topics = _OtherGroup(3, NUM_WORDS, groups, penalty=1.0)
    with torch.no_grad():
        topics.levels[1].copy_(torch.linspace(-1.0, 1.0, NUM_WORDS))
    with pytest.raises(AssertionError, match="not that of by_level"):
        testing.check_topics(topics, groups.encode(corpus).batch(dtype=torch.float64))


YEARS = models.Periods("year", (1, 2, 4), (1.0, 2.0, 4.0), (0.5, 0.3, 0.2))


def test_topics_of_periods_keep_their_contract(corpus) -> None:
    years = np.arange(corpus.num_docs) % 3
    batch = corpus.with_covariates({"content": years}).batch(dtype=torch.float64)
    testing.check_topics(models.DynamicTopics(2, NUM_WORDS, YEARS, scale=0.3), batch)


class _OtherTokens(DirichletMultinomial):
    def tokens(self, probability, cells):
        return super().tokens(probability, cells).clamp_max(1.0)


class _NotADistribution(DirichletMultinomial):
    def length_term(self, lengths):
        return super().length_term(lengths) - 1e-4 * lengths.double()


class _Concave(models.Words):
    def log_terms(self, probability, cells):
        return cells.counts * (1.0 - (-probability).exp()).log()

    def tokens(self, probability, cells):
        return cells.counts * probability * (-probability).exp() / (1.0 - (-probability).exp())


class _CountsPadding(DirichletMultinomial):
    def log_terms(self, probability, cells):
        return super().log_terms(probability, cells) + 0.1 * (cells.counts == 0)


class _OtherDraws(DirichletMultinomial):
    def draw_words(self, words, document, generator):
        return words


class _StopsEarly(DirichletMultinomial):
    def m_step(self, *, log_concentration):
        pass


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (_OtherTokens, "tokens\\(\\) are not the derivatives"),
        (_NotADistribution, "do not add up to 1"),
        (_CountsPadding, "padded documents differ"),
        (_OtherDraws, "draw_words"),
        (_StopsEarly, "does not maximise"),
    ],
)
def test_check_words_finds_broken_words(kind, message, batch) -> None:
    with pytest.raises(AssertionError, match=message):
        testing.check_words(kind(2.0), batch)


def test_check_words_finds_nonconvex_terms(batch) -> None:
    with pytest.raises(AssertionError, match="not convex"):
        testing.check_words(_Concave(), batch)
