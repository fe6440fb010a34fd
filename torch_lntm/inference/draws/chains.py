"""Draws of documents' proportions by Hamiltonian Monte Carlo, from a fit's chains on or anew."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import torch

from torch_lntm.budget import docs_at_once
from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.errors import ConvergenceWarning, warn
from torch_lntm.guides import make_guide
from torch_lntm.inference.chains.chains import Chains, latents_at, warn_of_stuck
from torch_lntm.inference.chains.document_hmc import DocumentHMC
from torch_lntm.inference.chains.kept import KeptChains
from torch_lntm.inference.chains.settings import HMCSettings
from torch_lntm.inference.draws.theta import DrawnDocuments, Positions, ThetaDraws
from torch_lntm.models import TopicModel
from torch_lntm.progress import tqdm

#: Transitions of a new chain before its first draw, and of a fit's chain, whose warm-up was the
#: fit itself: the parameters hardly changed in its last epochs.
WARMUP_STEPS, RESUMED_STEPS = 100, 6
#: Transitions from one draw to the next, of ``DocumentHMC`` and with the longer steps of
#: Monte-Carlo EM, by which draws two transitions apart have a correlation of 0.1 to 0.2.
THINNING, RESUMED_THINNING = 4, 2
#: Documents whose chains run at once, at most: more of them are no faster.
_CHAINS_AT_ONCE = 1000
#: Transitions without a move of a chain that is stuck; after fewer it may be unlucky.
FEWEST_TRANSITIONS = 10
#: Advice on chains that never move.
_STUCK = "their draws are all alike; use more warmup_steps, or take the draws of a guide"


def chain_draws(
    chains: DocumentHMC | KeptChains,
    corpus: Corpus,
    rows: Positions,
    num_draws: int,
    *,
    warmup_steps: int = WARMUP_STEPS,
    thinning: int | None = None,
    max_docs: int | None = None,
    keep: bool = True,
    progress: bool = False,
) -> ThetaDraws:
    """Draws by chains of each document; see :func:`theta_draws`.

    New chains start at the means of the model's default guide. From prior draws, which may be far
    away, a hundred transitions are too few to get there.

    Args:
        chains: New chains, or those of a fit.
        corpus: The documents, with the covariates of the model.
        rows: ``(num_docs,)`` positions of the documents.
        num_draws: Draws of each document.
        warmup_steps: Transitions of a new chain before its first draw.
        thinning: Transitions from one draw to the next. Defaults to 4, and to 2 after a fit.
        max_docs: Documents whose chains run at once. Defaults to what fits into memory.
        keep: Keep the draws in memory for later passes.
        progress: Show a progress bar on standard error.
    """
    model, settings = chains.model, chains.settings
    guide = make_guide(None, model)
    kept = chains if isinstance(chains, KeptChains) else None
    places = np.full(corpus.num_docs, -1) if kept is None else kept.find(corpus)
    described = "chains of each document (Hamiltonian Monte Carlo)"
    if kept is not None:
        described += ", which continue the fit's"
    step = thinning or (THINNING if kept is None else RESUMED_THINNING)

    def begin(batch: DocumentBatch) -> Chains:
        means = guide.posterior(batch).mean
        initial = latents_at(model, batch, means, settings.num_chains, settings.seed)
        return Chains(model, settings, batch, settings.seed, warmup_steps, initial, means=means)

    def resume(batch: DocumentBatch) -> Chains:
        assert kept is not None
        return kept.resume(batch, places[batch.positions.numpy()])

    def make(rows: Positions, num_draws: int) -> Iterator[DrawnDocuments]:
        known = places[rows] >= 0
        per_chain = step * math.ceil(num_draws / settings.num_chains)
        groups = [
            _Group(rows[known], resume, RESUMED_STEPS, per_chain),
            _Group(rows[~known], begin, warmup_steps, per_chain),
        ]
        size = docs_at_once(6 * num_draws * model.num_topics, model.device, model.dtype)
        size = max_docs or min(_CHAINS_AT_ONCE, size)
        with tqdm(
            total=sum(len(group.rows) * group.num_transitions for group in groups),
            desc="chains",
            disable=not progress,
            bar_format="{desc} |{bar}| {elapsed}<{remaining}",
        ) as bar:
            for group in groups:
                if len(group.rows):
                    batches = corpus.batches(
                        size, order=group.rows, device=model.device, dtype=model.dtype
                    )
                    yield from _drawn(model, settings, group, batches, step, num_draws, bar)

    return ThetaDraws(
        make,
        model,
        rows,
        num_draws,
        name="hmc",
        described=described,
        sources_of_uncertainty=(f"the documents' proportions, by {described}",),
        keep=keep,
    )


def transitions_of(chains: KeptChains, num_draws: int) -> int:
    """Transitions of each of a fit's chains that so many draws of a document take."""
    return RESUMED_STEPS + RESUMED_THINNING * math.ceil(num_draws / chains.settings.num_chains)


class _Group(NamedTuple):
    """Documents whose chains begin alike.

    Attributes:
        rows: ``(num_docs,)`` their positions in the corpus.
        begin: Function that begins the chains of a batch.
        skipped: Transitions before those with draws.
        sampled: Transitions with draws.
    """

    rows: Positions
    begin: Callable[[DocumentBatch], Chains]
    skipped: int
    sampled: int

    @property
    def num_transitions(self) -> int:
        """Transitions of each chain."""
        return self.skipped + self.sampled


@torch.no_grad()
def _drawn(
    model: TopicModel,
    settings: HMCSettings,
    group: _Group,
    batches: Iterable[DocumentBatch],
    thinning: int,
    num_draws: int,
    bar: tqdm,
) -> Iterator[DrawnDocuments]:
    """Draws of a group's documents, batch by batch.

    Warns:
        ConvergenceWarning: Some chains never moved, or chains accepted few proposals.
    """
    all_moved, all_index, acceptance = [], [], []
    too_few = group.sampled < FEWEST_TRANSITIONS
    for batch in batches:
        chains = group.begin(batch)
        drawn = []
        for done in range(1, group.num_transitions + 1):
            chains.move(group.num_transitions - done + 1)
            draw, rest = divmod(done - group.skipped, thinning)
            if draw > 0 and rest == 0:
                drawn.append(model.theta(chains.latents[model.prior.latent]).cpu())
            bar.update(batch.num_docs)
        all_moved.append(chains.moved.cpu())
        all_index.append(batch.index.cpu())
        acceptance.append(chains.mean_acceptance.cpu())
        theta = torch.stack(drawn, 1).flatten(0, 1)[:num_draws]
        yield DrawnDocuments(batch.positions.numpy(), theta, all_moved[-1].all(0) | too_few)
    if too_few:
        return
    moved = torch.cat(all_moved, 1)
    warn_of_stuck(moved, torch.cat(all_index), group.sampled, _STUCK)
    mean, target = float(torch.cat(acceptance, 1)[moved].mean()), settings.target_accept
    if mean < target / 2.0:
        warn(
            f"chains accepted {mean:.2f} of their proposals, where {target} was aimed at: their "
            "draws move too little; fit with more warmup_epochs, or take the draws of a guide",
            ConvergenceWarning,
        )
