"""Fits in the forms of other libraries, each read by that library where it is installed."""

from __future__ import annotations

import subprocess
import sys

import pytest
import scipy.sparse as sp
import torch
from sklearn.feature_extraction.text import CountVectorizer
from support.known import TOPICS, WORDS, make_model

import torch_lntm as lntm
from torch_lntm import interop
from torch_lntm.errors import ConfigError, CorpusError

TEXTS = ["ant bee ant", "dog dog cat", "", "cat bee dog dog", "ant ant ant bee"]


@pytest.fixture(scope="module")
def known():
    vectorizer = CountVectorizer(vocabulary=list(WORDS)).fit([])
    corpus = lntm.Corpus.from_texts(
        TEXTS, vectorizer=vectorizer, metadata={"party": ["l", "r", None, "r", "l"]}
    )
    return lntm.guides.TaylorGuide(make_model()), corpus, vectorizer


@pytest.fixture(scope="module")
def theta(known):
    return lntm.inference.transform(known[0], known[1], "mean").theta.numpy()


def test_topics_have_the_form_of_gensim():
    model = make_model()
    topics = interop.get_topics(model)
    assert topics == pytest.approx(TOPICS.numpy(), abs=1e-6)
    assert topics.sum(1) == pytest.approx(1.0, abs=1e-12)
    assert interop.show_topics(model, 2)[0] == (0, '0.500*"ant" + 0.300*"bee"')
    number, pairs = interop.show_topics(model, 2, formatted=False)[1]
    assert number == 1
    assert [word for word, _ in pairs] == ["dog", "cat"]
    assert [p for _, p in pairs] == pytest.approx([0.4, 0.3])
    words = interop.show_topics(make_model(vocabulary=None), 1, formatted=False)[0][1]
    assert words[0][0] == "#0"


def test_pyldavis_accepts_its_arguments(known, theta):
    arguments = interop.to_pyldavis(*known[:2])
    assert arguments["doc_topic_dists"] == pytest.approx(theta[[0, 1, 3, 4]], abs=1e-6)
    assert arguments["doc_lengths"].tolist() == [3, 3, 4, 4]
    assert arguments["term_frequency"].tolist() == [5, 3, 2, 4]
    assert arguments["vocab"] == list(WORDS)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of pyLDAvis and what it imports
def test_pyldavis_draws_our_topics_in_our_order(known):
    pyldavis = pytest.importorskip("pyLDAvis", reason="needs pyLDAvis")
    arguments = interop.to_pyldavis(*known[:2])
    prepared = pyldavis.prepare(**arguments, R=4, n_jobs=1)
    frequency = arguments["doc_lengths"] @ arguments["doc_topic_dists"]
    coordinates = prepared.topic_coordinates.sort_index()
    assert coordinates["Freq"].to_numpy() == pytest.approx(100 * frequency / frequency.sum())
    assert prepared.topic_order == [0, 1, 2]


def test_topic_data_has_the_keys_of_topicwizard(known, theta):
    guide, corpus, vectorizer = known
    data = interop.to_topicwizard(guide, corpus, TEXTS, vectorizer=vectorizer)
    # The keys of topicwizard.data.TopicData.
    assert set(data) == {
        *("corpus", "vocab", "document_term_matrix", "document_topic_matrix"),
        *("topic_term_matrix", "document_representation", "transform", "topic_names"),
    }
    assert data["corpus"] == TEXTS
    assert data["vocab"].tolist() == list(WORDS)
    assert data["document_term_matrix"].toarray()[0].tolist() == [2, 1, 0, 0]
    assert data["document_topic_matrix"] == pytest.approx(theta, abs=1e-6)
    assert data["topic_term_matrix"].shape == (3, 4)
    assert data["topic_names"][1] == "1_dog_cat_bee_ant"
    # As a document of another position it is drawn anew.
    new = data["transform"](["dog dog cat"])
    assert new.shape == (1, 3)
    assert new[0] == pytest.approx(theta[1], abs=0.1)
    assert interop.to_topicwizard(guide, corpus, TEXTS)["transform"] is None


def test_octis_output_has_topics_and_matrices(known, theta):
    guide, corpus, _ = known
    output = interop.to_octis(guide, corpus, corpus[:2], num_words=2)
    assert output["topics"] == [["ant", "bee"], ["dog", "cat"], ["ant", "cat"]]
    assert output["topic-word-matrix"].shape == (3, 4)
    assert output["topic-document-matrix"] == pytest.approx(theta.T, abs=1e-6)
    assert output["test-topic-document-matrix"] == pytest.approx(theta[:2].T, abs=1e-6)
    assert "test-topic-document-matrix" not in interop.to_octis(guide, corpus)


def test_topic_info_has_the_columns_of_bertopic(known, theta):
    guide, corpus, _ = known
    info = interop.topic_info(guide, corpus, TEXTS, num_words=2, num_docs=2)
    assert info["Topic"].tolist() == [0, 1, 2]
    filled = theta[[0, 1, 3, 4]]
    assert info["Count"].tolist() == [(filled.argmax(1) == k).sum() for k in range(3)]
    assert info["Share"].to_numpy() == pytest.approx(filled.mean(0), abs=1e-6)
    assert info["Name"][0] == "0_ant_bee_cat_dog"
    assert info["Representation"][1] == ["dog", "cat"]
    best = [d for d in theta[:, 1].argsort()[::-1].tolist() if d != 2][:2]
    assert info["Representative_Docs"][1] == [TEXTS[d] for d in best]
    assert interop.topic_info(guide, corpus, num_docs=2)["Representative_Docs"][1] == best


def test_document_info_has_the_columns_of_bertopic(known, theta):
    guide, corpus, _ = known
    info = interop.document_info(guide, corpus, TEXTS, num_words=2, num_docs=1)
    assert info.columns.tolist() == [
        *("Document", "Topic", "Name", "Representation", "Representative_Docs", "Top_n_words"),
        *("Probability", "Representative_document", "party"),
    ]
    assert info["Document"].tolist() == TEXTS
    assert info["Topic"].tolist() == [-1 if d == 2 else theta[d].argmax() for d in range(5)]
    assert info["Probability"].tolist() == pytest.approx([*theta[:2].max(1), 0, *theta[3:].max(1)])
    assert info["Top_n_words"][4] == "ant - bee"
    assert info.loc[2, ["Name", "Top_n_words"]].tolist() == ["", ""]
    assert info["Representation"][2] == info["Representative_Docs"][2] == []
    for k in set(info["Topic"]) - {-1}:
        assert info["Representative_document"][info["Topic"] == k].sum() == 1


@pytest.mark.parametrize("function", [interop.topic_info, interop.document_info])
def test_the_number_of_texts_must_match_the_documents(known, function):
    with pytest.raises(ConfigError, match="2 texts for 5 documents"):
        function(known[0], known[1], TEXTS[:2])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of anndata and what it imports
def test_anndata_keeps_counts_metadata_and_topics(known, theta):
    pytest.importorskip("anndata", reason="needs anndata")
    guide, corpus, _ = known
    adata = interop.to_anndata(guide, corpus)
    assert adata.shape == (5, 4)
    assert adata.obsm["X_topics"] == pytest.approx(theta, abs=1e-6)
    assert adata.varm["topics"] == pytest.approx(TOPICS.numpy().T, abs=1e-6)
    about = adata.uns["topics"]
    assert (about["model"], about["posterior"]) == ("ctm", "taylor")
    assert about["correlation"].shape == (3, 3)
    back = interop.from_anndata(adata)
    assert back.vocabulary == WORDS
    assert (back.counts == corpus.counts).all()
    assert (back.word_index == corpus.word_index).all()
    assert back.metadata["party"].tolist() == ["l", "r", None, "r", "l"]
    assert back.metadata["id"].tolist() == ["0", "1", "2", "3", "4"]
    # Into an object that is there, with the counts in a layer.
    adata.layers["twice"] = sp.csr_matrix(2 * adata.X.toarray())
    assert interop.from_anndata(adata, "twice").num_tokens == 2 * corpus.num_tokens
    with pytest.raises(CorpusError, match="layer 'raw': the AnnData object has twice"):
        interop.from_anndata(adata, "raw")
    adata.obsm.clear()
    assert interop.to_anndata(guide, corpus, adata) is adata
    assert adata.obsm["X_topics"].shape == (5, 3)
    with pytest.raises(ConfigError, match="4 observations"):
        interop.to_anndata(guide, corpus, adata[:4].copy())


@pytest.mark.slow
def test_without_pandas_an_error_says_what_to_install():
    code = (
        "import sys, numpy as np, torch_lntm as lntm\n"
        "from torch_lntm import interop\n"
        "assert not {'pandas', 'anndata'} & set(sys.modules)\n"
        "sys.modules['pandas'] = None\n"
        "corpus = lntm.Corpus.from_matrix(np.ones((3, 4), int))\n"
        "guide = lntm.guides.TaylorGuide(lntm.models.ctm(2, 4))\n"
        "try:\n"
        "    interop.topic_info(guide, corpus)\n"
        "except lntm.ConfigError as error:\n"
        "    assert \"pip install 'torch-lntm[interop]'\" in str(error), error\n"
        "else:\n"
        "    raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_corpus_with_another_vocabulary_is_refused(known):
    other = lntm.Corpus.from_matrix(torch.ones(2, 3, dtype=torch.int64))
    with pytest.raises(ConfigError, match="3 words"):
        interop.to_pyldavis(known[0], other)
