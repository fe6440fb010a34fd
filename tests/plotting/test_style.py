"""Names of topics, and errors of plots."""

from __future__ import annotations

import numpy as np
import pytest
from support.pictures import WORDS, make_factor_model, make_model

import torch_lntm as lntm
from torch_lntm.errors import ConfigError
from torch_lntm.plotting import (
    correlation_graph,
    correlation_heatmap,
    document_proportions,
    source_plot,
)


def test_default_labels_are_numbers_and_words():
    model = make_model()
    top = model.topics.probs[2].detach().topk(2).indices.tolist()
    assert lntm.reports.topic_labels(model)[2] == f"2 {WORDS[top[0]]} {WORDS[top[1]]}"
    assert lntm.reports.topic_labels(model, 0) == list("012345")
    assert lntm.reports.topic_labels(lntm.models.ctm(2, 3)) == ["0", "1"]


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda m, p: correlation_heatmap(m, labels=["a"]), "1 labels for 6 topics"),
        (lambda m, p: correlation_graph(m, labels=["a"]), "1 labels for 6 topics"),
        (lambda m, p: correlation_graph(m, shares=[1.0]), "1 shares for 6 topics"),
        (lambda m, p: correlation_graph(m, num_edges=-1), "num_edges is -1"),
        (lambda m, p: correlation_graph(m, min_correlation=-0.1), "min_correlation is -0.1"),
        (
            lambda m, p: document_proportions(p, 3),
            "document is 3; expected a row of the posterior, -2 to 1",
        ),
        (lambda m, p: document_proportions(p, 0, level=1.0), "level is 1.0"),
        (lambda m, p: document_proportions(p, 0, labels=["a"]), "1 labels for 6 topics"),
        (lambda m, p: source_plot(m), "ctm, has no sources; iftm has"),
        (lambda m, p: source_plot(make_factor_model(), 2), "source 2 of a model with 2 sources"),
        (lambda m, p: source_plot(make_factor_model(), -1), "source -1 of a model"),
        (lambda m, p: source_plot(make_factor_model(), num_topics=0), "num_topics is 0"),
        (lambda m, p: source_plot(make_factor_model(), num_words=0), "num_words is 0"),
    ],
)
def test_invalid_arguments_are_refused(draw, message):
    model = make_model()
    corpus = lntm.Corpus.from_matrix(np.ones((2, len(WORDS))))
    posterior = lntm.guides.TaylorGuide(model).posterior(corpus.batch())
    with pytest.raises(ConfigError, match=message):
        draw(model, posterior)
