"""Common parts of the studies of real texts: corpora, fits, and lines of figures."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from studies.measure import corpus_file
from torch_lntm.corpus import Corpus, read_corpus
from torch_lntm.errors import ConfigError
from torch_lntm.guides import Guide
from torch_lntm.models import TopicModel
from torch_lntm.plotting.style import NEGATIVE, NEUTRAL, POSITIVE
from torch_lntm.recipes import Recipe

#: Posteriors of a correlated topic model: the name and the line of each in every figure.
POSTERIORS: dict[str, dict[str, Any]] = {
    "taylor": {"label": "Taylor", "color": NEGATIVE, "marker": "o"},
    "laplace": {"label": "Laplace", "color": "#5aae61", "marker": "s"},
    "blei-lafferty": {"label": "Blei–Lafferty", "color": POSITIVE, "marker": "^"},
    "khan-bouchard": {"label": "Khan–Bouchard", "color": "#762a83", "marker": "D"},
    "lda": {"label": "LDA", "color": NEUTRAL, "marker": "v"},
}
#: Models of *Putthividhya et al. 2009*: names and lines.
MODELS: dict[str, dict[str, Any]] = {
    "iftm-g": {"label": "IFTM-G", "color": POSITIVE, "marker": "^"},
    "iftm-l": {"label": "IFTM-L", "color": "#762a83", "marker": "D"},
    "ctm": {"label": "CTM", "color": NEGATIVE, "marker": "o"},
    "ctm-bl": {
        "label": "CTM, no prior (BL)",
        "color": NEGATIVE,
        "marker": "o",
        "linestyle": "--",
        "markerfacecolor": "white",
    },
    "lda": POSTERIORS["lda"],
}
#: Model, posterior and options of each name. The paper's CTM has no prior of its covariance, and
#: the posterior of Blei & Lafferty.
RECIPES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "iftm-g": ("iftm", "factor", {"source": "gaussian"}),
    "iftm-l": ("iftm", "factor", {"source": "laplace"}),
    "ctm": ("ctm", "taylor", {}),
    "ctm-bl": ("ctm", "blei-lafferty", {"pseudo_documents": 0.0}),
    "lda": ("lda", "vb", {}),
    **{name: ("ctm", name, {}) for name in POSTERIORS if name != "lda"},
}


@dataclass(frozen=True)
class Fitted:
    """A fitted model.

    Attributes:
        model: The model.
        guide: Posterior of the fit.
        seconds: Processor time of the fit.
        iterations: EM iterations after the stochastic phases.
        bound: The objective at the end, nats per token.
    """

    model: TopicModel
    guide: Guide[Any]
    seconds: float
    iterations: int
    bound: float


def fit(
    name: str, corpus: Corpus, num_topics: int, seed: int, options: Mapping[str, Any] | None = None
) -> Fitted:
    """Fit a model with the defaults, and the default smoothing of topics for the corpus.

    Args:
        name: Key of :data:`RECIPES`.
        corpus: The training documents.
        num_topics: Topics.
        seed: Seed of the fit.
        options: Further options of the model or of variational EM.
    """
    kind, posterior, of_model = RECIPES[name]
    recipe = Recipe(kind, posterior)
    made = recipe.make(
        corpus.num_words,
        corpus.vocabulary,
        seed=seed,
        options={"progress": False, **(options or {})},
        model_options={
            "num_topics": num_topics,
            **recipe.for_corpus(corpus, num_topics).options,
            **of_model,
        },
    )
    began = time.process_time()
    history = made.engine.fit(corpus).history
    seconds = time.process_time() - began
    steps = [record for record in history if record["phase"] == "em"]
    bound = float(steps[-1]["objective"])
    return Fitted(made.model, made.guide, seconds, len(steps) - 1, bound)


def read_parts(name: str, num_docs: int | None = None) -> tuple[Corpus, Corpus]:
    """Training and test documents of a corpus, by its split file.

    Args:
        name: Name of a corpus in the folder of data, or a path. A file ``NAME.split.txt``
            beside it has a line ``train`` or ``test`` for each document.
        num_docs: Number of documents of each part, from the first on; None for all.

    Raises:
        ConfigError: The corpus or its split does not exist.
    """
    file = corpus_file(name)
    split = file.with_suffix(".split.txt")
    if not split.exists():
        raise ConfigError(
            f"there is no split {split}; expected a line 'train' or 'test' a document"
        )
    corpus, parts = read_corpus(file), np.array(split.read_text(encoding="utf-8").split())
    if len(parts) != corpus.num_docs:
        raise ConfigError(f"{split} has {len(parts)} lines; expected {corpus.num_docs}")
    train, test = (corpus[np.flatnonzero(parts == part)[:num_docs]] for part in ("train", "test"))
    return train, test


def read_labelled(name: str) -> Corpus:
    """A corpus of documents with labels.

    Raises:
        ConfigError: The corpus does not exist, or has no labels.
    """
    corpus = read_corpus(corpus_file(name))
    if corpus.labels is None:
        raise ConfigError(f"the corpus {name} has no labels; expected a file {name}.labels.txt")
    return corpus


def used_words(corpus: Corpus) -> Corpus:
    """The same documents over their own words."""
    if corpus.vocabulary is None:
        return corpus
    occurs = corpus.word_totals > 0
    words = [word for word, there in zip(corpus.vocabulary, occurs, strict=True) if there]
    return corpus.with_vocabulary(words)
