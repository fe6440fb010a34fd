"""Annealing: schedules, and what they do to a fit."""

from __future__ import annotations

import itertools

import pytest
import torch
from support.fits import assert_same, fit, make_corpus

from torch_lntm.errors import ConfigError
from torch_lntm.guides import make_guide
from torch_lntm.inference import Annealing, VariationalEM
from torch_lntm.models import lda


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
