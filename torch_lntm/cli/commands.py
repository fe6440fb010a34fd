"""``torch-lntm topics``, ``sources``, ``transform``, ``evaluate`` and ``convert``."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch_lntm as lntm
from torch_lntm.cli.command import Command, refuse_existing, say, show
from torch_lntm.cli.documents import (
    EXAMPLES,
    ChoosesWords,
    OnDocuments,
    OnRun,
    chains_of,
    completion,
    training_documents,
    with_stop_words,
)
from torch_lntm.cli.fit import Fit
from torch_lntm.cli.mappings import groups_option
from torch_lntm.cli.names import Names
from torch_lntm.cli.report import Report, Tree
from torch_lntm.cli.studying import Effects, Select, Stability
from torch_lntm.errors import ConfigError, require_whole

if TYPE_CHECKING:
    import pandas as pd

    from torch_lntm.inference import DocumentTopics
    from torch_lntm.io import Run
    from torch_lntm.models.topic_table import TopicTable

TRANSFORM, SOURCES = "inference:transform", "reports:summarise_sources"
COMPLETION = "evaluation:document_completion"
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
        require_whole(0, num_docs=self.num_docs)
        chosen = {
            "words": self.words != "probability",
            "num_docs": bool(self.num_docs),
            "by_group": self.by_group,
            "groups": self.groups is not None,
        }
        names = [name for name, is_chosen in chosen.items() if is_chosen]
        if len(names) > 1:
            raise ConfigError(f"{' and '.join(names)} print different tables; give one of them")
        result = self._result(lntm.load_run(str(self.run_folder)))
        show(lntm.frames.render(result, self.format))
        return 0

    def _result(self, run: Run) -> Any:
        """The table of the options."""
        if self.num_docs:
            return self._documents()
        if self.by_group:
            return lntm.reports.group_words(run.model, num_words=self.num_words)
        groups = groups_option(self.groups)
        if groups is None:
            return self._table(run)
        shares = run.metadata.get("topic_shares")
        return lntm.reports.summarise_groups(run.model, groups, shares, num_words=self.num_words)

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

    def _documents(self) -> Any:
        """The documents with the largest share of each topic."""
        reader = OnDocuments(corpus=self.corpus)
        _, guide, corpus = reader.load(str(self.run_folder))
        topics = lntm.inference.transform(guide, corpus, progress=reader.shows_progress)
        return lntm.reports.representative_documents(
            topics, num_docs=self.num_docs, corpus=corpus, texts=reader.texts()
        )


@dataclass(kw_only=True)
class Sources(Command):
    """Print the sources of an iftm model, each with the topics at its two ends.

    Attributes:
        run_folder: The run's folder.
        format: Output format.
    """

    positionals = ("run_folder",)
    takes: ClassVar[dict[str, str]] = {SOURCES: "num_topics num_words"}

    run_folder: str | None = None
    format: Literal["text", "json", "csv"] = "text"

    def run(self) -> int:
        """Run the command. Returns the exit code."""
        model = lntm.load_run(str(self.run_folder)).model
        summaries = lntm.reports.summarise_sources(model, **self.arguments(SOURCES))
        show(lntm.frames.render(summaries, self.format))
        return 0


@dataclass(kw_only=True)
class Transform(OnRun):
    """Write the topic proportions of documents, and their sources for the model iftm.

    The rows include the columns of the documents, such as labels. Options for reading and counting
    words default to the options of the fit.

    Attributes:
        out: File to write, .csv or .npz, or - for CSV on standard output. CSV puts an apostrophe
            before texts that a spreadsheet would compute, such as =A1. A topic's column has
            its name, or topic_3 for topic 3 without a name. The arrays of .npz are theta,
            topic_names, converged, lengths, sources (posterior means, for iftm only) and
            metadata.NAME for each column of the documents. Columns of long texts are omitted from
            .npz.
        groups: Groups of topics, such as "economy=3,7; war=1", or a file that ends in .json or
            .yaml with topics by group. A group's column is the sum over its topics. In .npz they
            are the arrays groups and group_names.
        draws: Source of the proportions. guide: The approximation of the run's posterior, or the
            model's default guide after posterior hmc. chains: Chains of each document, which give
            exact means and classify short documents better, in 50 to 100 times the time. After a
            fit by hmc, they continue its chains.
        overwrite: Replace an existing file.
    """

    optional = ()
    required = ("out",)
    takes: ClassVar[dict[str, str]] = {TRANSFORM: "estimate num_samples"}

    out: str | None = None
    groups: dict | str | None = None  # type: ignore[type-arg]
    draws: Literal["guide", "chains"] = "guide"
    overwrite: bool = False

    def run(self) -> int:
        """Run the command. Returns the exit code."""
        from torch_lntm.files.arrays import write_arrays
        from torch_lntm.files.writing import atomic_write

        out = Path(str(self.out))
        if self.out != "-":
            if out.suffix not in (".npz", ".csv"):
                raise ConfigError(f"{out}: expected a file name that ends in .npz or .csv, or -")
            refuse_existing(out, self.overwrite)
        run, guide, corpus = self.load(str(self.run_folder))
        options = self.arguments(TRANSFORM) | self.random | {"groups": groups_option(self.groups)}
        source = guide if self.draws == "guide" else chains_of(run, self.seed)
        topics = lntm.inference.transform(source, corpus, **options)
        if self.out == "-":
            show(lntm.frames.to_csv(_frame(topics)), end="")
        elif out.suffix == ".npz":
            write_arrays(out, **_arrays(topics))
        else:
            with atomic_write(out) as file:
                file.write(lntm.frames.to_csv(_frame(topics)).encode("utf-8", "backslashreplace"))
        to = "standard output" if self.out == "-" else self.out
        about = f"{len(corpus)} document{'s' * (len(corpus) != 1)} to {to}"
        empty, failed = int((topics.lengths == 0).sum()), int((~topics.converged).sum())
        say(f"wrote {about}: {empty} empty, with the prior's theta, and {failed} not converged")
        return 0


def _arrays(topics: DocumentTopics) -> dict[str, Any]:
    """Topics of documents as plain arrays by name."""
    import numpy as np

    arrays = {"theta": topics.theta.numpy(), "converged": topics.converged.numpy()}
    arrays |= {"lengths": topics.lengths, "topic_names": np.array(topics.topic_names)}
    if topics.groups is not None:
        names = np.array(topics.groups.names)
        arrays |= {"groups": topics.group_theta.numpy(), "group_names": names}
    if topics.sources is not None:
        arrays["sources"] = topics.sources.mean.numpy()
    for name in topics.metadata:
        values = np.asarray(topics.metadata[name])
        if values.dtype == object:
            texts = ["" if value is None or value != value else str(value) for value in values]
            if len(texts) * max(map(len, texts)) > MAX_CHARACTERS:
                say(f"the column {name} of long texts is left out; write .csv to keep it")
                continue
            values = np.array(texts)
        arrays[f"metadata.{name}"] = values
    return arrays


def _frame(topics: DocumentTopics) -> pd.DataFrame:
    """Topics of documents as a table with a row for each document."""
    import pandas as pd

    columns = _heads(topics.topic_names)
    tables = [pd.DataFrame(topics.theta.numpy(), columns=columns)]
    if topics.groups is not None:
        columns += (heads := _heads(topics.groups.names, columns))
        tables.append(pd.DataFrame(topics.group_theta.numpy(), columns=heads))
    if topics.sources is not None:
        tables.append(pd.DataFrame(topics.sources.mean.numpy()).add_prefix("source_"))
        columns.extend(tables[-1].columns)
    about = pd.DataFrame(dict(topics.metadata)).reset_index(drop=True)
    reserved = {"document", "tokens", "converged", *columns}
    about.columns = [f"metadata.{n}" if n in reserved else str(n) for n in about.columns]
    about.insert(0, "document", range(len(tables[0])))
    facts = {"tokens": topics.lengths, "converged": topics.converged.numpy().astype(int)}
    return pd.concat([about, pd.DataFrame(facts), *tables], axis=1)


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


@dataclass(kw_only=True)
class Evaluate(OnRun):
    """Score a run's model on documents.

    CORPUS defaults to the corpus of the fit. If documents of CORPUS were held out, completion and
    likelihood use only these documents.

    Attributes:
        metrics: Metrics, separated by commas: completion, likelihood, coherence and diversity.
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

    takes: ClassVar[dict[str, str]] = {COMPLETION: "observed_fraction theta"}

    metrics: str = ",".join(_METRICS)
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

        metrics = [name.strip() for name in self.metrics.split(",")]
        if unknown := [name for name in metrics if name not in _METRICS]:
            raise ConfigError(f"metrics: {unknown[0]!r}; expected some of {', '.join(_METRICS)}")
        if self.out is not None and Path(self.out).is_dir():
            raise ConfigError(f"{self.out}: is a folder; name a file to write the scores to")
        refuse_existing(self.out, self.overwrite)
        options = self.given(("num_samples", "num_chains", "num_temperatures"))
        if self.method != "auto":
            make_method(self.method, options)
        run, guide, corpus = self.load(str(self.run_folder))
        by_chains = run.config.get("posterior") in lntm.recipes.SAMPLERS
        name = self.method
        if name == "auto":
            # Fits by chains have wide priors, and approximate posteriors are then too narrow as
            # proposals.
            is_ais = "num_samples" not in options if options else by_chains
            name = "ais" if is_ais else "importance"
        method = make_method(name, options)
        test, train = corpus, None
        if run.metadata.get("corpus", {}).get("fingerprint") == corpus.fingerprint():
            split = run.split(corpus)
            if split is None:
                say("warning: the model was fitted to these documents")
            else:
                test, train = split.test, split.train
                say(f"completion and likelihood of the {len(test)} documents held out from the fit")
        scores: list[Any] = []
        if "completion" in metrics:
            folder = run.path if by_chains else None
            options = self.arguments(COMPLETION) | self.random
            scores += completion(guide, test, train, folder, **options)
        if "likelihood" in metrics and test.num_tokens == 0:
            say("the documents have no words, so the likelihood per token is undefined")
        elif "likelihood" in metrics:
            estimate = lntm.evaluation.log_likelihood(run.model, test, method, **self.random)
            scores += lntm.reports.likelihood_scores(estimate)
        if "coherence" in metrics:
            scores += lntm.reports.coherence_scores(run.model, corpus, self.top_n)
        if "diversity" in metrics:
            scores.append(lntm.reports.diversity_score(run.model, self.top_n))
        show(lntm.frames.Rows(scores))
        if self.out is not None:
            lntm.reports.scores.write_scores(Path(self.out), scores)
        return 0


@dataclass(kw_only=True)
class Convert(ChoosesWords):
    """Convert a corpus to a folder that every command memory-maps.

    The corpus may be larger than the memory. The words of texts are counted once, by this command.

    Attributes:
        folder: Folder to write.
        overwrite: Replace an existing corpus.
        shard_size: Number of documents of each shard of the folder, for processes that read only
            their own shards. Defaults to one shard.
    """

    positionals = ("corpus", "folder")

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
                names = self.headings["reading documents"]
                options = self.given(names) | with_stop_words(self.word_options())
                lntm.convert_corpus(path, folder, shard_size=self.shard_size, **options)
        corpus = lntm.read_corpus(folder)
        if corpus.preparation:
            say(corpus.preparation)
        about = f"{corpus.num_docs} documents of {corpus.num_words} words"
        say(f"wrote {about}, {corpus.num_tokens} tokens, to {folder}")
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
