"""Every result is a table whose CSV neither computes nor breaks rows."""

from __future__ import annotations

import csv
import io
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import torch_lntm as lntm
from torch_lntm.frames import render

HOSTILE = ["=1+1", "@SUM(1)", "+1+1", "a,b", '"q"', "=cmd|' /C calc'!A0", "-1-1", "w"]
GROUPS = ["=2+2", "a\rb", "\t=1", "plain"]


@pytest.fixture(scope="module")
def results() -> dict[str, object]:
    """A result of each kind, about words, documents and groups with hostile names."""
    counts = np.random.default_rng(0).poisson(2.0, (12, 8)) + 1
    columns = pd.DataFrame(
        {"party": GROUPS * 3, "year": np.repeat([2001, 2002, 2003], 4)},
        index=[f"=d{d}\r" for d in range(12)],
    )
    corpus = lntm.Corpus.from_matrix(counts, HOSTILE, metadata=columns)
    probs = torch.rand(4, 8, generator=torch.Generator().manual_seed(0)) + 0.1
    model = lntm.models.ctm(4, 8, vocabulary=HOSTILE, topics=probs / probs.sum(1, keepdim=True))
    model.topic_names = {0: "=3+3", 1: "@x", 2: "+y"}
    guide = lntm.guides.TaylorGuide(model)
    reports = lntm.reports
    summary = reports.summarise_corpus(guide, corpus, ["party"], groups={"=g": [0, 1]}, num_draws=2)
    moving = lntm.models.stm(2, corpus, content="~ rw(year)", seed=0)
    words = {"=key": ["=1+1", "w"]}
    keyed = lntm.models.ctm(2, 8, vocabulary=HOSTILE, keywords=words, exclusive_keywords=False)
    found = reports.representative_documents(
        summary.documents, corpus=corpus, texts=pd.Series(["=t\r\n"] * 12, columns.index)
    )
    return {
        "topics": model.topic_table([0.4, 0.3, 0.2, 0.1], num_correlated=2),
        "labels": reports.label_topics(model, corpus),
        "groups": reports.summarise_groups(model, {"=g": [0, 1]}, [0.4, 0.3, 0.2, 0.1]),
        "documents": found,
        "summary": summary,
        "prevalence": summary.prevalence[0],
        "tree": lntm.topic_tree(model, [2, 3]),
        "moving words": reports.moving_topics(moving),
        "keywords": reports.keyword_topics(keyed, [0.5, 0.5], 100),
        "sources": reports.summarise_sources(lntm.models.iftm(4, 8, 2, vocabulary=HOSTILE)),
        "scores": reports.topic_scores(model, corpus, top_n=3),
        "shares of documents": summary.documents,
    }


def frame_of(result: Any) -> pd.DataFrame:
    return result if isinstance(result, pd.DataFrame) else result.frame()


def test_no_cell_is_a_formula_and_no_row_is_broken(results: dict[str, object]) -> None:
    for name, result in results.items():
        frame = frame_of(result)
        text = render(result, "csv")  # type: ignore[arg-type]
        rows = list(csv.reader(io.StringIO(text, newline="")))
        assert len(rows) == len(frame) + 1, name
        assert "\r" not in text
        for cell in (cell for row in rows for cell in row):
            if cell.lstrip().startswith(("=", "+", "-", "@")):
                float(cell)
        if name != "shares of documents":
            assert not set(render(result)) & {"\r", "\t", "\x1b"}, name


def test_rows_of_documents_have_the_documents_names(results: dict[str, object]) -> None:
    found = frame_of(results["documents"])
    assert set(found["document"]) <= {f"=d{d}\r" for d in range(12)}
    assert set(found["excerpt"]) == {"=t"}
    shares = frame_of(results["shares of documents"])
    row = found.iloc[0]
    assert shares.loc[row["document"], row["name"]] == pytest.approx(row["gamma"])


def test_texts_are_matched_by_name() -> None:
    counts = np.array([[9, 1], [1, 9], [5, 5]])
    names = pd.DataFrame(index=["x", "y", "z"])
    corpus = lntm.Corpus.from_matrix(counts, ["a", "b"], metadata=names)
    model = lntm.models.ctm(2, 2, topics=torch.tensor([[0.9, 0.1], [0.1, 0.9]]), vocabulary="ab")
    shares = lntm.inference.transform(lntm.guides.TaylorGuide(model), corpus)
    texts = pd.Series({"z": "third", "x": "first", "y": "second"})
    options = {"num_docs": 1, "corpus": corpus, "texts": texts}
    best = lntm.reports.representative_documents(shares, **options)
    found = best[["document", "excerpt"]].to_numpy().tolist()
    assert found == [["x", "first"], ["y", "second"]]
    with pytest.raises(lntm.errors.CorpusError, match="texts: "):
        lntm.reports.representative_documents(
            shares, corpus=corpus, texts=texts.set_axis(["p", "q", "r"])
        )
