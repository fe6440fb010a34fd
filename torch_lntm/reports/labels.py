"""The words that describe topics, levels, groups, sources and keyword topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import scipy.stats
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError, require_level, require_one, require_whole
from torch_lntm.evaluation.coherence import frex
from torch_lntm.inference.documents import source_prior
from torch_lntm.models import TopicGroups, TopicModel
from torch_lntm.models.topic_groups import merged_topics
from torch_lntm.models.topics.dynamic import quantile_of, require_moving

#: Measures that rank a topic's words; see :func:`word_scores`.
LabelMeasure = Literal["probability", "frex", "lift", "score"]


def word_scores(
    topics: NDArray[np.float64],
    word_totals: NDArray[np.int64],
    measure: LabelMeasure = "frex",
    *,
    frequency_weight: float = 0.5,
) -> NDArray[np.float64]:
    """Scores of words as labels of topics (*Roberts et al. 2019, §3.4.1*).

    φ_kv is the probability of word v in topic k, n_v the number of its tokens in the corpus.

    * ``"probability"``: φ_kv.
    * ``"frex"`` (*Airoldi & Bischof 2016*): weighted harmonic mean of two ranks within the topic,
      divided by the number of words. One is the rank of φ_kv, which has the weight
      ``frequency_weight``. The other, which has the rest, is the rank of the exclusivity φ_kv/Σ_j
      φ_jv. For rare words, exclusivities are shrunk towards 1/K (James–Stein; *Hausser & Strimmer
      2009*).
    * ``"lift"``: log φ_kv − log(n_v/Σn); minus infinity for words without a token.
    * ``"score"``: φ_kv (log φ_kv − mean_j log φ_jv).

    Args:
        topics: ``(num_topics, num_words)`` probabilities.
        word_totals: ``(num_words,)`` tokens of each word in the corpus.
        measure: ``"probability"``, ``"frex"``, ``"lift"`` or ``"score"``. Defaults to ``"frex"``.
        frequency_weight: Weight of frequency in FREX, between 0 and 1.

    Returns:
        ``(num_topics, num_words)`` scores.

    Raises:
        ConfigError: The measure is unknown, or the weight out of range.
    """
    require_one(get_args(LabelMeasure), measure=measure)
    if not 0 <= frequency_weight <= 1:
        raise ConfigError(f"frequency_weight is {frequency_weight}; expected from 0 to 1")
    if measure == "probability":
        return topics
    logs = np.log(np.maximum(topics, np.finfo(np.float64).tiny))
    if measure == "score":
        return np.asarray(topics * (logs - logs.mean(0)))
    if measure == "lift":
        with np.errstate(divide="ignore"):
            share = np.log(word_totals / word_totals.sum())
        return np.where(np.isfinite(share), logs - share, -np.inf)
    return frex(topics, _exclusivity(topics, word_totals), 1 - frequency_weight)


def _exclusivity(
    topics: NDArray[np.float64], word_totals: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Shares of the topics in each word, shrunk towards 1/K by James and Stein's estimator."""
    num_topics = len(topics)
    share = topics / np.maximum(topics.sum(0), np.finfo(np.float64).tiny)
    variance = (share * (1 - share)).sum(0) / np.maximum(word_totals - 1, 1)
    distance = np.square(share - 1 / num_topics).sum(0)
    # Words with a single token, or with equal shares of all topics, are shrunk fully.
    informative = (word_totals > 1) & (distance > 0)
    shrinkage = np.ones(topics.shape[1])
    np.divide(variance, distance, out=shrinkage, where=informative)
    shrinkage = np.minimum(shrinkage, 1.0)
    return shrinkage / num_topics + (1 - shrinkage) * share


def best_words(
    model: TopicModel, corpus: Corpus, measure: LabelMeasure, *, top_n: int = 7
) -> list[tuple[str, ...]]:
    """The best words of each topic by a measure; see :func:`label_topics`."""
    require_whole(1, top_n=top_n)
    totals = np.asarray(model.encode(corpus).word_totals)
    probs = np.asarray(model.topics.mean_probs.detach().double().cpu())
    scores = word_scores(probs, totals, measure)
    # The more probable of two words with equal scores comes first.
    best = np.lexsort((-probs, -scores))[:, :top_n]
    return [model.words_at(row) for row in best.tolist()]


def label_topics(model: TopicModel, corpus: Corpus, *, top_n: int = 7) -> pd.DataFrame:
    """Best words of each topic by four measures, which :func:`word_scores` defines.

    Args:
        model: The model.
        corpus: The documents of the fit, for the word frequencies.
        top_n: Words by each measure.

    Returns:
        A row for each topic, with the columns ``topic``, ``name``, and the words by the measures
        ``probability``, ``frex``, ``lift`` and ``score``, each as a text.

    Raises:
        ConfigError: A number is out of range, or the corpus has other words.

    Example:
        >>> labels = lntm.reports.label_topics(model, corpus, top_n=3)
        >>> len(labels), len(labels["frex"][0].split())
        (10, 3)
    """
    names = model.topic_names
    labels = pd.DataFrame({"topic": range(len(names)), "name": names})
    for measure in get_args(LabelMeasure):
        words = best_words(model, corpus, measure, top_n=top_n)
        labels[measure] = [" ".join(row) for row in words]
    return labels


@torch.no_grad()
def level_words(model: TopicModel, *, top_n: int = 7) -> pd.DataFrame:
    """The words that each level of a content covariate uses for a topic more than the others do.

    Word v of topic k and level g scores φ_gkv log(φ_gkv / φ̄_kv), which is its part of the level's
    relative entropy to the mean φ̄ over levels. A word that is equally probable at all levels
    scores 0 and is left out.

    Args:
        model: A model with content covariates, ``models.stm(..., content="party")``.
        top_n: Most words of each topic and level.

    Returns:
        A row for each word, the most typical first, with the columns ``topic``, ``name``,
        ``level``, ``word``, ``probability``, and ``average``, the mean over levels.

    Raises:
        ConfigError: The number of words is below 1, or the model has no content covariates.
    """
    require_whole(1, top_n=top_n)
    topics: Any = model.topics
    if topics.num_levels == 1:
        raise ConfigError(
            "the model's topics are the same in all documents; make it by "
            "models.stm(num_topics, corpus, content='party')"
        )
    probs = topics.double_probs.cpu().unflatten(1, (topics.num_levels, topics.num_words))
    average = probs.mean(1)
    scores = probs * (probs / average[:, None]).log()
    scores = torch.where(topics.differing_words.cpu()[:, None], scores, 0.0)
    best = scores.sort(dim=-1, descending=True, stable=True).indices[..., :top_n]
    rows = [
        (k, name, level, *model.words_at([v]), float(probs[k, g, v]), float(average[k, v]))
        for k, name in enumerate(model.topic_names)
        for g, level in enumerate(topics.content.levels)
        for v in best[k, g].tolist()
        if scores[k, g, v] > 0
    ]
    return pd.DataFrame(rows, columns=["topic", "name", "level", "word", "probability", "average"])


@torch.no_grad()
def keyword_topics(
    model: TopicModel,
    tokens: Sequence[float] | Tensor,
    *,
    level: float = 0.95,
    top_n: int = 10,
) -> pd.DataFrame:
    """The keyword topics of a fitted model, and whether they kept their keywords.

    The interval of ``mass`` treats the topic of every token as known. It comes from a Beta
    distribution around the fitted probability, which counts as many tokens as the topic has in the
    documents and in its prior. Draws from ``inference.joint_draws`` also include the uncertainty of
    the tokens' topics.

    Args:
        model: A fitted model with keywords.
        tokens: ``(num_topics,)`` expected tokens of the topics in the documents. They are sums of
            the documents' tokens times their proportions, of which long documents have a larger
            part than of the topics' shares.
        level: Coverage probability of the intervals.
        top_n: Words beside the keywords.

    Returns:
        A row for each topic with keywords. ``keywords`` has the most probable first, and ``mass``
        is their probability in the topic, with its ``lower`` and ``upper`` end. ``rival`` names a
        topic in which the keywords are more probable, and is missing if the topic took hold.
        ``joined`` has the most probable words beside the keywords.

    Raises:
        ConfigError: The model has no keywords, or the level is outside of 0 to 1.

    Example:
        >>> keywords = {"cricket": ["cricket", "match"]}
        >>> settings = {"vocabulary": corpus.vocabulary, "keywords": keywords}
        >>> cricket = lntm.models.lda(2, corpus.num_words, **settings)
        >>> topics = lntm.reports.keyword_topics(cricket, [120.0, 80.0])
        >>> topics["name"].tolist(), topics["rival"].isna().tolist()
        (['cricket'], [True])
    """
    lists = model.topics.keywords
    if lists is None:
        raise ConfigError("the model has no keywords; make it by models.ctm(..., keywords=...)")
    require_level(level)
    probs = model.topics.mean_probs.detach().double().cpu()
    loads, names = lists.loads(probs), model.topic_names
    pseudo = lists.tokens + getattr(model.topics, "smoothing", 0.0) * model.num_words
    order = model.topics.top_words(model.num_words)[0].tolist()
    rows = []
    for k, columns in enumerate(lists.columns):
        mass, total = float(loads[k, k]), float(tokens[k]) + pseudo
        posterior = scipy.stats.beta(mass * total + 1e-9, (1.0 - mass) * total + 1e-9)
        ends = posterior.ppf([(1.0 - level) / 2.0, (1.0 + level) / 2.0]).tolist()
        best, own = int(loads[k].argmax()), set(columns)
        ranked = [model.words_at([v])[0] for v in sorted(own, key=lambda v: -float(probs[k, v]))]
        joined = model.words_at([v for v in order[k] if v not in own][:top_n])
        rival = None if best == k else names[best]
        rows.append((k, names[k], " ".join(ranked), mass, *ends, rival, " ".join(joined)))
    fields = ["topic", "name", "keywords", "mass", "lower", "upper", "rival", "joined"]
    return pd.DataFrame(rows, columns=fields)


def summarise_groups(
    model: TopicModel,
    groups: Mapping[str, Sequence[int | str]] | TopicGroups,
    shares: Sequence[float] | Tensor | None = None,
    *,
    top_n: int = 8,
) -> pd.DataFrame:
    """Summarises groups of topics by their shares and by the words of the merged topics.

    Args:
        model: The model.
        groups: The groups; see :class:`~torch_lntm.models.TopicGroups`.
        shares: ``(num_topics,)`` shares of the topics, such as ``result.topic_shares``. They weigh
            the topics of a group. Defaults to equal weights.
        top_n: Words of each group.

    Returns:
        A row for each group: ``group``, ``share`` (missing without shares), names of its
        ``topics``, and its most probable ``words``.

    Raises:
        ConfigError: A group is refused, a number is below 1, or there is another number of shares.

    Example:
        >>> groups = lntm.reports.summarise_groups(model, {"news": [3, 7]}, top_n=2)
        >>> groups["group"][0], len(groups["words"][0].split())
        ('news', 2)
    """
    require_whole(1, top_n=top_n)
    found = TopicGroups.of(model.topic_names, groups)
    best = merged_topics(model, found, shares).sort(dim=-1, descending=True, stable=True).indices
    members = [[model.topic_names[k] for k in topics] for topics in found.members]
    sums = [None if shares is None else float(sum(shares[k] for k in ks)) for ks in found.members]
    return pd.DataFrame(
        {
            "group": found.names,
            "share": pd.Series(sums, dtype=float),
            "topics": [", ".join(names) for names in members],
            "words": [" ".join(model.words_at(row)) for row in best[:, :top_n].tolist()],
        }
    )


@torch.no_grad()
def summarise_sources(model: TopicModel, *, num_topics: int = 4, top_n: int = 8) -> pd.DataFrame:
    """Sources of an independent factor topic model, with the topics at both ends of each.

    When a source is positive, the topics with large positive loadings occur together; when it is
    negative, those with large negative loadings do (*Putthividhya et al. 2009, §3.1*). The loadings
    are the columns of A, centred over topics because the softmax ignores a common shift. Their
    rotation, order and sign are conventions of :class:`~torch_lntm.models.IndependentFactorPrior`:
    Gaussian sources are rotated to the principal axes of A, sources are sorted by share, and the
    largest loading of each source is positive.

    Args:
        model: The model.
        num_topics: Most topics at each end. Each end has loadings of one sign.
        top_n: Words of each topic.

    Returns:
        A row for each topic at an end of a source, from the most positive ``loading`` to the most
        negative. A loading is the change of the topic's logit per unit of the source, and ``words``
        are the topic's most probable words. Each row has the ``source``, its ``distribution``, and
        its ``share`` of the variance of the centred logits.

    Raises:
        ConfigError: The model has no sources, or a number is below 1.

    Example:
        >>> factors = lntm.models.iftm(10, corpus.num_words, num_sources=2)
        >>> sources = lntm.reports.summarise_sources(factors)
        >>> sources.groupby("source")["distribution"].first().tolist()
        ['gaussian', 'gaussian']
    """
    prior = source_prior(model)
    require_whole(1, num_topics=num_topics, top_n=top_n)
    words = [" ".join(model.words_at(x)) for x in model.topics.top_words(top_n)[0].tolist()]
    loadings = prior.centred_mixing().cpu()
    variance = prior.source_variance * loadings.square().sum(0)
    shares = (variance / prior.contrast_covariance().trace().cpu()).tolist()
    rows = []
    for source, loading in enumerate(loadings.T):
        order = loading.argsort(stable=True, descending=True).tolist()
        rising = [k for k in order if loading[k] > 0][:num_topics]
        falling = [k for k in order if loading[k] < 0][-num_topics:]
        for k in rising + falling:
            about = (source, prior.source, shares[source], k, model.topic_names[k])
            rows.append((*about, float(loading[k]), words[k]))
    columns = ["source", "distribution", "share", "topic", "name", "loading", "words"]
    return pd.DataFrame(rows, columns=columns)


@torch.no_grad()
def moving_topics(model: TopicModel, *, level: float = 0.95, top_n: int = 5) -> pd.DataFrame:
    """The words that rose or fell from the first period to the last, if the model's words move.

    Intervals are those of :meth:`DynamicTopics.log_changes`, which hold for each word by itself.

    Args:
        model: A model with moving words, ``models.stm(..., content="~ rw(year)")``.
        level: Coverage probability of the intervals.
        top_n: Most words that rose, and most words that fell, of each topic.

    Returns:
        A row for each word, the largest changes of probability first. ``change`` is ``"rose"`` or
        ``"fell"``. ``first`` and ``last`` are the word's probabilities in the first and the last
        period, and ``ratio`` is their ratio, with the ``lower`` and the ``upper`` end of an
        interval that leaves out 1. ``drift`` belongs to the topic; see :meth:`DynamicTopics.drift`.

    Raises:
        ConfigError: The words of the model stand still, or a number is out of range.

    Example:
        >>> years = lntm.models.stm(5, posts, content="~ rw(year)")
        >>> lntm.reports.moving_topics(years)["word"].tolist()
        []
    """
    topics, width = require_moving(model.topics), quantile_of(level)
    require_whole(1, top_n=top_n)
    drift, rows = topics.drift()[:, -1].tolist(), []
    for k, name in enumerate(model.topic_names):
        change, error = (x.cpu() for x in topics.log_changes(k))
        first, last = topics.log_paths(k).log_probs.cpu()[[0, -1]].exp()
        ends = change - width * error, change + width * error
        table = torch.stack([first, last, change.exp(), ends[0].exp(), ends[1].exp()])
        for kind, chosen in (("rose", ends[0] > 0), ("fell", ends[1] < 0)):
            size = torch.where(chosen, (last - first).abs(), -1.0)
            best = [v for v in size.topk(min(top_n, len(size))).indices.tolist() if chosen[v]]
            words = zip(model.words_at(best), table[:, best].T.tolist(), strict=True)
            rows += [(k, name, drift[k], kind, word, *numbers) for word, numbers in words]
    numbers = ["first", "last", "ratio", "lower", "upper"]
    return pd.DataFrame(rows, columns=["topic", "name", "drift", "change", "word", *numbers])


@torch.no_grad()
def words_by_period(model: TopicModel, *, top_n: int = 8, num_periods: int = 6) -> pd.DataFrame:
    """Most probable words of each topic in some periods, the first and the last among them.

    Args:
        model: A model with moving words.
        top_n: Words in each period.
        num_periods: Most periods.

    Returns:
        A row for each topic: its number ``topic``, its ``drift``, the drift ``by noise`` if no word
        moved (:meth:`DynamicTopics.noise_drift`), and a column of words for each period.
    """
    topics = require_moving(model.topics)
    levels = topics.content.levels
    chosen = sorted({round(x) for x in np.linspace(0, len(levels) - 1, num_periods)})
    drifts = {"drift": topics.drift(), "by noise": topics.noise_drift()}
    frame = pd.DataFrame({name: x[:, -1].tolist() for name, x in drifts.items()})
    frame.insert(0, "topic", range(model.num_topics))
    paths = torch.stack([topics.log_paths(k).log_probs[chosen].cpu() for k in frame["topic"]])
    best = paths.topk(min(top_n, topics.num_words), -1).indices.tolist()
    for i, t in enumerate(chosen):
        frame[str(levels[t])] = [" ".join(model.words_at(row[i])) for row in best]
    return frame
