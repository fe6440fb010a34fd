from __future__ import annotations

import math
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import pytest
import torch

from studies.measure import Cells
from studies.papers.ahmed_xing_models import Cell, SimulationSettings, draw_model
from studies.papers.ahmed_xing_simulation import (
    STATISTICS,
    Row,
    SimulationResult,
    figure,
    run,
    sampled_mean,
)
from studies.papers.ahmed_xing_updates import blei_lafferty_as_printed, taylor_as_printed
from torch_lntm.errors import ConfigError
from torch_lntm.guides import make_guide
from torch_lntm.models import ctm

pytestmark = pytest.mark.slow

TINY = SimulationSettings(
    num_topics=4,
    num_words=30,
    num_tokens=60,
    prior_variance=1.0,
    vary_num_topics=(3, 4),
    vary_num_words=(),
    vary_num_tokens=(30, 60),
    vary_prior_variance=(),
    num_docs=24,
    repetitions=2,
    reference_docs=3,
    reference_draws=20,
    relative_tolerance=1e-5,
)


@pytest.fixture(scope="module")
def result() -> SimulationResult:
    return run(TINY, Cells())


def without_times(rows: list[Row]) -> list[Row]:
    return [replace(row, milliseconds=0.0) for row in rows]


def test_varies_one_aspect_at_a_time_and_each_setting_once() -> None:
    assert TINY.cells() == [Cell(4, 30, 60, 1.0), Cell(3, 30, 60, 1.0), Cell(4, 30, 30, 1.0)]


@pytest.mark.slow
def test_measures_every_posterior_in_every_setting(result: SimulationResult) -> None:
    keys = {(row.cell, row.repetition, row.posterior) for row in result.rows}
    assert len(keys) == len(result.rows) == 3 * 2 * 6
    for row in result.rows:
        assert 0.0 < row.error_mode < math.sqrt(2.0)
        assert 0.0 < row.error_mean < math.sqrt(2.0)
        assert 0.0 <= row.unconverged < 1.0
        assert row.iterations >= 1.0
        assert row.distance_mode > 0.0
        assert row.excess == pytest.approx(row.excess)


@pytest.mark.slow
def test_same_seed_same_numbers_and_another_seed_others(result: SimulationResult) -> None:
    small = replace(TINY, vary_num_topics=(), vary_num_tokens=())
    again = run(small, Cells())
    # A setting's numbers depend on its seed alone, not on what else is simulated.
    shared = [row for row in result.rows if row.cell == small.cells()[0]]
    assert without_times(again.rows) == without_times(shared)
    other = run(replace(small, seed=1), Cells())
    assert all(a.error_mode != b.error_mode for a, b in zip(again.rows, other.rows, strict=True))


@pytest.mark.slow
def test_differences_are_those_of_the_errors(result: SimulationResult) -> None:
    baseline = {(r.cell, r.repetition): r for r in result.rows if r.posterior == "taylor"}
    for row in result.rows:
        expected = row.error_mode - baseline[row.cell, row.repetition].error_mode
        assert row.difference == pytest.approx(expected, abs=1e-12)
        assert (row.difference_se > 0) == (row.posterior not in ("taylor", "laplace"))


def test_laplace_has_the_mode_of_taylor_but_not_its_mean_of_theta(
    result: SimulationResult,
) -> None:
    laplace = [row for row in result.rows if row.posterior == "laplace"]
    assert all(row.difference == 0.0 for row in laplace)
    taylor = [row for row in result.rows if row.posterior == "taylor"]
    assert all(a.error_mean != b.error_mean for a, b in zip(taylor, laplace, strict=True))


def test_errors_are_distances_from_the_true_theta() -> None:
    # With a prior so tight that data cannot move it, every posterior sits at the prior's mean,
    # which is where the truth is as well: errors are of the prior's size.
    tight = replace(
        TINY, prior_variance=1e-8, vary_num_topics=(), vary_num_tokens=(), reference_docs=0
    )
    assert all(row.error_mode < 1e-3 for row in run(tight, Cells()).rows)


def test_longer_documents_are_easier(result: SimulationResult) -> None:
    for name in TINY.posteriors:
        long, short = (
            result.average(Cell(4, 30, tokens, 1.0), name, "error_converged")[0]
            for tokens in (60, 30)
        )
        assert long < short


@pytest.mark.parametrize("anchored", [False, True])
def test_anchoring_changes_neither_the_prior_of_theta_nor_its_mode(anchored: bool) -> None:
    settings = replace(TINY, anchored=anchored)
    model = draw_model(settings, settings.cells()[0], 0)
    free = draw_model(TINY, TINY.cells()[0], 0)
    assert model.latent_dim == (3 if anchored else 4)
    torch.testing.assert_close(model.prior.contrast_covariance(), free.prior.contrast_covariance())
    base = torch.softmax(model.prior.lift(model.prior.loc.detach()), -1)
    torch.testing.assert_close(base, torch.softmax(free.prior.loc.detach(), -1))


@pytest.mark.parametrize("anchored", [False, True])
@pytest.mark.parametrize(
    ("printed", "name"),
    [(taylor_as_printed, "taylor"), (blei_lafferty_as_printed, "blei-lafferty")],
)
def test_printed_updates_reach_the_guides_fixed_points(
    printed: Any, name: str, anchored: bool
) -> None:
    # Topics that overlap and a moderate prior: the printed iteration converges.
    settings = replace(TINY, anchored=anchored, topic_concentration=0.5)
    model = draw_model(settings, settings.cells()[0], 0)
    corpus, _ = model.generate([60] * 50, seed=3)
    batch = corpus.batch(dtype=torch.float64)
    posterior = printed(
        batch,
        model.topics.probs.detach(),
        model.prior.space(batch),
        relative_tolerance=1e-13,
        max_iterations=1000,
    )
    solved = make_guide(name, model, tolerance=1e-11, max_iterations=1000).posterior(batch)
    assert bool(posterior.converged.all())
    # Coordinate ascent creeps: what it gains at the end is below what its stopping rule sees.
    torch.testing.assert_close(posterior.objective, solved.objective, atol=1e-4, rtol=0.0)
    torch.testing.assert_close(posterior.mean, solved.mean, atol=1e-2, rtol=0.0)
    torch.testing.assert_close(posterior.covariance, solved.covariance, atol=1e-2, rtol=0.0)


def test_printed_taylor_iteration_does_not_converge_on_some_documents() -> None:
    settings = replace(TINY, num_topics=10, num_words=200, prior_variance=16.0)
    model = draw_model(settings, settings.cells()[0], 0)
    corpus, _ = model.generate([200] * 100, seed=0)
    batch = corpus.batch(dtype=torch.float64)
    posterior = taylor_as_printed(
        batch,
        model.topics.probs.detach(),
        model.prior.space(batch),
        relative_tolerance=1e-6,
        max_iterations=300,
    )
    failed = ~posterior.converged
    assert bool(failed.any())
    assert bool((posterior.iterations[failed] == 300).all())
    assert bool(make_guide("taylor", model).posterior(batch).converged.all())


def test_printed_coordinate_ascent_never_lowers_the_bound() -> None:
    model = draw_model(TINY, TINY.cells()[0], 0)
    corpus, _ = model.generate([60] * 20, seed=3)
    batch = corpus.batch(dtype=torch.float64)
    bounds = [
        blei_lafferty_as_printed(
            batch,
            model.topics.probs.detach(),
            model.prior.space(batch),
            relative_tolerance=1e-12,
            max_iterations=n,
        ).objective
        for n in range(1, 8)
    ]
    for before, after in pairwise(bounds):
        assert bool((after >= before - 1e-6).all())
    assert bool((bounds[-1] > bounds[0] + 0.1).any())


def test_sampled_mean_of_theta_agrees_with_quadrature() -> None:
    model = ctm(
        2,
        2,
        anchored=True,
        loc=torch.tensor([0.5]),
        covariance=torch.tensor([[4.0]]),
        topics=torch.tensor([[0.9, 0.1], [0.2, 0.8]]),
        dtype=torch.float64,
    )
    corpus, _ = model.generate([3, 10], seed=0)
    documents = corpus.batch(dtype=torch.float64)
    grid = torch.linspace(-20.0, 20.0, 8001, dtype=torch.float64)
    eta = grid[:, None, None].expand(-1, 2, 1)
    target = model.bind(documents)
    log_prior, log_likelihood = target.log_joint(target.space.locate({"eta": eta}))
    weights = torch.softmax(log_prior + log_likelihood, 0)
    exact = (weights[..., None] * model.theta(eta)).sum(0)
    chains = documents.select(torch.arange(2).repeat_interleave(100))
    chains = replace(chains, index=torch.arange(200))
    sampled = sampled_mean(model, chains, draws=100, seed=0).reshape(2, 100, 2).mean(1)
    # Posterior deviations of theta are at most 0.3: 8,000 draws that hardly depend on each other
    # have a standard error under 0.004.
    torch.testing.assert_close(sampled, exact, atol=0.02, rtol=0.0)
    mode = make_guide("taylor", model).posterior(documents).theta_mode()
    assert float((mode[0] - exact[0]).abs().max()) > 0.04


def test_averages_and_tables(result: SimulationResult) -> None:
    cell = TINY.cells()[0]
    chosen = [r for r in result.rows if r.cell == cell and r.posterior == "blei-lafferty"]
    mean, error = result.average(cell, "blei-lafferty", "error_mode")
    a, b = (row.error_mode for row in chosen)
    assert mean == pytest.approx((a + b) / 2)
    assert error == pytest.approx(abs(a - b) / 2)
    lines = result.table("error_mode").splitlines()
    assert len(lines) == 2 + 3
    assert f"{mean:.4f} ({error:.4f})" in lines[2]
    assert (
        f"error_mode: {STATISTICS['error_mode']}\n\n{result.table('error_mode')}" in result.tables()
    )
    assert set(STATISTICS) <= {field.name for field in fields(Row)}
    with pytest.raises(ConfigError, match="nothing was measured"):
        result.average(Cell(9, 9, 9, 9.0), "taylor", "error_mode")


def test_figure_shows_what_was_measured(result: SimulationResult) -> None:
    axes = figure(result).axes
    assert len(axes) == 3 * 2
    lines = {c.get_label(): c for c in axes[0].containers}
    assert set(lines) == set(TINY.posteriors)
    drawn = lines["taylor"].lines[0].get_ydata()
    cells = [cell for _, cell in result.sweep("num_topics")]
    expected = [result.average(cell, "taylor", "error_converged")[0] for cell in cells]
    assert list(drawn) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_topics": 1}, "num_topics is 1"),
        ({"vary_num_topics": (10, 1)}, "num_topics is 1"),
        ({"num_words": 0}, "num_words is 0"),
        ({"vary_num_tokens": (50, -3)}, "num_tokens is -3"),
        ({"num_tokens": 2.5}, "num_tokens is 2.5"),
        ({"num_docs": 1}, "num_docs is 1"),
        ({"repetitions": 0}, "repetitions is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"max_iterations": 0}, "max_iterations is 0"),
        ({"prior_variance": 0.0}, "prior_variance is 0.0"),
        ({"vary_prior_variance": (math.nan,)}, "prior_variance is nan"),
        ({"loc_variance": -1.0}, "loc_variance is -1.0"),
        ({"loc_variance": "wide"}, "loc_variance is 'wide'"),
        ({"relative_tolerance": 0.0}, "relative_tolerance is 0.0"),
        ({"topic_concentration": math.inf}, "topic_concentration is inf"),
        ({"posteriors": ("taylor", "tailor")}, "taylor, tailor; expected"),
        ({"posteriors": ("laplace",)}, "laplace; expected taylor"),
        ({"reference_docs": 300}, "reference_docs is 300"),
        ({"reference_draws": 4}, "reference_draws is 4"),
    ],
)
def test_bad_settings_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SimulationSettings(**change)
