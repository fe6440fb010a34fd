"""Corpora with known topics, fits to these corpora, and comparisons of fits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from torch_lntm.corpus import Corpus, synthetic_topics
from torch_lntm.guides import Guide, make_guide
from torch_lntm.inference import (
    FitResult,
    MonteCarloEM,
    MonteCarloResult,
    VariationalEM,
    VariationalResult,
)
from torch_lntm.models import TopicModel, ctm, iftm, lda, lntm

#: Number of words, true topics, and true covariance of the logits. The first two topics are
#: correlated, and the third is independent.
NUM_WORDS = 30
TOPICS = synthetic_topics(3, NUM_WORDS, 0.2, seed=7)
COVARIANCE = torch.tensor([[1.5, 0.9, 0.0], [0.9, 1.5, 0.0], [0.0, 0.0, 1.5]])

#: Arguments of ``fit``. All other options belong to the engine.
_OF_FIT = ("checkpoint", "checkpoint_seconds")
_OF_MODEL = ("num_topics", "dtype", "anchored")


def make_corpus(num_docs: int = 30, length: int = 40, empty: tuple[int, ...] = ()) -> Corpus:
    """Documents of 1 to 2 ``length`` tokens. Documents at the positions ``empty`` are empty."""
    truth = ctm(3, NUM_WORDS, covariance=COVARIANCE, topics=TOPICS)
    lengths = torch.randint(1, 2 * length, (num_docs,), generator=torch.Generator().manual_seed(0))
    lengths[list(empty)] = 0
    return truth.generate(lengths, seed=1)[0]


def new_model(family: str, num_topics: int, num_words: int, **options: Any) -> TopicModel:
    """A model of a family of ``support.pairs`` with its default parameters."""
    if family.startswith("iftm"):
        source: Any = "gaussian" if "gaussian" in family else "laplace"
        return iftm(num_topics, num_words, 2, source=source, **options)
    return {"ctm": ctm, "lda": lda, "lntm": lntm}[family](num_topics, num_words, **options)


def fit(
    corpus: Corpus,
    posterior: str = "taylor",
    family: str = "ctm",
    device: torch.device | str = "cpu",
    **options: Any,
) -> tuple[TopicModel, VariationalResult]:
    """A fit of a new model by variational EM. ``options`` go to the model, the engine and fit."""
    of_fit = {k: options.pop(k) for k in _OF_FIT if k in options}
    of_model = {k: options.pop(k) for k in _OF_MODEL if k in options}
    of_model = {"num_topics": 3, "num_words": corpus.num_words, "dtype": "float64", **of_model}
    model = new_model(family, **of_model).to(device)
    guide = make_guide(posterior, model, tolerance=1e-8, max_iterations=200)
    return model, VariationalEM(model, guide, progress=False, **options).fit(corpus, **of_fit)


def fit_monte_carlo(model: TopicModel, corpus: Corpus, **options: Any) -> MonteCarloResult:
    """A fit of a model by Monte-Carlo EM. ``options`` go to the engine and to ``fit``."""
    of_fit = {k: options.pop(k) for k in _OF_FIT if k in options}
    return MonteCarloEM(model, progress=False, **options).fit(corpus, **of_fit)


def break_at(guide: Guide[Any], call: int, error: type[BaseException] = KeyboardInterrupt) -> None:
    """Make a guide raise at one call of its solver. Calls count from 1."""
    solve, calls = guide._solve, itertools.count(1)

    def broken(*args: Any, **settings: Any) -> Any:
        if next(calls) == call:
            raise error
        return solve(*args, **settings)

    guide._solve = broken  # type: ignore[method-assign]


def parameters(model: TopicModel) -> list[Tensor]:
    """The topics and the prior's parameters and buffers."""
    state = model.state_dict()
    return [model.topics.probs, *(state[name] for name in sorted(state) if "prior" in name)]


def assert_same(a: TopicModel, b: TopicModel, **tolerances: float) -> None:
    """Assert equal parameters. Without tolerances they must be equal to the last bit."""
    for x, y in zip(parameters(a), parameters(b), strict=True):
        torch.testing.assert_close(x, y, **(tolerances or {"rtol": 0.0, "atol": 0.0}))


def without_times(result: FitResult) -> Iterator[dict[str, Any]]:
    """Records of a fit, without their times."""
    for record in result.history:
        yield {name: value for name, value in record.items() if name != "seconds"}


def matched_error(model: TopicModel, truth: Tensor = TOPICS) -> float:
    """Mean total variation between a model's topics and the true topics, by the best matching."""
    found = model.topics.probs.detach().double()
    distance = 0.5 * (found[:, None] - truth.double()[None]).abs().sum(-1)
    orders = itertools.permutations(range(len(truth)))
    return min(float(distance[range(len(truth)), order].mean()) for order in orders)
