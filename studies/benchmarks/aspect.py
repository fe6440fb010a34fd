"""E-steps of the Dirichlet model: variational Bayes beside scikit-learn, and EP's cost per pass.

All have the same documents, topics and concentration, start from equal proportions and run on one
thread. *VB* is this package's guide. *scikit-learn* is the E-step of LatentDirichletAllocation
with equal topics, in float64, its default. The error is the mean over topics of |γ − γ*|, in
tokens, with γ* by VB to 1e-9. Each method is timed at the loosest tolerance of its grid that gives
95 % of the documents an error below 1e-4. Documents in a local optimum different from γ* (an error
above 0.1) are counted.

A pass goes over all stored counts once. Its cost is the difference in time between two numbers of
passes without convergence, divided by their difference; the cost of the set-up cancels. The study
takes three minutes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.decomposition import LatentDirichletAllocation
from torch import Tensor

import torch_lntm as lntm
from studies.machine import Stopwatch
from studies.measure import Cells, Study, check_numbers, corpus_file
from studies.tables import table_of
from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.guides import DirichletGuide, EPGuide
from torch_lntm.kernels.mixture import expected_counts, expected_topic_counts
from torch_lntm.models import TopicModel

ERROR, QUANTILE = 1e-4, 0.95
#: Solutions closer than this distance share a local optimum.
OPTIMUM = 0.1
VB_TOLERANCES = tuple(2.0**-n * 1e-4 for n in range(9))
SKLEARN_TOLERANCES = tuple(2.0**-n * 1e-3 for n in range(12))
PASSES = (3, 13)
REPEATS = 3
MOST_ITERATIONS = 5000
#: A tolerance below every change.
NEVER = 1e-300
#: Documents at the start of a topic, and the share of the corpus's frequencies in it.
SEED_DOCUMENTS, BACKGROUND = 3, 0.5


def plausible_topics(corpus: Corpus, num_topics: int) -> Tensor:
    """Topics ``(num_topics, num_words)`` float64 by 60 rounds of EM from a few documents each."""
    batch = corpus.batch().to(dtype=torch.float32)
    topics = start_topics(corpus, num_topics).float()
    theta = torch.full((corpus.num_docs, num_topics), 1.0 / num_topics)
    for _ in range(60):
        for _ in range(3):
            theta = expected_topic_counts(theta, topics, batch) + 0.3
            theta /= theta.sum(-1, keepdim=True)
        found = expected_counts(theta, topics, batch, word_counts=True)
        assert found.word_counts is not None
        topics = found.word_counts + 0.05
        topics /= topics.sum(-1, keepdim=True)
    topics = topics.double()
    return topics / topics.sum(-1, keepdim=True)


def cpu_seconds(run: Callable[[], object]) -> float:
    """The least CPU seconds of a few runs."""
    taken = []
    for _ in range(REPEATS):
        with Stopwatch() as watch:
            run()
        taken.append(watch.cpu_seconds)
    return min(taken)


def start_topics(corpus: Corpus, num_topics: int) -> Tensor:
    """Topics ``(num_topics, num_words)`` float64: words of random documents and of all."""
    counts = corpus.to_scipy()
    background = np.asarray(counts.sum(0), dtype=np.float64).ravel() + 1.0
    rng = np.random.default_rng(0)
    found = np.stack(
        [
            counts[rng.choice(corpus.num_docs, SEED_DOCUMENTS, replace=False)].sum(0).A1
            for _ in range(num_topics)
        ]
    )
    found = found / found.sum(1, keepdims=True)
    background /= background.sum()
    return torch.from_numpy(BACKGROUND * background + (1 - BACKGROUND) * found)


def make_model(topics: Tensor, concentration: float, dtype: torch.dtype) -> TopicModel:
    """A model with the given topics."""
    return lntm.models.lda(*topics.shape, topics=topics, concentration=concentration, dtype=dtype)


def by_vb(
    guide: DirichletGuide,
    batch: DocumentBatch,
    tolerance: float,
    max_iterations: int = MOST_ITERATIONS,
) -> np.ndarray:
    """γ ``(num_docs, num_topics)`` from equal proportions."""
    num_topics = guide.model.num_topics
    start = torch.full((batch.num_docs, num_topics), 1.0 / num_topics)
    with guide.model.topics.cached():
        found = guide.posterior(batch, start, tolerance=tolerance, max_iterations=max_iterations)
    return found.gamma.numpy()


def by_ep(guide: EPGuide, batch: DocumentBatch, passes: int) -> object:
    """EP's posterior after some passes."""
    with guide.model.topics.cached():
        return guide.posterior(batch, tolerance=NEVER, max_iterations=passes)


def by_sklearn(
    corpus: Corpus, topics: Tensor, concentration: float, tolerance: float
) -> np.ndarray:
    """γ ``(num_docs, num_topics)`` from γ = 1; its first update is that of equal proportions."""
    model = LatentDirichletAllocation(
        len(topics),
        doc_topic_prior=concentration,
        mean_change_tol=tolerance,
        max_doc_update_iter=MOST_ITERATIONS,
    )
    # Attributes of a fitted estimator; the topics replace exp(E log topics).
    model.doc_topic_prior_ = model.doc_topic_prior
    model.exp_dirichlet_component_ = topics.numpy()
    counts = corpus.to_scipy().astype(np.float64)
    gamma, _ = model._e_step(counts, cal_sstats=False, random_init=False)
    return gamma


def loosest(
    name: str, solve: Callable[[float], np.ndarray], tolerances: tuple[float, ...], best: np.ndarray
) -> dict[str, Any]:
    """The loosest accurate tolerance (or the tightest of the grid), and its cost."""
    for tolerance in tolerances:
        error = np.abs(solve(tolerance) - best).mean(1)
        if np.quantile(error, QUANTILE) <= ERROR:
            break
    return {
        "system": name,
        "tolerance": tolerance,
        "accurate": bool(np.quantile(error, QUANTILE) <= ERROR),
        "error_quantile": float(np.quantile(error, QUANTILE)),
        "other_optima": int((error > OPTIMUM).sum()),
        "cpu_seconds": cpu_seconds(lambda: solve(tolerance)),
    }


def seconds_per_pass(run: Callable[[int], object]) -> float:
    """CPU seconds of a pass of ``run(passes)``."""
    few, many = (cpu_seconds(partial(run, passes)) for passes in PASSES)
    return (many - few) / (PASSES[1] - PASSES[0])


def measure_passes(model: TopicModel, batch: DocumentBatch) -> dict[str, float | str]:
    """Cost of a pass of VB and of EP in the dtype of the model, without convergence."""
    vb, ep = DirichletGuide(model), EPGuide(model)
    vb_pass = seconds_per_pass(lambda n: by_vb(vb, batch, NEVER, n))
    ep_pass = seconds_per_pass(lambda n: by_ep(ep, batch, n))
    return {
        "dtype": str(model.dtype).removeprefix("torch."),
        "vb_cpu_seconds": vb_pass,
        "ep_cpu_seconds": ep_pass,
        "ep_over_vb": ep_pass / vb_pass,
    }


@dataclass(frozen=True)
class Settings:
    """Settings of the study.

    Attributes:
        corpus: Name of a corpus in the folder of data, or a path.
        num_topics: Topics.
        concentration: α of every topic.
        passes: Whether to time the passes of VB and EP too.
    """

    corpus: str = "ap"
    num_topics: int = 50
    concentration: float = 0.1
    passes: bool = True

    def __post_init__(self) -> None:
        """Check the numbers."""
        check_numbers(self, {"num_topics": 2}, ["concentration"])


@dataclass(frozen=True)
class Result:
    """The E-steps (scikit-learn's comes last), and the passes by dtype."""

    e_steps: list[dict[str, Any]]
    passes: list[dict[str, Any]]


def run(settings: Settings, cells: Cells) -> Result:
    """Time the E-steps and the passes."""
    torch.set_num_threads(1)
    corpus = lntm.read_corpus(corpus_file(settings.corpus))
    topics = plausible_topics(corpus, settings.num_topics)
    dtypes = {"float32": torch.float32, "float64": torch.float64}
    models = {name: make_model(topics, settings.concentration, d) for name, d in dtypes.items()}
    batches = {name: corpus.batch(dtype=dtype) for name, dtype in dtypes.items()}
    guides = {name: DirichletGuide(model) for name, model in models.items()}
    best = by_vb(guides["float64"], batches["float64"], 1e-9)

    def e_step(key: tuple[str, str]) -> dict[str, Any]:
        system, name = key
        if system == "VB":
            solve = partial(by_vb, guides[name], batches[name])
            return loosest(f"VB {name}", solve, VB_TOLERANCES, best)
        solve = partial(by_sklearn, corpus, topics, settings.concentration)
        return loosest("scikit-learn float64", solve, SKLEARN_TOLERANCES, best)

    systems = [("VB", "float32"), ("VB", "float64"), ("scikit-learn", "float64")]
    passes: list[dict[str, Any]] = []
    e_steps = cells.each(systems, e_step)
    if settings.passes:
        keys = [("passes", name) for name in dtypes]
        passes = cells.each(keys, lambda key: measure_passes(models[key[1]], batches[key[1]]))
    return Result(e_steps, passes)


def tables(result: Result) -> str:
    """The E-steps, and the passes if they were timed."""
    peer = result.e_steps[-1]["cpu_seconds"]
    text = table_of(
        [
            {
                "E-step": row["system"],
                "tolerance": f"{row['tolerance']:.0e}",
                "error": f"{row['error_quantile']:.1e}",
                "other optima": str(row["other_optima"]),
                "CPU s": f"{row['cpu_seconds']:.2f}",
                "of scikit-learn's": f"{row['cpu_seconds'] / peer:.2f}",
            }
            for row in result.e_steps
        ]
    )
    if not result.passes:
        return text
    passes = [
        {
            "one pass": row["dtype"],
            "VB ms": f"{1e3 * row['vb_cpu_seconds']:.1f}",
            "EP ms": f"{1e3 * row['ep_cpu_seconds']:.1f}",
            "EP/VB": f"{row['ep_over_vb']:.1f}",
        }
        for row in result.passes
    ]
    return f"{text}\n\n{table_of(passes)}"


STUDY = Study(Settings, run, tables, quick={"num_topics": 10, "passes": False})
