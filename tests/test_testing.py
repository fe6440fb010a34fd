"""The checks of contracts: the package's own parts and guides pass, and broken ones fail."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyro
import pytest
import torch
from pyro.distributions import Normal
from support.pairs import FAMILIES, NUM_WORDS, PAIRS, make_model
from torch import nn

from torch_lntm import models, testing
from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.guides import TaylorGuide, make_guide
from torch_lntm.latents import NormalSpace
from torch_lntm.models import DirichletMultinomial, DirichletTopics, LogisticNormalPrior, ctm
from torch_lntm.models.topics.normal import NormalTopics
from torch_lntm.models.topics.topics import FixedTopics
from torch_lntm.models.words.words import Multinomial


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


# -- priors and guides ---------------------------------------------------------------------------


@pytest.mark.usefixtures("back_end")
@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_priors_keep_their_contract(family, batch) -> None:
    testing.check_prior(make_model(family).prior, batch)


def test_an_anchored_prior_keeps_its_contract(batch) -> None:
    testing.check_prior(ctm(3, NUM_WORDS, anchored=True, dtype="float64").prior, batch)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "name"), PAIRS)
def test_guides_keep_their_contract(family, name, batch) -> None:
    testing.check_guide(make_guide(name, make_model(family), tolerance=1e-8), batch)


class _Prior(LogisticNormalPrior):
    """A correct prior, the base of broken priors."""

    def __init__(self) -> None:
        covariance = torch.tensor([[2.0, 0.5, 0.1], [0.5, 1.0, -0.3], [0.1, -0.3, 0.7]])
        super().__init__(
            3, loc=torch.tensor([0.3, -1.0, 0.5]), covariance=covariance, dtype=torch.float64
        )


class _ShiftedSpace(_Prior):
    def space(self, batch):
        space = super().space(batch)
        return replace(space, loc=space.loc + 0.1)


class _CentredInItsBatch(_Prior):
    def location(self, batch):
        lengths = batch.lengths[:, None]
        return self.loc + 0.1 * (lengths - lengths.mean())


class _WrongGradient(NormalSpace):
    def gradient(self, z):
        return -1.01 * z


class _WrongDraw(NormalSpace):
    def draw(self, key):
        z = super().draw(key)
        z[..., 0] *= 1.2
        return z


class _WiderContrasts(_Prior):
    def identified(self, batch):
        space = super().identified(batch)
        return replace(space, tril=1.05 * space.tril)


class _NoCovariance(_Prior):
    def statistics(self, moments, batch):
        x = moments.mean.double()
        return {"latent_sum": x.sum(0), "latent_outer": x.mT @ x}


class _Resting(_Prior):
    def m_step(self, num_docs, **sums):
        pass


class _Detached(_Prior):
    def location(self, batch):
        return self.loc.detach()


def _with_space(kind: type[NormalSpace]) -> _Prior:
    class Broken(_Prior):
        def space(self, batch):
            space = super().space(batch)
            return kind(space.loc, space.tril, space.anchored)

        def identified(self, batch):
            return super().identified(batch)

    return Broken()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prior", "message"),
    [
        (_ShiftedSpace(), "is not the program's density"),
        (_CentredInItsBatch(), "depends on the other documents"),
        (_with_space(_WrongGradient), "gradient"),
        (_with_space(_WrongDraw), "draw"),
        (_WiderContrasts(), "identified"),
        (_NoCovariance(), "latent_outer is not the expectation"),
        (_Resting(), "does not maximise"),
        (_Detached(), "depends on loc, but has no gradient"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_check_prior_finds_broken_priors(prior, message, batch) -> None:
    testing.check_prior(_Prior(), batch)
    with pytest.raises(AssertionError, match=message):
        testing.check_prior(prior, batch)


class _DependsOnNeighbours(TaylorGuide):
    def _solve(self, batch, topics, space, options):
        found = super()._solve(batch, topics, space, options)
        return replace(found, mean=found.mean + 0.1 * found.mean.mean(0))


class _AnotherSite(TaylorGuide):
    def forward(self, batch):
        with pyro.plate("documents", batch.corpus_size, subsample=batch.index):
            return pyro.sample("logits", Normal(self.posterior(batch).mean, 1.0).to_event(1))


class _HighBound(TaylorGuide):
    def bound(self, batch, posterior=None, kind="tilted"):
        return torch.full((batch.num_docs,), 1e6, dtype=torch.float64)


class _Elsewhere(TaylorGuide):
    def forward(self, batch):
        with pyro.plate("documents", batch.corpus_size, subsample=batch.index):
            loc = torch.full((batch.num_docs, 3), 50.0, dtype=torch.float64)
            return pyro.sample("eta", Normal(loc, 1e-6).to_event(1))


@pytest.mark.parametrize(
    ("guide", "message"),
    [
        (_AnotherSite, "the guide emits"),
        (_HighBound, "bound is above"),
        (_Elsewhere, "emits as eta is not the posterior"),
    ],
)
def test_check_guide_finds_broken_guides(guide, message, batch) -> None:
    topics = torch.eye(3, NUM_WORDS, dtype=torch.float64) + 0.02
    model = ctm(3, NUM_WORDS, topics=topics / topics.sum(1, keepdim=True), dtype="float64")
    with pytest.raises(AssertionError, match=message):
        testing.check_guide(guide(model, tolerance=1e-8), batch)


def test_check_guide_finds_a_guide_that_depends_on_neighbours(batch) -> None:
    with pytest.raises(AssertionError, match="its batch's documents"):
        testing.check_guide(_DependsOnNeighbours(make_model("ctm")), batch)


# -- topics and words ----------------------------------------------------------------------------


@pytest.mark.usefixtures("back_end")
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


@pytest.mark.usefixtures("back_end")
@pytest.mark.parametrize("penalty", [0.3, 3.0])
def test_topics_of_groups_keep_their_contract(corpus, penalty) -> None:
    groups = models.Levels.of(corpus, "party")
    topics = models.ContentTopics(3, NUM_WORDS, groups, penalty=penalty)
    testing.check_topics(topics, groups.encode(corpus).batch(dtype=torch.float64))


@pytest.mark.usefixtures("back_end")
@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [Multinomial(), DirichletMultinomial(), DirichletMultinomial(2.0)]
)
def test_words_keep_their_contract(words, batch) -> None:
    testing.check_words(words, batch)
    # All pairs of so many words would take 200 GB.
    testing.check_words(words, replace(batch, num_words=3000))


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
        (_EachNumberASite(), r"the site scores has the batch shape \(3, 15\).*\.to_event\(2\)"),
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


@pytest.mark.usefixtures("back_end")
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
        (_StopsEarly, "does not maximise .* nearby, after 60 calls$"),
    ],
)
def test_check_words_finds_broken_words(kind, message, batch) -> None:
    with pytest.raises(AssertionError, match=message):
        testing.check_words(kind(2.0), batch)


def test_check_words_finds_nonconvex_terms(batch) -> None:
    with pytest.raises(AssertionError, match="not convex"):
        testing.check_words(_Concave(), batch)
