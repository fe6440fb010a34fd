"""Tables of documents: rows follow the documents, in whatever batch they come."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.fits import make_corpus
from support.pretend import PretendDevice

from torch_lntm.inference.em import memory
from torch_lntm.inference.em.memory import DocumentRows, DocumentTables
from torch_lntm.inference.em.processes import Processes

CPU = torch.device("cpu")


def test_rows_are_found_by_position() -> None:
    corpus = make_corpus(12, empty=(0, 5))
    tables: dict[str, torch.Tensor] = {}
    documents = DocumentTables(tables, DocumentRows(corpus.row_offsets), CPU)
    order = [11, 2, 5, 7]
    batch = corpus.batch(order)
    assert "means" not in documents
    rows = torch.arange(8.0).view(4, 2)
    documents.write("means", batch, rows)
    assert "means" in documents
    assert tables["means"].shape == (12, 2)
    for place, position in enumerate(order):
        assert torch.equal(tables["means"][position], rows[place])
    assert torch.equal(tables["means"].sum(), rows.sum())
    other = corpus.batch([7, 0, 11])
    found = documents.read("means", other)
    assert torch.equal(found, torch.stack([rows[3], torch.zeros(2), rows[0]]))


def test_rows_of_entries_follow_their_documents() -> None:
    """An entry's row says which document and word it is of; read back in other batches."""
    corpus = make_corpus(12, empty=(0, 5))
    tables: dict[str, torch.Tensor] = {}
    documents = DocumentTables(tables, DocumentRows(corpus.row_offsets), CPU)
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


def test_tables_keep_their_type() -> None:
    corpus = make_corpus(3)
    documents = DocumentTables({}, DocumentRows(corpus.row_offsets), CPU)
    documents.write("moved", corpus.batch([1]), torch.ones(1, 2, dtype=torch.bool))
    documents.write("means", corpus.batch([1]), torch.ones(1, 2, dtype=torch.float64))
    documents.write("means", corpus.batch([2]), torch.ones(1, 2, dtype=torch.float32))
    assert documents.tables["moved"].dtype == torch.bool
    assert documents.tables["means"].dtype == torch.float64


def test_tables_of_some_documents_hold_their_rows_alone() -> None:
    corpus = make_corpus(12, empty=(0, 5))
    owned = np.array([1, 2, 7, 11])
    rows = DocumentRows(corpus.row_offsets, owned)
    documents = DocumentTables({}, rows, CPU)
    batch = corpus.batch([11, 2])
    documents.write("means", batch, torch.tensor([[11.0], [2.0]]))
    labels = torch.stack([batch.positions[batch.row_index], batch.word_index], 1)
    documents.write("sites", batch, labels.double())
    assert documents.tables["means"].tolist() == [[0.0], [2.0], [0.0], [11.0]]
    sizes = np.diff(corpus.row_offsets)
    assert documents.tables["sites"].shape == (sizes[owned].sum(), 2)
    other = corpus.batch([2, 7, 11])
    found = documents.read("sites", other)
    places = torch.stack([other.positions[other.row_index], other.word_index], 1).double()
    places[other.positions[other.row_index] == 7] = 0.0
    assert torch.equal(found, places)
    # The same rows of the tables of a whole corpus.
    whole = DocumentTables({}, DocumentRows(corpus.row_offsets), CPU)
    whole.write("means", batch, torch.tensor([[11.0], [2.0]]))
    whole.write("sites", batch, labels.double())
    chosen = rows.select(whole.tables)
    assert all(torch.equal(chosen[name], table) for name, table in documents.tables.items())


def test_every_process_has_the_whole_table_of_the_start() -> None:
    corpus = make_corpus(12)
    rows = DocumentRows(corpus.row_offsets, np.array([1, 2, 7]))
    documents = DocumentTables({}, rows, CPU)
    documents.add("theta", torch.zeros(()).expand(12, 2))
    batch = corpus.batch([11, 2])
    documents.write("theta", batch, torch.tensor([[0.1, 0.9], [0.2, 0.8]]))
    assert torch.equal(documents.read("theta", batch), torch.tensor([[0.1, 0.9], [0.2, 0.8]]))
    table = documents.tables["theta"]
    assert table[11].tolist() == torch.tensor([0.1, 0.9]).tolist()
    assert rows.select(documents.tables)["theta"] is table
    assert torch.equal(rows.collect(documents.tables, Processes(alone=True))["theta"], table)


@pytest.mark.parametrize("room", [True, False])
def test_tables_are_on_the_device_where_there_is_room(room: bool, monkeypatch) -> None:
    corpus = make_corpus(6)
    monkeypatch.setattr(memory, "fits", lambda size, device: room)
    with PretendDevice() as pretend:
        device = torch.device("cuda")
        documents = DocumentTables({}, DocumentRows(corpus.row_offsets), device)
        batch = corpus.batch([4, 1], device=device)
        before = pretend.total.waits
        rows = torch.full((2, 3), 2.0, device=device)
        documents.write("means", batch, rows)
        documents.add("theta", torch.tensor(0.25).expand(6, 2))
        sites = torch.full((batch.nnz, 1), 3.0, device=device)
        documents.write("sites", batch, sites)
        found = documents.read("means", batch), documents.read("sites", batch)
        waits = pretend.total.waits - before
        assert all(value.device.type == "cuda" for value in found)
        assert torch.equal(found[0].cpu(), rows.cpu())
        assert torch.equal(found[1].cpu(), sites.cpu())
        assert documents.tables["theta"].cpu().tolist() == [[0.25, 0.25]] * 6
        homes = {name: table.device.type for name, table in documents.tables.items()}
        assert homes == dict.fromkeys(("means", "theta", "sites"), "cuda" if room else "cpu")
        assert float(documents.tables["means"].sum()) == 12.0
        placed = memory.placed({"a": torch.ones(2)}, device)
        assert placed["a"].device.type == ("cuda" if room else "cpu")
        collected = DocumentRows(corpus.row_offsets).collect(documents.tables, Processes())
        assert all(table.device.type == "cpu" for table in collected.values())
    # Theta's value and the corpus's offsets are copied there. Otherwise two tables each need the
    # zero that they begin with, and rows there and back.
    assert waits == (2 if room else 6)
