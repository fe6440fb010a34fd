"""Sources of correlation and their meaning: *Putthividhya et al. 2009, §3.1, Figure 2*.

Factor models with 60 topics and 10 sources are fitted to real texts, with Laplacian sources as in
the figure and with Gaussian sources, several times each, from different random starts. The figure
shows the topics at both ends of three sources. The paper says that sparse sources can be
interpreted. Four numbers measure how easily:

* the number of topics moved by a source, Σ_k a_k² squared over Σ_k a_k⁴ of its centred loadings a;
* the excess kurtosis of the documents' posterior means of a source, 0 for a normal distribution and
  3 for a Laplacian;
* the coherence (NPMI) of the words of the topics at one end, beside that of topics at random;
* if documents have labels, the share of the commonest label among the documents at one end.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from studies.measure import Cells, Study, check_choices, check_numbers, corpus_file
from studies.papers.texts import fit, used_words
from studies.tables import entry_of_fits, mean_and_error, table
from torch_lntm.corpus import Corpus, read_corpus
from torch_lntm.errors import ConfigError
from torch_lntm.evaluation import coherence
from torch_lntm.inference import transform
from torch_lntm.inference.documents import source_prior
from torch_lntm.reports import topic_labels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The models by the distribution of their sources.
SOURCES = {"laplace": "iftm-l", "gaussian": "iftm-g"}
#: Topics at an end of a source, and words of each topic in the coherence of the end.
END_TOPICS, END_WORDS = 4, 3
#: Number of sources in the tables and in the figure, by size of the loadings.
SHOWN = 3
#: Random sets of topics, for the coherence by chance.
RANDOM_SETS = 200


@dataclass(frozen=True)
class SourceSettings:
    """Settings of the study.

    Attributes:
        corpora: Names of corpora in the folder of data, or paths.
        sources: Distributions of the sources, ``laplace`` and ``gaussian``.
        num_topics: Topics.
        num_sources: Sources.
        fits: Fits of each model, from different random starts.
        num_docs: Number of documents, drawn at random; all documents if there are fewer.
        end_docs: Documents with counted labels at each end of a source.
        seed: Seed of everything random.
    """

    corpora: tuple[str, ...] = ("nips_uci", "20ng_bydate")
    sources: tuple[str, ...] = ("laplace", "gaussian")
    num_topics: int = 60
    num_sources: int = 10
    fits: int = 3
    num_docs: int = 2000
    end_docs: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: A value is out of range.
        """
        ones = dict.fromkeys(("num_sources", "fits", "end_docs"), 1)
        check_numbers(self, {"num_topics": 2 * END_TOPICS, "num_docs": 2, "seed": 0, **ones})
        check_choices(self, "sources", SOURCES)
        if not self.corpora or self.num_sources >= self.num_topics:
            raise ConfigError(
                f"corpora are {', '.join(self.corpora) or 'none'} and num_sources is "
                f"{self.num_sources}; expected a corpus, and fewer sources than topics"
            )


@dataclass(frozen=True)
class Sources:
    """The sources of one fit.

    Attributes:
        corpus: Name of the corpus.
        source: Distribution of the sources.
        fit: Number of the fit.
        names: A name for each topic.
        loadings: ``(num_topics, num_sources)`` centred loadings.
        kurtosis: Excess kurtosis of each source's posterior means over documents.
        ends: NPMI of the words at each end of each source.
        chance: NPMI of the words of random topics, mean.
        purity: Share of the commonest label at each end of each source; empty without labels.
        base: Mean share of the commonest label among random documents; NaN without labels.
    """

    corpus: str
    source: str
    fit: int
    names: list[str]
    loadings: list[list[float]]
    kurtosis: list[float]
    ends: list[float]
    chance: float
    purity: list[float]
    base: float

    @property
    def moved(self) -> list[float]:
        """Number of topics moved by each source, in effect."""
        squares = np.square(self.loadings)
        return list(squares.sum(0) ** 2 / np.square(squares).sum(0))


def run(settings: SourceSettings, cells: Cells) -> list[Sources]:
    """Fit and measure."""
    keys = [
        (corpus, source, number)
        for number in range(settings.fits)
        for corpus in settings.corpora
        for source in settings.sources
    ]
    return [Sources(**row) for row in cells.each(keys, lambda key: measure(settings, *key))]


def measure(settings: SourceSettings, name: str, source: str, number: int) -> Sources:
    """The sources of a fit to a corpus, and their four numbers."""
    rng = np.random.default_rng(settings.seed)
    corpus = read_corpus(corpus_file(name))
    corpus = corpus[corpus.lengths.nonzero()[0]]
    corpus = used_words(corpus[np.sort(rng.permutation(corpus.num_docs)[: settings.num_docs])])
    options = {"num_sources": settings.num_sources}
    fitted = fit(SOURCES[source], corpus, settings.num_topics, settings.seed + number, options)
    prior = source_prior(fitted.model)
    found = transform(fitted.guide, corpus).sources
    assert found is not None
    loadings, activity = prior.centred_mixing().cpu().numpy(), found.mean.double().numpy()
    centred = activity - activity.mean(0)
    kurtosis = (centred**4).mean(0) / (centred**2).mean(0) ** 2 - 3.0
    top = fitted.model.topics.top_words(END_WORDS)[0].numpy()
    rows = [top[topics] for column in loadings.T for topics in ends_of(column, END_TOPICS)]
    random = [top[rng.permutation(settings.num_topics)[:END_TOPICS]] for _ in range(RANDOM_SETS)]
    purity, base = [], float("nan")
    if corpus.labels is not None:
        labels = np.array(corpus.labels)
        purity = [
            commonest(labels[documents])
            for column in activity.T
            for documents in ends_of(column, settings.end_docs)
        ]
        drawn = [rng.permutation(len(labels))[: settings.end_docs] for _ in range(RANDOM_SETS)]
        base = float(np.mean([commonest(labels[documents]) for documents in drawn]))
    return Sources(
        name,
        source,
        number,
        topic_labels(fitted.model, 3),
        loadings.tolist(),
        kurtosis.tolist(),
        joint_coherence(rows, corpus),
        float(np.mean(joint_coherence(random, corpus))),
        purity,
        base,
    )


def ends_of(values: NDArray[Any], size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions of the largest values, and of the smallest."""
    order = np.argsort(-values, kind="stable")
    return order[:size], order[::-1][:size]


def commonest(labels: NDArray[Any]) -> float:
    """Share of the commonest label."""
    return float(np.unique(labels, return_counts=True)[1].max() / len(labels))


def joint_coherence(rows: list[NDArray[np.int64]], corpus: Corpus) -> list[float]:
    """NPMI of the different words of each set of topics ``(set size, END_WORDS)``."""
    words = [list(dict.fromkeys(row.flatten().tolist())) for row in rows]
    return [float(value) for value in coherence(words, corpus, top_n=END_TOPICS * END_WORDS)]


def over_fits(values: list[list[float]], digits: int) -> str:
    """Mean of several fits' values, with standard errors over all values and over the fits."""
    mean, error = mean_and_error([value for of_fit in values for value in of_fit])
    return entry_of_fits(mean, error, mean_and_error(list(map(fmean, values)))[1], digits)


def tables(rows: list[Sources]) -> str:
    """The four numbers, and the topics at both ends of the first fits' strongest sources."""
    numbers, ends = [], []
    for corpus, source in dict.fromkeys((row.corpus, row.source) for row in rows):
        fits = [row for row in rows if (row.corpus, row.source) == (corpus, source)]
        labelled = bool(fits[0].purity)
        numbers.append(
            [
                f"{corpus}, {source}",
                over_fits([row.moved for row in fits], 1),
                over_fits([row.kurtosis for row in fits], 1),
                over_fits([row.ends for row in fits], 3),
                f"{fmean(row.chance for row in fits):.3f}",
                over_fits([row.purity for row in fits], 3) if labelled else "–",
                f"{fmean(row.base for row in fits):.3f}" if labelled else "–",
            ]
        )
        loadings = np.array(fits[0].loadings)
        for number in strongest(loadings, SHOWN):
            positive, negative = ends_of(loadings[:, number], END_TOPICS)
            ends.append(
                [
                    f"{corpus}, {source}, {number}",
                    *("; ".join(fits[0].names[k] for k in end) for end in (positive, negative)),
                ]
            )
    header = [
        "",
        "topics moved",
        "kurtosis",
        "NPMI of an end",
        "of random topics",
        "commonest label of an end",
        "of random documents",
    ]
    return "\n\n".join(
        [
            "Means over sources or their ends, with standard errors over sources and over fits",
            table(header, numbers),
            "Topics at both ends of the strongest sources of the first fit",
            table(["corpus, sources, number", "positive end", "negative end"], ends),
        ]
    )


def strongest(loadings: NDArray[np.float64], number: int) -> list[int]:
    """The sources with the largest sums of squares, in their own order."""
    return sorted(np.argsort(-np.square(loadings).sum(0), kind="stable")[:number].tolist())


def figure(rows: list[Sources]) -> Figure:
    """The paper's Figure 2: topics at both ends of Laplacian sources, a column for each corpus.

    The sources are those of the first fit.
    """
    from matplotlib.figure import Figure

    from torch_lntm.plotting.topics import plot_loadings

    drawn = [row for row in rows if (row.source, row.fit) == (rows[0].source, 0)]
    plot = Figure(figsize=(6.2 * len(drawn), 1.9 * SHOWN + 0.9), layout="constrained")
    for ax, row in zip(plot.subplots(1, len(drawn), squeeze=False)[0], drawn, strict=True):
        loadings = np.array(row.loadings)
        chosen = strongest(loadings, SHOWN)
        plot_loadings(loadings, row.names, chosen, num_topics=END_TOPICS, ax=ax)
        ax.set_title(f"{row.corpus}, {row.source} sources", fontsize=10)
    return plot


STUDY = Study(
    SourceSettings,
    run,
    tables,
    figure,
    quick={"num_topics": 15, "num_sources": 4, "num_docs": 300, "fits": 1},
)
