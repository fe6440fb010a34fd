"""``torch-lntm topics``, ``sources``, ``transform`` and ``evaluate``; the table of all commands."""

from __future__ import annotations

import csv
import dataclasses
import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch_lntm as lntm
from torch_lntm.cli.documents import Command, OnDocuments, say
from torch_lntm.cli.fit import Fit
from torch_lntm.errors import ConfigError

if TYPE_CHECKING:
    from torch_lntm.evaluation import AIS
    from torch_lntm.report import Score

_METRICS = ("completion", "likelihood", "coherence", "diversity")


@dataclass(kw_only=True)
class Topics(Command):
    """Print the topics of a run, the largest first.

    Attributes:
        run_folder: The run's folder.
        num_words: Top words of each topic.
        num_correlated: Most positively, and as many most negatively correlated topics of each.
        format: How to print them.
    """

    positionals = ("run_folder",)

    run_folder: str | None = None
    num_words: int = 10
    num_correlated: int = 2
    format: Literal["text", "json", "csv"] = "text"

    def run(self) -> int:
        """Run it; returns the exit code."""
        run = lntm.load_run(str(self.run_folder))
        summaries = lntm.report.summarise_topics(
            run.model,
            run.metadata.get("topic_shares"),
            num_words=self.num_words,
            num_correlated=self.num_correlated,
        )
        print(lntm.report.format_topics(summaries, self.format))
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
        summaries = lntm.report.summarise_sources(
            model, num_topics=self.num_topics, num_words=self.num_words
        )
        print(lntm.report.format_sources(summaries, self.format))
        return 0


@dataclass(kw_only=True)
class Transform(OnDocuments):
    """Write the topic proportions of documents under a run's model; of iftm, their sources too.

    Attributes:
        run_folder: The run's folder.
        out: File to write: .npz with the arrays theta, converged and lengths, and for iftm
            sources, their posterior means; or .csv.
        estimate: mode, the posterior's mode on the softmax scale; or mean, its mean of theta.
        num_samples: Draws per document for the latter.
    """

    positionals = ("run_folder", "corpus")
    required = ("out",)

    run_folder: str | None = None
    out: str | None = None
    estimate: Literal["mode", "mean"] = "mode"
    num_samples: int = 200

    def run(self) -> int:
        """Run it; returns the exit code."""
        import numpy as np

        from torch_lntm.files import atomic_write, write_arrays

        out = Path(str(self.out))
        if out.suffix not in (".npz", ".csv"):
            raise ConfigError(f"{out}: expected a file name that ends in .npz or .csv")
        _, guide, corpus = self.load(str(self.run_folder))
        found = lntm.report.document_topics(
            guide,
            corpus,
            self.estimate,
            num_samples=self.num_samples,
            seed=self.seed,
            progress=self.progress,
        )
        theta, converged = found.theta.numpy(), found.converged.numpy()
        arrays = {"theta": theta, "converged": converged, "lengths": corpus.lengths}
        columns = [f"topic_{k}" for k in range(theta.shape[1])]
        table = theta
        if found.sources is not None:
            arrays["sources"] = found.sources.mean.numpy()
            columns += [f"source_{k}" for k in range(arrays["sources"].shape[1])]
            table = np.hstack([theta, arrays["sources"]])
        if out.suffix == ".npz":
            write_arrays(out, **arrays)
        else:
            label = [] if corpus.labels is None else ["label"]
            text = io.StringIO()
            writer = csv.writer(text, lineterminator="\n")
            writer.writerow(["document", *label, "tokens", "converged", *columns])
            for d in range(len(corpus)):
                label = [] if corpus.labels is None else [corpus.labels[d]]
                numbers = [f"{number:.6g}" for number in table[d]]
                writer.writerow([d, *label, corpus.lengths[d], int(converged[d]), *numbers])
            with atomic_write(out) as file:
                file.write(text.getvalue().encode())
        say(
            f"wrote {len(corpus)} documents to {out}: {int((corpus.lengths == 0).sum())} empty, "
            f"with the prior's theta, and {int((~converged).sum())} not converged"
        )
        return 0


@dataclass(kw_only=True)
class Evaluate(OnDocuments):
    """Score a run's model on documents; on its own corpus, those held out from the fit.

    Attributes:
        run_folder: The run's folder.
        metrics: Any of completion, likelihood, coherence and diversity, with commas between.
        observed_fraction: Share of each document's tokens that completion observes.
        predictive: How completion predicts the others from the posterior of theta.
        method: How the likelihood is estimated: importance sampling, annealed importance sampling
            (ais), which judges every posterior and takes longer, or quadrature, for 2 or 3 topics.
        num_samples: Draws per document of importance sampling.
        num_chains: Chains per document of ais.
        num_temperatures: Temperatures of ais.
        top_n: Top words of each topic for coherence and diversity.
        out: JSON file to write the scores to as well.
    """

    positionals = ("run_folder", "corpus")

    run_folder: str | None = None
    metrics: str = ",".join(_METRICS)
    observed_fraction: float = 0.5
    predictive: Literal["mode", "mean", "integrated"] = "mode"
    method: Literal["importance", "ais", "quadrature"] = "importance"
    num_samples: int = 1000
    num_chains: int = 16
    num_temperatures: int = 500
    top_n: int = 10
    out: str | None = None

    def run(self) -> int:
        """Run it; returns the exit code."""
        metrics = [name.strip() for name in self.metrics.split(",")]
        unknown = [name for name in metrics if name not in _METRICS]
        if unknown:
            raise ConfigError(f"metrics: {unknown[0]!r}; expected some of {', '.join(_METRICS)}")
        if self.out is not None and Path(self.out).is_dir():
            raise ConfigError(f"{self.out}: is a folder; name a file to write the scores to")
        method = self._estimator()
        run, guide, corpus = self.load(str(self.run_folder))
        test, train = corpus, None
        if run.metadata.get("corpus", {}).get("fingerprint") == corpus.fingerprint():
            split = run.split(corpus)
            if split is None:
                say("warning: the model was fitted to these very documents")
            else:
                test, train = split.test, split.train
                say(f"completion and likelihood of the {len(test)} documents held out from the fit")
        scores: list[Score] = []
        if "completion" in metrics:
            scores += self.complete(guide, test, train, self.observed_fraction, self.predictive)
        if "likelihood" in metrics and test.num_tokens == 0:
            say("the documents have no words: there is no likelihood per token")
        elif "likelihood" in metrics:
            estimate = lntm.evaluation.log_likelihood(
                run.model,
                test,
                method,
                num_samples=self.num_samples,
                seed=self.seed,
                progress=self.progress,
            )
            scores += lntm.report.likelihood_scores(estimate)
        if "coherence" in metrics:
            scores += lntm.report.coherence_scores(run.model, corpus, self.top_n)
        if "diversity" in metrics:
            scores.append(lntm.report.diversity_score(run.model, self.top_n))
        print(lntm.report.format_scores(scores))
        if self.out is not None:
            lntm.report.write_scores(Path(self.out), scores)
        return 0

    def _estimator(self) -> AIS | Literal["importance", "quadrature"]:
        """The estimator of the likelihood, with its options; none may be of another only."""
        options = {
            "num_samples": "importance",
            "num_chains": "ais",
            "num_temperatures": "ais",
        }
        for field in dataclasses.fields(self):
            method = options.get(field.name, self.method)
            if method != self.method and getattr(self, field.name) != field.default:
                raise ConfigError(
                    f"{field.name} is an option of method {method}; leave it out with "
                    f"{self.method}, or take that"
                )
        if self.method == "ais":
            return lntm.evaluation.AIS(self.num_chains, self.num_temperatures)
        return self.method


COMMANDS: dict[str, type[Command]] = {
    "fit": Fit,
    "topics": Topics,
    "sources": Sources,
    "transform": Transform,
    "evaluate": Evaluate,
}
