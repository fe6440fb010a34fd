"""Recipes, which choose a model, its guide and the engine that fits it by names and options.

A recipe names a registered model and a posterior. The posterior is a guide such as ``"taylor"``,
for variational EM, or a sampler such as ``"hmc"``, for Monte-Carlo EM. The command line, the
estimators and the studies all use these names, and the meaning of ``"auto"`` is decided only here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from torch_lntm.corpus import Corpus
from torch_lntm.corpus.readers import OF_FILES, OF_WORDS
from torch_lntm.errors import ConfigError, did_you_mean, require_one
from torch_lntm.guides import GUIDES, Guide, make_guide
from torch_lntm.guides.table import MAX_EPOCHS
from torch_lntm.inference import MonteCarloEM, VariationalEM
from torch_lntm.models import TopicModel
from torch_lntm.models.registry import CONSTRUCTORS, find_constructor
from torch_lntm.options import GUIDES as OF_GUIDES
from torch_lntm.options import MODELS, VARIATIONAL, fit_options

__all__ = ["Recipe"]

Engine = VariationalEM | MonteCarloEM

#: Engines that sample the posteriors, by the name of the sampler in a recipe.
SAMPLERS: dict[str, Callable[..., Any]] = {"hmc": MonteCarloEM}

#: Options that guides and engines both have. A recipe gives them to the engine.
_ENGINE_OPTIONS = ("tolerance", "max_iterations")

#: The name that leaves the choice to :meth:`Recipe.for_corpus`, and the posterior it chooses.
AUTO, CHOSEN = "auto", "hmc"
#: Limit on tokens times epochs of a fit by chains under ``"auto"``: about 10 minutes on a core with
#: 50 topics. Larger corpora get fewer epochs, at least ``MIN_EPOCHS``.
MAX_VISITS, MIN_EPOCHS = 400_000_000, 4
#: Largest pseudo-count of a word in a topic, if a recipe chooses it.
MAX_SMOOTHING = 0.05


class FitComponents(NamedTuple):
    """The parts of a fit: a new model, its guide and its engine.

    An engine that samples needs no guide, in which case this is the model's default one.
    """

    model: TopicModel
    guide: Guide[Any]
    engine: Engine


@dataclass(frozen=True)
class Recipe:
    """The names of a model and of the posterior to fit it by, and options of the fit.

    Args:
        model: Name of a registered constructor, such as ``"ctm"``.
        posterior: Name of a guide, such as ``"taylor"``, or of a sampler (``"hmc"``). With
            ``"auto"``, :meth:`for_corpus` chooses. Defaults to the model's default guide.
        options: Options of :meth:`make`, which :meth:`for_corpus` completes.
        reason: Why ``"auto"`` became this posterior, in a line for the user.

    Raises:
        ConfigError: The model or the posterior has an unknown name.

    Example:
        >>> recipe = lntm.recipes.Recipe("ctm", "auto").for_corpus(train, num_topics=10)
        >>> recipe.posterior, recipe.reason
        ('hmc', 'Monte-Carlo EM')
        >>> model, guide, engine = recipe.make(train, options={"num_topics": 10})
        >>> type(engine).__name__
        'MonteCarloEM'
    """

    model: str
    posterior: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict, compare=False)
    reason: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        find_constructor(self.model)
        require_one([None, *GUIDES, *SAMPLERS, AUTO], posterior=self.posterior)

    @classmethod
    def of(cls, model: str | None, posterior: str | None, options: Iterable[str]) -> Recipe:
        """The recipe of a model; it and its posterior depend on the options if they are not given.

        The model is ``"stm"`` with prevalence or content, and otherwise ``"ctm"``. The posterior is
        ``"auto"``, or the model's default guide if an option is one of variational EM alone.

        Args:
            model: Name of the model, or ``None``.
            posterior: Name of the posterior, or ``None``.
            options: Names of the options of the fit.
        """
        if model is None:
            model = "ctm" if {"prevalence", "content"}.isdisjoint(options) else "stm"
        groups = fit_options()
        variational = {name for heading in (*VARIATIONAL, *OF_GUIDES) for name in groups[heading]}
        if posterior is None and model in MODELS and variational.isdisjoint(options):
            posterior = AUTO
        return cls(model, posterior)

    @property
    def samples(self) -> bool:
        """Whether the engine samples the documents' posteriors."""
        return self.posterior in SAMPLERS

    def for_corpus(self, corpus: Corpus, num_topics: int) -> Recipe:
        """Choose the posterior and the options for a corpus.

        ======================= ======================================== ===========================
        chosen                  value                                    for
        ======================= ======================================== ===========================
        posterior ``"auto"``    ``"hmc"``, Monte-Carlo EM                all corpora
        ``max_epochs``          4e8 / tokens, at least 4                 ``"auto"`` and more than 9
                                                                         million tokens
        ``topic_smoothing``     the smaller of 0.05 and 5 % of a topic's models that default to 0.05
                                tokens for each word
        ======================= ======================================== ===========================

        Chains predicted better than variational EM on every corpus of 1,000 documents or more that
        we tested, and far better on short documents. There, approximate posteriors understate the
        uncertainty, so that the prior's variance shrinks and the topics become alike. On a large
        corpus, four epochs take less time than variational EM and predict about as well.

        Args:
            corpus: The training documents. A part knows the numbers of its whole corpus
                (:func:`~torch_lntm.inference.join_parts`).
            num_topics: Number of topics.

        Returns:
            The recipe with the choices.
        """
        # A topic may have fewer tokens than there are words, and pseudo-counts must not outweigh
        # them.
        num_tokens = corpus.whole.num_tokens
        share = num_tokens / (max(1, num_topics) * corpus.num_words)
        parameters = inspect.signature(find_constructor(self.model)).parameters
        takes = parameters.get("topic_smoothing")
        options: dict[str, Any] = {}
        if takes is not None and takes.default == MAX_SMOOTHING:
            options["topic_smoothing"] = MAX_SMOOTHING * min(1.0, share)
        if self.posterior != AUTO:
            return replace(self, options={**options, **self.options})
        reason = "Monte-Carlo EM"
        epochs = MAX_VISITS // max(1, num_tokens)
        if epochs < MAX_EPOCHS:
            options["max_epochs"] = epochs = max(MIN_EPOCHS, epochs)
            reason += f", by default {epochs} epochs at most, for {num_tokens:,} tokens"
        return Recipe(self.model, CHOSEN, {**options, **self.options}, reason)

    def make(
        self,
        num_words: int | Corpus,
        vocabulary: Sequence[str] | None = None,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
        options: Mapping[str, Any] | None = None,
        model_options: Mapping[str, Any] | None = None,
    ) -> FitComponents:
        """Make the model, its guide and the engine.

        Args:
            num_words: The training documents, or the size of the vocabulary V.
            vocabulary: The words, one for each column. Defaults to the words of the documents.
            seed: Seed of the model's initial values and of the engine.
            device: Device of the model.
            options: Arguments of the model's constructor, the guide and the engine, by name. Each
                goes to whichever part has an argument of that name.
            model_options: Further arguments of the model's constructor.

        Returns:
            The model, which is not fitted yet, its guide, and the engine to fit it.

        Raises:
            ConfigError: An option is unknown or has an invalid value, or the posterior is
                ``"auto"``.
            IncompatibleGuideError: The guide does not support the model.
        """
        if self.posterior == AUTO:
            raise ConfigError("posterior auto depends on the documents; use recipe.for_corpus")
        options, explicit = {**self.options, **(options or {})}, dict(model_options or {})
        constructor = find_constructor(self.model)
        takes = inspect.signature(constructor).parameters
        takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in takes.values())
        unknown = [name for name in explicit if name not in takes]
        if unknown and not takes_any:
            hint = did_you_mean(unknown[0], takes)
            raise ConfigError(f"the model {self.model} takes no {unknown[0]}{hint}")
        shared: dict[str, Any] = {"num_words": num_words, "seed": seed}
        shared |= {} if vocabulary is None else {"vocabulary": vocabulary}
        model = constructor(**taken(constructor, shared | options) | explicit)
        if model.vocabulary is None and vocabulary is not None:
            model.vocabulary = tuple(vocabulary)
        make_engine = SAMPLERS[str(self.posterior)] if self.samples else VariationalEM
        make_guide_of = type(guide_of(self.posterior, model.to(device)))
        for_engine = taken(make_engine, options)
        for_guide = taken(make_guide_of, options, excluded=_ENGINE_OPTIONS)
        for name in sorted(options.keys() - {*takes, *for_engine, *for_guide}):
            refuse_unknown([name])
            owners = ", ".join(_owners(name))
            given = " and posterior ".join(filter(None, (self.model, self.posterior)))
            raise ConfigError(f"{name} is an option of {owners}; leave it out with {given}")
        guide = make_guide_of(model, **for_guide)
        parts = (model,) if self.samples else (model, guide)
        return FitComponents(model, guide, make_engine(*parts, **for_engine | {"seed": seed}))


def guide_of(posterior: str | None, model: TopicModel, **settings: Any) -> Guide[Any]:
    """Guide of a recipe's posterior.

    Args:
        posterior: Name of the posterior in a recipe. A sampler has no guide, so for its name, as
            for ``None``, you get the model's default guide.
        model: The model.
        **settings: Settings of the guide, such as ``tolerance``.

    Raises:
        ConfigError: The posterior has an unknown name.
        IncompatibleGuideError: The guide does not support the model.
    """
    sampled = isinstance(posterior, str) and posterior in SAMPLERS
    return make_guide(None if sampled else posterior, model, **settings)


def taken(
    make: Callable[..., Any], options: Mapping[str, Any], excluded: Sequence[str] = ()
) -> dict[str, Any]:
    """The options that are parameters of a function or class."""
    takes = inspect.signature(make).parameters.keys() - excluded
    return {name: value for name, value in options.items() if name in takes}


def _owners(option: str) -> list[str]:
    """Names of the models, posteriors and engines that take an option."""
    owners = [name for name, make in makers().items() if taken(make, {option: None})]
    # Guides have settings of the same names.
    return ["variational EM"] if "variational EM" in owners else owners


def makers() -> dict[str, Callable[..., Any]]:
    """What makes the models, guides and engines, by name."""
    sampling = {f"posterior {name}": engine for name, engine in SAMPLERS.items()}
    return {**CONSTRUCTORS, **GUIDES, "variational EM": VariationalEM, **sampling}


def refuse_unknown(options: Iterable[str]) -> None:
    """Refuse options that no model, posterior or engine takes.

    Raises:
        ConfigError: An option is unknown. The message names a similar one.
    """
    for option in options:
        if not _owners(option):
            known = {n for make in makers().values() for n in inspect.signature(make).parameters}
            hint = did_you_mean(option, [*known, *OF_FILES, *OF_WORDS])
            raise ConfigError(f"no model, posterior or engine takes {option}{hint}")
