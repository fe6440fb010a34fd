"""Options read from sources are those of the functions themselves."""

from __future__ import annotations

import inspect
from importlib import import_module

import pytest

from torch_lntm.options import CHOSEN, GUIDES, MODELS, SAMPLED, VARIATIONAL, fit_options, options_of

FUNCTIONS = {
    *("corpus:read_corpus", "reports.page:render_page"),
    *("effects:estimate", "selection:select", "inference:transform", "reports:topic_stability"),
    *("reports:topic_tree", "reports:summarise_sources", "evaluation:document_completion"),
    *MODELS.values(),
    *(VARIATIONAL | GUIDES | SAMPLED).values(),
}


@pytest.mark.parametrize("function", sorted(FUNCTIONS))
def test_options_have_the_defaults_and_the_help_of_the_function(function):
    module, _, name = function.partition(":")
    found = getattr(import_module(f"torch_lntm.{module}"), name)
    parameters, options = inspect.signature(found).parameters, options_of(function)
    assert options
    for name, option in options.items():
        default = parameters[name].default
        expected = None if default is inspect.Parameter.empty else default
        if name == "dtype":
            expected = str(default).removeprefix("torch.")
        if name not in CHOSEN:
            assert option.default == expected, name
        assert option.help


def test_an_option_of_a_fit_stands_under_one_heading():
    names = [name for group in fit_options().values() for name in group]
    assert len(names) == len(set(names))
    assert {"anchored", "num_sources", "restarts", "num_chains", "start"} <= set(names)
    assert fit_options()["model iftm"]["source"].kinds == (("gaussian", "laplace"),)
    assert "For ctm, stm." in fit_options()["model"]["anchored"].help
