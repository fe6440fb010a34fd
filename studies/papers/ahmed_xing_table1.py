"""Classification of short abstracts by their topics: *Ahmed & Xing 2007, §4.3, Table 1, Figure 9*.

A correlated topic model is fitted to abstracts of four categories, by the Taylor and by the
Blei–Lafferty posterior. A linear support vector machine then classifies the abstracts by their
topic proportions. The paper has abstracts of PNAS, and reports 72.6 % and 64.3 % on one split with
146 test documents. This study has abstracts of Ohsumed, with several fits and ten splits.

Each fit's documents also get their proportions by the second posterior. The table thereby separates
the effect of a posterior on the learned topics from its effect on the proportions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedShuffleSplit
from torch import Tensor

from studies.measure import Cells, Study, check_choices, check_numbers
from studies.papers.texts import POSTERIORS, fit, read_labelled, used_words
from studies.scores.classification import classification, resampled_error
from studies.tables import entry_of_fits, mean_and_error, table
from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError
from torch_lntm.guides import make_guide
from torch_lntm.inference import transform

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The reference of all comparisons.
BASELINE = "blei-lafferty"
#: Estimates of a document's proportions from its posterior, with descriptions.
ESTIMATES = {"mean": "posterior mean of θ", "mode": "θ at the posterior mean of eta"}


@dataclass(frozen=True)
class TableSettings:
    """Settings of the study.

    Attributes:
        corpus: Name of a corpus in the folder of data, or a path.
        categories: Labels of the categories. Documents with a single label among them take part.
        num_docs: Number of documents, drawn at random; all documents if there are fewer.
        num_topics: Topics.
        fitted: Posteriors to fit by: ``taylor``, ``laplace``, ``blei-lafferty``, ``khan-bouchard``,
            or ``lda`` for the LDA model.
        fits: Fits by each posterior, from different random starts.
        splits: Random divisions into training and test documents of the classifier.
        test_fraction: Share of the test documents.
        theta_samples: Draws of each posterior for its mean of θ.
        seed: Seed of everything random.
    """

    corpus: str = "ohsumed"
    categories: tuple[str, ...] = ("C04", "C10", "C14", "C21")
    num_docs: int = 2500
    num_topics: int = 40
    fitted: tuple[str, ...] = ("taylor", "blei-lafferty", "lda")
    fits: int = 3
    splits: int = 10
    test_fraction: float = 0.15
    theta_samples: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: A value is out of range.
        """
        ones = dict.fromkeys(("fits", "splits", "theta_samples"), 1)
        check_numbers(self, {"num_docs": 10, "num_topics": 2, "seed": 0, **ones})
        check_choices(self, "fitted", POSTERIORS)
        if len(self.categories) < 2:
            raise ConfigError(f"categories are {self.categories}; expected at least two labels")
        if not 0 < self.test_fraction < 1:
            raise ConfigError(f"test_fraction is {self.test_fraction}; expected between 0 and 1")


@dataclass(frozen=True)
class Judged:
    """The abstracts classified by one kind of proportions of one fit.

    Attributes:
        fitted: Posterior of the fit.
        posterior: Posterior of the proportions.
        estimate: A key of :data:`ESTIMATES`.
        fit: Number of the fit.
        accuracies: Share classified right in each split.
        recalls: Share classified right of each category, over all splits.
    """

    fitted: str
    posterior: str
    estimate: str
    fit: int
    accuracies: list[float]
    recalls: list[float]


@dataclass(frozen=True)
class TableResult:
    """The result of the study.

    Attributes:
        settings: The settings.
        rows: One for each fit, posterior and estimate.
        sizes: Documents of each category.
    """

    settings: TableSettings
    rows: list[Judged]
    sizes: dict[str, int]

    @property
    def kinds(self) -> list[tuple[str, str, str]]:
        """Compared kinds: posterior of the fit, posterior of the proportions, estimate."""
        return list(dict.fromkeys((row.fitted, row.posterior, row.estimate) for row in self.rows))

    def accuracies(self, kind: tuple[str, str, str]) -> Tensor:
        """``(fits, splits)`` accuracies of a kind."""
        found = [r for r in self.rows if (r.fitted, r.posterior, r.estimate) == kind]
        return torch.tensor([row.accuracies for row in found], dtype=torch.float64)

    def recalls(self, kind: tuple[str, str, str]) -> NDArray[np.float64]:
        """``(fits, categories)`` shares classified right."""
        found = [r for r in self.rows if (r.fitted, r.posterior, r.estimate) == kind]
        return np.array([row.recalls for row in found])

    def errors(self, accuracies: Tensor) -> tuple[float, float]:
        """Standard errors of a mean over fits and splits: for the splits, and for the fits."""
        ratio = self.settings.test_fraction / (1 - self.settings.test_fraction)
        return resampled_error(accuracies.mean(0), ratio), mean_and_error(
            accuracies.mean(1).tolist()
        )[1]

    def tables(self) -> str:
        """Accuracies, differences, and the share of each category classified right."""
        header = ["fitted by", "θ by", "estimate", "accuracy, %", "less Blei–Lafferty's"]
        rows = []
        for kind in self.kinds:
            found = self.accuracies(kind)
            baseline = (BASELINE, BASELINE, kind[2])
            known = baseline in self.kinds and kind != baseline
            gap = found - self.accuracies(baseline) if known else None
            names = [str(POSTERIORS[name]["label"]) for name in kind[:2]]
            rows.append(
                [*names, kind[2], self._percent(found), "–" if gap is None else self._percent(gap)]
            )
        parts = [
            "Accuracy in per cent; in parentheses standard errors for the splits and for the fits",
            table(header, rows),
            "Share of each category classified right, in per cent; mean over fits",
        ]
        names = list(self.sizes)
        rows = [
            [" ".join(kind), *(f"{100 * share:.1f}" for share in self.recalls(kind).mean(0))]
            for kind in self.kinds
        ]
        parts.append(table(["", *(f"{name} ({self.sizes[name]})" for name in names)], rows))
        return "\n\n".join(parts)

    def _percent(self, accuracies: Tensor) -> str:
        error, between = (100 * value for value in self.errors(accuracies))
        return entry_of_fits(100 * float(accuracies.mean()), error, between, 2)


def run(settings: TableSettings, cells: Cells) -> TableResult:
    """Fit and classify."""
    corpus = read_abstracts(settings)
    labels = corpus.labels
    assert labels is not None
    divide = StratifiedShuffleSplit(
        settings.splits, test_size=settings.test_fraction, random_state=settings.seed
    )
    splits = list(divide.split(np.zeros(len(labels)), labels))

    def measure(key: tuple[str, int]) -> list[Judged]:
        return judge(settings, corpus, labels, splits, *key)

    keys = [(name, number) for number in range(settings.fits) for name in settings.fitted]
    rows = [Judged(**row) for rows in cells.each(keys, measure) for row in rows]
    names, sizes = np.unique(labels, return_counts=True)
    return TableResult(settings, rows, dict(zip(names.tolist(), sizes.tolist(), strict=True)))


def read_abstracts(settings: TableSettings) -> Corpus:
    """The documents of the categories, over the words of these documents.

    Raises:
        ConfigError: The corpus does not exist, or no document has one of the categories.
    """
    corpus = read_labelled(settings.corpus)
    (there,) = np.isin(np.array(corpus.labels), settings.categories).nonzero()
    if not len(there):
        raise ConfigError(
            f"no document of {settings.corpus} has one of the labels "
            f"{', '.join(settings.categories)} alone"
        )
    rng = np.random.default_rng(settings.seed)
    chosen = rng.permutation(there)[: settings.num_docs]
    return used_words(corpus[np.sort(chosen)])


def judge(
    settings: TableSettings,
    corpus: Corpus,
    labels: tuple[str, ...],
    splits: list[tuple[Any, Any]],
    name: str,
    number: int,
) -> list[Judged]:
    """Fit a model and classify by the proportions of each suitable posterior."""
    model = fit(name, corpus, settings.num_topics, settings.seed + number).model
    posteriors = [other for other in settings.fitted if other != "lda"]
    rows = []
    for posterior in ["lda"] if name == "lda" else posteriors:
        guide = make_guide("vb" if posterior == "lda" else posterior, model)
        for estimate in ESTIMATES:
            # Under a Dirichlet posterior, both estimates are its mean.
            if posterior == "lda" and estimate == "mode":
                continue
            theta = transform(
                guide,
                corpus,
                "mean" if estimate == "mean" else "mode",
                num_draws=settings.theta_samples,
                seed=settings.seed,
            ).theta
            found = classification(theta, labels, splits, seed=settings.seed)
            rows.append(
                Judged(
                    name,
                    posterior,
                    estimate,
                    number,
                    found.accuracies.tolist(),
                    found.recalls.tolist(),
                )
            )
    return rows


def figure(result: TableResult) -> Figure:
    """Accuracies of each kind of proportions; differences split by split; categories."""
    from matplotlib.figure import Figure

    plot = Figure(figsize=(9.6, 4.2), layout="constrained")
    left, right = plot.subplots(1, 2, width_ratios=(1.25, 1.0))
    kinds = result.kinds
    for place, kind in enumerate(kinds):
        found = result.accuracies(kind)
        error = float(np.hypot(*np.nan_to_num(result.errors(found))))
        style = POSTERIORS[kind[1]]
        filled = style["color"] if kind[2] == "mean" else "white"
        left.errorbar(
            100 * float(found.mean()),
            place,
            xerr=100 * error,
            color=style["color"],
            marker=style["marker"],
            markerfacecolor=filled,
            markersize=7,
            elinewidth=1.4,
        )
    names = []
    for fitted, posterior, estimate in kinds:
        label = f"{POSTERIORS[posterior]['label']}, {estimate} of θ"
        other = "" if fitted == posterior else f", topics by {POSTERIORS[fitted]['label']}"
        names.append(label + other)
    left.set_yticks(range(len(kinds)), names, fontsize=9)
    left.invert_yaxis()
    left.set_xlabel("accuracy, %: mean ± one standard error")
    left.grid(axis="x", alpha=0.25)
    categories = list(result.sizes)
    for name in result.settings.fitted:
        own = (name, name, "mean")
        shares = 100 * result.recalls(own)
        many = len(shares) > 1
        bars = shares.std(0, ddof=1) / np.sqrt(len(shares)) if many else np.zeros(len(categories))
        shift = 0.12 * (result.settings.fitted.index(name) - (len(result.settings.fitted) - 1) / 2)
        style = {"linestyle": "none", "markersize": 7, "elinewidth": 1.4, **POSTERIORS[name]}
        right.errorbar(np.arange(len(categories)) + shift, shares.mean(0), bars, **style)
    right.set_xticks(range(len(categories)), [f"{c}\n{result.sizes[c]}" for c in categories])
    right.set_xlim(-0.5, len(categories) - 0.5)
    right.set_xlabel("category, and its documents")
    right.set_ylabel("classified right, %, by the mean of θ")
    right.grid(axis="y", alpha=0.25)
    right.legend(frameon=False, fontsize=9)
    return plot


STUDY = Study(
    TableSettings,
    run,
    TableResult.tables,
    figure,
    quick={"num_docs": 300, "num_topics": 10, "fits": 1, "splits": 3, "theta_samples": 20},
)
