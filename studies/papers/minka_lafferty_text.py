"""Test perplexity and concentrations of aspect models of texts: *Minka & Lafferty 2002, Figure 3*.

EP and VB fit aspect models to the same documents from the same random start. Documents are
mixtures, each three documents of known categories put together (§6.2,
``studies/configs/minka_lafferty_mixtures.yaml``, five minutes on one core), or those of a corpus as
they are (§6.3, ``studies/configs/minka_lafferty_ap.yaml``, eight minutes).
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

#: The methods compared: variational Bayes by eq. 27, expectation propagation by eqs 32–34.
COMPARED = ("vb", "ep")
#: The change at which a document's posterior has converged in an E-step; see the guides.
EM_TOLERANCE = 1e-3
#: The same for EP's posterior that importance sampling draws around, and the passes it takes at
#: most: a proposal need not have converged, and more do not improve the estimate.
PROPOSAL_TOLERANCE, PROPOSAL_PASSES = 1e-2, 10
#: Estimates with a larger Pareto k are unreliable.
PARETO_K_LIMIT = 0.7


@dataclass(frozen=True)
class TextSettings:
    """Settings of the study.

    Attributes:
        corpus: Name of a corpus in the folder of data, or a path.
        categories: Labels to mix documents of; none to take the corpus's documents as they are.
        parts: Documents of a mixture. Each is of a category drawn anew, and no document is used
            twice in a repetition.
        num_docs: Mixtures made, or documents drawn.
        test_fraction: Share of them that is kept for the perplexity.
        num_topics: Aspects.
        min_df: Training documents that a word must occur in to be kept. Other words are dropped
            from the test documents as well.
        topic_smoothing: Pseudo-counts of every word in every aspect; 0, as in the paper, is maximum
            likelihood.
        updates: Updates of EM.
        evaluate_every: Updates between two evaluations; the first update is evaluated as well.
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
            ConfigError: A value that cannot be used.
        """
        names = ("parts", "min_df", "updates", "evaluate_every", "repetitions")
        whole = {**dict.fromkeys(names, 1), "num_docs": 2, "num_topics": 2, "seed": 0}
        check_numbers(self, whole, ["test_fraction"])
        if not self.test_fraction < 1.0:
            raise ConfigError(f"test_fraction is {self.test_fraction}; expected one below 1")

    def evaluated(self) -> list[int]:
        """The updates after which the perplexity is taken, ascending."""
        every = range(self.evaluate_every, self.updates + 1, self.evaluate_every)
        return sorted({1, *every, self.updates})


@dataclass(frozen=True)
class Fit:
    """One method on one draw of documents.

    Attributes:
        repetition: Number of the draw.
        method: Name of the method.
        perplexity: Perplexity of the test documents after each of :meth:`TextSettings.evaluated`.
        dirichlet_perplexity: The last one again, drawing from EP's Dirichlet as in the paper.
        concentration: The learned α at the end, falling.
        sampling_error: Standard error over draws of the last log perplexity.
        unreliable: Share of test documents whose last estimate has a Pareto k̂ above 0.7.
        unconverged: Documents that did not converge in the last E-step.
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
        settings: What was asked for.
        fits: One per repetition and method.
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
        ConfigError: There is no such corpus, or too few documents.
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
        corpus: Where they come from.
        settings: The settings.
        rng: What draws them.

    Returns:
        The training documents, the test documents, and the share of the latter's tokens that was
        dropped.

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
        corpus: Documents with labels; those of a single label are used.
        categories: The labels to draw from.
        num_docs: Mixtures to make.
        parts: Documents in each. No document is used twice, so that training and test mixtures
            have none in common.
        rng: What draws them.

    Returns:
        ``(num_docs, num_words)`` counts.

    Raises:
        ConfigError: The corpus has no labels, or a category too few documents.
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
    """Fit one method, taking the test perplexity on the way.

    Args:
        settings: The settings.
        repetition: Number of the repetition.
        method: ``"vb"`` or ``"ep"``.
        train: The documents to fit.
        test: The documents to evaluate on.
        start: ``(num_topics, num_words)`` topics to start from; every concentration starts at 1.
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
    """Likelihood of the test documents, drawing around EP's posterior for whichever method.

    The paper draws from EP's Dirichlet itself, which has too little mass where aspects are absent.
    The perplexity then comes out too high, and higher for sparser models. ``"sticks"`` avoids that.
    """
    guide = EPGuide(model, tolerance=PROPOSAL_TOLERANCE, max_iterations=PROPOSAL_PASSES)
    with warnings.catch_warnings():
        # The share of estimates with a high Pareto k is in the result.
        warnings.simplefilter("ignore", UserWarning)
        return log_likelihood(
            model,
            test,
            guide=guide,
            num_samples=settings.num_samples,
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
