"""Stability: how well the same topics come back from other seeds and resampled documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError, require_whole
from torch_lntm.evaluation import align_topics
from torch_lntm.guides import Guide
from torch_lntm.inference import FitResult, VariationalEM
from torch_lntm.inference.interruption import propagate_interrupts
from torch_lntm.io import Run
from torch_lntm.models import TopicModel
from torch_lntm.models.model import require_model
from torch_lntm.plotting.style import topic_labels
from torch_lntm.progress import tqdm
from torch_lntm.recipes import AUTO, SAMPLERS, Recipe, taken

Array = NDArray[np.float64]

#: Settings of a constructor that a new fit replaces.
_REPLACED = ("num_words", "vocabulary", "seed", "topics")


def topic_stability(
    fit: TopicModel | FitResult | Run,
    corpus: Corpus,
    num_fits: int = 5,
    *,
    posterior: str | None = None,
    options: Mapping[str, Any] | None = None,
    top_n: int = 10,
    seed: int = 0,
    progress: bool = True,
) -> pd.DataFrame:
    """Measures how well new fits recover the topics of a model.

    It fits ``num_fits`` models to the same documents from other seeds, and as many to documents
    drawn with replacement. The topics of each fit are then paired with those of the model
    (:func:`~torch_lntm.evaluation.align_topics`).

    Other seeds show the effect of random orders and draws, but hardly that of the initial topics,
    because the anchor words are the same for every seed. Resampled documents show both, and in
    addition how much depends on the sample of documents.

    Args:
        fit: The fitted model, the result of its fit, or its run.
        corpus: The documents of the fit.
        num_fits: Number of fits of each kind. The time is that of ``2 * num_fits`` fits.
        posterior: Posterior of the new fits, as in :class:`~torch_lntm.recipes.Recipe`. Defaults
            to the posterior of the fit, and to ``"auto"`` for a model alone.
        options: Options of the model, guide and engine; see :meth:`Recipe.make`. Defaults to the
            settings of the model, and to the options of a run.
        top_n: Number of top words of a topic for common words.
        seed: Seed of the resampled documents, and the first seed of the new fits.
        progress: Show a progress bar on standard error.

    Returns:
        A row for each topic. ``by_seed`` and ``by_resample`` are its mean similarities to its
        partners in fits from other seeds and to resampled documents, where a similarity is the
        Bhattacharyya coefficient of word distributions: 0 without a common word, and 1 for equal
        topics. ``nearest`` is the similarity to the most similar other topic of the model. A fit
        has found the topic if the partner is more similar than that, and ``found_by_seed`` and
        ``found_by_resample`` are the shares of fits that did. ``words`` is the mean number of the
        topic's top words among those of its partners.

    Raises:
        ConfigError: No registered constructor made the model, an option is refused, or the corpus
            has other words.

    Example:
        >>> options = {"max_iterations": 1, "stepwise_epochs": 1, "start_epochs": 1}
        >>> stability = lntm.reports.topic_stability(
        ...     model, train, 1, posterior="taylor", options=options
        ... )
        >>> len(stability), bool(stability["by_seed"].between(0, 1.001).all())
        (10, True)
    """
    require_whole(1, num_fits=num_fits, top_n=top_n)
    require_whole(0, seed=seed)
    model, own_posterior, own_options = _contents_of(fit)
    corpus, call = model.encode(corpus), model.construction
    if call is None:
        raise ConfigError(
            "no registered constructor made this model, so it cannot be fitted again; register the "
            "function that makes it by lntm.models.register"
        )
    settings = {name: x for name, x in call.settings.items() if name not in _REPLACED}
    recipe = Recipe(call.name, posterior or own_posterior).for_corpus(corpus, model.num_topics)
    engine_of = SAMPLERS.get(str(recipe.posterior), VariationalEM)
    choices = taken(engine_of, own_options, excluded=("model", "seed"))
    choices |= {"progress": False, **(options or {})}
    generator = np.random.default_rng(seed)
    draws = [generator.integers(len(corpus), size=len(corpus)) for _ in range(num_fits)]
    documents = [*[corpus] * num_fits, *(corpus[np.sort(rows)] for rows in draws)]
    first_seed = call.settings.get("seed", 0)
    seeds = [s for s in range(seed, seed + 2 * num_fits + 1) if s != first_seed]
    similarity, words, top = [], [], _top_words(model, top_n)
    fits = tqdm(documents, desc="fits", disable=not progress)
    for part, own_seed in zip(fits, seeds, strict=False):
        twin, _, engine = recipe.make(
            corpus.num_words,
            model.vocabulary,
            seed=own_seed,
            device=model.device,
            options={k: v for k, v in choices.items() if k not in settings},
            model_options=settings,
        )
        with propagate_interrupts():
            engine.fit(part)
        alignment = align_topics(model, twin)
        similarity.append(alignment.similarity)
        others = _top_words(twin, top_n)
        words.append([len(top[k] & others[j]) for k, j in enumerate(alignment.partner.tolist())])
    probs = np.sqrt(model.topics.mean_probs.detach().double().cpu().numpy())
    between = probs @ probs.T
    np.fill_diagonal(between, 0.0)
    nearest = between.max(1)
    found = pd.DataFrame({"topic": range(model.num_topics), "name": topic_labels(model)})
    for kind, chosen in (("seed", similarity[:num_fits]), ("resample", similarity[num_fits:])):
        found[f"by_{kind}"] = np.mean(chosen, axis=0)
        found[f"found_by_{kind}"] = np.mean(np.array(chosen) > nearest, axis=0)
    return found.assign(nearest=nearest, words=np.mean(words, axis=0))


def _contents_of(
    fit: TopicModel | FitResult | Run,
) -> tuple[TopicModel, str | None, dict[str, Any]]:
    """Model, posterior and options of a fit."""
    if isinstance(fit, Run):
        given = {name: x for name, x in fit.config.items() if x is not None}
        return fit.model, fit.config.get("posterior"), given
    if isinstance(fit, FitResult):
        source = fit.source
        return source.model, source.name if isinstance(source, Guide) else "hmc", {}
    require_model(fit)
    return fit, AUTO, {}


def _top_words(model: TopicModel, number: int) -> list[set[int]]:
    return [set(row) for row in model.topics.top_words(number)[0].tolist()]
