"""Retrieval of newsgroup messages by topic models: *Putthividhya et al. 2009, §3.3, Figure 5*.

Models are fitted to the training messages of 20 Newsgroups, several times each, from different
random starts. Each test message is a query. The training messages are ranked by the probability of
their words given the query, as in the paper, and by the cosine and the Hellinger distance of topic
proportions. A last ranking, tf–idf, uses no model. A message of the query's newsgroup is relevant.

The paper compares IFTM with LDA and prints curves without numbers. It has 16,000 training messages
and 3,949 queries of a different edition of the corpus.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from studies.measure import Cells, Study, check_choices, check_numbers
from studies.papers.texts import MODELS, fit, read_parts
from studies.scores.retrieval import (
    Similarity,
    by_cosine,
    by_hellinger,
    by_likelihood,
    by_tfidf,
    retrieval,
)
from studies.tables import entry_of_fits, mean_and_error, table, with_error
from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError
from torch_lntm.inference import transform

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Rankings by a model, the paper's first.
RANKINGS = {
    "total": "log p(document given query), nats",
    "likelihood": "the same per token",
    "cosine": "cosine of θ",
    "hellinger": "Hellinger distance of θ",
}
#: The ranking without a model.
TFIDF = "tf-idf"
#: The reference of all comparisons.
BASELINE = "lda"


@dataclass(frozen=True)
class RetrievalSettings:
    """Settings of the study.

    Attributes:
        corpus: Name of a corpus in the folder of data, or the path of one, with labels and with a
            file of its split.
        models: Models to rank by.
        num_topics: Topics.
        fits: Fits of each model, from different random starts.
        min_df: Least number of training documents with a word.
        num_docs: Number of documents of each part, drawn at random; None for all.
        queries: Number of queries, drawn at random from the test documents.
        theta_samples: Draws of each posterior for its mean of θ.
        seed: Seed of everything random.
    """

    corpus: str = "20ng_bydate"
    models: tuple[str, ...] = ("lda", "iftm-g", "iftm-l", "ctm")
    num_topics: int = 70
    fits: int = 3
    min_df: int = 5
    num_docs: int | None = 5000
    queries: int = 1000
    theta_samples: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: A value is out of range.
        """
        ones = dict.fromkeys(("fits", "min_df", "theta_samples"), 1)
        check_numbers(self, {"num_topics": 2, "queries": 2, "seed": 0, **ones})
        check_choices(self, "models", MODELS)
        if self.num_docs is not None and self.num_docs < 2:
            raise ConfigError(f"num_docs is {self.num_docs}; expected at least 2")


@dataclass(frozen=True)
class Ranked:
    """One ranking by one fit.

    Attributes:
        model: Name in :data:`MODELS`, or :data:`TFIDF`.
        fit: Number of the fit.
        ranking: Key of :data:`RANKINGS`, or :data:`TFIDF`.
        average_precision: Average precision of each query.
        precision: Mean over queries of the precision at each recall.
        recall: The recalls.
    """

    model: str
    fit: int
    ranking: str
    average_precision: list[float]
    precision: list[float]
    recall: list[float]


@dataclass(frozen=True)
class RetrievalResult:
    """The result of the study.

    Attributes:
        settings: The settings.
        rows: One for each fit and ranking, and one by :data:`TFIDF`.
        lengths: Tokens of each query.
    """

    settings: RetrievalSettings
    rows: list[Ranked]
    lengths: list[int]

    def find(self, model: str, ranking: str) -> list[Ranked]:
        """A ranking, by every fit of a model.

        Raises:
            ConfigError: The ranking was not measured.
        """
        found = [row for row in self.rows if (row.model, row.ranking) == (model, ranking)]
        if not found:
            raise ConfigError(f"nothing was measured for {model!r} by {ranking!r}")
        return found

    def averages(self, model: str, ranking: str) -> NDArray[np.float64]:
        """``(fits, num_queries)`` average precision."""
        return np.array([row.average_precision for row in self.find(model, ranking)])

    def gaps(self, model: str, ranking: str) -> NDArray[np.float64]:
        """``(fits, num_queries)`` average precision less :data:`BASELINE`'s by the same ranking."""
        return self.averages(model, ranking) - self.averages(BASELINE, ranking)

    def curve(self, model: str, ranking: str) -> NDArray[np.float64]:
        """``(num_recalls,)`` precision at each recall, mean over fits."""
        return np.array([row.precision for row in self.find(model, ranking)]).mean(0)

    def tables(self) -> str:
        """Mean average precisions and differences to LDA, also for short and long queries."""
        names = self.settings.models
        rows = [
            [
                str(MODELS[name]["label"]),
                *(over_fits(self.averages(name, ranking)) for ranking in RANKINGS),
            ]
            for name in names
        ]
        tfidf = with_error(self.averages(TFIDF, TFIDF)[0].tolist(), 4)
        parts = [
            "Mean average precision, with its standard errors over queries and over fits; by "
            f"tf–idf {tfidf}",
            table(["", *RANKINGS.values()], rows),
        ]
        others = [name for name in names if name != BASELINE]
        if BASELINE in names and others:
            lengths = np.array(self.lengths)
            middle = float(np.median(lengths))
            groups = {
                "all queries": lengths > 0,
                f"queries of at most {middle:g} tokens": lengths <= middle,
                "longer queries": lengths > middle,
            }
            rows = [
                [
                    f"{MODELS[name]['label']}, {title}",
                    *(over_fits(self.gaps(name, ranking)[:, chosen]) for ranking in RANKINGS),
                ]
                for name in others
                for title, chosen in groups.items()
                if chosen.any()
            ]
            parts += [
                "Less LDA's by the same ranking, query by query and fit by fit",
                table(["", *RANKINGS.values()], rows),
            ]
        return "\n\n".join(parts)


def over_fits(averages: NDArray[np.float64]) -> str:
    """Mean of ``(fits, num_queries)`` values, with standard errors over queries and over fits."""
    mean, error = mean_and_error(averages.mean(0).tolist())
    return entry_of_fits(mean, error, mean_and_error(averages.mean(1).tolist())[1], 4)


def run(settings: RetrievalSettings, cells: Cells) -> RetrievalResult:
    """Fit every model and rank by it."""
    train, queries = read_messages(settings)

    def rank(model: str, number: int, ranking: str, similarity: Similarity) -> Ranked:
        found = retrieval(similarity, queries.labels or (), train.labels or ())
        averages = [round(value, 5) for value in found.average_precision.tolist()]
        return Ranked(model, number, ranking, averages, found.curve.tolist(), found.recall.tolist())

    def measure(key: tuple[str, int]) -> list[Ranked]:
        name, number = key
        fitted = fit(name, train, settings.num_topics, settings.seed + number)
        asked, ranked = (
            transform(
                fitted.guide,
                part,
                "mean",
                num_draws=settings.theta_samples,
                seed=settings.seed,
            ).theta
            for part in (queries, train)
        )
        topics = fitted.model.topics.probs
        similarities = {
            "total": by_likelihood(asked, topics, train, per_token=False),
            "likelihood": by_likelihood(asked, topics, train),
            "cosine": by_cosine(asked, ranked),
            "hellinger": by_hellinger(asked, ranked),
        }
        return [rank(name, number, ranking, similarities[ranking]) for ranking in RANKINGS]

    keys = [(name, number) for number in range(settings.fits) for name in settings.models]
    found = [row for rows in cells.each(keys, measure) for row in rows]
    found.append(cells.one(TFIDF, lambda: rank(TFIDF, 0, TFIDF, by_tfidf(queries, train))))
    return RetrievalResult(settings, [Ranked(**row) for row in found], queries.lengths.tolist())


def read_messages(settings: RetrievalSettings) -> tuple[Corpus, Corpus]:
    """Training documents and queries, over the training documents' words; empty documents left out.

    Raises:
        ConfigError: The corpus does not exist, or has no split or no labels.
    """
    rng = np.random.default_rng(settings.seed)
    train, test = (
        part[np.sort(rng.permutation(part.num_docs)[: settings.num_docs])]
        for part in read_parts(settings.corpus)
    )
    if train.labels is None or train.vocabulary is None:
        raise ConfigError(f"the corpus {settings.corpus} has no labels or no vocabulary")
    documents = np.bincount(train.word_index, minlength=train.num_words)
    kept = (documents >= settings.min_df).nonzero()[0]
    # Unknown words are dropped on purpose, without a warning.
    train, test = (
        Corpus.from_matrix(
            part.to_scipy()[:, kept],
            [train.vocabulary[v] for v in kept],
            name=part.name,
            metadata={"label": part.labels},
            allow_empty=True,
        )
        for part in (train, test)
    )
    train, test = (part[part.lengths.nonzero()[0]] for part in (train, test))
    return train, test[np.sort(rng.permutation(test.num_docs)[: settings.queries])]


def figure(result: RetrievalResult) -> Figure:
    """The paper's Figure 5, precision by recall: by the likelihood, and by the cosine of θ.

    Each line is the mean of the fits.
    """
    from matplotlib.figure import Figure

    plot = Figure(figsize=(9.6, 4.6), layout="constrained")
    shown = ("total", "likelihood", "cosine")
    axes = plot.subplots(1, len(shown), sharey=True)
    (tfidf,) = result.find(TFIDF, TFIDF)
    for ax, ranking in zip(axes, shown, strict=True):
        for name in result.settings.models:
            style = {"markersize": 4, "linewidth": 1.4, **MODELS[name]}
            ax.plot(tfidf.recall, result.curve(name, ranking), **style)
        ax.plot(tfidf.recall, tfidf.precision, color="#999999", linestyle=":", label="tf–idf")
        ax.set_title(RANKINGS[ranking], fontsize=10)
        ax.set_xlabel("recall")
        ax.set_ylim(0)
        ax.grid(alpha=0.25)
    axes[0].set_ylabel("interpolated precision, mean over queries")
    handles, labels = axes[0].get_legend_handles_labels()
    plot.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    return plot


STUDY = Study(
    RetrievalSettings,
    run,
    RetrievalResult.tables,
    figure,
    quick={"num_topics": 20, "num_docs": 1000, "queries": 200, "theta_samples": 20, "fits": 1},
)
