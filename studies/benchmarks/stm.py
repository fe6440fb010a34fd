"""Coverage of 95 % intervals of effects by R's stm itself, on the corpora of ``coverage``.

Every corpus is fitted by R's ``stm(K, prevalence = ~ x, init.type = "Spectral")``, whose
``estimateEffect`` and ``summary`` give estimates and standard errors, with the mean covariance
(``Global``, stm's default) and with every document's own (``Local``). Intervals are by Student's t,
as in R's table. Fitted topics are assigned to true topics, one to one, by the overlap of their
words. ``true theta`` is the regression on the proportions that made the documents.

The study needs R with stm and jsonlite: Debian's r-base and r-cran-jsonlite, and in R
``install.packages("stm")``. Where stm's own imports ``lda`` and ``quanteda`` cannot be had, its
sources install without them, since this use calls neither. A corpus takes about 7 seconds.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import scipy.stats
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from studies.benchmarks import coverage
from studies.measure import Cells, Study, check_numbers
from torch_lntm.corpus import Corpus
from torch_lntm.effects import estimate
from torch_lntm.errors import ConfigError

SCRIPT = Path(__file__).with_suffix(".R")
LEVEL = 0.975


@dataclass(frozen=True)
class Settings:
    """Settings of the study.

    Attributes:
        num_corpora: Simulated corpora of each design.
        lengths: Tokens of a document, one design each.
        effects: Standard deviations of the topics' slopes, one design each.
        num_docs: Documents of a corpus.
        num_topics: Topics.
        num_words: Words.
    """

    num_corpora: int = 60
    lengths: tuple[int, ...] = (15,)
    effects: tuple[float, ...] = (0.2, 0.8)
    num_docs: int = 400
    num_topics: int = 5
    num_words: int = 200

    def __post_init__(self) -> None:
        """Check the numbers."""
        check_numbers(self, {"num_corpora": 1, "lengths": 1, "num_docs": 10, "num_topics": 3})

    @property
    def simulated(self) -> coverage.Settings:
        """Settings of the simulation."""
        return coverage.Settings(**vars(self), known=(False,))


@dataclass(frozen=True)
class Result:
    """The intervals of every design.

    Attributes:
        settings: The settings.
        version: Version of stm.
        intervals: As of :class:`coverage.Result`.
    """

    settings: Settings
    version: str
    intervals: list[dict[str, list[list[float]]]]


def run(settings: Settings, cells: Cells) -> Result:
    """Fit every simulated corpus by R's stm."""
    torch.set_num_threads(1)
    version = cells.one("version", stm_version)
    simulated = settings.simulated
    designs = [(*design[:2], design[3]) for design in coverage.designs(simulated)]
    measured = cells.each(designs, lambda design: measure(simulated, *design))
    return Result(settings, version, measured)


def stm_version() -> str:
    """Version of the installed stm.

    Raises:
        ConfigError: R, stm or jsonlite is not installed.
    """
    if shutil.which("Rscript") is None:
        raise ConfigError("the study needs R, but there is no Rscript; install R (Debian: r-base)")
    script = "invisible(loadNamespace('jsonlite')); cat(as.character(packageVersion('stm')))"
    done = subprocess.run(["Rscript", "-e", script], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(
            "the study needs R's packages stm and jsonlite; install them in R by "
            f"install.packages(c('stm', 'jsonlite')). R says: {done.stderr.strip()}"
        )
    return done.stdout


def measure(
    settings: coverage.Settings, length: int, effect: float, seed: int
) -> dict[str, list[list[float]]]:
    """Truth, estimate and interval of the effect on each topic, by method."""
    truth, corpus, theta = coverage.simulate(settings, length, effect, seed)
    first, second = coverage.true_levels(truth, settings.values)
    effects = first - second
    known = estimate(truth, theta.expand(2, -1, -1), corpus, "~ x", link="identity")
    found = fit_in_r(corpus, settings.num_topics, seed + 1)
    beta = np.zeros((settings.num_topics, settings.num_words))
    beta[:, np.array(found["words"]) - 1] = found["beta"]
    partner = assign(truth.topics.probs.numpy(force=True), beta)
    quantile = scipy.stats.t.ppf(LEVEL, settings.num_docs - 2)
    rows = {"true theta": coverage.rows(settings, effects, known)}
    for method in ("Global", "Local"):
        centre, error = np.array(found[method])[partner].T
        ends = [centre, centre - quantile * error, centre + quantile * error]
        rows[f"R's stm: {method}"] = np.column_stack([effects.numpy(), *ends]).round(5).tolist()
    return rows


def fit_in_r(corpus: Corpus, num_topics: int, seed: int) -> dict[str, Any]:
    """Words, topics and effects by stm."""
    counts = corpus.to_scipy().tocoo()
    entries = {"document": counts.row + 1, "word": counts.col + 1, "count": counts.data}
    with TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("counts.csv", "columns.csv")]
        pd.DataFrame(entries).to_csv(paths[0], index=False)
        corpus.metadata[["x"]].to_csv(paths[1], index=False)
        command = ["Rscript", str(SCRIPT), *map(str, (*paths, num_topics, seed))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(f"R's stm failed: {done.stderr.strip()}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def assign(true: NDArray[Any], fitted: NDArray[Any]) -> NDArray[np.int64]:
    """The fitted topic of each true topic, by the largest sum of Bhattacharyya's overlaps."""
    return linear_sum_assignment(-(np.sqrt(true) @ np.sqrt(fitted).T))[1]


def tables(result: Result) -> str:
    """A row for each design and method."""
    simulated = coverage.Result(result.settings.simulated, result.intervals)
    return f"stm {result.version}\n\n{coverage.tables(simulated)}"


STUDY = Study(Settings, run, tables, quick={"num_corpora": 2}, selects=("num_corpora",))
