"""Topics as text, JSON and CSV."""

from __future__ import annotations

import csv
import json

import pytest
from support.known import make_model

from torch_lntm.errors import ConfigError
from torch_lntm.reports import format_topics


def test_topics_in_three_formats():
    table = make_model().topic_table([0.2, 0.5, 0.3], num_words=2, num_correlated=2)
    text = format_topics(table)
    assert text == str(table)
    assert "50.0%   dog cat" in text
    records = json.loads(format_topics(table, "json"))
    assert records[0]["topic"] == 1
    assert records[0]["words"] == ["dog", "cat"]
    rows = list(csv.DictReader(format_topics(table, "csv").splitlines()))
    assert [row["topic"] for row in rows] == ["1", "2", "0"]
    assert float(rows[0]["share"]) == 0.5
    partner, r = rows[0]["opposed"].split()[0].split(":")
    assert float(r) == pytest.approx(records[0]["opposed"][0][1], abs=1e-4)
    assert int(partner) == records[0]["opposed"][0][0]


def test_an_unknown_format_is_refused():
    with pytest.raises(ConfigError, match="format 'xml'"):
        format_topics(make_model().topic_table(), "xml")
