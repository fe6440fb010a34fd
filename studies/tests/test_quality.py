"""The study of held-out words: its splits, baselines, tables, and what it does without a peer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from studies.__main__ import load
from studies.benchmarks import frozen as freezing
from studies.benchmarks import quality
from studies.benchmarks.frozen import CORPORA, MAX_DOCS, MAX_TEST_DOCS, SEEDS, frozen, recorded
from studies.measure import Cells, measure
from studies.scores.completion import completion_of
from tests.support.corpora import save_counts
from torch_lntm.corpus import Corpus, WordHoldOut, synthetic_topics
from torch_lntm.errors import ConfigError, CorpusError
from torch_lntm.models import ctm

OURS, PEER = "torch_lntm ctm", "scikit-learn LDA"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    truth = ctm(3, 30, topics=synthetic_topics(3, 30, 0.2, seed=0))
    path = tmp_path_factory.mktemp("data") / "tiny.npz"
    save_counts(truth.generate([30] * 60, seed=0)[0], path)
    return path


def settings(path: Path, **changes: Any) -> quality.Settings:
    chosen = {"num_topics": (3,), "seeds": (0, 1), "systems": (OURS, PEER), "tolerance": 0.05}
    return quality.Settings(corpora=(str(path),), **{**chosen, **changes})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_it_runs_is_kept_and_is_printed(path: Path, tmp_path: Path) -> None:
    study, chosen = load("quality"), settings(path, seeds=(1,), max_test_docs=4)
    result = measure("quality", study, chosen, tmp_path, progress=False)
    text = study.table(result)
    assert (tmp_path / "tables.md").read_text() == text + "\n"
    first = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")]
    assert first == ["system", "-" * len("unigram and own counts"), OURS, PEER, *_baselines()]
    # What is drawn from the file alone is what was drawn at first.
    assert study.table(measure("quality", study, chosen, tmp_path, progress=False)) == text
    split = frozen(str(path), 1, chosen.max_docs, 4)
    row = next(row for row in result.rows if (row["seed"], row["system"]) == (1, PEER))
    assert len(row["log_predictive"].split()) == 4
    record = next(found for found in result.splits if found["seed"] == 1)
    assert record["hold_out_fingerprint"] == split.hold_out.fingerprint()
    assert record["tokens"].split() == [str(n) for n in split.hold_out.held_out.lengths]
    assert row["simulation_error"] <= 0.05


def _baselines() -> list[str]:
    return [quality.UNIGRAM, quality.OWN_COUNTS]


def test_a_system_without_its_library_is_skipped_by_name(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quality, "missing_library", lambda system: "sklearn")
    result = quality.run(settings(path, seeds=(0,)), Cells())
    assert result.rows == []
    text = quality.tables(result)
    assert f"skipped: {PEER} (sklearn is not installed)" in text
    assert quality.OWN_COUNTS in text


def test_a_system_that_fails_does_not_end_the_study(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = {"topics": np.ones((3, 30)), "loc": np.zeros(3), "covariance": -np.eye(3)}
    monkeypatch.setattr(quality, "fit_in_process", lambda *args, **options: bad)
    result = quality.run(settings(path, seeds=(0,)), Cells())
    assert all(row["failed"].startswith(("NumericalError", "ConfigError")) for row in result.rows)
    assert quality.tables(result).count("failed") == 2


# ------------------------------------------------------------------ splits


def test_a_split_is_a_function_of_its_seed(path: Path) -> None:
    split, again, other = (frozen(str(path), seed, 40, 3) for seed in (0, 0, 1))
    assert split.hashes == again.hashes
    assert not {*split.hashes.values()} & {*other.hashes.values()}
    assert (split.train.num_docs, len(split.test_index)) == (36, 3)
    # The words are those that the training documents have.
    assert (split.train.to_scipy().sum(0) > 0).all()


def test_a_corpus_with_a_split_of_its_own_keeps_it(path: Path, tmp_path: Path) -> None:
    here = tmp_path / "own.npz"
    matrix = np.zeros((10, 4), int)
    matrix[:, 0], matrix[:, 1], matrix[8:, 2] = 2, 3, 5
    save_counts(Corpus.from_matrix(matrix), here)
    parts = tmp_path / "own.split.txt"
    parts.write_text("\n".join(["train"] * 7 + ["val", "test", "test"]))
    split = frozen(str(here), 0, 100, 100)
    assert split.test_index.tolist() == [8, 9]
    assert (split.train.num_docs, split.train.num_words) == (8, 2)
    assert split.dropped_tokens == 10
    parts.write_text("train\ntest\n")
    with pytest.raises(ConfigError, match="has 2 lines; expected one for each of 10"):
        frozen(str(here), 0, 100, 100)
    parts.write_text("\n".join(["train"] * 10))
    with pytest.raises(ConfigError, match="none are for tests"):
        frozen(str(here), 0, 100, 100)


def test_splits_of_later_seeds_share_no_test_document(tmp_path: Path) -> None:
    here = tmp_path / "own.npz"
    save_counts(Corpus.from_matrix(np.arange(60).reshape(30, 2) + 1), here)
    (tmp_path / "own.split.txt").write_text("\n".join(["test", "train"] * 15))
    splits = [frozen(str(here), seed, 100, 100) for seed in range(3, 13)]
    tested = [document for split in splits for document in split.test_index]
    assert sorted(tested) == list(range(30))
    assert all(not set(s.train_index) & set(s.test_index) for s in splits)


def test_a_split_for_tuning_has_no_test_document_of_the_corpus(tmp_path: Path) -> None:
    here = tmp_path / "own.npz"
    save_counts(Corpus.from_matrix(np.arange(40).reshape(20, 2) + 1), here)
    (tmp_path / "own.split.txt").write_text("\n".join(["test", "train"] * 10))
    split = frozen(str(here), 7, 100, 100, tuning=True)
    assert set(split.train_index) | set(split.test_index) == set(range(1, 20, 2))
    assert (split.train.num_docs, len(split.test_index)) == (9, 1)


def test_another_split_than_the_frozen_one_is_refused(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = tmp_path / "record.json"
    monkeypatch.setattr(freezing, "RECORD", record)
    hashes = frozen(str(path), 0, 50, 3).hashes
    entry = {"max_docs": 50, "max_test_docs": 3, **hashes}

    def freeze(**changes: str) -> None:
        record.write_text(json.dumps({f"{path}, seed 0": {**entry, **changes}}))

    freeze()
    assert frozen(str(path), 0, 50, 3).hashes == hashes
    freeze(hold_out_fingerprint="0" * 64)
    with pytest.raises(CorpusError, match="expected 000000000000…"):
        frozen(str(path), 0, 50, 3)
    freeze(train_fingerprint="0" * 64)
    with pytest.raises(ConfigError, match="the corpus differs"):
        frozen(str(path), 0, 50, 3)
    # Other sizes are other splits.
    frozen(str(path), 0, 50, 4)


def test_the_record_is_of_the_default_splits() -> None:
    entries = recorded()
    assert set(entries) == {f"{name}, seed {seed}" for name in CORPORA for seed in SEEDS}
    for entry in entries.values():
        assert (entry["max_docs"], entry["max_test_docs"]) == (MAX_DOCS, MAX_TEST_DOCS)
        assert {len(entry[key]) for key in ("train_fingerprint", "hold_out_fingerprint")} == {64}


# ------------------------------------------------------------------ scores


def test_own_counts_by_hand() -> None:
    train = Corpus.from_matrix(np.array([[3, 0, 1], [1, 2, 0]]))
    corpus = Corpus.from_matrix(np.array([[2, 0, 2], [0, 1, 1]]))
    hold_out = WordHoldOut(corpus, np.array([2, 1, 1, 0]))
    result = quality.own_counts_completion(train, hold_out, 0.25)
    unigram = np.array([5, 3, 2]) / 10
    expected = [np.log(0.75 * unigram[2] + 0.25 / 3), np.log(0.75 * unigram[2])]
    np.testing.assert_allclose(result.log_predictive, expected)
    assert result.held_out_tokens.tolist() == [1, 1]


def test_the_weight_of_own_counts_is_the_best_one(path: Path) -> None:
    train = frozen(str(path), 0, 60, 5).train
    weight = quality.own_weight(train, 0)
    hold_out = train.hold_out_words(0.5, seed=0)
    scores = [
        quality.own_counts_completion(train, hold_out, near).nats_per_token
        for near in (weight, 0.8 * weight, 1.2 * weight)
    ]
    assert 0 < weight < 1
    assert scores[0] == max(scores)


def test_scores_of_several_seeds_add_up_by_document() -> None:
    splits = {
        0: {"test_index": "3 5", "tokens": "2 4"},
        1: {"test_index": "5 9", "tokens": "1 3"},
    }
    scores = {0: "-2.5 -8", 1: "-1.5 -6"}
    pooled = quality.Score(
        {seed: quality.scores_of(splits[seed], nats) for seed, nats in scores.items()}, None, []
    ).total
    assert pooled.log_predictive.tolist() == [-2.5, -9.5, -6.0]
    assert pooled.held_out_tokens.tolist() == [2, 5, 3]


def test_rows_are_compared_with_the_best_peer() -> None:
    split = {"seed": 0, "corpus": "c", "train": "Corpus()", "test_docs": 2, "tokens": "2 2"}
    split |= {"test_index": "0 1", **dict.fromkeys(_baselines(), "-8 -8")}
    about = {"within_tolerance": True, "simulation_error": 1e-4, "share_above_rhat": 0.0}
    rows = [
        {
            "corpus": "c",
            "num_topics": 3,
            "seed": 0,
            "system": system,
            "cpu_seconds": 1.0,
            "log_predictive": values,
            "log_predictive_mode": values,
            **about,
        }
        for system, values in ((OURS, "-4 -6"), (PEER, "-6 -6"), ("gensim LDA", "-7 -7"))
    ]
    chosen = replace(quality.STUDY.settings(), corpora=("c",), num_topics=(3,))
    chosen = replace(chosen, systems=(OURS, PEER, "gensim LDA"))
    lines = quality.tables(quality.Result(chosen, [split], rows, {})).splitlines()
    cells = {line.split("|")[1].strip(): line.split("|")[-3:-1] for line in lines if "|" in line}
    assert [cell.strip() for cell in cells[OURS]] == ["0.5000 ± 0.5000", PEER]
    assert [cell.strip() for cell in cells[PEER]] == ["", ""]
    assert cells["gensim LDA"][0].strip() == "-0.5000 ± 0.0000"


@pytest.mark.parametrize(
    "changes", [{"systems": ("none",)}, {"tolerance": 0.0}, {"seeds": ()}, {"num_topics": (1,)}]
)
def test_settings_that_cannot_be_used_are_named(path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(changes))):
        settings(path, **changes)


@pytest.mark.slow
def test_systems_are_scored_on_the_tokens_of_the_split(path: Path) -> None:
    split = frozen(str(path), 0, 60, 5)
    topics = np.ones((2, split.train.num_words))
    result = completion_of(
        np.ones(2), topics, split.hold_out, fingerprint=split.hashes["hold_out_fingerprint"]
    )
    assert result.perplexity == pytest.approx(split.train.num_words)
