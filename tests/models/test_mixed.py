"""Random terms of prevalence: the M-step, its evidence, new levels, and many levels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.memory import LargestStorage

import torch_lntm as lntm
from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError, CorpusError, CorpusWarning, NotFittedError
from torch_lntm.guides import TaylorGuide
from torch_lntm.inference import VariationalEM
from torch_lntm.models import TopicModel
from torch_lntm.models.priors.mixed import MixedPrior
from torch_lntm.posteriors import Draws
from torch_lntm.solvers.arrow import Arrow

NUM_TOPICS, NUM_DOCS = 3, 60
ONE, TWO = "~ age + (1 | author)", "~ age + (1 | year) + (1 | author)"


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    rng = np.random.default_rng(0)
    metadata = {
        "age": rng.uniform(20, 60, NUM_DOCS),
        "author": np.concatenate(
            [[f"a{i}" for i in range(9)], rng.choice([f"a{i}" for i in range(9)], NUM_DOCS - 9)]
        ),
        "year": np.concatenate([[2000, 2001, 2002], rng.integers(2000, 2003, NUM_DOCS - 3)]),
    }
    counts = rng.multinomial(25, rng.dirichlet(np.full(12, 0.3), NUM_DOCS))
    return Corpus.from_matrix(counts, [f"w{v}" for v in range(12)], metadata=metadata)


def make(corpus: Corpus, formula: str, **settings: Any) -> TopicModel:
    return lntm.models.stm(NUM_TOPICS, corpus, formula, dtype="float64", **settings)


def prior_of(model: TopicModel) -> MixedPrior:
    assert isinstance(model.prior, MixedPrior)
    return model.prior


def design(corpus: Corpus, formula: str) -> tuple[np.ndarray, list[np.ndarray]]:
    """Dense columns by hand: 1 and the standardised age, then those of each random term."""
    age = corpus.metadata["age"].to_numpy()
    fixed = np.column_stack([np.ones(NUM_DOCS), (age - age.mean()) / age.std()])
    names = ["author"] if formula == ONE else ["year", "author"]
    columns = (np.unique(corpus.metadata[name], return_inverse=True) for name in names)
    return fixed, [np.eye(len(levels))[at] for levels, at in columns]


def sums_of(
    prior: MixedPrior, corpus: Corpus, spread: float = 0.0
) -> tuple[dict[str, torch.Tensor], np.ndarray]:
    """Statistics of means with level effects, each with posterior covariance spread² I."""
    rng = np.random.default_rng(3)
    _, blocks = design(corpus, TWO)
    dim = prior.latent_dim
    eta = rng.normal(size=(NUM_DOCS, dim))
    for block in blocks:
        eta += block @ rng.normal(size=(block.shape[1], dim))
    # 2·dim draws with exactly this covariance.
    steps = np.sqrt(dim) * spread * np.concatenate([np.eye(dim), -np.eye(dim)])
    draws = torch.from_numpy(eta[None] + steps[:, None])
    weights = torch.full((2 * dim, NUM_DOCS), 0.5 / dim, dtype=torch.float64)
    batch = prior.encode(corpus).batch(dtype=torch.float64)
    return prior.statistics(Draws({"eta": draws}, prior.lift(draws), weights), batch), eta


def penalties_of(prior: MixedPrior, blocks: list[np.ndarray]) -> np.ndarray:
    """Penalties of all columns."""
    values = zip(prior.level_penalties.tolist(), blocks, strict=True)
    terms = [np.full(block.shape[1], value) for value, block in values]
    return np.concatenate([[0.0, float(prior.penalty)], *terms])


# -------------------------------------------------------------------- matrices with an arrow


def test_an_arrow_equals_its_dense_matrix() -> None:
    rng = np.random.default_rng(1)
    x = np.column_stack([rng.normal(size=(40, 3)), np.eye(7)[rng.integers(0, 7, 40)]])
    y = np.column_stack([rng.normal(size=(50, 3)), np.eye(7)[rng.integers(0, 7, 50)]])

    def arrow(x: np.ndarray) -> Arrow:
        gram = torch.from_numpy(x.T @ x)
        return Arrow(gram[:3, :3], gram[:3, 3:], gram[3:, 3:].diagonal())

    dense = x.T @ x + np.diag([1.0] * 3 + [2.0] * 7)
    system = arrow(x).plus(torch.ones(3).double(), torch.tensor(2.0))
    inverse, rows = np.linalg.inv(dense), torch.from_numpy(rng.normal(size=(10, 2)))
    close = np.testing.assert_allclose
    close(torch.cat(system.solve(rows[:3], rows[3:])), inverse @ rows.numpy(), rtol=1e-10)
    close(torch.cat(system.times(rows[:3], rows[3:])), dense @ rows.numpy(), rtol=1e-10)
    close(torch.cat(system.inverse_diagonal()), np.diag(inverse), rtol=1e-10)
    close(float(system.log_det), np.linalg.slogdet(dense)[1], rtol=1e-12)
    found = torch.cat(system.sandwich_diagonal(arrow(y)))
    close(found, np.diag(inverse @ y.T @ y @ inverse), rtol=1e-10)
    # draw() is linear in its noise: at the identity it gives a root of the inverse.
    eye = torch.eye(10, dtype=torch.float64)
    root = torch.cat(system.draw(eye[:3], eye[3:]))
    close(root @ root.mT, inverse, atol=1e-12)


# -------------------------------------------------------------------- the prior


@pytest.mark.slow
@pytest.mark.parametrize("anchored", [False, True])
@pytest.mark.parametrize("formula", [ONE, TWO])
def test_the_mixed_prior_keeps_its_contract(corpus, anchored, formula) -> None:
    model = make(corpus, formula, anchored=anchored)
    prior = prior_of(model)
    prior.m_step(NUM_DOCS, **sums_of(prior, corpus)[0])
    batch = model.encode(corpus).batch(np.arange(6), dtype=torch.float64)
    lntm.testing.check_prior(prior, batch)
    lntm.testing.check_guide(TaylorGuide(model, tolerance=1e-8, max_iterations=500), batch)


@pytest.mark.parametrize("formula", [ONE, TWO])
def test_the_m_step_is_ridge_regression_with_the_coefficients_integrated_out(
    corpus, formula
) -> None:
    prior = prior_of(make(corpus, formula, pseudo_documents=7.0))
    sums, eta = sums_of(prior, corpus)
    prior.m_step(NUM_DOCS, **sums)
    fixed, blocks = design(corpus, formula)
    x = np.column_stack([fixed, *blocks])
    gram = x.T @ x + np.diag(penalties_of(prior, blocks))
    gamma = np.linalg.solve(gram, x.T @ eta)
    found = torch.cat([prior.loc[None], prior.slopes, prior.level_effects]).detach().numpy()
    np.testing.assert_allclose(found, gamma, rtol=1e-8, atol=1e-10)
    covariance = (7 * np.eye(NUM_TOPICS) + eta.T @ eta - gamma.T @ gram @ gamma) / (7 + NUM_DOCS)
    np.testing.assert_allclose(prior.covariance.detach().numpy(), covariance, rtol=1e-9)
    inverse = np.linalg.inv(gram)
    location = prior.location(prior.encode(corpus).batch(dtype=torch.float64)).detach().numpy()
    np.testing.assert_allclose(location, x @ gamma, rtol=1e-8, atol=1e-10)
    effects = prior.effects_of("author")
    assert effects.levels == tuple(f"a{i}" for i in range(9))
    np.testing.assert_allclose(effects.mean, gamma[-9:], rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(effects.variance, np.diag(inverse)[-9:], rtol=1e-8)
    age = corpus.metadata["age"].to_numpy()
    scale = np.diag([1.0, 1 / age.std()])
    scale[0, 1] = -age.mean() / age.std()
    np.testing.assert_allclose(
        prior.coefficient_covariance(), scale @ inverse[:2, :2] @ scale.T, rtol=1e-8
    )


@pytest.mark.parametrize("spread", [0.0, 0.8])
def test_penalties_maximise_the_expected_evidence_of_uncertain_eta(corpus, spread) -> None:
    prior = prior_of(make(corpus, TWO))
    sums, eta = sums_of(prior, corpus, spread)
    covariance = prior.covariance.detach().numpy()
    for _ in range(30):  # the update converges linearly
        prior.set_(covariance=torch.from_numpy(covariance))
        prior.m_step(NUM_DOCS, **sums)
    prior.set_(covariance=torch.from_numpy(covariance))
    fixed, blocks = design(corpus, TWO)
    basis = np.linalg.svd(np.ones((1, NUM_DOCS)))[2][1:]
    columns = [fixed[:, 1:], *blocks]
    outer = eta @ np.linalg.solve(covariance, eta.T)
    outer += spread**2 * np.trace(np.linalg.inv(covariance)) * np.eye(NUM_DOCS)

    def evidence(penalties: list[float]) -> float:
        """Expected log density of eta's contrasts, coefficients integrated out."""
        rows = np.eye(NUM_DOCS) + sum(x @ x.T / r for x, r in zip(columns, penalties, strict=True))
        rows = basis @ rows @ basis.T
        quadratic = np.trace(np.linalg.solve(rows, basis @ outer @ basis.T))
        return -0.5 * (NUM_TOPICS * np.linalg.slogdet(rows)[1] + quadratic)

    best = [float(prior.penalty), *prior.level_penalties.tolist()]
    for j in (1, 2):
        at = [
            evidence([r * (factor if i == j else 1) for i, r in enumerate(best)])
            for factor in (0.8, 0.97, 1, 1.03, 1.25)
        ]
        assert at[0] < at[1] < at[2] > at[3] > at[4], j


def test_draws_of_the_effects_have_their_posterior_covariance(corpus) -> None:
    prior = prior_of(make(corpus, TWO))
    sums, _ = sums_of(prior, corpus)
    prior.m_step(NUM_DOCS, **sums)
    fixed, blocks = design(corpus, TWO)
    x = np.column_stack([fixed, *blocks])
    inverse = np.linalg.inv(x.T @ x + np.diag(penalties_of(prior, blocks)))
    order = [0, 1, 2, 3, 4, *range(5, 14)]  # intercept, age, 3 years, 9 authors
    eye = torch.eye(14, dtype=torch.float64)
    root = torch.cat(prior._system().draw(eye[:5], eye[5:])).numpy()
    np.testing.assert_allclose(root @ root.T, inverse[np.ix_(order, order)], atol=1e-12)
    before = prior.level_effects.detach().clone()
    prior.draw_(NUM_DOCS, np.random.default_rng(0), **sums)
    assert not torch.equal(prior.level_effects, before)


def test_changes_of_the_mean_have_the_covariance_of_their_information(corpus) -> None:
    model = make(corpus, TWO)
    prior = prior_of(model)
    prior.m_step(NUM_DOCS, **sums_of(prior, corpus)[0])
    rng = np.random.default_rng(5)
    precision = np.linalg.inv(prior.covariance.detach().numpy())
    root = rng.normal(size=(NUM_TOPICS, NUM_TOPICS))
    spread = np.linalg.inv(precision + root @ root.T)
    observed = precision - precision @ spread @ precision
    fixed, blocks = design(corpus, TWO)
    x = np.column_stack([fixed, *blocks])
    ridge = np.diag(penalties_of(prior, blocks))
    information = np.kron(x.T @ x, observed) + np.kron(ridge, precision)
    # draw_changes() is linear: the identity gives a root of the covariance.
    white = torch.eye(prior.num_changes * NUM_TOPICS, dtype=torch.float64)
    changes = prior.draw_changes(
        torch.from_numpy(observed), white.view(-1, prior.num_changes, NUM_TOPICS)
    )
    flat = changes.flatten(1).numpy()
    np.testing.assert_allclose(flat.T @ flat, np.linalg.inv(information), rtol=1e-6, atol=1e-9)
    batch = prior.encode(corpus).batch(dtype=torch.float64)
    np.testing.assert_allclose(prior.mean_shift(batch, changes), x @ changes.numpy(), atol=1e-12)


@pytest.mark.slow
def test_draws_of_a_guide_include_the_coefficients_of_random_terms(corpus) -> None:
    model = make(corpus, ONE)
    guide = TaylorGuide(model)
    VariationalEM(model, guide, progress=False, max_iterations=3).fit(corpus)
    widths = []
    for coefficients in (True, False):
        effects = lntm.effects.estimate(model, guide, corpus, "~ age", coefficients=coefficients)
        included = "coefficients of their prior mean" in repr(effects)
        assert included == coefficients
        widths.append(float(effects.regression.deviations.square().sum()))
    assert widths[0] > widths[1]
    joint = lntm.inference.joint_draws(model, corpus, num_draws=2, warmup_steps=3)
    assert prior_of(joint.model).effects_of("author").mean.isfinite().all()


def test_the_average_prior_has_the_moments_of_the_documents_means(corpus) -> None:
    prior = prior_of(make(corpus, TWO))
    with pytest.raises(NotFittedError):
        prior.averaged()
    prior.m_step(NUM_DOCS, **sums_of(prior, corpus)[0])
    location = prior.location(prior.encode(corpus).batch(dtype=torch.float64)).detach()
    average = prior.averaged()
    torch.testing.assert_close(average.loc.detach(), location.mean(0))
    spread = torch.cov(location.mT, correction=0) + prior.covariance
    torch.testing.assert_close(average.covariance.detach(), spread.detach())


# -------------------------------------------------------------------- documents


def test_new_levels_have_effect_0_and_a_prior_of_their_own(corpus) -> None:
    model = make(corpus, ONE)
    prior = prior_of(model)
    prior.m_step(NUM_DOCS, **sums_of(prior, corpus)[0])
    authors = np.array(["a0", "somebody new", "a1"])
    new = corpus[[0, 1, 2]].with_metadata({"author": authors})
    with pytest.warns(CorpusWarning, match="1 documents have values of author"):
        batch = model.encode(new).batch(dtype=torch.float64)
    assert batch.covariates["prevalence_levels"].tolist() == [[0], [-1], [1]]
    fixed = prior.loc + prior.standardised(batch) @ prior.slopes
    effects = (prior.location(batch) - fixed).detach()
    torch.testing.assert_close(effects[[0, 2]], prior.effects_of("author").mean[:2])
    assert effects[1].abs().max() == 0
    unseen = prior.at_new_levels()
    assert unseen.names == ("Intercept", "age")
    torch.testing.assert_close(unseen.location(batch), fixed)
    ratio = unseen.covariance / prior.covariance
    torch.testing.assert_close(ratio, (1 + 1 / prior.level_penalties).expand_as(ratio))
    with pytest.raises(ConfigError, match=r"model\.encode\(corpus\)\.batch\(\)"):
        prior.location(corpus.batch())
    columns = {"age": corpus.metadata["age"]}
    without = Corpus.from_matrix(corpus.to_scipy(), corpus.vocabulary, metadata=columns)
    with pytest.raises(CorpusError, match="no column 'author'"):
        model.encode(without)
    plain = Corpus.from_matrix(corpus.to_scipy(), corpus.vocabulary)
    known = {"prevalence": corpus.metadata["age"].to_numpy()[:, None]}
    for wrong in (-2, 9, 99):  # -2 would have the effect of the last level but one
        arrays = {**known, "prevalence_levels": np.full((NUM_DOCS, 1), wrong)}
        with pytest.raises(CorpusError, match="whole numbers from -1"):
            model.encode(plain.with_covariates(arrays))


@pytest.mark.slow
def test_a_fit_is_saved_loaded_and_generated_from(corpus, tmp_path) -> None:
    model = make(corpus, TWO)
    VariationalEM(model, TaylorGuide(model), progress=False, max_iterations=3).fit(corpus)
    lntm.io.save_model(model, tmp_path / "model")
    loaded = lntm.io.load_model(tmp_path / "model")
    for name, value in model.state_dict().items():
        assert torch.equal(value, loaded.state_dict()[name]), name
    assert prior_of(loaded).effects_of("year").levels == (2000, 2001, 2002)
    arrays = model.encode(corpus).batch_covariates
    drawn, _ = loaded.generate(corpus.lengths, covariates=arrays)
    assert loaded.encode(drawn).batch().covariates["prevalence_levels"].shape == (NUM_DOCS, 2)


@pytest.mark.long
def test_2000_levels_of_5000_documents_make_no_dense_columns() -> None:
    num_docs, num_levels, num_words = 5000, 2000, 30
    rng = np.random.default_rng(0)
    authors = np.concatenate([np.arange(num_levels), rng.integers(0, num_levels, 3000)])
    counts = rng.poisson(0.3, (num_docs, num_words))
    counts[:, 0] = 1
    columns = {"author": authors, "age": rng.normal(size=num_docs)}
    corpus = Corpus.from_matrix(counts, metadata=columns)
    model = make(corpus, ONE)
    encoded = model.encode(corpus)
    assert sum(array.size for array in encoded.batch_covariates.values()) == 2 * num_docs
    with LargestStorage() as largest:
        VariationalEM(model, TaylorGuide(model), progress=False, max_iterations=2).fit(encoded)
        prior_of(model).averaged()
        prior_of(model).effects_of("author")
    # 5,000 × 2,000 and 2,000 × 2,000 numbers would be 10 and 4 million.
    assert largest.size <= 8 * num_docs * num_words
    assert prior_of(model).level_effects.shape == (num_levels, NUM_TOPICS)


def test_many_levels_leave_the_covariance_unbiased() -> None:
    num_docs, num_levels, dim = 3000, 1200, 4
    rng = np.random.default_rng(0)
    authors = np.concatenate([np.arange(num_levels), rng.integers(0, num_levels, 1800)])
    corpus = Corpus.from_matrix(np.ones((num_docs, 2)), metadata={"author": authors})
    model = lntm.models.stm(dim, corpus, "~ (1 | author)", dtype="float64")
    prior = prior_of(model)
    eta = rng.normal(size=(num_docs, dim)) + 0.7 * rng.normal(size=(num_levels, dim))[authors]
    draws = torch.from_numpy(eta)[None]
    weights = torch.ones(1, num_docs, dtype=torch.float64)
    batch = model.encode(corpus).batch(dtype=torch.float64)
    for _ in range(20):
        sums = prior.statistics(Draws({"eta": draws}, draws, weights), batch)
        prior.m_step(num_docs, **sums)
    variances = prior.covariance.detach().diagonal()
    # Standard errors of a variance are 3 % here, and of the penalty 1/0.49 about 5 %.
    assert (variances - 1).abs().max() < 0.12
    assert abs(float(1 / prior.level_penalties) - 0.49) < 0.1


# -------------------------------------------------------------------- formulas


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("~ (age | author)", "outside of a random term"),
        ("~ (1 | author / year)", "outside of a random term"),
        ("~ (1 | author) * age", "outside of a random term"),
        ("~ (1 | author) + (1 | author)", "several random terms"),
        ("~ (1 | number)", "different in all documents"),
        ("~ (1 | same)", "the same in all documents"),
        ("~ 0 + (1 | author)", "no intercept"),
    ],
)
def test_other_terms_with_a_bar_are_refused(corpus, formula, message) -> None:
    corpus = corpus.with_metadata(
        {"number": np.arange(NUM_DOCS), "same": np.array(["x"] * NUM_DOCS)}
    )
    with pytest.raises(ConfigError, match=message):
        make(corpus, formula)
