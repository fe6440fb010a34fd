"""log_likelihood: every method of estimating log p(w_d), by name or as an object."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError
from torch_lntm.evaluation.likelihood.annealed import AIS
from torch_lntm.evaluation.likelihood.estimate import LikelihoodEstimate, LikelihoodMethod
from torch_lntm.evaluation.likelihood.importance import Importance
from torch_lntm.evaluation.likelihood.quadrature import Quadrature
from torch_lntm.guides import Guide
from torch_lntm.models import TopicModel

#: The methods by name; their fields are the options that :func:`log_likelihood` takes.
METHODS: dict[str, type[LikelihoodMethod]] = {
    method.name: method for method in (Importance, Quadrature, AIS)
}


def log_likelihood(
    model: TopicModel,
    corpus: Corpus,
    method: str | LikelihoodMethod = "importance",
    guide: Guide[Any] | None = None,
    *,
    seed: int = 0,
    max_docs: int = 256,
    progress: bool = False,
    **options: Any,
) -> LikelihoodEstimate:
    """Estimates log p(w_d) of every document, with its topic proportions integrated out.

    :class:`Importance` sampling draws around a guide's posterior. :class:`AIS`, annealed importance
    sampling, needs none that is near the true one. :class:`Quadrature` is exact to many
    digits, for 2 or 3 topics. All compute in float64, on the model's device.

    ``log_likelihood(model, corpus, "importance", num_samples=4000)`` and
    ``Importance(num_samples=4000).estimate(model, corpus)`` are the same.

    Args:
        model: The model, at its present parameters.
        corpus: Documents over the model's vocabulary, or a matrix of their counts.
        method: ``"importance"``, ``"quadrature"`` or ``"ais"``; or one of these methods as an
            object with its own settings.
        guide: Posterior to draw around, or to centre the grid on; see the methods.
        seed: Seed of the draws.
        max_docs: Documents whose posteriors are solved, or that are annealed, at once; annealing
            may take fewer, to bound memory.
        progress: Show a progress bar.
        **options: Settings of a method that is given by its name.

    Returns:
        The estimates, with their errors and diagnostics.

    Raises:
        ConfigError: A setting that cannot be used, or that belongs to another method; a corpus over
            another vocabulary.
        IncompatibleGuideError: The guide belongs to another model, or the model's prior does not
            offer what the method needs.
        NumericalError: A posterior that could not be computed; names documents.

    Warns:
        UnreliableEstimateWarning: Documents whose Pareto k̂ is above 0.7, whose quadrature error is
            above 0.001 nats, or whose chains have an effective sample size below 2 or never moved.
    """
    if guide is not None:
        options["guide"] = guide
    return make_method(method, options).estimate(
        model, corpus, seed=seed, max_docs=max_docs, progress=progress
    )


def make_method(method: str | LikelihoodMethod, options: dict[str, Any]) -> LikelihoodMethod:
    """A method as an object.

    Args:
        method: Its name, or the object.
        options: Settings of a method that is given by its name.

    Raises:
        ConfigError: No such method, an option of another, or a value that cannot be used.
    """
    if isinstance(method, LikelihoodMethod):
        if options:
            raise ConfigError(
                f"{', '.join(options)} given beside a method that is an object; give them to "
                f"{type(method).__name__}(...) instead"
            )
        return method
    if not isinstance(method, str) or method not in METHODS:
        raise ConfigError(f"method is {method!r}; expected one of {', '.join(METHODS)}")
    kind = METHODS[method]
    for name in options:
        owners = [m for m, other in METHODS.items() if name in _option_names(other)]
        if not owners:
            known = ", ".join(_option_names(kind))
            raise ConfigError(f"no method has an option {name!r}; expected some of {known}")
        if method not in owners:
            raise ConfigError(
                f"{name} is an option of method {' and '.join(owners)}; leave it out with "
                f"{method}, which has {', '.join(_option_names(kind))}"
            )
    return kind(**options)


def _option_names(kind: Any) -> list[str]:
    return [field.name for field in fields(kind)]
