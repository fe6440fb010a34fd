"""``torch-lntm effects``, ``select`` and ``stability``."""

from __future__ import annotations

import csv
import functools
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch_lntm as lntm
from torch_lntm.cli.command import save_figure, say, show, whole_numbers
from torch_lntm.cli.documents import (
    ChoosesWords,
    DrawsPosteriors,
    OnDocuments,
    OnRun,
    is_built_in,
    structural_options,
    training_documents,
)
from torch_lntm.cli.launch import STOPPED
from torch_lntm.cli.mappings import groups_option, read_keywords
from torch_lntm.errors import ConfigError

ESTIMATE, STABILITY, SELECT = "effects:estimate", "reports:topic_stability", "selection:select"


@dataclass(kw_only=True)
class Effects(DrawsPosteriors):
    """Print the effects of the documents' metadata columns on the topic proportions.

    CORPUS defaults to the corpus of the fit, including the held-out documents.

    Attributes:
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
        level: Probability of the intervals.
        predict: Column for predictions. Prints the expected proportions at the values of this
            column instead of coefficients.
        by: Second column for predictions. Prints them for each of its levels.
        difference: Values of the column of --predict, separated by commas, such as Left,Right.
            Prints the difference of the expected proportions: the first value minus the last. Of
            several first values, each is compared with the last.
        levels: Column of a random term, such as author for (1 | author). Prints the effects of its
            levels instead of coefficients.
        print_as: Output format.
        figure: File for a figure of the predictions or differences, such as effects.png. Needs
            --predict. Choose a few --topics for a clear figure.
    """

    takes: ClassVar[dict[str, str]] = {ESTIMATE: "link standard_errors clusters weights num_draws"}

    formula: str | None = None
    topics: str | None = None
    groups: dict | str | None = None  # type: ignore[type-arg]
    draws: Literal["auto", "guide", "chains", "joint"] = "auto"  # type: ignore[assignment]
    level: float = 0.95
    predict: str | None = None
    by: str | None = None
    difference: str | None = None
    levels: str | None = None
    print_as: Literal["text", "json", "csv"] = "text"
    figure: str | None = None

    def run(self) -> int:
        """Run the command. Returns the exit code."""
        self._check_options()
        run, _, corpus = self.load(str(self.run_folder))
        text = self.formula or _own_formula(run.model)
        self._check_columns(text, corpus)
        draws: Any
        if self.draws == "joint":
            options = {"num_draws": self.num_draws or 50, **self.random}
            draws = lntm.inference.joint_draws(run.model, corpus, **options)
        else:
            draws = self.posterior_of(run, corpus)
        options = self.arguments(ESTIMATE) | self.random | {"groups": groups_option(self.groups)}
        options["topics"] = None if self.topics is None else self.topics.split(",")
        effects = lntm.effects.estimate(run.model, draws, corpus, text, **options)
        rows = self._rows(effects, corpus)
        if self.figure is not None:
            save_figure(self._plot(effects, corpus).figure, self.figure)
        if self.print_as == "text" and self.predict is None and self.levels is None:
            show(effects.summary(self.level))
            return 0
        say(repr(effects))  # the summary begins with the same lines
        if self.print_as == "text":
            show(effects.format(rows))
        else:
            show(lntm.frames.render(effects.frame(rows), self.print_as))
        return 0

    def _check_options(self) -> None:
        """Check that the options agree."""
        if self.corpus is not None and self.corpus.lstrip().startswith("~"):
            raise ConfigError(f"{self.corpus!r} is a formula; give it by --formula")
        for name in ("figure", "by", "difference"):
            if getattr(self, name) is not None and self.predict is None:
                raise ConfigError(f"{name}: it needs predictions; name their column by --predict")
        if None not in (self.levels, self.predict):
            raise ConfigError("levels and predict print different tables; leave out one of them")
        if self.difference is not None and len(self._compared()) < 2:
            expected = f"two values of the column {self.predict}, as in Left,Right"
            raise ConfigError(f"difference: {self.difference!r}; expected {expected}")
        if None not in (self.figure, self.by, self.difference):
            raise ConfigError("figure: differences are drawn without --by; leave it out")

    def _check_columns(self, text: str, corpus: lntm.Corpus) -> None:
        """Check the columns of the formula and of predictions, before the draws."""
        from torch_lntm.formulas import Formula

        formula, _ = Formula.fit(text, corpus.metadata, corpus.num_docs)
        if self.levels is not None and self.levels not in formula.random:
            expected = f"expected a formula with (1 | {self.levels})"
            raise ConfigError(
                f"levels: formula {text!r} has no random term of {self.levels!r}; {expected}"
            )
        for name in filter(None, (self.predict, self.by)):
            formula.check_column(name)
        if self.difference is not None:
            self._values(corpus)

    def _compared(self) -> list[str]:
        """The values of --difference. Quotes enclose a value with a comma."""
        return [text.strip() for text in next(csv.reader([str(self.difference)]), [])]

    def _values(self, corpus: lntm.Corpus) -> list[Any]:
        """The values of --difference, of the type of the column."""
        import numpy as np

        from torch_lntm.corpus.metadata import listed

        column = np.asarray(corpus.metadata[str(self.predict)])
        known, values = {str(value): value for value in column.tolist()}, []
        for text in self._compared():
            try:
                is_number = text not in known and column.dtype.kind in "iuf"
                values.append(float(text) if is_number else known[text])
            except (KeyError, ValueError):
                problem = f"difference: the column {self.predict} has no value {text!r}"
                raise ConfigError(f"{problem}; expected some of {listed(sorted(known))}") from None
        return values

    def _rows(self, effects: Any, corpus: lntm.Corpus) -> Any:
        """The rows of the table."""
        if self.levels is not None:
            return effects.levels(self.levels, self.level)
        if self.predict is None:
            return effects.table(self.level)
        if self.difference is None:
            return effects.predict(*filter(None, (self.predict, self.by)), level=self.level)
        *firsts, second = self._values(corpus)
        others: list[dict[str, Any]] = [{}]
        if self.by is not None:
            others = [{self.by: value} for value in effects.grid(self.by)]
        difference = functools.partial(effects.difference, self.predict, level=self.level)
        tables = [difference(first, second, **other) for first in firsts for other in others]
        return [row for of_topic in zip(*tables, strict=True) for row in of_topic]

    def _plot(self, effects: Any, corpus: lntm.Corpus) -> Any:
        """The axes of the figure."""
        if self.difference is None:
            return effects.plot(self.predict, by=self.by, level=self.level)
        *firsts, second = self._values(corpus)
        return effects.plot_difference(self.predict, firsts, second, level=self.level)


def _own_formula(model: Any) -> str:
    """Formula of the prevalence of a model."""
    covariates = getattr(model.prior, "covariates", None)
    if covariates is None or covariates.formula is None:
        raise ConfigError("the model has no formula of prevalence; give a formula by --formula")
    return str(covariates.formula.text)


@dataclass(kw_only=True)
class Select(ChoosesWords, OnDocuments):
    """Compare several numbers of topics on a split of the documents, and recommend a number.

    Ctrl-C ends the fits. The completed fits are compared.

    Attributes:
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

    positionals = ("corpus",)
    headings: ClassVar[dict[str, tuple[str, ...]]] = OnDocuments.headings | ChoosesWords.headings
    takes: ClassVar[dict[str, str]] = {SELECT: "num_seeds test_fraction top_n likelihood"}

    num_topics: str = "10,20,50,100"
    model: str = "ctm"
    posterior: str | None = None
    prevalence: str | None = None
    content: str | None = None
    keywords: str | dict[str, Any] | None = None
    print_as: Literal["text", "json", "csv"] = "text"
    figure: str | None = None

    def run(self) -> int:
        """Run the command. Returns the exit code."""
        from torch_lntm.recipes import Recipe

        sizes = whole_numbers("num_topics", self.num_topics)
        default = "auto" if is_built_in(self.model) else None
        recipe = Recipe(self.model, self.posterior or default)
        device = self.torch_device()
        corpus = self.read(**self.word_options())
        if corpus.preparation:
            say(corpus.preparation)
        options = structural_options(self.model, self.prevalence, self.content, corpus)
        if self.keywords is not None:
            options["keywords"] = read_keywords(self.keywords)
        settings = self.arguments(SELECT) | self.random | {"model_options": options}
        selection = lntm.select(corpus, sizes, recipe=recipe, device=device, **settings)
        show(lntm.frames.render(selection, self.print_as))
        if self.figure is not None:
            save_figure(selection.plot(), self.figure)
        return STOPPED["interrupted"] if selection.interrupted else 0


@dataclass(kw_only=True)
class Stability(OnRun):
    """Fit again from other seeds and to resampled documents, and compare the topics.

    CORPUS defaults to the corpus of the fit. The time is that of twice --num-fits fits.

    Attributes:
        print_as: Output format.
    """

    takes: ClassVar[dict[str, str]] = {STABILITY: "num_fits top_n"}

    print_as: Literal["text", "json", "csv"] = "text"

    def run(self) -> int:
        """Run the command. Returns the exit code."""
        run, _, corpus = self.load(str(self.run_folder))
        documents = training_documents(run, corpus)
        options = self.arguments(STABILITY) | self.random
        stability = lntm.topic_stability(run, documents, **options)
        show(lntm.frames.render(stability, self.print_as))
        return 0
