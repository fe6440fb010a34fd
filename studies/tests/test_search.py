"""The search of settings and the curves, on scores made up for the tests."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from studies.__main__ import load
from studies.benchmarks import completion, curves, search, systems, tuned
from studies.benchmarks.curves import Point, options_at, seconds_to
from studies.machine import Stopwatch
from studies.measure import Cells
from tests.support.corpora import save_counts
from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError


@pytest.fixture
def corpora(tmp_path: Path) -> list[str]:
    """Two corpora of 40 documents of 3 and of 60 tokens."""
    paths = []
    for name, length in (("short", 3), ("long", 60)):
        counts = np.random.default_rng(0).multinomial(length, np.ones(9) / 9, 40)
        save_counts(Corpus.from_matrix(counts), tmp_path / f"{name}.npz")
        paths.append(str(tmp_path / f"{name}.npz"))
    return paths


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers count as installed. Scores are made up, so no test fits with them."""
    monkeypatch.setattr(completion, "missing_library", lambda _: None)


@pytest.mark.usefixtures("peers")
def test_the_search_keeps_the_best_value_of_each_setting(
    corpora: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores are sums over the settings, so the best of each setting is the best of all."""
    worth = {"beta": {0.05: 0.1, 0.1: -0.1}, "iters": {2000: 0.2}, "num_samples": {1: -0.3}}
    asked: list[dict[str, Any]] = []

    def measured(*_: Any, options: dict[str, Any]) -> dict[str, Any]:
        asked.append(options)
        nats = sum(worth.get(name, {}).get(value, 0.0) for name, value in options.items())
        return {"log_predictive": f"{nats:.4f}", "cpu_seconds": 1.0}

    monkeypatch.setattr(search, "measured", measured)
    settings = search.Settings(tuple(corpora), ("topica LDA",), max_test_docs=1)
    cells = Cells()
    trials = search.run(settings, cells)
    assert [trial.length for trial in trials[:1] + trials[-1:]] == ["titles", "abstracts"]
    best = max((t for t in trials if t.length == "titles"), key=lambda trial: trial.nats).options
    assert best == tuned.CENTRE["topica LDA"] | {"beta": 0.05, "iters": 2000}
    # No set of settings is fitted twice, and a study that goes on fits nothing again.
    number = len(asked)
    assert number == len(trials)
    assert search.run(settings, cells) == trials
    assert len(asked) == number
    text = search.tables(trials)
    assert "## titles: topica LDA" in text
    assert "| num_samples = 1" in text


@pytest.mark.usefixtures("peers")
def test_a_failed_trial_is_never_the_best(
    corpora: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(*_: Any, options: dict[str, Any]) -> dict[str, Any]:
        if options.get("eta") == 0.05:
            return {"log_predictive": "-1", "cpu_seconds": 1.0}
        return {"failed": "the fit ended with 1"}

    monkeypatch.setattr(search, "measured", measured)
    settings = search.Settings((corpora[0],), ("tomotopy LDA",), max_test_docs=1)
    trials = search.run(settings, Cells())
    assert sum(math.isinf(trial.nats) for trial in trials) == 2
    assert max(trials, key=lambda trial: trial.nats).options["eta"] == 0.05


@pytest.mark.parametrize("study", [search, curves])
def test_a_peer_that_is_not_installed_ends_the_study(
    study: Any, corpora: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search without its peers would end with no trial and no word."""
    monkeypatch.setattr(completion, "missing_library", lambda _: "topica")
    settings = study.Settings((corpora[0],))
    with pytest.raises(ConfigError, match="needs topica, which is not installed"):
        study.run(settings, Cells())


def test_every_class_has_settings_for_every_peer() -> None:
    assert [tuned.length_class(length) for length in (6, 20, 57, 110, 194)] == [
        *("titles", "titles", "abstracts", "abstracts", "news")
    ]
    for system in tuned.CENTRE:
        assert set(tuned.TUNED[system]) == set(tuned.LENGTHS)
        for settings in tuned.TUNED[system].values():
            for name, value in settings.items():
                values = tuned.GRID[system].get(name, (tuned.CENTRE[system].get(name),))
                assert value in values


def test_the_number_of_topics_may_be_the_sum_of_concentrations() -> None:
    task = systems.Task(
        counts=Corpus.from_matrix(np.ones((2, 3), int)).to_scipy(),
        num_topics=7,
        seed=0,
        threads=1,
        sweeps=None,
        covariates=None,
        stopwatch=Stopwatch(),
        options={"alpha_sum": "K"},
    )
    found = systems.settings_for("topica LDA", task)
    assert found == tuned.TUNED["topica LDA"]["titles"] | {"alpha_sum": 7.0}


@pytest.mark.slow
@pytest.mark.parametrize("system", ["topica LDA, tuned", "tomotopy LDA, tuned", "tomotopy LDA"])
def test_a_peer_with_options_has_topics_and_a_concentration(system: str) -> None:
    library, fit = systems.SYSTEMS[system]
    pytest.importorskip(library)
    counts = Corpus.from_matrix(np.random.default_rng(0).poisson(1.0, (30, 12))).to_scipy()
    peer = system.split()[0]
    options = {
        "topica": {"iters": 20, "num_samples": 3},
        "tomotopy": {"sweeps": 20, "states": 3},
    }[peer]
    watch = Stopwatch()
    found = fit(systems.Task(counts, 4, 0, 1, None, None, watch, options))
    np.testing.assert_allclose(found.topics.sum(1), 1.0)
    assert (found.topics > 0).all()
    assert found.prior["alpha"].shape == (4,)
    assert (found.prior["alpha"] > 0).all()
    assert watch.wall_seconds > 0
    assert options.items() <= found.settings.items()


@pytest.mark.slow
def test_averaged_states_are_the_mean_of_single_ones() -> None:
    pytest.importorskip("tomotopy")
    counts = Corpus.from_matrix(np.random.default_rng(0).poisson(1.0, (30, 12))).to_scipy()

    def topics(**options: int) -> np.ndarray:
        task = systems.Task(counts, 4, 0, 1, None, None, Stopwatch(), options)
        return systems.fit_tomotopy_lda(task).topics

    first, both = topics(sweeps=30), topics(sweeps=30, states=2, lag=5)
    # The same chain, read once at 35 sweeps: train(30) and train(5) are train(35).
    second = 2 * both - first
    np.testing.assert_allclose(second, topics(sweeps=35), atol=1e-6)


def test_seconds_to_a_score_are_read_from_the_curve() -> None:
    curve = [
        Point("c", "s", budget, seconds, nats)
        for budget, seconds, nats in ((4, 1.0, -8.0), (8, 4.0, -7.0), (16, 16.0, -7.5))
    ]
    assert seconds_to(curve, -7.5) == pytest.approx(2.0)
    assert seconds_to(curve, -9.0) == 1.0
    assert seconds_to(curve, -6.9) == math.inf
    peer = Point("c", "topica LDA", 40, 9.0, -7.5)
    own = [Point("c", "torch_lntm ctm", *rest) for rest in ((4, 1.0, -8.0), (8, 4.0, -7.0))]
    timing = curves.Timing("c", "torch_lntm ctm", 2, True, 3.0, 5.5)
    text = curves.tables(curves.Result([*own, peer], [timing]))
    assert "2, busy machine" in text
    assert "best peer: topica LDA, 1808.0 after 9.0 CPU s" in text
    assert "torch_lntm ctm reaches this in 2.0 CPU s" in text


def test_small_budgets_average_states_of_few_sweeps() -> None:
    assert options_at("torch_lntm ctm, auto", 8) == {"max_epochs": 8}
    assert options_at("tomotopy LDA", 100) == {"sweeps": 100}
    assert options_at("tomotopy LDA, tuned", 100) == {"sweeps": 100, "lag": 2}
    assert options_at("topica LDA, tuned", 1000) == {
        "iters": 1000,
        "burn_in": 200,
        "sample_interval": 10,
    }


def test_curves_are_kept_by_system(corpora: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        curves, "measured", lambda *_, options: {"log_predictive": "-5", "cpu_seconds": 2.0}
    )
    record = {"record": '{"wall_seconds": 1.5, "cpu_seconds": 2.5}'}
    monkeypatch.setattr(curves, "fit_in_process", lambda *_, **options: record)
    study = load("curves")
    cells = Cells()
    systems = ("torch_lntm ctm, auto",)
    settings = study.settings((corpora[1],), systems, max_test_docs=1, threads=(1, 2))
    result = study.run(settings, cells)
    points, timings = result.points, result.timings
    assert [point.budget for point in points] == list(curves.EPOCHS)
    assert all(f", {point.budget}" in name for point, name in zip(points, cells.done, strict=False))
    assert [(t.threads, t.busy, t.wall_seconds) for t in timings] == [
        *((1, False, 1.5), (2, False, 1.5), (1, True, 1.5), (2, True, 1.5))
    ]
    assert study.figure is not None
    pytest.importorskip("matplotlib")
    (ax,) = study.figure(result).axes
    np.testing.assert_allclose(ax.get_lines()[0].get_ydata(), np.exp(5 / 30))
