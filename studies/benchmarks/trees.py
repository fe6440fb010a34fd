"""Trees, groups and stability of topics, beside known hierarchies and fresh documents.

*Simulated corpora* have groups of topics. In the design ``words``, topics of a group share half of
their words. In the design ``proportions``, the logits of a group's topics are correlated. A fit's
topics are paired with the true topics, so their true groups are known. The study measures

* the adjusted Rand index between the true groups and the groups of a clustering;
* the coverage of 95 % intervals of a group's proportion, in single documents and as the mean of a
  population. The interval of the sum stands beside the sums of the ends of the topics' intervals.

*Corpora with labels*: a topic's class is the label of the documents with most of the topic. The
study measures the adjusted Rand index between the classes and as many groups of a clustering, and
the normalised mutual information between the documents' labels and their largest group.

*Real corpora* are divided into two halves. A model of the first half has a stability for each of
its topics (:func:`torch_lntm.topic_stability`, within the first half). Fits to the second half show
whether the topic is found again. The study measures the rank correlation of both.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from scipy.stats import spearmanr
from torch import Tensor

import torch_lntm as lntm
from studies.machine import Stopwatch
from studies.measure import Cells, Study, check_choices, check_numbers, corpus_file
from studies.tables import mean_and_error, table_of, with_error
from torch_lntm.evaluation import align_topics

Array = NDArray[np.float64]

#: Kinds of hierarchies.
DESIGNS = ("words", "proportions")
#: Draws from the true prior for the population's mean proportions.
POPULATION = 100_000


@dataclass(frozen=True)
class Settings:
    """Settings of the study.

    Attributes:
        designs: Kinds of hierarchies of the simulated corpora.
        num_corpora: Simulated corpora of each design.
        num_groups: Groups of topics.
        group_size: Topics of a group.
        num_words: Size of the vocabulary.
        num_docs: Documents of a simulated corpus.
        length: Tokens of a simulated document.
        num_draws: Draws of each document's proportions.
        labelled: Real corpora with the labels of the documents in NAME.labels.txt.
        labelled_topics: Topics of the fits to corpora with labels.
        corpora: Real corpora for the stability, by name or path.
        num_topics: Topics of the fits for the stability.
        num_fits: Fits of each kind for the stability, and fits to the second half.
        seeds: Seeds of the divisions into halves, and of the fits to corpora with labels.
    """

    designs: tuple[str, ...] = DESIGNS
    num_corpora: int = 20
    num_groups: int = 4
    group_size: int = 5
    num_words: int = 600
    num_docs: int = 1000
    length: int = 100
    num_draws: int = 100
    labelled: tuple[str, ...] = ("bbc", "agnews_ecrtm", "searchsnippets", "m10", "yahoo_ecrtm")
    labelled_topics: int = 40
    corpora: tuple[str, ...] = ("cora", "ap")
    num_topics: int = 30
    num_fits: int = 3
    seeds: tuple[int, ...] = (0, 1, 2)

    def __post_init__(self) -> None:
        """Check the settings."""
        sizes = ("num_groups", "group_size", "num_words", "num_docs", "num_draws", "num_topics")
        whole = {**dict.fromkeys(sizes, 2), "num_corpora": 0, "length": 1, "num_fits": 1}
        check_numbers(self, {**whole, "labelled_topics": 2, "seeds": 0})
        check_choices(self, "designs", DESIGNS)


@dataclass(frozen=True)
class Result:
    """The result of the study.

    Attributes:
        simulated: A row for each simulated corpus.
        labelled: A row for each corpus with labels and seed.
        real: A row for each real corpus and seed.
    """

    simulated: list[dict[str, Any]]
    labelled: list[dict[str, Any]]
    real: list[dict[str, Any]]


def run(settings: Settings, cells: Cells) -> Result:
    """Measure all corpora."""
    torch.set_num_threads(1)
    simulations = product(settings.designs, range(settings.num_corpora))
    simulated = cells.each(simulations, lambda key: simulated_corpus(settings, *key))
    classes = product(["labels"], settings.labelled, settings.seeds)
    labelled = cells.each(classes, lambda key: by_label(settings, *key[1:]))
    halves = product(settings.corpora, settings.seeds)
    return Result(simulated, labelled, cells.each(halves, lambda key: found_again(settings, *key)))


def true_model(settings: Settings, design: str, seed: int) -> lntm.models.TopicModel:
    """A correlated topic model with groups of neighbouring topics."""
    rng = np.random.default_rng([seed, DESIGNS.index(design)])
    size, groups = settings.group_size, settings.num_groups
    num_topics = size * groups
    words = rng.dirichlet(np.full(settings.num_words, 0.05), num_topics)
    covariance = np.eye(num_topics)
    if design == "words":
        shared = rng.dirichlet(np.full(settings.num_words, 0.05), groups)
        words = 0.5 * words + 0.5 * np.repeat(shared, size, 0)
    else:
        covariance = 0.4 * covariance + 0.6 * np.kron(np.eye(groups), np.ones((size, size)))
    return lntm.models.ctm(
        num_topics,
        settings.num_words,
        loc=torch.tensor(0.5 * rng.standard_normal(num_topics), dtype=torch.float32),
        covariance=torch.tensor(covariance, dtype=torch.float32),
        topics=torch.tensor(words, dtype=torch.float32),
        vocabulary=[f"w{v}" for v in range(settings.num_words)],
    )


def simulated_corpus(settings: Settings, design: str, seed: int) -> dict[str, Any]:
    """Agreement of clusterings with the true groups, and coverage of intervals."""
    truth = true_model(settings, design, seed)
    corpus, latents = truth.generate([settings.length] * settings.num_docs, seed=seed)
    theta = latents["eta"].double().softmax(-1)
    model = lntm.models.ctm(
        truth.num_topics, corpus.num_words, vocabulary=corpus.vocabulary, seed=seed
    )
    guide, stopwatch = lntm.guides.TaylorGuide(model), Stopwatch()
    with stopwatch:
        lntm.inference.VariationalEM(model, guide, progress=False).fit(corpus)
    alignment = align_topics(truth, model)
    row: dict[str, Any] = {
        "design": design,
        "seed": seed,
        "cpu_seconds": stopwatch.cpu_seconds,
        "similarity": float(alignment.similarity.mean()),
        "agreement": agreement(model, guide, corpus, alignment.partner, settings),
    }
    fits = {"true topics": (lntm.guides.TaylorGuide(truth), np.arange(truth.num_topics))}
    fits["fitted topics"] = (guide, alignment.partner)
    for name, (own, partner) in fits.items():
        row[name] = coverage(own, corpus, partner, theta, population_of(truth), settings)
    return row


def agreement(
    model: lntm.models.TopicModel,
    guide: Any,
    corpus: lntm.Corpus,
    partner: NDArray[np.int64],
    settings: Settings,
) -> dict[str, float]:
    """Adjusted Rand indices between the true groups and the groups of each clustering."""
    from sklearn.metrics import adjusted_rand_score

    true = np.empty(model.num_topics, int)
    true[partner] = np.arange(model.num_topics) // settings.group_size
    theta = lntm.inference.transform(guide, corpus, progress=False).theta.double().numpy()
    found = clusterings(model, theta, settings.num_groups)
    return {name: float(adjusted_rand_score(true, labels)) for name, labels in found.items()}


def clusterings(
    model: lntm.models.TopicModel, theta: Array, level: int
) -> dict[str, NDArray[np.int64]]:
    """Group of each topic, by several clusterings of the topics into ``level`` groups."""
    probs = model.topics.mean_probs.detach().double()
    return {
        "topic_tree, by words": tree_labels(model, "words", level),
        "topic_tree, by correlation": tree_labels(model, "correlation", level),
        "Jensen–Shannon of words, average linkage": clusters(jensen_shannon(probs), level),
        "correlation of theta, average linkage": clusters(
            np.subtract(1, np.corrcoef(theta.T)), level
        ),
    }


def by_label(settings: Settings, name: str, seed: int) -> dict[str, Any]:
    """Agreement of clusterings with the labels of a corpus."""
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    file = corpus_file(name)
    corpus = lntm.read_corpus(file)
    lines = file.with_suffix(".labels.txt").read_text(encoding="utf-8").splitlines()
    labels = np.unique(lines, return_inverse=True)[1]
    with (stopwatch := Stopwatch()):
        model, _ = fitted(settings.labelled_topics, corpus, seed)
    guide = lntm.guides.TaylorGuide(model)
    theta = lntm.inference.transform(guide, corpus, progress=False).theta.double().numpy()
    sizes = np.bincount(labels)
    shares = np.stack([theta[labels == label].mean(0) for label in range(len(sizes))])
    rows = {}
    for method, groups in clusterings(model, theta, len(sizes)).items():
        members = groups[:, None] == np.unique(groups)
        rows[method] = {
            "topics": float(adjusted_rand_score(shares.argmax(0), groups)),
            "documents": float(normalized_mutual_info_score(labels, (theta @ members).argmax(1))),
            "largest": int(members.sum(0).max()),
        }
    return {
        "corpus": name,
        "seed": seed,
        "classes": len(sizes),
        "cpu_seconds": stopwatch.cpu_seconds,
        "agreement": rows,
    }


def tree_labels(model: lntm.models.TopicModel, by: Any, level: int) -> NDArray[np.int64]:
    """Group of each topic at a level of its tree."""
    labels = np.empty(model.num_topics, np.int64)
    for g, topics in enumerate(lntm.topic_tree(model, by=by).groups(level).values()):
        labels[list(topics)] = g
    return labels


def clusters(distance: Array, level: int) -> NDArray[np.int64]:
    """Group of each topic by average linkage of a matrix of distances."""
    distance = (distance + distance.T) / 2
    np.fill_diagonal(distance, 0.0)
    merges = linkage(squareform(distance.clip(0), checks=False), "average")
    return np.asarray(fcluster(merges, level, "maxclust"))


def jensen_shannon(probs: Tensor) -> Array:
    """Jensen–Shannon distances between word distributions: square roots of divergences."""
    entropy = -torch.xlogy(probs, probs).sum(-1)
    rows = []
    for k, row in enumerate(probs):
        middle = (row + probs) / 2
        rows.append(-torch.xlogy(middle, middle).sum(-1) - (entropy[k] + entropy) / 2)
    return np.asarray(torch.stack(rows).clamp_min(0).sqrt())


def population_of(truth: lntm.models.TopicModel) -> Tensor:
    """Mean proportions ``(num_topics,)`` under the true prior."""
    prior: Any = truth.prior
    tril = torch.linalg.cholesky(prior.covariance.detach().double())
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(POPULATION, len(tril), generator=generator, dtype=torch.float64)
    return (prior.loc.detach().double() + normal @ tril.T).softmax(-1).mean(0)


def coverage(
    guide: Any,
    corpus: lntm.Corpus,
    partner: NDArray[np.int64],
    theta: Tensor,
    population: Tensor,
    settings: Settings,
) -> dict[str, float]:
    """Coverage and mean width of the intervals of the groups' proportions.

    Args:
        guide: The guide.
        corpus: The documents.
        partner: ``(num_topics,)`` the guide's topic of each true topic.
        theta: ``(num_docs, num_topics)`` true proportions.
        population: ``(num_topics,)`` mean proportions of the population.
        settings: The settings.
    """
    shape = (settings.num_groups, settings.group_size)
    members = partner.reshape(shape)
    groups = {f"group {g}": topics.tolist() for g, topics in enumerate(members)}
    summary = lntm.reports.summarise_corpus(
        guide, corpus, groups=groups, num_draws=settings.num_draws
    )
    single = summary.overall  # the groups come after the topics
    count = len(partner)
    true = population.unflatten(0, shape).sum(-1).numpy()
    found = {
        "population, sum": (single.lower[0, count:], single.upper[0, count:], true),
        "population, ends": (*(x[0][members].sum(-1) for x in (single.lower, single.upper)), true),
    }
    posterior = guide.posterior(guide.model.encode(corpus).batch())
    draws = posterior.theta_samples(settings.num_draws, seed=1).double()[..., partner]
    draws = draws.unflatten(-1, shape)
    levels = torch.tensor([0.025, 0.975], dtype=torch.float64)
    sums, ends = draws.sum(-1).quantile(levels, 0), draws.quantile(levels, 0).sum(-1)
    of_docs = theta.unflatten(-1, shape).sum(-1).numpy()
    found["documents, sum"] = (*sums.numpy(), of_docs)
    found["documents, ends"] = (*ends.numpy(), of_docs)
    numbers = {}
    for name, (lower, upper, at) in found.items():
        numbers[f"{name}: coverage"] = float(((lower <= at) & (at <= upper)).mean())
        numbers[f"{name}: width"] = float((upper - lower).mean())
    return numbers


def found_again(settings: Settings, name: str, seed: int) -> dict[str, Any]:
    """Stability of topics within one half of a corpus, and similarity in fits to the other half."""
    corpus = lntm.read_corpus(corpus_file(name))
    order = np.random.default_rng(seed).permutation(corpus.nonempty)
    halves = np.sort(order[: len(order) // 2]), np.sort(order[len(order) // 2 :])
    first, second = (corpus[half] for half in halves)
    stopwatch = Stopwatch()
    with stopwatch:
        model, result = fitted(settings.num_topics, first, seed)
        stability = lntm.topic_stability(result, first, settings.num_fits, seed=100 + seed)
        nearest = stability["nearest"].to_numpy()
        pairs = [
            align_topics(model, fitted(settings.num_topics, second, 200 + seed + i)[0])
            for i in range(settings.num_fits)
        ]
    fresh = np.mean([pair.similarity for pair in pairs], 0)
    found = np.mean([pair.similarity > nearest for pair in pairs], 0)
    shares = np.asarray(result.topic_shares, float)
    predictors = {
        "similarity, other seeds": stability["by_seed"].to_numpy(),
        "similarity, resamples": stability["by_resample"].to_numpy(),
        "share of resamples with the topic": stability["found_by_resample"].to_numpy(),
        "share of the topic": shares,
    }
    return {
        "corpus": name,
        "seed": seed,
        "cpu_seconds": stopwatch.cpu_seconds,
        "fresh": fresh.tolist(),
        "found": found.tolist(),
        "predictors": {key: np.asarray(x).tolist() for key, x in predictors.items()},
    }


def fitted(num_topics: int, corpus: lntm.Corpus, seed: int) -> tuple[Any, Any]:
    """A fit by variational EM."""
    model = lntm.models.ctm(num_topics, corpus.num_words, vocabulary=corpus.vocabulary, seed=seed)
    engine = lntm.inference.VariationalEM(
        model, lntm.guides.TaylorGuide(model), seed=seed, progress=False
    )
    return model, engine.fit(corpus)


def ranks(row: dict[str, Any], predictor: str) -> tuple[float, float]:
    """Rank correlation with the similarity in fresh documents, and area under the ROC curve.

    The area is of topics found by all fits to fresh documents against the remaining topics; NaN
    without topics of both kinds.
    """
    from sklearn.metrics import roc_auc_score

    values, always = row["predictors"][predictor], np.array(row["found"]) == 1
    area = roc_auc_score(always, values) if 0 < always.sum() < len(always) else float("nan")
    constant = len(set(values)) == 1
    rho = float("nan") if constant else float(spearmanr(values, row["fresh"]).statistic)
    return rho, float(area)


def tables(result: Result) -> str:
    """Four tables: clusterings, intervals, clusterings beside labels, and stability."""
    parts = []
    if result.simulated:
        parts = [_agreement_table(result.simulated), _coverage_table(result.simulated)]
    if result.labelled:
        parts.append(_label_table(result.labelled))
    if result.real:
        parts.append(_stability_table(result.real))
    return "\n\n".join([*parts, "Means, with standard errors over corpora or halves."])


def _agreement_table(rows: list[dict[str, Any]]) -> str:
    lines = []
    for method in rows[0]["agreement"]:
        line = {"adjusted Rand index": method}
        for design in dict.fromkeys(row["design"] for row in rows):
            of_design = [row["agreement"][method] for row in rows if row["design"] == design]
            line[f"groups of {design}"] = with_error(of_design, 2)
        lines.append(line)
    return table_of(lines)


def _coverage_table(rows: list[dict[str, Any]]) -> str:
    lines = []
    for design in dict.fromkeys(row["design"] for row in rows):
        for topics in ("true topics", "fitted topics"):
            own = [row[topics] for row in rows if row["design"] == design]
            line = {"95 % intervals": f"{design}, {topics}"}
            for kind in (
                "population, sum",
                "population, ends",
                "documents, sum",
                "documents, ends",
            ):
                mean, error = mean_and_error([100 * row[f"{kind}: coverage"] for row in own])
                width = fmean(row[f"{kind}: width"] for row in own)
                line[kind] = f"{mean:.1f} ({error:.1f}), {width:.3f}"
            lines.append(line)
    return table_of(lines)


def _label_table(rows: list[dict[str, Any]]) -> str:
    lines = []
    for corpus in dict.fromkeys(row["corpus"] for row in rows):
        own = [row for row in rows if row["corpus"] == corpus]
        for method in own[0]["agreement"]:
            found = [row["agreement"][method] for row in own]
            lines.append(
                {
                    "groups beside labels": f"{corpus} ({own[0]['classes']}), {method}",
                    "adjusted Rand index": with_error([x["topics"] for x in found], 2),
                    "mutual information": with_error([x["documents"] for x in found], 2),
                    "largest group": f"{fmean(x['largest'] for x in found):.1f}",
                }
            )
    return table_of(lines)


def _stability_table(rows: list[dict[str, Any]]) -> str:
    lines = []
    for corpus in dict.fromkeys(row["corpus"] for row in rows):
        own = [row for row in rows if row["corpus"] == corpus]
        for predictor in own[0]["predictors"]:
            rho, area = zip(*(ranks(row, predictor) for row in own), strict=True)
            usable = [x for x in area if x == x]
            lines.append(
                {
                    "topics found again": f"{corpus}, {predictor}",
                    "rank correlation": with_error([x for x in rho if x == x], 2),
                    "area": with_error(usable, 2),
                    "found": with_error([fmean(row["found"]) for row in own], 2),
                }
            )
    return table_of(lines)


STUDY = Study(
    Settings,
    run,
    tables,
    quick={
        "num_corpora": 1,
        "num_docs": 200,
        "num_words": 200,
        "labelled": (),
        "corpora": ("cora",),
        "num_topics": 10,
        "num_fits": 1,
        "seeds": (0,),
    },
)
