"""Names of topics are checked, travel with the model, and stand in place of numbers."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest

import torch_lntm as lntm
from torch_lntm.errors import ConfigError
from torch_lntm.models import TopicModel, ctm
from torch_lntm.models.names import check_topic_names, find_topics

WORDS = tuple(f"word{v}" for v in range(30))


def make_model(names: Any = None, num_topics: int = 4) -> TopicModel:
    model = ctm(num_topics, len(WORDS), vocabulary=WORDS)
    model.topic_names = names
    return model


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (None, ("0", "1", "2", "3")),
        (["economy", None, "war ", "3"], ("economy", "1", "war", "3")),
        ({"0": "economy", np.int64(2): "war"}, ("economy", "1", "war", "3")),
        (np.array(["economy", "1", "war", "3"]), ("economy", "1", "war", "3")),
    ],
)
def test_names_are_given_in_order_or_by_number(names: Any, expected: Any) -> None:
    model = make_model(names)
    model.topic_names = model.topic_names
    assert model.topic_names == expected
    assert model.has_topic_names == (names is not None)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a", "b", "c"], "a name for each of the 4 topics"),
        (["a", "b", "a", "c"], "topics 0 and 2 have the same name 'a'"),
        ({1: "  "}, "1 to 80 printable characters"),
        ({1: "\x1b[31mred"}, "1 to 80 printable characters"),
        ({1: "x" * 81}, "1 to 80 printable characters"),
        ({1: "3"}, "numbers denote topics"),
        ({1: 3.0}, "expected text"),
        ({4: "a"}, "topic 4; expected numbers from 0 to 3"),
        ({True: "a"}, "topic True; expected numbers"),
        ("abcd", "expected a name for each of the 4 topics"),
    ],
)
def test_unsuitable_names_are_refused_and_change_nothing(names: Any, message: str) -> None:
    model = make_model({0: "economy"})
    with pytest.raises(ConfigError, match=message):
        model.topic_names = names
    assert model.topic_names[0] == "economy"


def test_topics_are_found_by_number_or_name() -> None:
    names = check_topic_names({3: "war", 1: "tax, budget"}, 5)
    assert find_topics(names, [2, "war", "4", "tax, budget"]) == [2, 3, 4, 1]
    for topics, message in (
        (["peace"], "topic 'peace'; expected numbers from 0 to 4, or names: 'tax, budget', 'war'"),
        ([3, "war"], "topic war is given twice"),
        ([], "topics is empty"),
        ([-1], "topic -1; expected"),
        ([1.0], "topic 1.0; expected"),
        ("war", "expected a list of topics"),
    ):
        with pytest.raises(ConfigError, match=message):
            find_topics(names, topics)


def test_names_travel_with_the_model(tmp_path) -> None:
    model = make_model({1: "economy"})
    for other in (
        copy.deepcopy(model),
        model.with_parts(model.prior),
        lntm.load_model(lntm.save_model(model, tmp_path / "model")),
    ):
        assert other.topic_names == model.topic_names
    about = json.loads((tmp_path / "model" / "model.json").read_text())
    about["topic_names"] = ["a", "a", None, None]
    (tmp_path / "model" / "model.json").write_text(json.dumps(about))
    with pytest.raises(ConfigError, match=r"model.json.*topics 0 and 1 have the same name"):
        lntm.load_model(tmp_path / "model")


def test_removed_names_of_keyword_topics_stay_removed(tmp_path) -> None:
    model = ctm(3, len(WORDS), vocabulary=WORDS, keywords={"economy": ["word1"]})
    assert model.topic_names == ("economy", "1", "2")
    model.topic_names = None
    loaded = lntm.load_model(lntm.save_model(model, tmp_path / "model"))
    assert loaded.topic_names == ("0", "1", "2")


def test_tables_show_names_in_place_of_numbers() -> None:
    model = make_model({1: "foreign affairs", 2: "war <b>"})
    table = model.topic_table([0.1, 0.4, 0.3, 0.2], top_n=2, num_correlated=1)
    rows = [line for line in str(table).splitlines()[2:] if not line.startswith(" ")]
    assert [row[:15].rstrip() for row in rows] == ["foreign affairs", "war <b>", "3", "0"]
    assert "war &lt;b&gt;" in table._repr_html_()
    frame = table.frame()
    assert frame.iloc[0].tolist()[:3] == [1, "foreign affairs", 0.4]
    assert frame["words"][0].split() == list(table[0].words)
    assert table.terms()["beta"].tolist()[:2] == list(table[0].probabilities)
    assert lntm.reports.topic_labels(model)[1] == "foreign affairs"
    assert lntm.reports.topic_labels(model)[3].startswith("3 word")
    assert lntm.reports.topic_labels(model, 0) == ["0", "foreign affairs", "war <b>", "3"]
