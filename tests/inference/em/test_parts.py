"""Fits of a corpus in parts, and the tables and batches of documents that all fits share."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import shared_fits
from support.fits import make_corpus
from support.pretend import PretendDevice
from support.processes import GONE, in_processes
from support.shared_fits import PART_DOCS as NUM_DOCS
from support.shared_fits import assert_equal, fitted, joined, write_corpus

from torch_lntm.corpus import Corpus, read_corpus
from torch_lntm.corpus.part import Facts
from torch_lntm.errors import ConfigError
from torch_lntm.inference import Annealing, MonteCarloEM, Processes, join_parts
from torch_lntm.inference.em import documents as rooms
from torch_lntm.inference.em import table
from torch_lntm.inference.em.checkpoint import folder_of
from torch_lntm.inference.em.documents import CorpusBatches, PartShard, visiting_ranks
from torch_lntm.inference.em.table import DocumentTable, new_table, placed
from torch_lntm.models import ctm

WARM = Annealing((0.5, 1.0), (0.5, 1.0), iterations=1)
CASES: list[dict[str, Any]] = [
    {"kind": "ctm"},
    {"kind": "ctm", "sample_docs": 50},
    {"kind": "lda", "start": "documents"},
    {"kind": "iftm", "start": "model", "num_chains": 2},
    {"kind": "lntm", "sample_docs": 50},
    {"kind": "keywords"},
    {"kind": "stm"},
    {"guide": "taylor"},
    {"guide": "taylor", "covariance_stride": 4, "max_docs": 3, "sample_docs": 50},
    {"guide": "laplace", "restarts": 2},
    {"guide": "blei-lafferty", "annealing": WARM, "stepwise_epochs": None},
    {"kind": "lda", "guide": "ep"},
    {"kind": "lda", "guide": "vb", "start": "documents", "start_epochs": None},
    {"kind": "iftm", "guide": "factor", "start": "model", "start_epochs": None},
    {"kind": "stm", "guide": "taylor"},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "corpus")


def whole(results: list[dict[str, Any]]) -> dict[str, Any]:
    """The result of all processes."""
    return joined(results, NUM_DOCS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "cases"),
    [
        (2, CASES[:1] + CASES[7:8]),
        pytest.param(2, CASES, marks=pytest.mark.long),
        pytest.param(4, CASES[::2], marks=pytest.mark.long),
    ],
)
def test_parts_of_any_number_give_the_same_fit(size: int, cases: Any, folder: Path) -> None:
    cases = [{**case, "folder": folder} for case in cases]
    results = in_processes(size, shared_fits.fits, cases)
    for number, case in enumerate(cases):
        found = whole([result[number] for result in results])
        assert_equal(found, fitted(**case), 1e-7)


@pytest.mark.slow
def test_equal_numbers_of_processes_give_equal_bits(folder: Path) -> None:
    work = partial(fitted, folder=folder, dtype="float32")
    assert_equal(*(whole(in_processes(2, work)) for _ in range(2)))


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 4])
def test_every_process_knows_the_whole_corpus(size: int, folder: Path) -> None:
    corpus = read_corpus(folder)
    found = (
        [shared_fits.facts(folder)] if size == 1 else in_processes(size, shared_fits.facts, folder)
    )
    for facts in found:
        assert facts["num_docs"] == NUM_DOCS
        assert facts["word_totals"].sum() == corpus.num_tokens
        matrix = corpus.to_scipy().toarray().astype(np.int64)
        np.testing.assert_array_equal(facts["document_frequency"], (matrix > 0).sum(0))
        np.testing.assert_array_equal(facts["word_totals"], matrix.sum(0))
        np.testing.assert_array_equal(facts["word_squares"], (matrix**2).sum(0))
        assert facts["square_lengths"] == (matrix.sum(1) ** 2).sum()
        filled = [int((corpus.lengths[a : a + 12] > 0).sum()) for a in range(0, NUM_DOCS, 12)]
        assert facts["shard_docs"].tolist() == filled


# -- mini-batches and samples ----------------------------------------------------------------------


def shards(folder: Path, size: int) -> list[PartShard]:
    """The shards of all processes of a fit, made in this process."""
    whole = join_parts(read_corpus(folder, rank=0, world_size=1), Processes(alone=True)).whole
    assert isinstance(whole, Facts)
    found = []
    for rank in range(size):
        corpus = read_corpus(folder, rank=rank, world_size=size)
        assert corpus.part is not None
        part = replace(corpus.part, facts=whole)
        corpus = replace(corpus, part=part)
        found.append(PartShard(ctm(3, 30), corpus, Processes(alone=True)))
    return found


def mini_batches(folder: Path, size: int, *key: int) -> list[list[int]]:
    """Positions of the documents of each mini-batch, over all processes."""
    together: list[list[int]] = []
    rows = [list(shard.mini_batches(*key)) for shard in shards(folder, size)]
    for batches in zip(*rows, strict=True):
        found = [d for batch, _ in batches if batch is not None for d in batch.positions.tolist()]
        assert {number for _, number in batches} == {len(found)}
        together.append(found)
    return together


@pytest.mark.slow
def test_mini_batches_do_not_depend_on_the_number_of_processes(folder: Path) -> None:
    alone = mini_batches(folder, 1, 5, 2, 7)
    for size in (2, 3, 8):
        assert mini_batches(folder, size, 5, 2, 7) == alone
    visited = sorted(d for batch in alone for d in batch)
    assert visited == [d for d in range(NUM_DOCS) if d not in shared_fits.PART_EMPTY]
    assert mini_batches(folder, 1, 5, 3, 7) != alone
    assert mini_batches(folder, 1, 6, 2, 7) != alone
    # Every mini-batch has its share of every shard.
    for batch in alone:
        numbers = np.bincount(np.array(batch) // 12, minlength=8)
        assert numbers[:-1].min() >= 1
        assert numbers.max() <= 2
    assert max(map(len, alone)) - min(map(len, alone)) <= 8


@pytest.mark.slow
def test_stochastic_steps_have_their_share_of_the_covariances(folder: Path) -> None:
    whole = join_parts(read_corpus(folder, rank=0, world_size=1), Processes(alone=True))
    ranks = visiting_ranks(whole, 5)
    filled = [d for d in range(NUM_DOCS) if d not in shared_fits.PART_EMPTY]
    assert sorted(ranks[filled]) == list(range(len(filled)))
    for size in (2, 3, 8):
        steps = zip(*(shard.step_batches(5, 30) for shard in shards(folder, size)), strict=True)
        visited = [
            [d for batch in step if batch is not None for d in batch.positions.tolist()]
            for step in steps
        ]
        assert sorted(d for step in visited for d in step) == filled
        own_numbers = [visiting_ranks(shard.corpus, 5) for shard in shards(folder, size)]
        np.testing.assert_array_equal(np.concatenate(own_numbers), ranks)
        for step in visited:
            for shard in range(8):
                own_ranks = ranks[[d for d in step if d // 12 == shard]]
                assert np.ptp(np.bincount(own_ranks % 3, minlength=3)) <= 1


def test_more_mini_batches_than_documents_of_a_shard(folder: Path) -> None:
    batches = mini_batches(folder, 2, 0, 0, 60)
    assert all(batches)
    assert len(batches) <= 60
    assert len({d for batch in batches for d in batch}) == NUM_DOCS - len(shared_fits.PART_EMPTY)


def test_batches_have_positions_in_the_whole_corpus(folder: Path) -> None:
    whole = read_corpus(folder)
    for shard in shards(folder, 3):
        for batch, _ in shard.mini_batches(0, 0, 5):
            assert batch is not None
            assert batch.corpus_size == NUM_DOCS
            assert batch.index.tolist() == batch.positions.tolist()
            expected = whole.batch(batch.positions)
            assert batch.counts.tolist() == expected.counts.tolist()
            assert batch.word_index.tolist() == expected.word_index.tolist()


def test_the_sample_has_a_share_of_every_shard(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = read_corpus(folder)
    (shard,) = shards(folder, 1)
    everything = shard.sample(ctm(3, 30), 0).corpus
    np.testing.assert_array_equal(everything.counts, whole.counts)
    monkeypatch.setattr("torch_lntm.inference.em.documents.SAMPLE_DOCS", 40)
    sample = shard.sample(ctm(3, 30), 0).corpus
    assert sample.num_docs == sample.num_nonempty == 40
    rows = {tuple(row) for row in whole.to_scipy().toarray()}
    assert all(tuple(row) in rows for row in sample.to_scipy().toarray())
    another = shard.sample(ctm(3, 30), 1).corpus
    assert another.fingerprint() != sample.fingerprint()


# -- checkpoints -----------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    ("before", "after", "saves", "case"),
    [
        (2, 3, 2, {}),
        (4, 1, 2, {}),
        (1, 2, 2, {}),
        (2, 3, 9, {"guide": "taylor", "restarts": 2}),  # after the first restart
        (3, 2, 5, {"kind": "lda", "guide": "ep"}),  # with a row for each stored count
    ],
)
def test_a_fit_continues_in_another_number_of_processes(
    before: int, after: int, saves: int, case: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    case = {**case, "folder": folder}
    found = shared_fits.continued(before, after, saves, tmp_path / "fit", **case)
    assert_equal(whole(found), fitted(**case), 1e-7)


@pytest.mark.long
def test_after_sigkill_three_processes_continue(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "fit"
    found = in_processes(2, shared_fits.killed, folder, path, 3)
    assert found == ["ProcessError", GONE]
    result = whole(in_processes(3, partial(fitted, folder=folder, checkpoint=path)))
    assert len(result["history"]) == 4
    assert_equal(result, fitted(folder=folder), 1e-7)


@pytest.mark.slow
def test_a_checkpoint_stays_complete_until_the_next_one_is(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "fit"
    assert shared_fits.stopped(path, 2, "rows", folder=folder) == "stopped"
    assert len(list(folder_of(path).iterdir())) == 2
    assert_equal(fitted(folder=folder, checkpoint=path), fitted(folder=folder))


@pytest.mark.slow
def test_a_process_without_space_costs_the_checkpoint_only(folder: Path, tmp_path: Path) -> None:
    (first, end), (second, _) = in_processes(2, shared_fits.full_disk, folder, tmp_path / "fit")
    assert first.count("SavingWarning") == 4
    assert "SavingWarning" not in second
    assert end == "max_iterations"
    assert not (tmp_path / "fit").exists()


@pytest.mark.slow
def test_damaged_rows_are_refused(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "fit"
    assert set(in_processes(2, partial(shared_fits.stopped, path, 1, folder=folder))) == {"stopped"}
    rows = sorted(folder_of(path).iterdir())
    data = rows[1].read_bytes()
    damages = {
        "-1.safetensors: not a complete checkpoint": (data[:-4], data[:-1] + bytes([data[-1] ^ 1])),
        "the rows of some documents are missing": (None, rows[0].read_bytes()),
    }
    for message, contents in damages.items():
        for damaged in contents:
            rows[1].unlink() if damaged is None else rows[1].write_bytes(damaged)
            with pytest.raises(ConfigError, match=message):
                fitted(folder=folder, checkpoint=path)


@pytest.mark.slow
def test_a_checkpoint_of_the_whole_corpus_is_another_fit(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "fit"
    assert shared_fits.stopped(path, 1, folder=folder) == "stopped"
    engine = MonteCarloEM(ctm(3, 30, dtype="float64"), progress=False, **shared_fits.CHAINS)
    with pytest.raises(ConfigError, match="checkpoint of another fit"):
        engine.fit(read_corpus(folder), checkpoint=path)


# -- messages --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_parts_that_make_up_no_corpus_are_refused(folder: Path, tmp_path: Path) -> None:
    write_corpus(tmp_path / "a")
    read_corpus(tmp_path / "a")[::-1].save(tmp_path / "other", shard_size=shared_fits.SHARD_DOCS)
    found = in_processes(2, shared_fits.part_refusals, folder, tmp_path / "other")
    assert found[0] == found[1]
    mixed, twice, others = found[0]
    assert "they have a whole corpus, shards 4 to 7 of 8; read the same corpus" in mixed
    assert "they have shards 0 to 3 of 8, shards 0 to 3 of 8; read the same corpus" in twice
    assert "of different corpora; read the same corpus" in others


def test_a_part_alone_is_refused(folder: Path) -> None:
    part = read_corpus(folder, rank=0, world_size=2)
    with pytest.raises(ConfigError, match="make up no corpus: they have shards 0 to 3 of 8; read"):
        MonteCarloEM(ctm(3, 30), progress=False).fit(part)


@pytest.mark.slow
def test_a_process_without_words_is_refused(tmp_path: Path) -> None:
    counts = np.zeros((40, 5), dtype=np.int64)
    counts[:10] = 1
    Corpus.from_matrix(counts).save(tmp_path / "half", shard_size=10)
    with pytest.raises(AssertionError, match="process 1 of 2 has no documents with words"):
        in_processes(2, shared_fits.facts, tmp_path / "half")


@pytest.mark.slow
def test_warnings_name_the_documents_of_all_processes(folder: Path) -> None:
    first, second = in_processes(2, shared_fits.warned, folder)
    assert second == []
    assert any("3 document(s) never moved" in text for text in first)
    assert any("at positions 7, 37, 67;" in text for text in first)


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
