"""Fits of several numbers of topics side by side, and the recommendation."""

from __future__ import annotations

import statistics
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

import torch_lntm as lntm
from torch_lntm.errors import ConfigError
from torch_lntm.evaluation import AIS, align_topics, document_completion, log_likelihood
from torch_lntm.inference.em.monte_carlo import MonteCarloRun
from torch_lntm.recipes import Recipe
from torch_lntm.selection import CRITERIA, Selection, _add_seeds

#: Few chains and temperatures, and so an estimate that is cheap and not near.
BRIEF = AIS(num_chains=2, num_temperatures=8, num_steps=2)


@pytest.fixture(scope="module")
def corpus():
    """Documents of four topics, which have few words in common."""
    rng = np.random.default_rng(0)
    topics = torch.from_numpy(rng.dirichlet(np.full(40, 0.08), 4) + 1e-4)
    model = lntm.models.ctm(4, 40, topics=topics, covariance=3 * torch.eye(4), dtype="float64")
    return model.generate([60] * 150, seed=0)[0]


@pytest.fixture(scope="module")
def selection(corpus):
    return lntm.select(corpus, [6, 2, 4], num_seeds=2, top_n=5, test_fraction=0.4, likelihood=BRIEF)


@pytest.mark.slow
def test_every_number_of_topics_has_every_criterion(selection) -> None:
    scores = selection.scores
    assert scores.index.tolist() == [2, 4, 6]
    assert {name + end for name in CRITERIA for end in ("", "_se")} <= {*scores}
    assert np.isfinite(scores).all(axis=None)
    assert selection.recommended == 4
    two, four = scores.loc[2], scores.loc[4]
    assert two["behind"] > 5 * two["behind_se"]
    assert four["dispersion"] < two["dispersion"]
    assert four["stability"] > 0.9
    assert four["likelihood"] > two["likelihood"]


@pytest.mark.slow
def test_completion_is_scored_on_the_fixed_split(corpus) -> None:
    found = lntm.select(corpus, [3], num_seeds=1, top_n=5, seed=2, likelihood=BRIEF)
    train, test = corpus.split(0.1, seed=2)
    chosen = Recipe("ctm", "auto").for_corpus(train, 3)
    model, _, engine = chosen.make(40, seed=2, options={"num_topics": 3, "progress": False})
    engine.fit(train)
    expected = document_completion(model, test, observed_fraction=0.5, seed=2)
    assert expected.theta == "exact"
    whole = log_likelihood(model, test, BRIEF, seed=2)
    for name, score in (("completion", expected), ("likelihood", whole)):
        assert found.scores.loc[3, name] == pytest.approx(score.nats_per_token)
        error = score.nats_per_token_standard_error
        assert found.scores.loc[3, f"{name}_se"] == pytest.approx(error)


@pytest.mark.slow
def test_selections_have_tables_and_pictures(selection) -> None:
    import matplotlib.pyplot as plt

    assert str(selection).splitlines()[-1] == selection.because
    frame = selection.frame()
    assert frame["num_topics"].tolist() == [2, 4, 6]
    assert frame["recommended"].tolist() == [False, True, False]
    figure = selection.plot()
    assert [ax.get_title() for ax in figure.axes if ax.get_visible()] == list(CRITERIA)
    plt.close("all")


def test_standard_errors_have_the_variance_between_seeds() -> None:
    """Two numbers of topics with two and three seeds estimate it together, by 3 degrees."""
    by_size = {2: [-7.0, -7.2], 4: [-6.0, -6.3, -6.3]}
    fits = {
        size: [SimpleNamespace(completion=SimpleNamespace(nats_per_token=x)) for x in values]
        for size, values in by_size.items()
    }
    columns = {"completion": [-7.1, -6.2], "completion_se": [0.3, 0.4], "behind_se": [0.1, 0.0]}
    table, single = (pd.DataFrame(columns, [2, 4]) for _ in range(2))
    _add_seeds(table, fits, 4)
    variance = (statistics.variance(by_size[2]) + 2 * statistics.variance(by_size[4])) / 3
    expected = [(0.09 + variance / 2) ** 0.5, (0.16 + variance / 3) ** 0.5]
    assert table["completion_se"].tolist() == pytest.approx(expected)
    assert table.loc[2, "behind_se"] == pytest.approx((0.01 + variance * (1 / 2 + 1 / 3)) ** 0.5)
    assert table.loc[4, "behind_se"] == 0.0
    _add_seeds(single, {size: of_size[:1] for size, of_size in fits.items()}, 4)
    assert single["completion_se"].tolist() == [0.3, 0.4]


@pytest.mark.slow
def test_stability_compares_with_a_fit_to_resampled_documents(corpus) -> None:
    found = lntm.select(corpus, [3], num_seeds=1, top_n=5, seed=2)
    train, _ = corpus.split(0.1, seed=2)
    rows = np.sort(np.random.default_rng(2).integers(len(train), size=len(train)))
    assert len({*rows}) < 0.7 * len(train)
    models = []
    for documents in (train, train[rows]):
        chosen = Recipe("ctm", "auto").for_corpus(documents, 3)
        options = {"num_topics": 3, "progress": False}
        model, _, engine = chosen.make(40, seed=2, options=options)
        engine.fit(documents)
        models.append(model)
    expected = align_topics(*models).similarity
    assert expected.max() < 0.9999
    assert found.scores.loc[3, "stability"] == pytest.approx(expected.mean())
    error = statistics.stdev(expected.tolist()) / 3**0.5
    assert found.scores.loc[3, "stability_se"] == pytest.approx(error)


def made(*rows: tuple[int, float, float, float]) -> Selection:
    """Numbers of topics with their completion and how far behind the best it is."""
    columns = ["num_topics", "completion", "behind", "behind_se"]
    scores = pd.DataFrame(rows, columns=columns).set_index("num_topics")
    return Selection(scores.assign(perplexity=np.exp(-scores["completion"])))


def test_the_fewest_topics_within_one_standard_error_are_recommended() -> None:
    found = made((5, -7.0, 0.5, 0.1), (10, -6.51, 0.01, 0.02), (20, -6.5, 0.0, 0.0))
    assert found.recommended == 10
    assert found.because.startswith(
        "10 topics: the fewest that predict held-out words as well as 20"
    )
    assert "0.0100 ± 0.02 nats per token" in found.because
    found = made((5, -7.0, 0.5, 0.1), (10, -6.5, 0.0, 0.0), (20, -6.6, 0.1, 0.02))
    assert found.recommended == 10
    assert "10 topics: they predict held-out words best" in found.because
    assert "try larger numbers" not in found.because
    found = made((5, -7.0, 0.5, 0.1), (10, -6.5, 0.0, 0.0))
    assert found.because.endswith("the largest number tried; try larger numbers")


@pytest.mark.parametrize(
    ("sizes", "options", "match"),
    [
        ([], {}, r"num_topics is \[\]; expected numbers"),
        (20, {}, "num_topics is 20; expected numbers"),
        ([1], {}, r"num_topics\[0\] is 1"),
        ([3], {"num_seeds": 0}, "num_seeds is 0"),
        ([3], {"recipe": "tm"}, "model 'tm'"),
        ([3], {"options": {"max_epoch": 3}}, "max_epoch"),
    ],
)
def test_invalid_settings_are_refused(corpus, sizes, options, match) -> None:
    with pytest.raises(ConfigError, match=match):
        lntm.select(corpus, sizes, **options)


@pytest.mark.slow
def test_models_with_too_many_parameters_have_no_dispersion(corpus) -> None:
    found = lntm.select(corpus[:12], [2, 10], num_seeds=1, top_n=3, test_fraction=0.2)
    frame = found.frame()
    assert frame["dispersion"].isna().tolist() == [False, True]
    assert "nan" not in str(found).lower()
    assert found.plot() is not None
    assert found.recommended in (2, 10)


@pytest.mark.long
@pytest.mark.parametrize("at", [0, 3, 4])
def test_ctrl_c_keeps_the_completed_fits(corpus, monkeypatch, at) -> None:
    """In the fit itself, which would end early and be judged as if it were complete."""
    options = {"num_seeds": 2, "top_n": 3, "recipe": Recipe("ctm", "hmc")}
    options["options"] = {"max_epochs": 4}
    steps, fits = MonteCarloRun.steps, 0

    def interrupted(self):
        nonlocal fits
        fits += 1
        for number, record in enumerate(steps(self)):
            if fits == at + 1 and number == 1:
                raise KeyboardInterrupt
            yield record

    with monkeypatch.context() as patch:
        patch.setattr(MonteCarloRun, "steps", interrupted)
        if at == 0:
            with pytest.raises(KeyboardInterrupt):
                lntm.select(corpus, [2, 3], **options)
            return
        found = lntm.select(corpus, [2, 3], **options)
    assert found.interrupted
    assert "Ctrl-C ended the comparison" in found.because
    assert found.scores.index.tolist() == [2, 3][: at - 2]
    whole = lntm.select(corpus, [2, 3], **options)
    assert not whole.interrupted
    assert found.scores.loc[2, "completion"] == whole.scores.loc[2, "completion"]
    if at == 4:
        assert np.isnan(found.scores.loc[3, "stability"])


@pytest.mark.long
def test_fits_in_several_processes_are_the_fits_in_one(corpus) -> None:
    options = {"num_seeds": 1, "top_n": 3, "recipe": Recipe("ctm", "taylor")}
    options["options"] = {"max_iterations": 1, "stepwise_epochs": 1, "start_epochs": 1}
    found, expected = (lntm.select(corpus, [2, 3], n_jobs=n, **options) for n in (2, None))
    times = ["seconds"]
    pd.testing.assert_frame_equal(
        found.scores.drop(columns=times), expected.scores.drop(columns=times)
    )
