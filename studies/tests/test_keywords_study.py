"""The study of keyword topics on a small corpus with known classes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import torch_lntm as lntm
from studies.__main__ import load
from studies.benchmarks import keywords
from studies.measure import measure

NUM_WORDS = 20


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Two classes with five typical words each, and 40 test documents."""
    rng = np.random.default_rng(0)
    labels = np.arange(160) % 2
    weights = np.ones((2, NUM_WORDS))
    weights[0, :5] = weights[1, 10:15] = 8.0
    probs = weights / weights.sum(1, keepdims=True)
    counts = sp.csr_matrix(np.stack([rng.multinomial(25, probs[label]) for label in labels]))
    path = tmp_path / "classes.npz"
    arrays = {"data": counts.data, "indices": counts.indices, "indptr": counts.indptr}
    np.savez(path, **arrays, shape=np.array(counts.shape))
    texts = {
        "vocab": [f"w{v}" for v in range(NUM_WORDS)],
        "labels": labels.astype(str),
        "split": ["train"] * 120 + ["test"] * 40,
    }
    for name, lines in texts.items():
        path.with_name(f"classes.{name}.txt").write_text("\n".join(lines))
    return path


def test_keywords_are_the_typical_words_of_the_classes(corpus: Path) -> None:
    found = keywords.class_keywords(lntm.read_corpus(corpus), 3)
    assert list(found) == ["class 0", "class 1"]
    assert set(found["class 0"]) <= {f"w{v}" for v in range(5)}
    assert set(found["class 1"]) <= {f"w{v}" for v in range(10, 15)}


def test_the_study_classifies_test_documents(corpus: Path, tmp_path: Path) -> None:
    systems = ("ctm", "prior only, ordinary start", keywords.FREE)
    settings = keywords.Settings((str(corpus),), 3, 1, (0, 1), systems)
    study = load("keywords")
    rows = measure("keywords", study, settings, tmp_path / "out", progress=False)
    assert [row["system"] for row in rows] == [*systems, *systems]
    ours = [row for row in rows if row["system"] == "ctm"]
    assert min(row["accuracy"] for row in ours) > 0.9
    assert all(1 < row["perplexity"] < NUM_WORDS for row in rows)
    assert all("accuracy" not in row for row in rows if row["system"] == keywords.FREE)
    assert "prior only, ordinary start" in study.table(rows)


def test_documents_without_a_split_are_classified_in_the_fit(corpus: Path) -> None:
    corpus.with_name("classes.split.txt").unlink()
    lists = {"class 0": ["w0"], "class 1": ["w11"]}
    corpus.with_name("classes.keywords.json").write_text(json.dumps(lists))
    task = keywords.task_of(str(corpus), 0, keywords.Settings())
    assert task.train.num_docs == task.test.num_docs == 160
    assert task.keywords == lists
    assert task.num_topics == 2 + task.num_free


def test_scores_are_those_of_the_definitions(corpus: Path) -> None:
    task = keywords.task_of(str(corpus), 0, keywords.Settings(num_free=1))
    labels = np.array(task.test.labels).astype(int)
    theta = np.full((len(labels), 3), 0.1)
    theta[np.arange(len(labels)), labels] = 0.5
    theta[:4, 2] = 0.9
    scores = keywords.scores_of(keywords.Fit(theta, 1.0), task, True)
    assert scores["accuracy"] == scores["macro_f1"] == 1.0
    assert scores["purity"] == pytest.approx((len(labels) - 2) / len(labels))
    assert "perplexity" not in scores
