"""Epochs of Monte-Carlo EM: which documents share a mini-batch."""

from __future__ import annotations

from typing import Any

import pytest
from support.fits import make_corpus

from torch_lntm.inference import MonteCarloEM
from torch_lntm.inference.em.monte_carlo_run import MonteCarloRun
from torch_lntm.models import ctm


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
