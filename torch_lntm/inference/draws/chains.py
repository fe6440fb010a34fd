"""Draws of documents' proportions by Hamiltonian Monte Carlo, from new chains or a fit's chains."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from torch_lntm.budget import docs_at_once
from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.errors import ConvergenceWarning, warn
from torch_lntm.guides import make_guide
from torch_lntm.inference.chains.chains import (
    FEWEST_TRANSITIONS,
    Chains,
    initial_latents,
    warn_of_stuck,
)
from torch_lntm.inference.chains.kept import KeptChains
from torch_lntm.inference.draws.theta import DrawnDocuments, Positions
from torch_lntm.progress import tqdm

#: Transitions before the first draw, for a new chain and for a chain of a fit. A chain of a fit
#: needs few: the fit was its warm-up, and the last epochs changed the parameters little.
WARMUP_STEPS, RESUMED_STEPS = 100, 6
#: Transitions from one draw to the next, for chains of ``DocumentHMC`` and of Monte-Carlo EM.
#: Transitions of Monte-Carlo EM move further: draws at a distance of 2 transitions have a
#: correlation of 0.1 to 0.2.
THINNING, RESUMED_THINNING = 4, 2
#: Maximum number of documents whose chains run at once. Larger batches are no faster.
_CHAINS_AT_ONCE = 1000
#: Advice about stuck chains.
_STUCK = "all their draws are equal; use more warmup_steps, or draw by a guide"


@dataclass(eq=False)
class ChainDraws:
    """Draws by chains of each document.

    The chains of the fit's documents continue. The chains of new documents start at the posterior
    means of the model's default guide, because prior draws may be too far away for a warm-up of 100
    transitions.

    Args:
        chains: The chains of a fit, or kept chains of no document.
        corpus: The documents, with the covariates of the model.
        warmup_steps: Transitions of a new chain before its first draw.
        thinning: Transitions from one draw to the next. ``None`` stands for 4, or 2 for the chains
            of a fit.
        max_docs: Number of documents whose chains run at once. ``None`` stands for the number that
            fits in memory, at most 1000.
        progress: Whether to show a progress bar on standard error.
    """

    chains: KeptChains
    corpus: Corpus
    warmup_steps: int
    thinning: int | None
    max_docs: int | None
    progress: bool

    def __post_init__(self) -> None:
        """Find the chains of the corpus's documents among the chains of the fit."""
        self.columns = self.chains.find(self.corpus)
        continued = self.chains.num_docs > 0
        self.name, self.description = "hmc", "chains of each document (Hamiltonian Monte Carlo)"
        if continued:
            self.description += ", which continue the chains of the fit"
        self.sources_of_uncertainty = (f"the documents' proportions, by {self.description}",)
        self.step = self.thinning or (RESUMED_THINNING if continued else THINNING)

    def draw(self, rows: Positions, num_draws: int) -> Iterator[DrawnDocuments]:
        """Draws of the documents at some positions, in parts."""
        has_chains = self.columns[rows] >= 0
        sampled = self.step * math.ceil(num_draws / self.chains.settings.num_chains)
        groups = [(rows[has_chains], RESUMED_STEPS), (rows[~has_chains], self.warmup_steps)]
        with tqdm(
            total=sum(len(group) * (skipped + sampled) for group, skipped in groups),
            desc="chains",
            disable=not self.progress,
            bar_format="{desc} |{bar}| {elapsed}<{remaining}",
        ) as bar:
            for group, skipped in groups:
                if len(group):
                    yield from self._draw(group, skipped, sampled, num_draws, bar)

    @torch.no_grad()
    def _draw(
        self, rows: Positions, skipped: int, sampled: int, num_draws: int, bar: tqdm
    ) -> Iterator[DrawnDocuments]:
        """Draws of documents whose chains either all continue or are all new.

        Args:
            rows: Positions of the documents.
            skipped: Transitions of each chain before its first draw.
            sampled: Transitions of each chain from then on.
            num_draws: Number of draws of each document.
            bar: Progress bar.

        Warns:
            ConvergenceWarning: Some chains never moved, or chains accepted few proposals.
        """
        model = self.chains.model
        size = docs_at_once(6 * num_draws * model.num_topics, model.device, model.dtype)
        size = self.max_docs or min(_CHAINS_AT_ONCE, size)
        all_moved, acceptance = [], []
        for batch in self.corpus.batches(size, order=rows, device=model.device, dtype=model.dtype):
            positions = batch.positions.numpy()
            chains = self._begin(batch, self.columns[positions])
            drawn = []
            for done in range(1, skipped + sampled + 1):
                chains.move(skipped + sampled - done + 1)
                if done > skipped and (done - skipped) % self.step == 0:
                    drawn.append(model.theta(chains.latents[model.prior.latent]).cpu())
                bar.update(batch.num_docs)
            moved = chains.moved.cpu() | (sampled < FEWEST_TRANSITIONS)
            all_moved.append(moved)
            acceptance.append(chains.mean_acceptance.cpu())
            theta = torch.stack(drawn, 1).flatten(0, 1)[:num_draws]
            yield DrawnDocuments(positions, theta, moved.all(0))
        moved = torch.cat(all_moved, 1)
        warn_of_stuck(moved, torch.from_numpy(rows), sampled, _STUCK)
        mean = float(torch.cat(acceptance, 1)[moved].mean())
        target = self.chains.settings.target_accept
        if mean < target / 2.0:
            warn(
                f"chains accepted {mean:.2f} of their proposals, far below the target {target}: "
                "their draws move too little; fit with more warmup_epochs, or draw by a guide",
                ConvergenceWarning,
            )

    def _begin(self, batch: DocumentBatch, columns: Positions) -> Chains:
        """Chains of a batch: the chains of the fit at their last state, or new chains."""
        if columns[0] >= 0:
            return self.chains.resume(batch, columns)
        model, settings = self.chains.model, self.chains.settings
        means = make_guide(None, model).posterior(batch).mean
        initial = initial_latents(model, batch, means, settings.num_chains, settings.seed)
        seed = settings.seed
        return Chains(model, settings, batch, seed, self.warmup_steps, initial, means=means)
