"""The trees of errors and warnings, and the checks that every room makes."""

from __future__ import annotations

import operator
import warnings

import pytest

import torch_lntm as lntm
from torch_lntm import errors
from torch_lntm.errors import (
    ConfigError,
    CorpusError,
    CorpusWarning,
    import_extra,
    require,
    require_whole,
    warn,
)


def test_errors_form_one_tree_and_warnings_another():
    for name in errors.__all__:
        value = getattr(errors, name)
        if isinstance(value, type) and name.endswith("Error"):
            assert issubclass(value, errors.LNTMError)
        elif isinstance(value, type):
            assert issubclass(value, errors.LNTMWarning)
    assert issubclass(errors.LNTMWarning, UserWarning)


def test_the_error_for_a_small_setting_names_it():
    require(1, num_docs=1, max_docs=None, share=1.5)
    with pytest.raises(ConfigError, match="max_docs is 0; expected at least 1"):
        require(1, num_docs=1, max_docs=0)
    with pytest.raises(ConfigError, match="share is nan; expected at least 0"):
        require(0, share=float("nan"))
    with pytest.raises(ConfigError, match="num_docs is '3'; expected at least 1"):
        require(1, num_docs="3")


def test_the_error_for_a_missing_library_names_its_extra():
    assert import_extra("json", "viz", "this") is not None
    with pytest.raises(ConfigError, match=r"this needs nowhere, .*pip install 'torch-lntm\[viz\]'"):
        import_extra("nowhere.inside", "viz", "this")


def test_a_warning_points_at_the_caller_outside_the_package():
    code = compile("def inner():\n    warn('lost', CorpusWarning)\n", "inside.py", "exec")
    inside = {"__name__": "torch_lntm.corpus.reader", "warn": warn, "CorpusWarning": CorpusWarning}
    exec(code, inside)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        inside["inner"]()
    assert caught[0].filename == __file__
    assert caught[0].category is CorpusWarning


def test_numbers_beyond_int64_are_refused():
    require_whole(1, num_topics=2**63 - 1)
    with pytest.raises(ConfigError, match=r"num_topics is 9223372036854775808; expected .* below"):
        require_whole(1, num_topics=2**63)


@pytest.mark.parametrize("name", ["CTM", "ctm", "models.CTM", "models.LDA", "Corpuses"])
def test_the_error_for_a_misspelt_name_suggests_the_right_one(name):
    meant = {"Corpuses": "torch_lntm.Corpus", "models.LDA": "torch_lntm.models.lda"}
    meant = meant.get(name, "torch_lntm.models.ctm")
    module = lntm.models if name.startswith("models.") else lntm
    with pytest.raises(AttributeError, match=rf"; did you mean {meant}\?"):
        getattr(module, name.removeprefix("models."))
    assert not hasattr(lntm, "nothing_like_it")


@pytest.mark.parametrize(
    ("function", "option", "meant"),
    [
        ("models.ctm", "n_topics", "num_topics"),
        ("models.stm", "prevelence", "prevalence"),
        ("inference.MonteCarloEM", "epochs", "max_epochs"),
        ("inference.VariationalEM", "maxiter", "max_iterations"),
        ("inference.StepwiseEM", "chain", "chains"),
        ("guides.TaylorGuide", "tolerence", "tolerance"),
        ("CorrelatedTopicModel", "n_component", "n_components"),
        ("CorrelatedTopicModel", "n_topics", "n_components"),
        ("inference.theta_draws", "num_draw", "num_draws"),
        ("inference.transform", "estimat", "estimate"),
        ("effects.estimate", "draws", "num_draws"),
        ("select", "recipes", "recipe"),
        ("CorrelatedTopicModel", "num_topics", "n_components"),
        ("models.stm", "K", "num_topics"),
        ("CorrelatedTopicModel", "K", "n_components"),
        ("inference.DocumentHMC.run", "num_samples", "num_draws"),
        ("inference.MonteCarloEM", "chunksize", "batch_size"),
        ("Corpus.batches", "batch_size", "max_docs"),
        ("effects.estimate", "nsims", "num_draws"),
        ("inference.VariationalEM", "max_em_its", "max_iterations"),
        ("Corpus.from_texts", "min_fd", "min_df"),
        ("Corpus.from_texts", "text_field", "text"),
    ],
)
def test_the_error_for_an_unknown_option_suggests_the_right_one(function, option, meant):
    call = operator.attrgetter(function)(lntm)
    with pytest.raises(
        (TypeError, CorpusError), match=rf"takes no {option}; did you mean {meant}\?"
    ):
        call(["a"], **{option: 1})
