"""Draws of documents' proportions, by a guide and by chains, for whoever takes either."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.known import make_model

import torch_lntm as lntm
from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError, IncompatibleGuideError
from torch_lntm.inference import DocumentHMC, KeptChainDraws, chain_draws, draw_source
from torch_lntm.inference.chains.chains import Chains


@pytest.fixture(scope="module")
def known():
    """A model of known parameters, and documents of which the third is empty."""
    counts = np.random.default_rng(0).poisson(2.0, (7, 4))
    counts[2] = 0
    model = make_model(dtype="float64")
    return model, Corpus.from_matrix(counts, model.vocabulary)


def test_a_guides_draws_are_its_posteriors(known) -> None:
    model, corpus = known
    guide = lntm.guides.TaylorGuide(model)
    source = draw_source(guide, model)
    found = source.draw_all(corpus, 4, seed=3, max_docs=3)
    expected = guide.posterior(corpus.batch(dtype=torch.float64)).theta_samples(4, 3)
    torch.testing.assert_close(found, expected)
    assert source.described == "the posterior taylor"


def test_chains_draws_are_thinned_after_warm_up(known) -> None:
    model, corpus = known
    sampler = DocumentHMC(model, num_chains=2, seed=5)
    source = draw_source(sampler, warmup_steps=6, thinning=3)
    found = source.draw_all(corpus, 5, max_docs=4)
    # Three draws of each chain are needed for five, every third of nine transitions.
    ran = sampler.run(corpus.batch(dtype=torch.float64), 9, 6, progress=False).theta()
    torch.testing.assert_close(found, ran[:, 2::3].flatten(0, 1)[:5])
    assert source.name == "hmc"
    one = chain_draws(model, corpus, num_draws=2, thinning=3, warmup_steps=6, seed=5)
    ran = DocumentHMC(model, seed=5).run(corpus.batch(dtype=torch.float64), 6, 6, progress=False)
    torch.testing.assert_close(one, ran.theta()[0, 2::3].float())


def test_chains_that_are_kept_run_once(known, monkeypatch) -> None:
    model, corpus = known
    sampler, run, sizes = DocumentHMC(model, seed=5), DocumentHMC.run, []

    def counted(self: DocumentHMC, batch, *args, **options):
        sizes.append(batch.num_docs)
        return run(self, batch, *args, **options)

    monkeypatch.setattr(DocumentHMC, "run", counted)
    kept = KeptChainDraws(sampler)
    assert draw_source(kept, model) is kept
    first = kept.draw_all(corpus, 3)
    assert torch.equal(draw_source(kept).draw_all(corpus, 3), first)
    assert sum(sizes) == len(corpus)
    assert torch.equal(draw_source(sampler).draw_all(corpus, 3), first)
    kept.draw_all(corpus, 4)
    assert sum(sizes) == 3 * len(corpus)
    assert kept.described == draw_source(sampler).described


def test_documents_whose_chains_are_stuck_are_told(known, monkeypatch) -> None:
    model, corpus = known
    source = draw_source(DocumentHMC(model), warmup_steps=1, thinning=1)
    batch = corpus.batch(dtype=torch.float64)
    assert bool(source.draw(batch, 30, 0).converged.all())
    source = draw_source(DocumentHMC(model, step_size=1e6), warmup_steps=0, thinning=1)
    with pytest.warns(lntm.errors.ConvergenceWarning, match="never moved"):
        assert not bool(source.draw(batch, 5, 0).converged.any())


def test_ctrl_c_leaves_no_draws_that_are_missing(known, monkeypatch) -> None:
    model, corpus = known
    move, calls = Chains.move, iter(range(100))

    def pressed(chains: Chains, *args: int) -> None:
        if next(calls) == 8:
            raise KeyboardInterrupt
        move(chains, *args)

    monkeypatch.setattr(Chains, "move", pressed)
    with pytest.raises(KeyboardInterrupt):
        chain_draws(model, corpus, num_draws=4, thinning=1, warmup_steps=6)


def test_what_cannot_draw_is_refused(known) -> None:
    model, corpus = known
    with pytest.raises(ConfigError, match="expected a guide"):
        draw_source(model)
    other = make_model(dtype="float64")
    with pytest.raises(IncompatibleGuideError, match=r"make one for this: DocumentHMC\(model\)"):
        draw_source(DocumentHMC(other), model)
    with pytest.raises(IncompatibleGuideError, match="was made for another model"):
        draw_source(lntm.guides.TaylorGuide(other), model)
    with pytest.raises(ConfigError, match="num_samples is 0"):
        draw_source(DocumentHMC(model)).draw_all(corpus, 0)
