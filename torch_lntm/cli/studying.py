"""``torch-lntm effects`` and ``select``: covariates of topics, and the number of topics."""

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
    is_built_in,
    say,
    structural_options,
)
from torch_lntm.cli.fit import STOPPED
from torch_lntm.cli.mappings import groups_option, read_keywords
from torch_lntm.errors import ConfigError


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
        link: Regression behind the predictions. identity: The linear regression of the
            coefficients. logit: A multinomial logit, whose predictions and intervals lie between 0
            and 1. Defaults to logit, and to identity for more than 2,000 coefficients of the logit.
        print_as: Output format.
        figure: File for a figure of the predictions, such as effects.png. Needs --predict. Choose a
            few --topics for a clear figure.
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
    link: Literal["identity", "logit"] | None = None
    print_as: Literal["text", "json", "csv"] = "text"
    figure: str | None = None

    def run(self) -> int:
        """Run the command. Returns the exit code."""
        if self.figure is not None and self.predict is None:
            raise ConfigError("figure: predictions are drawn; name their column by --predict")
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
        say(repr(effects))
        rows: Any = effects.table(self.level)
        if self.predict is not None:
            rows = effects.predict(self.predict, level=self.level, link=self.link)
        if self.figure is not None:
            axes = effects.plot(str(self.predict), level=self.level, link=self.link)
            save_figure(axes.figure, self.figure)
        if self.print_as == "json":
            print(json.dumps([asdict(r) | {"p_value": r.p_value} for r in rows], indent=2))
        elif self.print_as == "csv":
            print(lntm.effects.to_frame(rows).to_csv(index=False), end="")
        elif self.predict is None:
            print(effects.summary(self.level))
        else:
            print(effects.format(rows))
        return 0

    def _check_columns(self, text: str, corpus: lntm.Corpus) -> None:
        """Check the columns of the formula and of predictions, before the draws."""
        from torch_lntm.formulas import Formula

        formula, _ = Formula.fit(text, corpus.metadata, corpus.num_docs)
        if self.predict is None:
            return
        if "," in self.predict:
            names = ", ".join(repr(name.strip()) for name in self.predict.split(","))
            raise ConfigError(
                f"predict is {self.predict!r}; expected a single column. In Python, "
                f"effects.predict({names}) predicts all combinations of several columns"
            )
        formula.check_column(self.predict)


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
