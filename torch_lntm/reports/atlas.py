"""A map of the documents for the report page, on which each document lies near its topics."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup
from numpy.typing import NDArray

from torch_lntm.models import TopicModel
from torch_lntm.plotting.style import shorten, topic_labels
from torch_lntm.reports.prevalence import Array, Levels, is_time, levels_of
from torch_lntm.reports.sections import PageData
from torch_lntm.reports.tree import TopicTree, topic_tree

#: Most documents of the map, and documents whose places a neighbour embedding computes. The others
#: lie between those of them that have the most similar proportions.
MAX_POINTS, _LANDMARKS, _NEIGHBOURS = 20_000, 2_500, 5
#: Neighbours that the embedding keeps close: at most so many, and of the documents of an average
#: topic at most a part, because the documents of a topic would otherwise fall on one place. And its
#: iterations.
_PERPLEXITY, _PART, _ITERATIONS = 40.0, 0.6, 500
#: Power of the proportions before distances are taken. Above 1 it stresses a document's main
#: topics, so that topics become regions even where documents mix many.
_POWER = 1.5
#: Most groups of topics with a colour of their own.
NUM_COLOURS = 7
#: Bytes of all texts of the map together, and the fewest and most letters of an excerpt.
_BYTES, _LETTERS = 1_700_000, (20, 240)
#: Topics that the map tells of a document.
_TOLD = 3
#: Names of columns with the titles of documents.
_TITLES = ("title", "headline", "subject", "name")


def colour_groups(model: TopicModel, tree: TopicTree | None) -> dict[str, tuple[int, ...]]:
    """Groups of similar topics, each of which has one colour on the whole page.

    Where there are colours for all topics, each topic is a group.

    Args:
        model: The model.
        tree: A tree, whose smallest level has the groups if there are colours for all of them.
            Defaults to a tree by correlations, or by words.

    Returns:
        Topics of each group by name, at most :data:`NUM_COLOURS` groups.
    """
    size = model.num_topics
    if size == 1:
        return {model.topic_names[0]: (0,)}
    level = size if size <= NUM_COLOURS else min(NUM_COLOURS, -(-size // 3))
    if tree is not None and tree.levels and tree.levels[-1] <= NUM_COLOURS:
        level = tree.levels[-1]
    groups = (topic_tree(model) if tree is None else tree).groups(level)
    labels = topic_labels(model, numbered=False)
    # A topic alone without a name of its own is called by its words here, too.
    return {labels[x[0]] if name == str(x[0]) else name: x for name, x in groups.items()}


def places(theta: Array, seed: int) -> Array:
    """Places ``(num_docs, 2)`` of documents, near those with similar topic proportions.

    A neighbour embedding (t-SNE, *van der Maaten & Hinton 2008*) places the documents, or a random
    sample of them. Every other document lies at the weighted mean of the sampled ones that it
    resembles most, moved a little at random, so that equal documents stay apart.

    Args:
        theta: ``(num_docs, num_topics)`` proportions.
        seed: Seed of the sample, the embedding and the moves.

    Returns:
        Coordinates from 0 to 1.
    """
    from sklearn.manifold import TSNE
    from sklearn.neighbors import NearestNeighbors

    rng, size = np.random.default_rng(seed), len(theta)
    sharp = theta**_POWER
    sharp /= np.linalg.norm(sharp, axis=1, keepdims=True)
    if min(theta.shape) < 2 or size < 4:
        found = rng.normal(size=(size, 2))
    else:
        chosen = np.sort(rng.permutation(size)[:_LANDMARKS])
        of_topic = max(_PART * len(chosen) / theta.shape[1], 2)
        perplexity = min(_PERPLEXITY, of_topic, (len(chosen) - 1) / 3)
        # Proportions that are all equal have no principal axes to start from.
        start = "pca" if np.ptp(sharp[chosen], axis=0).max() > 1e-6 else "random"
        options: dict[str, Any] = {"init": start, "max_iter": _ITERATIONS, "random_state": seed}
        fixed = TSNE(perplexity=perplexity, **options).fit_transform(sharp[chosen])
        distance, near = (
            NearestNeighbors(n_neighbors=min(_NEIGHBOURS, len(chosen)))
            .fit(sharp[chosen])
            .kneighbors(sharp)
        )
        weight = 1 / (np.square(distance) + 1e-4)
        found = np.einsum("dn,dnx->dx", weight / weight.sum(1, keepdims=True), fixed[near])
        gaps = NearestNeighbors(n_neighbors=2).fit(fixed).kneighbors(fixed)[0][:, 1]
        found[chosen] = fixed
        if size > len(chosen):
            found += rng.normal(size=found.shape) * 2 * np.median(gaps)
    low, high = found.min(0), found.max(0)
    return np.asarray((found - low) / np.maximum(high - low, 1e-9))


def time_levels(page: PageData) -> Levels | None:
    """Periods of the first column of times: one that the page shows, or another one."""
    shown = [each.levels.column for each in page.summary.prevalence]
    table = page.corpus.metadata
    dated = [name for name in [*shown, *map(str, table)] if is_time(name, table[name])]
    return levels_of(dated[0], table[dated[0]]) if dated else None


def sampled(rows: NDArray[np.int64], most: int, seed: int) -> NDArray[np.int64]:
    """All rows, or an ascending random sample of the most that there may be."""
    if len(rows) > most:
        rows = np.sort(np.random.default_rng(seed).choice(rows, most, replace=False))
    return rows


def draw_map(
    page: PageData,
    rows: NDArray[np.int64],
    excerpts: Sequence[str],
    groups: Mapping[str, Sequence[int]],
    lines: pd.DataFrame,
    seed: int,
) -> Markup:
    """Everything that the page's script draws, as JSON that is safe within HTML.

    Args:
        page: The page's data.
        rows: Ascending positions of the documents on the map, which have words.
        excerpts: An excerpt of each of them.
        groups: Topics by the name of their group, which shares a colour.
        lines: Pairs of correlated topics, ``first``, ``second`` and ``correlation``.
        seed: Seed of the places.
    """
    theta = page.summary.documents.theta.double().cpu().numpy()[rows]
    at, best = places(theta, seed), np.argsort(-theta, 1, kind="stable")[:, :_TOLD]
    middles = [
        np.median(at[main], 0) if main.any() else np.average(at, 0, theta[:, k] ** 3)
        for k, main in enumerate(best[:, 0] == np.arange(theta.shape[1])[:, None])
    ]
    table, periods = page.corpus.metadata, time_levels(page)
    dates = [] if periods is None else _texts(table[periods.column].iloc[rows], 20)
    titled = [name for name in table if str(name).lower() in _TITLES]
    titles = _texts(table[titled[0]].iloc[rows], 90) if titled else []
    ids = _texts((table.index if len(table) else np.arange(len(page.corpus)))[rows], 40)
    group_of = {k: i for i, topics in enumerate(groups.values()) for k in topics}
    contents = {
        "x": _packed(at[:, 0] * 65535, "<u2"),
        "y": _packed(at[:, 1] * 65535, "<u2"),
        "told": best.shape[1],
        "topics": _packed(best, "<u2"),
        "shares": _packed(np.take_along_axis(theta, best, 1) * 255, "u1"),
        "periods": None if periods is None else _packed(periods.codes[rows], "u1"),
        "periodNames": [] if periods is None else periods.names,
        "dates": dates,
        "titles": titles,
        "ids": ids,
        "texts": _shortened(excerpts, ids, dates, titles),
        "names": page.names,
        "words": [" ".join(s.words) for s in sorted(page.topics, key=lambda s: s.topic)],
        "groups": [group_of[k] for k in range(theta.shape[1])],
        "groupNames": list(groups),
        "places": np.round(middles, 4).tolist(),
        "sizes": np.round(page.summary.overall.mean[0, : theta.shape[1]], 4).tolist(),
        "lines": lines[["first", "second", "correlation"]].round(3).to_numpy().tolist(),
    }
    return htmlsafe_json_dumps(contents, ensure_ascii=False, separators=(",", ":"))


def _packed(values: Any, dtype: str) -> str:
    """Numbers as text: whole numbers of a size in bytes, in base64."""
    return base64.b64encode(np.round(values).astype(dtype).tobytes()).decode()


def _texts(values: Iterable[Any], letters: int) -> list[str]:
    """Values as short texts, a missing one as an empty text."""
    return ["" if pd.isna(value) else shorten(str(value), letters) for value in values]


def _shortened(excerpts: Sequence[str], *others: Sequence[str]) -> list[str]:
    """Excerpts that are short enough for the page, with all other texts of the map."""
    used = sum(len(text.encode("utf-8", "replace")) for texts in others for text in texts)
    text = "".join(excerpts)
    bytes_a_letter = len(text.encode("utf-8", "replace")) / max(len(text), 1)
    room = (_BYTES - used) / max(len(excerpts), 1) / max(bytes_a_letter, 1)
    return [shorten(text, int(np.clip(room, *_LETTERS))) for text in excerpts]
