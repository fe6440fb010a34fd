"""The study of word vectors: splits, intruders, stability, and a run on a small corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from studies.__main__ import load
from studies.benchmarks import misleading, vectors
from studies.benchmarks.topic_scores import intruders_found
from studies.measure import measure
from torch_lntm.evaluation import paired_difference

FIRST, SECOND = ("a b c d", "e f g h"), ("e f g x", "a b c d")


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
    first, second = (np.array([x.split() for x in rows]) for rows in (FIRST, SECOND))
    assert vectors.common_words(first, second) == pytest.approx((1 + 3 / 4) / 2)


def test_a_thinned_split_keeps_the_words_and_the_scored_tokens(texts: Path) -> None:
    whole, few = (vectors.split_of(str(texts), number, 0, 500) for number in (0, 3))
    assert whole is not None
    assert few is not None
    assert (whole.train.num_docs, few.train.num_docs, few.test.num_docs) == (180, 3, 60)
    assert few.train.vocabulary == whole.train.vocabulary
    assert few.hold_outs["all"].fingerprint() == whole.hold_outs["all"].fingerprint()
    assert list(whole.hold_outs) == ["all"]
    tokens = few.hold_outs["all"].held_out.lengths
    assert list(map(int, few.packed("all", tokens).split())) == [
        sum(int(n) for n, place in zip(tokens, few.blocks["all"], strict=True) if place == block)
        for block in range(vectors.BLOCKS)
    ]
    assert few.hold_outs["known"].corpus.num_words == few.occurs.sum() < 40
    assert vectors.split_of(str(texts), 180, 0, 500) is None


def test_rivals_share_a_subject_and_misleading_vectors_confuse_them() -> None:
    corpus = misleading.documents_of(4000, 0)
    labels = np.asarray(corpus.labels).astype(int)
    counts = corpus.to_scipy().toarray()
    first, rival = (counts[labels == k].sum(0) for k in (0, 1))
    size = misleading.SUBJECT + 2 * misleading.OPINION
    ends = misleading.SUBJECT, misleading.SUBJECT + misleading.OPINION
    subject, own, other = (x.sum() for x in np.split(first[:size], ends))
    # A document's own topic has 0.7 + 0.3 / 20 of its tokens, and its rival has 0.3 / 20.
    assert own / first.sum() == pytest.approx(0.5 * 0.715, abs=0.02)
    assert other / first.sum() == pytest.approx(0.5 * 0.015, abs=0.01)
    assert subject / first.sum() == pytest.approx(0.5 * 0.73, abs=0.02)
    assert rival[ends[1] : size].sum() / rival.sum() == pytest.approx(0.5 * 0.715, abs=0.02)
    means = {
        kind: [x.mean(0) for x in np.split(misleading.vectors_for(kind, 0)[:size], ends)]
        for kind in ("follow", "mislead")
    }
    apart = {kind: np.linalg.norm(x[1] - x[2]) for kind, x in means.items()}
    assert apart["mislead"] < 1.5 < 3 < apart["follow"]


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
        misleading=(40,),
        tolerance=0.05,
    )
    monkeypatch.setattr(misleading, "TEST", 30)
    study = load("vectors")
    result = measure("vectors", study, chosen, tmp_path / "out", progress=False)
    assert result.skipped == {"FASTopic": "no_such_library"}
    assert [(s["documents"], s["num_docs"]) for s in result.splits] == [(30, 30)] * 2
    assert len(result.rows) == 4
    assert [row["vectors"] for row in result.misleading] == [*misleading.KINDS] * 2
    plain, other = (
        [row for row in result.rows if row["condition"] == condition]
        for condition in (vectors.PLAIN, vectors.VECTORS)
    )
    assert all(row["settings"]["c"] >= 1 for row in other)
    assert [list(row["stability"]) for row in other] == [[], ["0"]]
    assert 0 < other[1]["stability"]["0"] <= 1
    assert all({"nmi", "nmi_spread"} <= set(row) for row in result.rows)
    found = vectors.gain(result, other, plain, "all")
    assert found is not None
    scores = [vectors.pooled(vectors.scores_of(result, x, "all")) for x in (other, plain)]
    assert (found.gain, found.document_error) == pytest.approx(paired_difference(*scores))
    assert f"{found.gain:.3f} ± {found.error:.3f}" in study.table(result).replace("−", "-")
    assert (tmp_path / "out" / "figure.png").exists()
