"""The study of word vectors: splits, intruders, stability, and a run on a small corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from studies.__main__ import load
from studies.benchmarks import vectors
from studies.benchmarks.topic_scores import intruders_found
from studies.measure import measure
from torch_lntm.evaluation import paired_difference


def test_vectors_of_true_groups_find_the_intruders() -> None:
    # Three topics of six words; a word's vector is its topic.
    words = np.arange(18).reshape(3, 6)
    groups = np.eye(3).repeat(6, axis=0)
    assert intruders_found(words, groups) == 1.0
    # Word 0 has no vector, and five words are left.
    unknown = groups.copy()
    unknown[0] = np.nan
    assert intruders_found(words, unknown) == 1.0
    # Vectors of other groups accuse a word of the topic instead.
    assert intruders_found(words, np.eye(3)[np.arange(18) % 3]) < 0.5


def test_stability_is_the_share_of_common_words_of_matched_topics() -> None:
    first = {"topics": ["a b c d", "e f g h"]}
    second = {"topics": ["e f g x", "a b c d"]}
    assert vectors.stability([first, second]) == [pytest.approx((1 + 3 / 4) / 2)]
    assert vectors.stability([first]) == []


def test_a_thinned_split_keeps_the_words_and_the_scored_tokens(texts: Path) -> None:
    whole, few = (vectors.split_of(str(texts), number, 0, 500) for number in (0, 3))
    assert whole is not None
    assert few is not None
    assert (whole.train.num_docs, few.train.num_docs, few.test.num_docs) == (180, 3, 60)
    assert few.train.vocabulary == whole.train.vocabulary
    assert few.hold_outs["all"].fingerprint() == whole.hold_outs["all"].fingerprint()
    assert list(whole.hold_outs) == ["all"]
    assert few.hold_outs["known"].corpus.num_words == few.occurs.sum() < 40
    assert vectors.split_of(str(texts), 180, 0, 500) is None


@pytest.mark.slow
def test_the_study_compares_conditions(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of(source: str, words: list[str], folder: Path) -> Any:
        rng = np.random.default_rng(len(source))
        return rng.normal(size=(len(words), 3)).astype(np.float32)

    monkeypatch.setattr(vectors, "vectors_of", of)
    monkeypatch.setattr(vectors, "_GLOVE", "json")
    monkeypatch.setattr(vectors, "_USE", "no_such_library")
    of_vectors = vectors.CONDITIONS[vectors.VECTORS][1]
    monkeypatch.setitem(vectors.CONDITIONS, vectors.VECTORS, ((), of_vectors))
    monkeypatch.setitem(vectors.CONDITIONS, "FASTopic", (("no_such_library",), vectors.ours))
    chosen = vectors.Settings(
        corpora=(str(texts),),
        documents=(30, 999),
        num_topics=(4,),
        seeds=(0, 1),
        conditions=(vectors.PLAIN, vectors.VECTORS, "FASTopic"),
        tolerance=0.05,
    )
    study = load("vectors")
    result = measure("vectors", study, chosen, tmp_path / "out", progress=False)
    assert result.skipped == {"FASTopic": "no_such_library"}
    assert [(s["documents"], s["num_docs"]) for s in result.splits] == [(30, 30)] * 2
    assert len(result.rows) == 4
    plain, other = (
        [row for row in result.rows if row["condition"] == condition]
        for condition in (vectors.PLAIN, vectors.VECTORS)
    )
    assert all(row["settings"]["c"] >= 1 for row in other)
    found = vectors.gain(result, other, plain, "all")
    scores = [
        vectors.pooled(
            [
                vectors.score_of(row, split, "all")
                for row, split in zip(rows, result.splits, strict=True)
            ]
        )
        for rows in (other, plain)
    ]
    assert found[::2] == pytest.approx(paired_difference(*scores))
    line = next(
        x for x in study.table(result).splitlines() if x.startswith("| 30 ") and "vectors" in x
    )
    assert f"{found.gain:.3f} ± {found.document_error:.3f}" in line
    assert (tmp_path / "out" / "figure.png").exists()
