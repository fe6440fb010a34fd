"""``torch-lntm report`` and ``tree``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch_lntm as lntm
from torch_lntm.cli.command import Command, refuse_existing, save_figure, say, show, whole_numbers
from torch_lntm.cli.documents import DrawsPosteriors, training_documents
from torch_lntm.cli.mappings import groups_option

PAGE = "reports.page:render_page"


@dataclass(kw_only=True)
class Report(DrawsPosteriors):
    """Write a page about a run: topics, map, correlations, documents, prevalence and scores.

    The page is a single HTML file and opens in any browser, without a network. It quotes the texts
    of the documents. CORPUS defaults to the corpus of the fit.

    Attributes:
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
        overwrite: Replace an existing file.
    """

    takes: ClassVar[dict[str, str]] = {PAGE: "title num_words num_docs max_docs num_draws"}

    out: str | None = None
    by: str | None = None
    groups: dict | str | None = None  # type: ignore[type-arg]
    levels: str | None = None
    stability: int = 0
    effects: str | None = None
    overwrite: bool = False

    def run(self) -> int:
        """Run the command. Returns the exit code."""
        out = None if self.out is None else Path(self.out)
        refuse_existing(out, self.overwrite)
        run, _, corpus = self.load(str(self.run_folder))
        corpus = run.model.encode(corpus)
        shares = run.metadata.get("topic_shares")
        groups: Any = groups_option(self.groups)
        tree = stability = effects = None
        if self.levels is not None:
            levels = whole_numbers("levels", self.levels)
            tree = lntm.topic_tree(run.model, levels, shares=shares)
            groups = tree.groups(tree.levels[-1]) if groups is None else groups
        draws = self.posterior_of(run, corpus)
        if self.effects is not None:
            options = {"groups": groups, "num_draws": self.num_draws, **self.random}
            effects = lntm.effects.estimate(run.model, draws, corpus, self.effects, **options)
        if self.stability:
            documents = training_documents(run, corpus)
            stability = lntm.topic_stability(run, documents, self.stability, **self.random)
        shown: dict[str, Any] = {"groups": groups, "tree": tree, "stability": stability}
        if self.by is not None:
            shown["by"] = [column.strip() for column in self.by.split(",") if column.strip()]
        shown |= {"effects": effects, "texts": self.texts(), **self.arguments(PAGE), **self.random}
        path = lntm.report(run, corpus, out, overwrite=self.overwrite, draws=draws, **shown)
        say(f"wrote {path}")
        return 0


@dataclass(kw_only=True)
class Tree(Command):
    """Merge similar topics of a run, and print the groups at some levels.

    Attributes:
        run_folder: The run's folder.
        levels: Numbers of groups, separated by commas, such as 40,10.
        print_as: Output format.
        out: JSON file for the groups of all levels, for --groups of other commands.
        figure: File for a picture of the tree, such as tree.png.
        overwrite: Replace an existing file.
    """

    positionals = ("run_folder",)
    takes: ClassVar[dict[str, str]] = {"reports:topic_tree": "by"}

    run_folder: str | None = None
    levels: str = "10"
    print_as: Literal["text", "json", "csv"] = "text"
    out: str | None = None
    figure: str | None = None
    overwrite: bool = False

    def run(self) -> int:
        """Run the command. Returns the exit code."""
        from torch_lntm.files.writing import as_json, atomic_write

        refuse_existing(self.out, self.overwrite)
        run = lntm.load_run(str(self.run_folder))
        levels = whole_numbers("levels", self.levels)
        shares: Any = run.metadata.get("topic_shares")
        tree = lntm.topic_tree(run.model, levels, by=self.by, shares=shares)
        show(lntm.frames.render(tree, self.print_as))
        if self.out is not None:
            with atomic_write(Path(self.out)) as file:
                file.write(as_json(tree.groups()))
            say(f"wrote {len(tree.groups())} groups to {self.out}")
        if self.figure is not None:
            save_figure(lntm.plotting.tree_plot(tree).figure, self.figure)
        return 0
