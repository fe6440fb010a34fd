"""``torch-lntm topics``, ``sources``, ``transform``, ``evaluate`` and ``convert``."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch_lntm as lntm
from torch_lntm.cli.documents import (
    EXAMPLES,
    WORD_OPTIONS,
    ChoosesWords,
    Command,
    OnDocuments,
    ReadsDocuments,
    chains_of,
    in_options,
    refuse_existing,
    say,
    training_documents,
    with_stop_words,
)
from torch_lntm.cli.fit import Fit
from torch_lntm.cli.mappings import groups_option
from torch_lntm.cli.names import Names
from torch_lntm.cli.report import Report
from torch_lntm.cli.stability import Stability
from torch_lntm.cli.studying import Effects, Select
from torch_lntm.cli.tree import Tree
from torch_lntm.errors import ConfigError, require_whole

if TYPE_CHECKING:
    from torch_lntm.corpus import Corpus
    from torch_lntm.inference import DocumentTopics
    from torch_lntm.io import Run
    from torch_lntm.models import TopicTable
    from torch_lntm.reports import Score

_METHOD_OPTIONS = ("num_samples", "num_chains", "num_temperatures")
#: Maximum number of characters of a text column in .npz. NumPy pads every text to the longest.
MAX_CHARACTERS = 2**26
#: Heads of columns of .csv that no name of a topic may repeat.
_RESERVED = re.compile(r"document|tokens|converged|(topic|source)_\d+")
_METRICS = ("completion", "likelihood", "coherence", "diversity")


@dataclass(kw_only=True)
class Topics(Command):
    """Print the topics of a run, largest first.

    Attributes:
        run_folder: The run's folder.
        corpus: Documents for --words and --num-docs. Defaults to the corpus of the fit.
        num_words: Number of top words of each topic.
        words: Measure of a topic's top words. probability: Most probable words. frex: Words that
            are frequent and exclusive to the topic. lift: Words that are rare elsewhere. score: A
            measure between frex and lift.
        num_docs: Number of documents to print for each topic, in place of its words. They are the
            documents with the largest share of the topic, with the beginnings of their texts.
        num_correlated: Number of correlated topics to print for each topic, on each side: with the
            most positive and with the most negative correlations.
        by_group: Print the differences of words between groups. Needs a model fitted with
            --content.
        groups: Print the shares and the words of groups of topics, such as "economy=3,7; war=1". A
            file of groups ends in .json or .yaml.
        format: Output format.
    """

    positionals = ("run_folder", "corpus")
    optional = ("corpus",)

    run_folder: str | None = None
    corpus: str | None = None
    num_words: int = 10
    words: Literal["probability", "frex", "lift", "score"] = "probability"
    num_docs: int = 0
    num_correlated: int = 2
    by_group: bool = False
    groups: dict | str | None = None  # type: ignore[type-arg]
    format: Literal["text", "json", "csv"] = "text"

    def run(self) -> int:
        """Run the command. Returns the exit code."""
        self._check_options()
        run = lntm.load_run(str(self.run_folder))
        groups = groups_option(self.groups)
        if self.num_docs:
            text = self._documents()
        elif self.by_group:
            words = lntm.reports.group_words(run.model, num_words=self.num_words)
            text = lntm.frames.render(words, self.format)
        elif groups is not None:
            shares = run.metadata.get("topic_shares")
            summaries = lntm.reports.summarise_groups(
                run.model, groups, shares, num_words=self.num_words
            )
            text = lntm.frames.render(summaries, self.format)
        else:
            text = lntm.frames.render(self._table(run), self.format)
        print(text)
        return 0

    def _check_options(self) -> None:
        """Check that at most one option changes the table."""
        require_whole(0, num_docs=self.num_docs)
        chosen = {
            "--words": self.words != "probability",
            "--num-docs": bool(self.num_docs),
            "--by-group": self.by_group,
            "--groups": self.groups is not None,
        }
        names = [name for name, is_chosen in chosen.items() if is_chosen]
        if len(names) > 1:
            raise ConfigError(f"{' and '.join(names)} print different tables; give one of them")

    def _table(self, run: Run) -> TopicTable:
        """The topics with their best words."""
        table = run.topic_table(num_words=self.num_words, num_correlated=self.num_correlated)
        if self.words == "probability":
            return table
        run, _, corpus = OnDocuments(corpus=self.corpus).load(str(self.run_folder))
        documents = training_documents(run, corpus)
        labels = lntm.reports.label_topics(run.model, documents, num_words=self.num_words)
        rows = [replace(t, words=getattr(labels[t.topic], self.words)) for t in table]
        return replace(table, topics=tuple(rows))

    def _documents(self) -> str:
        """The documents with the largest share of each topic."""
        reader = OnDocuments(corpus=self.corpus)
        _, guide, corpus = reader.load(str(self.run_folder))
        topics = lntm.inference.transform(guide, corpus, progress=reader.shows_progress)
        documents = lntm.reports.representative_documents(
            topics, num_docs=self.num_docs, corpus=corpus, texts=reader.texts()
        )
        return lntm.frames.render(documents, self.format)


@dataclass(kw_only=True)
class Sources(Command):
    """Print the sources of an iftm model, each with the topics at its two ends.

    Attributes:
        run_folder: The run's folder.
        num_topics: Number of topics at each end of a source.
        num_words: Number of top words of each topic.
        format: Output format.
    """

    positionals = ("run_folder",)

    run_folder: str | None = None
    num_topics: int = 4
    num_words: int = 8
    format: Literal["text", "json", "csv"] = "text"

    def run(self) -> int:
        """Run the command. Returns the exit code."""
        model = lntm.load_run(str(self.run_folder)).model
        summaries = lntm.reports.summarise_sources(
            model, num_topics=self.num_topics, num_words=self.num_words
        )
        print(lntm.frames.render(summaries, self.format))
        return 0


@dataclass(kw_only=True)
class Transform(OnDocuments):
    """Write the topic proportions of documents, and their sources for the model iftm.

    The rows include the columns of the documents, such as labels. Options for reading and counting
    words default to the options of the fit.

    Attributes:
        run_folder: The run's folder.
        out: File to write, .csv or .npz, or - for CSV on standard output. CSV puts an apostrophe
            before texts that a spreadsheet would compute, such as =A1. A topic's column has
            its name, or topic_3 for topic 3 without a name. The arrays of .npz are theta,
            topic_names, converged, lengths, sources (posterior means, for iftm only) and
            metadata.NAME for each column of the documents. Columns of long texts are omitted from
            .npz.
        groups: Groups of topics, such as "economy=3,7; war=1", or a file that ends in .json or
            .yaml with topics by group. A group's column is the sum over its topics. In .npz they
            are the arrays groups and group_names.
        estimate: Estimate of the proportions. mode: the softmax of the posterior mode of the
            logits. mean: the posterior mean of theta. Defaults to the mode by a guide, and to the
            mean by chains.
        draws: Source of the proportions. guide: The approximation of the run's posterior, or the
            model's default guide after posterior hmc. chains: Chains of each document, which give
            exact means and classify short documents better, in 50 to 100 times the time. After a
            fit by hmc, they continue its chains.
        num_samples: Number of draws per document for the mean. Defaults to 200 by a guide, and to
            50 by chains.
        overwrite: Replace an existing file.
    """

    positionals = ("run_folder", "corpus")
    required = ("out",)

    run_folder: str | None = None
    out: str | None = None
    groups: dict | str | None = None  # type: ignore[type-arg]
    estimate: Literal["mode", "mean"] | None = None
    draws: Literal["guide", "chains"] = "guide"
    num_samples: int | None = None
    overwrite: bool = False

    def run(self) -> int:
        """Run the command. Returns the exit code."""
        from torch_lntm.files import atomic_write, write_arrays

        out = Path(str(self.out))
        if self.out != "-" and out.suffix not in (".npz", ".csv"):
            raise ConfigError(f"{out}: expected a file name that ends in .npz or .csv, or -")
        if self.out != "-":
            refuse_existing(out, self.overwrite)
        run, guide, corpus = self.load(str(self.run_folder))
        topics = lntm.inference.transform(
            guide if self.draws == "guide" else chains_of(run, self.seed),
            corpus,
            self.estimate,
            num_samples=self.num_samples,
            seed=self.seed,
            groups=groups_option(self.groups),
            progress=self.shows_progress,
        )
        if self.out == "-":
            print(_as_csv(topics), end="")
        elif out.suffix == ".npz":
            write_arrays(out, **_as_arrays(topics))
        else:
            with atomic_write(out) as file:
                file.write(_as_csv(topics).encode("utf-8", "backslashreplace"))
        say(
            f"wrote {len(corpus)} document{'s' * (len(corpus) != 1)} to "
            f"{'standard output' if self.out == '-' else out}: "
            f"{int((topics.lengths == 0).sum())} empty, with the prior's theta, and "
            f"{int((~topics.converged).sum())} not converged"
        )
        return 0


def _as_arrays(topics: DocumentTopics) -> dict[str, Any]:
    """Topics of documents as plain arrays by name."""
    import numpy as np

    arrays = {
        "theta": topics.theta.numpy(),
        "converged": topics.converged.numpy(),
        "lengths": topics.lengths,
        "topic_names": np.array(topics.topic_names),
    }
    if topics.groups is not None:
        arrays["groups"] = topics.group_theta.numpy()
        arrays["group_names"] = np.array(topics.groups.names)
    if topics.sources is not None:
        arrays["sources"] = topics.sources.mean.numpy()
    for name, values in topics.metadata.items():
        if values.dtype != object:
            arrays[f"metadata.{name}"] = values
            continue
        texts = [_cell(value) for value in values]
        # NumPy pads every text to the longest.
        if len(texts) * max(map(len, texts)) <= MAX_CHARACTERS:
            arrays[f"metadata.{name}"] = np.array(texts)
        else:
            say(f"the column {name} of long texts is left out; write .csv to keep it")
    return arrays


def _as_csv(topics: DocumentTopics) -> str:
    """Topics of documents as a table with a row for each document."""
    import numpy as np

    columns = _heads(topics.topic_names)
    table = topics.theta.numpy()
    if topics.groups is not None:
        columns += _heads(topics.groups.names, columns)
        table = np.hstack([table, topics.group_theta.numpy()])
    if topics.sources is not None:
        sources = topics.sources.mean.numpy()
        columns += [f"source_{k}" for k in range(sources.shape[1])]
        table = np.hstack([table, sources])
    reserved = {"document", "tokens", "converged", *columns}
    names = [f"metadata.{name}" if name in reserved else name for name in topics.metadata]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    heads = ["document", *names, "tokens", "converged", *columns]
    writer.writerow(map(_no_formula, heads))
    for d, numbers in enumerate(table):
        about = [_no_formula(_cell(values[d])) for values in topics.metadata.values()]
        row = [d, *about, topics.lengths[d], int(topics.converged[d])]
        writer.writerow([*row, *(f"{number:.6g}" for number in numbers)])
    return text.getvalue()


def _heads(names: Sequence[str], taken: Collection[str] = ()) -> list[str]:
    """Heads of the columns of topics, or of groups of topics.

    A head is the name. It is ``topic_3`` for a topic without a name, and ``group_NAME`` for a group
    with the head of a topic.
    """
    from torch_lntm.models.names import is_named

    heads: list[str] = []
    for k, name in enumerate(names):
        # A name must not repeat the head of another column.
        is_free = (taken or is_named(names, k)) and not _RESERVED.fullmatch(name)
        head = name if is_free else f"topic_{name}"
        heads.append(f"group_{name}" if head in taken else head)
    return heads


def _cell(value: object) -> str:
    """Text of a value; empty if the value is missing."""
    return "" if value is None or value != value else str(value)


def _no_formula(cell: str) -> str:
    """The cell, with an apostrophe if a spreadsheet would compute it."""
    if not cell.startswith(("=", "+", "-", "@", "\t", "\r")):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


@dataclass(kw_only=True)
class Evaluate(OnDocuments):
    """Score a run's model on documents.

    CORPUS defaults to the corpus of the fit. If documents of CORPUS were held out, completion and
    likelihood use only these documents.

    Attributes:
        run_folder: The run's folder.
        metrics: Metrics, separated by commas: completion, likelihood, coherence and diversity.
        observed_fraction: Share of each document's tokens observed for completion.
        theta: Topic proportions for the prediction of the held-out tokens. mode, mean: The mode
            or mean of the guide's posterior. integrated: The probability of a document's held-out
            tokens, averaged over the guide's posterior. exact: The posterior mean by chains for
            each document. Chains are slower and need no approximation.
        method: Estimator of the likelihood. importance: Importance sampling. ais: Annealed
            importance sampling. It is slower, and reliable for short documents and for models
            fitted by chains. auto: The method ais for runs with posterior hmc, and importance
            otherwise.
        num_samples: Draws per document for importance sampling. Defaults to 1000.
        num_chains: Chains per document for ais. Defaults to 16.
        num_temperatures: Temperatures of ais. Defaults to 64, and to 500 for a Dirichlet prior.
        top_n: Number of top words of each topic for coherence and diversity.
        out: JSON file for the scores, in addition to the printed table.
        overwrite: Replace an existing file.
    """

    positionals = ("run_folder", "corpus")
    optional = ("corpus",)

    run_folder: str | None = None
    metrics: str = ",".join(_METRICS)
    observed_fraction: float = 0.5
    theta: Literal["mode", "mean", "integrated", "exact"] = "mode"
    method: Literal["auto", "importance", "ais"] = "auto"
    num_samples: int | None = None
    num_chains: int | None = None
    num_temperatures: int | None = None
    top_n: int = 10
    out: str | None = None
    overwrite: bool = False

    def run(self) -> int:
        """Run the command. Returns the exit code."""
        from torch_lntm.evaluation.likelihood.methods import make_method

        metrics = self._metrics()
        if self.out is not None:
            if Path(self.out).is_dir():
                raise ConfigError(f"{self.out}: is a folder; name a file to write the scores to")
            refuse_existing(Path(self.out), self.overwrite)
        options = {name: getattr(self, name) for name in _METHOD_OPTIONS}
        options = {name: value for name, value in options.items() if value is not None}
        method = None if self.method == "auto" else make_method(self.method, options)
        run, guide, corpus = self.load(str(self.run_folder))
        if method is None:
            method = make_method(_default_method(run, options), options)
        test, train = self._documents(run, corpus)
        scores: list[Score] = []
        if "completion" in metrics:
            by_chains = run.config.get("posterior") in lntm.recipes.SAMPLERS
            scores += self.complete(
                guide,
                test,
                train,
                run.path if by_chains else None,
                observed_fraction=self.observed_fraction,
                theta=self.theta,
            )
        if "likelihood" in metrics:
            scores += self._likelihood(run, test, method)
        if "coherence" in metrics:
            scores += lntm.reports.coherence_scores(run.model, corpus, self.top_n)
        if "diversity" in metrics:
            scores.append(lntm.reports.diversity_score(run.model, self.top_n))
        print(lntm.frames.Rows(scores))
        if self.out is not None:
            lntm.reports.scores.write_scores(Path(self.out), scores)
        return 0

    def _metrics(self) -> list[str]:
        """Names of the metrics."""
        metrics = [name.strip() for name in self.metrics.split(",")]
        unknown = [name for name in metrics if name not in _METRICS]
        if unknown:
            raise ConfigError(f"metrics: {unknown[0]!r}; expected some of {', '.join(_METRICS)}")
        return metrics

    def _documents(self, run: Run, corpus: Corpus) -> tuple[Corpus, Corpus | None]:
        """Documents to score, and training documents if the scored documents were held out."""
        if run.metadata.get("corpus", {}).get("fingerprint") != corpus.fingerprint():
            return corpus, None
        split = run.split(corpus)
        if split is None:
            say("warning: the model was fitted to these documents")
            return corpus, None
        say(f"completion and likelihood of the {len(split.test)} documents held out from the fit")
        return split.test, split.train

    def _likelihood(self, run: Run, test: Corpus, method: Any) -> list[Score]:
        """Scores of the log likelihood; an empty list for documents without words."""
        if test.num_tokens == 0:
            say("the documents have no words, so the likelihood per token is undefined")
            return []
        estimate = lntm.evaluation.log_likelihood(
            run.model, test, method, seed=self.seed, progress=self.shows_progress
        )
        return lntm.reports.likelihood_scores(estimate)


def _default_method(run: Run, options: Collection[str]) -> str:
    """Estimator of the likelihood for a run, given the user's options."""
    from torch_lntm.recipes import SAMPLERS

    if options:
        return "importance" if "num_samples" in options else "ais"
    # Fits by chains have wide priors, and approximate posteriors are then too narrow as proposals.
    return "ais" if run.config.get("posterior") in SAMPLERS else "importance"


@dataclass(kw_only=True)
class Convert(ChoosesWords, ReadsDocuments):
    """Convert a corpus to a folder that every command memory-maps.

    The corpus may be larger than the memory. The words of texts are counted once, by this command.

    Attributes:
        folder: Folder to write.
        overwrite: Replace an existing corpus.
        shard_size: Number of documents of each shard of the folder, for processes that read only
            their own shards. Defaults to a folder without shards.
    """

    positionals = ("corpus", "folder")
    headings: ClassVar[dict[str, tuple[str, ...]]] = {
        **ReadsDocuments.headings,
        "words of texts": WORD_OPTIONS,
    }

    folder: str | None = None
    overwrite: bool = False
    shard_size: int | None = None

    def run(self) -> int:
        """Run the command. Returns the exit code."""
        folder = Path(str(self.folder))
        if folder.is_dir() and any(folder.iterdir()) and not self.overwrite:
            raise ConfigError(f"{folder}: exists already; choose another path, or pass --overwrite")
        with self.file() as path:
            if self.corpus in EXAMPLES:
                corpus = self.read_file(path, self.word_options())
                corpus.save(folder, shard_size=self.shard_size)
            else:
                options = self.reading_options() | with_stop_words(self.word_options())
                lntm.convert_corpus(path, folder, shard_size=self.shard_size, **options)
        corpus = lntm.read_corpus(folder)
        if corpus.preparation:
            say(in_options(corpus.preparation))
        say(
            f"wrote {corpus.num_docs} documents of {corpus.num_words} words, {corpus.num_tokens} "
            f"tokens, to {folder}"
        )
        return 0


COMMANDS: dict[str, type[Command]] = {
    "fit": Fit,
    "topics": Topics,
    "sources": Sources,
    "transform": Transform,
    "evaluate": Evaluate,
    "names": Names,
    "tree": Tree,
    "stability": Stability,
    "effects": Effects,
    "select": Select,
    "convert": Convert,
    "report": Report,
}
