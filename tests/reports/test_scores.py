"""Scores as tables and as files."""

from __future__ import annotations

import json
import math

import pytest
from support.known import make_corpus, make_model

import torch_lntm as lntm
from torch_lntm.errors import ConfigError
from torch_lntm.frames import Rows
from torch_lntm.reports import Score, completion_scores
from torch_lntm.reports.scores import read_scores, score_records, write_scores


def test_scores_are_a_table_and_a_file(tmp_path):
    scores = [
        Score("perplexity", 1234.567, 45.6, "per token", "so", 30, 1000),
        Score("diversity", 0.5, None, "share", "so"),
        Score("lonely", 2.0, math.inf, "per token", "so", 1, 2),
    ]
    frame = Rows(scores).frame()
    assert list(frame)[:4] == ["metric", "value", "std_error", "unit"]
    assert frame["std_error"][0] == 45.6
    assert str(Rows(scores)).splitlines()[1].split()[:2] == ["perplexity", "1235"]
    assert scores[1].frame()["value"].tolist() == [0.5]
    write_scores(tmp_path / "scores.json", scores)
    records = json.loads((tmp_path / "scores.json").read_text())
    assert [record["standard_error"] for record in records] == [45.6, None, None]
    assert records[0]["value"] == 1234.567
    assert read_scores(tmp_path / "scores.json")[:2] == scores[:2]
    for damaged in ("[1]", '[{"value": 1}]', "{", "3", "null", "[[]]", '{"a": 1}'):
        (tmp_path / "scores.json").write_text(damaged)
        with pytest.raises(ConfigError, match=r"scores\.json: not "):
            read_scores(tmp_path / "scores.json")


def test_completion_scores_name_their_method():
    corpus = make_corpus()
    model = make_model()
    guide = lntm.guides.TaylorGuide(model)
    result = lntm.evaluation.document_completion(
        model, corpus, theta="mode", guide=guide, observed_fraction=0.5, seed=3
    )
    (score,) = completion_scores(result)
    assert score.value == result.perplexity
    assert score.standard_error == result.perplexity_standard_error
    assert "TaylorGuide" in score.method
    assert "50% of tokens observed, seed 3" in score.method
    assert score.documents == 8


def test_coherence_and_diversity_use_the_top_words():
    model, corpus = make_model(), make_corpus()
    scores = [*lntm.reports.coherence_scores(model, corpus, 2)]
    probs = model.topics.probs.detach()
    for score, measure in zip(scores, ("npmi", "umass"), strict=True):
        values = lntm.evaluation.coherence(probs, corpus, measure, 2)
        assert score.value == pytest.approx(float(values.mean()))
    # (ant, bee), (dog, cat), (ant, cat): four different words among six.
    assert lntm.reports.diversity_score(model, 2).value == pytest.approx(4 / 6)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("value", value) for value in ("x", None, [1, 2], True, 10**400)),
        ("standard_error", "x"),
        ("documents", ""),
        *((name, value) for name in ("metric", "unit", "method") for value in (5, None)),
        ("colour", "red"),
    ],
)
def test_values_of_wrong_types_in_a_file_are_refused(tmp_path, name, value):
    record = score_records([Score("x", 1.0, None, "y", "z", 3, 4)])[0]
    path = tmp_path / "evaluation.json"
    path.write_text(json.dumps([record]))
    assert read_scores(path) == [Score("x", 1.0, None, "y", "z", 3, 4)]
    path.write_text(json.dumps([record | {name: value}]))
    with pytest.raises(ConfigError, match=r"evaluation\.json: not a list of scores \(.*\)"):
        read_scores(path)
