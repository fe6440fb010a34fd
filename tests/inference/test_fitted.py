"""What follows a fit, as methods of its result and of a run in a folder."""

import numpy as np
import pandas as pd
import pytest
import torch

import torch_lntm as lntm
from torch_lntm.errors import ConfigError
from torch_lntm.inference import MonteCarloEM, VariationalEM


@pytest.fixture(scope="module")
def corpus() -> lntm.Corpus:
    return lntm.example_corpus()


@pytest.fixture(scope="module", params=["guide", "chains"])
def result(request, corpus):
    model = lntm.models.ctm(3, corpus.num_words, vocabulary=corpus.vocabulary)
    if request.param == "chains":
        return MonteCarloEM(model, max_epochs=2).fit(corpus)
    guide = lntm.guides.TaylorGuide(model)
    return VariationalEM(model, guide, max_iterations=1, stepwise_epochs=0).fit(corpus)


@pytest.mark.slow
def test_the_methods_call_the_functions_of_the_rooms(result, corpus, tmp_path) -> None:
    """A method means what its function means, for the fit's source and documents."""
    theta = lntm.inference.transform(result.source, corpus).theta
    assert torch.equal(result.transform().theta, theta)
    some = corpus[:5]
    assert torch.equal(
        result.transform(some).theta, lntm.inference.transform(result.source, some).theta
    )
    settings = {"num_draws": 4, "link": "identity"}
    effects = result.effects("~ theme", **settings)
    expected = lntm.effects.estimate(result.model, result.source, corpus, "~ theme", **settings)
    pd.testing.assert_frame_equal(effects.table(), expected.table())
    page = result.report(tmp_path / "page.html", num_draws=4)
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


@pytest.mark.slow
def test_the_table_of_documents_has_their_names_columns_and_shares(result, corpus) -> None:
    table = result.document_table()
    assert table.index.equals(corpus.metadata.index)
    assert table["theme"].tolist() == corpus.metadata["theme"].tolist()
    theta = result.transform().theta.numpy()
    assert np.array_equal(table.loc[:, "topic_0":"topic_2"].to_numpy(), theta)


def test_a_run_of_a_folder_has_the_same_methods(result, corpus, tmp_path) -> None:
    """They need the documents, which the folder does not hold."""
    lntm.io.save_run(tmp_path / "run", result.model, result, {"model": "ctm"})
    run = lntm.load_run(tmp_path / "run")
    for method in (run.transform, run.document_table, run.report):
        with pytest.raises(ConfigError, match="documents of the fit are unknown"):
            method()
    known = lntm.load_run(tmp_path / "run", corpus)
    assert torch.equal(known.transform().theta, run.transform(corpus).theta)
    assert known.report(num_draws=4) == tmp_path / "run" / "report.html"
