"""The documents of a corpus one by one, each with a guide's posterior."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch import Tensor

from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.errors import NumericalError
from torch_lntm.evaluation.checks import identified_space
from torch_lntm.guides import Guide, make_guide, require_guide
from torch_lntm.kernels import Cells
from torch_lntm.latents import IdentifiedSpace
from torch_lntm.models import TopicModel
from torch_lntm.posteriors import Posterior
from torch_lntm.progress import tqdm


@dataclass(frozen=True, eq=False)
class Document:
    """One document with tokens, and where its posterior is.

    Attributes:
        position: Its position in the corpus.
        space: The coordinates of its batch.
        posterior: What the guide made of the batch.
        row: Its place in the batch.
        words: ``(nnz, num_topics)`` float64 probabilities of its words under each topic.
        cells: Their counts, float64.
        independent: ``(nnz,)`` float64 counts of independent draws that have about its posterior:
            those counts themselves, unless it repeats its words.
    """

    position: int
    space: IdentifiedSpace
    posterior: Posterior
    row: int
    words: Tensor
    cells: Cells
    independent: Tensor


def guide_for(model: TopicModel, guide: Guide[Any] | None, space: IdentifiedSpace) -> Guide[Any]:
    """The guide, if it is one of this model; by default the one that the space refers to.

    Raises:
        ConfigError: It is no guide.
        IncompatibleGuideError: The guide belongs to another model.
    """
    return make_guide(space.reference, model) if guide is None else require_guide(guide, model)


def documents(
    model: TopicModel, corpus: Corpus, guide: Guide[Any], max_docs: int, progress: bool
) -> Iterator[list[Document]]:
    """Yields the documents with tokens of each batch that has some.

    Args:
        model: The model.
        corpus: The documents.
        guide: The guide that solves the posteriors.
        max_docs: Documents whose posteriors are solved at once.
        progress: Show a progress bar.

    Raises:
        NumericalError: A posterior could not be computed, or cannot be drawn around; names
            documents.
    """
    words = model.topics.double_probs.mT.contiguous()
    with tqdm(total=corpus.num_docs, disable=not progress, unit="doc") as bar:
        for batch in corpus.batches(max_docs=max_docs, device=model.device, dtype=model.dtype):
            space, posterior = solve(model, batch, guide)
            drawn, _ = guide.as_independent(batch, posterior)
            independent = drawn.counts.double().split(drawn.row_offsets.diff().tolist())
            found = [
                Document(int(batch.index[row]), space, posterior, row, *of_document, counts)
                for row, (of_document, counts) in enumerate(
                    zip(
                        words_of(model.topics.assign_groups(batch), words), independent, strict=True
                    )
                )
                if len(counts)
            ]
            if found:
                yield found
            bar.update(batch.num_docs)


def solve(
    model: TopicModel, batch: DocumentBatch, guide: Guide[Any]
) -> tuple[IdentifiedSpace, Posterior]:
    """The identified coordinates of a batch, and a guide's posterior that can be drawn around.

    Raises:
        NumericalError: A posterior could not be computed, or cannot be drawn around; names
            documents.
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


def words_of(batch: DocumentBatch, words: Tensor) -> Iterator[tuple[Tensor, Cells]]:
    """Yields the words of each document and their counts.

    Args:
        batch: The documents.
        words: ``(num_words, num_topics)`` float64 probabilities of all words under each topic.

    Yields:
        ``(nnz, num_topics)`` of ``words``, and the counts, float64.
    """
    offsets, counts = batch.row_offsets.tolist(), batch.counts.double()
    for start, stop in pairwise(offsets):
        columns = batch.word_index[start:stop]
        yield words[columns], Cells(counts[start:stop], columns)
