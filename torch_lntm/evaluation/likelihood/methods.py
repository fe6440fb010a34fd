"""``log_likelihood``, which estimates log p(w_d) by a method given by name or as an object."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError
from torch_lntm.evaluation.likelihood.annealed import AIS
from torch_lntm.evaluation.likelihood.estimate import LikelihoodEstimate, LikelihoodMethod
from torch_lntm.evaluation.likelihood.importance import Importance
from torch_lntm.models import TopicModel

#: Methods by name. Their fields are options of :func:`log_likelihood`.
METHODS: dict[str, type[LikelihoodMethod]] = {method.name: method for method in (Importance, AIS)}


def log_likelihood(
    model: TopicModel,
    corpus: Corpus,
    method: str | LikelihoodMethod = "importance",
    *,
    seed: int = 0,
    max_docs: int = 256,
    progress: bool = True,
    **options: Any,
) -> LikelihoodEstimate:
    """Log likelihood log p(w_d) of every document, with topic proportions integrated out.

    The probability of a document is an integral over its topic proportions. Both methods estimate
    it by weighted draws, in float64 on the model's device. ``"importance"`` (:class:`Importance`)
    draws around a guide's posterior. It is fast but only as good as the guide, which the Pareto k̂
    of each document reveals. ``"ais"`` (:class:`AIS`) starts there and moves its draws to the
    posterior by annealed importance sampling. It is slower, but remains reliable where guides are
    poor, as they are for short documents and for fits by chains.

    Give a method's settings by name, as in ``log_likelihood(model, test, num_draws=4000)``, or in
    an object, as in ``log_likelihood(model, test, Importance(num_draws=4000))``.

    Args:
        model: The model, at its present parameters.
        corpus: Documents over the model's vocabulary, or a matrix of counts.
        method: ``"importance"`` or ``"ais"``, or a method object with settings. Defaults to
            ``"importance"``.
        seed: Seed of the draws.
        max_docs: Documents solved or annealed at once. Annealing takes fewer documents if memory
            requires.
        progress: Show a progress bar.
        **options: Settings of a method that is given by name, such as ``guide`` and ``num_draws``
            of :class:`Importance` or ``num_temperatures`` of :class:`AIS`.

    Returns:
        The estimates, with errors and diagnostics.

    Raises:
        ConfigError: A setting is out of range or belongs to another method, or the corpus has
            another vocabulary.
        IncompatibleGuideError: The guide belongs to another model, or the method does not support
            the model's prior.
        NumericalError: A posterior failed; names documents.

    Warns:
        UnreliableEstimateWarning: A document has a Pareto k̂ above 0.7, an effective sample size
            below 2 chains, or a chain that never moved.

    Example:
        >>> estimate = lntm.evaluation.log_likelihood(model, test[:3], "ais")
        >>> estimate.num_docs, estimate.perplexity > 100
        (3, True)
    """
    if isinstance(method, LikelihoodMethod):
        if options:
            raise ConfigError(
                f"{', '.join(options)} given beside a method that is an object; give them to "
                f"{type(method).__name__}(...) instead"
            )
        made = method
    elif method in METHODS:
        kind: Any = METHODS[method]
        known = [field.name for field in fields(kind)]
        for name in options.keys() - set(known):
            raise ConfigError(
                f"{name} is no option of method {method}; expected some of {', '.join(known)}"
            )
        made = kind(**options)
    else:
        raise ConfigError(f"method is {method!r}; expected one of {', '.join(METHODS)}")
    return made.estimate(model, corpus, seed=seed, max_docs=max_docs, progress=progress)
