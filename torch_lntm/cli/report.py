"""``torch-lntm report``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch_lntm as lntm
from torch_lntm.cli.documents import DrawsPosteriors, refuse_existing, say, training_documents
from torch_lntm.cli.mappings import groups_option
from torch_lntm.cli.studying import whole_numbers

if TYPE_CHECKING:
    from torch_lntm.corpus import Corpus
    from torch_lntm.io import Run
    from torch_lntm.reports import TopicTree
    from torch_lntm.reports.stability import TopicStability


@dataclass(kw_only=True)
class Report(DrawsPosteriors):
    """Write a page about a run: topics, map, correlations, documents, prevalence and scores.

    The page is a single HTML file and opens in any browser, without a network. It quotes the texts
    of the documents. CORPUS defaults to the corpus of the fit.

    Attributes:
        run_folder: The run's folder.
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
        title: Title of the page.
        num_words: Number of top words of each topic.
        num_docs: Number of documents to show for each topic.
        max_docs: Largest number of documents for the proportions and intervals. A larger corpus is
            sampled at random, and the page says so. Defaults to 100,000.
        overwrite: Replace an existing file.
    """

    positionals = ("run_folder", "corpus")
    optional = ("corpus",)

    run_folder: str | None = None
    out: str | None = None
    by: str | None = None
    groups: dict | str | None = None  # type: ignore[type-arg]
    levels: str | None = None
    stability: int = 0
    effects: str | None = None
    title: str | None = None
    num_words: int = 12
    num_docs: int = 4
    max_docs: int | None = None
    overwrite: bool = False

    def run(self) -> int:
        """Run the command. Returns the exit code."""
        from torch_lntm.reports.page import MAX_DOCS

        out = None if self.out is None else Path(self.out)
        if out is not None:
            refuse_existing(out, self.overwrite)
        run, _, corpus = self.load(str(self.run_folder))
        corpus = run.model.encode(corpus)
        max_docs = MAX_DOCS if self.max_docs is None else self.max_docs
        # Effects need draws of all documents.
        num_docs = len(corpus) if self.effects else min(len(corpus), max_docs)
        draws = self.posterior_of(run, corpus, num_docs)
        effects = None
        tree, groups = self.tree_and_groups(run)
        if self.effects is not None:
            effects = lntm.effects.estimate(
                run.model,
                draws,
                corpus,
                self.effects,
                groups=groups,
                num_draws=self.num_draws,
                seed=self.seed,
                progress=self.shows_progress,
            )
        path = lntm.report(
            run,
            corpus,
            out,
            overwrite=self.overwrite,
            draws=draws,
            by=None if self.by is None else [c.strip() for c in self.by.split(",") if c.strip()],
            groups=groups,
            tree=tree,
            stability=self.new_fits(run, corpus),
            texts=self.texts(),
            effects=effects,
            title=self.title,
            num_words=self.num_words,
            num_docs=self.num_docs,
            max_docs=max_docs,
            num_draws=self.num_draws,
            seed=self.seed,
            progress=self.shows_progress,
        )
        say(f"wrote {path}")
        return 0

    def new_fits(self, run: Run, corpus: Corpus) -> TopicStability | None:
        """Stability of the topics over new fits, if asked for."""
        if not self.stability:
            return None
        return lntm.reports.topic_stability(
            run,
            training_documents(run, corpus),
            self.stability,
            seed=self.seed,
            progress=self.shows_progress,
        )

    def tree_and_groups(self, run: Run) -> tuple[TopicTree | None, Any]:
        """The tree of the topics, and the groups to show; each None unless asked for."""
        groups = groups_option(self.groups)
        if self.levels is None:
            return None, groups
        levels, shares = whole_numbers("levels", self.levels), run.metadata.get("topic_shares")
        tree = lntm.topic_tree(run.model, levels, shares=shares)
        return tree, tree.groups(tree.levels[-1]) if groups is None else groups
