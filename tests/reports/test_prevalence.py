"""Prevalence of topics and errors of correlations, against loops over draws."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
from support.known import make_model

import torch_lntm as lntm
from torch_lntm.corpus import synthetic_topics
from torch_lntm.errors import ConfigError, CorpusError
from torch_lntm.inference import theta_draws
from torch_lntm.reports import summarise_corpus
from torch_lntm.reports.prevalence import (
    correlation_intervals,
    correlation_lines,
    differences,
    dividing_columns,
    levels_of,
)

SAMPLES = 7


@pytest.fixture(scope="module")
def known():
    """A guide, and twelve documents of three groups, the last one's single; the fifth is empty."""
    counts = np.random.default_rng(0).poisson(2.0, (12, 4))
    counts[4] = 0
    party = ["a", "b"] * 5 + [None, "c"]
    model = make_model(dtype="float64")
    corpus = lntm.Corpus.from_matrix(counts, model.vocabulary, metadata={"party": party})
    return lntm.guides.TaylorGuide(model), corpus


@pytest.fixture(scope="module")
def theta(known):
    guide, corpus = known
    return guide.posterior(corpus.batch(dtype=torch.float64)).theta_samples(SAMPLES, seed=3).numpy()


def test_a_level_of_one_document_has_the_widest_interval(known, theta):
    guide, corpus = known
    found = summarise_corpus(theta_draws(guide, corpus, SAMPLES, seed=3), corpus, ["party"])
    (prevalence,) = found.prevalence
    assert prevalence.levels.names[2] == "c"
    sizes = dict(zip(prevalence.levels.names, prevalence.num_docs.tolist(), strict=True))
    assert sizes == {"a": 4, "b": 5, "c": 1}
    assert np.isinf(prevalence.standard_error[2]).all()
    assert prevalence.lower[2].tolist() == [0.0] * 3
    assert prevalence.upper[2].tolist() == [1.0] * 3
    filled = [d for d in range(12) if d != 4]
    assert found.overall.num_docs.tolist() == [11]
    assert found.overall.mean[0] == pytest.approx(theta[:, filled].mean((0, 1)))
    assert found.documents.theta.numpy() == pytest.approx(theta.mean(0))
    assert found.documents.converged.all()


def test_equal_weights_are_none_and_negative_ones_are_refused(known):
    guide, corpus = known
    draws = theta_draws(guide, corpus, SAMPLES, seed=3)
    equal = summarise_corpus(draws, corpus, weights=np.full(12, 5.0)).overall.frame()
    pd.testing.assert_frame_equal(equal, summarise_corpus(draws, corpus).overall.frame())
    with pytest.raises(ConfigError, match="finite numbers from 0"):
        summarise_corpus(draws, corpus, weights=-np.ones(12))


@pytest.mark.parametrize("stratified", [True, False])
@pytest.mark.parametrize("clustered", [True, False])
@pytest.mark.parametrize("max_docs", [None, 5])
def test_levels_are_domains_of_a_survey(known, theta, clustered, stratified, max_docs):
    """Taylor linearisation of weighted means, by loops over draws, strata and clusters."""
    guide, corpus = known
    weights, clusters = np.random.default_rng(2).uniform(0.5, 3, 12), np.arange(12) * 5 % 6
    weights[2] = 0.0
    strata = clusters % 2 if clustered else np.arange(12) // 5 % 2
    options = {"clusters": clusters} if clustered else {}
    options |= {"strata": strata} if stratified else {}
    draws = theta_draws(guide, corpus, SAMPLES, seed=3, max_docs=max_docs)
    found = summarise_corpus(draws, corpus, ["party"], weights=weights, **options)
    clusters = clusters if clustered else np.arange(12)
    strata = strata if stratified else np.zeros(12)
    party, filled = np.array(corpus.metadata["party"], object), (corpus.lengths > 0) & (weights > 0)
    (by_party,) = found.prevalence
    levels = [(by_party, at, name) for at, name in enumerate(by_party.levels.names[:2])]
    for shown, at, name in [(found.overall, 0, None), *levels]:
        counted = filled if name is None else filled & (party == name)
        w = np.where(counted, weights, 0) / weights[counted].sum()
        means, within, freedom = theta.transpose(0, 2, 1) @ w, 0.0, 0
        for stratum in np.unique(strata):
            own = filled & (strata == stratum)
            present = np.unique(clusters[own & counted])
            # Without strata, a level is a sample of its own.
            units = np.unique(clusters[own]) if stratified else present
            freedom += max(len(present) - 1, 0)
            scores = w[:, None] * (theta - means[:, None])
            totals = np.stack([scores[:, own & (clusters == c)].sum(1) for c in units], 1)
            totals -= totals.mean(1, keepdims=True)
            within = within + len(units) / (len(units) - 1) * np.square(totals).sum(1).mean(0)
        error = np.sqrt(within + (1 + 1 / SAMPLES) * means.var(0, ddof=1))
        assert shown.mean[at] == pytest.approx(means.mean(0))
        assert shown.standard_error[at] == pytest.approx(error)
        ends = scipy.stats.t.interval(0.95, freedom, means.mean(0), error)
        assert shown.lower[at] == pytest.approx(np.maximum(ends[0], 0))
        assert shown.upper[at] == pytest.approx(np.minimum(ends[1], 1))
    expected = ["given weights", "6 clusters" * clustered + " in " * (clustered and stratified)]
    assert found.design.startswith(expected[0])
    assert found.design.endswith("2 strata" if stratified else expected[1])


def test_groups_that_differ_more_clearly_have_a_larger_difference():
    mean = np.array([[0.2, 0.3, 0.5], [0.2, 0.4, 0.4]])
    error = np.array([[0.1, 0.01, 0.1], [0.1, 0.01, 0.1]])
    # Two groups 0.1 apart lie 0.05 from their mean.
    assert differences(mean, error) == pytest.approx([0.0, 25.0, 0.25])


def test_missing_information_enlarges_the_errors_of_correlations(known, theta):
    found = summarise_corpus(*known, num_draws=SAMPLES, seed=3).correlation_error
    filled = [d for d in range(12) if d != 4]
    z = []
    for draw in theta:
        logits = np.log(draw[filled])
        logits -= logits.mean(1, keepdims=True)
        z.append(np.arctanh(np.corrcoef(logits.T) - np.eye(3)))
    complete, missing = 11 - 3, (11 - 3) ** 2 * np.var(z, axis=0, ddof=1)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        left = complete - missing[i, j]
        expected = left**-0.5 if left > 0 else np.inf
        assert [found[i, j], found[j, i]] == pytest.approx([expected] * 2)


def test_intervals_of_correlations_are_fishers():
    correlation = np.array([[1.0, 0.5], [0.5, 1.0]])
    error = np.array([[0.1, 0.1], [0.1, np.inf]])
    lower, upper = correlation_intervals(correlation, error, 0.95)
    assert lower[0, 1] == pytest.approx(np.tanh(np.arctanh(0.5) - 1.959964 * 0.1))
    assert upper[0, 1] == pytest.approx(np.tanh(np.arctanh(0.5) + 1.959964 * 0.1))
    assert (lower[1, 1], upper[1, 1]) == (-1.0, 1.0)


def test_invalid_arguments_are_refused(known):
    guide, corpus = known
    with pytest.raises(ConfigError, match="level is 95"):
        summarise_corpus(guide, corpus, level=95)
    with pytest.raises(ConfigError, match="at least 2 draws"):
        summarise_corpus(guide, corpus, num_draws=1)
    with pytest.raises(CorpusError, match="county"):
        summarise_corpus(guide, corpus, ["county"])
    empty = lntm.Corpus.from_matrix(np.zeros((2, 4), int), corpus.vocabulary, allow_empty=True)
    with pytest.raises(ConfigError, match="no words"):
        summarise_corpus(guide, empty)


@pytest.mark.stat
def test_intervals_of_correlations_cover_the_truth():
    """The fit starts at the true topics, and all else is estimated.

    Of 45 independent intervals at 95 %, fewer than 38 cover the truth in one run of 600.
    """
    covariance = 2 * torch.eye(10, dtype=torch.float64)
    for i in (0, 2):
        covariance[i, i + 1] = covariance[i + 1, i] = 1.4
    topics = synthetic_topics(10, 300, 0.05, seed=3)
    truth = lntm.models.ctm(10, 300, covariance=covariance, topics=topics)
    corpus = truth.generate(torch.full((400,), 60), seed=0)[0]
    model = lntm.models.ctm(10, 300, covariance=covariance, topics=topics)
    guide = lntm.guides.TaylorGuide(model)
    lntm.inference.VariationalEM(model, guide, start="model", progress=False).fit(corpus)
    error = summarise_corpus(guide, corpus).correlation_error
    correlation = model.topic_correlation().detach().numpy()
    lower, upper = correlation_intervals(correlation, error, 0.95)
    true = truth.topic_correlation().numpy()
    pairs = np.triu_indices(10, 1)
    assert ((lower <= true) & (true <= upper))[pairs].sum() >= 38
    # They are not so wide as to say nothing, nor narrower than with the logits observed.
    assert np.median(error[pairs]) < 3 * 400**-0.5
    assert error[pairs].min() > 397**-0.5
    drawn = correlation_lines(correlation, error, 0.95)
    drawn = drawn[drawn["correlation"] > 0]
    assert set(zip(drawn["first"], drawn["second"], strict=True)) >= {(0, 1), (2, 3)}


# -- levels of a column --------------------------------------------------------------------------


def grouped(values):
    corpus = lntm.Corpus.from_matrix(np.ones((len(values), 2), int), metadata={"x": values})
    return levels_of("x", corpus.metadata["x"])


NAMES = [f"n{i:02}" for i in range(20)]
MANY = ("n19", *NAMES[:10], "other (9)")


@pytest.mark.parametrize(
    ("values", "names", "codes", "axis"),
    [
        (["b", "a", None, "b"], ("b", "a"), [0, 1, -1, 0], None),
        ([*NAMES, "n19"], MANY, [*range(1, 11), *[11] * 9, 0, 0], None),
        ([3.0, 1.5, float("nan"), 3.0], ("1.5", "3"), [1, 0, -1, 1], [1.5, 3.0]),
        ([2005, 2006, 2007], ("2005", "2006", "2007"), [0, 1, 2], [2005, 2006, 2007]),
        ([0, 10, 100], ("0", "10", "100"), [0, 1, 2], [0, 10, 100]),
    ],
)
def test_few_names_and_numbers_are_levels(values, names, codes, axis):
    groups = grouped(values)
    assert groups.names == names
    assert groups.codes.tolist() == codes
    positions, note = groups.axis
    assert (positions is None) if axis is None else positions.tolist() == axis
    assert note == ""


def test_many_numbers_form_bins_with_equal_numbers_of_documents():
    groups = grouped(list(range(100)))
    assert np.bincount(groups.codes).tolist() == [10] * 10
    assert groups.names[:2] == ("0 to 9", "10 to 19")
    assert groups.axis[0].tolist() == list(range(10))
    sizes = grouped([*np.round(np.geomspace(1, 2_057_360, 40)).tolist(), float("nan")])
    assert sizes.codes[-1] == -1
    assert sizes.names[-1].endswith(" to 2,057,360")
    assert not any("e+" in name for name in sizes.names)
    assert "equally spaced" in sizes.axis[1]


@pytest.mark.parametrize(
    ("dates", "names", "codes"),
    [
        (["2008-01-03", "2008-01-01", "2008-01-03"], ("2008-01-01", "2008-01-03"), [1, 0, 1]),
        (["2008-01-03", "2008-04-01T10:00:00Z", "2008-01"], ("2008-01", "2008-04"), [0, 1, 0]),
        (["2008-01-03", None, "2012-04-01"], ("2008", "2012"), [0, -1, 1]),
        (["1901-01-03", "2008-04-01", "1902-12-31"], ("1901 to 1903", "2006 to 2008"), [0, 1, 0]),
    ],
)
def test_dates_are_levels_by_a_suitable_period(dates, names, codes):
    # The second: 2008-01 to 2008-04 is 92 days, more than 36, and 4 months.
    groups = grouped(dates)
    assert groups.names == names
    assert groups.codes.tolist() == codes
    assert len(groups.axis[0]) == len(names)


@pytest.mark.parametrize("odd", ["2008-13-01", "2008-01-03x", "in 2008-01"])
def test_a_text_that_is_not_a_date_is_a_name(odd):
    assert grouped(["2008-01-01", odd]).axis[0] is None


def test_few_skewed_numbers_lie_on_a_logarithmic_axis():
    groups = grouped([1, 10, 100, 1000, 10_000])
    np.testing.assert_allclose(np.diff(groups.axis[0]), np.log(10))
    assert groups.names == ("1", "10", "100", "1000", "10,000")
    assert "logarithmic" in groups.axis[1]


def test_ids_and_repeated_columns_do_not_divide_documents():
    columns = {
        "id": [f"d{i}" for i in range(60)],
        "label": ["L", "R"] * 30,
        "party": ["left", "right"] * 30,
        "one": ["same"] * 60,
        "day": [str(np.datetime64("2001-01-01") + i) for i in range(60)],
        "year": list(range(60)),
        "constant": [1.0, float("nan")] * 30,
    }
    corpus = lntm.Corpus.from_matrix(np.ones((60, 2), int), metadata=columns)
    assert dividing_columns(corpus) == ["party", "day", "year"]
