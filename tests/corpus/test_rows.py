"""Rows keep their names, ids their digits, dates their bins and levels their meaning.

Each test replays what users of other libraries reported in public: of formulaic (#276), csvkit
(#977), pandas (low_memory), mmrm (#170), scvi-tools (#3022), evalml (#1643), gensim (#3011),
BERTopic (#1008, #1210), stm (#144, #272) and anndata (#550).
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import torch_lntm as lntm
from torch_lntm.errors import CorpusError

TEXTS = ["tax law vote", "goal team match", "tax vote budget", "team goal cup"] * 3


def frame(**columns: object) -> pd.DataFrame:
    return pd.DataFrame({"text": TEXTS, "year": np.arange(12) % 4 + 2000, **columns})


def names_of(corpus: lntm.Corpus, formula: str) -> tuple[str, ...]:
    return lntm.models.stm(2, corpus, prevalence=formula).prior.names


def test_rows_of_joined_frames_with_repeated_names_are_all_kept() -> None:
    parts = frame(party=list("LRLR" * 3))
    both = pd.concat([parts, parts.assign(year=1990)])
    corpus = lntm.Corpus.from_frame(both)
    assert corpus.metadata.index.equals(pd.RangeIndex(24))
    assert corpus.metadata["year"].tolist() == both["year"].tolist()
    model = lntm.models.stm(2, corpus, prevalence="~ year + party")
    whole = model.encode(corpus).encodings["prevalence"]
    fresh = lntm.Corpus.from_frame(both.reset_index(drop=True))
    np.testing.assert_array_equal(whole, model.encode(fresh).encodings["prevalence"])
    both.iloc[3, both.columns.get_loc("party")] = None
    with pytest.raises(CorpusError, match=r"'party' lacks a value in 1 documents.* document 3"):
        names_of(lntm.Corpus.from_frame(both), "~ party")


def test_categories_are_levels_and_unused_categories_are_none() -> None:
    party = pd.Categorical(list("LRLR" * 3), categories=["L", "R", "X"])
    corpus = lntm.Corpus.from_frame(frame(party=party))
    assert names_of(corpus, "~ party") == ("Intercept", "party[T.R]")
    years = pd.Categorical(np.arange(12) % 4 + 2000)
    corpus = lntm.Corpus.from_frame(frame().assign(year=years))
    assert names_of(corpus, "~ year")[1:] == ("year[T.2001]", "year[T.2002]", "year[T.2003]")


def test_labels_of_all_rows_do_not_slip_onto_those_without_missing_texts() -> None:
    whole = frame(party=list("LRLR" * 3))
    whole.loc[[0, 5], "text"] = None
    part = whole.dropna()
    with pytest.raises(CorpusError, match="expected one row for each of 10 documents, got 12"):
        lntm.Corpus.from_texts(part["text"], metadata={"label": whole["party"]})
    labels = whole["party"].loc[part.index[::-1]]
    corpus = lntm.Corpus.from_texts(part["text"], metadata={"label": labels})
    assert corpus.metadata["label"].tolist() == part["party"].tolist()
    with pytest.raises(CorpusError, match="other names than the documents"):
        lntm.Corpus.from_texts(part["text"], metadata={"label": whole["party"][:10]})


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_months_begin_with_the_first_and_end_with_the_last_document(zone: str | None) -> None:
    at = pd.date_range("2019-05-18 05:31:31", periods=6, freq="MS", tz=zone).repeat(2)
    corpus = lntm.Corpus.from_frame(frame(at=at))
    periods = lntm.models.Periods.of(corpus, "~ rw(at, bins='month')")
    assert list(periods.levels) == [f"2019-{m:02d}" for m in range(6, 12)]


def test_an_empty_document_keeps_its_row_of_covariates() -> None:
    data = frame()
    data.loc[5, "text"] = "the of"
    corpus = lntm.Corpus.from_frame(data, stop_words="english")
    model = lntm.models.stm(2, corpus, prevalence="~ year")
    design = np.asarray(model.encode(corpus).encodings["prevalence"])
    assert corpus.lengths[5] == 0
    ranks = np.unique(design[:, 0], return_inverse=True)[1]
    assert ranks.tolist() == [0, 1, 2, 3] * 3


@pytest.mark.slow
def test_cells_with_repeated_names_are_matched_in_their_order_only() -> None:
    anndata = pytest.importorskip(
        "anndata", reason="needs anndata: pip install 'torch-lntm[files]'"
    )
    rng = np.random.default_rng(0)
    obs = pd.DataFrame(index=list("aabbcd"))
    words = pd.DataFrame(index=list("vwxyz"))
    with pytest.warns(UserWarning, match="names are not unique"):
        cells = anndata.AnnData(rng.poisson(2.0, (6, 5)).astype(float), obs=obs, var=words)
    corpus = lntm.interop.from_anndata(cells)
    guide = lntm.guides.TaylorGuide(lntm.models.ctm(2, 5, vocabulary=corpus.vocabulary))
    assert lntm.interop.to_anndata(guide, corpus, cells).obsm["X_topics"].shape == (6, 2)
    with pytest.raises(CorpusError, match="other names"), pytest.warns(match="not unique"):
        lntm.interop.to_anndata(guide, corpus, cells[[5, 0, 1, 2, 3, 4]].copy())


def test_numbered_documents_refuse_columns_of_other_numbers() -> None:
    whole = frame()
    with pytest.raises(CorpusError, match="other names than the documents"):
        lntm.Corpus.from_texts(whole["text"][:6], metadata=whole[["year"]][3:9])
    counts = pd.DataFrame(np.ones((6, 2), int), columns=["a", "b"])
    with pytest.raises(CorpusError, match="other names than the documents"):
        lntm.Corpus.from_matrix(counts, metadata=whole[["year"]][6:])
