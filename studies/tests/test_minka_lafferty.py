from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.special import gammaln

from studies.measure import Cells
from studies.papers import (
    minka_lafferty_five_word,
    minka_lafferty_text,
    minka_lafferty_two_class,
    minka_lafferty_two_word,
)
from studies.papers.minka_lafferty import (
    PASSES,
    dirichlet_rule,
    em_updates,
    exact_log_likelihood,
    fit_small,
    make_method,
    small_batch,
    small_model,
)
from studies.papers.minka_lafferty_five_word import FiveWordResult, FiveWordSettings
from studies.papers.minka_lafferty_text import (
    TextResult,
    TextSettings,
    draw_documents,
    mixtures,
)
from studies.papers.minka_lafferty_two_class import (
    OPTIMAL,
    TwoClassResult,
    TwoClassSettings,
    num_errors,
)
from studies.papers.minka_lafferty_two_word import (
    TwoWordResult,
    TwoWordSettings,
    document_curves,
    draw_corpus,
)
from studies.tables import mean_and_error, with_error
from tests.support.corpora import save_counts
from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.errors import ConfigError

pytestmark = pytest.mark.slow

TWO_WORD = TwoWordSettings(repetitions=5, grid_points=25, num_docs=(10, 30), tolerance=1e-4)
FIVE_WORD = FiveWordSettings(repetitions=1, num_test_docs=200, tolerances=(1e-3, 2e-4))
TWO_CLASS = TwoClassSettings(repetitions=2, num_test_docs=500, tolerance=3e-3)


@pytest.fixture(scope="module")
def two_word() -> TwoWordResult:
    return minka_lafferty_two_word.run(TWO_WORD, Cells())


@pytest.fixture(scope="module")
def five_word() -> FiveWordResult:
    return minka_lafferty_five_word.run(FIVE_WORD, Cells())


@pytest.fixture(scope="module")
def two_class() -> TwoClassResult:
    return minka_lafferty_two_class.run(TWO_CLASS, Cells())


@pytest.fixture(scope="module")
def text_settings(tmp_path_factory: pytest.TempPathFactory) -> TextSettings:
    """Twenty documents of each of three labels, which favour different words."""
    rng = np.random.default_rng(0)
    counts, labels = [], []
    for i, label in enumerate(("red", "green", "blue")):
        favoured = np.where(np.arange(60) % 3 == i, 8.0, 1.0)
        counts.append(rng.multinomial(40, favoured / favoured.sum(), 20))
        labels += [label] * 20
    folder = tmp_path_factory.mktemp("data")
    save_counts(
        Corpus.from_matrix(np.vstack(counts), metadata={"label": labels}), folder / "colours.npz"
    )
    return TextSettings(
        corpus=str(folder / "colours.npz"),
        categories=("red", "green", "blue"),
        parts=2,
        num_docs=16,
        num_topics=3,
        min_df=1,
        updates=4,
        evaluate_every=2,
        num_samples=100,
        repetitions=2,
    )


@pytest.fixture(scope="module")
def text(text_settings: TextSettings) -> TextResult:
    return minka_lafferty_text.run(text_settings, Cells())


# ---------------------------------------------------------------- exact likelihoods


def by_enumeration(counts: NDArray[np.int64], topics: NDArray[np.float64]) -> float:
    """Log p(w) under α = 1 from every assignment of topics to tokens."""
    tokens = np.repeat(np.arange(len(counts)), counts)
    num_topics = len(topics)
    total = 0.0
    for assigned in product(range(num_topics), repeat=len(tokens)):
        n = np.bincount(assigned, minlength=num_topics)
        log_prior = gammaln(num_topics) + gammaln(n + 1).sum()
        log_prior -= gammaln(num_topics + len(tokens))
        total += math.exp(log_prior) * topics[list(assigned), tokens].prod()
    return math.log(total)


@pytest.mark.parametrize("num_topics", [2, 3, 4])
def test_exact_likelihood_is_that_of_all_assignments(num_topics: int) -> None:
    rng = np.random.default_rng(num_topics)
    topics = rng.dirichlet(np.ones(3), num_topics)
    topics[0, 1] = 0.0
    counts = np.array([[2, 1, 3], [0, 0, 5], [1, 0, 0]])
    expected = [by_enumeration(document, topics) for document in counts]
    np.testing.assert_allclose(exact_log_likelihood(counts, topics), expected, rtol=1e-12)


@pytest.mark.parametrize("degree", [1, 4, 7])
def test_rule_is_exact_to_its_degree_and_no_further(degree: int) -> None:
    alpha = np.array([0.3, 1.0, 2.5])
    theta, weights = dirichlet_rule(alpha.tolist(), degree)
    assert len(weights) == (degree // 2 + 1) ** 2
    np.testing.assert_allclose(theta.sum(1), 1.0)

    def moment(powers: NDArray[np.int64]) -> float:
        log = gammaln(alpha + powers).sum() - gammaln(alpha).sum()
        return math.exp(log + gammaln(alpha.sum()) - gammaln(alpha.sum() + powers.sum()))

    for powers in product(range(degree + 1), repeat=3):
        if sum(powers) <= degree:
            found = weights @ (theta ** np.array(powers)).prod(1)
            assert found == pytest.approx(moment(np.array(powers)), rel=1e-12)
    beyond = np.array([2 * (degree // 2 + 1), 0, 0])
    assert weights @ theta[:, 0] ** beyond[0] != pytest.approx(moment(beyond), rel=1e-9)


# ---------------------------------------------------------------- EM


def test_fit_counts_updates_to_each_tolerance_and_says_where_it_was_not_met() -> None:
    rng = np.random.default_rng(0)
    counts, start = rng.multinomial(20, np.full(3, 1 / 3), 10), rng.dirichlet(np.ones(3), 2)
    guide = make_method("vb", small_model(start), 1e-5)
    changes = []
    for change, _ in em_updates(guide, small_batch(counts)):
        changes.append(change)
        if change <= 1e-3:
            break
    first = next(i for i, change in enumerate(changes, 1) if change <= 1e-2)
    _, met = fit_small("vb", counts, start, [1e-2, 1e-3], 1000)
    assert met == [first, len(changes)]
    assert fit_small("vb", counts, start, [1e-2, 1e-3], first)[1] == [first, None]


@pytest.mark.parametrize("method", ["vb", "ep"])
def test_posteriors_go_on_from_the_last_update(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    batch = small_batch(rng.multinomial(100, np.full(5, 0.2), 20))
    guide = make_method(method, small_model(rng.dirichlet(np.ones(5), 3)), 1e-5)
    solve, found, starts = guide.posterior, [], []

    def spy(batch: DocumentBatch, init: Any, *, max_iterations: int) -> Any:
        assert max_iterations == PASSES
        starts.append(init)
        found.append(solve(batch, init, max_iterations=max_iterations))
        return found[-1]

    monkeypatch.setattr(guide, "posterior", spy)
    updates = em_updates(guide, batch)
    for _ in range(3):
        next(updates)
    assert starts[0] is None
    for start, last in zip(starts[1:], found, strict=False):
        torch.testing.assert_close(start, last.sites if method == "ep" else last.mean)


# ---------------------------------------------------------------- two words


def test_curves_are_the_likelihood_its_bound_and_its_maximum() -> None:
    curves = document_curves(6, np.array([0.0, 0.2, 0.7]))
    for i, p in enumerate((0.0, 0.2, 0.7)):
        for ones in range(7):

            def likelihood(share: float, p: float = p, ones: int = ones) -> float:
                word = share * p + 1.0 - share
                return word**ones * (1.0 - word) ** (6 - ones)

            exact = math.log(quad(likelihood, 0.0, 1.0)[0])
            best = max(likelihood(share) for share in np.linspace(0.0, 1.0, 2001))
            assert curves["exact"][i, ones] == pytest.approx(exact, abs=1e-9)
            assert curves["max"][i, ones] == pytest.approx(math.log(best), abs=1e-4)
            assert curves["vb"][i, ones] <= exact + 1e-9
            vb, ep = (abs(curves[name][i, ones] - exact) for name in ("vb", "ep"))
            assert ep < 0.5 * vb + 1e-9  # both are exact where words tell their aspects


def test_corpora_come_from_the_true_model() -> None:
    drawn = draw_corpus(TWO_WORD, 20_000, np.random.default_rng(0)) / TWO_WORD.length
    # The share of word 1 is uniform from 0.5 to 1; binomial noise adds E p(1 − p) / 10.
    assert drawn.mean() == pytest.approx(0.75, abs=0.01)
    assert drawn.var() == pytest.approx(1 / 48 + (0.75 - 0.75**2 - 1 / 48) / 10, abs=0.002)


@pytest.mark.slow
def test_em_with_eq_27_ends_at_the_maximum_of_the_bound(two_word: TwoWordResult) -> None:
    spacing = 1.0 / TWO_WORD.grid_points
    assert two_word.unconverged == 0
    for size in TWO_WORD.num_docs:
        peaks, ends = two_word.maximisers[size]["vb"], two_word.estimates[size]["vb"]
        # Within half a grid step, and what the tolerance leaves of a linear convergence.
        np.testing.assert_allclose(ends, peaks, atol=0.5 * spacing + 0.005)


@pytest.mark.slow
@pytest.mark.stat
def test_ep_is_near_the_exact_maximum_and_vb_is_not(two_word: TwoWordResult) -> None:
    for size in TWO_WORD.num_docs:
        exact = np.array(two_word.maximisers[size]["exact"])
        away = {
            name: np.abs(np.array(p) - exact).mean() for name, p in two_word.estimates[size].items()
        }
        assert away["ep"] < 0.04
        assert away["ep"] < away["vb second-order"] < away["vb"]
        assert away["vb"] > 0.1
        curves = two_word.maximisers[size]
        np.testing.assert_allclose(curves["ep"], exact, atol=1.01 / TWO_WORD.grid_points)


def test_max_approximation_is_flat_up_to_the_smallest_frequency(two_word: TwoWordResult) -> None:
    smallest = min(two_word.frequencies) / TWO_WORD.length
    curve = np.array(two_word.curves["max"])
    flat = np.array(two_word.grid) <= smallest + 1e-9
    np.testing.assert_allclose(curve[flat], curve.max(), atol=1e-9)
    assert curve[~flat].max() < curve.max() - 1e-3
    assert two_word.maximisers[10]["max"][0] == pytest.approx(smallest)


# ---------------------------------------------------------------- five words, two classes


@pytest.mark.slow
@pytest.mark.stat
def test_ep_finds_the_uniform_distribution_and_vb_extremes(five_word: FiveWordResult) -> None:
    vb, second_order, ep = (five_word.of(method)[0] for method in ("vb", "vb second-order", "ep"))
    assert 0.1 < ep.smallest < ep.largest < 0.3
    assert vb.smallest < 0.05
    assert vb.largest > 0.45
    assert second_order.largest - second_order.smallest < vb.largest - vb.smallest
    # The exact likelihood, which neither method climbs, agrees with EP.
    assert ep.train_log_likelihood > second_order.train_log_likelihood > vb.train_log_likelihood
    assert 5.0 <= ep.perplexity < second_order.perplexity < vb.perplexity < 5.3


@pytest.mark.slow
def test_ep_takes_fewer_updates(five_word: FiveWordResult) -> None:
    vb, ep = (five_word.of(method)[0].updates for method in ("vb", "ep"))
    assert None not in vb + ep
    assert vb[0] < vb[1]
    assert ep[1] < 0.7 * vb[1]


@pytest.mark.slow
@pytest.mark.stat
def test_ep_classifies_nearly_as_the_true_models_and_vb_worse(two_class: TwoClassResult) -> None:
    total = {name: sum(errors) for name, errors in two_class.errors.items()}
    documents = 2 * 2 * TWO_CLASS.num_test_docs
    # The optimal classifier errs on 3.5 %.
    assert total[OPTIMAL] == pytest.approx(0.035 * documents, rel=0.4)
    assert total["ep"] < 1.4 * total[OPTIMAL]
    assert total["vb"] > 1.1 * total["ep"]
    # EP's evidence classifies as the exact likelihood does.
    assert total["ep, by its evidence"] == pytest.approx(total["ep"], rel=0.1)


def test_errors_are_counted_on_both_sides() -> None:
    first, second = np.array([1.0, 0.0, 2.0, 1.0]), np.array([0.0, 1.0, 1.0, 2.0])
    assert num_errors(first, second) == 2
    assert num_errors(second, first) == 2
    assert num_errors(np.array([1.0, 0.0]), np.array([0.0, 1.0])) == 0
    assert num_errors(np.array([0.0, 1.0]), np.array([1.0, 0.0])) == 2


# ---------------------------------------------------------------- texts


def test_mixtures_use_documents_of_one_label_once() -> None:
    # Each document is a word of its own, so counts say who is in a mixture.
    labels = ["a", "b", "a|b", "c", "a", "b", "b", "a", "d", "a"]
    corpus = Corpus.from_matrix(np.eye(10, dtype=int), metadata={"label": labels})
    counts = mixtures(corpus, ["a", "b"], 3, 2, np.random.default_rng(1)).toarray()
    assert counts.shape == (3, 10)
    assert set(counts.sum(1)) == {2}
    assert counts.sum(0).max() == 1
    used = {labels[i] for i in np.flatnonzero(counts.sum(0))}
    assert used == {"a", "b"}
    with pytest.raises(ConfigError, match="category 'c' has 1 documents"):
        mixtures(corpus, ["c"], 2, 2, np.random.default_rng(0))
    bare = Corpus.from_matrix(np.eye(3, dtype=int))
    with pytest.raises(ConfigError, match="no labels"):
        mixtures(bare, ["a"], 1, 1, np.random.default_rng(0))


@pytest.mark.parametrize("min_df", [1, 3])
def test_words_rare_in_training_are_dropped_from_both(min_df: int) -> None:
    rng = np.random.default_rng(0)
    counts = sp.random(
        40, 50, density=0.06, random_state=0, data_rvs=lambda n: rng.integers(1, 4, n)
    )
    names = [f"w{v}" for v in range(50)]
    corpus = Corpus.from_matrix(counts.astype(int), names)
    settings = TextSettings(categories=(), num_docs=30, min_df=min_df)
    train, test, dropped = draw_documents(corpus, settings, np.random.default_rng(3))
    order = np.random.default_rng(3).permutation(40)[:30]
    table_ = corpus.to_scipy().toarray()
    kept = (table_[order[8:]] > 0).sum(0) >= min_df
    np.testing.assert_array_equal(train.to_scipy().toarray(), table_[order[8:]][:, kept])
    np.testing.assert_array_equal(test.to_scipy().toarray(), table_[order[:8]][:, kept])
    assert train.vocabulary == tuple(np.array(names)[kept])
    assert dropped == pytest.approx(1 - test.num_tokens / table_[order[:8]].sum())
    assert dropped > 0.0
    with pytest.raises(ConfigError, match="fewer than 41"):
        draw_documents(corpus, replace(settings, num_docs=41), np.random.default_rng(0))


@pytest.mark.slow
def test_text_fits_learn(text: TextResult) -> None:
    assert [(fit.repetition, fit.method) for fit in text.fits] == [
        *((0, "vb"), (0, "ep"), (1, "vb"), (1, "ep"))
    ]
    for fit in text.fits:
        assert len(fit.perplexity) == len(text.settings.evaluated()) == 3
        assert 30.0 < fit.perplexity[-1] < fit.perplexity[0] < 100.0
        assert fit.concentration == sorted(fit.concentration, reverse=True)
        assert fit.shares.sum() == pytest.approx(1.0)
        assert fit.dirichlet_perplexity == pytest.approx(fit.perplexity[-1], rel=0.05)
    first, second = text.of("ep")
    assert first.perplexity != second.perplexity


@pytest.mark.slow
def test_same_seed_same_numbers_and_another_seed_others(
    text: TextResult, text_settings: TextSettings
) -> None:
    again, other = (
        minka_lafferty_text.run(replace(text_settings, repetitions=1, seed=seed), Cells())
        for seed in (0, 1)
    )
    for fit, same, different in zip(text.fits, again.fits, other.fits, strict=False):
        assert same.perplexity == fit.perplexity
        assert different.perplexity != fit.perplexity


@pytest.mark.slow
def test_evaluations_do_not_change_the_fit(text: TextResult, text_settings: TextSettings) -> None:
    often = replace(text_settings, repetitions=1, evaluate_every=1)
    result = minka_lafferty_text.run(often, Cells())
    for fit, same in zip(text.fits, result.fits, strict=False):
        assert [same.perplexity[i] for i in (0, 1, 3)] == fit.perplexity
        assert same.concentration == fit.concentration


def test_evaluates_the_first_and_the_last_update() -> None:
    assert TextSettings(updates=12, evaluate_every=5).evaluated() == [1, 5, 10, 12]
    assert TextSettings(updates=1, evaluate_every=5).evaluated() == [1]


@pytest.mark.slow
def test_tables_hold_what_was_measured(
    two_word: TwoWordResult, five_word: FiveWordResult, two_class: TwoClassResult, text: TextResult
) -> None:
    mean, error = mean_and_error(two_word.estimates[30]["ep"])
    assert f"{mean:.4f} ({error:.4f})" in two_word.tables()
    row = five_word.of("ep")[0]
    line = next(line for line in five_word.tables().splitlines() if line.startswith("| ep "))
    assert [cell.strip() for cell in line.split("|")[2:4]] == [
        f"{row.smallest:.4f}",
        f"{row.largest:.4f}",
    ]
    away = [a - b for a, b in zip(two_class.errors["vb"], two_class.errors["ep"], strict=True)]
    assert with_error(away, 1) in two_class.tables()
    last = [fit.perplexity[-1] for fit in text.of("vb")]
    line = next(line for line in text.tables().splitlines() if line.startswith("| 4 "))
    assert line.split("|")[2].strip() == with_error(last, 1)


def test_figures_show_what_was_measured(two_word: TwoWordResult, text: TextResult) -> None:
    pytest.importorskip("matplotlib")
    top, bottom = two_word.figure().axes
    lines = {line.get_label(): line for line in [*top.lines, *bottom.lines]}
    for label, name in (("Max, scaled", "max"), ("VB, scaled", "vb"), ("EP", "ep")):
        drawn = np.asarray(lines[label].get_ydata())
        reference = two_word.curves["exact" if name == "ep" else name]
        expected = np.exp(np.array(two_word.curves[name]) - max(reference))
        np.testing.assert_allclose(drawn, expected)
    assert lines["EM, EP (eqs 32–34)"].get_xdata()[0] == two_word.estimates[10]["ep"][0]
    left, right = text.figure().axes
    mean = np.mean([fit.perplexity for fit in text.of("ep")], 0)
    (line,) = [line for line in left.lines if line.get_label() == "EP"]
    np.testing.assert_allclose(np.asarray(line.get_ydata()), mean)
    heights = [patch.get_height() for patch in right.patches]
    np.testing.assert_allclose(heights[:3], np.mean([fit.shares for fit in text.of("vb")], 0))


@pytest.mark.parametrize(
    ("settings", "change", "message"),
    [
        (TwoWordSettings, {"num_docs": ()}, "num_docs is empty"),
        (TwoWordSettings, {"num_docs": (10, 0)}, "num_docs is 0"),
        (TwoWordSettings, {"length": 2.5}, "length is 2.5"),
        (TwoWordSettings, {"true_probability": 1.0}, "true_probability is 1.0"),
        (TwoWordSettings, {"true_probability": 0.0}, "true_probability is 0.0"),
        (FiveWordSettings, {"num_topics": 1}, "num_topics is 1"),
        (FiveWordSettings, {"tolerances": ()}, "expected falling"),
        (FiveWordSettings, {"tolerances": (1e-5, 1e-4)}, "expected falling"),
        (FiveWordSettings, {"tolerances": (math.nan,)}, "tolerances is nan"),
        (TwoClassSettings, {"num_words": 1}, "num_words is 1"),
        (TwoClassSettings, {"seed": -1}, "seed is -1"),
        (TextSettings, {"num_docs": 1}, "num_docs is 1"),
        (TextSettings, {"test_fraction": 1.0}, "test_fraction is 1.0"),
        (TextSettings, {"updates": True}, "updates is True"),
    ],
)
def test_bad_settings_are_refused(
    settings: Callable[..., Any], change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        settings(**change)
