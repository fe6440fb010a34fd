"""The likelihood that EM climbs, on two words and two aspects: *Minka & Lafferty 2002, Figure 1*.

The second aspect always says word 1. The only parameter is p = p(w = 1 | a = 1), and α = (1, 1).
The study draws the likelihood of p, exact and by each approximation, and finds the end of EM under
each approximation. It takes 30 seconds on one core.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlogy

from studies.measure import Cells, Study, check_numbers
from studies.papers.minka_lafferty import (
    METHODS,
    SMALL_TOLERANCE,
    STYLES,
    exact_log_likelihood,
    fit_small,
    make_method,
    small_batch,
    small_model,
)
from studies.tables import table, with_error
from torch_lntm.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CURVES = ("exact", "max", "vb", "ep")
#: Start of EM; every likelihood here has a single maximum in p.
START = 0.3


@dataclass(frozen=True)
class TwoWordSettings:
    """Settings of the study.

    Attributes:
        num_docs: Sizes of the corpora, in documents. The figure shows the first corpus of the first
            size.
        length: Tokens of a document.
        true_probability: p(w = 1 | a = 1) of the true model.
        repetitions: Corpora of each size.
        grid_points: Number of values of p on the curves, from 0 to below 1.
        tolerance: Move of p at convergence of EM.
        max_updates: Bound on the updates of EM.
        seed: Seed of all draws.
    """

    num_docs: tuple[int, ...] = (10, 100)
    length: int = 10
    true_probability: float = 0.5
    repetitions: int = 50
    grid_points: int = 200
    tolerance: float = 1e-5
    max_updates: int = 5000
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: A value is out of range.
        """
        whole = {"num_docs": 1, "length": 1, "repetitions": 1, "grid_points": 2, "max_updates": 1}
        check_numbers(self, {**whole, "seed": 0}, ["true_probability", "tolerance"])
        if not self.true_probability < 1.0:
            raise ConfigError(f"true_probability is {self.true_probability}; expected below 1")
        if not self.num_docs:
            raise ConfigError("num_docs is empty; expected the size of at least one corpus")


@dataclass(frozen=True)
class TwoWordResult:
    """The result of the study.

    Attributes:
        settings: The settings.
        grid: Values of p.
        frequencies: Tokens of word 1 in the documents of the shown corpus.
        curves: Its log likelihood at each p, by name of the curve; nats.
        maximisers: By number of documents and name of a curve, the p at its maximum in each corpus.
            A plateau counts by its upper end; the Max approximation always has a plateau.
        estimates: By number of documents and method, the p at the end of EM in each corpus.
        unconverged: Runs of EM that reached the bound on the updates.
    """

    settings: TwoWordSettings
    grid: list[float]
    frequencies: list[int]
    curves: dict[str, list[float]]
    maximisers: dict[int, dict[str, list[float]]]
    estimates: dict[int, dict[str, list[float]]]
    unconverged: int

    def tables(self) -> str:
        """Means of maximisers and estimates, with standard errors over corpora."""
        sizes = list(self.settings.num_docs)
        rows = []
        for what, found in (
            ("maximum of the {} curve", self.maximisers),
            ("EM, {}", self.estimates),
        ):
            for name in found[sizes[0]]:
                entries = []
                for size in sizes:
                    entries.append(with_error(found[size][name], 4))
                    exact = self.maximisers[size]["exact"]
                    away = [a - b for a, b in zip(found[size][name], exact, strict=True)]
                    entries.append(with_error(away, 4))
                rows.append([what.format(name), *entries])
        columns = [f"{size} documents{text}" for size in sizes for text in ("", ", less exact")]
        lines = table(["p(w = 1 given a = 1)", *columns], rows)
        truth = self.settings.true_probability
        return (
            f"Truth: {truth:g}. Mean over {self.settings.repetitions} corpora (standard error).\n\n"
            f"{lines}\n\nRuns of EM without convergence: {self.unconverged}."
        )

    def figure(self) -> Figure:
        """The paper's Figure 1, for the first corpus.

        Exact and EP likelihood are on the scale of the exact maximum. Max and VB are smaller by
        orders of magnitude, and have scales of their own.
        """
        from matplotlib.figure import Figure

        plot = Figure(figsize=(6.4, 6.8), layout="constrained")
        top, bottom = plot.subplots(2, 1, sharex=True)
        size = self.settings.num_docs[0]
        labels = {"exact": "exact", "max": "Max, scaled", "vb": "VB, scaled", "ep": "EP"}
        for ax, names in ((top, ("exact", "max")), (bottom, ("exact", "vb", "ep"))):
            for name in names:
                curve = np.array(self.curves[name])
                scale = max(self.curves["exact" if name == "ep" else name])
                ax.plot(self.grid, np.exp(curve - scale), label=labels[name], **STYLES[name])
            ax.set_ylabel("likelihood (exact maximum = 1)")
            ax.set_ylim(0, 1.12)
            ax.grid(alpha=0.25)
        shares = sorted({f / self.settings.length for f in self.frequencies})
        top.vlines(shares, 0, 0.08, color="#b2182b", label="frequencies of word 1")
        for name, label in (
            ("vb", "EM, VB (eq. 27)"),
            ("vb second-order", "EM, VB (eqs 32–34)"),
            ("ep", "EM, EP (eqs 32–34)"),
        ):
            style = {**STYLES[name], "linewidth": 1.0}
            bottom.axvline(self.estimates[size][name][0], label=label, **style)
        bottom.set_xlabel("p(w = 1 | a = 1)")
        bottom.set_xlim(0, 1)
        for ax in (top, bottom):
            ax.legend(loc="upper right", frameon=False, fontsize=8)
        return plot


def run(settings: TwoWordSettings, cells: Cells) -> TwoWordResult:
    """Compute the curves and run EM on every corpus."""
    grid = np.linspace(0.0, 1.0, settings.grid_points + 1)[:-1]

    @cache
    def corpora(size: int) -> list[NDArray[np.int64]]:
        rng = np.random.default_rng([settings.seed, size])
        return [draw_corpus(settings, size, rng) for _ in range(settings.repetitions)]

    @cache
    def of_documents() -> dict[str, NDArray[np.float64]]:
        return document_curves(settings.length, grid)

    def shown() -> dict[str, Any]:
        frequencies = corpora(settings.num_docs[0])[0]
        curves = {name: of_documents()[name][:, frequencies].sum(1).tolist() for name in CURVES}
        return {"frequencies": frequencies.tolist(), "curves": curves}

    def climb(key: tuple[str, int]) -> dict[str, Any]:
        maximisers: dict[str, list[float]] = {name: [] for name in CURVES}
        estimates: dict[str, list[float]] = {name: [] for name in METHODS}
        unconverged = 0
        for frequencies in corpora(key[1]):
            for name in CURVES:
                curve = of_documents()[name][:, frequencies].sum(1)
                best = np.flatnonzero(curve >= curve.max() - 1e-9)[-1]
                maximisers[name].append(float(grid[best]))
            for name, (p, converged) in estimate(settings, frequencies).items():
                estimates[name].append(p)
                unconverged += not converged
        return {"maximisers": maximisers, "estimates": estimates, "unconverged": unconverged}

    first = cells.one("first corpus", shown)
    found = cells.each([("documents", size) for size in settings.num_docs], climb)
    by_size = dict(zip(settings.num_docs, found, strict=True))
    return TwoWordResult(
        settings,
        grid.tolist(),
        first["frequencies"],
        first["curves"],
        {size: cell["maximisers"] for size, cell in by_size.items()},
        {size: cell["estimates"] for size, cell in by_size.items()},
        sum(cell["unconverged"] for cell in found),
    )


def draw_corpus(
    settings: TwoWordSettings, num_docs: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """``(num_docs,)`` tokens of word 1 in documents drawn from the true model."""
    share = rng.random(num_docs)
    return rng.binomial(settings.length, share * settings.true_probability + 1.0 - share)


def document_curves(length: int, grid: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """Log likelihoods of every possible document at every p.

    Args:
        length: Tokens of a document.
        grid: ``(grid_points,)`` values of p, below 1.

    Returns:
        By name of the curve, ``(grid_points, length + 1)`` nats of a document with 0, 1, … tokens
        of word 1.
    """
    ones = np.arange(length + 1)
    counts = np.stack([ones, length - ones], 1)
    batch = small_batch(counts)
    curves = {name: np.empty((len(grid), length + 1)) for name in CURVES}
    for i, p in enumerate(grid):
        topics = np.array([[p, 1.0 - p], [1.0, 0.0]])
        model = small_model(topics)
        curves["exact"][i] = exact_log_likelihood(counts, topics)
        # Eq. 35: the document's own choice of the probability of word 1, between p and 1.
        chosen = np.maximum(ones / length, p)
        curves["max"][i] = xlogy(ones, chosen) + xlogy(length - ones, 1.0 - chosen)
        for name in ("vb", "ep"):
            posterior = make_method(name, model, SMALL_TOLERANCE).posterior(batch)
            curves[name][i] = posterior.objective.numpy()
    return curves


def estimate(
    settings: TwoWordSettings, frequencies: NDArray[np.int64]
) -> dict[str, tuple[float, bool]]:
    """The end of EM by each method, and whether it converged.

    Args:
        settings: The settings.
        frequencies: ``(num_docs,)`` tokens of word 1.

    Returns:
        The p and the convergence, by name of the method.
    """
    counts = np.stack([frequencies, settings.length - frequencies], 1)
    # A probability of zero stays zero in EM, and holds the second aspect.
    start = np.array([[START, 1.0 - START], [1.0, 0.0]])
    found = {}
    for method in METHODS:
        guide, (updates,) = fit_small(
            method, counts, start, [settings.tolerance], settings.max_updates
        )
        found[method] = float(guide.model.topics.probs.detach()[0, 0]), updates is not None
    return found


STUDY = Study(
    TwoWordSettings,
    run,
    TwoWordResult.tables,
    TwoWordResult.figure,
    quick={"repetitions": 5, "grid_points": 50},
)
