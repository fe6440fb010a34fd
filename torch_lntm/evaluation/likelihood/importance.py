"""Importance sampling around a guide's posterior, document by document."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor

from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.errors import ConfigError, NumericalError, require_whole
from torch_lntm.evaluation.checks import corpus_space, warn_of_documents
from torch_lntm.evaluation.likelihood.estimate import (
    PARETO_K_LIMIT,
    LikelihoodEstimate,
    LikelihoodMethod,
)
from torch_lntm.guides import Guide, make_guide
from torch_lntm.guides.guide import require_guide
from torch_lntm.guides.table import guides_suited
from torch_lntm.kernels.likelihood import CellRows, Cells
from torch_lntm.latents.identified import IdentifiedSpace
from torch_lntm.models import TopicModel
from torch_lntm.posteriors import Posterior
from torch_lntm.progress import tqdm
from torch_lntm.sampling.importance import MIN_SAMPLES, log_weights, pareto_k, summarise_weights


@dataclass(frozen=True, eq=False)
class Importance(LikelihoodMethod):
    """Importance sampling (*Ahmed & Xing 2007, §4.2*).

    The estimate of p(w_d) is unbiased, whereas that of log p(w_d) is low by about half the squared
    standard error. Use it to compare methods of inference, because their bounds are not comparable.

    Which proposal is used depends on the prior:

    * Normal priors of eta, and factor priors with Gaussian sources: draws of the K − 1 contrasts of
      eta, with the sources integrated out. A normal proposal narrower than the posterior would give
      weights of infinite variance, whereas a Student-t with the same centre and scale does not.
    * Factor priors with Laplace sources: joint draws of the sources and the contrasts of eta from a
      Student-t, centred at the guide's mean with Laplace's covariance there. Here every normal
      proposal would give weights of infinite variance.
    * Dirichlet priors: draws of theta from the guide's Dirichlet (``"dirichlet"``), or from a
      mixture around it in which each topic can be absent (``"sticks"``). The mixture helps because
      a Dirichlet has too little mass where a plausible topic is absent, above all if the prior's
      concentration is small.

    Args:
        num_draws: Draws per document, at least 25.
        proposal: ``"student_t"`` or ``"gaussian"``, both with the posterior's centre and scale;
            ``"sticks"`` or ``"dirichlet"`` for a Dirichlet prior. Defaults to ``"student_t"``, or
            ``"sticks"`` for a Dirichlet prior.
        guide: Guide whose posterior to draw around. Defaults to ``LaplaceGuide(model)``, whose
            covariance allows for the topic assignments; to ``FactorGuide(model)`` for Laplace
            sources, and to ``EPGuide(model)`` for a Dirichlet prior.

    Raises:
        ConfigError: A number is out of range.
    """

    num_draws: int = 1000
    proposal: str | None = None
    guide: Guide[Any] | None = None

    name: ClassVar[str] = "importance"

    def __post_init__(self) -> None:
        # Fewer weights do not show whether they have a heavy tail.
        require_whole(MIN_SAMPLES, num_draws=self.num_draws)

    def compute(
        self, model: TopicModel, corpus: Corpus, seed: int, max_docs: int, progress: bool
    ) -> LikelihoodEstimate:
        """See :meth:`LikelihoodMethod.compute`.

        A document's draws depend only on the seed and on its position in the corpus. At any time,
        memory holds the posterior covariances of one batch and the draws of one document.

        Raises:
            ConfigError: The model's prior does not support the proposal.
        """
        space = corpus_space(model, corpus)
        proposal = next(iter(space.proposals)) if self.proposal is None else self.proposal
        if proposal not in space.proposals:
            raise ConfigError(
                f"proposal is {self.proposal!r}; expected one of {', '.join(space.proposals)} for "
                f"{type(model.prior).__name__}"
            )
        guide = guide_for(model, self.guide)
        values = torch.zeros(corpus.num_docs, dtype=torch.float64)
        errors, size = torch.zeros_like(values), torch.full_like(values, float(self.num_draws))
        tail = torch.full_like(values, -math.inf)
        for batch_documents in documents(model, corpus, guide, max_docs, progress):
            drawn = []
            for d in batch_documents:
                q = d.space.proposal(proposal, d.posterior, d.row, (d.words, d.independent))
                key = (seed, d.position)
                drawn.append(log_weights(q, d.words, d.cells, self.num_draws, key, model.words))
            weights = torch.stack(drawn).cpu()
            rows, summary = [d.position for d in batch_documents], summarise_weights(weights, 1)
            values[rows], errors[rows] = summary.log_mean, summary.standard_error
            size[rows], tail[rows] = summary.effective_sample_size, pareto_k(weights)
        warn_of_documents(
            tail > PARETO_K_LIMIT,
            f"importance weights with Pareto k above {PARETO_K_LIMIT}",
            "raise num_draws, draw from another guide's posterior or proposal, or sample by "
            "annealed importance sampling (method ais)",
        )
        return LikelihoodEstimate(
            log_likelihood=values,
            standard_error=errors,
            lengths=torch.tensor(corpus.lengths),
            method=self.name,
            description=(
                f"importance sampling, {self.num_draws} draws of {type(guide).__name__}'s "
                f"{space.proposals[proposal]}"
            ),
            num_draws=self.num_draws,
            seed=seed,
            corpus_name=corpus.name,
            effective_sample_size=size,
            pareto_k=tail,
        )


@dataclass(frozen=True, eq=False)
class Document:
    """A document with tokens and its approximate posterior.

    Attributes:
        position: Position in the corpus.
        space: Coordinates of the document's batch.
        posterior: The guide's posterior of the batch.
        row: Row of the document in the batch.
        words: ``(nnz, num_topics)`` float64 probabilities of the document's words under each topic.
        cells: Counts of the words, float64.
        independent: ``(nnz,)`` float64 counts of independent draws with about the same posterior.
            They equal the counts unless the model is bursty.
    """

    position: int
    space: IdentifiedSpace
    posterior: Posterior
    row: int
    words: Tensor
    cells: Cells
    independent: Tensor


def guide_for(model: TopicModel, guide: Guide[Any] | None) -> Guide[Any]:
    """The checked guide. Defaults to the guide for centres (:mod:`torch_lntm.guides.table`).

    Raises:
        ConfigError: The argument is not a guide.
        IncompatibleGuideError: The guide belongs to another model.
    """
    if guide is None:
        return make_guide(guides_suited(model).centre, model)
    return require_guide(guide, model)


def documents(
    model: TopicModel, corpus: Corpus, guide: Guide[Any], max_docs: int, progress: bool
) -> Iterator[list[Document]]:
    """Yields the documents with tokens, in a list for each batch.

    Args:
        model: The model.
        corpus: The documents.
        guide: The guide that solves the posteriors.
        max_docs: Documents whose posteriors are solved at once.
        progress: Show a progress bar.

    Raises:
        NumericalError: A posterior failed, or is improper; names documents.
    """
    words = model.topics.double_probs.mT.contiguous()
    with tqdm(total=corpus.num_docs, disable=not progress, unit="doc") as bar:
        for batch in corpus.batches(max_docs=max_docs, device=model.device, dtype=model.dtype):
            batch = model.check_batch(batch)
            space, posterior = solve(model, batch, guide)
            independent = guide.as_independent(batch, posterior)[0].counts.double()
            nonempty = []
            for row, (start, stop) in enumerate(pairwise(batch.row_offsets.tolist())):
                at, counts = batch.word_index[start:stop], batch.counts[start:stop].double()
                about = (int(batch.index[row]), space, posterior, row, words[at])
                if stop > start:
                    cells, surrogates = CellRows(counts, at), independent[start:stop]
                    nonempty.append(Document(*about, cells, surrogates))
            if nonempty:
                yield nonempty
            bar.update(batch.num_docs)


def solve(
    model: TopicModel, batch: DocumentBatch, guide: Guide[Any]
) -> tuple[IdentifiedSpace, Posterior]:
    """Identified coordinates of a batch, and a guide's proper posterior.

    Raises:
        NumericalError: A posterior failed, or is improper; names documents.
    """
    space, posterior = model.prior.identified(batch), guide.posterior(batch)
    improper = ~space.proper(posterior)
    if bool(improper.any()):
        positions = batch.index[improper].tolist()
        raise NumericalError(
            f"{type(guide).__name__} gave no proper posterior for {len(positions)} "
            f"document(s), first at position {positions[0]}; expected finite means and "
            "covariances of full rank",
            positions,
        )
    return space, posterior
