"""A report on a fitted model: a single HTML page to share with colleagues."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd
from markupsafe import Markup
from numpy.typing import NDArray

from torch_lntm import __version__
from torch_lntm.corpus import Corpus
from torch_lntm.corpus.metadata import column_or_values
from torch_lntm.errors import knows_its_options, require_whole
from torch_lntm.files.writing import check_file, write_file
from torch_lntm.guides import GUIDES
from torch_lntm.inference import DrawSource, ThetaDraws, theta_draws
from torch_lntm.inference.draws import require_source
from torch_lntm.inference.fitted import Fitted
from torch_lntm.io import Run
from torch_lntm.models import TopicGroups
from torch_lntm.plotting.style import format_number, shorten, topic_labels
from torch_lntm.recipes import SAMPLERS, makers, taken
from torch_lntm.reports import atlas, pictures
from torch_lntm.reports.atlas import colour_groups, draw_map, sampled, time_levels
from torch_lntm.reports.labels import best_words, summarise_groups
from torch_lntm.reports.prevalence import (
    SHORT_DOCUMENT,
    CorpusSummary,
    correlation_intervals,
    correlation_lines,
    dividing_columns,
    summarise_corpus,
)
from torch_lntm.reports.representatives import best_documents, excerpts, require_texts
from torch_lntm.reports.scores import as_scores
from torch_lntm.reports.sections import PageData, check_sections, render_sections, to_table
from torch_lntm.reports.tree import TopicTree

#: Coverage probability of every interval on the page.
LEVEL = 0.95
#: Default of the largest number of documents of the page. The standard error of a share over so
#: many documents is below 0.16 percentage points. Draws of more documents take many minutes.
MAX_DOCS = 100_000
#: Limits of the page: default number of columns, rows of the table of correlations, metadata of a
#: document, and letters of a value.
_COLUMNS, _PAIRS, _FIELDS, _VALUE = 6, 40, 6, 80
#: Fewest draws for the interval of a document's share. Its ends vary by a tenth of its length with
#: 50 draws, and by a twentieth with 200.
_DRAWS = 200
#: Settings without an effect where another one is missing.
_NEEDED = {
    **dict.fromkeys(("exclusive_keywords", "keyword_strength"), "keywords"),
    **dict.fromkeys(("content_penalty", "content_scale"), "content"),
    **dict.fromkeys(("vector_strength",), "word_vectors"),
}
#: Most levels of a column whose levels are lines of different colours over another column, and most
#: such pairs of columns.
_CLASSES, _CROSSED = 6, 2
_TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("torch_lntm.reports"),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
)


def report(
    fit: Fitted | DrawSource,
    corpus: Corpus,
    path: str | Path | None = None,
    *,
    overwrite: bool = False,
    source: DrawSource | None = None,
    **options: Any,
) -> Path:
    """Write a report page on a fit: a single HTML file that opens without a network.

    The page shows the topics with their shares and words, how similar and how correlated they are,
    which documents represent them, and how they depend on the metadata. Scores, settings and
    citations come last; ``docs/report.md`` explains how to read it all. The file is written
    completely or not at all.

    Args:
        fit: The result of a fit; a run, ``lntm.load_run(folder)``; a guide of a fitted model; or
            chains, ``DocumentHMC(model)``.
        corpus: The documents of the report, over the model's vocabulary.
        path: The file to write. Defaults to ``report.html`` in the folder of a run, replacing an
            older page; otherwise to ``report.html`` in the working directory.
        overwrite: Replace an existing file.
        source: Source of the documents' proportions and intervals: a guide, or chains. Defaults to
            that of the fit.
        **options: Contents of the page; see :func:`render_page`. ``scores`` default to the scores
            of a run, and ``settings`` to the settings of the fit.

    Returns:
        The file.

    Raises:
        ConfigError: The file exists or cannot be written, the source belongs to another model, an
            option is out of range, or the corpus has other words or none.
        MissingColumnError: A column of ``by`` is missing from the metadata.

    Example:
        >>> page = lntm.report(result, posts, "page.html", by=["party"])
        >>> page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
        True
    """
    if path is None and isinstance(fit, Run) and fit.path is not None:
        path, overwrite = fit.path / "report.html", True
    path = Path("report.html" if path is None else path)
    check_file(path, overwrite)
    contents: dict[str, Any] = {}
    fitted: Any = fit
    if isinstance(fit, Fitted):
        fitted, contents = fit.source, {"settings": fit.settings()}
    if isinstance(fit, Run):
        contents["scores"] = fit.scores
    page = render_page(fitted if source is None else source, corpus, **{**contents, **options})
    write_file(path, page.encode("utf-8", "replace"))
    return path


@knows_its_options
def render_page(
    source: DrawSource,
    corpus: Corpus,
    *,
    by: Sequence[str] | None = None,
    groups: Mapping[str, Sequence[int | str]] | TopicGroups | None = None,
    weights: Any = None,
    clusters: Any = None,
    strata: Any = None,
    tree: TopicTree | None = None,
    stability: pd.DataFrame | None = None,
    texts: Iterable[str] | None = None,
    effects: Any = None,
    outcomes: Any = None,
    scores: pd.DataFrame | None = None,
    settings: Mapping[str, Any] | None = None,
    title: str | None = None,
    sections: Mapping[str, Callable[[PageData], Any]] | None = None,
    top_n: int = 12,
    num_docs: int = 4,
    max_docs: int = MAX_DOCS,
    num_draws: int | None = None,
    seed: int = 0,
    progress: bool = True,
) -> str:
    """The HTML text of :func:`report`.

    All intervals are those of :func:`summarise_corpus` at 95 %. Because documents may come from
    anyone, their texts and metadata are escaped, and the page's security policy allows no script
    but its own.

    Args:
        source: Source of the documents' proportions; see :func:`torch_lntm.inference.theta_draws`.
        corpus: The documents of the report, over the model's vocabulary.
        by: Metadata columns for the prevalence. Defaults to the first six columns that divide the
            documents.
        groups: Groups of topics to show, such as ``{"economy": [3, 7]}``; see :class:`TopicGroups`.
        weights: Survey or frequency weights of the documents in shares and prevalence, a column or
            values; see :func:`summarise_corpus`. Words and correlations take none.
        clusters: Clusters of dependent documents, likewise, for the errors of shares.
        strata: Strata of the sample, likewise.
        tree: Tree of topics to show; see :func:`topic_tree`.
        stability: Stability of the topics to show; see :func:`topic_stability`.
        texts: Texts of the documents in the order of the corpus, to quote. Defaults to each
            document's most frequent words.
        effects: The result of ``lntm.effects.estimate``, to show coefficients and expected
            proportions by column.
        outcomes: The result of ``lntm.outcomes.estimate``, to show how the outcome changes with the
            topics.
        scores: Scores to show; see :func:`score_table`.
        settings: Settings to list, by name.
        title: The page's title. Defaults to a title with the name of the corpus.
        sections: Further sections after the topics, functions by title; see
            :func:`register_section`.
        top_n: Top words of each topic.
        num_docs: Representative documents of each topic.
        max_docs: Largest number of documents of the page. A larger corpus is sampled at random, and
            the page says so. ``effects`` stay as they are.
        num_draws: Draws of each document's posterior. Defaults to 50, and to fewer for large
            corpora, but at least 25.
        seed: Seed of a guide's draws, and of the sample of documents. Chains have a seed of their
            own.
        progress: Show a progress bar on standard error.

    Returns:
        The page, for a file in UTF-8.

    Raises:
        ConfigError: ``source`` is of another type, a number is too small, a group is refused, the
            corpus has other words or none, or the number of texts differs from the number of
            documents.
        MissingColumnError: A column is missing from the metadata.
    """
    require_whole(1, top_n=top_n, max_docs=max_docs)
    require_whole(0, num_docs=num_docs)
    model = require_source(source).model
    everything = model.encode(corpus)
    check_sections(sections or {})
    if isinstance(texts, Collection):  # other texts are counted as they are read
        require_texts(len(texts), everything)
    sample = sampled(np.arange(len(everything)), max_docs, seed)
    corpus = everything if len(sample) == len(everything) else everything[sample]
    # All draws are made in a single pass over the documents, which need not fit in memory.
    of_draws: dict[str, Any] = {"rows": sample, "seed": seed, "progress": progress}
    draws = theta_draws(source, everything, num_draws, keep=False, **of_draws)
    draws, survey = draws.of_selection(sample), (weights, clusters, strata)
    summary = _summary(draws, corpus, everything, sample, by, groups, survey)
    shares = summary.overall.mean[0, : model.num_topics].tolist()
    topics = model.topic_table(shares, top_n=top_n, num_correlated=3)
    table = as_scores([]) if scores is None else scores
    names = topic_labels(model, numbered=False)
    data = PageData(model, corpus, draws, summary, topics, names, table, settings or {}, LEVEL)
    return _TEMPLATES.get_template("report.html").render(
        **vars(data) | {"settings": _settings(data)},
        **_documents(data, everything, sample, texts, num_docs, tree, seed),
        **_prevalence(data, top_n),
        **_effects(effects),
        **_equal_parts(),
        belief=_belief(model.topics),
        title=title or f"Topics of {corpus.name or 'a corpus'}",
        num_all=len(everything),
        is_short=corpus.num_tokens < SHORT_DOCUMENT * len(corpus),
        frex=best_words(model, corpus, "frex", top_n=top_n),
        stability=stability,
        has_texts=texts is not None,
        sections=render_sections(sections or {}, data, outcomes),
        score_table=to_table(table, "Table of scores") if len(table) else None,
    )


def _summary(
    draws: ThetaDraws,
    corpus: Corpus,
    everything: Corpus,
    sample: NDArray[np.int64],
    by: Sequence[str] | None,
    groups: Any,
    survey: tuple[Any, Any, Any],
) -> CorpusSummary:
    """Summary of the sample; weights, clusters and strata are columns, or values of everything."""
    named = [name for name in survey[:2] if isinstance(name, str)]
    shown: dict[str, Any] = {"level": LEVEL, "groups": groups}
    for name, values in zip(("weights", "clusters", "strata"), survey, strict=True):
        shown[name] = values
        if values is not None and not isinstance(values, str):
            shown[name] = column_or_values(everything, values, name, sample)
    if by is None:
        by = [name for name in dividing_columns(corpus) if name not in named][:_COLUMNS]
    return summarise_corpus(draws, corpus, by, **shown)


def _documents(
    page: PageData,
    everything: Corpus,
    sample: NDArray[np.int64],
    texts: Iterable[str] | None,
    num_docs: int,
    tree: TopicTree | None,
    seed: int,
) -> dict[str, Any]:
    """The map, the graph of correlations, the tree, and representative documents of the topics."""
    shown = sampled(page.corpus.nonempty, atlas.MAX_POINTS, seed)
    best = best_documents(page.summary.documents, num_docs) if num_docs else pd.DataFrame()
    quoted = best["position"].to_numpy(np.int64) if num_docs else shown[:0]
    # The texts are read once, because they may come from a stream.
    rows = np.union1d(shown, quoted)
    quotes = dict(zip(rows.tolist(), excerpts(sample[rows], everything, texts), strict=True))
    colours, correlations = colour_groups(page.model, tree), _correlations(page)
    on_map = [quotes[d] for d in shown.tolist()]
    groups = page.summary.groups
    named = {} if groups is None else dict(zip(groups.names, groups.members, strict=True))
    of_groups = {name: i for i, (name, x) in enumerate(colours.items()) if named.get(name) == x}
    lines, periods = correlations["drawn"], time_levels(page)
    over = [x for x in page.summary.prevalence if periods and x.levels.column == periods.column]
    sparks = [pictures.sparkline(x, each.levels.axis[0]) for each in over for x in each.mean.T]
    return correlations | {
        "atlas": draw_map(page, shown, on_map, colours, lines, seed),
        "num_points": len(shown),
        "num_nonempty": int((page.corpus.lengths > 0).sum()),
        "periods": periods,
        "sparks": sparks,
        "tree": tree,
        "tree_picture": None if tree is None else pictures.draw_tree(tree),
        "colours": colours,
        "colour": {k: i for i, topics in enumerate(colours.values()) for k in topics} | of_groups,
        "documents": _quoted(page, best, quotes),
    }


def _quoted(
    page: PageData,
    best: pd.DataFrame,
    quotes: Mapping[int, str],
) -> dict[int, list[dict[str, Any]]]:
    """Representative documents by topic, with intervals of their shares, excerpts and metadata."""
    found: dict[int, list[dict[str, Any]]] = {k: [] for k in range(page.model.num_topics)}
    if not len(best):
        return found
    rows, tails = best["position"].to_numpy(np.int64), [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    ends: dict[int, NDArray[np.float64]] = {}
    for part in page.draws.take(np.unique(rows), max(page.draws.num_draws, _DRAWS)):
        # An end at rank p(S + 1) of S draws gives intervals of few draws their coverage.
        both = np.quantile(part.theta.cpu().numpy(), tails, axis=0, method="weibull")
        ends |= {d: both[:, i] for i, d in enumerate(part.rows.tolist())}
    metadata = page.corpus.metadata
    for row in best.to_dict("records"):
        topic, at = row["topic"], row["position"]
        lower, upper = ends[at][:, topic]
        present = metadata.iloc[at].dropna().items() if len(metadata.columns) else ()
        texts = {n: format_number(x) if isinstance(x, float) else str(x) for n, x in present}
        about = {name: shorten(text, _VALUE) for name, text in list(texts.items())[:_FIELDS]}
        more = {"id": metadata.index[at], "excerpt": quotes[at], "fields": about}
        found[topic].append({**row, **more, "lower": lower, "upper": upper})
    return found


def _settings(page: PageData) -> dict[str, Any]:
    """The settings that had an effect, with the names of files in place of their paths."""
    parts, posterior = makers(), page.settings.get("posterior")
    used = ["variational EM", *([posterior] if posterior in GUIDES else GUIDES)]
    if posterior in SAMPLERS:
        used = [f"posterior {posterior}"]
    found = {}
    for name, value in page.settings.items():
        owners = {part for part, make in parts.items() if taken(make, {name: value})}
        if value is False or (owners and owners.isdisjoint([page.model.name, *used])):
            continue
        needed = _NEEDED.get(name)
        if needed is None or page.settings.get(needed) is not None:
            is_file = isinstance(value, str) and Path(value).is_absolute()
            digits = format_number(value) if isinstance(value, float) else value
            found[name] = Path(value).name if is_file else digits
    return found


def _belief(topics: Any) -> list[float] | None:
    """The share of each topic that comes from word vectors, if a fit has used any."""
    meaning = getattr(topics, "meaning", None)
    return topics.belief.tolist() if meaning is not None and meaning.strength > 0 else None


def _equal_parts() -> dict[str, Any]:
    """Variables of the template that are equal for all pages."""
    folder = Path(__file__).with_name("templates")
    # Files of the package are inserted without escaping.
    script, style = (
        Markup("\n".join((folder / name).read_text(encoding="utf-8") for name in names))
        for names in (("script.js", "map.js"), ("style.css",))
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {"script": script, "style": style, "script_hash": digest}
    return parts | {"version": __version__, "today": date.today().isoformat()}


def _correlations(page: PageData) -> dict[str, Any]:
    """Correlations of the topics: those that the graph draws, and all of them as numbers."""
    correlation = page.model.topic_correlation().detach().cpu().double().numpy()
    error = page.summary.correlation_error
    lines = correlation_lines(correlation, error, LEVEL)
    drawn = lines[lines["correlation"] > 0].head(page.model.num_topics)
    return {
        "drawn": drawn,
        "num_joined": len({*drawn["first"], *drawn["second"]}),
        "intervals": correlation_intervals(correlation, error, LEVEL),
        "lines": list(lines.head(_PAIRS).itertuples()),
        "num_lines": len(lines),
    }


def _prevalence(page: PageData, top_n: int) -> dict[str, Any]:
    """Charts of prevalence by column; and groups of topics with words, the largest first."""
    summary, size = page.summary, page.model.num_topics
    overall, groups = summary.overall, summary.groups
    charts = [
        (found.levels.column, pictures.draw_chart(pictures.prevalence_by_column(found)))
        for found in summary.prevalence
    ]
    rows = pd.DataFrame()
    if groups is not None:
        tokens = summary.documents.topic_tokens
        rows = summarise_groups(page.model, groups, tokens, top_n=top_n).assign(
            topics=groups.members,
            share=overall.mean[0, size:],
            lower=overall.lower[0, size:],
            upper=overall.upper[0, size:],
        )
        rows = rows.sort_values("share", ascending=False, kind="stable")
    widest = overall.upper[0, :size].max()
    return {"prevalence": charts, "group_rows": list(rows.itertuples()), "widest": widest}


def _effects(effects: Any) -> dict[str, Any]:
    """Charts of expected proportions by column, and the coefficients."""
    if effects is None:
        return {"effects": None}
    drawn = effects.columns if effects.measure == "proportion" else ()  # axes start at 0
    grids = {name: effects.grid(name) for name in drawn}
    classes = [name for name, grid in grids.items() if 2 <= len(grid) <= _CLASSES]
    axes = [name for name, grid in grids.items() if len(grid) > _CLASSES]
    crossed = [(name, by) for by in classes for name in axes][:_CROSSED]
    asked = [*crossed, *((name,) for name in drawn)]
    found = {names: effects.predict(*names, level=LEVEL) for names in asked}
    shown = [pictures.effects_by_column(rows, *names) for names, rows in found.items()]
    return {
        "effects": effects,
        "crossed": len(crossed),
        "expected": [(each.column, pictures.draw_chart(each)) for each in shown],
        "coefficients": list(effects.table(LEVEL).itertuples()),
        "below_zero": any((rows["lower"] < 0).any() for rows in found.values()),
    }
