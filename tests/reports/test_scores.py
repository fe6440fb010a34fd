"""Scores as tables and as files."""

from __future__ import annotations

import json
import math

import pytest
from support.known import make_corpus, make_model

import torch_lntm as lntm
from torch_lntm.errors import ConfigError
from torch_lntm.files.writing import as_json, write_file
from torch_lntm.reports import score_table, topic_scores
from torch_lntm.reports.scores import as_scores, read_scores, score_records
from torch_lntm.reports.sections import to_table

ROWS = [
    ("perplexity", 1234.567, 45.6, "per token", 30, 1000, "so"),
    ("diversity", 0.5, None, "share", None, None, "so"),
    ("lonely", 2.0, math.inf, "per token", 1, 2, "so"),
]
#: Values of other types in a file.
WRONG = [("value", "x"), ("value", None), ("value", [1, 2]), ("value", 10**400), ("metric", None)]
WRONG += [("standard_error", "x"), ("documents", "")]


def test_scores_are_written_and_read(tmp_path):
    path, scores = tmp_path / "scores.json", as_scores(ROWS)
    assert list(scores)[:4] == ["metric", "value", "std_error", "unit"]
    assert "<NA>" not in lntm.frames.render(scores)
    assert "NA&gt;" not in to_table(scores, "Scores")
    write_file(path, as_json(score_records(scores)))
    records = json.loads(path.read_text())
    assert [record["standard_error"] for record in records] == [45.6, None, None]
    assert [record["documents"] for record in records] == [30, None, 1]
    assert read_scores(path)[:2].equals(scores[:2])
    lacking = [records[0] | {name: value} for name, value in WRONG]
    damaged = ["[1]", '[{"value": 1}]', "{", "3", "null", "[[]]", '{"a": 1}']
    for text in [*damaged, *(json.dumps([record]) for record in lacking)]:
        path.write_text(text)
        with pytest.raises(ConfigError, match=r"scores\.json: not "):
            read_scores(path)


def test_completion_scores_name_their_method():
    corpus = make_corpus()
    model = make_model()
    guide = lntm.guides.TaylorGuide(model)
    result = lntm.evaluation.document_completion(
        model, corpus, theta="mode", guide=guide, observed_fraction=0.5, seed=3
    )
    (score,) = score_table(result).itertuples()
    assert score.value == result.perplexity
    assert score.std_error == result.perplexity_standard_error
    assert "TaylorGuide" in score.method
    assert "50% observed, seed 3" in score.method
    assert score.documents == 8


def test_coherence_and_diversity_use_the_top_words():
    model, corpus = make_model(), make_corpus()
    *coherences, diversity = topic_scores(model, corpus, top_n=2)["value"]
    probs = model.topics.probs.detach()
    for value, measure in zip(coherences, ("npmi", "umass"), strict=True):
        values = lntm.evaluation.coherence(probs, corpus, measure, 2)
        assert value == pytest.approx(float(values.mean()))
    # (ant, bee), (dog, cat), (ant, cat): four different words among six.
    assert diversity == pytest.approx(4 / 6)
