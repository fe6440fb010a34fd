"""Every benchmark runs on a tiny corpus and prints what it measured."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from studies.__main__ import load
from studies.benchmarks import completion, coverage, overfitting, structural, systems
from studies.benchmarks.completion import check_installed, difference
from studies.measure import Cells, measure
from tests.support.corpora import save_counts
from torch_lntm.corpus import Corpus, synthetic_topics
from torch_lntm.errors import ConfigError
from torch_lntm.evaluation import CompletionResult
from torch_lntm.models import ctm

#: Settings, and the rows that the tables have to have.
TINY: dict[str, tuple[dict[str, Any], list[str]]] = {
    "aspect": ({"num_topics": 3}, ["VB float32", "scikit-learn float64", "float64"]),
    "putthividhya_table1": (
        {"num_topics": (3,), "repeats": 1},
        ["3", "ratio of sums", "the paper's"],
    ),
    "completion": (
        {"num_topics": (3,), "threads": 1} | {"systems": ("torch_lntm ctm", "scikit-learn LDA")},
        ["torch_lntm ctm", "scikit-learn LDA"],
    ),
    "structural": (
        {"num_topics": (3,), "formulas": ("~ bs(day, df=4)",), "max_test_docs": 4}
        | {"systems": ("torch_lntm stm",), "tolerance": 0.05},
        ["torch_lntm stm"],
    ),
    "defaults": ({"num_topics": 2, "seeds": (1,)}, ["defaults", "anchored"]),
    "sampling": (
        {"num_topics": 2, "num_docs": 4, "num_samples": 8, "stock_seconds": 0.1}
        | {"stock_warmup": 2, "nuts_docs": 1, "nuts_samples": 8},
        ["DocumentHMC laplace", "Pyro NUTS", "NUTS per document", "sparse operation", "40"],
    ),
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    truth = ctm(3, 30, topics=synthetic_topics(3, 30, 0.2, seed=0))
    path = tmp_path_factory.mktemp("data") / "tiny.npz"
    made: Corpus = truth.generate([30] * 40, seed=0)[0]
    save_counts(made, path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_runs_is_kept_and_is_printed(name: str, corpus: Path, tmp_path: Path) -> None:
    study = load(name)
    changes, rows = TINY[name]
    settings = study.settings(corpus=str(corpus), **changes)
    result = measure(name, study, settings, tmp_path, progress=False)
    text = study.table(result)
    assert (tmp_path / "tables.md").read_text() == text + "\n"
    first = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")]
    assert set(rows) <= set(first)
    # What is drawn from the file alone is what was drawn at first.
    assert study.table(measure(name, study, settings, tmp_path, progress=False)) == text


def test_a_structural_study_reads_the_real_days_of_a_corpus(corpus: Path, tmp_path: Path) -> None:
    train = np.arange(30)
    drawn = structural.with_columns(str(corpus), train, 0).metadata["day"]
    assert drawn[:2].tolist() == [0, structural.DAYS - 1]
    dated = tmp_path / "dated.npz"
    dated.write_bytes(corpus.read_bytes())
    days = "\n".join(map(str, ["day", *range(40)]))
    dated.with_suffix(".columns.csv").write_text(days, encoding="utf-8")
    real = structural.with_columns(str(dated), train, 0).metadata["day"]
    assert real.tolist() == list(range(40))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_coverage_counts_the_intervals_that_hold_the_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    few = partial(coverage.joint_draws, num_draws=4, warmup_steps=5)
    monkeypatch.setattr(coverage, "joint_draws", few)
    study = load("coverage")
    settings = study.settings(
        num_corpora=2, lengths=(10,), effects=(0.5,), num_docs=20, num_topics=2, num_words=8
    )
    result = study.run(settings, Cells())
    rows = study.table(result).splitlines()[2:]
    assert len(rows) == 2 * 11
    methods = {row.split("|")[4].strip() for row in rows}
    assert {
        "true theta",
        "taylor: coefficients",
        "laplace: average",
        "hmc: chains",
        "joint",
    } <= methods
    # By hand: one interval of two holds the truth, and estimates are twice as large as that.
    held, missed = [0.1, 0.2, 0.0, 0.4], [0.1, 0.2, 0.15, 0.25]
    made = type(result)(
        study.settings(num_corpora=2, lengths=(10,), effects=(0.5,), known=(False,)),
        [{"true theta": [held]}, {"true theta": [missed]}],
    )
    assert "50.0 ± 50.0 | +1.00 |  1.00 |" in study.table(made)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the chains of:UserWarning")
def test_accuracy_judges_the_guides_of_each_kind(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from studies.benchmarks import accuracy

    monkeypatch.setattr(accuracy, "CASES", {"lda": accuracy.CASES["lda"]})
    settings = accuracy.Settings(corpus=str(corpus), num_topics=2, num_docs=3, num_samples=100)
    (found,) = accuracy.run(settings, Cells())
    assert set(found["posteriors"]) >= {"vb", "ep"}
    assert accuracy.tables([found]).startswith(
        "lda, fitted by vb\n\n```\nPosteriorAccuracy on tiny"
    )


def test_differences_are_paired() -> None:
    tokens = np.array([10, 4, 0, 7])
    ours, other = np.array([-20.0, -9.0, 0.0, -14.0]), np.array([-22.0, -8.5, 0.0, -16.0])
    rows = [
        {"held_out_tokens": tokens.tolist(), "log_predictive": values.tolist()}
        for values in (ours, other)
    ]
    expected = CompletionResult(
        torch.from_numpy(ours - other), torch.from_numpy(tokens), "given", "difference"
    )
    gain, error = difference(rows[0], rows[1])
    assert gain == pytest.approx(expected.nats_per_token)
    assert error == pytest.approx(expected.nats_per_token_standard_error)


def test_a_system_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    check_installed(("torch_lntm ctm", "scikit-learn LDA"))
    monkeypatch.setattr(completion, "find_spec", lambda name: None if name == "gensim" else name)
    with pytest.raises(ConfigError, match=r"'gensim LDA' needs gensim, .*requirements.txt"):
        check_installed(("torch_lntm ctm", "gensim LDA"))


def test_a_structural_system_is_scored_at_its_own_prior_means() -> None:
    """Logits of which the last is 0, as those of R's stm and of topica."""
    rng = np.random.default_rng(0)
    coefficients = rng.normal(size=(3, 2))
    topics = rng.dirichlet(np.ones(5), 3)
    model = structural.model_of(
        {"topics": 7.0 * topics, "coefficients": coefficients, "covariance": 2.0 * np.eye(2)}
    )
    u = rng.normal(size=(4, 2))
    corpus = Corpus.from_matrix(np.ones((4, 5), int)).with_covariates({"prevalence": u})
    found = model.prior.location(corpus.batch(dtype=torch.float64)).detach().numpy()
    np.testing.assert_allclose(found, np.column_stack([np.ones(4), u]) @ coefficients)
    np.testing.assert_allclose(model.topics.probs.detach().numpy(), topics)
    assert model.prior.anchored


def test_fewer_sweeps_of_the_slow_model_at_many_topics() -> None:
    assert [systems.ctm_sweeps(k) for k in (20, 50, 100)] == [1000, 1000, 125]


def test_phases_add_up_to_the_history() -> None:
    history = [
        {"phase": "start", "seconds": 1.0},
        {"phase": "start", "seconds": 1.5},
        {"phase": "em", "seconds": 4.0},
    ]
    phases = systems.phase_seconds(history)
    assert phases == {
        "start": {"iterations": 2, "wall_seconds": 1.5},
        "em": {"iterations": 1, "wall_seconds": 2.5},
    }
    assert math.fsum(phase["wall_seconds"] for phase in phases.values()) == 4.0


@pytest.mark.slow
def test_the_study_of_nested_documents_scores_formulas_and_intervals(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    blog = np.arange(60) % 6
    counts = rng.multinomial(30, rng.dirichlet(np.full(20, 0.3), 6)[blog] * 0.5 + 0.025)
    save_counts(Corpus.from_matrix(counts), tmp_path / "posts.npz")
    lines = [f"{'LR'[b % 2]},{d % 4},b{b}" for d, b in enumerate(blog)]
    (tmp_path / "posts.columns.csv").write_text("\n".join(["rating,day,blog", *lines]))
    study = load("nested")
    settings = study.settings(corpus=str(tmp_path / "posts.npz"), num_topics=3, seeds=(0,))
    result = measure("nested", study, settings, tmp_path / "out", progress=False)
    [row] = result.rows
    assert set(row["intervals"]) == {
        "independent documents, HC3",
        "clusters of blog",
        "random effects of blog",
    }
    assert len(row["gains"]) == 10
    assert "| ~ rating + (1 | blog)   " in study.table(result)


def test_overfitting_divides_documents_and_their_words(tmp_path: Path, monkeypatch) -> None:
    counts = np.random.default_rng(0).poisson(1.0, (40, 30))
    labels = {"label": ["neg", "pos"] * 20, "id": [f"d{d}" for d in range(40)]}
    Corpus.from_matrix(counts, metadata=labels).save(tmp_path / "made")
    monkeypatch.setattr(overfitting, "corpus_file", lambda name: tmp_path / name)
    drawn, others, new, others_of_new = overfitting.divided("made 40 15", 0)
    whole = [a.to_scipy() + b.to_scipy() for a, b in ((drawn, others), (new, others_of_new))]
    rows = np.concatenate([part.toarray() for part in whole])
    x = np.concatenate([part.metadata["x"] for part in (drawn, new)])
    known = {(*row, d % 2) for d, row in enumerate(counts.tolist())}
    assert {(*row, int(of)) for row, of in zip(rows.tolist(), x, strict=True)} == known
    np.testing.assert_array_equal(drawn.lengths, np.minimum(rows[:20].sum(1), 15))


@pytest.mark.slow
def test_the_study_of_coded_documents_compares_with_surrogates_alone(tmp_path: Path) -> None:
    study = load("coded")
    settings = study.settings(num_docs=300, coded=(50,), raters=(3,), spreads=(0.5,), num_blocks=1)
    rows = measure("coded", study, settings, tmp_path / "out", progress=False)
    assert len(rows) == 7
    assert all(row["holds"][0] == row["holds"][1] > 0.8 for row in rows)
    labels = [row for row in rows if row["kind"] == "labels"]
    assert all(row["plain_holds"][0] < 0.2 for row in labels)
    assert all(abs(row["estimate"][0] - 0.2) < 0.07 for row in labels)
    assert study.table(rows).count("\n| ") == 10


@pytest.mark.slow
def test_the_study_of_levels_has_coverage_by_design_and_link(tmp_path: Path) -> None:
    study = load("levels")
    settings = study.settings(groups=(4,), docs=(5,), ratios=(0.2,), num_corpora=2)
    rows = measure("levels", study, settings, tmp_path / "out", progress=False)
    assert len(rows) == 2
    for row in rows:
        for link in ("identity", "logit"):
            share, width = row[link]
            # 12 intervals, none of which is as narrow as a variance of 0 would make it.
            assert share * 12 == pytest.approx(round(share * 12))
            assert 0.01 < width < 1
    assert len(study.table(rows).splitlines()) == 3
