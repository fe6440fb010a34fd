"""Documents of tables are matched by name."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import torch_lntm as lntm


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
