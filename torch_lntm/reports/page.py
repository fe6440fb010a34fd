"""A report on a fitted model: a single HTML page to share with colleagues."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import torch
from markupsafe import Markup
from numpy.typing import NDArray

from torch_lntm import __version__
from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError, require_whole
from torch_lntm.files.writing import atomic_write
from torch_lntm.guides import Guide
from torch_lntm.inference import DrawSource, ThetaDraws, theta_draws
from torch_lntm.inference.draws import require_source
from torch_lntm.inference.fitted import Fitted
from torch_lntm.io import Run
from torch_lntm.io.runs import EVALUATION
from torch_lntm.models import DynamicTopics, TopicGroups, TopicModel
from torch_lntm.models.names import is_named
from torch_lntm.plotting import tree_plot
from torch_lntm.plotting.layout import LINE_HEIGHT, WIDTH, correlation_diagram, lay_out_topics
from torch_lntm.plotting.style import distinct_words, topic_labels
from torch_lntm.reports.charts import CHART, effect_charts, prevalence_charts
from torch_lntm.reports.groups import grouping_columns
from torch_lntm.reports.keywords import keyword_section
from torch_lntm.reports.labels import label_topics, summarise_groups
from torch_lntm.reports.periods import period_section
from torch_lntm.reports.prevalence import (
    SHORT_DOCUMENT,
    CorpusSummary,
    correlation_intervals,
    correlation_lines,
    summarise_corpus,
)
from torch_lntm.reports.representatives import (
    representative_documents,
    with_excerpts,
    with_intervals,
)
from torch_lntm.reports.scores import Score, read_scores
from torch_lntm.reports.sections import PageData, Picture, Section, render_sections
from torch_lntm.reports.stability import TopicStability
from torch_lntm.reports.tree import TopicTree, hellinger_distances

#: Coverage probability of every interval on the page.
LEVEL = 0.95
#: Default of the largest number of documents of the page. The standard error of a share over so
#: many documents is below 0.16 percentage points. Draws of more documents take many minutes.
MAX_DOCS = 100_000
#: Limits of the page's size: default number of columns, charts of a column, rows of the table of
#: correlations.
_COLUMNS, _CHARTS, _PAIRS = 6, 48, 40
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

    The page shows the topics with shares and words, a map, correlations, representative documents,
    prevalence by metadata columns, effects, scores, settings and citations. ``docs/report.md``
    explains how to read it. The file is complete, or it is not written.

    Args:
        fit: The result of a fit; a run, ``lntm.load_run(folder)``; a guide of a fitted model; or
            chains, ``DocumentHMC(model)``.
        corpus: The documents of the report, over the model's vocabulary.
        path: The file to write. Defaults to ``report.html`` in the folder of a run, replacing an
            older page; otherwise to ``report.html`` in the working directory.
        overwrite: Replace an existing file.
        source: Source of the documents' proportions and intervals: a guide, or chains. Defaults to
            the posterior of the fit.
        **options: Contents of the page; see :func:`render_page`. ``scores`` default to the scores
            of a run, and ``settings`` to the settings of the fit.

    Returns:
        The file.

    Raises:
        ConfigError: The file exists or cannot be written, the posterior belongs to another model,
            an option is out of range, or the corpus has other words or none.
        MissingColumnError: A column of ``by`` is missing from the metadata.

    Example:
        >>> page = lntm.report(result, posts, "page.html", by=["party"])
        >>> page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
        True
    """
    if path is None and isinstance(fit, Run):
        path, overwrite = fit.path / "report.html", True
    path = Path("report.html" if path is None else path)
    if path.is_dir():
        raise ConfigError(f"{path}: is a folder; name a file to write the page to")
    if path.exists() and not overwrite:
        raise ConfigError(f"{path}: exists already; choose another path, or ask to overwrite it")
    contents: dict[str, Any] = {}
    fitted: Any = fit
    if isinstance(fit, Fitted):
        fitted, contents = fit.source, {"settings": fit.settings()}
    if isinstance(fit, Run):
        contents["scores"] = fit.read(EVALUATION, read_scores) or ()
    contents["instead_of_chains"] = isinstance(source, Guide) and not isinstance(fitted, Guide)
    page = render_page(fitted if source is None else source, corpus, **{**contents, **options})
    with atomic_write(path) as file:
        file.write(page.encode("utf-8", "replace"))
    return path


def render_page(
    source: DrawSource,
    corpus: Corpus,
    *,
    by: Sequence[str] | None = None,
    groups: Mapping[str, Sequence[int | str]] | TopicGroups | None = None,
    tree: TopicTree | None = None,
    stability: TopicStability | None = None,
    texts: Iterable[str] | None = None,
    effects: Any = None,
    scores: Sequence[Score] = (),
    settings: Mapping[str, Any] | None = None,
    title: str | None = None,
    sections: Iterable[Section] = (),
    instead_of_chains: bool = False,
    top_n: int = 12,
    num_docs: int = 4,
    max_docs: int = MAX_DOCS,
    num_draws: int | None = None,
    seed: int = 0,
    progress: bool = True,
) -> str:
    """The HTML text of :func:`report`.

    Intervals are from :func:`summarise_corpus`, at 95 %. Texts and metadata of the documents are
    escaped. The page's security policy allows the page's own script only.

    Args:
        source: Source of the documents' proportions; see :func:`torch_lntm.inference.theta_draws`.
        corpus: The documents of the report, over the model's vocabulary.
        by: Metadata columns for the prevalence. Defaults to the first six columns that group the
            documents.
        groups: Groups of topics to show, such as ``{"economy": [3, 7]}``; see :class:`TopicGroups`.
        tree: Tree of topics to show; see :func:`topic_tree`.
        stability: Stability of the topics to show; see :func:`topic_stability`.
        texts: Texts of the documents in the order of the corpus, to quote. Defaults to each
            document's most frequent words.
        effects: The result of ``lntm.effects.estimate``, to show coefficients and expected
            proportions by column.
        scores: Scores to show, such as held-out perplexity.
        settings: Settings to list, by name.
        title: The page's title. Defaults to a title with the name of the corpus.
        sections: Further sections after the topics, each a title and a function; see
            :class:`torch_lntm.reports.Section`.
        instead_of_chains: Add a note that a guide drew the proportions of a model fitted by chains.
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
    corpus, sample, theta = _sampled(
        everything, source, max_docs, seed, num_draws=num_draws, progress=progress
    )
    columns = grouping_columns(corpus)[:_COLUMNS] if by is None else list(by)
    summary = summarise_corpus(theta, corpus, columns, level=LEVEL, groups=groups)
    shares = summary.overall.mean[0].tolist()
    topics = model.topic_table(shares, top_n=top_n, num_correlated=3)
    names = [
        s.name if is_named(topics.names, s.topic) else " ".join(distinct_words(s.words, 2))
        for s in sorted(topics, key=lambda s: s.topic)
    ]
    found = representative_documents(summary.documents, num_docs=num_docs) if num_docs else []
    documents = with_excerpts(with_intervals(found, theta, LEVEL), everything, texts, sample)
    data = PageData(model, corpus, theta, summary, topics, names, scores, settings or {}, LEVEL)
    rendered = render_sections([*_own_sections(model), *sections], data)
    has_pictures = tree or any(isinstance(x, Picture) for _, blocks in rendered for x in blocks)
    return _TEMPLATES.get_template("report.html").render(
        **vars(data),
        **_diagrams(model, names, summary),
        **_prevalence(model, summary, top_n),
        **_effects(effects),
        **_tree(tree),
        **_equal_parts(),
        title=title or f"Topics of {corpus.name or 'a corpus'}",
        num_all=len(everything),
        is_short=corpus.num_tokens < SHORT_DOCUMENT * len(corpus),
        instead_of_chains=instead_of_chains,
        labels=label_topics(model, corpus, top_n=top_n),
        stability=stability,
        documents={s.topic: [d for d in documents if d.topic == s.topic] for s in topics},
        has_texts=texts is not None,
        sections=rendered,
        has_pictures=has_pictures,
    )


def _sampled(
    corpus: Corpus, source: DrawSource, max_docs: int, seed: int, **options: Any
) -> tuple[Corpus, NDArray[np.int64] | None, ThetaDraws]:
    """The documents of the page, their ascending positions if not all, and draws of them.

    A single pass over the documents makes all draws, so memory need not hold them.
    """
    if len(corpus) <= max_docs:
        return corpus, None, theta_draws(source, corpus, seed=seed, keep=False, **options)
    rows = np.sort(np.random.default_rng(seed).choice(len(corpus), max_docs, replace=False))
    draws = theta_draws(source, corpus, rows=rows, seed=seed, keep=False, **options)
    return corpus[rows], rows, draws.of_selection(rows)


def _own_sections(model: TopicModel) -> list[Section]:
    """The package's own sections after the topics."""
    found = [] if model.topics.keywords is None else [Section("Keywords", keyword_section)]
    if isinstance(model.topics, DynamicTopics):
        found.append(Section("Words over time", period_section))
    return found


def _equal_parts() -> dict[str, Any]:
    """Variables of the template that are equal for all pages."""
    folder = Path(__file__).with_name("templates")
    # Files of the package are inserted without escaping.
    script, style = (
        Markup((folder / name).read_text(encoding="utf-8")) for name in ("script.js", "style.css")
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    sizes = {"width": WIDTH, "chart_width": CHART, "line_height": LINE_HEIGHT}
    parts = {"script": script, "style": style, "script_hash": digest, "sizes": sizes}
    return parts | {"version": __version__, "today": date.today().isoformat()}


def _tree(tree: TopicTree | None) -> dict[str, Any]:
    """The tree of the topics, with its picture."""
    from matplotlib.figure import Figure

    if tree is None:
        return {"tree": None}
    figure = Figure(figsize=(9.0, 0.22 * tree.num_topics + 1.0), layout="constrained")
    tree_plot(tree, ax=figure.add_subplot())
    return {"tree": tree, "tree_picture": Picture(figure, "tree").address}


def _diagrams(model: TopicModel, names: Sequence[str], summary: CorpusSummary) -> dict[str, Any]:
    """Map of the topics, and their correlations as a graph and as numbers."""
    shares, reach = summary.overall.mean[0], summary.overall.upper[0]
    correlation = model.topic_correlation().detach().cpu().double().numpy()
    lines = correlation_lines(correlation, summary.correlation_error, LEVEL)
    drawn = lines[lines["correlation"] > 0].head(model.num_topics)
    pairs = list(drawn[["first", "second", "correlation"]].itertuples(index=False, name=None))
    paired = sorted({*drawn["first"], *drawn["second"]})
    distance = hellinger_distances(model.topics.mean_probs.detach().double().cpu().numpy())
    return {
        "heads": topic_labels(model),
        "map": lay_out_topics(distance, range(len(names)), names, shares, reach),
        "graph": correlation_diagram(pairs, paired, names, shares, reach),
        "drawn": list(drawn.itertuples()),
        "lines": list(lines.head(_PAIRS).itertuples()),
        "num_lines": len(lines),
        "intervals": correlation_intervals(correlation, summary.correlation_error, LEVEL),
    }


def _prevalence(model: TopicModel, summary: CorpusSummary, top_n: int) -> dict[str, Any]:
    """Charts of prevalence, and shares, words and charts of the groups of topics."""
    charts = [(p, prevalence_charts(p, _CHARTS)) for p in summary.prevalence]
    groups, overall = summary.groups, summary.overall_groups
    if groups is None or overall is None:
        return {"prevalence": charts, "group_rows": [], "group_charts": [()] * len(charts)}
    members = [k for topics in groups.members for k in topics]
    lengths = torch.from_numpy(summary.documents.lengths.astype("float64"))
    tokens = lengths @ summary.documents.theta.double()
    words = summarise_groups(model, groups, tokens, top_n=top_n)
    rows = overall.frame().assign(topics=groups.members, words=[row.words for row in words])
    rows = rows.sort_values("share", ascending=False, kind="stable")
    return {
        "prevalence": charts,
        "group_rows": list(rows.itertuples()),
        "groups_overlap": len(set(members)) < len(members),
        "group_charts": [prevalence_charts(p, _CHARTS) for p in summary.group_prevalence],
    }


def _effects(effects: Any) -> dict[str, Any]:
    """Charts of expected proportions by column, and the coefficients."""
    if effects is None:
        return {"effects": None}
    predictions = {name: effects.predict(name, level=LEVEL) for name in effects.columns}
    return {
        "effects": effects,
        "expected": [
            # The column of the values comes before the estimates.
            (name, effect_charts(rows, rows.columns[list(rows).index("estimate") - 1], _CHARTS))
            for name, rows in predictions.items()
        ],
        "coefficients": list(effects.table(LEVEL).itertuples()),
        "below_zero": any((rows["lower"] < 0).any() for rows in predictions.values()),
    }
