"""The commands on runs and documents, in the order of the help; ``fit`` has a module of its own."""

from __future__ import annotations

import functools
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch_lntm as lntm
from torch_lntm.cli import fit as fit  # which comes first in the help
from torch_lntm.cli.command import register_command, save_figure, say, show, takes
from torch_lntm.cli.documents import Computation, Documents, RunDocuments, source_of
from torch_lntm.cli.launch import STOPPED
from torch_lntm.cli.values import items_of, lists_option, mapping_option, whole_numbers
from torch_lntm.errors import ConfigError, require_whole
from torch_lntm.files.writing import as_json, check_file, write_file

if TYPE_CHECKING:
    from torch_lntm.models import TopicModel

_METRICS = ("completion", "likelihood", "coherence", "diversity")


@register_command("topics")
def topics(
    documents: RunDocuments,
    *,
    top_n: int = 10,
    words: Literal["probability", "frex", "lift", "score"] = "probability",
    num_docs: int = 0,
    num_correlated: int = 2,
    by_level: bool = False,
    groups: dict[str, Any] | str | None = None,
    print_as: Literal["text", "json", "csv"] = "text",
) -> None:
    """Print the topics of a run, largest first.

    Shares are means over the documents of the fit, without those that the fit held out. The command
    report shows the means over all documents of its CORPUS. Here, CORPUS matters only for --words
    and --num-docs, and defaults to the corpus of the fit.

    Args:
        top_n: Number of top words of each topic.
        words: Measure of a topic's top words. probability: Most probable words. frex: Words that
            are frequent and exclusive to the topic. lift: Words that are rare elsewhere. score: A
            measure between frex and lift.
        num_docs: Number of documents to print for each topic, in place of its words. The command
            chooses those that represent the topic best, and prints the beginnings of their
            texts.
        num_correlated: Number of correlated topics to print for each topic, once for the most
            positive and once for the most negative correlations.
        by_level: Print the words that each level of the --content column uses more than the others.
        groups: Print the shares and the words of groups of topics, such as "economy=3,7; war=1", or
            of the groups in a .json or .yaml file.
        print_as: Output format.
    """
    require_whole(0, num_docs=num_docs)
    tables = {"words": words != "probability", "num_docs": num_docs, "by_level": by_level}
    names = [name for name, chosen in (*tables.items(), ("groups", groups)) if chosen]
    if len(names) > 1:
        raise ConfigError(f"{' and '.join(names)} print different tables; give one of them")
    result: Any
    if num_docs:
        run, corpus = documents.load()
        progress = documents.random["progress"]
        theta = lntm.inference.transform(run.guide(), corpus, progress=progress)
        result = lntm.reports.representative_documents(
            theta, num_docs=num_docs, corpus=corpus, texts=documents.texts()
        )
    elif words != "probability":
        run, corpus = documents.load()
        train = run.training if documents.are_of_fit else corpus
        best = lntm.reports.labels.best_words(run.model, train, words, top_n=top_n)
        result = run.topic_table(top_n=top_n, num_correlated=num_correlated)
        result[:] = [replace(topic, words=best[topic.topic]) for topic in result]
    else:
        run = lntm.load_run(documents.run_folder)
        if by_level:
            result = lntm.reports.level_words(run.model, top_n=top_n)
        elif groups is not None:
            of = lists_option("groups", groups) or {}
            result = lntm.reports.summarise_groups(run.model, of, run.topic_shares, top_n=top_n)
        else:
            result = run.topic_table(top_n=top_n, num_correlated=num_correlated)
    show(lntm.frames.render(result, print_as))


@register_command("sources")
@takes("reports:summarise_sources", "num_topics top_n")
def sources(
    run_folder: str, *, print_as: Literal["text", "json", "csv"] = "text", **options: Any
) -> None:
    """Print the sources of an iftm model, each with the topics at its two ends.

    Args:
        run_folder: The run's folder.
        print_as: Output format.
    """
    summaries = lntm.reports.summarise_sources(lntm.load_run(run_folder).model, **options)
    show(lntm.frames.render(summaries, print_as))


@register_command("transform")
@takes("inference:transform", "estimate num_draws")
def transform(
    documents: RunDocuments,
    *,
    out: str,
    groups: dict[str, Any] | str | None = None,
    source: Literal["guide", "chains"] = "guide",
    overwrite: bool = False,
    **options: Any,
) -> None:
    """Write the topic proportions of documents, and their sources for the model iftm.

    Each row also has the columns of its document, such as labels. Options for reading and counting
    words default to those of the fit.

    Args:
        out: File to write, .csv, or - for standard output. A text that a spreadsheet would compute,
            such as =A1, is preceded by an apostrophe. Each topic's column bears its name, or
            topic_3 if topic 3 has none.
        groups: Groups of topics, such as "economy=3,7; war=1", or a file that ends in .json or
            .yaml with topics by group. A group's column is the sum over its topics.
        source: Source of the proportions. guide: The approximation that the run used, or the
            model's default guide after posterior hmc. chains: Chains of each document, which
            continue those of a fit by hmc. They give exact means and classify short documents
            better, but take 50 to 100 times as long.
        overwrite: Replace an existing file.
    """
    if out != "-":
        if Path(out).suffix != ".csv":
            raise ConfigError(f"{out}: expected a file name that ends in .csv, or -")
        check_file(out, overwrite)
    run, corpus = documents.load()
    drawn = source_of(run, source, documents.random["seed"])
    options |= {"groups": lists_option("groups", groups), **documents.random}
    theta = lntm.inference.transform(drawn, corpus, **options)
    table = lntm.frames.to_csv(theta.frame())
    if out == "-":
        show(table, end="")
    else:
        write_file(out, table.encode("utf-8", "backslashreplace"))
    to = "standard output" if out == "-" else out
    about = f"{len(corpus)} document{'s' * (len(corpus) != 1)} to {to}"
    empty, failed = int((theta.lengths == 0).sum()), int((~theta.converged).sum())
    say(f"wrote {about}: {empty} empty, with the prior's theta, and {failed} not converged")


@register_command("evaluate")
@takes("evaluation:document_completion", "observed_fraction theta")
def evaluate(
    documents: RunDocuments,
    *,
    metrics: str = ",".join(_METRICS),
    method: Literal["auto", "importance", "ais"] = "auto",
    top_n: int = 10,
    out: str | None = None,
    overwrite: bool = False,
    **options: Any,
) -> None:
    """Score a run's model on documents.

    CORPUS defaults to the corpus of the fit. If some of its documents were held out, completion and
    likelihood use only those.

    Args:
        metrics: Metrics, separated by commas: completion, likelihood, coherence and diversity.
        theta: Topic proportions from which held-out tokens are predicted. exact: The posterior mean
            from chains for each document, which needs no approximation; the others are faster.
            mode, mean: The mode or mean of the guide's posterior.
        method: Estimator of the likelihood. importance: Importance sampling. ais: Annealed
            importance sampling. It is slower, and reliable for short documents and for models
            fitted by chains. auto: The method ais for runs with posterior hmc, and importance
            otherwise.
        top_n: Number of top words of each topic for coherence and diversity.
        out: JSON file for the scores, in addition to the printed table.
        overwrite: Replace an existing file.
    """
    chosen = items_of(metrics)
    if unknown := [name for name in chosen if name not in _METRICS]:
        raise ConfigError(f"metrics: {unknown[0]!r}; expected some of {', '.join(_METRICS)}")
    check_file(out, overwrite)
    run, corpus = documents.load()
    if method == "auto":
        # Fits by chains have wide priors, for which approximate posteriors are too narrow to
        # propose from.
        method = "ais" if run.sampled else "importance"
    test, train = corpus, None
    if documents.are_of_fit:
        split = run.split_documents(corpus)
        if split is None:
            say("warning: the model was fitted to these documents")
        else:
            test, train = split.test, split.train
            say(f"completion and likelihood of the {len(test)} documents held out from the fit")
    results: list[Any] = []
    if "completion" in chosen:
        results += lntm.reports.scores.completion(
            run.guide(), test, train, **options, **documents.random
        )
    if "likelihood" in chosen and test.num_tokens == 0:
        say("the documents have no words, so the likelihood per token is undefined")
    elif "likelihood" in chosen:
        results.append(lntm.evaluation.log_likelihood(run.model, test, method, **documents.random))
    scores = lntm.reports.score_table(*results)
    if {"coherence", "diversity"} & {*chosen}:
        import pandas as pd

        seen = corpus if "coherence" in chosen else None
        of_topics = lntm.reports.topic_scores(run.model, seen, top_n=top_n)
        kinds = of_topics["metric"].str.contains("|".join(chosen))
        scores = pd.concat([scores, of_topics[kinds]], ignore_index=True)
    if len(scores):
        show(lntm.frames.render(scores))
    if out is not None:
        write_file(out, as_json(lntm.reports.scores.score_records(scores)))


@register_command("names")
@takes("reports:name_topics", "num_docs language")
def names(
    documents: RunDocuments,
    *,
    set: dict[str, Any] | str | None = None,
    clear: bool = False,
    ask: str | None = None,
    top_n: int = 10,
    print_as: Literal["text", "json", "csv"] = "text",
    **options: Any,
) -> None:
    """Set and print the names of a run's topics.

    Once topics have names, all commands show them in place of the numbers, and accept them too.
    Names never change a result. CORPUS matters only for --ask, and defaults to the corpus of the
    fit.

    Args:
        set: Names to set, by the topic's number or present name, such as "3=economy; 7=trade", or a
            .json or .yaml file with names by topic. Other names stay, and an empty name removes
            one.
        clear: Remove all names first.
        ask: Command of a language model, such as "ollama run llama3", which names the topics that
            have no name yet. For each, it reads a prompt with words and excerpts of documents from
            standard input, and prints the name.
        num_docs: Number of documents of each topic to send. 0 sends words only.
        top_n: Number of top words of each topic to print and to send.
        print_as: Output format.
    """
    run_folder = documents.run_folder
    if documents.corpus and ask is None:
        given = f"names has no use for {documents.corpus!r} without --ask"
        raise ConfigError(f"{given}; to name topics, pass --set '7=politics; 9=trade'")
    if set is not None or clear:
        changed = _changed_names(lntm.load_run(run_folder).model, set or {}, clear)
        lntm.io.write_topic_names(run_folder, changed)
    if ask is not None:
        run, corpus = documents.load()
        texts = documents.texts() if options["num_docs"] else None
        options |= {"texts": texts, "source": run.guide(), "top_n": top_n}
        options["progress"] = documents.random["progress"]
        lntm.name_topics(run.model, corpus, functools.partial(_answer, ask), **options)
        lntm.io.write_topic_names(run_folder, run.model.topic_names)
    table = lntm.load_run(run_folder).topic_table(top_n=top_n)
    show(lntm.frames.render(table, print_as))


def _answer(command: str, prompt: str) -> str:
    """What a command prints about a prompt on its standard input."""
    try:
        done = subprocess.run(
            shlex.split(command), input=prompt, capture_output=True, text=True, check=True
        )
    except (OSError, ValueError, IndexError, subprocess.CalledProcessError) as error:
        raise ConfigError(f"ask: {command!r:.80} failed: {error}") from error
    return done.stdout


def _changed_names(model: TopicModel, changes: dict[str, Any] | str, clear: bool) -> dict[int, str]:
    """Names of the topics by number, after changes."""
    from torch_lntm.models.names import find_topics, is_named

    old = model.topic_names
    names = {} if clear else {k: name for k, name in enumerate(old) if is_named(old, k)}
    for key, name in mapping_option("set", changes).items():
        (topic,) = find_topics(old, [key], "set")
        names[topic] = name
    return {topic: name for topic, name in names.items() if name not in (None, "")}


@register_command("tree")
@takes("reports:topic_tree", "by")
def tree(
    run_folder: str,
    *,
    levels: str = "10",
    print_as: Literal["text", "json", "csv"] = "text",
    out: str | None = None,
    figure: str | None = None,
    overwrite: bool = False,
    **options: Any,
) -> None:
    """Merge similar topics of a run step by step, and print the groups at some levels.

    Args:
        run_folder: The run's folder.
        levels: Numbers of groups, separated by commas, such as 40,10.
        print_as: Output format.
        out: JSON file for the groups of all levels, for --groups of other commands.
        figure: File for a picture of the tree, such as tree.png.
        overwrite: Replace an existing file.
    """
    check_file(out, overwrite)
    run = lntm.load_run(run_folder)
    merged = lntm.topic_tree(
        run.model, whole_numbers("levels", levels), shares=run.topic_shares, **options
    )
    show(lntm.frames.render(merged, print_as))
    if out is not None:
        write_file(out, as_json(merged.groups()))
        say(f"wrote {len(merged.groups())} groups to {out}")
    if figure is not None:
        save_figure(lntm.plotting.tree_plot(merged).figure, figure)


@register_command("refine")
@takes("inference:refine", "num_epochs")
def refine(
    documents: RunDocuments,
    *,
    out: str,
    split: dict[str, Any] | str | None = None,
    absorb: str | None = None,
    forbid: str | None = None,
    move: dict[str, Any] | str | None = None,
    top_n: int = 10,
    overwrite: bool = False,
    **options: Any,
) -> None:
    """Split and join topics of a run, move and forbid words, and write the refined run.

    Other topics keep their words and chains. The old run stays, so that every decision can be taken
    back, and the new one has the list of all decisions in its metadata.json.

    Args:
        out: Folder of the refined run.
        split: Numbers of parts by topic, such as "7=3; economy=2".
        absorb: Topics to join, such as "3,9; 4,1,2". The first of each list absorbs the others.
        forbid: Words to leave out, separated by commas.
        move: Topics by word, such as "tariff=trade; quota=trade". Each word becomes a keyword.
        top_n: Number of top words to print for each topic.
        overwrite: Replace an existing run.
    """
    lntm.io.check_target(Path(out), overwrite)
    run, corpus = documents.load()
    if not documents.are_of_fit:
        raise ConfigError(f"refine needs the documents of the fit; {corpus!r} has others")
    parts = mapping_option("split", split or {}).items()
    refined = lntm.refine(
        run,
        split={topic: int(n) if str(n).isdigit() else n for topic, n in parts},
        absorb=[items_of(topics) for topics in (absorb or "").split(";") if topics.strip()],
        forbid=items_of(forbid),
        move=mapping_option("move", move or {}),
        **options,
        **documents.random,
    )
    replace(refined, config=refined.config | {"out": out}).save(out, overwrite=overwrite)
    show(refined.topic_table(top_n=top_n))
    show(f"\nThe refined run is in {out}")


@register_command("convert")
def convert(
    documents: Documents,
    folder: str,
    *,
    overwrite: bool = False,
    shard_size: int | None = None,
) -> None:
    """Convert a corpus to a folder that every command memory-maps.

    The corpus may be larger than memory. Texts are counted here once, and never again later.

    Args:
        folder: Folder to write.
        overwrite: Replace an existing corpus.
        shard_size: Number of documents in each shard of the folder, so that several processes can
            each read only their own shards. Defaults to one shard.
    """
    lntm.corpus.store.check_target(Path(folder), overwrite)
    corpus = documents.read()
    corpus.save(folder, shard_size=shard_size)
    if corpus.preparation:
        say(corpus.preparation)
    about = f"{corpus.num_docs} documents of {corpus.num_words} words"
    say(f"wrote {about}, {corpus.num_tokens} tokens, to {folder}")


@register_command("effects")
@takes("effects:estimate", "link outcome standard_errors clusters strata weights num_draws")
def effects(
    documents: RunDocuments,
    *,
    formula: str | None = None,
    topics: str | None = None,
    groups: dict[str, Any] | str | None = None,
    source: Literal["auto", "guide", "chains", "joint"] = "auto",
    num_chains: int = 1,
    level: float = 0.95,
    predict: str | None = None,
    by: str | None = None,
    print_as: Literal["text", "json", "csv"] = "text",
    figure: str | None = None,
    **options: Any,
) -> int:
    """Print how the topic proportions depend on the documents' metadata.

    CORPUS defaults to the corpus of the fit, including the held-out documents. Differences of
    predictions and the effects of a random term's levels are available only in Python, as
    effects.difference and effects.levels. Ctrl-C during the regressions of the logit ends them
    early, and the effects of the draws until then are printed.

    Args:
        formula: Formula of the columns, such as "~ party * bs(date, df=6)". Defaults to the
            formula of the model's prevalence.
        topics: Topics to regress, by number or name, separated by commas. Defaults to all topics,
            and to no topic with --groups.
        groups: Groups of topics to regress, such as "economy=3,7; war=1", or a file that ends in
            .json or .yaml with topics by group.
        outcome: Outcome to regress instead, such as "economy / (economy + 7)", of topics and
            --groups.
        clusters: Column of clusters of dependent documents.
        strata: Column of the strata from which clusters or documents were sampled.
        weights: Column of the documents' weights.
        source: Source of the draws. guide: The approximation that the run used, or the model's
            default guide after posterior hmc. chains: Chains of each document, which continue those
            of a fit by hmc. They are exact but slower. joint: A joint chain of documents, topics
            and prior, whose intervals include the uncertainty of the fit. Short documents need it.
            auto: chains after posterior hmc, and guide otherwise.
        num_chains: Number of joint chains from different starts, for --source joint. They show
            whether the intervals depend on the start.
        level: Probability of the intervals.
        predict: Column for predictions: print the expected proportions at its values instead of
            coefficients.
        by: Second column for predictions, which are printed for each of its levels, or for at most
            ten numbers.
        print_as: Output format.
        figure: File for a figure of the predictions, such as effects.png. Needs --predict, and is
            clearest with only a few --topics.
    """
    from torch_lntm.formulas import Formula

    if predict is None and (figure or by):
        raise ConfigError("figure and by need predictions; name their column by --predict")
    if num_chains != 1 and source != "joint":
        raise ConfigError("num_chains is an option of --source joint")
    run, corpus = documents.load()
    text = formula or _own_formula(run.model)
    fitted, _ = Formula.fit(text, corpus.metadata)
    for name in filter(None, (predict, by)):
        fitted.check_column(name)  # before the draws
    drawn: Any = source_of(run, source, documents.random["seed"])
    if source == "joint":
        chains: Any = {"num_draws": options["num_draws"] or 50, "num_chains": num_chains}
        drawn = lntm.inference.joint_draws(run.model, corpus, **chains, **documents.random)
    options |= {"groups": lists_option("groups", groups), **documents.random}
    options["topics"] = None if topics is None else topics.split(",")
    found = lntm.effects.estimate(run.model, drawn, corpus, text, **options)
    if figure is not None:
        save_figure(found.plot(str(predict), by=by, level=level).figure, figure)
    if print_as == "text" and predict is None:
        show(found.summary(level))
    else:
        say(repr(found))  # the summary begins with the same lines
        columns = [name for name in (predict, by) if name]
        rows = found.predict(*columns, level=level) if columns else found.table(level)
        show(lntm.frames.render(rows, print_as))
    if figure is not None:
        say(f"the figure is in {figure}")
    return STOPPED["interrupted"] if found.interrupted else 0


def _own_formula(model: Any) -> str:
    """Formula of the prevalence of a model."""
    covariates = getattr(model.prior, "covariates", None)
    if covariates is None or covariates.formula is None:
        raise ConfigError("the model has no formula of prevalence; give a formula by --formula")
    return str(covariates.formula.text)


@register_command("outcomes")
@takes("outcomes:estimate", "family draws num_chains num_draws warmup_steps topics prior")
def outcomes(
    documents: RunDocuments,
    *,
    formula: str,
    groups: dict[str, Any] | str | None = None,
    level: float = 0.95,
    reference: str | None = None,
    per: float = 1.0,
    print_as: Literal["text", "json", "csv"] = "text",
    figure: str | None = None,
    **options: Any,
) -> None:
    """Print how an outcome of the documents depends on their topics.

    CORPUS defaults to the corpus of the fit, including the held-out documents.

    Args:
        formula: Outcome and columns, such as "log(sales) ~ topics + employees". The word topics
            stands for the shares of all topics.
        groups: Groups of topics, such as "economy=3,7; war=1", or a file that ends in .json or
            .yaml with topics by group.
        level: Probability of the intervals.
        reference: Topic, by number or name, or group to compare with. By default, each topic is
            compared with all others together.
        per: Rise of a topic's share, such as 0.1 for ten percentage points.
        print_as: Output format.
        figure: File for a figure of the effects, such as effects.png.
    """
    run, corpus = documents.load()
    options |= {"groups": lists_option("groups", groups), **documents.random}
    found = lntm.outcomes.estimate(run, corpus, formula, **options)
    asked: Any = {"level": level, "reference": reference, "per": per}
    if figure is not None:
        save_figure(found.plot(**asked).figure, figure)
    if print_as == "text":
        show(found.format(**asked))
        return
    say(repr(found))
    show(lntm.frames.render(found.frame(**asked), print_as))


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
    word_vectors: str | None = None,
    print_as: Literal["text", "json", "csv"] = "text",
    figure: str | None = None,
    computation: Computation,
    **options: Any,
) -> int:
    """Compare several numbers of topics on a split of the documents, and recommend a number.

    Ctrl-C ends the fits early, and those already completed are compared.

    Args:
        num_topics: Numbers of topics to try, separated by commas.
        model: Model to fit: ctm, lntm, iftm, lda, stm or a model of a plug-in.
        posterior: Method for the documents' posteriors, as for fit. Defaults to auto.
        prevalence: Formula of the columns for the prevalence of topics, for stm.
        content: Column between whose levels the words of topics differ, for stm.
        keywords: Keywords by topic, as for fit.
        word_vectors: File of word vectors, as for fit.
        likelihood: Also estimate the log likelihood of whole held-out documents by annealed
            importance sampling, which takes about as long as the fits.
        print_as: Output format of the criteria.
        figure: File for a figure of the criteria, such as topics.png.
    """
    from torch_lntm.recipes import Recipe

    sizes = whole_numbers("num_topics", num_topics)
    recipe = Recipe.of(model, posterior, ())
    device = computation.start()
    corpus = documents.read()
    if corpus.preparation:
        say(corpus.preparation)
    of_model: dict[str, Any] = {"prevalence": prevalence, "content": content}
    of_model["keywords"] = lists_option("keywords", keywords)
    if word_vectors is not None:
        of_model["word_vectors"] = lntm.corpus.read_vectors(word_vectors, corpus.vocabulary)
    options |= {"model_options": {n: x for n, x in of_model.items() if x is not None}}
    options |= {"device": device, **computation.random}
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
    **options: Any,
) -> None:
    """Fit again from other seeds and to resampled documents, and compare the topics.

    CORPUS defaults to the corpus of the fit. The command takes as long as twice --num-fits fits.

    Args:
        print_as: Output format.
    """
    run, corpus = documents.load()
    train = run.training if documents.are_of_fit else corpus
    found = lntm.topic_stability(run, train, **options, **documents.random)
    show(lntm.frames.render(found, print_as))


@register_command("report")
@takes(
    "reports.page:render_page",
    "title weights clusters strata top_n num_docs max_docs num_draws",
)
def report(
    documents: RunDocuments,
    *,
    out: str | None = None,
    by: str | None = None,
    groups: dict[str, Any] | str | None = None,
    levels: str | None = None,
    stability: int = 0,
    effects: str | None = None,
    source: Literal["auto", "guide", "chains"] = "auto",
    overwrite: bool = False,
    **options: Any,
) -> None:
    """Write a page about a run: topics, map, correlations, documents, prevalence and scores.

    The page is a single HTML file that opens in any browser without a network, and it quotes the
    texts of the documents. CORPUS defaults to the corpus of the fit.

    Args:
        out: File to write. Defaults to report.html in the run's folder, which is replaced.
        by: Columns of the documents for the topics' prevalence, separated by commas. Defaults to
            the first six columns that divide the documents into groups. An empty text shows no
            column.
        groups: Groups of topics to show, such as "economy=3,7; war=1", or a file that ends in .json
            or .yaml with topics by group. With --effects, the effects are those of the groups.
        weights: Column of the documents' weights, in shares, prevalence and --effects.
        clusters: Column of clusters of dependent documents, likewise.
        strata: Column of the strata from which clusters or documents were sampled, likewise.
        levels: Numbers of groups, separated by commas, such as 40,10. The page then shows a tree of
            the topics, and the groups of the smallest level unless you give --groups.
        stability: Number of new fits from other seeds, and as many to resampled documents, to show
            how stable the topics are. This takes as long as all these fits together. 0 makes no
            fit.
        effects: Formula of effects to show, such as "~ party". By default the page shows no
            effects.
        source: Source of the draws. guide: The approximation that the run used, or the model's
            default guide after posterior hmc. chains: Chains of each document, which continue those
            of a fit by hmc. They are exact but slower. auto: chains after posterior hmc, and guide
            otherwise.
        overwrite: Replace an existing file.
    """
    check_file(out, overwrite)
    run, corpus = documents.load()
    corpus = run.model.encode(corpus)
    shown: dict[str, Any] = {"groups": lists_option("groups", groups), **options}
    if levels is not None:
        sizes = whole_numbers("levels", levels)
        shown["tree"] = tree = lntm.topic_tree(run.model, sizes, shares=run.topic_shares)
        shown["groups"] = shown["groups"] or tree.groups(tree.levels[-1])
    drawn = source_of(run, source, documents.random["seed"])
    if effects is not None:
        both = ("groups", "num_draws", "weights", "clusters", "strata")
        about = {name: shown[name] for name in both} | documents.random
        if not isinstance(drawn, lntm.guides.Guide):  # the chains run once
            num_draws = options["num_draws"]
            drawn = lntm.inference.theta_draws(drawn, corpus, num_draws, **documents.random)
        shown["effects"] = lntm.effects.estimate(run.model, drawn, corpus, effects, **about)
    if stability:
        train = run.training if documents.are_of_fit else corpus
        shown["stability"] = lntm.topic_stability(run, train, stability, **documents.random)
    if by is not None:
        shown["by"] = items_of(by)
    shown |= {"source": drawn, "texts": documents.texts(), **documents.random}
    say(f"wrote {lntm.report(run, corpus, out, overwrite=overwrite, **shown)}")


@register_command("guide")
def guide() -> None:
    """Print a cheat sheet of the Python interface."""
    show(lntm.guide(), end="")
