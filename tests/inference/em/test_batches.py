"""Batches of a fit: the corpus's own, also where a GPU has a copy of the corpus."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.fits import make_corpus
from support.pretend import PretendDevice

from torch_lntm.inference.em import batches
from torch_lntm.inference.em.batches import CorpusBatches

PARTS = [np.array([3, 7, 8]), np.array([0]), np.array([11, 5])]


@pytest.mark.parametrize("copied", [True, False])
def test_batches_are_the_corpus_s(copied: bool, monkeypatch) -> None:
    corpus = make_corpus(12, empty=(5,))
    corpus = corpus.with_covariates({"x": np.arange(12.0)[:, None]})
    monkeypatch.setattr(batches, "fits", lambda size, device: copied)
    with PretendDevice() as device:
        source = CorpusBatches(corpus, torch.device("cuda"), torch.float64)
        first = list(source.of(PARTS))
        before = device.total.waits
        found = list(source.of(iter(PARTS)))
        waits = device.total.waits - before
        _ = [(batch.positions, batch.num_tokens) for batch in found]
        assert device.total.waits == before + waits + (0 if copied else 3)
        for batch, again, rows in zip(first, found, PARTS, strict=True):
            expected = corpus.batch(rows, dtype=torch.float64)
            assert batch.device.type == "cuda"
            for name in ("row_offsets", "word_index", "counts", "index", "positions"):
                assert torch.equal(getattr(batch, name).cpu(), getattr(expected, name))
                assert torch.equal(getattr(again, name).cpu(), getattr(expected, name))
            assert torch.equal(batch.covariates["x"].cpu(), expected.covariates["x"])
            assert batch.num_tokens == expected.num_tokens
            assert batch.corpus_size == 12
    # From the copy the host waits until the positions are there, and never again.
    assert waits == (1 if copied else 15)


def test_no_batches_of_no_parts() -> None:
    with PretendDevice():
        source = CorpusBatches(make_corpus(3), torch.device("cuda"), torch.float32)
        assert list(source.of([])) == []
