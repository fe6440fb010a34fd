"""``torch-lntm effects`` and ``select``: what topics depend on, and how many there should be."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch_lntm as lntm
from torch_lntm.cli.documents import (
    WORD_OPTIONS,
    ChoosesWords,
    DrawsPosteriors,
    OnDocuments,
    in_options,
    say,
    structural_options,
)
from torch_lntm.cli.fit import INTERRUPTED
from torch_lntm.errors import ConfigError


@dataclass(kw_only=True)
class Effects(DrawsPosteriors):
    """Print how the topic proportions of a run depend on columns of its documents.

    Without CORPUS the run's own corpus is read again, the documents held out from the fit included.

    Attributes:
        run_folder: The run's folder.
        formula: The columns, such as "~ party * bs(date, df=6)"; if not given, those that the
            model's prevalence depends on.
        topics: Topics to regress, with commas between; all if not given.
        standard_errors: Standard errors of the regression, classical or robust to unequal
            variances.
        clusters: Column of groups within which documents may depend on each other.
        weights: Column of the documents' weights.
        draws: Source of the draws. guide: the approximation that the run's posterior names, or the
            model's usual one after posterior hmc. chains: chains of each document, which
            approximate nothing and take longer; after posterior hmc they continue the fit's.
            joint: one chain over documents, topics and prior together, whose intervals hold what
            the fit leaves open of all, as they must where documents are short. auto: chains after
            posterior hmc, the guide otherwise.
        level: Probability of the intervals.
        predict: Column to print expected proportions at the values of, instead of coefficients.
        print_as: How to print them.
        figure: File to draw the predictions in, such as effects.png; needs --predict, and shows
            most with a few --topics.
    """

    positionals = ("run_folder", "corpus")
    optional = ("corpus",)

    run_folder: str | None = None
    formula: str | None = None
    topics: str | None = None
    standard_errors: Literal["classical", "HC0", "HC1", "HC2", "HC3"] = "HC3"
    clusters: str | None = None
    weights: str | None = None
    draws: Literal["auto", "guide", "chains", "joint"] = "auto"  # type: ignore[assignment]
    level: float = 0.95
    predict: str | None = None
    print_as: Literal["text", "json", "csv"] = "text"
    figure: str | None = None

    def run(self) -> int:
        """Run the command. Returns the exit code."""
        if self.figure is not None and self.predict is None:
            raise ConfigError("figure: predictions are drawn; name their column by --predict")
        if self.corpus is not None and self.corpus.lstrip().startswith("~"):
            raise ConfigError(f"{self.corpus!r} is a formula; give it by --formula")
        run, _, corpus = self.load(str(self.run_folder))
        draws: Any
        if self.draws == "joint":
            draws = lntm.inference.joint_draws(
                run.model,
                corpus,
                num_draws=self.num_draws or 50,
                seed=self.seed,
                progress=self.shows_progress,
            )
        else:
            draws = self.posterior_of(run, corpus)
        effects = lntm.effects.estimate(
            run.model,
            draws,
            corpus,
            self.formula or _own_formula(run.model),
            topics=None if self.topics is None else whole_numbers("topics", self.topics),
            standard_errors=self.standard_errors,
            clusters=self.clusters,
            weights=self.weights,
            num_draws=self.num_draws,
            seed=self.seed,
            progress=self.shows_progress,
        )
        say(repr(effects))
        rows: Any = effects.table(self.level)
        if self.predict is not None:
            rows = effects.predict(self.predict, level=self.level)
        if self.figure is not None:
            _save_figure(effects.plot(str(self.predict), level=self.level).figure, self.figure)
        if self.print_as == "json":
            print(json.dumps([asdict(r) | {"p_value": r.p_value} for r in rows], indent=2))
        elif self.print_as == "csv":
            print(lntm.effects.to_frame(rows).to_csv(index=False), end="")
        elif self.predict is None:
            print(effects.summary(self.level))
        else:
            print(effects.format(rows))
        return 0


def _own_formula(model: Any) -> str:
    """The formula of a model's prevalence."""
    covariates = getattr(model.prior, "covariates", None)
    if covariates is None or covariates.formula is None:
        raise ConfigError("formula: the model has none of its own; give one by --formula")
    text: str = covariates.formula.text
    return text


def _save_figure(figure: Any, path: str) -> None:
    from torch_lntm.files import atomic_write

    name = Path(path)
    name = name if name.suffix else name.with_name(f"{name.name}.png")
    with atomic_write(name) as file:
        try:
            figure.savefig(file, format=name.suffix.removeprefix("."))
        except ValueError as error:
            raise ConfigError(f"{path}: {error}") from error


def whole_numbers(option: str, text: str) -> list[int]:
    """The numbers of an option such as ``"10,20,50"``."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{option}: {text!r}; expected whole numbers, as in 10,20,50") from None


@dataclass(kw_only=True)
class Select(ChoosesWords, OnDocuments):
    """Fit models of several numbers of topics, judge them on one split, and recommend one.

    Ctrl-C ends the fits, and those that are complete are judged.

    Attributes:
        num_topics: Numbers of topics to try, with commas between.
        model: Model to fit: ctm, lntm, iftm, lda or stm, or the name of one that a plug-in
            registers.
        posterior: Approximation of the documents' posteriors, as for fit; auto if not given.
        prevalence: Formula of the columns that the prevalence of topics depends on, for stm.
        content: Column of the groups between which the words of topics differ, for stm.
        num_seeds: Fits of each number of topics; two or more show how stable topics are.
        test_fraction: Share of the documents to hold out.
        top_n: Top words of each topic for coherence and exclusivity.
        likelihood: Estimate the log likelihood of whole held-out documents too, by annealed
            importance sampling, which takes about as long as the fits.
        print_as: How to print the criteria.
        figure: File to draw them in, such as topics.png.
    """

    positionals = ("corpus",)
    groups: ClassVar[dict[str, tuple[str, ...]]] = {
        **OnDocuments.groups,
        "words of texts": WORD_OPTIONS,
    }

    num_topics: str = "10,20,50,100"
    model: str = "ctm"
    posterior: str | None = None
    prevalence: str | None = None
    content: str | None = None
    num_seeds: int = 2
    test_fraction: float = 0.1
    top_n: int = 10
    likelihood: bool = False
    print_as: Literal["text", "json", "csv"] = "text"
    figure: str | None = None

    def run(self) -> int:
        """Run the command. Returns the exit code."""
        from torch_lntm.recipes import Recipe

        sizes = whole_numbers("num_topics", self.num_topics)
        default = "auto" if self.plugin is None else None
        recipe = Recipe(self.model, self.posterior or default)
        device = self.torch_device()
        corpus = self.read(**self.word_options())
        if corpus.preparation:
            say(in_options(corpus.preparation))
        selection = lntm.select(
            corpus,
            sizes,
            recipe=recipe,
            num_seeds=self.num_seeds,
            test_fraction=self.test_fraction,
            seed=self.seed,
            top_n=self.top_n,
            likelihood=self.likelihood,
            model_options=structural_options(self.model, self.prevalence, self.content, corpus),
            device=device,
            progress=self.shows_progress,
        )
        print(selection.format(self.print_as))
        if self.figure is not None:
            _save_figure(selection.plot(), self.figure)
        return INTERRUPTED if selection.interrupted else 0
