"""Metadata and covariates of documents."""

from __future__ import annotations

import datetime
import json
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from support.corpora import make_corpus

from torch_lntm.corpus import Corpus, load_split, read_corpus
from torch_lntm.corpus.columns import make_metadata
from torch_lntm.errors import CorpusError

NAN = float("nan")


def column(values, num_docs: int | None = None) -> np.ndarray:
    return make_metadata({"x": values}, len(values) if num_docs is None else num_docs)["x"]


@pytest.mark.parametrize(
    ("values", "expected", "dtype"),
    [
        ([1, 2, 3], [1, 2, 3], np.int64),
        ([1, None, 3], [1.0, None, 3.0], np.float64),
        ([1.5, NAN, None], [1.5, None, None], np.float64),
        ([1, 2.5], [1.0, 2.5], np.float64),
        ([True, False], [True, False], bool),
        ([True, None], [1.0, None], np.float64),
        (["a", None, ""], ["a", None, ""], object),
        (["a", NAN], ["a", None], object),
        (["a", 1, 2.5, True], ["a", "1", "2.5", "True"], object),
        ([True, 1], ["True", "1"], object),
        ([None, None], [None, None], object),
        ([["a", "b"], ["c"]], ["a|b", "c"], object),
        ([{"k": 1}], ['{"k": 1}'], object),
        ([2**63, 1], [str(2**63), "1"], object),
        ([2**60 + 1, None], [str(2**60 + 1), None], object),  # no float holds it
        ([10**400, 0.5], [str(10**400), "0.5"], object),
        ([datetime.date(2020, 1, 2), None], ["2020-01-02", None], object),
        (np.array(["a", "bc"]), ["a", "bc"], object),
        (np.array([1, 2], np.uint8), [1, 2], np.int64),
        (np.array([2**64 - 1], np.uint64), [str(2**64 - 1)], object),
        (np.array([0.5, NAN], np.float32), [0.5, None], np.float64),
        (np.array(["2020-01-02", "NaT"], "M8[D]"), ["2020-01-02", None], object),
        (torch.tensor([1, 2]), [1, 2], np.int64),
        (pd.Series([1, None], dtype="Int64"), [1.0, None], np.float64),
        (pd.Series(["a", None]), ["a", None], object),
        (pd.Series(["b", "a"], dtype="category"), ["b", "a"], object),
        (range(2), [0, 1], np.int64),
    ],
)
def test_kinds_of_columns(values, expected, dtype):
    found = column(values)
    assert found.dtype == dtype
    assert [None if v is None or v != v else v for v in found.tolist()] == expected
    assert not found.flags.writeable


@pytest.mark.parametrize(
    ("metadata", "match"),
    [
        ({"x": [1, 2]}, "metadata 'x': expected one value for each of 3 documents, got 2"),
        ({"x": "abc"}, "one value for each of 3 documents, got 'abc'"),
        ({"x": 3}, "got 3"),
        ({"x": np.zeros((3, 2))}, r"got shape \(3, 2\)"),
        ({" ": [1, 2, 3]}, "different names, got ' '"),
        ({1: [1, 2, 3], "1": [1, 2, 3]}, "different names, got '1' .twice."),
        (pd.DataFrame([[1, 2]] * 3, columns=["a", "a"]), "different names, got 'a' .twice."),
        ([1, 2, 3], "must be a mapping of column names .* got a list"),
    ],
)
def test_invalid_metadata_are_refused(metadata, match):
    with pytest.raises(CorpusError, match=match):
        Corpus.from_matrix(np.ones((3, 2)), metadata=metadata)


def test_metadata_of_texts_and_of_data_frames():
    frame = pd.DataFrame({"party": ["x", "y"], "year": [1990, 2000]}, index=[5, 5])
    corpus = Corpus.from_texts(["cat", "dog"], metadata=frame, labels=[1, 2])
    assert list(corpus.metadata) == ["party", "year", "label"]
    assert corpus.metadata["party"].tolist() == ["x", "y"]
    assert corpus.metadata["year"].tolist() == [1990, 2000]
    assert corpus.labels == ("1", "2")
    pd.testing.assert_frame_equal(
        corpus.metadata_frame()[["party", "year"]], frame.reset_index(drop=True)
    )


def test_metadata_cannot_be_changed():
    party = np.array(["x", "y"], object)
    corpus = Corpus.from_matrix(np.ones((2, 2)), metadata={"party": party})
    party[0] = "z"
    assert corpus.metadata["party"][0] == "x"
    with pytest.raises(TypeError, match="item assignment"):
        corpus.metadata["party"] = party
    with pytest.raises(ValueError, match="read-only"):
        corpus.metadata["party"][0] = "z"
    more = corpus.with_metadata({"party": ["p", "q"], "year": [1, 2]})
    assert (list(corpus.metadata), list(more.metadata)) == (["party"], ["party", "year"])
    assert more.metadata["party"].tolist() == ["p", "q"]


def test_labels_are_a_column():
    corpus = Corpus.from_matrix(np.ones((2, 2)), metadata={"label": ["3", None]})
    assert corpus.labels == ("3", "")
    numbers = corpus.with_metadata({"label": [1.5, NAN]})
    assert numbers.labels == ("1.5", "")
    assert Corpus.from_matrix(np.ones((2, 2))).labels is None
    given = Corpus.from_matrix(np.ones((2, 2)), labels="ab", metadata={"label": [3, 4]})
    assert given.labels == ("a", "b")


@pytest.fixture
def known() -> Corpus:
    """A corpus whose metadata and covariates tell each document's number."""
    numbers = np.arange(50)
    corpus = make_corpus(labels=None).with_metadata(
        {
            "number": numbers,
            "name": [f"dök {i}\n" if i % 3 else None for i in numbers],
            "share": [i / 7 if i % 2 else NAN for i in numbers],
            "odd": numbers % 2 == 1,
        }
    )
    return corpus.with_covariates(
        {"x": numbers[:, None] / 3, "group": numbers, "e/..": numbers > 5}
    )


def check_known(corpus: Corpus, numbers) -> None:
    numbers = list(numbers)
    assert corpus.num_docs == len(numbers)
    assert list(corpus.metadata) == ["number", "name", "share", "odd"]
    assert corpus.metadata["number"].tolist() == numbers
    assert corpus.metadata["name"].tolist() == [f"dök {i}\n" if i % 3 else None for i in numbers]
    np.testing.assert_array_equal(
        corpus.metadata["share"], [i / 7 if i % 2 else NAN for i in numbers]
    )
    assert corpus.metadata["odd"].tolist() == [i % 2 == 1 for i in numbers]
    assert corpus.metadata["odd"].dtype == bool
    assert list(corpus.covariates) == ["x", "group", "e/.."]
    np.testing.assert_array_equal(corpus.covariates["x"], np.array(numbers)[:, None] / 3)
    assert corpus.covariates["group"].dtype == np.int64
    for array in (*corpus.metadata.values(), *corpus.covariates.values()):
        assert not array.flags.writeable


def test_selections_and_splits_keep_metadata_and_covariates(known, tmp_path):
    check_known(known, range(50))
    check_known(known[[7, 3, 3]], [7, 3, 3])
    check_known(known[-1], [49])
    split = known.split(0.2)
    check_known(split.train, split.train_index)
    check_known(split.test, split.test_index)
    split.save(tmp_path / "split.npz")
    check_known(load_split(tmp_path / "split.npz", known).test, split.test_index)
    for part in known.hold_out_words():
        check_known(part, range(50))
    check_known(known.with_counts(known.counts * 2), range(50))
    with pytest.warns(UserWarning, match="dropped"):
        check_known(known.with_vocabulary(["w3", "w1"]), range(50))
    with pytest.warns(UserWarning, match="dropped"):
        check_known(known.with_vocabulary(["emu"]), range(50))
    assert known.fingerprint() == make_corpus(labels=None).fingerprint()


def test_saving_keeps_metadata_and_covariates(known, tmp_path):
    known.save(tmp_path / "toy.npz")
    check_known(read_corpus(tmp_path / "toy.npz"), range(50))
    with np.load(tmp_path / "toy.npz", allow_pickle=False) as archive:
        assert {archive[name].dtype.kind for name in archive.files} <= set("biuf")
    known[5:].save(tmp_path / "toy.npz")
    check_known(read_corpus(tmp_path / "toy.npz"), range(5, 50))


def change(path, **changes) -> None:
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files} | changes
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})


def about(**changes) -> np.ndarray:
    """What is saved of documents, with damage."""
    column = {"name": "a", "kind": "int", "values": [1, 2]} | changes
    text = json.dumps({"metadata": [column], "covariates": changes.get("covariates", [])})
    return np.frombuffer(text.encode(), np.uint8)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"documents": np.array([1, 2], np.uint8)}, "metadata are damaged"),
        ({"documents": np.frombuffer(b"[" * 100_000, np.uint8)}, "metadata are damaged"),
        ({"documents": np.frombuffer(b"[1]", np.uint8)}, "metadata are damaged"),
        ({"documents": np.frombuffer(b"{}", np.uint8)}, "metadata are damaged"),
        ({"documents": about(values=[1])}, "column 'a' has 1 values"),
        ({"documents": about(values=[1, "x"])}, "are damaged: invalid literal"),
        ({"documents": about(values=[1, 2**70])}, "are damaged"),
        ({"documents": about(values=3)}, "column 'a' has no name or no list"),
        ({"documents": about(kind="object")}, "are damaged"),
        ({"documents": about(kind="text")}, "holds values other than text"),
        ({"documents": about(name=None)}, "are damaged"),
        ({"documents": about(covariates=["x"])}, "missing covariate_0"),
        (
            {"documents": about(covariates=["x"]), "covariate_0": np.array([1.0, NAN])},
            "covariate 'x': expected finite",
        ),
        (
            {"documents": about(covariates=["x"]), "covariate_0": np.array([1.0])},
            "covariate 'x': expected an array",
        ),
    ],
)
def test_damaged_metadata_in_files_are_refused(tmp_path, changes, match):
    corpus = Corpus.from_matrix(np.ones((2, 2)), metadata={"a": [1, 2]})
    corpus.save(tmp_path / "toy.npz")
    change(tmp_path / "toy.npz", **changes)
    with pytest.raises(CorpusError, match=rf"toy\.npz: .*{match}"):
        read_corpus(tmp_path / "toy.npz")


def test_data_frames_need_pandas_and_name_it(monkeypatch):
    corpus = make_corpus()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(CorpusError, match=r"pip install pandas"):
        corpus.metadata_frame()
    assert Corpus.from_matrix(np.ones((2, 2)), metadata={"a": [1, 2]}).num_docs == 2


@pytest.mark.parametrize(
    ("covariates", "match"),
    [
        ([1, 2], "must be a mapping of names to arrays, got a list"),
        ({"x": [1, 2]}, r"'x': expected an array .* 3 documents, got shape \(2,\) of int64"),
        ({"x": 1.0}, r"got shape \(\)"),
        ({"x": ["a", "b", "c"]}, "of <U1"),
        ({"x": [None, 1, 2]}, "of object"),
        ({"x": [1.0, NAN, 2.0]}, "expected finite numbers, got nan in document 1"),
        ({"x": [1.0, 2.0, np.inf]}, "got inf in document 2"),
        ({3: [1, 2, 3]}, "must have names, got 3"),
    ],
)
def test_invalid_covariates_are_refused(covariates, match):
    with pytest.raises(CorpusError, match=match):
        Corpus.from_matrix(np.ones((3, 2))).with_covariates(covariates)


def test_covariates_are_copies():
    x = np.zeros((3, 2))
    corpus = Corpus.from_matrix(np.ones((3, 2))).with_covariates({"x": x, "y": torch.ones(3)})
    x[:] = 1
    assert corpus.covariates["x"].sum() == 0
    both = corpus.with_covariates({"x": [1, 2, 3]})
    assert (list(both.covariates), both.covariates["x"].tolist()) == (["x", "y"], [1, 2, 3])


def test_half_of_a_surrogate_pair_is_replaced_in_columns():
    columns = make_metadata({"a\ud800": ["x\udc80", "é", ["b\ud800", "c"]]}, 3)
    assert list(columns) == ["a\ufffd"]
    assert columns["a\ufffd"].tolist() == ["x\ufffd", "é", "b\ufffd|c"]
