"""``torch-lntm tree``: groups of similar topics at several levels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch_lntm as lntm
from torch_lntm.cli.documents import Command, refuse_existing, say
from torch_lntm.cli.studying import save_figure, whole_numbers


@dataclass(kw_only=True)
class Tree(Command):
    """Merge similar topics of a run, and print the groups at some levels.

    Attributes:
        run_folder: The run's folder.
        levels: Numbers of groups, separated by commas, such as 40,10.
        by: Distance of topics. correlation: Topics of the same documents are close. words: Topics
            with similar words are close. Defaults to correlation, or to words if the prior knows no
            correlations.
        print_as: Output format.
        out: JSON file for the groups of all levels, for --groups of other commands.
        figure: File for a picture of the tree, such as tree.png.
        overwrite: Replace an existing file.
    """

    positionals = ("run_folder",)

    run_folder: str | None = None
    levels: str = "10"
    by: Literal["words", "correlation"] | None = None
    print_as: Literal["text", "json", "csv"] = "text"
    out: str | None = None
    figure: str | None = None
    overwrite: bool = False

    def run(self) -> int:
        """Run the command. Returns the exit code."""
        from torch_lntm.files import as_json, atomic_write

        if self.out is not None:
            refuse_existing(Path(self.out), self.overwrite)
        run = lntm.load_run(str(self.run_folder))
        levels = whole_numbers("levels", self.levels)
        shares = run.metadata.get("topic_shares")
        tree = lntm.topic_tree(run.model, levels, by=self.by, shares=shares)
        print(lntm.frames.render(tree, self.print_as))
        if self.out is not None:
            with atomic_write(Path(self.out)) as file:
                file.write(as_json(tree.groups()))
            say(f"wrote {len(tree.groups())} groups to {self.out}")
        if self.figure is not None:
            save_figure(lntm.plotting.tree_plot(tree).figure, self.figure)
        return 0
