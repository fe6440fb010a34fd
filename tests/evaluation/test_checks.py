"""What evaluations refuse before they compute anything."""

from __future__ import annotations

import pytest
from support.known import make_corpus, make_model

from torch_lntm.errors import ConfigError, IncompatibleGuideError
from torch_lntm.evaluation import document_completion, log_likelihood, posterior_accuracy
from torch_lntm.guides import TaylorGuide
from torch_lntm.inference import transform

EVALUATIONS = {
    "completion": lambda model, guide: document_completion(model, guide, make_corpus()),
    "importance": lambda model, guide: log_likelihood(model, make_corpus(), guide=guide),
    "accuracy": lambda model, guide: posterior_accuracy(model, guide, make_corpus()),
}


@pytest.mark.parametrize("name", EVALUATIONS)
def test_what_is_no_guide_of_the_model_is_refused(name) -> None:
    model = make_model()
    for guide in ("taylor", TaylorGuide):
        with pytest.raises(ConfigError, match=r"guide is .*; expected a guide of this model"):
            EVALUATIONS[name](model, guide)
    with pytest.raises(IncompatibleGuideError, match=r"another model; .*TaylorGuide\(model\)"):
        EVALUATIONS[name](model, TaylorGuide(make_model()))


def test_transform_refuses_what_is_no_guide() -> None:
    with pytest.raises(ConfigError, match=r"guide is 'taylor'; expected a guide"):
        transform("taylor", make_corpus())


@pytest.mark.parametrize("effort", [{"tolerance": 0.0}, {"max_iterations": 0}])
def test_a_posterior_is_not_solved_with_an_effort_that_cannot_be(effort) -> None:
    guide = TaylorGuide(make_model())
    with pytest.raises(ConfigError, match="expected both positive"):
        guide.posterior(make_corpus().batch(), **effort)


@pytest.mark.parametrize("name", EVALUATIONS)
def test_other_words_are_refused(name) -> None:
    model = make_model(vocabulary=("ant", "bee", "dog", "cat"))
    with pytest.raises(ConfigError, match=r"column 2 is 'cat', in the model 'dog'; re-index"):
        EVALUATIONS[name](model, TaylorGuide(model))


def test_transform_refuses_other_words() -> None:
    guide = TaylorGuide(make_model(vocabulary=("ant", "bee", "dog", "cat")))
    with pytest.raises(ConfigError, match=r"column 2 is 'cat', in the model 'dog'; re-index"):
        transform(guide, make_corpus())


def test_words_without_names_are_taken_as_they_are() -> None:
    guide = TaylorGuide(make_model(vocabulary=None))
    assert transform(guide, make_corpus()).theta.shape == (9, 3)
