"""Phases of variational EM: what goes from one to the next, and what must not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.fits import make_corpus

from torch_lntm.guides import EPGuide, TaylorGuide
from torch_lntm.inference import Annealing, VariationalEM
from torch_lntm.inference.em.statistics import Statistics
from torch_lntm.inference.em.variational import VariationalRun
from torch_lntm.models import ctm, lda


@pytest.mark.slow
def test_a_restart_ignores_posteriors_of_the_last_restart(monkeypatch) -> None:
    corpus = make_corpus()
    model = lda(3, corpus.num_words, dtype="float64")
    guide = EPGuide(model)
    solve, starts = guide.solve, []

    def posterior(batch: Any, options: Any, **settings: Any) -> Any:
        if options.max_iterations == guide.step_options.max_iterations:
            starts.append(options.start)
        return solve(batch, options, **settings)

    monkeypatch.setattr(guide, "solve", posterior)
    engine = VariationalEM(
        model, guide, restarts=3, start_epochs=1, stepwise_epochs=1, max_iterations=0,
        progress=False,
    )  # fmt: skip
    engine.fit(corpus)
    # Each stepwise epoch visits every document for the first time.
    assert len(starts) >= 3
    assert all(start is None or not bool(start.any()) for start in starts)


def test_every_change_of_temperature_has_new_noise(monkeypatch) -> None:
    perturbed, keys = Annealing.perturbed, []

    def recorded(self: Annealing, topics: torch.Tensor, key: Any) -> torch.Tensor:
        keys.append(key)
        return perturbed(self, topics, key)

    monkeypatch.setattr(Annealing, "perturbed", recorded)
    model = ctm(3, 30, dtype="float64")
    options: dict[str, Any] = {"start": "model", "max_iterations": 0, "progress": False}
    annealing = Annealing(iterations=2)
    VariationalEM(model, TaylorGuide(model), annealing=annealing, **options).fit(make_corpus())
    assert keys == [(0, 0, 2), (0, 0, 4), (0, 0, 6)]
    ones = torch.ones(3, 30).double()
    assert torch.equal(perturbed(annealing, ones, keys[0]), perturbed(annealing, ones, keys[0]))
    noise = torch.stack([perturbed(annealing, ones, key).log().flatten() for key in keys])
    # At most 6 standard deviations of the correlation of independent noise.
    assert torch.corrcoef(noise).triu(1).abs().max() < 6 / 90**0.5


def test_batches_of_long_and_short_documents_have_equal_weights(monkeypatch) -> None:
    corpus = make_corpus()
    # Every other document ten times as long.
    factors = np.where(np.arange(corpus.num_docs) % 2, 10, 1)
    corpus = corpus.with_counts(corpus.counts * np.repeat(factors, np.diff(corpus.row_offsets)))
    model = ctm(3, corpus.num_words, dtype="float64")
    totals = []
    monkeypatch.setattr(
        Statistics, "maximise", lambda self, model: totals.append(float(self.word_counts.sum()))
    )
    VariationalEM(
        model, TaylorGuide(model), start="documents", stepwise_epochs=1, max_iterations=0,
        progress=False,
    ).fit(corpus)  # fmt: skip
    # Statistics are those of the corpus's tokens, whichever documents a batch has.
    assert len(totals) > 1
    assert totals == pytest.approx([corpus.num_tokens] * len(totals))


@pytest.mark.slow
def test_a_sample_of_covariances_gives_nearly_the_same_fit() -> None:
    """The same fit but for the noise of the sample, whatever the batches' size."""
    corpus = make_corpus(num_docs=200)
    found = {}
    for stride, max_docs in ((1, None), (4, None), (4, 7)):
        model = ctm(3, corpus.num_words, dtype="float64")
        engine = VariationalEM(
            model, TaylorGuide(model), covariance_stride=stride, max_docs=max_docs,
            max_iterations=3, tolerance=0, progress=False,
        )  # fmt: skip
        result = engine.fit(corpus)
        found[stride, max_docs] = model.prior.covariance, result.history[-1]["objective"]
    exact, sampled, split = found.values()
    torch.testing.assert_close(sampled[0], exact[0], rtol=0.2, atol=0.02)
    assert not torch.allclose(sampled[0], exact[0])
    assert sampled[1] == pytest.approx(exact[1], rel=0.01)
    torch.testing.assert_close(split[0], sampled[0])
    assert split[1] == pytest.approx(sampled[1])


@pytest.mark.parametrize(
    ("num_topics", "num_docs", "stride"),
    [(3, 2000, 1), (40, 2000, 8), (40, 300, 2), (40, 30, 1), (400, 4000, 31)],
)
def test_the_covariance_stride_follows_topics_and_batches(num_topics, num_docs, stride) -> None:
    corpus = make_corpus(num_docs=num_docs, length=5)
    model = ctm(num_topics, corpus.num_words)
    engine = VariationalEM(model, TaylorGuide(model), progress=False)
    run = VariationalRun(engine, corpus)
    assert run.covariances.stride == stride
