"""convert_corpus: the same corpus as read_corpus, piece by piece."""

from __future__ import annotations

import csv
import io
import json
import tracemalloc
import warnings

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
from support.corpora import LDAC, MTX, UCI, make_corpus, random_counts, write

from torch_lntm.corpus import Corpus, convert_corpus, read_corpus
from torch_lntm.corpus import texts as texts_module
from torch_lntm.corpus.readers import counts as counts_module
from torch_lntm.errors import CorpusError, FileError

SENTENCES = [
    "the cat and the dog chase the mouse",
    "a dog barks at the cat and the cat",
    "",
    "stocks and bonds fall as banks fail",
    "The banks buy bonds and the banks sell stocks",
    "stocks rise while bonds rest",
] * 12


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(counts_module, "_LINES", 7)
    monkeypatch.setattr(texts_module, "_CHARACTERS", 300)


def assert_same(tmp_path, source, **options):
    """Converting and reading give the same corpus; returns it."""
    expected = read_corpus(source, **options)
    found = read_corpus(convert_corpus(source, tmp_path / "converted", **options))
    for name in ("row_offsets", "word_index", "counts"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    assert found.vocabulary == expected.vocabulary
    assert found.num_words == expected.num_words
    assert found.preparation == expected.preparation
    assert list(found.metadata) == list(expected.metadata)
    for name, values in expected.metadata.items():
        assert found.metadata[name].dtype == values.dtype
        np.testing.assert_array_equal(found.metadata[name], values)  # NaN is NaN
    return found


# ------------------------------------------------------------------ counts


def ldac_of(counts) -> str:
    lines = (
        " ".join([str((row > 0).sum()), *(f"{v}:{n}" for v, n in enumerate(row) if n)])
        for row in counts
    )
    return "\n".join(lines) + "\n"


def uci_of(counts) -> str:
    lines = (f"{d + 1} {v + 1} {counts[d, v]}" for d, v in np.argwhere(counts))
    return "\n".join([*map(str, counts.shape), str((counts > 0).sum()), *lines]) + "\n"


COUNTS = np.vstack([random_counts(), np.zeros((3, 20), int)])  # ends with empty documents


@pytest.mark.parametrize("name", ["toy.ldac", "docword.toy.txt", "docword.toy.txt.gz", "toy.mtx"])
@pytest.mark.parametrize("with_words", [False, True])
def test_counts(tmp_path, name, with_words):
    if name.endswith("mtx"):
        scipy.io.mmwrite(tmp_path / name, sp.csr_array(COUNTS))
    else:
        write(tmp_path / name, ldac_of(COUNTS) if "ldac" in name else uci_of(COUNTS))
    if with_words:
        write(tmp_path / "vocab.txt", "".join(f"w{v}\n" for v in range(20)))
        write(tmp_path / "toy.labels.txt", "".join(f"l{d}\n" for d in range(53)))
    found = assert_same(tmp_path, tmp_path / name)
    np.testing.assert_array_equal(found.to_scipy().toarray(), COUNTS)
    assert (found.labels is not None) == with_words


@pytest.mark.parametrize(
    ("name", "text"), [("a.ldac", LDAC), ("docword.a.txt", UCI), ("a.mtx", MTX)]
)
@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_line_ends(tmp_path, name, text, end):
    (tmp_path / name).write_bytes(text.replace("\n", end).encode() + b"  " + end.encode() * 3)
    assert assert_same(tmp_path, tmp_path / name).num_docs == 3


def test_archives_and_folders(tmp_path):
    corpus = make_corpus().with_covariates({"x": np.arange(50.0)})
    corpus.save(tmp_path / "toy.npz")
    found = assert_same(tmp_path, tmp_path / "toy.npz")
    np.testing.assert_array_equal(found.covariates["x"], np.arange(50.0))
    convert_corpus(tmp_path / "converted", tmp_path / "again")
    assert read_corpus(tmp_path / "again").fingerprint() == corpus.fingerprint()
    convert_corpus(tmp_path / "again", tmp_path / "again")  # onto itself
    assert read_corpus(tmp_path / "again").fingerprint() == corpus.fingerprint()


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("docword.a.txt", "9\n2\n9\n" + "9 1 1\n" * 8 + "1 1 1\n", "not in order; sort"),
        ("docword.a.txt", f"{10**15}\n2\n1\n1 1 1\n", "out of proportion to its 1 entries"),
        ("a.ldac", "1 0:1\n" * 8 + "2 0:1\n", "line 9: announces 2 words and holds 1"),
        ("a.ldac", "1 0:1\n" * 8 + "1 99999999999:1\n", "100000000000 words are out of proportion"),
        ("a.ldac", "1 0:0\n" * 8, "the corpus is empty"),
        ("a.ldac", "1 0:9999999999\n", "counts must be whole numbers from 0 to 2147483647"),
    ],
)
def test_malformed_counts_leave_no_folder(tmp_path, name, text, match):
    source = write(tmp_path / name, text)
    with pytest.raises(CorpusError, match=match) as raised:
        convert_corpus(source, tmp_path / "out")
    assert str(raised.value).count(str(source)) == 1
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.slow
def test_memory_is_bounded_by_a_part(tmp_path, monkeypatch):
    monkeypatch.setattr(counts_module, "_LINES", 1 << 12)
    line = "20 " + " ".join(f"{v}:1" for v in range(20)) + "\n"
    peaks = []
    for num_docs in (30_000, 90_000):  # 3 and 9 MB of lines, 5 and 15 MB of arrays
        source = write(tmp_path / "a.ldac", line * num_docs)
        tracemalloc.start()
        convert_corpus(source, tmp_path / "out")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert read_corpus(tmp_path / "out").num_tokens == 20 * num_docs
    assert peaks[1] < 1.1 * peaks[0]


# ------------------------------------------------------------------ texts


def csv_of(texts) -> str:
    out = io.StringIO()
    table = csv.writer(out)
    table.writerow(["id", "text", "year", "who"])
    for i, text in enumerate(texts):
        table.writerow([f"{i:03}", text + '\n"quoted"', 1990 + i if i % 5 else "", "ann|bob"])
    return out.getvalue()


OPTIONS = [
    {},
    {"stop_words": None, "min_df": 1},
    {"stop_words": "english", "min_df": 0.2},
    {"stop_words": ["cat", "dog"]},
    {"max_features": 5, "min_df": 3, "lowercase": False},
    {"ngram_range": (1, 2)},
    {"token_pattern": r"(?u)\b\w{4,}\b"},
    {"analyzer": "char", "ngram_range": (2, 2)},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_texts(tmp_path, options):
    source = write(tmp_path / "a.txt", "\n".join(SENTENCES))
    found = assert_same(tmp_path, source, **options)
    assert found.num_docs == len(SENTENCES)


def test_records(tmp_path):
    records = [
        {"text": text, "n": i, "label": i % 2, **({"extra": "x"} if i == 50 else {})}
        for i, text in enumerate(SENTENCES)
    ]
    lines = "\n".join(map(json.dumps, records))
    assert_same(tmp_path, write(tmp_path / "a.jsonl", lines + "\n\n"))
    assert_same(tmp_path, write(tmp_path / "a.json", json.dumps(records)))
    found = assert_same(tmp_path, write(tmp_path / "a.csv.gz", csv_of(SENTENCES)))
    assert list(found.metadata) == ["id", "year", "who"]
    semicolons = csv_of(SENTENCES).replace(",", ";")
    assert_same(tmp_path, write(tmp_path / "b.csv", semicolons), label_field="who")


def test_folders_of_texts(tmp_path):
    for i, text in enumerate(SENTENCES):
        write(tmp_path / "texts" / ("animals" if "cat" in text else "money") / f"{i}.txt", text)
    found = assert_same(tmp_path, tmp_path / "texts")
    assert set(found.labels) == {"animals", "money"}


def test_texts_are_counted_over_a_given_vocabulary(tmp_path):
    source = write(tmp_path / "a.txt", "\n".join(SENTENCES))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        expected = read_corpus(source, vocabulary=["stocks", "zebra", "cat"])
    with pytest.warns(UserWarning, match=r"dropped \d+ of \d+ tokens: \d+ words unknown") as caught:
        convert_corpus(source, tmp_path / "out", vocabulary=["stocks", "zebra", "cat"])
    found = read_corpus(tmp_path / "out")
    assert caught[0].filename == __file__
    assert found.vocabulary == ("stocks", "zebra", "cat")
    assert found.fingerprint() == expected.fingerprint()


@pytest.mark.parametrize(
    ("text", "options", "match"),
    [
        ("\n \n", {}, "no word of 2 documents is left; check"),
        ("cat\ndog", {"token_pattern": "("}, "the texts cannot be counted: "),
        ("the\nand", {}, "is left without 2 English stop words"),
        ("cat\ndog", {"vectorizer": 5}, "unexpected keyword argument 'vectorizer'"),
        ("cat\ndog", {"vocabulary": ["cat"], "max_df": 0.5}, "max_df choose words, and so does"),
    ],
)
def test_texts_that_cannot_be_counted(tmp_path, text, options, match):
    source = write(tmp_path / "a.txt", text)
    with pytest.raises(CorpusError, match=match):
        convert_corpus(source, tmp_path / "out", **options)
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_existing_files_are_not_replaced(tmp_path):
    source = write(tmp_path / "a.txt", "cat\ndog")
    Corpus.from_matrix([[1]]).save(tmp_path / "out")
    with pytest.raises(FileError, match="line 2"):
        convert_corpus(write(tmp_path / "b.jsonl", '{"text": "a"}\n{'), tmp_path / "out")
    assert read_corpus(tmp_path / "out").num_words == 1
    with pytest.raises(CorpusError, match="is not the folder of a corpus"):
        convert_corpus(source, source)
