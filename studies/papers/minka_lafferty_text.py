"""Test perplexity and concentrations of aspect models of texts: *Minka & Lafferty 2002, Figure 3*.

EP and VB fit aspect models to the same documents from the same random start. Documents are
mixtures, three documents of known categories each (§6.2,
``studies/configs/minka_lafferty_mixtures.yaml``, five minutes on one core), or the documents of a
corpus (§6.3, ``studies/configs/minka_lafferty_ap.yaml``, eight minutes).
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray

from studies.measure import Cells, Study, check_numbers, corpus_file
from studies.papers.minka_lafferty import STYLES, em_updates, make_method
from studies.tables import mean_and_error, table, with_error
from torch_lntm.corpus import Corpus, read_corpus
from torch_lntm.errors import ConfigError
from torch_lntm.evaluation import LikelihoodEstimate, log_likelihood
from torch_lntm.guides import EPGuide
from torch_lntm.models import DirichletPrior, TopicModel, lda

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Compared methods: variational Bayes by eq. 27, expectation propagation by eqs 32–34.
COMPARED = ("vb", "ep")
#: The change at convergence of a document's posterior in an E-step; see the guides.
EM_TOLERANCE = 1e-3
#: Tolerance and largest number of passes of EP's posterior for importance sampling. A proposal
#: needs no convergence, and further passes leave the estimate unchanged.
PROPOSAL_TOLERANCE, PROPOSAL_PASSES = 1e-2, 10
#: Estimates with a larger Pareto k are unreliable.
PARETO_K_LIMIT = 0.7


@dataclass(frozen=True)
class TextSettings:
    """Settings of the study.

    Attributes:
        corpus: Name of a corpus in the folder of data, or a path.
        categories: Labels of the mixed documents. Empty for the corpus's own documents.
        parts: Documents of a mixture. Each category is drawn anew, and a repetition uses every
            document at most once.
        num_docs: Number of mixtures or documents.
        test_fraction: Share of test documents.
        num_topics: Aspects.
        min_df: Least number of training documents with a word. Rarer words are dropped from test
            documents too.
        topic_smoothing: Pseudo-counts of every word in every aspect; 0, as in the paper, is maximum
            likelihood.
        updates: Updates of EM.
        evaluate_every: Updates between two evaluations. The first update is evaluated as well.
        num_samples: Draws per document in importance sampling.
        repetitions: Draws of documents, split and start.
        seed: Seed of all draws.
    """

    corpus: str = "reuters21578"
    categories: tuple[str, ...] = ("earn", "acq", "crude", "trade", "money-fx", "interest")
    parts: int = 3
    num_docs: int = 200
    test_fraction: float = 0.25
    num_topics: int = 6
    min_df: int = 2
    topic_smoothing: float = 0.0
    updates: int = 40
    evaluate_every: int = 5
    num_samples: int = 1000
    repetitions: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: A value is out of range.
        """
        names = ("parts", "min_df", "updates", "evaluate_every", "repetitions")
        whole = {**dict.fromkeys(names, 1), "num_docs": 2, "num_topics": 2, "seed": 0}
        check_numbers(self, whole, ["test_fraction"])
        if not self.test_fraction < 1.0:
            raise ConfigError(f"test_fraction is {self.test_fraction}; expected below 1")

    def evaluated(self) -> list[int]:
        """The evaluated updates, ascending."""
        every = range(self.evaluate_every, self.updates + 1, self.evaluate_every)
        return sorted({1, *every, self.updates})


@dataclass(frozen=True)
class Fit:
    """One method on one draw of documents.

    Attributes:
        repetition: Number of the draw.
        method: Name of the method.
        perplexity: Perplexity of the test documents after each of :meth:`TextSettings.evaluated`.
        dirichlet_perplexity: The last perplexity again, with draws from EP's Dirichlet as in the
            paper.
        concentration: The learned α at the end, falling.
        sampling_error: Standard error over draws of the last log perplexity.
        unreliable: Share of test documents with a Pareto k̂ above 0.7 at the last estimate.
        unconverged: Documents without convergence in the last E-step.
        seconds: Processor time of EM, evaluations left out.
    """

    repetition: int
    method: str
    perplexity: list[float]
    dirichlet_perplexity: float
    concentration: list[float]
    sampling_error: float
    unreliable: float
    unconverged: int
    seconds: float

    @property
    def shares(self) -> NDArray[np.float64]:
        """The concentrations, normalised."""
        alpha = np.array(self.concentration)
        return alpha / alpha.sum()


@dataclass(frozen=True)
class TextResult:
    """The result of the study.

    Attributes:
        settings: The settings.
        fits: One for each repetition and method.
        dropped: Share of the test documents' tokens dropped, in each repetition.
    """

    settings: TextSettings
    fits: list[Fit]
    dropped: list[float]

    def of(self, method: str) -> list[Fit]:
        """The fits of a method, by repetition."""
        return [fit for fit in self.fits if fit.method == method]

    def tables(self) -> str:
        """Perplexities and the spread of the concentrations, with standard errors."""
        vb, ep = self.of("vb"), self.of("ep")
        rows = []
        for i, update in enumerate(self.settings.evaluated()):
            values = [[fit.perplexity[i] for fit in fits] for fits in (vb, ep)]
            difference = [a - b for a, b in zip(*values, strict=True)]
            cells = [with_error(each, 1) for each in (*values, difference)]
            rows.append([str(update), *cells])
        measures = {
            "test perplexity, drawing from EP's Dirichlet": [
                f.dirichlet_perplexity for f in vb + ep
            ],
            "standard deviation of normalised α": [f.shares.std() for f in vb + ep],
            "largest α over smallest": [f.shares.max() / f.shares.min() for f in vb + ep],
            "sum of α": [sum(f.concentration) for f in vb + ep],
            "processor seconds of EM": [f.seconds for f in vb + ep],
            "unconverged documents in the last E-step": [float(f.unconverged) for f in vb + ep],
            "share of test documents with Pareto k above 0.7": [f.unreliable for f in vb + ep],
            "sampling error of the log perplexity": [f.sampling_error for f in vb + ep],
        }
        half = len(vb)
        spread = [
            [
                name,
                with_error(values[:half], 4),
                with_error(values[half:], 4),
                with_error([a - b for a, b in zip(values[:half], values[half:], strict=True)], 4),
            ]
            for name, values in measures.items()
        ]
        header = ["VB", "EP", "VB − EP"]
        return (
            f"Test perplexity, mean over {self.settings.repetitions} repetitions (standard error; "
            f"differences are paired).\n\n{table(['updates', *header], rows)}\n\n"
            f"{table(['at the end', *header], spread)}\n\n"
            f"Test tokens dropped: {mean_and_error(self.dropped)[0]:.2%}."
        )

    def figure(self) -> Figure:
        """The paper's Figure 3: perplexities, and normalised concentrations of VB and EP."""
        from matplotlib.figure import Figure

        plot = Figure(figsize=(9.6, 3.6), layout="constrained")
        left, right = plot.subplots(1, 2)
        updates = self.settings.evaluated()
        for offset, method in ((-0.2, "vb"), (0.2, "ep")):
            fits, style = self.of(method), STYLES[method]
            for fit in fits:
                left.plot(updates, fit.perplexity, lw=0.7, alpha=0.35, **style)
            mean = np.mean([fit.perplexity for fit in fits], 0)
            left.plot(updates, mean, lw=2.2, label=method.upper(), **style)
            shares = np.stack([fit.shares for fit in fits])
            error = shares.std(0, ddof=1) / np.sqrt(len(fits)) if len(fits) > 1 else None
            places = np.arange(1, self.settings.num_topics + 1) + offset
            bars = {"color": style["color"], "label": method.upper(), "error_kw": {"lw": 1.0}}
            right.bar(places, shares.mean(0), 0.38, yerr=error, **bars)
        left.set_xlabel("updates of EM")
        left.set_ylabel("test perplexity")
        right.axhline(1.0 / self.settings.num_topics, color="#4d4d4d", lw=0.8, ls=":")
        right.set_xlabel("aspects, by concentration")
        right.set_ylabel("α / Σα")
        right.set_xticks(range(1, self.settings.num_topics + 1))
        for ax in (left, right):
            ax.grid(alpha=0.25, axis="y")
            ax.legend(frameon=False)
        return plot


def run(settings: TextSettings, cells: Cells) -> TextResult:
    """Draw documents, and fit and evaluate both methods on them.

    Raises:
        ConfigError: The corpus does not exist, or too few documents.
    """
    corpus = read_corpus(corpus_file(settings.corpus))

    def measure(repetition: int) -> dict[str, Any]:
        rng = np.random.default_rng([settings.seed, repetition])
        train, test, dropped = draw_documents(corpus, settings, rng)
        # Aspects with the corpus's frequent words, each word more or less frequent at random.
        noise = rng.exponential(size=(settings.num_topics, train.num_words))
        start = torch.from_numpy(noise * train.to_scipy().sum(0).A1)
        fits = [fit(settings, repetition, name, train, test, start) for name in COMPARED]
        return {"dropped": dropped, "fits": [asdict(each) for each in fits]}

    found = cells.each(range(settings.repetitions), measure)
    fits = [Fit(**each) for cell in found for each in cell["fits"]]
    return TextResult(settings, fits, [cell["dropped"] for cell in found])


def draw_documents(
    corpus: Corpus, settings: TextSettings, rng: np.random.Generator
) -> tuple[Corpus, Corpus, float]:
    """Training and test documents over the words of the training documents.

    Args:
        corpus: Source of the documents.
        settings: The settings.
        rng: Source of randomness.

    Returns:
        The training documents, the test documents, and the dropped share of the test documents'
        tokens.

    Raises:
        ConfigError: The corpus has too few documents.
    """
    if settings.categories:
        counts = mixtures(corpus, settings.categories, settings.num_docs, settings.parts, rng)
    elif corpus.num_docs < settings.num_docs:
        raise ConfigError(f"{corpus!r} has fewer than {settings.num_docs} documents")
    else:
        counts = corpus.to_scipy()[rng.permutation(corpus.num_docs)[: settings.num_docs]]
    # The documents are in random order.
    num_test = max(1, round(settings.test_fraction * settings.num_docs))
    train, test = counts[num_test:], counts[:num_test]
    known = np.bincount(train.indices, minlength=corpus.num_words) >= settings.min_df
    words = None
    if corpus.vocabulary is not None:
        words = [word for word, keep in zip(corpus.vocabulary, known, strict=True) if keep]
    return (
        Corpus.from_matrix(train[:, known], words),
        Corpus.from_matrix(test[:, known], words),
        1.0 - float(test[:, known].sum() / test.sum()),
    )


def mixtures(
    corpus: Corpus,
    categories: Sequence[str],
    num_docs: int,
    parts: int,
    rng: np.random.Generator,
) -> sp.csr_matrix:
    """Sums of documents of categories drawn with replacement (*Minka & Lafferty 2002, §6.2*).

    Args:
        corpus: Documents with labels. Only documents with a single label take part.
        categories: Labels to draw from.
        num_docs: Number of mixtures.
        parts: Documents in each mixture. Every document is used at most once: training and test
            mixtures are disjoint.
        rng: Source of randomness.

    Returns:
        ``(num_docs, num_words)`` counts.

    Raises:
        ConfigError: The corpus has no labels, or a category has too few documents.
    """
    if corpus.labels is None:
        raise ConfigError(f"{corpus!r} has no labels to find categories by")
    labels = np.array(corpus.labels)
    drawn = rng.integers(len(categories), size=num_docs * parts)
    chosen = np.empty(drawn.size, np.int64)
    for i, category in enumerate(categories):
        places, documents = np.flatnonzero(drawn == i), np.flatnonzero(labels == category)
        if len(documents) < len(places):
            raise ConfigError(
                f"category {category!r} has {len(documents)} documents and {len(places)} were "
                "drawn; take another category or fewer mixtures"
            )
        chosen[places] = rng.permutation(documents)[: len(places)]
    which = np.repeat(np.arange(num_docs), parts)
    ones = np.ones(drawn.size, np.int64)
    selection = sp.csr_matrix((ones, (which, chosen)), (num_docs, corpus.num_docs))
    return selection @ corpus.to_scipy()


def fit(
    settings: TextSettings,
    repetition: int,
    method: str,
    train: Corpus,
    test: Corpus,
    start: torch.Tensor,
) -> Fit:
    """Fit one method, and compute the test perplexity at intervals.

    Args:
        settings: The settings.
        repetition: Number of the repetition.
        method: ``"vb"`` or ``"ep"``.
        train: Training documents.
        test: Test documents.
        start: ``(num_topics, num_words)`` topics at the start. Every concentration starts at 1.
    """
    model = lda(
        settings.num_topics,
        train.num_words,
        concentration=1.0,
        topics=start,
        topic_smoothing=settings.topic_smoothing,
        dtype=torch.float64,
    )
    updates = em_updates(make_method(method, model, EM_TOLERANCE), train.batch(dtype=torch.float64))
    perplexity, seconds, done = [], 0.0, 0
    for update in settings.evaluated():
        began = time.process_time()
        *_, (_, statistics) = islice(updates, update - done)
        seconds += time.process_time() - began
        done = update
        estimate = held_out_likelihood(model, test, settings, repetition, "sticks")
        perplexity.append(estimate.perplexity)
    printed = held_out_likelihood(model, test, settings, repetition, "dirichlet")
    pareto, prior = estimate.pareto_k, model.prior
    assert pareto is not None
    assert isinstance(prior, DirichletPrior)
    return Fit(
        repetition,
        method,
        perplexity,
        printed.perplexity,
        sorted(prior.concentration.tolist(), reverse=True),
        estimate.total_error / test.num_tokens,
        float((pareto > PARETO_K_LIMIT).double().mean()),
        int(statistics.num_unconverged),
        seconds,
    )


def held_out_likelihood(
    model: TopicModel,
    test: Corpus,
    settings: TextSettings,
    seed: int,
    proposal: Literal["sticks", "dirichlet"],
) -> LikelihoodEstimate:
    """Likelihood of the test documents, with draws around EP's posterior for both methods.

    The paper draws from EP's Dirichlet itself. It has too little mass at absent aspects, and makes
    the perplexity too high, more so for sparser models. ``"sticks"`` avoids the bias.
    """
    guide = EPGuide(model, tolerance=PROPOSAL_TOLERANCE, max_iterations=PROPOSAL_PASSES)
    with warnings.catch_warnings():
        # The result holds the share of estimates with a high Pareto k.
        warnings.simplefilter("ignore", UserWarning)
        return log_likelihood(
            model,
            test,
            guide=guide,
            num_draws=settings.num_samples,
            proposal=proposal,
            seed=seed,
        )


STUDY = Study(
    TextSettings,
    run,
    TextResult.tables,
    TextResult.figure,
    quick={"updates": 5, "repetitions": 1, "num_samples": 200},
)
