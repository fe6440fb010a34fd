"""Recipes: a model, its guide and the engine that fits it, by name and with flat options.

A recipe has two names. One is the model's, as it is registered. The other is the posterior's: the
name of a guide, whose posterior variational EM solves, or of an engine that needs none, such as
``"hmc"``, Monte-Carlo EM. The command line, estimators and studies all choose by these names.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, NamedTuple

import torch

from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError
from torch_lntm.guides import GUIDES, Guide, make_guide
from torch_lntm.inference import MonteCarloEM, VariationalEM
from torch_lntm.inference.em.monte_carlo import MAX_EPOCHS
from torch_lntm.models import CONSTRUCTORS, TopicModel, find_constructor

Engine = VariationalEM | MonteCarloEM

#: Engines that a recipe names in the place of a posterior: they sample it instead.
SAMPLERS: dict[str, Callable[..., Any]] = {"hmc": MonteCarloEM}

#: Arguments of guides that mean the engine's where a recipe is given them.
_ENGINES_OWN = ("tolerance", "max_iterations")


class FitComponents(NamedTuple):
    """What a recipe makes.

    Attributes:
        model: The model, new and not fitted.
        guide: The guide of its documents' posteriors; of a sampler's recipe the model's default.
        engine: The engine that fits the model.
    """

    model: TopicModel
    guide: Guide[Any]
    engine: Engine


#: The posterior that :meth:`Recipe.for_corpus` replaces by the one that suits the documents.
AUTO = "auto"
#: Tokens times epochs up to which chains go unasked, some ten minutes of a core with 50 topics, and
#: the fewest epochs at most of corpora for which these are few.
MAX_VISITS, MIN_EPOCHS = 400_000_000, 4
#: Documents times topics up to which chains are taken unasked: 35 bytes of memory for each, of
#: which variational EM needs a fifth.
MAX_CHAIN_NUMBERS = 2**26
#: The most pseudo-counts of a word in a topic that a recipe chooses.
MAX_SMOOTHING = 0.05


class ResolvedRecipe(NamedTuple):
    """What a recipe becomes for a corpus.

    Attributes:
        recipe: The recipe, with a posterior that is not ``"auto"``.
        options: What suits the corpus of the options of :meth:`Recipe.make`: ``topic_smoothing``,
            but for models that have none, or a default of their own, and ``max_epochs`` where
            there are fewer than usual.
        reason: Why, in a line for the user; None where nothing was to be chosen.
    """

    recipe: Recipe
    options: dict[str, Any]
    reason: str | None


@dataclass(frozen=True)
class Recipe:
    """How to fit a model: the names of the model and of the posterior.

    Args:
        model: Name of a registered constructor, such as ``"ctm"``.
        posterior: Name of a guide, such as ``"taylor"``, or of a sampler, ``"hmc"``; None for the
            model's default guide; ``"auto"`` for what suits the documents, see :meth:`for_corpus`.

    Raises:
        ConfigError: There is no model or posterior of that name.
    """

    model: str
    posterior: str | None = None

    def __post_init__(self) -> None:
        find_constructor(self.model)
        known = [*GUIDES, *SAMPLERS, AUTO]
        if self.posterior is not None and self.posterior not in known:
            raise ConfigError(f"posterior {self.posterior!r}; expected one of {', '.join(known)}")

    @property
    def samples(self) -> bool:
        """Whether the engine samples the documents' posteriors."""
        return self.posterior in SAMPLERS

    def for_corpus(self, corpus: Corpus, num_topics: int) -> ResolvedRecipe:
        """The recipe with the posterior and the options that suit the documents.

        Chains predict better than variational EM on every corpus of a thousand documents or more
        that was tried, and where documents are short by far: approximate posteriors leave out too
        much of what is not known of these, so that the prior shrinks, and with it the topics'
        differences (``docs/decisions.md``).
        Of more than 7 million tokens they take fewer epochs at most, down to four, which take about
        as long as variational EM and still predict better on most. What is kept of the chains
        takes five times the memory, so that millions of documents are left to variational EM:
        more than 67 million documents times topics.

        Args:
            corpus: The training documents.
            num_topics: Number of topics.
        """
        # Where topics have fewer tokens than words, pseudo-counts must not outweigh the tokens.
        share = corpus.num_tokens / (max(1, num_topics) * corpus.num_words)
        takes = _parameters(find_constructor(self.model)).get("topic_smoothing")
        options: dict[str, Any] = {}
        if takes is not None and takes.default == MAX_SMOOTHING:
            options["topic_smoothing"] = MAX_SMOOTHING * min(1.0, share)
        if self.posterior != AUTO:
            return ResolvedRecipe(self, options, None)
        num_docs = len(corpus)
        if num_docs * num_topics > MAX_CHAIN_NUMBERS:
            reason = (
                f"variational EM, since chains of {num_docs:,} documents would take much memory"
            )
            return ResolvedRecipe(Recipe(self.model), options, reason)
        reason = "Monte-Carlo EM"
        epochs = MAX_VISITS // max(1, corpus.num_tokens)
        if epochs < MAX_EPOCHS:
            options["max_epochs"] = epochs = max(MIN_EPOCHS, epochs)
            reason += f", by default {epochs} epochs at most, for {corpus.num_tokens:,} tokens"
        return ResolvedRecipe(Recipe(self.model, "hmc"), options, reason)

    def make(
        self,
        num_words: int,
        vocabulary: Sequence[str] | None = None,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
        options: Mapping[str, Any] | None = None,
        model_options: Mapping[str, Any] | None = None,
    ) -> FitComponents:
        """Make the model, its guide and the engine.

        Args:
            num_words: Size of the vocabulary V.
            vocabulary: The words, one per column.
            seed: Seed of the model's initial values and of the engine.
            device: Where the model goes.
            options: Arguments of the model's constructor, the guide and the engine, by name. Each
                goes to the one of the three that takes it.
            model_options: Further arguments of the model's constructor.

        Raises:
            ConfigError: An option that none of the three takes, or a value that cannot be used.
            IncompatibleGuideError: The posterior is not one of this model.
        """
        given = dict(options or {})
        for_model = _taken(self.model, CONSTRUCTORS, given) | dict(model_options or {})
        if self.posterior == AUTO:
            raise ConfigError(
                "posterior auto depends on the documents; take recipe.for_corpus(corpus, "
                "num_topics).recipe"
            )
        sampler = f"posterior {self.posterior}"
        engines = {f"posterior {name}": engine for name, engine in SAMPLERS.items()}
        engines["variational EM"] = VariationalEM
        for_engine = _taken(sampler if self.samples else "variational EM", engines, given)
        for_engine["seed"] = seed

        constructor = find_constructor(self.model)
        shared = {"num_words": num_words, "seed": seed, "vocabulary": vocabulary}
        takes = _parameters(constructor)
        unknown = [name for name in for_model if name not in takes]
        if unknown and not _takes_any(constructor):
            hint = "".join(f"; did you mean {n}?" for n in get_close_matches(unknown[0], takes, 1))
            raise ConfigError(f"the model {self.model} takes no {unknown[0]}{hint}")
        shared = {name: value for name, value in shared.items() if name in takes}
        model = constructor(**{**shared, **for_model})
        if model.vocabulary is None and vocabulary is not None:
            model.vocabulary = tuple(vocabulary)
        model.to(device)

        guide_class = type(guide_of(self.posterior, model))
        for_guide = _taken(guide_class.name, GUIDES, given, leave=_ENGINES_OWN)
        if given:
            raise ConfigError(f"no model, posterior or engine takes {', '.join(given)}")
        guide = guide_class(model, **for_guide)
        if self.samples:
            return FitComponents(model, guide, SAMPLERS[str(self.posterior)](model, **for_engine))
        return FitComponents(model, guide, VariationalEM(model, guide, **for_engine))


def find_device(name: str) -> torch.device:
    """The device of a name.

    Args:
        name: ``"auto"`` for a CUDA device if there is one, else the CPU; or a name of torch's, such
            as ``"cpu"`` or ``"cuda:1"``.

    Raises:
        ConfigError: There is no such device.
    """
    found = torch.cuda.is_available()
    if name == "auto":
        return torch.device("cuda" if found else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"device {name!r}; expected auto, cpu or cuda") from error
    if device.type == "cuda" and not found:
        raise ConfigError(f"device {name}: torch finds no CUDA device here; use auto or cpu")
    return device


def guide_of(posterior: str | None, model: TopicModel, **settings: Any) -> Guide[Any]:
    """The guide of a recipe's posterior: of a sampler's or of none the model's default.

    Args:
        posterior: The posterior's name in a recipe, or None.
        model: The model.
        **settings: The guide's own, such as ``tolerance``.

    Raises:
        ConfigError: There is no posterior of that name.
        IncompatibleGuideError: The posterior is not one of this model.
    """
    sampled = isinstance(posterior, str) and posterior in SAMPLERS
    return make_guide(None if sampled else posterior, model, **settings)


def _taken(
    chosen: str,
    makers: Mapping[str, Callable[..., Any]],
    options: dict[str, Any],
    leave: Sequence[str] = (),
) -> dict[str, Any]:
    """Take those options out that are arguments of one maker, and refuse those of others only.

    Args:
        chosen: The maker's name.
        makers: All makers of its kind, by the names that a user knows.
        options: The options; those taken are removed.
        leave: Arguments that are not the makers' to take.
    """
    takers = {name: _parameters(make) for name, make in makers.items()}
    taken = {}
    for option in [name for name in options if name not in leave]:
        names = [name for name in takers if option in takers[name]]
        if chosen in names:
            taken[option] = options.pop(option)
        elif names:
            those = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
            raise ConfigError(
                f"{option} is an option of {those}; leave it out with {chosen}, or take {names[0]}"
            )
    return taken


def _parameters(make: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The arguments that a maker takes by name."""
    return dict(inspect.signature(make).parameters)


def _takes_any(make: Callable[..., Any]) -> bool:
    kinds = {parameter.kind for parameter in _parameters(make).values()}
    return inspect.Parameter.VAR_KEYWORD in kinds
