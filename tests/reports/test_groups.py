"""Groups of documents by a metadata column."""

from __future__ import annotations

import numpy as np
import pytest

import torch_lntm as lntm
from torch_lntm.plotting.style import is_skewed
from torch_lntm.reports.groups import group_documents, grouping_columns


def grouped(values):
    corpus = lntm.Corpus.from_matrix(np.ones((len(values), 2), int), metadata={"x": values})
    return group_documents("x", corpus.metadata["x"])


def test_names_form_groups_the_largest_first():
    groups = grouped(["b", "a", None, "b"])
    assert groups.names == ("b", "a")
    assert groups.codes.tolist() == [0, 1, -1, 0]
    assert groups.axis == (None, "")


def test_rare_names_share_a_group():
    names = [f"n{i:02}" for i in range(20)] + ["n19"]
    groups = grouped(names)
    assert groups.names == ("n19", *(f"n{i:02}" for i in range(10)), "other (9)")
    assert groups.codes[19] == groups.codes[20] == 0
    assert groups.codes[18] == 11


def test_few_different_numbers_form_groups_on_an_axis():
    groups = grouped([3.0, 1.5, float("nan"), 3.0])
    assert groups.names == ("1.5", "3")
    assert groups.codes.tolist() == [1, 0, -1, 1]
    assert groups.axis[0].tolist() == [1.5, 3.0]


def test_many_numbers_form_bins_with_equal_numbers_of_documents():
    groups = grouped(list(range(100)))
    assert len(groups.names) == 10
    assert np.bincount(groups.codes).tolist() == [10] * 10
    assert groups.names[:2] == ("0 to 9", "10 to 19")
    assert groups.axis[0].tolist() == list(range(10))


@pytest.mark.parametrize(
    ("dates", "names", "codes"),
    [
        (["2008-01-03", "2008-01-01", "2008-01-03"], ("2008-01-01", "2008-01-03"), [1, 0, 1]),
        (["2008-01-03", "2008-04-01T10:00:00Z", "2008-01"], ("2008-01", "2008-04"), [0, 1, 0]),
        (["2008-01-03", None, "2012-04-01"], ("2008", "2012"), [0, -1, 1]),
        (["1901-01-03", "2008-04-01", "1902-12-31"], ("1901 to 1903", "2006 to 2008"), [0, 1, 0]),
    ],
)
def test_dates_form_groups_by_a_suitable_period(dates, names, codes):
    # The second: 2008-01 to 2008-04 is 92 days, more than 36, and 4 months.
    groups = grouped(dates)
    assert groups.names == names
    assert groups.codes.tolist() == codes
    assert len(groups.axis[0]) == len(names)


@pytest.mark.parametrize("odd", ["2008-13-01", "2008-01-03x", "in 2008-01"])
def test_a_text_that_is_not_a_date_is_a_name(odd):
    assert grouped(["2008-01-01", odd]).axis[0] is None


def test_skewed_numbers_are_spaced_evenly_and_can_be_read():
    sizes = np.round(np.geomspace(1, 2_057_360, 40)).tolist()
    groups = grouped([*sizes, float("nan")])
    assert groups.codes[-1] == -1
    assert set(np.diff(groups.axis[0])) == {1.0}
    assert groups.names[-1].endswith(" to 2,057,360")
    assert not any("e+" in name for name in groups.names)
    assert "equally spaced" in groups.axis[1]


def test_few_skewed_numbers_lie_on_a_logarithmic_axis():
    groups = grouped([1, 10, 100, 1000, 10_000])
    np.testing.assert_allclose(np.diff(groups.axis[0]), np.log(10))
    assert groups.names == ("1", "10", "100", "1000", "10,000")
    assert "logarithmic" in groups.axis[1]
    assert grouped([2005, 2006, 2007]).axis[1] == ""
    assert grouped([0, 10, 100, 1000, 10_000]).axis[0].tolist() == [0, 10, 100, 1000, 10_000]
    assert grouped([2005, 2006, 2007]).axis[0].tolist() == [2005, 2006, 2007]


@pytest.mark.parametrize(
    ("values", "skewed"),
    [
        (np.geomspace(1, 1000, 50), True),
        (np.linspace(1, 1000, 50), False),
        (np.geomspace(1, 1000, 50) - 1, False),
        (np.array([5.0, 5.0, 5.0]), False),
    ],
)
def test_numbers_are_skewed_if_half_of_them_lie_in_a_tenth(values, skewed):
    assert is_skewed(values) is skewed


def test_ids_and_repeated_columns_do_not_group_documents():
    num_docs = 60
    corpus = lntm.Corpus.from_matrix(
        np.ones((num_docs, 2), int),
        metadata={
            "id": [f"d{i}" for i in range(num_docs)],
            "label": ["L", "R"] * 30,
            "party": ["left", "right"] * 30,
            "one": ["same"] * num_docs,
            "day": [str(np.datetime64("2001-01-01") + i) for i in range(num_docs)],
            "year": list(range(num_docs)),
            "constant": [1.0, float("nan")] * 30,
        },
    )
    assert grouping_columns(corpus) == ["party", "day", "year"]
