"""Draws of documents' proportions, by guides, by new chains, by a fit's chains, or given."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.known import make_model

import torch_lntm as lntm
from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError, ConvergenceWarning, IncompatibleGuideError
from torch_lntm.guides import make_guide
from torch_lntm.guides import theta_draws as theta_module
from torch_lntm.inference import DocumentHMC, MonteCarloEM, ThetaDraws, theta_draws
from torch_lntm.inference.chains.chains import Chains, initial_latents
from torch_lntm.inference.chains.kept import signatures


@pytest.fixture(scope="module")
def known():
    """A model of known parameters, and documents of which the third is empty."""
    counts = np.random.default_rng(0).poisson(2.0, (7, 4))
    counts[2] = 0
    model = make_model(dtype="float64")
    return model, Corpus.from_matrix(counts, model.vocabulary)


@pytest.fixture(scope="module")
def fitted():
    """A model fitted by chains, its documents, of which one is empty, and the result."""
    counts = np.random.default_rng(1).poisson(1.0, (40, 12))
    counts[5] = 0
    corpus = Corpus.from_matrix(counts)
    model = lntm.models.ctm(3, 12, dtype="float64", seed=0)
    engine = MonteCarloEM(model, max_epochs=14, num_chains=2, seed=3, progress=False)
    return model, corpus, engine.fit(corpus)


def begun(monkeypatch) -> list[int]:
    """Numbers of documents whose chains begin or continue, from now on."""
    sizes: list[int] = []
    make = Chains.__init__

    def counted(self, model, settings, batch, *args, **options) -> None:
        sizes.append(batch.num_docs)
        make(self, model, settings, batch, *args, **options)

    monkeypatch.setattr(Chains, "__init__", counted)
    return sizes


# -------------------------------------------------------------------- guides


def test_draws_of_a_guide_are_draws_of_its_posteriors(known) -> None:
    model, corpus = known
    guide = lntm.guides.TaylorGuide(model)
    draws = theta_draws(guide, corpus, 4, model=model, seed=3, max_docs=3)
    expected = guide.posterior(corpus.batch(dtype=torch.float64)).theta_samples(4, seed=3)
    torch.testing.assert_close(draws.theta, expected)
    assert draws.description == "the posterior taylor"
    assert draws.fixed == ("the topics' words", "the prior's covariance")
    few = theta_draws(guide, corpus, 4, rows=np.array([6, 1]), seed=3)
    torch.testing.assert_close(few.theta, expected[:, [6, 1]], rtol=1e-6, atol=1e-6)


# -------------------------------------------------------------------- new chains


def test_draws_of_new_chains_are_thinned_after_the_warm_up(known) -> None:
    model, corpus = known
    sampler = DocumentHMC(model, num_chains=2, mass_matrix="prior", seed=5)
    draws = theta_draws(sampler, corpus, 5, warmup_steps=6, thinning=3, max_docs=4)
    # Three draws of each of two chains make five: every third of nine transitions.
    batch = corpus.batch(dtype=torch.float64)
    means = make_guide(None, model).posterior(batch).mean
    start = initial_latents(model, batch, means, 2, 5)
    ran = sampler.run(batch, 9, 6, initial_params=start, progress=False).theta()
    torch.testing.assert_close(draws.theta, ran[:, 2::3].flatten(0, 1)[:5])
    assert draws.name == "hmc"


@pytest.mark.long
def test_new_chains_and_a_fits_chains_agree_on_the_shares_of_topics() -> None:
    corpus = lntm.lee_corpus()[:150]
    model = lntm.models.ctm(4, corpus.num_words, seed=0)
    result = MonteCarloEM(model, max_epochs=20, seed=1, progress=False).fit(corpus)
    on = theta_draws(result.source, corpus, 200).theta.double()
    anew = theta_draws(DocumentHMC(model, seed=7), corpus, 100).theta.double()
    # Standard errors by batches of 20 draws, which are nearly independent. Of 4 differences of
    # 5.5 of them, with some 5 degrees of freedom, none is expected in 100 runs.
    shares = [draws.mean(1).unflatten(0, (-1, 20)).mean(1) for draws in (on, anew)]
    error = sum(x.var(0) / len(x) for x in shares).sqrt()
    assert ((shares[0].mean(0) - shares[1].mean(0)).abs() < 5.5 * error + 1e-3).all()


def test_draws_are_made_once_and_shared(known, monkeypatch) -> None:
    model, corpus = known
    sizes = begun(monkeypatch)
    sampler = DocumentHMC(model, seed=5)
    draws = theta_draws(sampler, corpus, 3, warmup_steps=5)
    assert sizes == []
    filled = np.flatnonzero(corpus.lengths)
    most = draws.take(filled).theta
    assert torch.equal(draws.theta[:, torch.from_numpy(filled)], most)
    assert sum(sizes) == len(corpus)
    assert torch.equal(theta_draws(draws, corpus).theta, draws.theta)
    assert sum(sizes) == len(corpus)
    assert draws.take(num_draws=4).theta.shape == (4, 7, 3)
    assert sum(sizes) == 2 * len(corpus)
    assert draws.take(np.array([4, 0])).theta.shape == (3, 2, 3)
    assert sum(sizes) == 2 * len(corpus)


def test_stuck_chains_are_warned_of(known) -> None:
    model, corpus = known
    for part in theta_draws(DocumentHMC(model), corpus, 30, warmup_steps=1, thinning=1):
        assert bool(part.converged.all())
    stuck = theta_draws(DocumentHMC(model, step_size=1e6), corpus, 5, warmup_steps=0)
    with pytest.warns(ConvergenceWarning, match="7 document.s. never moved in 20 transitions"):
        (part,) = list(stuck)
    assert not bool(part.converged.any())


# -------------------------------------------------------------------- a fit's chains


@pytest.mark.slow
def test_chains_of_a_fit_continue_from_their_last_state(fitted, monkeypatch) -> None:
    model, corpus, result = fitted
    kept = result.source
    rows = np.flatnonzero(corpus.lengths)
    assert kept.find(corpus)[5] == -1
    assert (kept.find(corpus)[rows] >= 0).all()
    step = kept.step_size[:, torch.from_numpy(kept.find(corpus)[rows])]
    batch = corpus.batch(rows, dtype=torch.float64)
    chains = kept.resume(batch, kept.find(corpus)[rows])
    at = torch.from_numpy(rows)
    torch.testing.assert_close(
        model.theta(chains.latents["eta"]), model.theta(result.chains.latents["eta"][:, at])
    )
    torch.testing.assert_close(chains.step_size, step.double())
    seen = []
    for _ in range(6 + 2 * 2):
        chains.advance()
        seen.append(model.theta(chains.latents["eta"]))
    torch.testing.assert_close(chains.step_size, step.double())
    # Two draws of each of two chains make three: after 8 and 10 transitions.
    expected = torch.stack([seen[7], seen[9]], 1).flatten(0, 1)[:3]
    draws = theta_draws(kept, corpus, 3, model=model, rows=rows, max_docs=11)
    torch.testing.assert_close(draws.theta, expected)
    assert "which continue the chains of the fit" in draws.description


@pytest.mark.slow
def test_chains_of_a_fit_find_their_documents_in_any_corpus(fitted) -> None:
    _, corpus, result = fitted
    order = np.random.default_rng(0).permutation(len(corpus))[:25]
    new = Corpus.from_matrix(np.eye(12, dtype=int)[:2])
    kept = result.source
    found = kept.find(corpus[order])
    same = signatures(corpus)[np.where(found >= 0, found, 5)]
    assert (same[found >= 0] == signatures(corpus[order])[found >= 0]).all()
    assert (found == -1).tolist() == (order == 5).tolist()
    assert kept.find(new).tolist() == [-1, -1]


def test_signatures_differ_by_words_and_counts() -> None:
    counts = np.array([[1, 2, 0], [2, 1, 0], [1, 2, 1], [0, 0, 0], [1, 2, 0], [3, 0, 0]])
    found = signatures(Corpus.from_matrix(counts, allow_empty=True)).tolist()
    assert found[0] == found[4]
    assert len(set(found)) == 5


def test_new_documents_get_new_chains(fitted, monkeypatch) -> None:
    _, corpus, result = fitted
    counts = corpus.to_scipy().toarray()
    counts[3], counts[8] = 7, 9
    changed = Corpus.from_matrix(counts, allow_empty=True)
    sizes = begun(monkeypatch)
    parts = list(theta_draws(result.source, changed, 4))
    assert sizes == [37, 3]
    assert sorted(np.concatenate([part.rows for part in parts]).tolist()) == list(range(40))
    assert sorted(parts[1].rows.tolist()) == [3, 5, 8]


@pytest.mark.slow
def test_chains_in_warm_up_are_not_continued(fitted) -> None:
    _, corpus, _ = fitted
    model = lntm.models.ctm(3, 12, seed=0)
    early = MonteCarloEM(model, max_epochs=2, warmup_epochs=2, progress=False).fit(corpus)
    assert early.source.num_docs == 0
    assert (early.source.find(corpus) == -1).all()
    assert theta_draws(early.source, corpus, 2).theta.isfinite().all()


def test_low_acceptance_is_warned_of(fitted) -> None:
    from dataclasses import replace

    _, corpus, result = fitted
    kept = replace(result.source, step_size=result.source.step_size * 6)
    few = corpus[:30][np.flatnonzero(corpus[:30].lengths)]
    with pytest.warns(ConvergenceWarning) as told:
        _ = theta_draws(kept, few, 20).theta
    assert any("of their proposals, far below the target 0.8" in str(w.message) for w in told)


# -------------------------------------------------------------------- numbers, arrays, refusals


def test_the_number_of_draws_follows_from_the_number_of_documents(known, monkeypatch) -> None:
    model, corpus = known
    guide = lntm.guides.TaylorGuide(model)
    assert theta_draws(guide, corpus).num_draws == 50
    monkeypatch.setattr(theta_module, "ALL_DRAWS", 210)
    assert theta_draws(guide, corpus).num_draws == 30
    assert theta_draws(guide, corpus, rows=np.array([0])).num_draws == 50


def test_existing_draws_are_used_unchanged(known) -> None:
    model, corpus = known
    theta = torch.rand(4, 3, 3, generator=torch.Generator().manual_seed(0))
    draws = ThetaDraws.of(theta, model, np.array([1, 4, 6]))
    assert torch.equal(draws.theta, theta)
    assert torch.equal(draws.take(np.array([6, 4]), 2).theta, theta[:2, [2, 1]])
    assert torch.equal(theta_draws(draws, corpus, 9, rows=np.array([1])).theta, theta[:, :1])
    with pytest.raises(ConfigError, match="lack some of the 2 requested documents"):
        _ = draws.take(np.array([1, 2])).theta
    with pytest.raises(ConfigError, match=r"expected \(num_draws, num_docs, 3\)"):
        ThetaDraws.of(theta[0], model)
    for bad in (-0.1, float("nan")):
        with pytest.raises(ConfigError, match="must be finite and not negative"):
            ThetaDraws.of(torch.full((2, 3, 3), bad), model)


def test_draws_of_other_documents_are_refused(known) -> None:
    model, corpus = known
    guide = lntm.guides.LaplaceGuide(model)
    joint = lntm.inference.joint_draws(model, corpus, num_draws=2, warmup_steps=1, progress=False)
    chains = lntm.inference.DocumentHMC(model, num_chains=2)
    again = corpus.with_metadata({"number": np.arange(len(corpus))})
    for draws in (joint, theta_draws(guide, corpus, 2), theta_draws(chains, corpus, 2)):
        assert theta_draws(draws, again, progress=False).num_draws == 2  # other columns, same rows
        for other in (corpus[1:], corpus[np.arange(len(corpus))[::-1]]):
            with pytest.raises(ConfigError, match="are others, or stand in another order"):
                theta_draws(draws, other)


def test_invalid_sources_are_refused(known) -> None:
    model, corpus = known
    with pytest.raises(ConfigError, match="expected a guide"):
        theta_draws(model, corpus)
    other = make_model(dtype="float64")
    with pytest.raises(
        IncompatibleGuideError, match=r"make a source for this model: DocumentHMC\(model\)"
    ):
        theta_draws(DocumentHMC(other), corpus, model=model)
    with pytest.raises(IncompatibleGuideError, match="was made for another model"):
        theta_draws(lntm.guides.TaylorGuide(other), corpus, model=model)
    for wrong in ({"num_draws": 0}, {"thinning": 0}, {"max_docs": 0}, {"warmup_steps": -1}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            theta_draws(DocumentHMC(model), corpus, **wrong)
    with pytest.raises(ConfigError, match="9 words"):
        theta_draws(DocumentHMC(model), Corpus.from_matrix(np.ones((2, 9), int)))
