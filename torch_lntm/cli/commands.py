"""``torch-lntm topics``, ``sources``, ``transform``, ``evaluate``, ``convert``; all commands."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection
from dataclasses import dataclass
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
    in_options,
    refuse_existing,
    say,
    with_stop_words,
)
from torch_lntm.cli.fit import Fit
from torch_lntm.cli.report import Report
from torch_lntm.cli.studying import Effects, Select
from torch_lntm.errors import ConfigError

if TYPE_CHECKING:
    from torch_lntm.corpus import Corpus
    from torch_lntm.inference import DocumentTopics
    from torch_lntm.io import Run
    from torch_lntm.reports import Score

_METHOD_OPTIONS = ("num_samples", "num_chains", "num_temperatures")
#: Characters that a column of texts may take in .npz, padded to the longest.
MAX_CHARACTERS = 2**26
_METRICS = ("completion", "likelihood", "coherence", "diversity")


@dataclass(kw_only=True)
class Topics(Command):
    """Print the topics of a run, the largest first.

    Attributes:
        run_folder: The run's folder.
        num_words: Top words of each topic.
        num_correlated: Number of the most positively correlated topics to print of each, and of the
            most negatively correlated.
        by_group: Print the words by which groups differ instead, of a model fitted with --content.
        format: How to print them.
    """

    positionals = ("run_folder",)

    run_folder: str | None = None
    num_words: int = 10
    num_correlated: int = 2
    by_group: bool = False
    format: Literal["text", "json", "csv"] = "text"

    def run(self) -> int:
        """Run it; returns the exit code."""
        run = lntm.load_run(str(self.run_folder))
        if self.by_group:
            words = lntm.reports.group_words(run.model, num_words=self.num_words)
            print(lntm.reports.format_group_words(words, self.format))
            return 0
        table = run.topic_table(num_words=self.num_words, num_correlated=self.num_correlated)
        print(lntm.reports.format_topics(table, self.format))
        return 0


@dataclass(kw_only=True)
class Sources(Command):
    """Print the sources of a run's iftm model, each by the topics that come and go with it.

    Attributes:
        run_folder: The run's folder.
        num_topics: Topics at each end of a source.
        num_words: Top words of each topic.
        format: How to print them.
    """

    positionals = ("run_folder",)

    run_folder: str | None = None
    num_topics: int = 4
    num_words: int = 8
    format: Literal["text", "json", "csv"] = "text"

    def run(self) -> int:
        """Run it; returns the exit code."""
        model = lntm.load_run(str(self.run_folder)).model
        summaries = lntm.reports.summarise_sources(
            model, num_topics=self.num_topics, num_words=self.num_words
        )
        print(lntm.reports.format_sources(summaries, self.format))
        return 0


@dataclass(kw_only=True)
class Transform(OnDocuments):
    """Write the topic proportions of documents under a run's model and, for iftm, their sources.

    The rows carry the documents' own columns, such as labels. Texts are read and cut into words as
    for the fit, unless options here say otherwise.

    Attributes:
        run_folder: The run's folder.
        out: File to write, .csv or .npz, or - for CSV on standard output. In CSV, texts that a
            spreadsheet would compute, such as =A1, begin with an apostrophe. The arrays of .npz are
            theta, converged, lengths, for iftm sources (their posterior means), and the documents'
            columns, each named metadata.NAME, but those of long texts.
        estimate: Estimate of the proportions: mode, the posterior's mode on the softmax scale, or
            mean, its mean of theta.
        num_samples: Draws per document for the mean.
        overwrite: Replace a file that is there already.
    """

    positionals = ("run_folder", "corpus")
    required = ("out",)

    run_folder: str | None = None
    out: str | None = None
    estimate: Literal["mode", "mean"] = "mode"
    num_samples: int = 200
    overwrite: bool = False

    def run(self) -> int:
        """Run it; returns the exit code."""
        from torch_lntm.files import atomic_write, write_arrays

        out = Path(str(self.out))
        if self.out != "-" and out.suffix not in (".npz", ".csv"):
            raise ConfigError(f"{out}: expected a file name that ends in .npz or .csv, or -")
        if self.out != "-":
            refuse_existing(out, self.overwrite)
        _, guide, corpus = self.load(str(self.run_folder))
        found = lntm.inference.transform(
            guide,
            corpus,
            self.estimate,
            num_samples=self.num_samples,
            seed=self.seed,
            progress=self.shows_progress,
        )
        if self.out == "-":
            print(_as_csv(found), end="")
        elif out.suffix == ".npz":
            write_arrays(out, **_as_arrays(found))
        else:
            with atomic_write(out) as file:
                file.write(_as_csv(found).encode("utf-8", "backslashreplace"))
        say(
            f"wrote {len(corpus)} document{'s' * (len(corpus) != 1)} to "
            f"{'standard output' if self.out == '-' else out}: "
            f"{int((found.lengths == 0).sum())} empty, with the prior's theta, and "
            f"{int((~found.converged).sum())} not converged"
        )
        return 0


def _as_arrays(found: DocumentTopics) -> dict[str, Any]:
    """What was found of documents, by the names of plain arrays."""
    import numpy as np

    arrays = {
        "theta": found.theta.numpy(),
        "converged": found.converged.numpy(),
        "lengths": found.lengths,
    }
    if found.sources is not None:
        arrays["sources"] = found.sources.mean.numpy()
    for name, values in found.metadata.items():
        if values.dtype != object:
            arrays[f"metadata.{name}"] = values
            continue
        texts = [_cell(value) for value in values]
        # NumPy gives each text the room of the longest.
        if len(texts) * max(map(len, texts)) <= MAX_CHARACTERS:
            arrays[f"metadata.{name}"] = np.array(texts)
        else:
            say(f"the column {name} is left out, for its texts are long; .csv holds them")
    return arrays


def _as_csv(found: DocumentTopics) -> str:
    """What was found of documents, as a table with a row for each."""
    import numpy as np

    columns = [f"topic_{k}" for k in range(found.theta.shape[1])]
    table = found.theta.numpy()
    if found.sources is not None:
        sources = found.sources.mean.numpy()
        columns += [f"source_{k}" for k in range(sources.shape[1])]
        table = np.hstack([table, sources])
    own = {"document", "tokens", "converged", *columns}
    known = [name if name not in own else f"metadata.{name}" for name in found.metadata]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["document", *map(_no_formula, known), "tokens", "converged", *columns])
    for d, numbers in enumerate(table):
        about = [_no_formula(_cell(values[d])) for values in found.metadata.values()]
        row = [d, *about, found.lengths[d], int(found.converged[d])]
        writer.writerow([*row, *(f"{number:.6g}" for number in numbers)])
    return text.getvalue()


def _cell(value: object) -> str:
    """A value of a document's column; empty where it is missing."""
    return "" if value is None or value != value else str(value)


def _no_formula(cell: str) -> str:
    """A cell that spreadsheets do not compute: those that begin as formulas get an apostrophe."""
    if not cell.startswith(("=", "+", "-", "@", "\t", "\r")):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


@dataclass(kw_only=True)
class Evaluate(OnDocuments):
    """Score a run's model on documents; on its own corpus, those held out from the fit.

    Without CORPUS the run's own corpus is read again.

    Attributes:
        run_folder: The run's folder.
        metrics: Metrics with commas between: any of completion, likelihood, coherence
            and diversity.
        observed_fraction: Share of each document's tokens that completion observes.
        theta: Topic proportions by which completion predicts the other tokens. mode, mean: their
            mode or mean in the posterior of the run's guide. integrated: averaged over that
            posterior, all tokens of a document together. exact: their mean by chains of each
            document, which takes longer and approximates nothing.
        method: Estimator of the likelihood: importance sampling; annealed importance sampling
            (ais), which takes longer and can be trusted where documents are short or the model was
            fitted by chains; quadrature, for 2 or 3 topics; or auto, ais for a run of posterior
            hmc and else importance.
        num_samples: Draws per document of importance sampling; 1000 if not given.
        num_chains: Chains per document of ais; 16 if not given.
        num_temperatures: Temperatures of ais; if not given 64, or 500 of a Dirichlet prior.
        top_n: Top words of each topic for coherence and diversity.
        out: JSON file to write the scores to as well.
        overwrite: Replace a file that is there already.
    """

    positionals = ("run_folder", "corpus")
    optional = ("corpus",)

    run_folder: str | None = None
    metrics: str = ",".join(_METRICS)
    observed_fraction: float = 0.5
    theta: Literal["mode", "mean", "integrated", "exact"] = "mode"
    method: Literal["auto", "importance", "ais", "quadrature"] = "auto"
    num_samples: int | None = None
    num_chains: int | None = None
    num_temperatures: int | None = None
    top_n: int = 10
    out: str | None = None
    overwrite: bool = False

    def run(self) -> int:
        """Run it; returns the exit code."""
        from torch_lntm.evaluation.likelihood.methods import make_method

        metrics = self._metrics()
        if self.out is not None:
            if Path(self.out).is_dir():
                raise ConfigError(f"{self.out}: is a folder; name a file to write the scores to")
            refuse_existing(Path(self.out), self.overwrite)
        options = {name: getattr(self, name) for name in _METHOD_OPTIONS}
        given = {name: value for name, value in options.items() if value is not None}
        method = None if self.method == "auto" else make_method(self.method, given)
        run, guide, corpus = self.load(str(self.run_folder))
        if method is None:
            method = make_method(_suited_method(run, given), given)
        test, train = self._documents(run, corpus)
        scores: list[Score] = []
        if "completion" in metrics:
            sampled = run.config.get("posterior") in lntm.recipes.SAMPLERS
            scores += self.complete(
                guide,
                test,
                train,
                run.path if sampled else None,
                observed_fraction=self.observed_fraction,
                theta=self.theta,
            )
        if "likelihood" in metrics:
            scores += self._likelihood(run, test, method)
        if "coherence" in metrics:
            scores += lntm.reports.coherence_scores(run.model, corpus, self.top_n)
        if "diversity" in metrics:
            scores.append(lntm.reports.diversity_score(run.model, self.top_n))
        print(lntm.reports.format_scores(scores))
        if self.out is not None:
            lntm.reports.write_scores(Path(self.out), scores)
        return 0

    def _metrics(self) -> list[str]:
        """The metrics that were asked for."""
        metrics = [name.strip() for name in self.metrics.split(",")]
        unknown = [name for name in metrics if name not in _METRICS]
        if unknown:
            raise ConfigError(f"metrics: {unknown[0]!r}; expected some of {', '.join(_METRICS)}")
        return metrics

    def _documents(self, run: Run, corpus: Corpus) -> tuple[Corpus, Corpus | None]:
        """The documents to score, and those of the fit where these were held out from it."""
        if run.metadata.get("corpus", {}).get("fingerprint") != corpus.fingerprint():
            return corpus, None
        split = run.split(corpus)
        if split is None:
            say("warning: the model was fitted to these very documents")
            return corpus, None
        say(f"completion and likelihood of the {len(split.test)} documents held out from the fit")
        return split.test, split.train

    def _likelihood(self, run: Run, test: Corpus, method: Any) -> list[Score]:
        """The log likelihood of documents, where they have words."""
        if test.num_tokens == 0:
            say("the documents have no words: there is no likelihood per token")
            return []
        estimate = lntm.evaluation.log_likelihood(
            run.model, test, method, seed=self.seed, progress=self.shows_progress
        )
        return lntm.reports.likelihood_scores(estimate)


def _suited_method(run: Run, given: Collection[str]) -> str:
    """The estimator of the likelihood that suits a run, and the options that were given."""
    from torch_lntm.recipes import SAMPLERS

    if given:
        return "importance" if "num_samples" in given else "ais"
    # Proposals that approximate the posterior are too narrow for priors as wide as chains find.
    return "ais" if run.config.get("posterior") in SAMPLERS else "importance"


@dataclass(kw_only=True)
class Convert(ChoosesWords, ReadsDocuments):
    """Write a corpus to a folder, from which every command reads it without taking memory for it.

    The corpus may be larger than the memory. Texts are cut into words here, once and for all.

    Attributes:
        folder: Folder to write.
        overwrite: Replace a corpus that is there already.
    """

    positionals = ("corpus", "folder")
    groups: ClassVar[dict[str, tuple[str, ...]]] = {
        **ReadsDocuments.groups,
        "words of texts": WORD_OPTIONS,
    }

    folder: str | None = None
    overwrite: bool = False

    def run(self) -> int:
        """Run it; returns the exit code."""
        folder = Path(str(self.folder))
        if folder.is_dir() and any(folder.iterdir()) and not self.overwrite:
            raise ConfigError(f"{folder}: exists already; choose another path, or pass --overwrite")
        with self.file() as path:
            if self.corpus in EXAMPLES:
                self.read_file(path, self.word_options()).save(folder)
            else:
                given = self.reading_options() | with_stop_words(self.word_options())
                lntm.convert_corpus(path, folder, **given)
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
    "effects": Effects,
    "select": Select,
    "convert": Convert,
    "report": Report,
}
