"""Levels of a metadata column."""

from __future__ import annotations

import numpy as np
import pytest

import torch_lntm as lntm
from torch_lntm.reports.prevalence import dividing_columns, levels_of


def grouped(values):
    corpus = lntm.Corpus.from_matrix(np.ones((len(values), 2), int), metadata={"x": values})
    return levels_of("x", corpus.metadata["x"])


NAMES = [f"n{i:02}" for i in range(20)]
MANY = ("n19", *NAMES[:10], "other (9)")


@pytest.mark.parametrize(
    ("values", "names", "codes", "axis"),
    [
        (["b", "a", None, "b"], ("b", "a"), [0, 1, -1, 0], None),
        ([*NAMES, "n19"], MANY, [*range(1, 11), *[11] * 9, 0, 0], None),
        ([3.0, 1.5, float("nan"), 3.0], ("1.5", "3"), [1, 0, -1, 1], [1.5, 3.0]),
        ([2005, 2006, 2007], ("2005", "2006", "2007"), [0, 1, 2], [2005, 2006, 2007]),
        ([0, 10, 100], ("0", "10", "100"), [0, 1, 2], [0, 10, 100]),
    ],
)
def test_few_names_and_numbers_are_levels(values, names, codes, axis):
    groups = grouped(values)
    assert groups.names == names
    assert groups.codes.tolist() == codes
    positions, note = groups.axis
    assert (positions is None) if axis is None else positions.tolist() == axis
    assert note == ""


def test_many_numbers_form_bins_with_equal_numbers_of_documents():
    groups = grouped(list(range(100)))
    assert np.bincount(groups.codes).tolist() == [10] * 10
    assert groups.names[:2] == ("0 to 9", "10 to 19")
    assert groups.axis[0].tolist() == list(range(10))
    sizes = grouped([*np.round(np.geomspace(1, 2_057_360, 40)).tolist(), float("nan")])
    assert sizes.codes[-1] == -1
    assert sizes.names[-1].endswith(" to 2,057,360")
    assert not any("e+" in name for name in sizes.names)
    assert "equally spaced" in sizes.axis[1]


@pytest.mark.parametrize(
    ("dates", "names", "codes"),
    [
        (["2008-01-03", "2008-01-01", "2008-01-03"], ("2008-01-01", "2008-01-03"), [1, 0, 1]),
        (["2008-01-03", "2008-04-01T10:00:00Z", "2008-01"], ("2008-01", "2008-04"), [0, 1, 0]),
        (["2008-01-03", None, "2012-04-01"], ("2008", "2012"), [0, -1, 1]),
        (["1901-01-03", "2008-04-01", "1902-12-31"], ("1901 to 1903", "2006 to 2008"), [0, 1, 0]),
    ],
)
def test_dates_are_levels_by_a_suitable_period(dates, names, codes):
    # The second: 2008-01 to 2008-04 is 92 days, more than 36, and 4 months.
    groups = grouped(dates)
    assert groups.names == names
    assert groups.codes.tolist() == codes
    assert len(groups.axis[0]) == len(names)


@pytest.mark.parametrize("odd", ["2008-13-01", "2008-01-03x", "in 2008-01"])
def test_a_text_that_is_not_a_date_is_a_name(odd):
    assert grouped(["2008-01-01", odd]).axis[0] is None


def test_few_skewed_numbers_lie_on_a_logarithmic_axis():
    groups = grouped([1, 10, 100, 1000, 10_000])
    np.testing.assert_allclose(np.diff(groups.axis[0]), np.log(10))
    assert groups.names == ("1", "10", "100", "1000", "10,000")
    assert "logarithmic" in groups.axis[1]


def test_ids_and_repeated_columns_do_not_divide_documents():
    columns = {
        "id": [f"d{i}" for i in range(60)],
        "label": ["L", "R"] * 30,
        "party": ["left", "right"] * 30,
        "one": ["same"] * 60,
        "day": [str(np.datetime64("2001-01-01") + i) for i in range(60)],
        "year": list(range(60)),
        "constant": [1.0, float("nan")] * 30,
    }
    corpus = lntm.Corpus.from_matrix(np.ones((60, 2), int), metadata=columns)
    assert dividing_columns(corpus) == ["party", "day", "year"]
