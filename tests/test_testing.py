"""The checks of contracts: the package's priors and guides pass, and broken ones fail."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyro
import pytest
import torch
from pyro.distributions import Normal
from support.pairs import FAMILIES, NUM_WORDS, PAIRS, make_model

from torch_lntm import testing
from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.guides import TaylorGuide, make_guide
from torch_lntm.latents import NormalSpace
from torch_lntm.models import LogisticNormalPrior, ctm


@pytest.fixture(scope="module")
def batch() -> DocumentBatch:
    counts = np.random.default_rng(0).poisson(1.0, (4, NUM_WORDS))
    return Corpus.from_matrix(counts).batch(dtype=torch.float64)


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
        (_with_space(_WrongGradient), "gradient"),
        (_with_space(_WrongDraw), "draw"),
        (_WiderContrasts(), "identified"),
        (_NoCovariance(), "latent_outer is not the expectation"),
        (_Resting(), "does not maximise"),
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
