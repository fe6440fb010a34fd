"""``torch-lntm effects``, ``select``, ``stability`` and ``report``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch_lntm as lntm
from torch_lntm.cli.command import (
    refuse_existing,
    register_command,
    save_figure,
    say,
    show,
    takes,
)
from torch_lntm.cli.documents import (
    Computation,
    Documents,
    RunDocuments,
    Words,
    is_built_in,
    posterior_of,
    structural_options,
    training_documents,
)
from torch_lntm.cli.launch import STOPPED
from torch_lntm.cli.values import groups_option, read_keywords, whole_numbers
from torch_lntm.errors import ConfigError


@register_command("effects")
@takes("effects:estimate", "link standard_errors clusters weights")
def effects(
    documents: RunDocuments,
    *,
    formula: str | None = None,
    topics: str | None = None,
    groups: dict[str, Any] | str | None = None,
    draws: Literal["auto", "guide", "chains", "joint"] = "auto",
    level: float = 0.95,
    predict: str | None = None,
    by: str | None = None,
    print_as: Literal["text", "json", "csv"] = "text",
    figure: str | None = None,
    computation: Computation,
    num_draws: int | None = None,
    **options: Any,
) -> None:
    """Print the effects of the documents' metadata columns on the topic proportions.

    CORPUS defaults to the corpus of the fit, including the held-out documents. Differences of
    predictions, and effects of the levels of a random term, are in Python: effects.difference and
    effects.levels.

    Args:
        formula: Formula of the columns, such as "~ party * bs(date, df=6)". Defaults to the
            formula of the model's prevalence.
        topics: Topics to regress, by number or name, separated by commas. Defaults to all topics,
            and to no topic with --groups.
        groups: Groups of topics to regress, such as "economy=3,7; war=1", or a file that ends in
            .json or .yaml with topics by group.
        clusters: Column of groups of dependent documents.
        weights: Column of the documents' weights.
        draws: Source of the draws. guide: The approximation of the run's posterior, or the model's
            default guide after posterior hmc. chains: Chains of each document, which are exact and
            slower. After a fit by hmc, they continue its chains. joint: A joint chain of documents,
            topics and prior. Its intervals include the uncertainty of the fit. Short documents need
            it. auto: chains after posterior hmc, and guide otherwise.
        num_draws: Number of draws from each document's posterior. Defaults to 50, and to fewer for
            large corpora, but at least 25.
        level: Probability of the intervals.
        predict: Column for predictions. Prints the expected proportions at the values of this
            column instead of coefficients.
        by: Second column for predictions. Prints them for each of its levels.
        print_as: Output format.
        figure: File for a figure of the predictions, such as effects.png. Needs --predict. Choose a
            few --topics for a clear figure.
    """
    from torch_lntm.formulas import Formula

    if predict is None and (figure or by):
        raise ConfigError("figure and by need predictions; name their column by --predict")
    run, _, corpus = documents.load()
    text = formula or _own_formula(run.model)
    fitted, _ = Formula.fit(text, corpus.metadata, corpus.num_docs)
    for name in filter(None, (predict, by)):
        fitted.check_column(name)  # before the draws
    source: Any
    if draws == "joint":
        source = lntm.inference.joint_draws(
            run.model, corpus, num_draws=num_draws or 50, **computation.random
        )
    else:
        source = posterior_of(documents, run, corpus, draws, num_draws)
    options |= {"num_draws": num_draws, "groups": groups_option(groups), **computation.random}
    options["topics"] = None if topics is None else topics.split(",")
    found = lntm.effects.estimate(run.model, source, corpus, text, **options)
    if figure is not None:
        save_figure(found.plot(str(predict), by=by, level=level).figure, figure)
    if print_as == "text" and predict is None:
        show(found.summary(level))
        return
    say(repr(found))  # the summary begins with the same lines
    if predict is None:
        rows = found.table(level)
    else:
        rows = found.predict(*filter(None, (predict, by)), level=level)
    is_text = print_as == "text"
    show(found.format(rows) if is_text else lntm.frames.render(found.frame(rows), print_as))


def _own_formula(model: Any) -> str:
    """Formula of the prevalence of a model."""
    covariates = getattr(model.prior, "covariates", None)
    if covariates is None or covariates.formula is None:
        raise ConfigError("the model has no formula of prevalence; give a formula by --formula")
    return str(covariates.formula.text)


@register_command("select")
@takes("selection:select", "num_seeds test_fraction top_n likelihood")
def select(
    documents: Documents,
    *,
    num_topics: str = "10,20,50,100",
    model: str = "ctm",
    posterior: str | None = None,
    prevalence: str | None = None,
    content: str | None = None,
    keywords: str | dict[str, Any] | None = None,
    print_as: Literal["text", "json", "csv"] = "text",
    figure: str | None = None,
    words: Words,
    computation: Computation,
    **options: Any,
) -> int:
    """Compare several numbers of topics on a split of the documents, and recommend a number.

    Ctrl-C ends the fits. The completed fits are compared.

    Args:
        num_topics: Numbers of topics to try, separated by commas.
        model: Model to fit: ctm, lntm, iftm, lda, stm or a model of a plug-in.
        posterior: Method for the documents' posteriors, as for fit. Defaults to auto.
        prevalence: Formula of the columns for the prevalence of topics, for stm.
        content: Column of groups of documents with different words of topics, for stm.
        keywords: YAML or JSON file of keywords by topic, as for fit.
        likelihood: Also estimate the log likelihood of complete held-out documents, by annealed
            importance sampling. This takes about as long as the fits.
        print_as: Output format of the criteria.
        figure: File for a figure of the criteria, such as topics.png.
    """
    from torch_lntm.recipes import Recipe

    sizes = whole_numbers("num_topics", num_topics)
    recipe = Recipe(model, posterior or ("auto" if is_built_in(model) else None))
    device = computation.start()
    corpus = documents.read(**words.options)
    if corpus.preparation:
        say(corpus.preparation)
    of_model = structural_options(model, prevalence, content, corpus)
    if keywords is not None:
        of_model["keywords"] = read_keywords(keywords)
    options |= {"model_options": of_model, "device": device, **computation.random}
    selection = lntm.select(corpus, sizes, recipe=recipe, **options)
    show(lntm.frames.render(selection, print_as))
    if figure is not None:
        save_figure(selection.plot(), figure)
    return STOPPED["interrupted"] if selection.interrupted else 0


@register_command("stability")
@takes("reports:topic_stability", "num_fits top_n")
def stability(
    documents: RunDocuments,
    *,
    print_as: Literal["text", "json", "csv"] = "text",
    computation: Computation,
    **options: Any,
) -> None:
    """Fit again from other seeds and to resampled documents, and compare the topics.

    CORPUS defaults to the corpus of the fit. The time is that of twice --num-fits fits.

    Args:
        print_as: Output format.
    """
    run, _, corpus = documents.load()
    train = training_documents(run, corpus)
    found = lntm.topic_stability(run, train, **options, **computation.random)
    show(lntm.frames.render(found, print_as))


@register_command("report")
@takes("reports.page:render_page", "title num_words num_docs max_docs")
def report(
    documents: RunDocuments,
    *,
    out: str | None = None,
    by: str | None = None,
    groups: dict[str, Any] | str | None = None,
    levels: str | None = None,
    stability: int = 0,
    effects: str | None = None,
    draws: Literal["auto", "guide", "chains"] = "auto",
    num_draws: int | None = None,
    overwrite: bool = False,
    computation: Computation,
    **options: Any,
) -> None:
    """Write a page about a run: topics, map, correlations, documents, prevalence and scores.

    The page is a single HTML file and opens in any browser, without a network. It quotes the texts
    of the documents. CORPUS defaults to the corpus of the fit.

    Args:
        out: File to write. Defaults to report.html in the run's folder, which is replaced.
        by: Columns of the documents for the topics' prevalence, separated by commas. Defaults to
            the first six columns that divide the documents into groups. An empty text shows no
            column.
        groups: Groups of topics to show, such as "economy=3,7; war=1", or a file that ends in .json
            or .yaml with topics by group. With --effects, the effects are those of the groups.
        levels: Numbers of groups, separated by commas, such as 40,10. Shows a tree of the topics,
            and the groups of the smallest level unless you name --groups.
        stability: Number of new fits from other seeds, and of new fits to resampled documents, to
            show how stable the topics are. Takes the time of all these fits. 0 makes no fit.
        effects: Formula of effects to show, such as "~ party". By default the page shows no
            effects.
        draws: Source of the draws. guide: The approximation of the run's posterior, or the model's
            default guide after posterior hmc. chains: Chains of each document, which are exact and
            slower. After a fit by hmc, they continue its chains. auto: chains after posterior hmc,
            and guide otherwise.
        num_draws: Number of draws from each document's posterior. Defaults to 50, and to fewer for
            large corpora, but at least 25.
        overwrite: Replace an existing file.
    """
    refuse_existing(out, overwrite)
    run, _, corpus = documents.load()
    corpus = run.model.encode(corpus)
    shown: dict[str, Any] = {"groups": groups_option(groups), "num_draws": num_draws}
    if levels is not None:
        sizes, shares = whole_numbers("levels", levels), run.metadata.get("topic_shares")
        shown["tree"] = tree = lntm.topic_tree(run.model, sizes, shares=shares)
        shown["groups"] = shown["groups"] or tree.groups(tree.levels[-1])
    shown["draws"] = source = posterior_of(documents, run, corpus, draws, num_draws)
    if effects is not None:
        about = {name: shown[name] for name in ("groups", "num_draws")} | computation.random
        shown["effects"] = lntm.effects.estimate(run.model, source, corpus, effects, **about)
    if stability:
        train = training_documents(run, corpus)
        shown["stability"] = lntm.topic_stability(run, train, stability, **computation.random)
    if by is not None:
        shown["by"] = [column.strip() for column in by.split(",") if column.strip()]
    shown |= {"texts": documents.texts(), **options, **computation.random}
    path = lntm.report(
        run, corpus, None if out is None else Path(out), overwrite=overwrite, **shown
    )
    say(f"wrote {path}")
