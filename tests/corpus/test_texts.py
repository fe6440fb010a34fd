"""Corpus.from_texts: counting words, and those that are left out by default."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from support.corpora import dense

from torch_lntm.corpus import Corpus
from torch_lntm.corpus import texts as module
from torch_lntm.corpus.texts import automatic_min_df
from torch_lntm.errors import CorpusError


@pytest.mark.parametrize("make", [iter, pa.array, lambda x: pa.chunked_array([x[:1], x[1:]])])
def test_from_texts_counts_words(make):
    texts = make(["The cat saw the cat.", "", "A dog!", "the THE the"])
    label = {"label": ["x", "y", "x", "y"]}
    corpus = Corpus.from_texts(texts, metadata=label, stop_words=["saw"])
    assert corpus.vocabulary == ("cat", "dog", "the")
    np.testing.assert_array_equal(dense(corpus), [[2, 0, 2], [0, 0, 0], [0, 1, 0], [0, 0, 3]])
    assert corpus.labels == ("x", "y", "x", "y")


def test_from_texts_passes_options_to_the_vectorizer():
    texts = ["one two two", "two three", "two three four"]
    assert Corpus.from_texts(texts, stop_words=None, min_df=2).vocabulary == ("three", "two")
    bounds = Corpus.from_texts(texts, stop_words=None, max_df=2, min_df=2)
    assert bounds.vocabulary == ("three",)
    assert Corpus.from_texts(["The cat"], stop_words="english").vocabulary == ("cat",)
    cased = Corpus.from_texts(["The cat"], stop_words=None, lowercase=False)
    assert cased.vocabulary == ("The", "cat")


@pytest.mark.parametrize(
    ("texts", "options", "match"),
    [
        ("one text", {}, r"got a single str; wrap one text"),
        ([], {}, "cannot be counted: there are none"),
        (["", " "], {}, "no word of 2 documents is left; check"),
        (["the"], {"stop_words": "english"}, "no word of 1 documents is left; check"),
        (["the"], {}, r"is left without 1 English stop word \(stop_words none keeps them\)"),
        (["word"], {"min_df": 5}, "no word of 1 documents is left; .* take a lower min_df"),
        (["word"], {"min_df": -1}, "cannot be counted"),
        (["word"], {"token_pattern": "("}, "cannot be counted"),
        (["word"], {"stop_words": "german"}, "stop_words is 'german'; expected english, none"),
        (["word"], {"vocabulary": ["word"], "min_df": 1}, "min_df choose words"),
        (["word"], {"vocabulary": ["word", "word"]}, "must differ, got 'word'"),
    ],
)
def test_from_texts_errors(texts, options, match):
    with pytest.raises(CorpusError, match=match):
        Corpus.from_texts(texts, **options)


def test_from_texts_with_a_vocabulary_warns_once_with_counts():
    texts = ["new cat cat", "dog", "new newer cat new"]
    with pytest.warns(UserWarning, match="dropped 4 of 8 tokens") as caught:
        corpus = Corpus.from_texts(texts, vocabulary=["dog", "cat", "emu"])
    assert [str(w.message) for w in caught] == [
        "dropped 4 of 8 tokens: 2 words unknown to the vocabulary, in 2 of 3 documents"
    ]
    assert corpus.vocabulary == ("dog", "cat", "emu")
    np.testing.assert_array_equal(dense(corpus), [[0, 2, 0], [1, 0, 0], [0, 1, 0]])


# ------------------------------------------------------------------ words left out by default


GERMAN = "die katze sah was der vogel in dem haus tut da es um zu ab ja du er wo ob im"
LEFT_OUT = "left out 2 English stop words (stop_words none keeps them)"


@pytest.mark.parametrize(
    ("texts", "options", "words", "preparation"),
    [
        (["The cat saw the dog.", "The dog and the bird"], {}, "bird cat dog saw", LEFT_OUT),
        (["The cat saw the dog."], {"stop_words": None}, "cat dog saw the", None),
        (["The cat saw the dog."], {"stop_words": "none"}, "cat dog saw the", None),
        (["out of the blue"], {"ngram_range": (2, 2)}, "of the out of the blue", None),
        # "was" and "in" are English stop words, too few of them for a text in English.
        ([GERMAN], {"lowercase": False}, " ".join(sorted(GERMAN.split())), None),
    ],
)
def test_english_stop_words_are_left_out_of_english_texts(texts, options, words, preparation):
    corpus = Corpus.from_texts(texts, **options)
    assert " ".join(corpus.vocabulary) == words
    assert corpus.preparation == corpus[0].preparation == preparation


@pytest.mark.parametrize(
    ("num_docs", "least"),
    [(1, 1), (49, 1), (50, 2), (499, 2), (500, 3), (5_000, 4), (50_000, 5), (5_000_000, 7)],
)
def test_automatic_min_df(num_docs, least):
    assert automatic_min_df(num_docs) == least


def test_rare_words_are_left_out_of_many_texts():
    texts = ["common word"] * 50
    texts[0] += " unique"
    texts[1] += " pair"
    texts[2] += " pair pair"
    corpus = Corpus.from_texts(texts)
    assert corpus.vocabulary == ("common", "pair", "word")
    assert corpus.preparation == "left out 1 word in fewer than 2 documents (min_df 1 keeps them)"
    for options in ({"min_df": 1}, {"max_features": 9}):
        assert "unique" in Corpus.from_texts(texts, **options).vocabulary
    assert Corpus.from_texts([f"word{i}" for i in range(60)]).num_words == 60  # all are rare
    assert "unique" in Corpus.from_texts(texts[:49]).vocabulary


# ------------------------------------------------------------------ other things than texts


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (pd.DataFrame({"id": [1, 2], "text": ["wood", "stone"]}), r"single DataFrame.*from_frame"),
        ({"text": ["wood", "stone"]}, r"single dict.*from_frame"),
        (Path("posts.csv"), r"single .*Path.*read_corpus\(path\)"),
        ([{"text": "wood"}], r"1 of 1 .*: 0 .got {.*from_frame"),
        (["wood", float("nan")], "1 of 2 .*: 1 .got nan.; leave missing values out"),
        (pd.Series(["wood", None]), "1 of 2 .* leave missing values out, or fill in an empty"),
        (pa.array(["wood", None]), "1 of 2 .*: 1 .got None"),
        ([["wood", "iron"], ["iron"]], "2 of 2 .*: 0, 1 .got .*join the words"),
        ([1, 2], "2 of 2 .*: 0, 1 .got 1"),
    ],
)
def test_other_things_than_texts_are_refused_with_advice(given, match):
    with pytest.raises(CorpusError, match=match):
        Corpus.from_texts(given)


def test_texts_without_a_word_are_empty_documents_over_a_vocabulary():
    for texts in (["", " "], ["a", "?"]):
        corpus = Corpus.from_texts(texts, ["wood", "stone"], metadata={"n": [1, 2]})
        assert corpus.lengths.tolist() == [0, 0]
        assert corpus.vocabulary == ("wood", "stone")
        assert corpus.metadata["n"].tolist() == [1, 2]
        with pytest.raises(CorpusError, match="the texts cannot be counted"):
            Corpus.from_texts(texts)


SENTENCES = [
    "the cat and the dog chase the mouse",
    "a dog barks at the cat and the cat",
    "",
    "stocks and bonds fall as banks fail",
    "The banks buy bonds and the banks sell stocks",
    "stocks rise while bonds rest",
] * 12


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stop_words": None, "min_df": 1},
        {"stop_words": "english", "min_df": 0.2},
        {"stop_words": ["cat", "dog"]},
        {"max_features": 5, "min_df": 3, "lowercase": False},
        {"ngram_range": (1, 2)},
        {"token_pattern": r"(?u)\b\w{4,}\b"},
        {"analyzer": "char", "ngram_range": (2, 2)},
    ],
)
def test_parts_of_texts_are_counted_as_all_texts_at_once(options, monkeypatch):
    expected = Corpus.from_texts(SENTENCES, **options)
    monkeypatch.setattr(module, "_CHARACTERS", 300)
    found = Corpus.from_texts(SENTENCES, **options)
    assert found.vocabulary == expected.vocabulary == tuple(sorted(expected.vocabulary))
    assert (found.fingerprint(), found.preparation) == (
        expected.fingerprint(),
        expected.preparation,
    )
    with pytest.warns(UserWarning, match=r"dropped \d+ of \d+ tokens: \d+ words unknown"):
        counts = Corpus.from_texts(SENTENCES, vocabulary=["stocks", "zebra", "cat"])
    assert counts.word_totals.tolist() == [36, 0, 36]
