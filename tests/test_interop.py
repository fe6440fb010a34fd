"""Fits in the forms of other libraries, each read by that library where it is installed."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
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
        TEXTS, list(WORDS), metadata={"party": ["l", "r", None, "r", "l"]}
    )
    return lntm.guides.TaylorGuide(make_model()), corpus, vectorizer


@pytest.fixture(scope="module")
def theta(known):
    return lntm.inference.transform(known[0], known[1], "mean").theta.numpy()


def test_topic_info_has_the_columns_of_bertopic(known, theta):
    guide, corpus, _ = known
    info = interop.topic_info(guide, corpus, TEXTS, top_n=2, num_docs=2)
    assert info["Topic"].tolist() == [0, 1, 2]
    filled = theta[[0, 1, 3, 4]]
    assert info["Count"].tolist() == [(filled.argmax(1) == k).sum() for k in range(3)]
    assert info["Share"].to_numpy() == pytest.approx(filled.mean(0), abs=1e-6)
    assert info["Name"][0] == "0_ant_bee"
    assert info["Representation"][1] == ["dog", "cat"]
    best = [d for d in theta[:, 1].argsort()[::-1].tolist() if d != 2][:2]
    assert info["Representative_Docs"][1] == [TEXTS[d] for d in best]
    assert interop.topic_info(guide, corpus, num_docs=2)["Representative_Docs"][1] == best


def test_texts_with_names_are_joined_by_name_and_others_by_position(known):
    guide, corpus, _ = known
    names = ["e", "d", "c", "b", "a"]
    named = lntm.Corpus.from_texts(TEXTS, list(WORDS), metadata={"id": names})
    expected = interop.topic_info(guide, named, TEXTS)
    shuffled = pd.Series(TEXTS, index=names).sample(frac=1, random_state=0)
    for texts in (shuffled, np.array(TEXTS, object), (text for text in TEXTS)):
        pd.testing.assert_frame_equal(interop.topic_info(guide, named, texts), expected)
    with pytest.raises(CorpusError, match="texts: expected one row for each of 5 documents"):
        interop.topic_info(guide, named, shuffled[:4])
    with pytest.raises(CorpusError, match="texts: the rows have other names"):
        interop.topic_info(guide, named, pd.Series(TEXTS))
    with pytest.raises(ConfigError, match="2 texts for 5 documents"):
        interop.topic_info(guide, corpus, TEXTS[:2])


def test_documents_without_words_give_no_shares_and_no_page(known):
    empty = lntm.Corpus.from_matrix(np.zeros((2, 4), int), WORDS, allow_empty=True)
    info = interop.topic_info(known[0], empty)
    assert info[["Count", "Share"]].to_numpy().tolist() == [[0, 0]] * 3
    assert info["Representative_Docs"].tolist() == [[]] * 3
    with pytest.raises(ConfigError, match="3 words"):
        interop.topic_info(known[0], lntm.Corpus.from_matrix(np.ones((2, 3), int)))


def cells_of(corpus):
    """AnnData object of a corpus, with the names of its documents."""
    anndata = pytest.importorskip("anndata", reason="needs anndata")
    names, words = (pd.Index(list(x), dtype=object) for x in (corpus.metadata.index, WORDS))
    obs = pd.DataFrame({"x": range(len(corpus))}, names.map(str).astype(object))
    return anndata.AnnData(corpus.to_scipy(), obs, pd.DataFrame(index=words))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of anndata and what it imports
def test_anndata_keeps_counts_metadata_and_topics(known, theta, tmp_path):
    anndata = pytest.importorskip("anndata", reason="needs anndata")
    guide, corpus, _ = known
    names, dates = ["c0", "c1", "c2", "c3", "c4"], np.array(["2008-01-01"] * 5, "datetime64[D]")
    corpus = corpus.with_metadata({"id": names, "x": range(5), "day": dates})
    interop.to_anndata(guide, corpus).write_h5ad(tmp_path / "cells.h5ad")
    adata = anndata.read_h5ad(tmp_path / "cells.h5ad")
    assert adata.obs_names.tolist() == names
    assert adata.obs["day"].astype(str).str[:10].tolist() == ["2008-01-01"] * 5
    assert list(adata.obs["party"].astype(object).fillna("?")) == ["l", "r", "?", "r", "l"]
    assert adata.obsm["X_topics"] == pytest.approx(theta, abs=1e-6)
    assert adata.varm["topics"] == pytest.approx(TOPICS.numpy().T, abs=1e-6)
    about = adata.uns["topics"]
    assert (about["model"], about["posterior"]) == ("ctm", "taylor")
    assert about["correlation"].shape == (3, 3)
    back = interop.from_anndata(adata)
    assert back.vocabulary == WORDS
    assert (back.to_scipy() != corpus.to_scipy()).nnz == 0
    assert back.metadata.index.tolist() == corpus.metadata.index.tolist()
    assert back.metadata["x"].tolist() == list(range(5))
    adata.layers["twice"] = sp.csr_matrix(2 * adata.X.toarray())
    assert interop.from_anndata(adata, "twice").num_tokens == 2 * corpus.num_tokens
    with pytest.raises(CorpusError, match="layer 'raw': the AnnData object has twice"):
        interop.from_anndata(adata, "raw")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of anndata and what it imports
def test_objects_backed_by_a_file_are_read_and_objects_without_counts_refused(tmp_path):
    anndata = pytest.importorskip("anndata", reason="needs anndata")
    counts = np.arange(12, dtype=np.float32).reshape(4, 3)
    cells, genes = (pd.Index(list(names), dtype=object) for names in ("wxyz", "abc"))
    for i, x in enumerate((counts, sp.csr_matrix(counts), sp.csc_matrix(counts))):
        adata = anndata.AnnData(x, pd.DataFrame(index=cells), pd.DataFrame(index=genes))
        adata.write_h5ad(tmp_path / f"{i}.h5ad")
        for read in (adata, anndata.read_h5ad(tmp_path / f"{i}.h5ad", backed="r")):
            corpus = interop.from_anndata(read)
            np.testing.assert_array_equal(corpus.to_scipy().toarray(), counts)
            assert corpus.metadata.index.tolist() == list("wxyz")
    adata.X = None
    with pytest.raises(CorpusError, match=r"expected a matrix of counts.* got NoneType; .*layer="):
        interop.from_anndata(adata)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of anndata and what it imports
def test_cells_are_matched_by_name(known, theta):
    guide, corpus, _ = known
    plain = lntm.Corpus.from_matrix(corpus.to_scipy(), WORDS, allow_empty=True)
    assert interop.to_anndata(guide, plain, cells_of(plain)).obsm["X_topics"].shape == (5, 3)
    corpus = corpus.with_metadata({"id": ["c0", "c1", "c2", "c3", "c4"]})
    cells, order = cells_of(corpus), [3, 0, 4, 2, 1]
    shuffled = cells[order].copy()
    assert interop.to_anndata(guide, corpus, shuffled) is shuffled
    assert shuffled.obsm["X_topics"] == pytest.approx(theta[order], abs=1e-6)
    renamed = cells.copy()
    renamed.obs_names = ["c0", "c1", "c2", "c3", "c9"]
    for other in (cells[:4].copy(), renamed):
        with pytest.raises(CorpusError, match=r"AnnData: .* documents"):
            interop.to_anndata(guide, corpus, other)
    # Numbers are positions: a document has no name by which a cell of another order could find it.
    with pytest.raises(CorpusError, match="another order"):
        interop.to_anndata(guide, plain, cells_of(plain)[::-1].copy())
    with pytest.raises(ConfigError, match="expected the model's 4 words, in order"):
        interop.to_anndata(guide, corpus, cells[:, ::-1].copy())
