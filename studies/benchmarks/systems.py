"""The systems of the studies, each fitted in a process of its own.

    python -m studies.benchmarks.systems SYSTEM --train TRAIN.npz --num-topics K --out FIT.npz

The process imports only the system's library, to measure the memory of the system alone. It writes
the topics, the prior, the seconds and the memory to ``FIT.npz``.
"""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from studies.benchmarks.tuned import TUNED, length_class
from studies.machine import Stopwatch, memory_mb

SKLEARN_ITERATIONS = 50
GENSIM_PASSES = 20
TOMOTOPY_SWEEPS = 1000
#: tomotopy's defaults, with more sweeps.
TOMOTOPY_DEFAULTS: Mapping[str, Any] = {
    "sweeps": TOMOTOPY_SWEEPS,
    "alpha": 0.1,
    "eta": 0.01,
    "optim_interval": 10,
    "states": 1,
    "lag": 10,
}
#: Options of topica's LDA that belong to ``fit()``.
TOPICA_FIT_OPTIONS = ("iters", "num_samples", "sample_interval")
#: Pseudo-counts of every word in every topic of topica's CTM, equal to this package's default.
TOPICA_SMOOTHING = 0.05
#: Bound on topics³ × sweeps of tomotopy's CTModel: 1,000 sweeps at K = 100 take over an hour.
CTM_EFFORT = 125_000_000
#: A fit by chains with about 8 times the work of a default fit.
LONG: Mapping[str, Any] = {"max_epochs": 120, "min_gain": 0.0, "num_chains": 4}
#: Parameters of a prior by their names in :class:`Fit`, except for normal priors with one mean.
PARAMETERS = {
    "lda": {"alpha": "concentration"},
    "stm": {"coefficients": "coefficients", "covariance": "covariance"},
}


def ctm_sweeps(num_topics: int) -> int:
    """Sweeps of tomotopy's CTModel: 1,000, but fewer from K = 50 up (125 at K = 100)."""
    return min(TOMOTOPY_SWEEPS, CTM_EFFORT // num_topics**3)


class FitWatch(Stopwatch):
    """A stopwatch that also records the memory before the fit.

    Attributes:
        memory_before: Resident memory in MB at the start of the first block. 0 before the block.
    """

    memory_before = 0.0

    def __enter__(self) -> FitWatch:
        self.memory_before = self.memory_before or memory_mb()
        super().__enter__()
        return self


@dataclass(frozen=True)
class Task:
    """Settings of a fit.

    Attributes:
        counts: ``(num_docs, num_words)`` training counts.
        num_topics: Number of topics.
        seed: Seed.
        threads: Threads, or workers.
        sweeps: Sweeps of tomotopy's CTModel. None for :func:`ctm_sweeps`.
        covariates: ``(num_docs, num_covariates)`` standardised, of structural models; else None.
        stopwatch: Entered around the fit.
        options: Options of the system in place of its defaults or tuned settings.
    """

    counts: sp.csr_matrix
    num_topics: int
    seed: int
    threads: int
    sweeps: int | None
    covariates: NDArray[np.float64] | None
    stopwatch: Stopwatch
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Fit:
    """A fitted system.

    Attributes:
        topics: ``(num_topics, num_words)`` word probabilities with the system's smoothing.
        prior: ``alpha`` ``(num_topics,)`` of a Dirichlet, or ``loc`` and ``covariance`` of a
            logistic normal. A mean linear in covariates has ``coefficients``
            ``(1 + num_covariates, latent_dim)``, the intercept's first, in place of ``loc``.
        settings: Settings of the system beyond its defaults, and figures that it reported.
    """

    topics: NDArray[np.floating]
    prior: dict[str, NDArray[np.floating]]
    settings: dict[str, Any]


def settings_for(system: str, task: Task) -> dict[str, Any]:
    """The tuned settings of a peer for the task's length of documents, and the task's options.

    A sum of concentrations given as ``"K"`` is the number of topics.
    """
    length = float(task.counts.sum()) / task.counts.shape[0]
    settings = {**TUNED[system][length_class(length)], **task.options}
    if settings.get("alpha_sum") == "K":
        settings["alpha_sum"] = float(task.num_topics)
    return settings


def torch_lntm_fit(kind: str, posterior: str, **options: Any) -> Callable[[Task], Fit]:
    """The fit of one of this package's recipes, all other options at their defaults.

    Args:
        kind: The model.
        posterior: The posterior: a guide's name, ``"hmc"`` for Monte-Carlo EM, or ``"auto"``.
        options: Options of the model or of the engine.
    """

    def fit(task: Task) -> Fit:
        import torch

        import torch_lntm as lntm
        from torch_lntm.models import DirichletMultinomial
        from torch_lntm.models.priors.covariates import PREVALENCE, Covariates
        from torch_lntm.recipes import Recipe

        torch.set_num_threads(task.threads)
        asked = {**options, **task.options}
        corpus = lntm.Corpus.from_matrix(task.counts)
        if task.covariates is not None:
            corpus = corpus.with_covariates({PREVALENCE: task.covariates})
        with task.stopwatch:
            chosen = Recipe(kind, posterior).for_corpus(corpus, task.num_topics)
            given = {"num_topics": task.num_topics, "progress": False, **asked}
            if task.covariates is not None:
                given[PREVALENCE] = Covariates.of(corpus, None)
            model, _, engine = chosen.make(corpus.num_words, seed=task.seed, options=given)
            result = engine.fit(corpus)
        prior: Any = model.prior
        names = PARAMETERS.get(kind, {"loc": "loc", "covariance": "covariance"})
        found = {ours: getattr(prior, name) for ours, name in names.items()}
        if isinstance(model.words, DirichletMultinomial):
            found["concentration"] = model.words.concentration
        return Fit(
            model.topics.double_probs.numpy(),
            {name: value.detach().double().numpy() for name, value in found.items()},
            {
                "settings": ", ".join(f"{name}={value}" for name, value in asked.items())
                or "defaults",
                "stop_reason": result.stop_reason,
                "unconverged": result.num_unconverged,
                "phases": phase_seconds(result.history),
            },
        )

    return fit


def phase_seconds(history: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Wall seconds and iterations of each phase of a fit."""
    phases: dict[str, dict[str, float]] = {}
    before = 0.0
    for record in history:
        phase = phases.setdefault(record["phase"], {"iterations": 0, "wall_seconds": 0.0})
        phase["iterations"] += 1
        phase["wall_seconds"] = round(phase["wall_seconds"] + record["seconds"] - before, 3)
        before = record["seconds"]
    return phases


def fit_sklearn(task: Task) -> Fit:
    """scikit-learn's LatentDirichletAllocation, in batches."""
    from sklearn.decomposition import LatentDirichletAllocation

    lda = LatentDirichletAllocation(
        task.num_topics,
        learning_method="batch",
        max_iter=SKLEARN_ITERATIONS,
        n_jobs=1,
        random_state=task.seed,
    )
    with task.stopwatch:
        lda.fit(task.counts)
    return Fit(
        lda.components_,
        {"alpha": np.full(task.num_topics, lda.doc_topic_prior_)},
        {"learning_method": "batch", "max_iter": SKLEARN_ITERATIONS, "n_jobs": 1},
    )


def fit_gensim(task: Task) -> Fit:
    """Gensim's LdaModel with a learned asymmetric prior."""
    from gensim.matutils import Sparse2Corpus
    from gensim.models import LdaModel

    counts = task.counts
    corpus = list(Sparse2Corpus(counts, documents_columns=False))
    with task.stopwatch:
        lda = LdaModel(
            corpus,
            num_topics=task.num_topics,
            id2word={i: str(i) for i in range(counts.shape[1])},
            passes=GENSIM_PASSES,
            alpha="auto",
            eval_every=None,
            random_state=task.seed,
        )
    return Fit(
        lda.get_topics(),
        {"alpha": lda.alpha},
        {"passes": GENSIM_PASSES, "alpha": "auto", "eval_every": None},
    )


def _tomotopy_model(task: Task, name: str, **options: Any) -> Any:
    """A model of tomotopy with the documents."""
    import tomotopy

    counts = task.counts
    model = getattr(tomotopy, name)(k=task.num_topics, seed=task.seed, **options)
    for start, stop in zip(counts.indptr[:-1], counts.indptr[1:], strict=True):
        tokens = np.repeat(counts.indices[start:stop], counts.data[start:stop])
        model.add_doc(tokens.astype(str).tolist())
    return model


def _tomotopy_topics(task: Task, model: Any) -> NDArray[np.float64]:
    """Topics of tomotopy's current state.

    tomotopy knows the words of its documents only. Its prior gives every unknown word eta
    pseudo-counts, and every known word counts + eta.
    """
    known = np.array([int(word) for word in model.used_vocabs])
    smoothed = np.full((task.num_topics, task.counts.shape[1]), model.eta)
    for k, tokens_of_topic in enumerate(model.get_count_by_topics()):
        total = tokens_of_topic + known.size * model.eta
        smoothed[k, known] = np.asarray(model.get_topic_word_dist(k)) * total
    return smoothed / smoothed.sum(1, keepdims=True)


def fit_tomotopy_lda(task: Task, **options: Any) -> Fit:
    """Tomotopy's LDAModel at its defaults: the topics and the concentration of the last sweep.

    Args:
        task: The task. Its options count more than other options.
        **options: Options in place of the defaults.
    """
    return _tomotopy_lda(task, {**TOMOTOPY_DEFAULTS, **options, **task.options})


def fit_tomotopy_lda_tuned(task: Task) -> Fit:
    """Tomotopy's LDAModel with the settings of :mod:`studies.benchmarks.tuned`."""
    return _tomotopy_lda(task, {**TOMOTOPY_DEFAULTS, **settings_for("tomotopy LDA", task)})


def _tomotopy_lda(task: Task, options: Mapping[str, Any]) -> Fit:
    """A mean of states, ``lag`` sweeps apart, as tomotopy's maintainer advises.

    The seconds are those of ``train()``, without reading the states.
    """
    alpha_sum = options.get("alpha_sum")
    start = options["alpha"] if alpha_sum is None else alpha_sum / task.num_topics
    given = {"eta": options["eta"], "alpha": start}
    model = _tomotopy_model(task, "LDAModel", **given)
    model.optim_interval = options["optim_interval"]
    topics = np.zeros((task.num_topics, task.counts.shape[1]))
    alpha = np.zeros(task.num_topics)
    for state in range(options["states"]):
        with task.stopwatch:
            model.train(options["lag"] if state else options["sweeps"], workers=task.threads)
        topics += _tomotopy_topics(task, model)
        alpha += model.alpha
    return Fit(
        topics / options["states"],
        {"alpha": alpha / options["states"]},
        {**options, "workers": task.threads, "timed": "train() alone"},
    )


def fit_tomotopy_ctm(task: Task) -> Fit:
    """Tomotopy's CTModel."""
    sweeps = task.sweeps or ctm_sweeps(task.num_topics)
    model = _tomotopy_model(task, "CTModel")
    with task.stopwatch:
        model.train(sweeps, workers=task.threads)
    covariance = np.asarray(model.prior_cov).reshape(task.num_topics, -1)
    return Fit(
        _tomotopy_topics(task, model),
        {"loc": np.asarray(model.prior_mean), "covariance": covariance},
        {"sweeps": sweeps, "workers": task.threads, "timed": "train() alone"},
    )


def _fit_topica(task: Task, model: Any, **options: Any) -> tuple[NDArray[np.integer], Fit]:
    """A model of topica, and the columns of its known words."""
    counts = task.counts
    given = {} if task.covariates is None else {"prevalence": task.covariates}
    documents = [
        [str(word) for word in np.repeat(counts.indices[start:stop], counts.data[start:stop])]
        for start, stop in zip(counts.indptr[:-1], counts.indptr[1:], strict=True)
    ]
    with task.stopwatch:
        model.fit(documents, num_threads=task.threads, progress=False, **given, **options)
    return np.array([int(word) for word in model.vocabulary]), Fit(
        np.zeros((task.num_topics, counts.shape[1])), {}, {"settings": "defaults", **options}
    )


def fit_topica_lda(task: Task) -> Fit:
    """Topica's LDA at its defaults: sparse Gibbs sampling, a learned asymmetric concentration."""
    return _topica_lda(task, task.options)


def fit_topica_lda_tuned(task: Task) -> Fit:
    """Topica's LDA with the settings of :mod:`studies.benchmarks.tuned`."""
    return _topica_lda(task, settings_for("topica LDA", task))


def _topica_lda(task: Task, options: Mapping[str, Any]) -> Fit:
    import topica

    of_fit = {name: options[name] for name in TOPICA_FIT_OPTIONS if name in options}
    given = {name: value for name, value in options.items() if name not in of_fit}
    model = topica.LDA(task.num_topics, seed=task.seed, **given)
    known, fit = _fit_topica(task, model, **of_fit)
    fit.settings.update(given)
    # The prior's probability of a word without counts is below that of every known word.
    fit.topics[:] = model.topic_word.min(1, keepdims=True)
    fit.topics[:, known] = model.topic_word
    fit.prior["alpha"] = np.asarray(model.alpha)
    return fit


def fit_topica_ctm(task: Task) -> Fit:
    """Topica's CTM, R stm's algorithm; its unsmoothed topics are smoothed here."""
    import topica

    model = topica.CTM(task.num_topics, seed=task.seed)
    known, fit = _fit_topica(task, model, keep_eta_cov=False)
    _smooth_topica(task, model, known, fit)
    # Without covariates its prior mean is the mean of the documents' eta.
    fit.prior.update(loc=model.eta_mean.mean(0), covariance=model.topic_covariance)
    return fit


def fit_topica_stm(task: Task) -> Fit:
    """Topica's STM, R stm's algorithm; its unsmoothed topics are smoothed here."""
    import topica

    model = topica.STM(task.num_topics, seed=task.seed)
    known, fit = _fit_topica(task, model, keep_eta_cov=False)
    _smooth_topica(task, model, known, fit)
    fit.prior.update(coefficients=model.prevalence_effects, covariance=model.topic_covariance)
    return fit


def _smooth_topica(task: Task, model: Any, known: NDArray[np.integer], fit: Fit) -> None:
    """Give the fit topica's topics, with pseudo-counts of all words."""
    tokens = model.doc_topic.T @ np.asarray(task.counts.sum(1)).ravel()
    fit.topics[:, known] = model.topic_word * tokens[:, None]
    fit.topics[:] += TOPICA_SMOOTHING
    fit.settings.update(smoothing=TOPICA_SMOOTHING, iterations=len(model.bound_history))


#: By name: the module with free memory for its import, and the fit.
SYSTEMS: dict[str, tuple[str, Callable[[Task], Fit]]] = {
    "torch_lntm ctm": ("torch", torch_lntm_fit("ctm", "taylor")),
    "torch_lntm iftm": ("torch", torch_lntm_fit("iftm", "factor")),
    "torch_lntm iftm, Taylor": ("torch", torch_lntm_fit("iftm", "taylor")),
    "torch_lntm iftm, Laplace sources": (
        "torch",
        torch_lntm_fit("iftm", "factor", source="laplace"),
    ),
    "torch_lntm lda, VB": ("torch", torch_lntm_fit("lda", "vb")),
    "torch_lntm lda, EP": ("torch", torch_lntm_fit("lda", "ep")),
    "torch_lntm Monte-Carlo EM": ("torch", torch_lntm_fit("ctm", "hmc")),
    "torch_lntm ctm, auto": ("torch", torch_lntm_fit("ctm", "auto")),
    "torch_lntm ctm, auto, bursty": ("torch", torch_lntm_fit("ctm", "auto", bursty=True)),
    "torch_lntm ctm, auto, 4 epochs": ("torch", torch_lntm_fit("ctm", "auto", max_epochs=4)),
    "torch_lntm ctm, auto, 12 epochs": ("torch", torch_lntm_fit("ctm", "auto", max_epochs=12)),
    "torch_lntm ctm, auto, long": ("torch", torch_lntm_fit("ctm", "auto", **LONG)),
    "torch_lntm lda, auto": ("torch", torch_lntm_fit("lda", "auto")),
    "torch_lntm iftm, auto": ("torch", torch_lntm_fit("iftm", "auto")),
    "tomotopy LDA": ("tomotopy", fit_tomotopy_lda),
    "tomotopy LDA, 100 sweeps": ("tomotopy", partial(fit_tomotopy_lda, sweeps=100)),
    "tomotopy LDA, tuned": ("tomotopy", fit_tomotopy_lda_tuned),
    "topica LDA": ("topica", fit_topica_lda),
    "topica LDA, tuned": ("topica", fit_topica_lda_tuned),
    "gensim LDA": ("gensim.models", fit_gensim),
    "scikit-learn LDA": ("sklearn.decomposition", fit_sklearn),
    "topica CTM": ("topica", fit_topica_ctm),
    "tomotopy CTM": ("tomotopy", fit_tomotopy_ctm),
}
#: Systems with a prior mean linear in the documents' covariates.
STRUCTURAL_SYSTEMS: dict[str, tuple[str, Callable[[Task], Fit]]] = {
    "torch_lntm stm": ("torch", torch_lntm_fit("stm", "taylor")),
    "torch_lntm stm, auto": ("torch", torch_lntm_fit("stm", "auto")),
    "torch_lntm stm, auto, 4 epochs": ("torch", torch_lntm_fit("stm", "auto", max_epochs=4)),
    "topica STM": ("topica", fit_topica_stm),
}
ALL_SYSTEMS = SYSTEMS | STRUCTURAL_SYSTEMS


def main() -> None:
    """Fit one system of the command line."""
    parser = argparse.ArgumentParser(description="Fit one system of the comparison.")
    parser.add_argument("system", choices=ALL_SYSTEMS)
    parser.add_argument("--train", type=Path, required=True, help="scipy's .npz of counts")
    parser.add_argument("--num-topics", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ctm-sweeps", type=int)
    parser.add_argument("--covariates", type=Path, help="numpy's .npy, of structural models")
    parser.add_argument("--options", type=json.loads, default={}, help="JSON, of the system")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    library, fit_system = ALL_SYSTEMS[args.system]
    importlib.import_module(library)
    imported = memory_mb()
    stopwatch = FitWatch()
    counts = sp.csr_matrix(sp.load_npz(args.train))
    covariates = None if args.covariates is None else np.load(args.covariates, allow_pickle=False)
    fit = fit_system(
        Task(
            counts,
            args.num_topics,
            args.seed,
            args.threads,
            args.ctm_sweeps,
            covariates,
            stopwatch,
            args.options,
        )
    )
    measured = {
        "cpu_seconds": stopwatch.cpu_seconds,
        "wall_seconds": stopwatch.wall_seconds,
        "peak_mb": memory_mb(peak=True) - imported,
        "import_mb": imported,
        "fit_mb": memory_mb(peak=True) - stopwatch.memory_before,
        **fit.settings,
    }
    arrays = {"record": np.array(json.dumps(measured)), "topics": fit.topics, **fit.prior}
    np.savez(args.out, allow_pickle=False, **arrays)


if __name__ == "__main__":
    main()
