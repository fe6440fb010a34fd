"""Structural topic models beside topica's STM: held-out words, likelihoods and seconds.

All systems get the same training documents with equal standardised covariates, and fit with one
thread in a process of their own. Covariates of the test documents are known. The same code scores
all systems, from their topics and prior:

* *perplexity* of the held-out half of each test document's tokens, at the exact posterior mean of
  theta given the other half and the document's prior mean by its covariates
  (``torch_lntm.evaluation.document_completion``);
* *likelihood*: the log probability of whole test documents, with theta integrated out by annealed
  importance sampling. The systems' own bounds leave out different constants, and are tight for
  small prior variances and loose for large ones.

Formulas use the columns of the corpus, in its file of labels and in NAME.columns.csv beside it. A
corpus without a column ``day`` gets days at random from a year.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

import torch_lntm as lntm
from studies.benchmarks.completion import fit_in_process, missing_library
from studies.benchmarks.frozen import MAX_DOCS, MAX_TEST_DOCS, Frozen, frozen
from studies.benchmarks.systems import STRUCTURAL_SYSTEMS
from studies.measure import Cells, Study, check_choices, check_filled, check_numbers, corpus_file
from studies.scores.completion import check_hold_out
from studies.tables import table_of
from torch_lntm.errors import UnreliableEstimateWarning
from torch_lntm.evaluation import document_completion, log_likelihood
from torch_lntm.evaluation.completion.result import ExactCompletion
from torch_lntm.evaluation.per_token import per_token
from torch_lntm.models import StructuralPrior, TopicModel
from torch_lntm.models.priors.covariates import PREVALENCE, Covariates
from torch_lntm.models.topics.topics import FixedTopics

#: The reference of all comparisons.
OURS = "torch_lntm stm"
#: Days of a random column ``day``.
DAYS = 366


@dataclass(frozen=True)
class Settings:
    """Settings of the study.

    Attributes:
        corpus: Name of a corpus in the folder of data, or a path.
        formulas: Formulas of the prior mean.
        num_topics: Numbers of topics.
        seeds: Seeds, each of a split, a hold-out and the fits.
        systems: Systems to fit.
        max_docs: Largest number of documents; a larger corpus is sampled.
        max_test_docs: Largest number of scored documents.
        likelihood_docs: Scored documents with an estimated likelihood.
        tolerance: Monte-Carlo standard error of the exact score, nats per token.
    """

    corpus: str = "poliblog5k"
    formulas: tuple[str, ...] = ("~ label", "~ label + bs(day, df=10)")
    num_topics: tuple[int, ...] = (20, 100)
    seeds: tuple[int, ...] = (0,)
    systems: tuple[str, ...] = tuple(STRUCTURAL_SYSTEMS)
    max_docs: int = MAX_DOCS
    max_test_docs: int = MAX_TEST_DOCS
    likelihood_docs: int = 200
    tolerance: float = 0.002

    def __post_init__(self) -> None:
        """Check the settings."""
        whole = {"num_topics": 2, "seeds": 0, "max_docs": 2}
        whole |= {"max_test_docs": 1, "likelihood_docs": 1}
        check_numbers(self, whole, positive=("tolerance",))
        check_choices(self, "systems", STRUCTURAL_SYSTEMS)
        check_filled(self, "formulas", "num_topics", "seeds")


@dataclass(frozen=True)
class Result:
    """The result of the study.

    Attributes:
        settings: The settings.
        rows: One for each formula, number of topics, seed and system.
        skipped: Skipped systems, and their missing libraries.
    """

    settings: Settings
    rows: list[dict[str, Any]]
    skipped: dict[str, str]


@dataclass(frozen=True, eq=False)
class Design:
    """A split with the standardised covariates of its documents.

    Attributes:
        split: The split.
        train: ``(num_train, num_covariates)``.
        test: ``(num_test, num_covariates)``.
    """

    split: Frozen
    train: NDArray[np.float64]
    test: NDArray[np.float64]


def run(settings: Settings, cells: Cells) -> Result:
    """Fit and score every system.

    Raises:
        ConfigError: The corpus does not exist, or a formula does not fit it.
    """
    torch.set_num_threads(1)
    lacking = {system: missing_library(system) for system in settings.systems}
    systems = [system for system, library in lacking.items() if library is None]

    @cache
    def design_of(formula: str, seed: int) -> Design:
        return make_design(settings, formula, seed)

    def compare(key: tuple[int, int, str, str]) -> dict[str, Any]:
        seed, num_topics, formula, system = key
        return {
            "formula": formula,
            "num_topics": num_topics,
            "seed": seed,
            "system": system,
            **measured(design_of(formula, seed), system, num_topics, seed, settings),
        }

    keys = product(settings.seeds, settings.num_topics, settings.formulas, systems)
    rows = cells.each(keys, compare)
    skipped = {system: library for system, library in lacking.items() if library is not None}
    return Result(settings, rows, skipped)


def make_design(settings: Settings, formula: str, seed: int) -> Design:
    """The frozen split of a seed, with the columns of its documents by a formula."""
    split = frozen(settings.corpus, seed, settings.max_docs, settings.max_test_docs)
    corpus = with_columns(settings.corpus, split.train_index, seed)
    covariates = Covariates.of(corpus[split.train_index], formula)
    train, test = (
        (covariates.encode(corpus[index]).encodings[PREVALENCE] - np.array(covariates.means))
        / np.array(covariates.scales)
        for index in (split.train_index, split.test_index)
    )
    return Design(split, train, test)


def with_columns(name: str, train: NDArray[np.int64], seed: int) -> lntm.Corpus:
    """A corpus with its columns, and random days if it has none.

    Args:
        name: Name of the corpus, or its path.
        train: Positions of the training documents.
        seed: Seed of random days.
    """
    file = corpus_file(name)
    columns = file.with_suffix(".columns.csv")
    corpus = lntm.read_corpus(file, metadata=columns if columns.exists() else None)
    if "day" in corpus.metadata:
        return corpus
    days = np.random.default_rng(seed).integers(0, DAYS, corpus.num_docs)
    # Knots of splines are at quantiles, and the last knot must lie beyond every test document.
    days[train[:2]] = 0, DAYS - 1
    return corpus.with_metadata({"day": days})


def measured(
    design: Design, system: str, num_topics: int, seed: int, settings: Settings
) -> dict[str, Any]:
    """The fit of a system and its scores."""
    split = design.split
    with tempfile.TemporaryDirectory() as folder:
        path, covariates = Path(folder) / "train.npz", Path(folder) / "covariates.npy"
        sp.save_npz(path, split.train.to_scipy())
        np.save(covariates, design.train, allow_pickle=False)
        fit = fit_in_process(
            system, path, num_topics=num_topics, seed=seed, threads=1, covariates=covariates
        )
    model = model_of(fit)
    test = split.hold_out.corpus.with_covariates({PREVALENCE: design.test})
    with warnings.catch_warnings():
        # The row holds the error of the simulation.
        warnings.simplefilter("ignore", UnreliableEstimateWarning)
        check_hold_out(split.hold_out, split.hashes["hold_out_fingerprint"])
        completion = document_completion(
            model,
            split.hold_out.of(test),
            tolerance=settings.tolerance,
            seed=seed,
        )
    likelihood = log_likelihood(model, test[: settings.likelihood_docs], "ais", seed=seed)
    assert isinstance(completion, ExactCompletion)
    return {
        "log_predictive": [round(x, 4) for x in completion.log_predictive.tolist()],
        "held_out_tokens": completion.held_out_tokens.tolist(),
        "simulation_error": completion.simulation_error,
        "log_likelihood": [round(x, 4) for x in likelihood.log_likelihood.tolist()],
        "tokens": likelihood.lengths.tolist(),
        "likelihood_error": likelihood.total_error / int(likelihood.lengths.sum()),
        **json.loads(str(fit["record"])),
    }


def model_of(fit: Mapping[str, NDArray[Any]]) -> TopicModel:
    """The model of a system's fit, for batches with standardised covariates."""
    topics = torch.from_numpy(fit["topics"]).double()
    coefficients, covariance = (
        torch.from_numpy(fit[name]).double() for name in ("coefficients", "covariance")
    )
    size = len(coefficients) - 1
    names = tuple(f"u{j}" for j in range(size))
    prior = StructuralPrior(
        len(topics),
        Covariates(names, (0.0,) * size, (1.0,) * size),
        anchored=coefficients.shape[1] < len(topics),
        loc=coefficients[0],
        slopes=coefficients[1:],
        covariance=covariance,
        dtype=torch.float64,
    )
    return TopicModel(prior, FixedTopics(topics.double()))


# -------------------------------------------------------------------- tables


def tables(result: Result) -> str:
    """A row for each formula, number of topics and system, beside this package's."""
    settings = result.settings
    systems = [name for name in settings.systems if name not in result.skipped]
    lines = []
    for formula, num_topics, system in product(settings.formulas, settings.num_topics, systems):
        rows, ours = (
            [
                row
                for row in result.rows
                if (row["formula"], row["num_topics"], row["system"]) == (formula, num_topics, name)
            ]
            for name in (system, OURS)
        )
        lines.append(
            {"system": system, "K": str(num_topics), "formula": formula, **_cells(rows, ours)}
        )
    parts = [table_of(lines)] if lines else []
    parts += [f"skipped: {name} ({lib} is not installed)" for name, lib in result.skipped.items()]
    parts.append(
        f"{settings.corpus}, seeds {', '.join(map(str, settings.seeds))}, "
        f"{settings.max_test_docs} test documents at most. 'better by' is by how many\n"
        f"nats per token {OURS} is better, with the paired standard error over documents;\n"
        "'× CPU' how many times its CPU seconds a system takes."
    )
    return "\n\n".join(parts)


def _cells(rows: list[dict[str, Any]], ours: list[dict[str, Any]]) -> dict[str, str]:
    seconds, our_seconds = (
        float(np.mean([row["cpu_seconds"] for row in some] or [np.nan])) for some in (rows, ours)
    )
    completion, tokens = _of(rows, "log_predictive"), _of(rows, "held_out_tokens")
    likelihood, lengths = _of(rows, "log_likelihood"), _of(rows, "tokens")
    cells = {
        "CPU s": f"{seconds:.1f}",
        "× CPU": f"{seconds / our_seconds:.1f}",
        "perplexity": f"{np.exp(-float(completion.sum() / tokens.sum())):.1f}",
        "better by": "",
        "likelihood": f"{float(likelihood.sum() / lengths.sum()):.4f}",
        "likelihood better by": "",
    }
    if ours and ours[0]["system"] != rows[0]["system"]:
        cells["better by"] = _difference(_of(ours, "log_predictive") - completion, tokens)
        of_ours = _of(ours, "log_likelihood")
        cells["likelihood better by"] = _difference(of_ours - likelihood, lengths)
    return cells


def _of(rows: list[dict[str, Any]], name: str) -> Tensor:
    """A number for every document, over all seeds."""
    return torch.tensor([value for row in rows for value in row[name]], dtype=torch.float64)


def _difference(nats: Tensor, tokens: Tensor) -> str:
    mean, error = per_token(nats, tokens.long())
    return f"{mean:+.4f} ± {error:.4f}"


STUDY = Study(
    Settings,
    run,
    tables,
    quick={"formulas": ("~ label",), "num_topics": (20,), "max_docs": 1000, "max_test_docs": 50},
)
