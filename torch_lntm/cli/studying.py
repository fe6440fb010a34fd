"""``torch-lntm effects`` and ``select``: covariates of topics, and the number of topics."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch_lntm as lntm
from torch_lntm.cli.documents import (
    WORD_OPTIONS,
    ChoosesWords,
    DrawsPosteriors,
    OnDocuments,
    in_options,
    is_built_in,
    say,
    structural_options,
)
from torch_lntm.cli.fit import STOPPED
from torch_lntm.cli.mappings import groups_option, read_keywords
from torch_lntm.errors import ConfigError

if TYPE_CHECKING:
    from torch_lntm.formulas import Formula


@dataclass(kw_only=True)
class Effects(DrawsPosteriors):
    """Print the effects of the documents' metadata columns on the topic proportions.

    CORPUS defaults to the corpus of the fit, including the held-out documents.

    Attributes:
        run_folder: The run's folder.
        formula: Formula of the columns, such as "~ party * bs(date, df=6)". Defaults to the
            formula of the model's prevalence.
        topics: Topics to regress, by number or name, separated by commas. Defaults to all topics,
            and to no topic with --groups.
        groups: Groups of topics to regress, such as "economy=3,7; war=1", or a file that ends in
            .json or .yaml with topics by group.
        standard_errors: Standard errors of the regression: classical, or robust to unequal
            variances (HC0 to HC3). Defaults to HC3, and to the model's for formulas with random
            terms such as (1 | author).
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
        link: Regression behind the predictions. identity: The linear regression of the
            coefficients. logit: A multinomial logit, whose predictions and intervals lie between 0
            and 1. Defaults to logit, and to identity for more than 2,000 coefficients of the logit.
        print_as: Output format.
        figure: File for a figure of the predictions or differences, such as effects.png. Needs
            --predict. Choose a few --topics for a clear figure.
    """

    positionals = ("run_folder", "corpus")
    optional = ("corpus",)

    run_folder: str | None = None
    formula: str | None = None
    topics: str | None = None
    groups: dict | str | None = None  # type: ignore[type-arg]
    standard_errors: Literal["classical", "HC0", "HC1", "HC2", "HC3"] | None = None
    clusters: str | None = None
    weights: str | None = None
    draws: Literal["auto", "guide", "chains", "joint"] = "auto"  # type: ignore[assignment]
    level: float = 0.95
    predict: str | None = None
    by: str | None = None
    difference: str | None = None
    levels: str | None = None
    link: Literal["identity", "logit"] | None = None
    print_as: Literal["text", "json", "csv"] = "text"
    figure: str | None = None

    def run(self) -> int:
        """Run the command. Returns the exit code."""
        self._check_options()
        if self.corpus is not None and self.corpus.lstrip().startswith("~"):
            raise ConfigError(f"{self.corpus!r} is a formula; give it by --formula")
        run, _, corpus = self.load(str(self.run_folder))
        text = self.formula or _own_formula(run.model)
        self._check_columns(text, corpus)
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
            text,
            topics=None if self.topics is None else self.topics.split(","),
            groups=groups_option(self.groups),
            standard_errors=self.standard_errors,
            clusters=self.clusters,
            weights=self.weights,
            num_draws=self.num_draws,
            seed=self.seed,
            progress=self.shows_progress,
        )
        prints_summary = self.print_as == "text" and self.predict is None and self.levels is None
        if not prints_summary:  # the summary begins with the same lines
            say(repr(effects))
        rows = self._rows(effects)
        if self.figure is not None:
            save_figure(self._plot(effects).figure, self.figure)
        if self.print_as == "json":
            print(json.dumps([asdict(r) | {"p_value": r.p_value} for r in rows], indent=2))
        elif self.print_as == "csv":
            print(lntm.effects.to_frame(rows).to_csv(index=False), end="")
        else:
            print(effects.summary(self.level) if prints_summary else effects.format(rows))
        return 0

    def _check_options(self) -> None:
        """Check that the options agree."""
        for name in ("figure", "by", "difference"):
            if getattr(self, name) is not None and self.predict is None:
                raise ConfigError(f"{name}: it needs predictions; name their column by --predict")
        if self.levels is not None and self.predict is not None:
            raise ConfigError(
                "levels: effects of levels and predictions are different tables; "
                "leave out --levels or --predict"
            )
        if self.difference is not None and len(self._compared()) < 2:
            raise ConfigError(
                f"difference: {self.difference!r}; expected two values of the column "
                f"{self.predict}, as in Left,Right"
            )
        if None not in (self.figure, self.by, self.difference):
            raise ConfigError("figure: differences are drawn without --by; leave it out")

    def _compared(self) -> list[str]:
        """The values of --difference. Quotes enclose a value with a comma."""
        return [text.strip() for text in next(csv.reader([str(self.difference)]), [])]

    def _rows(self, effects: Any) -> Any:
        """The rows of the table."""
        if self.levels is not None:
            return effects.levels(self.levels, self.level)
        if self.predict is None:
            return effects.table(self.level)
        settings: dict[str, Any] = {"level": self.level, "link": self.link}
        names = [self.predict, *([] if self.by is None else [self.by])]
        if self.difference is None:
            return effects.predict(*names, **settings)
        *firsts, second = self._values(effects.formula)
        others = [{name: value} for name in names[1:] for value in effects.grid(name, self.link)]
        tables = [
            effects.difference(self.predict, first, second, **settings, **other)
            for first in firsts
            for other in others or [{}]
        ]
        return [row for of_topic in zip(*tables, strict=True) for row in of_topic]

    def _plot(self, effects: Any) -> Any:
        """The axes of the figure."""
        settings: dict[str, Any] = {"level": self.level, "link": self.link}
        if self.difference is None:
            return effects.plot(self.predict, by=self.by, **settings)
        *firsts, second = self._values(effects.formula)
        return effects.plot_difference(self.predict, firsts, second, **settings)

    def _values(self, formula: Formula) -> list[Any]:
        """The values of --difference, numbers for a column of numbers."""
        name = str(self.predict)
        levels = {str(level): level for level in formula.random.get(name, ())}
        if formula.kinds.get(name) != "number":
            return [levels.get(text, text) for text in self._compared()]
        try:
            return [float(text) for text in self._compared()]
        except ValueError:
            raise ConfigError(
                f"difference: {self.difference!r}; expected numbers, because {name} is a column of "
                "numbers"
            ) from None

    def _check_columns(self, text: str, corpus: lntm.Corpus) -> None:
        """Check the columns of the formula and of predictions, before the draws."""
        from torch_lntm.corpus.metadata import listed
        from torch_lntm.formulas import Formula

        formula, _ = Formula.fit(text, corpus.metadata, corpus.num_docs)
        if self.levels is not None and self.levels not in formula.random:
            raise ConfigError(
                f"levels: formula {text!r} has no random term of {self.levels!r}; expected a "
                f"formula with (1 | {self.levels})"
            )
        if self.by is not None:
            formula.check_column(self.by)
        if self.predict is None:
            return
        if "," in self.predict:
            names = ", ".join(repr(name.strip()) for name in self.predict.split(","))
            raise ConfigError(
                f"predict is {self.predict!r}; expected a single column. A second column goes to "
                f"--by. In Python, effects.predict({names}) predicts all combinations of several "
                "columns"
            )
        formula.check_column(self.predict)
        if self.difference is not None:
            known = sorted(map(str, set(corpus.metadata[self.predict])))
            is_text = formula.kinds.get(self.predict) == "text"
            unknown = [v for v in self._values(formula) if is_text and v not in known]
            if unknown:
                raise ConfigError(
                    f"difference: the column {self.predict} has no value {unknown[0]!r}; expected "
                    f"some of {listed(known)}"
                )


def _own_formula(model: Any) -> str:
    """Formula of the prevalence of a model."""
    covariates = getattr(model.prior, "covariates", None)
    if covariates is None or covariates.formula is None:
        raise ConfigError(
            "formula: the model has no formula of prevalence; give a formula by --formula"
        )
    text: str = covariates.formula.text
    return text


def save_figure(figure: Any, path: str) -> None:
    """Save a Matplotlib figure in the format of the file's name. Defaults to PNG."""
    from torch_lntm.files import atomic_write

    name = Path(path)
    name = name if name.suffix else name.with_name(f"{name.name}.png")
    with atomic_write(name) as file:
        try:
            figure.savefig(file, format=name.suffix.removeprefix("."))
        except ValueError as error:
            raise ConfigError(f"{path}: {error}") from error


def whole_numbers(option: str, text: str) -> list[int]:
    """Numbers in an option such as ``"10,20,50"``."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{option}: {text!r}; expected whole numbers, as in 10,20,50") from None


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
        num_seeds: Number of fits for each number of topics. Two or more fits show the stability of
            topics.
        test_fraction: Share of the documents to hold out.
        top_n: Number of top words of each topic for coherence and exclusivity.
        likelihood: Also estimate the log likelihood of complete held-out documents, by annealed
            importance sampling. This takes about as long as the fits.
        print_as: Output format of the criteria.
        figure: File for a figure of the criteria, such as topics.png.
    """

    positionals = ("corpus",)
    headings: ClassVar[dict[str, tuple[str, ...]]] = {
        **OnDocuments.headings,
        "words of texts": WORD_OPTIONS,
    }

    num_topics: str = "10,20,50,100"
    model: str = "ctm"
    posterior: str | None = None
    prevalence: str | None = None
    content: str | None = None
    keywords: str | dict[str, Any] | None = None
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
        default = "auto" if is_built_in(self.model) else None
        recipe = Recipe(self.model, self.posterior or default)
        device = self.torch_device()
        corpus = self.read(**self.word_options())
        if corpus.preparation:
            say(in_options(corpus.preparation))
        options = structural_options(self.model, self.prevalence, self.content, corpus)
        if self.keywords is not None:
            options["keywords"] = read_keywords(self.keywords)
        selection = lntm.select(
            corpus,
            sizes,
            recipe=recipe,
            num_seeds=self.num_seeds,
            test_fraction=self.test_fraction,
            seed=self.seed,
            top_n=self.top_n,
            likelihood=self.likelihood,
            model_options=options,
            device=device,
            progress=self.shows_progress,
        )
        print(selection.format(self.print_as))
        if self.figure is not None:
            save_figure(selection.plot(), self.figure)
        return STOPPED["interrupted"] if selection.interrupted else 0
