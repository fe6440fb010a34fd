"""Phases of variational EM, its annealing, and the documents whose covariances it sees."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from support.fits import assert_same, fit, make_corpus
from support.pairs import make_counts, make_model

import torch_lntm as lntm
from torch_lntm.errors import ConfigError
from torch_lntm.guides import EPGuide, TaylorGuide, make_guide
from torch_lntm.inference import Annealing, VariationalEM
from torch_lntm.inference.em.covariances import CovarianceSample
from torch_lntm.inference.em.statistics import Statistics
from torch_lntm.inference.em.variational import VariationalRun
from torch_lntm.models import ctm, lda
from torch_lntm.solvers.options import SolveOptions


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


def test_annealing_at_temperature_one_is_plain_em() -> None:
    corpus = make_corpus()
    options = {"start": "documents", "stepwise_epochs": 0, "tolerance": 0.0}
    plain, _ = fit(corpus, max_iterations=5, **options)
    annealed, _ = fit(corpus, max_iterations=2, annealing=Annealing((1.0,), (1.0,), 3), **options)
    assert_same(plain, annealed)


def test_the_papers_schedule_runs_and_ends_with_distinct_topics() -> None:
    corpus = make_corpus(60)
    model, result = fit(corpus, annealing="ahmed-xing", start="documents", max_iterations=3)
    apart = 0.5 * (model.topics.probs[:, None] - model.topics.probs[None]).abs().sum(-1)
    assert (apart + torch.eye(3)).min() > 0.2
    steps = [
        (r["inverse_temperature"], r["inverse_topic_temperature"])
        for r in result.history
        if r["phase"] == "annealing"
    ]
    assert [(pair, len(list(same))) for pair, same in itertools.groupby(steps)] == [
        ((0.1, 0.25), 10),
        ((0.25, 0.75), 10),
        ((0.5, 1.0), 10),
        ((1.0, 1.0), 10),
    ]
    assert not any(r["phase"] == "stepwise" for r in result.history)


def test_topics_separate_only_with_noise() -> None:
    """At a temperature near 0 all topics become the same, and EM alone leaves them there."""
    corpus = make_corpus()
    apart = []
    for noise in (0.0, 0.5):
        schedule = Annealing((0.01, 1.0), (0.01, 1.0), 15, noise)
        model, _ = fit(corpus, annealing=schedule, start="documents", max_iterations=0)
        topics = model.topics.probs.detach()
        apart.append(float((topics[:, None] - topics[None]).abs().max()))
    assert apart[0] < 1e-3 < 0.05 < apart[1]


@pytest.mark.parametrize(
    "settings",
    [
        ((0.5, 0.9), (1.0, 1.0)),
        ((0.0, 1.0), (1.0, 1.0)),
        ((1.0,), (0.5, 1.0)),
        ((), ()),
        ((1.0,), (1.0,), 0),
        ((1.0,), (1.0,), 3, float("nan")),
    ],
)
def test_invalid_schedules_are_refused(settings) -> None:
    with pytest.raises(ConfigError, match=r"Annealing\(inverse_temperatures=.* expected as many"):
        Annealing(*settings)


def test_guides_without_annealing_refuse_a_schedule() -> None:
    model = lda(3, 40)
    with pytest.raises(ConfigError, match=r"annealing is for .*TaylorGuide.*; got DirichletGuide"):
        VariationalEM(model, make_guide("vb", model), annealing="ahmed-xing")


OPTIONS = SolveOptions(tolerance=1e-6, max_iterations=100)


def solved(max_docs: int | None):
    guide = make_guide("taylor", make_model("ctm"))
    corpus = lntm.Corpus.from_matrix(make_counts((30, 1, 8, 60, 3, 12, 7, 5)))
    sample = CovarianceSample(guide, corpus, np.arange(8), 2, max_docs)
    return sample.sampled(corpus.batch(dtype=guide.model.dtype), OPTIONS, 1)


def test_moments_do_not_depend_on_the_documents_solved_at_once() -> None:
    (modes, whole), (_, parts) = solved(None), solved(1)
    assert bool(whole.covariance_sum().diagonal().gt(0).all())
    torch.testing.assert_close(parts.covariance_sum(), whole.covariance_sum())
    assert float(parts.objective()) == pytest.approx(float(whole.objective()), rel=1e-9)
    assert float(whole.objective()) != pytest.approx(float(modes.objective.sum()), rel=1e-3)


@pytest.mark.parametrize("num_docs", [3, 16, 20])
def test_the_sum_over_a_sample_is_scaled_to_all_documents(num_docs) -> None:
    """Of documents that are alike, a sample has the sum of all, whatever its offset."""
    model = lntm.models.ctm(3, 4, dtype="float64")
    guide = make_guide("taylor", model)
    corpus = lntm.Corpus.from_matrix(np.ones((num_docs, 4)))
    batch = corpus.batch(dtype=torch.float64)
    options = SolveOptions(tolerance=1e-9, max_iterations=50)
    expected = guide.solve(batch, options).outer_sum()
    sample = CovarianceSample(guide, corpus, np.arange(num_docs), 8)
    for offset in range(min(num_docs, 8)):
        _, moments = sample.sampled(batch, options, offset)
        torch.testing.assert_close(moments.outer_sum(), expected)
