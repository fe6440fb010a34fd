"""Word vectors: sources, files, and what words get that a source lacks."""

from __future__ import annotations

import gzip
import io
from types import SimpleNamespace

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

from torch_lntm.corpus import WordVectors, read_vectors
from torch_lntm.errors import ConfigError, CorpusError, FileError

#: The words of the sources, in their order. ``a b`` holds a space, as some of GloVe's do.
SOURCE = "the,Cat,cat,new,york,taxes,treat,treason,treasure,e_mail,2000s,a b".split(",")  # noqa: SIM905
NUMBERS = np.random.default_rng(0).normal(size=(len(SOURCE), 3)).astype(np.float32)
TABLE = dict(zip(SOURCE, NUMBERS, strict=True))
PLACES = {word: i for i, word in enumerate(SOURCE)}
WORDS = ["cat", "CAT", "new-york", "york-shire", "tax", "trea", "E-Mail", "a b", "2000"]
MISSING = np.full(3, np.nan, np.float32)
#: Their vectors: exact, first in any case, by parts, no part, too short, inflections, other joints.
EXPECTED = np.stack(
    [
        *(TABLE["cat"], TABLE["Cat"], (TABLE["new"] + TABLE["york"]) / 2, MISSING, MISSING),
        *((TABLE["treat"] + TABLE["treason"]) / 2, TABLE["e_mail"], TABLE["a b"], MISSING),
    ]
)
PICKLED = io.BytesIO()
np.save(PICKLED, np.array([{}]), allow_pickle=True)


def text(header: bool = False, joint: str = " ", end: str = "\n") -> bytes:
    """The source as the text of a file."""
    lines = [joint.join([w, *map(repr, v.tolist())]) + end for w, v in TABLE.items()]
    return "".join([f"{len(lines)} 3{end}"] * header + lines).encode()


def binary(after: bytes) -> bytes:
    """The source as word2vec writes it, without the word that holds a space."""
    records = [w.encode() + b" " + TABLE[w].tobytes() + after for w in SOURCE[:-1]]
    return b"11 3\n" + b"".join(records)


@pytest.mark.parametrize(
    "source",
    [
        TABLE,
        {w: torch.tensor(v, requires_grad=True) for w, v in TABLE.items()},
        {"tax": MISSING, "trea": np.zeros(3), **TABLE},
        pd.DataFrame(NUMBERS, SOURCE),
        pl.DataFrame({"word": SOURCE, **{f"x{i}": NUMBERS[:, i] for i in range(3)}}),
        SimpleNamespace(key_to_index=PLACES, vectors=NUMBERS),
        SimpleNamespace(wv=SimpleNamespace(key_to_index=PLACES, vectors=NUMBERS)),
        EXPECTED,
        torch.tensor(EXPECTED, dtype=torch.float64),
        np.nan_to_num(EXPECTED).tolist(),
        WordVectors(EXPECTED),
        lambda words: EXPECTED[[WORDS.index(word) for word in words]],
        SimpleNamespace(encode=lambda words: np.nan_to_num(EXPECTED)),
    ],
)
def test_every_source_gives_the_same_vectors(source):
    vectors = WordVectors.of(source, WORDS)
    np.testing.assert_allclose(vectors.vectors, EXPECTED, rtol=1e-6)
    assert vectors.vectors.dtype == np.float32
    assert vectors.found.tolist() == [True, True, True, False, False, True, True, True, False]
    assert vectors.share_found() == pytest.approx(6 / 9)
    assert vectors.share_found([1, 0, 0, 3, 0, 0, 0, 0, 0]) == 0.25
    assert repr(vectors) == "WordVectors(num_words=9, dimension=3, 6 with a vector)"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("glove.txt", text()),
        ("bom.txt", b"\xef\xbb\xbf" + text(header=True)),
        ("fast.vec", text(header=True, end=" \r\n")),
        ("tabs.txt", text(joint="\t", end="\n\n")),
        ("x.bin", binary(b"\n")),
        ("gensim.bin", binary(b"")),
    ],
)
def test_files_give_the_same_vectors_packed_or_not(tmp_path, name, content):
    expected = EXPECTED.copy()
    if name.endswith("bin"):
        expected[7] = MISSING  # a space ends a word of a binary file
    for path, data in ((name, content), (name + ".gz", gzip.compress(content))):
        (tmp_path / path).write_bytes(data)
        found = read_vectors(tmp_path / path, WORDS).vectors
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_only_the_first_ten_longer_words_count():
    source = {f"trees{chr(97 + i)}": [1.0 + i] for i in range(20)}
    assert WordVectors.of(source, ["tree"]).vectors.tolist() == [[5.5]]
    assert WordVectors.of({**source, "TREE": [7.0]}, ["tree"]).vectors.tolist() == [[7.0]]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.txt", None, "no such file"),
        ("x.txt", b"", "line 1: expected a word and its numbers, separated by spaces, got ''"),
        ("x.txt", b"a 1 2\ncat 1\n", "line 2: expected a word and 2 numbers, got 'cat 1'"),
        ("x.txt", b"2 2\na 1 2\ncat 1\n", "line 3: expected a word and 2 numbers, got 'cat 1'"),
        ("x.txt", b"a 1 2\ncat 1 x\n", "line 2: expected a word and 2 numbers, got 'cat 1 x'"),
        ("x.txt", b"12 2\ncat 1 2\n", "announces 12 words, and holds 1; is it complete"),
        ("x.bin", binary(b"")[:-1], "announces 11 words, and holds 10; is it complete"),
        ("x.bin", b"999999999999 999999\na 1", "holds 0"),
        ("x.txt", b"cat 1 nan\n", "the vector of 'cat' has the shape"),
        ("x.txt", b"mouse 1 2\n", "none of the 9 words has a vector, among them 'cat', 'CAT'"),
        ("x.model", b"\x80\x04\x95cposix\nsystem\n", "is a pickle, which may run code"),
        ("x.bin", b"\xba\x16\x4f\x2f\x0c\x00", "give its .vec file"),
        ("x.npy", PICKLED.getvalue(), "is an array without words"),
        ("x.txt.gz", gzip.compress(text())[:-30], "cannot be read, is it complete"),
    ],
)
def test_bad_files_are_refused(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises((FileError, ConfigError), match=message) as error:
        read_vectors(tmp_path / name, WORDS)
    assert str(error.value).startswith(str(tmp_path / name))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (NUMBERS, r"expected one row for each of 9 words, got an array of the shape \(12, 3\)"),
        (WordVectors(NUMBERS), "row for each of 9 words"),
        (np.zeros((9, 3)), "none of the 9 words has a vector"),
        (np.where(np.arange(27) == 4, np.inf, 1.0).reshape(9, 3), "vector of word 'CAT' has num"),
        ({"cat": [1.0, 2.0], "CAT": [1.0]}, r"vector of 'CAT' has the shape \(1,\)"),
        ({"cat": "fur"}, "the vector of 'cat': expected numbers, got 'fur'"),
        ({3: [1.0]}, "a word is 3; expected text"),
        ("no.txt", "no such file; check the path"),
        (None, r"one row for each of 9 words, got an array of the shape \(\)"),
    ],
)
def test_bad_sources_are_refused(source, message):
    with pytest.raises(ConfigError, match=message):
        WordVectors.of(source, WORDS)


@pytest.mark.parametrize("source", [TABLE, "x.txt", lambda words: NUMBERS])
def test_vectors_by_word_need_words_and_vectors_by_column_do_not(source):
    with pytest.raises(ConfigError, match="need the words of the columns"):
        WordVectors.of(source, None, 12)
    assert len(WordVectors.of(NUMBERS, None).found) == 12
    with pytest.raises(ConfigError, match="row for each of 9 words"):
        WordVectors.of(NUMBERS, None, 9)
    with pytest.raises(CorpusError, match="must differ"):
        WordVectors.of(TABLE, ["cat", "cat"])


def test_a_saved_model_keeps_the_size():
    data = WordVectors(NUMBERS).to_json()
    blank = WordVectors.from_json(data)
    assert data == {"size": [12, 3]}
    assert blank.vectors.shape == (12, 3)
    assert WordVectors.of(blank, None, 12) is blank
    for wrong in (None, {}, {"size": [1]}, {"size": [0, 3]}, {"size": [1.5, 3]}):
        with pytest.raises(ConfigError, match="expected a size"):
            WordVectors.from_json(wrong)
