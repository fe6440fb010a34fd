"""Structural topic models: the M-step, its evidence, coefficients, and new documents."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch

import torch_lntm as lntm
from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError, CorpusError, CorpusWarning, NotFittedError
from torch_lntm.guides import make_guide
from torch_lntm.inference import VariationalEM
from torch_lntm.models import (
    DirichletTopics,
    Levels,
    LogisticNormalPrior,
    StructuralPrior,
    TopicModel,
)
from torch_lntm.models.priors.covariates import Covariates
from torch_lntm.posteriors import Draws

NUM_TOPICS, NUM_WORDS, NUM_DOCS = 3, 12, 40
FORMULA = "~ party * age"


def make(corpus: Corpus, formula: str = FORMULA, **settings: Any) -> TopicModel:
    """A model with nonzero slopes."""
    model = lntm.models.stm(NUM_TOPICS, corpus, formula, **{"dtype": "float64", **settings})
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        model.prior.slopes.normal_(generator=generator)
    return model


def draws_of(prior: StructuralPrior, corpus: Corpus) -> tuple[dict[str, torch.Tensor], Any]:
    """Statistics of random latent variables of all documents, and the variables."""
    batch = prior.encode(corpus).batch(dtype=torch.float64)
    eta = torch.randn(
        NUM_DOCS, prior.latent_dim, dtype=torch.float64, generator=torch.Generator().manual_seed(3)
    )
    eta = eta + prior.location(batch).detach().double()
    weights = torch.ones(1, NUM_DOCS, dtype=torch.float64)
    moments = Draws({"eta": eta[None]}, prior.lift(eta)[None], weights)
    return prior.statistics(moments, batch), eta


def standardised(corpus: Corpus) -> np.ndarray:
    """The design of ``~ party * age`` without an intercept, by hand, standardised."""
    right = (corpus.metadata["party"] == "Right").astype(float)
    age = corpus.metadata["age"].to_numpy()
    x = np.stack([right, age, right * age], 1)
    return (x - x.mean(0)) / x.std(0)


# -------------------------------------------------------------------- the prior


@pytest.mark.slow
@pytest.mark.parametrize("anchored", [False, True])
@pytest.mark.parametrize("penalty", [None, 2.0])
def test_the_structural_prior_keeps_its_contract(corpus, anchored, penalty) -> None:
    model = make(corpus, anchored=anchored, penalty=penalty)
    batch = model.encode(corpus).batch(np.arange(5), dtype=torch.float64)
    lntm.testing.check_prior(model.prior, batch)


@pytest.mark.parametrize("anchored", [False, True])
@pytest.mark.parametrize("step", ["m_step", "start"])
def test_without_covariates_the_fit_is_bit_equal_to_the_plain_prior(corpus, anchored, step) -> None:
    model = make(corpus, "~ 1", anchored=anchored)
    sums, _ = draws_of(model.prior, corpus)
    plain = LogisticNormalPrior(NUM_TOPICS, anchored=anchored, dtype=torch.float64)
    getattr(plain, step)(NUM_DOCS, **{n: sums[n] for n in ("latent_sum", "latent_outer")})
    getattr(model.prior, step)(NUM_DOCS, **sums)
    assert torch.equal(model.prior.loc, plain.loc)
    assert torch.equal(model.prior.covariance, plain.covariance)
    assert torch.equal(model.prior.log_prior(), plain.log_prior())


@pytest.mark.parametrize("anchored", [False, True])
def test_the_m_step_is_ridge_regression(corpus, anchored) -> None:
    penalty, weight = 2.5, 7.0
    model = make(corpus, anchored=anchored, penalty=penalty, pseudo_documents=weight)
    sums, eta = draws_of(model.prior, corpus)
    model.prior.m_step(NUM_DOCS, **sums)
    x = np.column_stack([np.ones(NUM_DOCS), standardised(corpus)])
    ridge = penalty * np.diag([0.0, 1.0, 1.0, 1.0])
    gamma = np.linalg.solve(x.T @ x + ridge, x.T @ eta.numpy())
    found = torch.cat([model.prior.loc[None], model.prior.slopes]).detach().numpy()
    np.testing.assert_allclose(found, gamma, rtol=1e-9, atol=1e-10)
    dim = model.latent_dim
    base = weight * (np.eye(dim) + (1.0 if anchored else 0.0))
    scatter = eta.numpy().T @ eta.numpy() - gamma.T @ (x.T @ x + ridge) @ gamma
    expected = (base + scatter) / (weight + NUM_DOCS + 3)
    np.testing.assert_allclose(model.prior.covariance.detach().numpy(), expected, rtol=1e-9)


def test_coefficients_are_in_the_units_of_the_columns(corpus) -> None:
    model = make(corpus, penalty=2.5)
    sums, _ = draws_of(model.prior, corpus)
    with pytest.raises(NotFittedError):
        model.prior.coefficient_covariance()
    model.prior.m_step(NUM_DOCS, **sums)
    right = (corpus.metadata["party"] == "Right").astype(float)
    age = corpus.metadata["age"].to_numpy()
    x = np.stack([np.ones(NUM_DOCS), right, age, right * age], 1)
    assert model.prior.names == ("Intercept", "party[T.Right]", "age", "party[T.Right]:age")
    batch = model.encode(corpus).batch(dtype=torch.float64)
    expected = model.prior.location(batch).detach().numpy()
    np.testing.assert_allclose(x @ model.prior.coefficients.numpy(), expected, rtol=1e-9)
    ridge = 2.5 * np.diag([0.0, *x[:, 1:].var(0)])
    inverse = np.linalg.inv(x.T @ x + ridge)
    found = model.prior.coefficient_covariance().numpy()
    np.testing.assert_allclose(found, inverse, rtol=1e-6)


def log_evidence(u: np.ndarray, eta: np.ndarray, covariance: np.ndarray, penalty: float) -> float:
    """Log density of eta's contrasts between documents, the slopes integrated out."""
    num_docs = len(u)
    # An orthonormal basis of the contrasts orthogonal to a flat intercept.
    basis = np.linalg.svd(np.eye(num_docs) - 1 / num_docs)[0][:, : num_docs - 1].T
    rows = basis @ (np.eye(num_docs) + u @ u.T / penalty) @ basis.T
    m = basis @ eta
    quadratic = np.trace(np.linalg.solve(covariance, m.T @ np.linalg.solve(rows, m)))
    return -0.5 * (eta.shape[1] * np.linalg.slogdet(rows)[1] + quadratic)


def test_the_penalty_maximises_the_evidence(corpus) -> None:
    model = make(corpus)
    sums, eta = draws_of(model.prior, corpus)
    covariance = model.prior.covariance.detach().numpy()
    model.prior.m_step(NUM_DOCS, **sums)
    best, u = float(model.prior.penalty), standardised(corpus)
    at = [log_evidence(u, eta.numpy(), covariance, best * f) for f in (0.8, 0.98, 1, 1.02, 1.25)]
    assert at[0] < at[1] < at[2] > at[3] > at[4]


def test_irrelevant_slopes_shrink_to_0(corpus) -> None:
    model = make(corpus)
    noise = torch.from_numpy(np.random.default_rng(0).normal(size=(NUM_DOCS, 3)))
    u = torch.from_numpy(standardised(corpus))
    # Exactly uncorrelated with the covariates.
    x = torch.cat([torch.ones(NUM_DOCS, 1, dtype=u.dtype), u], 1)
    noise = noise - x @ torch.linalg.lstsq(x, noise).solution
    batch = model.encode(corpus).batch(dtype=torch.float64)
    moments = Draws({"eta": noise[None]}, noise[None], torch.ones(1, NUM_DOCS).double())
    for _ in range(5):
        model.prior.m_step(NUM_DOCS, **model.prior.statistics(moments, batch))
    assert float(model.prior.slopes.detach().abs().max()) < 1e-6
    assert float(model.prior.penalty) > 1e6


def test_parameters_can_be_set_and_invalid_ones_are_refused() -> None:
    covariates = Covariates(("x",), (0.0,), (1.0,))
    prior = StructuralPrior(3, covariates, slopes=torch.tensor([[1.0, 0.0, -1.0]]))
    assert prior.slopes.tolist() == [[1.0, 0.0, -1.0]]
    assert "mean linear in x" in repr(prior)
    with pytest.raises(ConfigError, match=r"expected \(1, 3\)"):
        StructuralPrior(3, covariates, slopes=torch.zeros(2, 3))
    with pytest.raises(ConfigError, match="penalty is 0"):
        StructuralPrior(3, covariates, penalty=0.0)


# -------------------------------------------------------------------- documents


def test_the_error_for_a_batch_without_covariates_says_how_to_add_them(corpus) -> None:
    model = make(corpus)
    with pytest.raises(ConfigError, match=r"model\.encode\(corpus\)\.batch\(\)"):
        make_guide("taylor", model).posterior(corpus.batch())
    other = corpus.with_covariates({"prevalence": np.ones((NUM_DOCS, 2))})
    with pytest.raises(ConfigError, match=r"expected \(40, 3\)"):
        make_guide("taylor", model).posterior(other.batch())


def test_documents_with_unknown_covariates_get_the_mean(corpus) -> None:
    model = make(corpus)
    bare = Corpus.from_matrix(corpus.to_scipy()[:5], corpus.vocabulary)
    with pytest.warns(CorpusWarning, match=r"no column .* \(party\[T.Right\], age, party"):
        ready = model.encode(bare)
    found = model.prior.location(ready.batch(dtype=torch.float64))
    torch.testing.assert_close(found, model.prior.loc.expand(5, -1))
    half = Corpus.from_matrix(corpus.to_scipy(), metadata={"party": corpus.metadata["party"]})
    with pytest.raises(CorpusError, match="no column 'age'"):
        model.encode(half)


def test_the_averaged_prior_includes_the_spread_of_the_covariates(corpus) -> None:
    model = make(corpus)
    with pytest.raises(NotFittedError):
        model.prior.averaged()
    sums, _ = draws_of(model.prior, corpus)
    model.prior.m_step(NUM_DOCS, **sums)
    averaged = model.prior.averaged()
    batch = model.encode(corpus).batch(dtype=torch.float64)
    means = model.prior.location(batch).detach()
    torch.testing.assert_close(averaged.loc.detach(), means.mean(0))
    expected = model.prior.covariance.detach() + torch.cov(means.mT, correction=0)
    torch.testing.assert_close(averaged.covariance.detach(), expected)
    plain = model.with_parts(averaged)
    assert make_guide("taylor", plain).posterior(corpus.batch()).mean.shape == (NUM_DOCS, 3)


def test_a_design_matrix_replaces_a_formula(corpus) -> None:
    x = np.column_stack([corpus.metadata["age"], np.arange(NUM_DOCS) % 2])
    given = corpus.with_covariates({"prevalence": x})
    model = lntm.models.stm(NUM_TOPICS, given, dtype="float64")
    assert model.prior.names == ("Intercept", "x0", "x1")
    assert model.encode(given) is given
    narrow = corpus.with_covariates({"prevalence": x[:, :1]})
    with pytest.raises(CorpusError, match="has 1 columns; the model was made for 2"):
        model.encode(narrow)
    with pytest.raises(ConfigError, match="stm needs prevalence, such as '~ party', or content"):
        lntm.models.stm(NUM_TOPICS, corpus)
    with pytest.raises(ConfigError, match="with_covariates"):
        lntm.models.stm(NUM_TOPICS, corpus, x)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("~ 0 + party", "no intercept"),
        ("~ I(age - age)", "the same in all documents"),
        ("~ np.log(age)", "forbidden"),
    ],
)
def test_unsuitable_formulas_are_refused(corpus, formula, message) -> None:
    with pytest.raises(ConfigError, match=message):
        lntm.models.stm(NUM_TOPICS, corpus, formula)
    for columns in ({"prevalence": formula}, {"content": "party"}):
        with pytest.raises(ConfigError, match="learned from the training documents"):
            lntm.models.stm(3, 100, **columns)


def test_a_prevalence_array_works_with_a_content_column(corpus) -> None:
    x = corpus.metadata["age"].to_numpy()[:, None]
    given = corpus.with_covariates({"prevalence": x})
    model = lntm.models.stm(NUM_TOPICS, given, content="party", vocabulary=None)
    assert model.prior.names == ("Intercept", "x0")
    assert model.vocabulary is None
    plain = lntm.models.stm(NUM_TOPICS, corpus, content="party")
    assert plain.prior.names == ("Intercept",)
    assert plain.vocabulary == corpus.vocabulary


def test_learned_covariates_replace_the_formula(corpus) -> None:
    covariates, groups = Covariates.of(corpus, FORMULA), Levels.of(corpus, "party")
    expected = lntm.models.stm(NUM_TOPICS, corpus, FORMULA, "party").config
    for documents in (corpus, NUM_WORDS):
        model = lntm.models.stm(NUM_TOPICS, documents, covariates, groups)
        assert model.config == expected
        assert model.vocabulary == (None if documents == NUM_WORDS else corpus.vocabulary)


# -------------------------------------------------------------------- fits


@pytest.mark.slow
def test_engines_and_evaluators_encode_the_corpus(corpus, tmp_path) -> None:
    model = make(corpus)
    guide = make_guide("laplace", model)
    # A second fit of the same model continues from the checkpoint of the first.
    kept = {"checkpoint": tmp_path / "fit.ckpt", "checkpoint_seconds": 0}
    result, again = (
        VariationalEM(model, guide, max_iterations=2, progress=False).fit(corpus, **kept)
        for _ in range(2)
    )
    assert all(math.isfinite(record["objective"]) for record in result.history)
    assert again.history == result.history
    whole = lntm.evaluation.document_completion(model, corpus, theta="mode", guide=guide)
    frozen = lntm.evaluation.document_completion(
        model, corpus.hold_out_words(0.5, seed=0), theta="mode", guide=guide
    )
    assert 1.0 < whole.perplexity < NUM_WORDS
    torch.testing.assert_close(frozen.log_predictive, whole.log_predictive, rtol=0, atol=0)
    found = lntm.inference.transform(guide, corpus)
    assert found.theta.shape == (NUM_DOCS, NUM_TOPICS)
    estimate = lntm.evaluation.log_likelihood(model, corpus[:4], num_draws=200)
    assert bool(torch.isfinite(estimate.log_likelihood).all())


@pytest.mark.slow
def test_fits_recover_the_slopes() -> None:
    rng = np.random.default_rng(3)
    topics = torch.from_numpy(rng.dirichlet(np.full(30, 0.1), NUM_TOPICS) + 1e-3)
    slopes = torch.tensor([[1.0, -1.0, 0.0], [0.0, 0.5, -0.5]], dtype=torch.float64)
    x = rng.normal(size=(500, 2))
    x = (x - x.mean(0)) / x.std(0)
    truth = TopicModel(
        StructuralPrior(
            NUM_TOPICS,
            Covariates(("a", "b"), (0.0, 0.0), (1.0, 1.0)),
            slopes=slopes,
            covariance=0.3 * torch.eye(3),
            dtype=torch.float64,
        ),
        DirichletTopics(NUM_TOPICS, 30, probs=topics, dtype=torch.float64),
    )
    made, _ = truth.generate([80] * 500, covariates={"prevalence": x}, seed=0)
    made = made.with_metadata({"a": 10 * x[:, 0] + 3, "b": x[:, 1]})
    model = lntm.models.stm(NUM_TOPICS, made, "~ a + b", topics=topics, dtype="float64")
    guide = make_guide("taylor", model)
    VariationalEM(model, guide, start="model", max_iterations=15, progress=False).fit(made)
    found = model.prior.coefficients[1:] * torch.tensor([[10.0], [1.0]])
    found = found - found.mean(1, keepdim=True)
    # Regression on 500 documents has errors of about 0.05 per slope; slopes of 0 have errors of 1.
    assert float((found - slopes).abs().max()) < 0.25


# -------------------------------------------------------------------- files


def test_a_model_and_its_formula_survive_saving_and_loading(corpus, tmp_path) -> None:
    model = make(corpus, "~ party * bs(age, df=4)", dtype="float32")
    sums, _ = draws_of(model.prior, corpus)
    model.prior.m_step(NUM_DOCS, **sums)
    lntm.save_model(model, tmp_path / "model")
    again = lntm.load_model(tmp_path / "model")
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value)
    some = corpus[:6]
    found = again.prior.location(again.encode(some).batch())
    expected = model.prior.location(model.encode(corpus).batch(np.arange(6)))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "text", ["~ {__import__('pathlib').Path('owned').touch()}", "~ open('owned', 'w')"]
)
def test_a_formula_in_a_file_executes_no_code(corpus, tmp_path, monkeypatch, text) -> None:
    model = make(corpus, "~ party")
    lntm.save_model(model, tmp_path / "model")
    path = tmp_path / "model" / "model.json"
    about = json.loads(path.read_text())
    about["config"]["prevalence"]["formula"]["text"] = text
    path.write_text(json.dumps(about))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="forbidden"):
        lntm.load_model(tmp_path / "model")
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


def test_covariates_of_other_data_are_refused() -> None:
    good = Covariates(("x",), (0.0,), (1.0,)).to_json()
    assert Covariates.from_json(good).names == ("x",)
    bad = ({"means": []}, {"means": [math.nan]}, {"means": ["a"]}, {"scales": [0.0]}, {"names": 3})
    for data in (None, 3, {"names": ["x"]}, *(good | damage for damage in bad)):
        with pytest.raises(ConfigError, match=r"models\.stm"):
            Covariates.from_json(data)


@pytest.mark.parametrize("factor", [1e300, 1e40, 1e-40])
def test_columns_outside_the_range_of_single_precision_are_refused(corpus, factor) -> None:
    scaled = corpus.with_metadata({"age": corpus.metadata["age"] * factor})
    with pytest.raises((ConfigError, CorpusError), match=r"age.* the column by a constant"):
        lntm.models.stm(NUM_TOPICS, scaled, "~ party + age")
    given = corpus.with_covariates({"prevalence": scaled.metadata[["age"]].to_numpy()})
    with pytest.raises(ConfigError, match=r"the column x0 reach .* multiply"):
        lntm.models.stm(NUM_TOPICS, given)


def test_columns_that_single_precision_rounds_are_refused(corpus) -> None:
    age = corpus.metadata["age"].to_numpy()
    far = corpus.with_metadata({"age": age + 1e8})
    with pytest.raises(
        ConfigError, match=r"the column age varies by 1\d around 1000000\d\d.*center"
    ):
        lntm.models.stm(NUM_TOPICS, far, "~ age")
    with pytest.raises(ConfigError, match="x0 varies by"):
        Covariates.of(corpus.with_covariates({"prevalence": age[:, None] + 1e8}), None)
    near = lntm.models.stm(NUM_TOPICS, corpus, "~ age")
    centred = lntm.models.stm(NUM_TOPICS, far, "~ center(age)")
    found = [
        model.prior.standardised(model.encode(documents).batch())
        for model, documents in ((near, corpus), (centred, far))
    ]
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
