"""Files for R's stm: their content by rdata, and what R's own packages make of them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from support.r import run_r

import torch_lntm as lntm
from torch_lntm.errors import ConfigError, CorpusWarning

rdata = pytest.importorskip("rdata", reason="needs rdata")

READ = "f <- readRDS(commandArgs(TRUE)[1]);"
WRITE = "cat(jsonlite::toJSON(out, digits = NA, matrix = 'rowmajor'))"


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "content"])
def fit(request, tmp_path_factory):
    """Draws by a fit with columns, their file, and the words that the documents use."""
    half = np.arange(75) % 2
    posts = lntm.example_corpus().with_metadata({"x": half * 1.0, "side": [*"lr"] * 37 + ["l"]})
    unseen = lntm.Corpus.from_matrix(
        np.pad(posts.to_scipy().toarray(), [(0, 0), (0, 1)]),
        [*posts.vocabulary, "unseen"],
        metadata=posts.metadata,
    )
    options = {"content": "side"} if request.param else {}
    model = lntm.models.stm(4, unseen, "~ x", **options)
    guide = lntm.guides.LaplaceGuide(model)
    engine = lntm.inference.VariationalEM(model, guide, progress=False, max_iterations=5)
    result = engine.fit(unseen)
    draws = lntm.inference.theta_draws(guide, unseen, 100, progress=False)
    path = tmp_path_factory.mktemp("r") / "fit.rds"
    lntm.interop.to_stm(draws, unseen, path)
    return draws, unseen, path, result


def read(path):
    """The content of a file, by the reader of rdata."""
    plain = lambda value, attributes: value  # noqa: E731 (the class "STM" is unknown to rdata)
    return rdata.read_rds(path, constructor_dict={"STM": plain})


@pytest.mark.slow
def test_elements_are_what_stm_would_have_estimated(fit):
    draws, corpus, path, result = fit
    found, model = read(path), draws.model
    theta = draws.theta.double().numpy()
    logits = np.log(theta[..., :-1]) - np.log(theta[..., -1:])
    assert found["eta"] == pytest.approx(logits.mean(0), abs=1e-6)
    assert found["theta"] == pytest.approx(theta.mean(0), abs=1e-6)
    rest = found["eta"] - found["mu"]["mu"].T
    mean = np.mean([np.cov(logits[:, d].T) for d in range(75)], 0)
    assert found["sigma"] - rest.T @ rest / 75 == pytest.approx(mean, rel=1e-6, abs=1e-6)
    assert found["invsigma"] @ found["sigma"] == pytest.approx(np.eye(3), abs=1e-8)
    design = np.column_stack([np.ones(75), corpus.metadata["x"]])
    mean = found["mu"]["mu"].T  # linear in the column
    assert mean == pytest.approx(design @ np.linalg.pinv(design) @ mean, abs=1e-8)
    dim = found["settings"]["dim"]
    assert (dim["K"], dim["V"], dim["N"]) == (4, 354, 75)
    assert list(found["vocab"]) == list(corpus.vocabulary[:354])  # all words but "unseen"
    assert dim["wcounts"]["x"].tolist() == corpus.word_totals[:354].tolist()
    levels = model.topics.num_levels
    probs = model.topics.double_probs.unflatten(1, (levels, 355))[..., :354].numpy()
    assert len(found["beta"]["logbeta"]) == dim["A"] == levels
    for level, logbeta in enumerate(found["beta"]["logbeta"]):
        expected = probs[:, level] / probs[:, level].sum(1, keepdims=True)
        assert np.exp(logbeta) == pytest.approx(expected, rel=1e-6)
    if levels > 1:
        position = found["settings"]["covariates"]["betaindex"]
        names = found["settings"]["covariates"]["yvarlevels"][position.astype(int) - 1]
        assert names.tolist() == corpus.metadata["side"].tolist()
        params = np.array(found["beta"]["kappa"]["params"])
        sums = found["beta"]["kappa"]["m"] + params[:4, None] + params[None, 4:6]
        sums += params[6:].reshape(2, 4, 354).transpose(1, 0, 2)
        total = np.exp(sums) / np.exp(sums).sum(-1, keepdims=True)
        assert total[:, 1] == pytest.approx(np.exp(found["beta"]["logbeta"][1]), rel=1e-6)
    lntm.interop.to_stm(result, corpus, path.with_name("whole.rds"))
    bound = read(path.with_name("whole.rds"))["convergence"]["bound"]
    assert bound[-1] == pytest.approx(result.history[-1]["objective"] * corpus.num_tokens)
    single = lntm.inference.ThetaDraws.of(draws.theta[:1], model)
    with pytest.raises(ConfigError, match="one draw of each document; expected at least 2"):
        lntm.interop.to_stm(single, corpus, path.with_name("single.rds"))


def test_a_random_term_leaves_the_regression_on_the_other_columns(tmp_path):
    half = np.arange(75) % 2
    posts = lntm.example_corpus().with_metadata({"x": half * 1.0, "blog": [*"abc"] * 25})
    run = lntm.fit(posts, 3, prevalence="~ x + (1 | blog)", max_epochs=3, progress=False)
    with pytest.warns(CorpusWarning, match="stm has no random terms"):
        lntm.interop.to_stm(run, posts, tmp_path / "fit.rds")
    found = read(tmp_path / "fit.rds")
    assert (found["mu"]["gamma"].shape, found["settings"]["gamma"]["mode"]) == ((2, 2), "Pooled")
    means = found["mu"]["mu"].T
    assert np.ptp(means[half == 0], 0).max() < 1e-9 < np.ptp(means, 0).min()
    assert "The model has (1 | blog), and the formula has not" in repr(run.effects("~ x"))
    assert "and the formula has not" not in repr(run.effects("~ x + (1 | blog)"))


@pytest.mark.slow
def test_tidytext_reads_words_and_proportions(fit):
    draws, corpus, path, _ = fit
    script = READ + (
        "library(tidytext); b <- tidy(f); g <- tidy(f, matrix = 'gamma');"
        "out <- list(class = class(f), topic = b$topic, term = b$term, beta = b$beta,"
        "level = b$y.level, document = g$document, of = g$topic, gamma = g$gamma);" + WRITE
    )
    out = json.loads(run_r(script, path, packages=("tidytext", "jsonlite")))
    assert out["class"] == ["STM"]
    theta = draws.theta.double().mean(0).numpy()
    for d, k, gamma in zip(out["document"], out["of"], out["gamma"], strict=True):
        assert gamma == pytest.approx(theta[d - 1, k - 1], abs=1e-6)
    model, levels = draws.model, out["level"] or [None] * len(out["term"])
    assert len(out["term"]) == 4 * 354 * model.topics.num_levels
    for level in set(levels):
        topics = model.topics if level is None else model.topics.at(level)
        probs = topics.double_probs[:, :354].numpy()
        probs = probs / probs.sum(1, keepdims=True)
        rows = zip(out["topic"], out["term"], out["beta"], levels, strict=True)
        for k, word, beta, at in rows:
            if at == level:
                expected = probs[k - 1, corpus.vocabulary.index(word)]
                assert beta == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_functions_of_stm_say_what_ours_say(fit):
    draws, corpus, path, _ = fit
    script = READ + (
        "library(stm); set.seed(1); l <- if (f$settings$dim$A == 1) labelTopics(f, n = 5) else"
        " sageLabels(f, n = 5)$cov.betas[[2]];"
        "d <- data.frame(x = (seq_len(nrow(f$theta)) - 1) %% 2);"
        "one <- estimateEffect(1:4 ~ x, f, d, uncertainty = 'None');"
        "all <- estimateEffect(1:4 ~ x, f, d, uncertainty = 'Global', nsims = 300);"
        "est <- function(e) sapply(e$parameters, function(p) sapply(p, function(s) s$est[2]));"
        "out <- list(labels = unclass(l), cor = topicCorr(f, cutoff = 0)$cor,"
        "docs = do.call(rbind, findThoughts(f, n = 3)$index), one = est(one), all = est(all));"
    )
    out = json.loads(run_r(script + WRITE, path, packages=("stm", "jsonlite")))
    model, theta = draws.model, draws.theta.double().mean(0).numpy()
    if model.topics.num_levels == 1:
        labels = lntm.reports.label_topics(model, corpus, top_n=5)
        for theirs, ours in (("prob", "probability"), ("frex", "frex"), ("score", "score")):
            assert [" ".join(row) for row in out["labels"][theirs]] == labels[ours].tolist()
    else:
        at = model.topics.at("r").top_words(5)[0].tolist()
        assert out["labels"]["problabels"] == [list(model.words_at(row)) for row in at]
    assert np.array(out["cor"]) == pytest.approx(np.corrcoef(theta.T), abs=1e-6)
    best = np.argsort(-theta, axis=0)[:3].T + 1
    assert out["docs"] == best.tolist()
    # The mean over draws of least squares is least squares on the mean.
    ours = lntm.effects.estimate(model, draws, corpus, "~ x", link="identity")
    assert out["one"] == pytest.approx(ours.difference("x", 1.0, 0.0)["estimate"], abs=1e-5)
    # "Global" draws around eta with the mean covariance; within 5 standard errors of 300 draws.
    found, again = np.array(out["all"]), read(path)
    rest = again["eta"] - again["mu"]["mu"].T
    tril = np.linalg.cholesky(again["sigma"] - rest.T @ rest / 75)
    noise = np.random.default_rng(0).normal(size=(3000, 75, 3)) @ tril.T
    logits = torch.from_numpy(np.pad(again["eta"] + noise, [(0, 0), (0, 0), (0, 1)]))
    drawn = torch.softmax(logits, -1).numpy()
    half = np.arange(75) % 2 == 1
    effects = drawn[:, half].mean(1) - drawn[:, ~half].mean(1)
    error = np.sqrt(effects.var(0) * (1 / 300 + 1 / 3000))
    assert (np.abs(found.mean(0) - effects.mean(0)) < 5 * error).all()
    assert found.std(0) == pytest.approx(effects.std(0), rel=0.25)
