"""Warm starts: solutions of documents, by their positions in a corpus."""

from __future__ import annotations

import torch

from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.guides.guide import WarmStarts


def batch(num_docs: int, documents: list[int]) -> DocumentBatch:
    """Some documents of a corpus. All have three tokens over two words."""
    corpus = Corpus.from_matrix(torch.tensor([[1, 2]]).expand(num_docs, -1).numpy())
    return corpus.batch(documents, dtype=torch.float64)


def test_warm_starts_of_another_corpus_are_dropped() -> None:
    warm = WarmStarts("documents")
    starts = torch.arange(6.0).view(3, 2)
    warm.write(batch(3, [0, 1, 2]), starts)
    assert torch.equal(warm.read(batch(3, [2, 0])), starts[[2, 0]])
    warm.write(batch(4, [0]), starts[:1])
    # The same number of tokens, at a position in the first corpus.
    assert torch.equal(warm.read(batch(4, [0])), starts[:1])
    assert warm.read(batch(4, [1])) is None
    assert warm.read(batch(4, [0, 1])) is None
    assert warm.read(batch(3, [0])) is None


def test_warm_starts_by_entries_match_their_document() -> None:
    warm = WarmStarts("entries")
    starts = torch.arange(12.0).view(6, 2)
    warm.write(batch(3, [2, 0, 1]), starts)
    assert torch.equal(warm.read(batch(3, [0, 2])), starts[[2, 3, 0, 1]])
