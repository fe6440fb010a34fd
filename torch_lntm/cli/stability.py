"""``torch-lntm stability``: how well new fits give the topics of a run again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch_lntm as lntm
from torch_lntm.cli.documents import OnDocuments, training_documents


@dataclass(kw_only=True)
class Stability(OnDocuments):
    """Fit again from other seeds and to resampled documents, and compare the topics.

    CORPUS defaults to the corpus of the fit. The time is that of twice --num-fits fits.

    Attributes:
        run_folder: The run's folder.
        num_fits: Number of fits from other seeds, and number of fits to resampled documents.
        top_n: Number of top words of each topic for the number of common words.
        print_as: Output format.
    """

    positionals = ("run_folder", "corpus")
    optional = ("corpus",)

    run_folder: str | None = None
    num_fits: int = 5
    top_n: int = 10
    print_as: Literal["text", "json", "csv"] = "text"

    def run(self) -> int:
        """Run the command. Returns the exit code."""
        run, _, corpus = self.load(str(self.run_folder))
        stability = lntm.reports.topic_stability(
            run,
            training_documents(run, corpus),
            self.num_fits,
            top_n=self.top_n,
            seed=self.seed,
            progress=self.shows_progress,
        )
        print(lntm.frames.render(stability, self.print_as))
        return 0
