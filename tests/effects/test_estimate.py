"""Effects of documents' columns on their topics: draws, tables, predictions and plots."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch

import torch_lntm as lntm
from torch_lntm.corpus import Corpus
from torch_lntm.effects import Effects, estimate
from torch_lntm.errors import ConfigError, CorpusError, IncompatibleGuideError, MissingColumnError
from torch_lntm.guides import make_guide
from torch_lntm.inference import ThetaDraws, theta_draws
from torch_lntm.models import TopicModel

NUM_TOPICS, NUM_WORDS, NUM_DOCS = 3, 12, 60


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    rng = np.random.default_rng(0)
    counts = rng.multinomial(25, rng.dirichlet(np.full(NUM_WORDS, 0.3), NUM_DOCS))
    counts[5] = 0
    days = np.datetime64("2004-01-01") + rng.integers(0, 300, NUM_DOCS)
    metadata = {
        "party": rng.permutation(np.repeat(["Left", "Middle", "Right"], NUM_DOCS // 3)),
        "age": rng.uniform(20, 60, NUM_DOCS),
        "date": days.astype(str),
        "blog": rng.integers(0, 8, NUM_DOCS),
    }
    return Corpus.from_matrix(counts, [f"w{v}" for v in range(NUM_WORDS)], metadata=metadata)


@pytest.fixture(scope="module")
def model(corpus) -> TopicModel:
    generator = torch.Generator().manual_seed(0)
    model = lntm.models.stm(NUM_TOPICS, corpus, "~ party", dtype="float64")
    with torch.no_grad():
        model.prior.slopes.normal_(generator=generator)
        model.prior.gram.copy_(torch.eye(3) * NUM_DOCS)
    return model


@pytest.fixture(scope="module")
def guide(model) -> Any:
    return make_guide("laplace", model, tolerance=1e-9, max_iterations=500)


@pytest.fixture(scope="module")
def effects(model, guide, corpus) -> Effects:
    return estimate(model, guide, corpus, "~ party * age", num_draws=20)


@pytest.fixture(scope="module")
def linear(model, guide, corpus) -> Effects:
    return estimate(model, guide, corpus, "~ party * age", num_draws=20, link="identity")


def coefficients_of(effects: Effects) -> np.ndarray:
    """Coefficients ``(num_topics, num_terms)`` of a linear regression."""
    assert effects.link == "identity"
    return effects.table()["estimate"].to_numpy().reshape(len(effects.topics), -1)


def theta_of(model, guide, corpus, num_draws: int) -> torch.Tensor:
    """Draws of the documents' own posteriors, at the coefficients as fitted."""
    batch = model.encode(corpus).batch(dtype=torch.float64)
    return guide.posterior(batch).theta_samples(num_draws, seed=0)


def hand_made(corpus: Corpus) -> tuple[np.ndarray, np.ndarray]:
    """The design of ``~ party * age`` of the documents with words, and their positions."""
    rows = np.flatnonzero(corpus.lengths)
    party, age = corpus.metadata["party"][rows], corpus.metadata["age"][rows]
    middle, right = (party == "Middle").astype(float), (party == "Right").astype(float)
    x = np.stack([np.ones(len(rows)), middle, right, age, middle * age, right * age], 1)
    return x, rows


# -------------------------------------------------------------------- draws


@pytest.mark.stat
def test_draws_have_the_joint_covariance_of_documents_and_coefficients(model, corpus) -> None:
    """Against the dense Gaussian joint of the coefficients and of eight documents' eta."""
    guide = make_guide("taylor", model, tolerance=1e-9, max_iterations=500)
    few = np.arange(8)
    ready = model.encode(corpus)
    batch = ready.batch(few, dtype=torch.float64)
    posterior = guide.posterior(batch)
    precision = np.linalg.inv(model.prior.covariance.detach().numpy())
    u = np.column_stack([np.ones(8), model.prior.standardised(batch).numpy()])
    dim, size = NUM_TOPICS, u.shape[1] * NUM_TOPICS
    joint = np.zeros((size + 8 * dim, size + 8 * dim))
    joint[:size, :size] = np.kron(u.T @ u + np.diag([0.0, 1.0, 1.0]), precision)
    for d in range(8):
        at = slice(size + d * dim, size + (d + 1) * dim)
        # The likelihood's share is the posterior precision less the prior's.
        joint[at, at] = np.linalg.inv(posterior.covariance[d].numpy())
        joint[:size, at] = -np.kron(u[d][:, None], precision)
        joint[at, :size] = joint[:size, at].T
    contrasts = np.eye(dim) - 1.0 / dim
    project = np.kron(np.eye(8), contrasts)
    # The shift of all topics is not determined; contrasts do not see it.
    covariance = np.linalg.pinv(joint, rcond=1e-9, hermitian=True)[size:, size:]
    expected = project @ covariance @ project.T
    draws = theta_draws(guide, ready, 20_000, rows=few, coefficients=True)
    theta = torch.cat([part.theta for part in draws], 1)
    eta = (theta.log() - theta.log().mean(-1, keepdim=True)).flatten(1).numpy()
    found = np.cov(eta.T)
    # The s.e. of a covariance of 20,000 normal draws; 300 of them are beyond 5.5 in none of 10,000.
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)) + expected**2)
    assert (np.abs(found - expected) < 5.5 * scale / np.sqrt(20_000)).all()
    alone = contrasts @ posterior.covariance[0].numpy() @ contrasts
    assert np.trace(expected[:dim, :dim]) > 1.05 * np.trace(alone)


@pytest.mark.slow
def test_chains_can_replace_a_guide(model, corpus) -> None:
    few = corpus[:20]
    sampler = lntm.inference.DocumentHMC(model, seed=1)
    found = estimate(model, sampler, few, "~ age", num_draws=5)
    assert "by chains of each document (Hamiltonian Monte Carlo) (5 draws)" in repr(found)
    given = estimate(model, theta_draws(sampler, few, 5).theta, few, "~ age")
    np.testing.assert_allclose(found.table()["estimate"], given.table()["estimate"], rtol=1e-4)
    other = lntm.models.ctm(NUM_TOPICS, NUM_WORDS, dtype="float64")
    with pytest.raises(IncompatibleGuideError, match="another model"):
        estimate(other, sampler, few, "~ age")


# -------------------------------------------------------------------- coefficients


def test_draws_in_an_array_are_regressed_one_by_one(model, guide, corpus) -> None:
    theta = theta_of(model, guide, corpus, 5)
    options = {"standard_errors": "classical", "topics": [2, 0], "link": "identity"}
    found = estimate(model, theta.numpy(), corpus, "~ party * age", **options)
    x, rows = hand_made(corpus)
    assert found.formula.names[-1] == "party[T.Right]:age"
    assert found.topics == (2, 0)
    inverse = np.linalg.inv(x.T @ x)
    for row, topic in enumerate((2, 0)):
        y = theta[:, rows, topic].numpy()
        draws = y @ x @ inverse
        residual = ((y - draws @ x.T) ** 2).sum(1).mean() / (len(x) - x.shape[1])
        variance = residual * np.diag(inverse) + 1.2 * draws.var(0, ddof=1)
        np.testing.assert_allclose(coefficients_of(found)[row], draws.mean(0), rtol=1e-8)
        of_topic = found.table()[6 * row : 6 * row + 6]
        np.testing.assert_allclose(of_topic["std_error"] ** 2, variance, rtol=1e-8)


def test_a_guide_and_its_draws_give_equal_effects(model, guide, corpus) -> None:
    by_guide = estimate(model, guide, corpus, "~ party", num_draws=6, coefficients=False)
    by_draws = estimate(model, theta_of(model, guide, corpus, 6), corpus, "~ party")
    for name in ("estimate", "std_error"):
        np.testing.assert_allclose(
            by_guide.table()[name], by_draws.table()[name], rtol=1e-3, atol=1e-6
        )


def test_effects_add_up_over_topics_as_proportions_do(effects, linear) -> None:
    np.testing.assert_allclose(coefficients_of(linear).sum(0), [1, 0, 0, 0, 0, 0], atol=1e-10)
    sums = effects.table().groupby("term", sort=False)["estimate"].sum()
    np.testing.assert_allclose(sums, [1, 0, 0, 0, 0, 0], atol=1e-9)


@pytest.mark.parametrize("name", ["effects", "linear"])
def test_the_table_has_rubins_intervals(name, request) -> None:
    effects = request.getfixturevalue(name)
    rows = effects.table(level=0.9)
    assert len(rows) == NUM_TOPICS * 6
    one = next(rows[9:].itertuples())
    assert (one.topic, one.term) == (1, "age")
    mean = effects._averages.term("age")
    within, between = (float(v[1]) for v in effects.regression.variances(mean.gradients))
    between *= 21 / 20
    assert one.estimate == pytest.approx(float(mean.estimates[1]))
    assert one.std_error == pytest.approx((within + between) ** 0.5)
    share = between / (within + between)
    of_documents = 53 * (1 - share)
    assert one.df == pytest.approx(1 / (share**2 / 19 + 1 / of_documents))
    half = scipy.stats.t(one.df).ppf(0.95) * one.std_error
    assert (one.lower, one.upper) == pytest.approx((one.estimate - half, one.estimate + half))
    tail = scipy.stats.t(one.df).sf(abs(one.estimate) / one.std_error)
    assert one.p_value == pytest.approx(2 * tail)
    assert one.statistic == pytest.approx(one.estimate / one.std_error)
    numbers = ["estimate", "std_error", "statistic", "df", "p_value", "lower", "upper"]
    assert list(rows.columns) == ["topic", "name", "term", *numbers]
    assert list(rows["term"][:6]) == list(effects.formula.names)


@pytest.mark.slow
def test_imputed_outcomes_have_the_degrees_of_freedom_of_the_observed() -> None:
    """3 of 12 outcomes are unknown: the exact posterior of the mean is a t of 8 degrees."""
    rng = np.random.default_rng(0)
    observed = rng.normal(size=9)
    num_draws = 4000
    variance = 8 * observed.var(ddof=1) / rng.chisquare(8, (num_draws, 1))
    mean = observed.mean() + np.sqrt(variance / 9) * rng.normal(size=(num_draws, 1))
    unknown = mean + np.sqrt(variance) * rng.normal(size=(num_draws, 3))
    outcomes = 0.5 + 0.01 * np.hstack([np.tile(observed, (num_draws, 1)), unknown])
    model = lntm.models.ctm(2, 4)
    corpus = lntm.Corpus.from_matrix(np.ones((12, 4)))
    draws = torch.from_numpy(np.stack([outcomes, 1 - outcomes], -1))
    effects = estimate(
        model, ThetaDraws.of(draws, model), corpus, "~ 1", standard_errors="classical"
    )
    assert effects.table()["df"][0] == pytest.approx(8, rel=0.05)


def test_uncertain_proportions_leave_one_degree_of_freedom() -> None:
    """All documents of a draw are equal, so all variance is between draws."""
    model = lntm.models.ctm(2, 4)
    shares = torch.linspace(0.2, 0.8, 12).double()[:, None, None].expand(12, 5, 1)
    draws = ThetaDraws.of(torch.cat([shares, 1 - shares], -1), model)
    effects = estimate(model, draws, lntm.Corpus.from_matrix(np.ones((5, 4))), "~ 1")
    for row in effects.table().itertuples():
        assert row.df == 1.0
        assert 0 < row.p_value < 1
        assert np.isfinite([row.lower, row.upper]).all()


@pytest.mark.parametrize("link", ["logit", "identity"])
def test_the_sum_of_all_topics_has_no_p_value(model, guide, corpus, link) -> None:
    groups = {"all": [0, 1, 2], "two": [0, 1]}
    theta = theta_of(model, guide, corpus, 4).float()
    effects = estimate(model, theta, corpus, "~ party", groups=groups, link=link)
    table = effects.table().set_index("topic")
    assert table.loc["all", "p_value"].isna().all()
    assert table.loc["two", "p_value"].notna().all()
    assert (table.loc["all", "std_error"] == 0).all()
    assert (table.loc["all", "lower"] == table.loc["all", "upper"]).all()
    assert effects.predict("party").query("topic == 'all'")["estimate"].to_numpy() == pytest.approx(
        1
    )


@pytest.mark.parametrize("link", ["logit", "identity"])
def test_extreme_weights_count_by_their_ratios(model, guide, corpus, link) -> None:
    theta = theta_of(model, guide, corpus, 4)
    w = np.where(np.arange(NUM_DOCS) % 2, 1.0, 0.5)
    options = {"link": link, "strata": np.arange(NUM_DOCS) % 2}
    plain, large, small = (
        estimate(model, theta, corpus, "~ party", weights=scale * w, **options).table()
        for scale in (1.0, 1e308, 1e-307)
    )
    pd.testing.assert_frame_equal(large, plain)
    pd.testing.assert_frame_equal(small, plain)
    w[0] = 1e-15
    table = estimate(model, theta, corpus, "~ party", weights=w, **options).table()
    assert np.isfinite(table[["estimate", "std_error"]]).all(axis=None)


def test_clusters_and_weights_are_columns_or_values(model, guide, corpus) -> None:
    theta = theta_of(model, guide, corpus, 4)
    by_name = estimate(model, theta, corpus, "~ party", clusters="blog", weights="age")
    blog, age = (np.asarray(corpus.metadata[name]) for name in ("blog", "age"))
    by_value, by_index = (
        estimate(model, theta, corpus, "~ party", clusters=clusters, weights=weights)
        for clusters, weights in (
            (blog.astype(str), 2 * age),
            (pd.Series(blog).astype("category"), pd.Series(age, dtype="Float64")),
        )
    )
    for other in (by_value, by_index):
        pd.testing.assert_frame_equal(other.table(), by_name.table())
    assert "8 clusters" in repr(by_name)
    assert by_name.regression.freedom == 7
    plain = estimate(model, theta, corpus, "~ party")
    assert not np.allclose(plain.table()["estimate"], by_name.table()["estimate"], rtol=1e-3)
    with pytest.raises(CorpusError, match="weights: the rows stand in another order"):
        estimate(model, theta, corpus, "~ party", weights=pd.Series(age)[::-1])


@pytest.mark.parametrize("link", ["logit", "identity"])
def test_weights_count_equal_documents_of_a_cluster(model, guide, corpus, link) -> None:
    """Copies of a document are a cluster, and a document of weight 0 is none at all."""
    theta, count = theta_of(model, guide, corpus, 4), np.arange(NUM_DOCS) % 4
    by_weight = estimate(model, theta, corpus, "~ party + age", weights=count, link=link)
    copies = np.repeat(np.arange(NUM_DOCS), count)
    options = {"link": link, "clusters": copies}
    copied = estimate(model, theta[:, copies], corpus[copies], "~ party + age", **options)
    kept = count > 0
    options = {"link": link, "clusters": np.arange(NUM_DOCS)[kept], "weights": count[kept]}
    left = estimate(model, theta[:, kept], corpus[kept], "~ party + age", **options)
    for found in (copied, left):
        for rows, others in (
            (found.predict("party"), by_weight.predict("party")),
            (found.difference("age", 50, 30), by_weight.difference("age", 50, 30)),
        ):
            np.testing.assert_allclose(rows["estimate"], others["estimate"], rtol=1e-6)
    # Clusters of one document are HC1 up to (n - 1) / (n - k), and n is what counts as documents.
    pair = (e.regression.variances(e._averages.term("age").gradients)[0] for e in (copied, left))
    many, few = (len(e.design.x) for e in (copied, left))
    ratio = (many - 1) / (many - 4) * (few - 4) / (few - 1)
    one, other = (within.numpy() for within in pair)
    np.testing.assert_allclose(one, ratio * other, rtol=1e-6)
    assert "documents, weighted, on ~ party" in repr(by_weight)


# -------------------------------------------------------------------- predictions


def test_typical_values_are_the_median_and_the_most_frequent(effects, linear, corpus) -> None:
    _, rows = hand_made(corpus)
    age = np.median(corpus.metadata["age"][rows])
    beta = coefficients_of(linear)
    found = linear.predict(party="Middle", others="typical")
    expected = beta @ np.array([1, 1, 0, age, age, 0])
    np.testing.assert_allclose(found["estimate"], expected)
    party = corpus.metadata["party"][rows]
    most = max(sorted(set(party)), key=lambda level: (party == level).sum())
    same = effects.predict(age=30.0, others="typical")
    named = effects.predict(age=30.0, party=most)
    assert same["estimate"][0] == pytest.approx(named["estimate"][0])


def test_differences_equal_differences_of_predictions(effects) -> None:
    left, right = (effects.predict(party=value, age=40.0) for value in ("Left", "Right"))
    found = effects.difference("party", "Right", "Left", age=40.0)
    np.testing.assert_allclose(found["estimate"], right["estimate"] - left["estimate"])
    assert found.loc[0, ["age", "party"]].tolist() == [40.0, "Right − Left"]
    # An interaction: the difference itself depends on age.
    older = effects.difference("party", "Right", "Left", age=60.0)
    assert older["estimate"][0] != pytest.approx(found["estimate"][0], rel=1e-3)


@pytest.mark.slow
def test_predictions_cover_all_levels_or_a_grid(effects, model, guide, corpus) -> None:
    found = estimate(model, guide, corpus, "~ bs(date, df=4) + C(blog)", num_draws=3)
    dates = found.predict("date")["date"].tolist()[:50]
    days = sorted(corpus.metadata["date"])
    assert dates == sorted(dates)
    assert (dates[0], dates[-1]) == (days[0], days[-1])
    assert len(found.predict("blog")) == 8 * NUM_TOPICS
    ages = effects.predict("age")["age"][:50]
    np.testing.assert_allclose(np.diff(ages, 2), 0, atol=1e-9)
    both = effects.predict("party", age=[30.0, 40.0])
    assert both["party"].tolist()[:6:2] == ["Left", "Middle", "Right"]
    assert len(both) == 3 * 2 * NUM_TOPICS
    numbers = ["estimate", "std_error", "lower", "upper"]
    assert list(both.columns) == ["topic", "name", "party", "age", *numbers]


@pytest.mark.slow
def test_plots_show_the_predictions(effects, model, guide, corpus) -> None:
    ax = effects.plot("party")
    assert [label.get_text() for label in ax.get_yticklabels()] == ["Left", "Middle", "Right"]
    assert len(ax.get_legend().get_texts()) == NUM_TOPICS
    ax = effects.plot("age", by="party", topics=[1])
    assert len(ax.lines) == 3
    expected = effects.predict("age", party="Right").query("topic == 1")["estimate"]
    np.testing.assert_allclose(ax.lines[2].get_ydata(), expected)
    several = effects.plot("age", by="party").figure
    assert [len(panel.lines) for panel in several.axes] == [3] * NUM_TOPICS
    assert len({panel.get_ylim() for panel in several.axes}) == 1
    assert [text.get_text() for text in several.legends[0].get_texts()] == [
        "Left",
        "Middle",
        "Right",
    ]
    linear = estimate(model, guide, corpus, "~ age", link="identity", num_draws=3)
    assert (
        min(band.get_paths()[0].vertices[:, 1].min() for band in linear.plot("age").collections)
        >= 0
    )
    over_time = estimate(model, guide, corpus, "~ date", topics=[0], num_draws=3)
    assert over_time.plot("date").get_title().startswith("Topic 0 ")
    with pytest.raises(ConfigError, match="topic 7; expected numbers from 0 to 2"):
        effects.plot("age", topics=[7])
    with pytest.raises(ConfigError, match="topic 1 was not regressed"):
        over_time.plot("date", topics=[1])


@pytest.mark.slow
def test_a_plot_of_differences_shows_the_differences_of_all_topics(effects) -> None:
    ax = effects.plot_difference("party", "Left", "Right", topics=[2, 0], age=30.0)
    assert [label.get_text().split()[0] for label in ax.get_yticklabels()] == ["2", "0"]
    assert ax.get_title() == "party: Left − Right"
    rows = effects.difference("party", "Left", "Right", age=30.0)
    (points,) = ax.containers
    expected = rows["estimate"][[2, 0]]
    np.testing.assert_allclose(points.lines[0].get_xdata(), expected, atol=1e-12)
    ends = [bar[:, 0] for bar in points.lines[2][0].get_segments()]
    np.testing.assert_allclose(ends, rows.loc[[2, 0], ["lower", "upper"]])
    both = effects.plot_difference("party", ["Left", "Middle"], "Right")
    names = [text.get_text() for text in both.get_legend().get_texts()]
    assert names == ["Left − Right", "Middle − Right"]
    with pytest.raises(ConfigError, match="party has no value"):
        effects.plot_difference("party", [], "Right")


@pytest.fixture(autouse=True)
def _close_figures() -> Iterator[None]:
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


# -------------------------------------------------------------------- refusals


def test_invalid_values_are_refused(effects) -> None:
    with pytest.raises(ConfigError, match="does not read the column 'income'; it reads party, age"):
        effects.predict("income")
    with pytest.raises(CorpusError, match="'Green'"):
        effects.predict(party="Green")
    with pytest.raises(ConfigError, match="level is 95"):
        effects.table(level=95)
    with pytest.raises(ConfigError, match="others is 'mean'"):
        effects.predict("party", others="mean")


def test_invalid_arguments_are_refused(model, guide, corpus) -> None:
    theta = theta_of(model, guide, corpus, 3)
    few = (model, theta, corpus, "~ party")

    def refused(match: str, *arguments: Any, error: type[Exception] = ConfigError, **options: Any):
        with pytest.raises(error, match=match):
            estimate(*arguments, **options)

    refused("expected numbers from 0 to 2", model, theta, corpus, "~ party", topics=[3])
    refused("draws of 5 documents; expected 60", model, theta[:, :5], corpus, "~ party")
    refused(r"expected \(num_draws, num_docs, 3\)", model, theta[..., 1:], corpus, "~ party")
    refused("finite and not negative", model, -theta, corpus, "~ party")
    refused("'income'", model, theta, corpus, "~ income", error=MissingColumnError)
    refused("age is determined", model, theta, corpus, "~ party + I(2 * age) + age")
    refused("all documents with words are 0", *few, weights=np.zeros(60))
    refused("finite numbers from 0", *few, weights=np.r_[-1.0, np.ones(59)])
    refused("lacks a value", *few, weights=np.r_[np.nan, np.ones(59)], error=CorpusError)
    refused("finite numbers from 0", *few, weights=np.r_[np.inf, np.ones(59)])
    refused("finite numbers from 0", *few, weights="party")
    refused("0.5 and 1e\\+308; expected ratios", *few, weights=np.r_[1e308, np.full(59, 0.5)])
    refused("'clusters': expected one", *few, clusters=[1, 2], error=CorpusError)
    halves = np.arange(60) % 2
    refused("cluster '0' lies in several strata", *few, clusters=np.arange(60) // 2, strata=halves)
    refused("stratum '9' has a single doc", *few, strata=np.r_[9, halves[1:]])
    refused("stratum '0' has a single clu", *few, clusters=halves, strata=halves)
    refused("leave out .*strata", model, theta, corpus, "~ (1 | blog)", strata=halves)
    refused("expected at least 2 draws", model, guide, corpus, "~ party", num_draws=1)
    other = lntm.models.ctm(NUM_TOPICS, NUM_WORDS)
    refused("another model", other, guide, corpus, "~ party", error=IncompatibleGuideError)


@pytest.mark.slow
def test_columns_of_metadata_keep_apart_from_those_of_a_table(model, guide, corpus) -> None:
    named = corpus.with_metadata({"name": corpus.metadata["party"], "df": corpus.metadata["age"]})
    effects = estimate(model, guide, named, "~ name + df", num_draws=3)
    gap = effects.difference("name", "Left", "Right", df=30.0)
    assert gap.loc[0, ["name_", "df_"]].tolist() == ["Left − Right", 30.0]
    assert effects.plot("df", by="name", topics=[1]).get_xlabel() == "df"


def test_rows_belong_to_the_topics_in_the_order_asked_for(corpus, model) -> None:
    theta = np.random.default_rng(1).dirichlet(np.ones(NUM_TOPICS), (1, NUM_DOCS)).repeat(2, 0)
    options = {"topics": [2, 0], "groups": {"both": [0, 2]}, "link": "identity", "progress": False}
    found = (
        estimate(model, theta, corpus, "~ party", **options).table().set_index(["topic", "term"])
    )
    party, rows = corpus.metadata["party"].to_numpy(), corpus.lengths > 0
    for topic, members in {2: [2], 0: [0], "both": [0, 2]}.items():
        share = theta[0][:, members].sum(1)
        means = [share[rows & (party == level)].mean() for level in ("Left", "Right")]
        assert found["estimate"][topic, "Intercept"] == pytest.approx(means[0])
        assert found["estimate"][topic, "party[T.Right]"] == pytest.approx(means[1] - means[0])
