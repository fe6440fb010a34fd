"""Epochs of Monte-Carlo EM: which documents share a mini-batch, and where chains start."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support.fits import make_corpus

from torch_lntm.corpus import Corpus
from torch_lntm.inference import MonteCarloEM
from torch_lntm.inference.em.monte_carlo_run import START_VARIANCE, MonteCarloRun
from torch_lntm.models import TopicModel, ctm, iftm, lntm


@pytest.mark.filterwarnings("ignore::torch_lntm.errors.ConvergenceWarning")
def test_every_epoch_has_mini_batches_of_its_own(monkeypatch) -> None:
    corpus = make_corpus(20)
    visit, batches = MonteCarloRun._visit, []

    def recorded(self: MonteCarloRun, batch: Any, tally: Any) -> Any:
        batches.append(tuple(batch.index.tolist()))
        return visit(self, batch, tally)

    monkeypatch.setattr(MonteCarloRun, "_visit", recorded)
    model = ctm(3, corpus.num_words, dtype="float64")
    engine = MonteCarloEM(
        model, start="model", max_epochs=3, batch_size=5, num_transitions=1, progress=False
    )
    engine.fit(corpus)
    epochs = [batches[i : i + 4] for i in range(0, 12, 4)]
    assert len(batches) == 12
    for epoch in epochs:
        assert sorted(d for batch in epoch for d in batch) == list(range(20))
        assert all(list(batch) == sorted(batch) for batch in epoch)
    assert len({frozenset(epoch) for epoch in epochs}) == 3


@pytest.mark.parametrize(("length", "expected"), [(10, 300), (60, 100)])
def test_mini_batches_of_short_documents_are_larger(length: int, expected: int) -> None:
    corpus = Corpus.from_matrix(np.full((700, 5), length // 5))
    run = MonteCarloRun(ctm(3, 5), MonteCarloEM(ctm(3, 5)).settings, corpus)
    assert run.num_batches == -(-700 // expected)


@pytest.mark.parametrize("recipe", [ctm, partial(iftm, num_sources=2)])
def test_chains_start_under_a_wide_prior(recipe: Callable[..., TopicModel]) -> None:
    """The start's proportions are surer than the documents are."""
    corpus = make_corpus(40)
    model = recipe(3, 30)
    run = MonteCarloRun(model, MonteCarloEM(model, progress=False).settings, corpus)
    run._start()
    covariance = model.prior.contrast_covariance()
    assert float(covariance.diagonal().mean()) == pytest.approx(START_VARIANCE, rel=1e-5)


@pytest.mark.parametrize("recipe", [ctm, lntm, partial(iftm, num_sources=2)])
def test_widening_scales_and_never_narrows(recipe: Callable[..., TopicModel]) -> None:
    prior = recipe(4, 30).prior
    before, loc = prior.contrast_covariance(), prior.loc.clone()
    narrow = float(before.diagonal().mean())
    prior.widen(0.5 * narrow)
    torch.testing.assert_close(prior.contrast_covariance(), before)
    prior.widen(7.0 * narrow)
    torch.testing.assert_close(prior.contrast_covariance(), 7.0 * before, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(prior.loc, loc)
