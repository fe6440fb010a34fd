"""Documents of a corpus with a guide's posterior, for integration one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch import Tensor

from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.errors import NumericalError
from torch_lntm.evaluation.checks import identified_space
from torch_lntm.guides import Guide, make_guide
from torch_lntm.guides.guide import require_guide
from torch_lntm.kernels.likelihood import Cells
from torch_lntm.latents.identified import IdentifiedSpace
from torch_lntm.models import TopicModel
from torch_lntm.posteriors import Posterior
from torch_lntm.progress import tqdm


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


def guide_for(model: TopicModel, guide: Guide[Any] | None, space: IdentifiedSpace) -> Guide[Any]:
    """The checked guide. Defaults to the space's reference guide.

    Raises:
        ConfigError: The argument is not a guide.
        IncompatibleGuideError: The guide belongs to another model.
    """
    return make_guide(space.reference, model) if guide is None else require_guide(guide, model)


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
            space, posterior = solve(model, batch, guide)
            independent_batch, _ = guide.as_independent(batch, posterior)
            independent = independent_batch.counts.double().split(
                independent_batch.row_offsets.diff().tolist()
            )
            nonempty = [
                Document(int(batch.index[row]), space, posterior, row, *words_and_cells, counts)
                for row, (words_and_cells, counts) in enumerate(
                    zip(
                        document_words(model.topics.assign_groups(batch), words),
                        independent,
                        strict=True,
                    )
                )
                if len(counts)
            ]
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
    space, posterior = identified_space(model, batch), guide.posterior(batch)
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


def document_words(batch: DocumentBatch, words: Tensor) -> Iterator[tuple[Tensor, Cells]]:
    """Yields the word probabilities and the counts of each document.

    Args:
        batch: The documents.
        words: ``(num_words, num_topics)`` float64 probabilities of all words under each topic.

    Yields:
        Rows ``(nnz, num_topics)`` of ``words``, and the counts, float64.
    """
    offsets, counts = batch.row_offsets.tolist(), batch.counts.double()
    for start, stop in pairwise(offsets):
        columns = batch.word_index[start:stop]
        yield words[columns], Cells(counts[start:stop], columns)
