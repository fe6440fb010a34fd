"""Draws of documents' proportions by Hamiltonian Monte Carlo, from a fit's chains on or anew."""

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
    latents_at,
    warn_of_stuck,
)
from torch_lntm.inference.chains.kept import KeptChains
from torch_lntm.inference.draws.theta import DrawnDocuments, Positions
from torch_lntm.progress import tqdm

#: Transitions of a new chain before its first draw, and of a fit's chain, whose warm-up was the
#: fit itself: the parameters hardly changed in its last epochs.
WARMUP_STEPS, RESUMED_STEPS = 100, 6
#: Transitions from one draw to the next, of ``DocumentHMC`` and with the longer steps of
#: Monte-Carlo EM, by which draws two transitions apart have a correlation of 0.1 to 0.2.
THINNING, RESUMED_THINNING = 4, 2
#: Documents whose chains run at once, at most: more of them are no faster.
_CHAINS_AT_ONCE = 1000
#: Advice on chains that never move.
_STUCK = "their draws are all alike; use more warmup_steps, or take the draws of a guide"


@dataclass(eq=False)
class ChainDraws:
    """Draws by chains of each document.

    Chains of documents that a fit had continue. New chains start at the means of the model's
    default guide: from prior draws, which may be far away, a hundred transitions are too few.

    Args:
        chains: The chains of a fit, or of no document.
        corpus: The documents, with the covariates of the model.
        warmup_steps: Transitions of a new chain before its first draw.
        thinning: Transitions from one draw to the next; None for 4, and for 2 after a fit.
        max_docs: Documents whose chains run at once; None for what fits into memory.
        progress: Show a progress bar on standard error.
    """

    chains: KeptChains
    corpus: Corpus
    warmup_steps: int
    thinning: int | None
    max_docs: int | None
    progress: bool

    def __post_init__(self) -> None:
        """Find the documents that the fit had."""
        self.places = self.chains.find(self.corpus)
        continued = self.chains.num_docs > 0
        self.name, self.description = "hmc", "chains of each document (Hamiltonian Monte Carlo)"
        if continued:
            self.description += ", which continue the fit's"
        self.sources_of_uncertainty = (f"the documents' proportions, by {self.description}",)
        self.step = self.thinning or (RESUMED_THINNING if continued else THINNING)

    def make(self, rows: Positions, num_draws: int) -> Iterator[DrawnDocuments]:
        """The draws of the documents at some positions, in parts."""
        known = self.places[rows] >= 0
        sampled = self.step * math.ceil(num_draws / self.chains.settings.num_chains)
        groups = [(rows[known], RESUMED_STEPS), (rows[~known], self.warmup_steps)]
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
        """Draws of documents whose chains all continue, or are all new.

        Warns:
            ConvergenceWarning: Some chains never moved, or chains accepted few proposals.
        """
        model = self.chains.model
        size = docs_at_once(6 * num_draws * model.num_topics, model.device, model.dtype)
        size = self.max_docs or min(_CHAINS_AT_ONCE, size)
        all_moved, acceptance = [], []
        for batch in self.corpus.batches(size, order=rows, device=model.device, dtype=model.dtype):
            positions = batch.positions.numpy()
            chains = self._begin(batch, self.places[positions])
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
                f"chains accepted {mean:.2f} of their proposals, where {target} was aimed at: "
                "their draws move too little; fit with more warmup_epochs, or take the draws of a "
                "guide",
                ConvergenceWarning,
            )

    def _begin(self, batch: DocumentBatch, places: Positions) -> Chains:
        """The chains of a batch, where the fit's ended or new."""
        if places[0] >= 0:
            return self.chains.resume(batch, places)
        model, settings = self.chains.model, self.chains.settings
        means = make_guide(None, model).posterior(batch).mean
        initial = latents_at(model, batch, means, settings.num_chains, settings.seed)
        seed = settings.seed
        return Chains(model, settings, batch, seed, self.warmup_steps, initial, means=means)


def transitions_of(chains: KeptChains, num_draws: int) -> int:
    """Transitions of each of a fit's chains that so many draws of a document take."""
    return RESUMED_STEPS + RESUMED_THINNING * math.ceil(num_draws / chains.settings.num_chains)
