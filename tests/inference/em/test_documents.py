"""Documents of a fit: their batches, also from a copy on a GPU, and the rows of their tables."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.fits import make_corpus
from support.pretend import PretendDevice

from torch_lntm.inference.em import documents as rooms
from torch_lntm.inference.em import table
from torch_lntm.inference.em.documents import CorpusBatches
from torch_lntm.inference.em.table import DocumentTable, new_table, placed

CPU = torch.device("cpu")


def table_of(corpus, device=CPU) -> DocumentTable:
    """A table of all documents."""
    return DocumentTable(np.arange(len(corpus)), corpus.row_offsets, device)


def test_rows_of_entries_follow_their_documents() -> None:
    """An entry's row says which document and word it is of; read back in other batches."""
    corpus = make_corpus(12, empty=(0, 5))
    documents = table_of(corpus)
    tables = documents.tensors
    for rows in ([11, 2, 5, 7, 0, 4], [1, 3, 10, 9, 8, 6]):
        batch = corpus.batch(rows)
        labels = torch.stack([batch.positions[batch.row_index], batch.word_index], 1)
        documents.write("sites", batch, labels.double())
    assert tables["sites"].shape == (corpus.nnz, 2)
    assert tables["sites"][:, 1].tolist() == corpus.word_index.tolist()
    batch = corpus.batch([3, 5, 11, 0, 1])
    found = documents.read("sites", batch)
    assert found[:, 0].tolist() == batch.positions[batch.row_index].tolist()
    assert found[:, 1].tolist() == batch.word_index.tolist()


def test_tables_of_a_process_have_rows_for_its_documents_only() -> None:
    corpus = make_corpus(12, empty=(0, 5))
    owned = np.array([1, 2, 7, 11])
    sizes = np.diff(corpus.row_offsets)
    offsets = np.append(0, np.cumsum(sizes[owned]))
    documents, chosen = (DocumentTable(owned, offsets, CPU) for _ in range(2))
    batch = corpus.batch([11, 2])
    assert "means" not in documents.tensors
    documents.write("means", batch, torch.tensor([[11.0], [2.0]]))
    assert documents.read("means", corpus.batch([7, 11])).tolist() == [[0.0], [11.0]]
    for foreign in (0, 3):  # before and between its own
        with pytest.raises(IndexError):
            documents.read("means", corpus.batch([foreign]))
    labels = torch.stack([batch.positions[batch.row_index], batch.word_index], 1)
    documents.write("sites", batch, labels.double())
    assert documents.tensors["means"].tolist() == [[0.0], [2.0], [0.0], [11.0]]
    assert documents.tensors["sites"].shape == (sizes[owned].sum(), 2)
    other = corpus.batch([2, 7, 11])
    found = documents.read("sites", other)
    places = torch.stack([other.positions[other.row_index], other.word_index], 1).double()
    places[other.positions[other.row_index] == 7] = 0.0
    assert torch.equal(found, places)
    # The same rows of the tables of a whole corpus.
    whole, again = table_of(corpus), table_of(corpus)
    whole.write("means", batch, torch.tensor([[11.0], [2.0]]))
    whole.write("sites", batch, labels.double())
    assert chosen.copy_rows(whole).all()
    assert all(torch.equal(chosen.tensors[name], x) for name, x in documents.tensors.items())
    # And back: other documents keep their zeros.
    assert again.copy_rows(documents).tolist() == np.isin(np.arange(12), owned).tolist()
    assert all(torch.equal(again.tensors[name], x) for name, x in whole.tensors.items())


@pytest.mark.parametrize("room", [True, False])
def test_tables_are_on_the_device_if_they_fit(room: bool, monkeypatch) -> None:
    corpus = make_corpus(6)
    monkeypatch.setattr(table, "fits", lambda size, device: room)
    with PretendDevice():
        device = torch.device("cuda")
        documents = table_of(corpus, device)
        batch = corpus.batch([4, 1], device=device)
        rows = torch.full((2, 3), 2.0, device=device)
        documents.write("means", batch, rows)
        documents.tensors["theta"] = new_table(torch.tensor(0.25).expand(6, 2), device)
        sites = torch.full((batch.nnz, 1), 3.0, device=device)
        documents.write("sites", batch, sites)
        found = documents.read("means", batch), documents.read("sites", batch)
        assert all(value.device.type == "cuda" for value in found)
        assert torch.equal(found[0].cpu(), rows.cpu())
        assert torch.equal(found[1].cpu(), sites.cpu())
        assert documents.tensors["theta"].cpu().tolist() == [[0.25, 0.25]] * 6
        homes = {name: table.device.type for name, table in documents.tensors.items()}
        assert homes == dict.fromkeys(("means", "theta", "sites"), "cuda" if room else "cpu")
        assert float(documents.tensors["means"].sum()) == 12.0
        assert placed(torch.ones(2), device).device.type == ("cuda" if room else "cpu")


# -- batches ---------------------------------------------------------------------------------------

PARTS = [np.array([3, 7, 8]), np.array([0]), np.array([11, 5])]


@pytest.mark.parametrize("copied", [True, False])
def test_batches_equal_those_of_the_corpus(copied: bool, monkeypatch) -> None:
    corpus = make_corpus(12, empty=(5,))
    corpus = corpus.with_covariates({"x": np.arange(12.0)[:, None]})
    monkeypatch.setattr(rooms, "fits", lambda size, device: copied)
    with PretendDevice():
        source = CorpusBatches(corpus, torch.device("cuda"), torch.float64)
        first = list(source.of(PARTS))
        found = list(source.of(iter(PARTS)))
        for batch, again, rows in zip(first, found, PARTS, strict=True):
            expected = corpus.batch(rows, dtype=torch.float64)
            assert batch.device.type == "cuda"
            for name in ("row_offsets", "word_index", "counts", "index", "positions"):
                assert torch.equal(getattr(batch, name).cpu(), getattr(expected, name))
                assert torch.equal(getattr(again, name).cpu(), getattr(expected, name))
            assert torch.equal(batch.covariates["x"].cpu(), expected.covariates["x"])
            assert batch.num_tokens == expected.num_tokens
            assert batch.corpus_size == 12
