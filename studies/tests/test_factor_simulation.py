from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from studies.measure import Cells
from studies.papers.factor_models import (
    CANDIDATES,
    FactorSettings,
    draw_corpus,
    draw_model,
    split_folds,
)
from studies.papers.factor_simulation import (
    CONTRASTS,
    HALF,
    STATISTICS,
    TRUTH,
    FactorResult,
    Row,
    figure,
    run,
)
from torch_lntm.errors import ConfigError
from torch_lntm.evaluation import document_completion
from torch_lntm.guides import make_guide
from torch_lntm.inference import VariationalEM

TINY = FactorSettings(
    true_topics=12,
    num_words=60,
    num_docs=120,
    mean_length=60.0,
    folds=2,
    num_topics=(4, 8),
    completion_topics=8,
    observed_shares=(0.1, 0.5, 0.9),
    models=("iftm", "lda"),
    max_iterations=4,
    num_samples=100,
)
NO_TIMES = {"cpu_seconds": 0.0}


@pytest.fixture(scope="module")
def result() -> FactorResult:
    with warnings.catch_warnings():
        # An estimate that is not reliable is counted in the row instead.
        warnings.simplefilter("error")
        return run(TINY, Cells())


@pytest.mark.slow
def test_every_model_number_of_topics_and_fold_is_measured_once(result: FactorResult) -> None:
    keys = {(row.model, row.num_topics, row.fold) for row in result.rows}
    fitted = {(m, k, f) for m in TINY.models for k in (4, 8) for f in (0, 1)}
    assert keys == fitted | {(TRUTH, 12, 0), (TRUTH, 12, 1)}
    assert len(result.rows) == len(keys)
    for row in result.rows:
        # 60 documents of 60 tokens; worse than equally likely words means something is broken.
        assert -3600 * math.log(60) * 1.1 < row.log_likelihood < -3600 * math.log(2)
        assert -math.log(60) < row.completion < -math.log(2)
        assert row.log_likelihood_error > 0
        assert 1 <= row.effective_sample_size <= 100
        assert 0 <= row.unreliable <= 1
        assert row.iterations == (0 if row.model == TRUTH else 4)
        assert row.converged == (row.model == TRUTH)
        assert (row.cpu_seconds > 0) == (row.model != TRUTH)
    assert any(row.unreliable > 0 for row in result.rows)


@pytest.mark.slow
def test_the_truth_predicts_better_than_any_fit(result: FactorResult) -> None:
    for fold in range(2):
        truth = result.select(TRUTH, 12)[fold]
        for row in result.rows:
            if row.fold == fold and row.model != TRUTH:
                assert row.completion < truth.completion - 0.02
                assert row.log_likelihood < truth.log_likelihood - 50


@pytest.mark.slow
def test_perplexity_falls_with_the_observed_share(result: FactorResult) -> None:
    for name in (*TINY.models, TRUTH):
        least, half, most = (result.perplexity(name, share)[0] for share in (0.1, 0.5, 0.9))
        # Nine tenths leave 720 tokens to predict. Their perplexity has a standard error of 4 %,
        # too large to tell it from that of a half, but not from that of a tenth.
        assert least > half
        assert least > most


@pytest.mark.slow
def test_shares_are_varied_at_one_number_of_topics_only(result: FactorResult) -> None:
    for row in result.rows:
        varied = row.model == TRUTH or row.num_topics == 8
        assert list(row.completions) == (["0.1", "0.5", "0.9"] if varied else [])
        if varied:
            assert row.completions[str(HALF)] == row.completion


def test_models_differ_in_what_their_names_say() -> None:
    priors = {}
    for name, candidate in CANDIDATES.items():
        model = candidate.make(8, 20, **candidate.options)
        guide = make_guide(candidate.posterior, model)
        weight = getattr(model.prior, "pseudo_documents", None)
        source = model.config.get("source")
        priors[name] = (model.name, source, guide.name, weight)
    assert priors == {
        "ctm": ("ctm", None, "taylor", 18.0),
        "iftm": ("iftm", "gaussian", "factor", 2.0),
        "lda": ("lda", None, "vb", None),
        "ctm-ml": ("ctm", None, "blei-lafferty", 0.0),
        "ctm-taylor-ml": ("ctm", None, "taylor", 0.0),
    }
    assert {name for pair in CONTRASTS for name in pair} <= set(CANDIDATES)


def test_the_true_covariance_has_the_spectrum_that_the_settings_say() -> None:
    model = draw_model(TINY)
    values = torch.linalg.eigvalsh(model.prior.covariance.detach()).flip(0)
    assert float(values.mean()) == pytest.approx(4.0)
    torch.testing.assert_close(values[0] / values, torch.arange(1.0, 13.0).double())
    flat = draw_model(replace(TINY, covariance_decay=0.0)).prior.covariance.detach()
    torch.testing.assert_close(flat, 4.0 * torch.eye(12).double())


def test_lengths_are_poisson() -> None:
    settings = replace(TINY, num_docs=4000)
    lengths = draw_corpus(settings, draw_model(settings)).lengths
    # Mean and variance 60, each with a standard error over documents.
    assert abs(lengths.mean() - 60.0) < 4 * math.sqrt(60 / 4000)
    assert abs(lengths.var() - 60.0) < 4 * 60 * math.sqrt(2 / 4000)


def test_every_document_is_tested_once_and_never_trained_on_then() -> None:
    settings = replace(TINY, folds=5, num_docs=103)
    corpus = draw_corpus(settings, draw_model(settings))
    counts = corpus.to_scipy().toarray()
    folds = split_folds(settings, corpus)
    assert sorted(test.num_docs for _, test in folds) == [20, 20, 21, 21, 21]
    tested = np.concatenate([test.to_scipy().toarray() for _, test in folds])
    assert sorted(map(tuple, tested)) == sorted(map(tuple, counts))
    for train, test in folds:
        both = np.concatenate([part.to_scipy().toarray() for part in (train, test)])
        assert sorted(map(tuple, both)) == sorted(map(tuple, counts))


@pytest.mark.slow
def test_a_fit_has_not_seen_its_test_documents(result: FactorResult) -> None:
    truth = draw_model(TINY)
    train, test = split_folds(TINY, draw_corpus(TINY, truth))[0]
    model = CANDIDATES["lda"].make(8, 60)
    guide = make_guide("vb", model)
    VariationalEM(model, guide, tolerance=1e-5, max_iterations=4, progress=False).fit(train)
    fitted, true = (
        [
            document_completion(
                scored.model, part, guide=scored, theta="mean", num_draws=200
            ).nats_per_token
            for part in (train, test)
        ]
        for scored in (guide, make_guide("taylor", truth))
    )
    assert fitted[1] == pytest.approx(result.select("lda", 8)[0].completion, abs=1e-9)
    # Memorising is easy with 60 documents. The truth says how hard the documents of a part are.
    assert fitted[0] - true[0] > fitted[1] - true[1] + 0.02


@pytest.mark.slow
def test_same_seed_same_numbers_and_another_seed_others(result: FactorResult) -> None:
    small = replace(TINY, models=("lda",), num_topics=(8,))
    # A fit's numbers do not depend on what else is fitted.
    again, other = (run(settings, Cells()).rows for settings in (small, replace(small, seed=1)))
    for row, different in zip(again, other, strict=True):
        same = result.select(row.model, row.num_topics)[row.fold]
        assert replace(row, **NO_TIMES) == replace(same, **NO_TIMES)
        assert row.completion != different.completion


def made_up() -> FactorResult:
    settings = replace(TINY, models=("iftm", "lda"))
    rows = [
        Row(name, k, fold, value + fold, 1.0, -0.01 * value, 0.25, 50.0, 4, 1.0, False, {})
        for name, value in (("iftm", 100.0), ("lda", 90.0), (TRUTH, 300.0))
        for k in ((12,) if name == TRUTH else (4, 8))
        for fold in (1, 0)
    ]
    shares = {"0.1": -math.log(30.0), "0.5": -math.log(20.0), "0.9": -math.log(10.0)}
    return FactorResult(settings, [replace(row, completions=shares) for row in rows])


def test_averages_differences_and_their_errors() -> None:
    result = made_up()
    assert result.average("iftm", 4, "log_likelihood") == pytest.approx((100.5, 0.5))
    # The folds' own level is common to both models.
    assert result.difference("iftm", "lda", 4, "log_likelihood") == pytest.approx((10.0, 0.0))
    assert result.perplexity("lda", 0.1) == pytest.approx((30.0, 0.0))
    with pytest.raises(ConfigError, match="nothing was measured for 'ctm' with 9 topics"):
        result.select("ctm", 9)


def test_there_is_a_table_per_statistic_pair_and_share() -> None:
    text = made_up().tables()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    assert rows.index(["K", "IFTM-G", "LDA"]) + 2 == rows.index(["4", "100 (0)", "90 (0)"])
    assert all(f"{name}: {description}" in text for name, (description, _) in STATISTICS.items())
    assert "of the truth 300 (0)" in text
    assert rows.index(["K", "IFTM-G − LDA"]) + 2 == rows.index(["4", "10 (0)"])
    assert ["0.1", "30.0 (0.0)", "30.0 (0.0)", "30.0 (0.0)"] in rows
    assert "CTM" not in text


@pytest.mark.slow
def test_figure_shows_what_was_measured(result: FactorResult) -> None:
    left, right = figure(result).axes
    labels = [CANDIDATES[name].label for name in TINY.models]
    assert [c.get_label() for c in left.containers] == labels
    for name, a, b in zip(TINY.models, left.containers, right.containers, strict=True):
        drawn = list(a.lines[0].get_ydata())
        expected = [result.average(name, k, "log_likelihood")[0] for k in (4, 8)]
        assert drawn == pytest.approx(expected)
        assert list(b.lines[0].get_xdata()) == pytest.approx([10, 50, 90])
        drawn = list(b.lines[0].get_ydata())
        expected = [result.perplexity(name, share)[0] for share in (0.1, 0.5, 0.9)]
        assert drawn == pytest.approx(expected)


def bar_lengths(container: Any) -> list[float]:
    return [float(np.ptp(segment[:, 1])) for segment in container.lines[2][0].get_segments()]


@pytest.mark.slow
def test_bars_leave_out_what_the_folds_have_in_common(result: FactorResult) -> None:
    assert bar_lengths(figure(made_up()).axes[0].containers[0]) == pytest.approx([0.0, 0.0])
    # Of two models, each differs from their average by half of their difference.
    _, errors = zip(
        *(result.difference("iftm", "lda", k, "log_likelihood") for k in (4, 8)), strict=True
    )
    assert bar_lengths(figure(result).axes[0].containers[1]) == pytest.approx(list(errors))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"true_topics": 1}, "true_topics is 1"),
        ({"num_words": 0}, "num_words is 0"),
        ({"num_docs": 2.5}, "num_docs is 2.5"),
        ({"folds": 1}, "folds is 1"),
        ({"folds": 121}, "folds is 121, more than the 120"),
        ({"num_topics": (8, 1)}, "num_topics is 1"),
        ({"num_topics": ()}, "completion_topics is 8"),
        ({"completion_topics": 5}, "completion_topics is 5"),
        ({"observed_shares": (0.5, 1.0)}, "observed_shares"),
        ({"models": ()}, "models are none"),
        ({"models": ("ctm", "cmt")}, "models are ctm, cmt"),
        ({"mean_length": 0.0}, "mean_length is 0.0"),
        ({"prior_variance": math.nan}, "prior_variance is nan"),
        ({"loc_variance": -1.0}, "loc_variance is -1.0"),
        ({"covariance_decay": "fast"}, "covariance_decay is 'fast'"),
        ({"topic_concentration": math.inf}, "topic_concentration is inf"),
        ({"tolerance": -1e-5}, "tolerance is -1e-05"),
        ({"max_iterations": 0}, "max_iterations is 0"),
        ({"num_samples": 24}, "num_samples is 24"),
        ({"seed": True}, "seed is True"),
    ],
)
def test_bad_settings_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(TINY, **change)
