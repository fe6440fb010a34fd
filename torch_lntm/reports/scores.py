"""Scores of a model, each with method, unit and standard error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError
from torch_lntm.evaluation import CompletionResult, LikelihoodEstimate, coherence, topic_diversity
from torch_lntm.evaluation.completion.result import ExactCompletion
from torch_lntm.files.writing import as_json, atomic_write
from torch_lntm.frames import Rows
from torch_lntm.io.models import read_json
from torch_lntm.models import TopicModel

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Score:
    """A score of a model, with unit, method and standard error.

    Attributes:
        metric: Name of the score.
        value: Value of the score.
        standard_error: Standard error over documents, or over topics for a mean over topics; None
            if unknown.
        unit: Unit of the value.
        method: Method of the estimate.
        documents: Number of documents scored.
        tokens: Number of tokens scored.
    """

    metric: str
    value: float
    standard_error: float | None
    unit: str
    method: str
    documents: int | None = None
    tokens: int | None = None

    def frame(self) -> pd.DataFrame:
        """The score as a table of one row; ``frames.Rows(scores).frame()`` has several rows."""
        return Rows([self]).frame()


def completion_scores(*results: CompletionResult) -> Rows[Score]:
    """Perplexities of results of document completion."""
    scores: Rows[Score] = Rows()
    for result in results:
        method = result.method
        if result.observed_fraction is not None:
            method += f"; {result.observed_fraction:.0%} of tokens observed, seed {result.seed}"
        if isinstance(result, ExactCompletion):
            method += f"; simulation error {result.simulation_error:.2g} nats per token"
        numbers = (
            result.perplexity,
            result.perplexity_standard_error,
            "per held-out token",
            method,
        )
        counts = (result.num_docs, int(result.held_out_tokens.sum()))
        scores.append(Score("completion perplexity", *numbers, *counts))
    return scores


def likelihood_scores(estimate: LikelihoodEstimate) -> Rows[Score]:
    """Perplexity and log likelihood per token of whole documents."""
    method_and_counts = (estimate.description, estimate.num_docs, int(estimate.lengths.sum()))
    perplexity = (estimate.perplexity, estimate.perplexity_standard_error, "per token")
    nats = (estimate.nats_per_token, estimate.nats_per_token_standard_error, "nats per token")
    return Rows(
        [
            Score("perplexity", *perplexity, *method_and_counts),
            Score("log likelihood", *nats, *method_and_counts),
        ]
    )


def coherence_scores(model: TopicModel, corpus: Corpus, top_n: int = 10) -> Rows[Score]:
    """Mean coherence of the topics by NPMI and UMass, with standard errors over topics."""
    scores: Rows[Score] = Rows()
    measures: dict[Literal["npmi", "umass"], str] = {"npmi": "NPMI", "umass": "UMass"}
    words = model.topics.top_words(top_n)[0].tolist()
    for measure, name in measures.items():
        values = coherence(words, corpus, measure, top_n)
        numbers = (float(values.mean()), float(values.std() / math.sqrt(len(values))))
        about = ("mean over topics", f"top {top_n} words, together in documents")
        counts = (corpus.num_docs, corpus.num_tokens)
        scores.append(Score(f"coherence {name}", *numbers, *about, *counts))
    return scores


def diversity_score(model: TopicModel, top_n: int = 10) -> Score:
    """Share of distinct words among the topics' top words."""
    value = topic_diversity(model.topics.top_words(top_n)[0].tolist(), top_n)
    return Score("topic diversity", value, None, "share of distinct words", f"top {top_n} words")


def score_records(scores: Sequence[Score]) -> list[dict[str, Any]]:
    """Scores as records for JSON; an infinite or NaN standard error becomes None."""
    records = [asdict(score) for score in scores]
    for record in records:
        if not math.isfinite(record["standard_error"] or 0.0):
            record["standard_error"] = None
    return records


def write_scores(path: str | Path, scores: Sequence[Score]) -> None:
    """Write scores as a JSON list of objects; see :func:`score_records`.

    Args:
        path: The file.
        scores: The scores.

    Raises:
        ConfigError: The file cannot be written.
    """
    with atomic_write(Path(path)) as file:
        file.write(as_json(score_records(scores)))


def read_scores(path: str | Path) -> list[Score]:
    """Read a file of :func:`write_scores`.

    Args:
        path: The file.

    Raises:
        ConfigError: The file is missing or damaged, or has other contents.
    """
    path = Path(path)
    try:
        return [_checked(Score(**record)) for record in read_json(path, list)]
    except (TypeError, OverflowError) as error:
        raise ConfigError(f"{path}: not a list of scores ({error})") from error


def _checked(score: Score) -> Score:
    """A score from a file, whose values are of the declared types.

    Raises:
        TypeError: A value is of another type.
        OverflowError: A number is too large.
    """
    texts = (score.metric, score.unit, score.method)
    others = [score.standard_error, score.documents, score.tokens]
    numbers = [score.value, *(x for x in others if x is not None)]
    if not all(isinstance(x, str) for x in texts) or not {int, float} >= {*map(type, numbers)}:
        raise TypeError(f"{score!r:.200}")
    float(score.value)
    return score
