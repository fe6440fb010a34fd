"""Arguments that evaluations refuse before any computation."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from support.known import make_corpus, make_model

from torch_lntm.errors import ConfigError, CorpusError, IncompatibleGuideError
from torch_lntm.evaluation import (
    AIS,
    align_topics,
    coherence,
    document_completion,
    exclusivity,
    log_likelihood,
    unigram_perplexity,
)
from torch_lntm.guides import TaylorGuide
from torch_lntm.inference import transform

EVALUATIONS = {
    "completion": lambda model, guide: document_completion(
        model, make_corpus(), theta="mode", guide=guide
    ),
    "importance": lambda model, guide: log_likelihood(model, make_corpus(), guide=guide),
    "transform": lambda model, guide: transform(guide, make_corpus()),
}


@pytest.mark.parametrize("name", ["completion", "importance"])
def test_guides_of_other_models_are_refused(name) -> None:
    model = make_model()
    for guide in ("taylor", TaylorGuide):
        with pytest.raises(ConfigError, match=r"guide is .*; expected a guide of this model"):
            EVALUATIONS[name](model, guide)
    with pytest.raises(IncompatibleGuideError, match=r"another model; .*TaylorGuide\(model\)"):
        EVALUATIONS[name](model, TaylorGuide(make_model()))


@pytest.mark.parametrize("name", EVALUATIONS)
def test_corpora_with_other_words_are_refused(name) -> None:
    model = make_model(vocabulary=("ant", "bee", "dog", "cat"))
    with pytest.raises(ConfigError, match=r"column 2 is 'cat', in the model 'dog'; re-index"):
        EVALUATIONS[name](model, TaylorGuide(model))


def test_a_matrix_of_counts_is_accepted() -> None:
    corpus, model = make_corpus(), make_model()
    counts, topics = corpus.to_scipy(), model.topics.probs
    assert torch.equal(coherence(topics, counts, top_n=3), coherence(topics, corpus, top_n=3))
    ours, theirs = (unigram_perplexity(each, each) for each in (counts, corpus))
    assert ours.perplexity == theirs.perplexity
    with pytest.raises(CorpusError, match=r"counts must be a matrix .* got a NoneType"):
        coherence(topics, None)


def test_a_corpus_without_a_vocabulary_is_accepted() -> None:
    guide = TaylorGuide(make_model(vocabulary=None))
    assert transform(guide, make_corpus()).theta.shape == (9, 3)


def test_scores_are_frames_with_the_documents_names() -> None:
    names = list("abcdefghi")
    corpus, model = make_corpus().with_metadata({"id": names}), make_model()
    guide = TaylorGuide(model)
    likelihood = log_likelihood(model, corpus, num_draws=25).frame()
    annealed = log_likelihood(model, corpus, AIS(num_chains=2, num_temperatures=3)).frame()
    completion = document_completion(model, corpus, theta="mode", guide=guide)
    for frame in (likelihood, annealed, completion.frame()):
        assert frame.index.tolist() == names
    assert likelihood["tokens"].tolist() == corpus.lengths.tolist()
    assert list(likelihood.columns[-2:]) == ["effective_sample_size", "pareto_k"]
    assert list(annealed.columns[-2:]) == ["effective_sample_size", "acceptance"]
    assert completion.frame()["log_predictive"].tolist() == completion.log_predictive.tolist()


@pytest.mark.parametrize("score", [exclusivity, lambda topics: align_topics(topics, make_model())])
def test_topics_in_other_forms_are_refused(score) -> None:
    for topics in (pd.DataFrame(make_model().topics.probs.detach().numpy()), [["a"], ["b"]], "x"):
        with pytest.raises(ConfigError, match=r"topics is a \w+; expected a matrix of numbers"):
            score(topics)
    for topics, problem in ((torch.ones(4), "has shape"), (-torch.ones(2, 4), "nonnegative")):
        with pytest.raises(ConfigError, match=f"topics .*{problem}"):
            score(topics)
