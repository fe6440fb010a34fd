"""Epochs of Monte-Carlo EM: their mini-batches, their weights, and where chains start."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.fits import fit_monte_carlo, make_corpus
from torch import Tensor

from torch_lntm.errors import ConfigError
from torch_lntm.guides import TaylorGuide
from torch_lntm.inference import MonteCarloEM
from torch_lntm.inference.em.distributed import Processes
from torch_lntm.inference.em.monte_carlo import MonteCarloRun
from torch_lntm.inference.em.schedule import (
    default_batch_docs,
    default_step_docs,
    documents_per_block,
    running_weight,
)
from torch_lntm.inference.em.start import Start
from torch_lntm.io import load_model, save_model
from torch_lntm.models import (
    IndependentFactorPrior,
    LogisticNormalPrior,
    TopicModel,
    ctm,
    iftm,
    lda,
    lntm,
)
from torch_lntm.models.priors.dirichlet import INFLATED_TOTAL
from torch_lntm.models.priors.prior import INFLATED_VARIANCE


@pytest.mark.filterwarnings("ignore::torch_lntm.errors.ConvergenceWarning")
def test_every_epoch_has_new_mini_batches(monkeypatch) -> None:
    corpus = make_corpus(20)
    visit, batches = MonteCarloRun._visit, []

    def recorded(self: MonteCarloRun, batch: Any, *args: Any) -> Any:
        batches.append(tuple(batch.index.tolist()))
        return visit(self, batch, *args)

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


def test_ctrl_c_in_the_start_keeps_the_topics_of_its_last_finished_epoch(monkeypatch) -> None:
    corpus, epochs = make_corpus(20), []

    epoch = Start._epoch

    def stopping(self: Start, *args: Any) -> float:
        if len(epochs) == 2:
            raise KeyboardInterrupt
        found = epoch(self, *args)
        epochs.append(self.model.topics.probs.clone())
        return found

    monkeypatch.setattr(Start, "_epoch", stopping)
    model = ctm(3, 30, dtype="float64")
    result = MonteCarloEM(model, progress=False).fit(corpus)
    assert result.stop_reason == "interrupted"
    assert result.history == []
    torch.testing.assert_close(model.topics.probs, epochs[1])


def test_chains_start_at_the_means_of_the_start(monkeypatch) -> None:
    """At the logits of its proportions: no posterior is solved."""
    corpus, found = make_corpus(20), []
    begin = LogisticNormalPrior.start_latents

    def recorded(self: LogisticNormalPrior, theta: Tensor) -> Tensor:
        found.append(begin(self, theta))
        return found[-1]

    monkeypatch.setattr(LogisticNormalPrior, "start_latents", recorded)
    monkeypatch.setattr(TaylorGuide, "posterior", None)
    model = ctm(3, 30)
    run = MonteCarloRun(MonteCarloEM(model, progress=False), corpus)
    run._start()
    rows, means = torch.cat(found), run.state.documents.tensors["means"]
    assert sorted(map(tuple, means.tolist())) == sorted(map(tuple, rows.tolist()))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [ctm, partial(iftm, num_sources=2)])
def test_chains_start_under_a_wide_prior(recipe: Callable[..., TopicModel]) -> None:
    """The start's proportions are surer than the documents are."""
    corpus = make_corpus(40)
    model = recipe(3, 30)
    run = MonteCarloRun(MonteCarloEM(model, progress=False), corpus)
    run._start()
    covariance = model.prior.contrast_covariance()
    assert float(covariance.diagonal().mean()) == pytest.approx(INFLATED_VARIANCE, rel=1e-5)


@pytest.mark.parametrize("recipe", [ctm, lntm, partial(iftm, num_sources=2)])
def test_inflating_the_covariance_scales_it_and_never_shrinks_it(
    recipe: Callable[..., TopicModel],
) -> None:
    prior = recipe(4, 30).prior
    before, loc = prior.contrast_covariance(), prior.loc.clone()
    prior.inflate_covariance()
    scale = INFLATED_VARIANCE / before.diagonal().mean()
    torch.testing.assert_close(prior.contrast_covariance(), scale * before, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(prior.loc, loc)
    if isinstance(prior, IndependentFactorPrior):
        prior.set_(mixing=2.0 * prior.mixing, noise_precision=prior.noise_precision / 4.0)
    else:
        prior.set_(covariance=4.0 * prior.covariance)
    prior.inflate_covariance()
    wide = 4.0 * scale * before
    torch.testing.assert_close(prior.contrast_covariance(), wide, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [ctm, lntm, partial(iftm, num_sources=2)])
def test_the_pseudo_variance_starts_at_a_large_value(
    recipe: Callable[..., TopicModel], tmp_path: Path
) -> None:
    corpus = make_corpus(20)
    model, narrow = recipe(3, 30), recipe(3, 30, pseudo_variance=0.7)
    assert model.prior.pseudo_variance == 1.0
    for one in (model, narrow):
        MonteCarloEM(one, max_epochs=1, warmup_epochs=1, progress=False).fit(corpus)
    assert model.prior.pseudo_variance == INFLATED_VARIANCE
    assert narrow.prior.pseudo_variance == 0.7
    for one in (model, narrow):
        save_model(one, tmp_path / "model", overwrite=True)
        loaded = load_model(tmp_path / "model")
        assert loaded.prior.pseudo_variance == one.prior.pseudo_variance
        torch.testing.assert_close(loaded.prior.log_prior(), one.prior.log_prior())


@pytest.mark.parametrize("recipe", [ctm, lntm])
@pytest.mark.parametrize(("variance", "expected"), [(3.0, 3.0), (1e-3, 0.1), (50.0, 10.0)])
def test_the_pseudo_variance_follows_the_variance_of_the_logits(
    recipe: Callable[..., TopicModel], variance: float, expected: float
) -> None:
    # The covariance of independent logits, which both recipes start from, has variance 1.
    prior = recipe(4, 30).prior
    prior.set_(covariance=variance * prior.covariance.detach())
    with prior.following(20.0):
        assert prior.pseudo_variance == 1.0  # no fit by chains has begun
    prior.expect_draws()
    with prior.following(3.9):  # the documents have fewer tokens than topics
        assert prior.pseudo_variance == INFLATED_VARIANCE
    with prior.following(4.0):
        assert prior.pseudo_variance == pytest.approx(expected)
    assert prior.pseudo_variance == INFLATED_VARIANCE
    prior.pseudo_variance = 3.0  # by the user, between two fits
    with prior.following(4.0):
        assert prior.pseudo_variance == 3.0


@pytest.mark.slow
def test_epochs_use_the_pseudo_variance_that_follows_the_fit() -> None:
    seen = []
    model = ctm(3, 30)
    m_step = model.prior.m_step

    def observed(*arguments: Any, **sums: Any) -> None:
        seen.append(model.prior.pseudo_variance)
        m_step(*arguments, **sums)

    model.prior.m_step = observed  # type: ignore[method-assign]
    MonteCarloEM(model, max_epochs=4, warmup_epochs=2, progress=False).fit(make_corpus(200))
    assert seen[0] == INFLATED_VARIANCE
    assert 0.1 <= seen[-1] < INFLATED_VARIANCE
    assert model.prior.pseudo_variance == INFLATED_VARIANCE


def test_a_single_topic_keeps_its_covariance_and_pseudo_variance() -> None:
    prior = ctm(1, 30).prior
    before = prior.covariance.clone()
    prior.inflate_covariance()
    torch.testing.assert_close(prior.covariance, before)
    prior.expect_draws()
    with prior.following(20.0):
        assert prior.pseudo_variance == INFLATED_VARIANCE


def test_a_dirichlet_prior_is_inflated_by_its_total_concentration() -> None:
    prior = lda(3, 30, concentration=[0.5, 1.0, 2.5]).prior
    prior.inflate_covariance()
    assert prior.concentration.tolist() == pytest.approx([0.125, 0.25, 0.625])
    assert float(prior.concentration.detach().sum()) == pytest.approx(INFLATED_TOTAL)
    prior.set_([0.1, 0.1, 0.1])
    prior.inflate_covariance()
    assert prior.concentration.tolist() == pytest.approx([0.1, 0.1, 0.1])
    given = lda(3, 30, concentration=2.0, learn_concentration=False).prior
    given.inflate_covariance()
    assert given.concentration.tolist() == pytest.approx([2.0, 2.0, 2.0])


def test_blocks_are_a_hundredth_of_the_corpus_within_bounds() -> None:
    """40 to 400 documents; of short ones 1,200 tokens at least; never over a quarter."""
    sizes = [documents_per_block(n, 100.0) for n in (20, 2000, 7000, 18_000, 75_000, 1_000_000)]
    assert sizes == [5, 40, 70, 180, 400, 400]
    assert documents_per_block(4500, 10.0) == 120
    assert documents_per_block(18_000, 10.0) == 180


def test_mini_batches_are_eight_blocks_or_a_quarter_of_the_corpus() -> None:
    sizes = [default_batch_docs(n, 100.0) for n in (1, 50, 300, 2000, 7000, 18_000, 1_000_000)]
    assert sizes == [1, 13, 75, 320, 560, 1440, 3200]
    assert default_batch_docs(3000, 10.0) == 750
    assert default_batch_docs(9000, 10.0) == 960


def test_stochastic_steps_have_enough_tokens_for_every_topic() -> None:
    """240 tokens a topic, if that is 64 documents or more, and neither too few nor too many."""
    assert default_step_docs(10_000, 100.0, 50) == 120
    assert default_step_docs(10_000, 100.0, 5) == 64
    assert default_step_docs(10_000, 6.0, 400) == 1024
    assert default_step_docs(100, 6.0, 50) == 13


def test_weights_integrate_the_replaced_share_of_the_memory() -> None:
    """By steps so small that each replaces its share of the memory."""
    step = 1e-3
    for seen, size in ((0.0, 5.0), (20.0, 10.0), (45.0, 25.0), (100.0, 40.0)):
        units = np.arange(seen, seen + size, step) / 10.0 + step / 20.0
        memory = np.minimum(units, 5.0) ** 0.3 + np.maximum(units - 5.0, 0.0)
        left = np.prod(1.0 - step / 10.0 / memory)
        assert running_weight(seen, size, 10.0, 50.0) == pytest.approx(1.0 - left, rel=3e-4)


@pytest.mark.parametrize("averaging_start", [math.inf, 700.0])
def test_the_decay_of_old_documents_does_not_depend_on_mini_batches(averaging_start: float) -> None:
    left = []
    for size in (1, 5, 40, 400):
        parts = range(600, 1000, size)
        weights = (running_weight(n, size, 50.0, averaging_start) for n in parts)
        left.append(math.prod(1.0 - weight for weight in weights))
    assert left == pytest.approx([left[0]] * 4)


def test_plain_averaging_gives_all_documents_equal_weights() -> None:
    """While averaging, what is kept of each of two mini-batches of one size is the same."""
    weights = [running_weight(7.0 * n, 7.0, 10.0, 10.0) for n in range(2, 40)]
    for first, second in itertools.pairwise(weights):
        assert first * (1.0 - second) == pytest.approx(second)


def test_kept_chains_go_on_in_a_fit_of_a_changed_corpus() -> None:
    """80 documents go on where they are, and 20 new ones start from the prior."""
    documents = make_corpus(120)
    model = ctm(3, documents.num_words, seed=0, dtype="float64")
    first = fit_monte_carlo(model, documents[:100], max_epochs=12, warmup_epochs=4)
    kept, parameters = first.chains, copy.deepcopy(model.state_dict())
    engine = MonteCarloEM(model, start=kept, max_epochs=3, batch_size=25, progress=False)
    run = engine.prepare(documents[20:], Processes(alone=True))
    batch = documents[20:].batch(dtype=torch.float64)
    with torch.no_grad():
        latents = run._chains(batch).latents
    columns = kept.find(documents[20:])
    known = columns >= 0
    assert known[:80].all()
    assert not known[80:].any()
    for site, values in kept.latents.items():
        got = latents[site][:, torch.from_numpy(known)]
        torch.testing.assert_close(got, values[:, columns[known]].to(got))
        assert latents[site].isfinite().all()
    warm = [record["objective"] for record in engine.fit(documents[20:]).history]
    model.load_state_dict(parameters)
    options = {"start": "model", "max_epochs": 3, "batch_size": 25}
    cold = fit_monte_carlo(model, documents[20:], **options).history
    assert min(warm) > first.history[-1]["objective"] - 0.1
    assert warm[0] > cold[0]["objective"] + 0.03
    # All epochs count alike.
    run.state.updates = 3 * run.num_batches
    assert run._weight() == pytest.approx(1.0 / (3 * run.num_batches))
    with pytest.raises(ConfigError, match="num_chains=1 given to a fit of 3, 3 and 2"):
        MonteCarloEM(model, start=kept, num_chains=2)
    with pytest.raises(ConfigError, match="kept chains for 3 topics, 3 dimensions"):
        MonteCarloEM(ctm(4, 30), start=kept)
