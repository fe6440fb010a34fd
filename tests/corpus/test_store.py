"""Corpora in folders: everything that a corpus does, on counts that are mapped into memory."""

from __future__ import annotations

import copy
import errno
import json
import pickle
import shutil
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from support.corpora import LDAC, dense, make_corpus, write

from torch_lntm.corpus import Corpus, mapped, read_corpus
from torch_lntm.corpus import store as stores
from torch_lntm.errors import ConfigError, CorpusError, FileError

NAMES = ("row_offsets", "word_index", "counts")


@pytest.fixture
def corpus() -> Corpus:
    found = make_corpus(num_docs=60, num_words=20)
    found = found.with_metadata({"year": range(60), "who": ["ann", None] * 30})
    return found.with_covariates({"x": np.linspace(0.0, 1.0, 60)[:, None]})


@pytest.fixture(params=[None, 7], ids="shard_size={}".format)
def folder(corpus, tmp_path, request):
    corpus.save(tmp_path / "toy", shard_size=request.param)
    return tmp_path / "toy"


@pytest.fixture
def shard(corpus, tmp_path):
    """The only shard of a folder."""
    corpus.save(tmp_path / "toy")
    return tmp_path / "toy" / "shard-00000"


@pytest.fixture
def in_parts(monkeypatch):
    """Every loop has many parts."""
    monkeypatch.setattr(mapped, "PART", 13)


def assert_same(found: Corpus, expected: Corpus) -> None:
    for name in NAMES:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    assert (found.num_words, found.vocabulary) == (expected.num_words, expected.vocabulary)
    assert list(found.metadata) == list(expected.metadata)
    for name, values in expected.metadata.items():
        assert found.metadata[name].tolist() == values.tolist()
    assert list(found.covariates) == list(expected.covariates)
    for name, values in expected.covariates.items():
        np.testing.assert_array_equal(found.covariates[name], values)
    np.testing.assert_array_equal(found.lengths, expected.lengths)
    assert found.fingerprint() == expected.fingerprint()


def test_a_corpus_saved_to_a_folder_is_read_back_unchanged(corpus, folder):
    found = read_corpus(folder)
    assert_same(found, corpus)
    assert found.name == "toy"
    assert found.counts.dtype == np.int32
    for array in (found.word_index, found.counts):
        assert not array.flags.owndata if isinstance(array, np.ndarray) else array.links
    with pytest.raises((ValueError, TypeError)):
        found.counts[0] = 7
    np.testing.assert_array_equal(found.word_totals, dense(corpus).sum(0))
    for in_memory in (found.counts[[3, 1]], found.counts[found.counts > 1], 2 * found.counts):
        assert type(in_memory) is np.ndarray
    assert type(np.add.reduce(found.counts)) is np.int64


def test_a_corpus_without_vocabulary_or_metadata_is_read_back(tmp_path):
    bare = Corpus.from_matrix([[0, 2], [0, 0]])
    bare.save(tmp_path / "bare")
    assert_same(read_corpus(tmp_path / "bare"), bare)
    names = {path.name for path in (tmp_path / "bare").rglob("*")}
    assert names == {"corpus.json", "shard-00000", *(f"{name}.npy" for name in NAMES)}
    named = read_corpus(tmp_path / "bare", vocabulary=["cat", "dog"])
    assert named.vocabulary == ("cat", "dog")
    with pytest.raises(CorpusError, match="one word for each of the 2 columns, got 1"):
        read_corpus(tmp_path / "bare", vocabulary=["cat"])


def test_folders_keep_documents_without_tokens(tmp_path):
    Corpus.from_matrix(np.zeros((3, 2)), allow_empty=True).save(tmp_path / "none")
    found = read_corpus(tmp_path / "none")
    assert found.lengths.tolist() == [0, 0, 0]
    assert next(found.batches()).nnz == 0
    Corpus.from_matrix([[0], [1], [0], [1]]).save(tmp_path / "some")
    some = read_corpus(tmp_path / "some")
    assert some[[2, 0]].lengths.tolist() == [0, 0]
    assert some.batch([2, 0]).nnz == 0
    assert some.batch([2, 3, 0]).counts.tolist() == [1.0]


# ------------------------------------------------------------------ what a corpus does


@pytest.mark.slow
@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize(
    "derive",
    [
        lambda corpus: corpus[:],
        lambda corpus: corpus[10:40],
        lambda corpus: corpus[::-3],
        lambda corpus: corpus[[5, 5, 0, 59]],
        lambda corpus: corpus[np.arange(60) % 3 > 0],
        lambda corpus: corpus.split(0.3, seed=1).train[::-2],
        lambda corpus: corpus.hold_out_words(0.4, seed=2).held_out,
        lambda corpus: corpus.with_vocabulary(sorted(corpus.vocabulary)),
    ],
)
def test_selections_and_derived_corpora(corpus, folder, derive):
    found = derive(read_corpus(folder))
    assert_same(found, derive(corpus))
    assert (found.word_index.dtype, found.counts.dtype) == (np.int32, np.int32)


@pytest.mark.parametrize("options", [{"max_docs": 7}, {"max_tokens": 40}, {"shuffle": True}])
def test_batches(corpus, folder, options):
    batches = zip(read_corpus(folder).batches(**options), corpus.batches(**options), strict=True)
    for found, expected in batches:
        np.testing.assert_array_equal(dense(found), dense(expected))
        assert torch.equal(found.index, expected.index)
        assert torch.equal(found.covariates["x"], expected.covariates["x"])


@pytest.mark.usefixtures("in_parts")
def test_saving_again(corpus, folder, tmp_path):
    found = read_corpus(folder)
    found.save(tmp_path / "other")
    assert_same(read_corpus(tmp_path / "other"), corpus)
    found[5:50].save(folder)  # over its own files
    assert_same(read_corpus(folder), corpus[5:50])
    assert_same(found, corpus)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


# ------------------------------------------------------------------ files that cannot be used


def change(folder, **changes):
    about = json.loads((folder / "corpus.json").read_text())
    (folder / "corpus.json").write_text(json.dumps(about | changes))


def change_shard(folder, **changes):
    """Changes the record of the first shard; the names of files are changed in their checksums."""
    shards = json.loads((folder / "corpus.json").read_text())["shards"]
    files = shards[0]["files"] | changes.pop("files", {})
    change(folder, shards=[shards[0] | {"files": files} | changes, *shards[1:]])


@pytest.mark.parametrize(
    "name",
    [*(f"{name}.npy" for name in NAMES), "metadata.parquet", "covariates.npz", "vocabulary.txt"],
)
def test_missing_and_truncated_files_are_refused(shard, name):
    file = (shard.parent if name == "vocabulary.txt" else shard) / name
    data = file.read_bytes()
    for size in (0, 5, len(data) // 2, len(data) - 1):
        file.write_bytes(data[:size])
        with pytest.raises(FileError, match=name):
            read_corpus(shard.parent)
    file.unlink()
    with pytest.raises(FileError, match=rf"{name}: no such file"):
        read_corpus(shard.parent)


@pytest.mark.parametrize("name", NAMES)
def test_damaged_and_mismatched_arrays_are_refused(shard, tmp_path, name):
    path = shard / f"{name}.npy"
    good = np.load(path)
    changed = good.copy()
    changed[5] += 1  # plausible
    for bad in (changed, good[:-1], good.astype(np.float32), np.array([None] * good.size)):
        np.save(path, bad)
        with pytest.raises(FileError, match=rf"{name}\.npy: (is damaged|not a complete .npy file)"):
            read_corpus(shard.parent)
    np.save(path, good)
    read_corpus(shard.parent)


@pytest.mark.parametrize(
    ("name", "entry", "value", "match"),
    [
        ("row_offsets", 0, 1, "expected documents of ascending words below 20"),
        ("row_offsets", -1, 7, "expected documents"),
        ("row_offsets", 3, -5, "expected documents"),
        ("row_offsets", 3, 2**62, "expected documents"),
        ("word_index", 3, -1, "ascending words"),
        ("word_index", 3, 20, "ascending words"),
        ("word_index", 3, 0, "ascending words"),
        ("counts", 50, 0, "positive counts"),
        ("counts", 50, -3, "positive counts"),
    ],
)
@pytest.mark.usefixtures("in_parts")
def test_arrays_of_impossible_documents_are_refused(shard, name, entry, value, match):
    array = np.load(shard / f"{name}.npy")
    array[entry] = value
    np.save(shard / f"{name}.npy", array)
    change_shard(shard.parent, files={f"{name}.npy": zlib.crc32(array.data)})
    with pytest.raises(FileError, match=f"shard-00000: .*{match}"):
        read_corpus(shard.parent)


@pytest.mark.parametrize("name", ["vocabulary.txt", "metadata.parquet", "covariates.npz"])
def test_exchanged_words_and_files_of_another_corpus_are_found(folder, corpus, tmp_path, name):
    """Exchanged words, and files of another corpus that are valid by themselves."""
    other = corpus.with_metadata({"year": range(60, 120)}).with_covariates({"x": np.ones((60, 1))})
    other.save(tmp_path / "other", shard_size=7 if (folder / "shard-00001").exists() else None)
    file = sorted(folder.rglob(name))[-1]
    if name == "vocabulary.txt":
        first, second, *more = file.read_text().split("\n")
        file.write_text("\n".join([second, first, *more]))
    else:
        shutil.copy(tmp_path / "other" / file.relative_to(folder), file)
    with pytest.raises(FileError, match=f"{file}: is damaged, or of another corpus"):
        read_corpus(folder)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        (
            {"format_version": 2},
            "format_version is 2; this version of torch_lntm reads 5",
        ),
        ({"shards": []}, "is damaged"),
        ({"shards": None}, "is damaged"),
        ({"num_words": 0}, "is damaged"),
        ({"num_words": 2**31}, "one word for each of the 2147483648 columns, got 20"),
        ({"num_words": 2**31, "files": {}}, "2147483648 words are out of proportion"),
        ({"num_words": 19}, "ascending words below 19"),
        *(({"num_docs": value}, "is damaged") for value in (59, 10**15, "60")),
        ({"num_entries": -1}, "is damaged"),
    ],
)
def test_values_of_corpus_json_are_checked(shard, changes, match):
    of_shard = changes.keys() & {"num_docs", "num_entries"}
    (change_shard if of_shard else change)(shard.parent, **changes)
    with pytest.raises(FileError, match=match):
        read_corpus(shard.parent)


# ------------------------------------------------------------------ writing


def test_saving_replaces_only_folders_of_corpora(corpus, tmp_path):
    (tmp_path / "mine").mkdir()
    corpus.save(tmp_path / "mine")  # an empty folder
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("precious")
    (tmp_path / "file").write_text("precious")
    for name in ("notes", "file"):
        with pytest.raises(CorpusError, match=rf"{name}: exists and is not the folder of a corpus"):
            corpus.save(tmp_path / name)
    assert (tmp_path / "notes" / "a.txt").read_text() == "precious"
    with pytest.raises(CorpusError, match=r"toy\.npz: a corpus is saved in a folder.*without"):
        corpus.save(tmp_path / "toy.npz")


@pytest.mark.parametrize(
    ("module", "name"),
    [(stores, "as_json"), (np, "savez_compressed"), (stores, "as_lines")],
)
def test_a_full_disk_leaves_no_partial_folder(
    corpus, folder, tmp_path, monkeypatch, in_parts, module, name
):
    found = read_corpus(folder)

    def full(*args, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module, name, full)
        with pytest.raises(FileError, match=r"cannot be written .*: choose another path"):
            found[::2].save(folder)
    assert_same(read_corpus(folder), corpus)
    assert [path.name for path in tmp_path.iterdir()] == ["toy"]


# -------------------------------------------------------------------- pickles


def test_corpora_are_pickled_with_their_counts(corpus, folder, tmp_path, in_parts):
    corpus.save(tmp_path / "sharded", shard_size=25)
    scattered = read_corpus(folder)[[5, 3, 50]]
    for each in (corpus, read_corpus(folder), read_corpus(tmp_path / "sharded"), scattered):
        found = pickle.loads(pickle.dumps(each))
        with pytest.raises((ValueError, TypeError)):
            found.counts[0] = 1
        assert_same(found, each)
        assert_same(copy.deepcopy(each), each)


# -------------------------------------------------------------------- shards


@pytest.mark.parametrize("world_size", [1, 2, 3, 9])
def test_each_process_opens_its_own_shards(corpus, tmp_path, world_size, monkeypatch):
    corpus.save(tmp_path / "toy", shard_size=7)
    names, first, load = [], 0, np.load

    def noted(path, **options):
        names.extend([path.parent.name] if isinstance(path, Path) else [])
        return load(path, **options)

    monkeypatch.setattr(np, "load", noted)
    for rank in range(world_size):
        part = read_corpus(tmp_path / "toy", rank=rank, world_size=world_size)
        assert_same(part, corpus[first : first + len(part)])
        first += len(part)
    assert first == 60
    # All shards, each by one process: its three arrays.
    assert names == [f"shard-{number:05}" for number in range(9) for _ in range(3)]


@pytest.mark.parametrize("world_size", [2, 5, 16])
def test_processes_get_about_the_same_number_of_entries(world_size):
    sizes = np.random.default_rng(0).integers(50, 100, 64).tolist()
    shards = [{"num_entries": size} for size in sizes]
    parts = [range(*stores.deal_shards(shards, (rank, world_size))) for rank in range(world_size)]
    assert [shard for part in parts for shard in part] == list(range(64))
    most = max(sum(sizes[shard] for shard in part) for part in parts)
    assert most - sum(sizes) / world_size <= 100
    few = [{"num_entries": size} for size in (*[0] * (world_size - 1), 9)]
    assert stores.deal_shards(few, (world_size - 1, world_size)) == (world_size - 1, world_size)


def test_parts_of_folders_are_checked(corpus, tmp_path):
    corpus.save(tmp_path / "plain")
    corpus.save(tmp_path / "toy", shard_size=30)
    write(tmp_path / "toy.ldac", LDAC)
    toy = tmp_path / "toy"
    for path, options, match in (
        (tmp_path / "plain", {"rank": 0, "world_size": 2}, "world_size of 2, for 1 shards"),
        (tmp_path / "toy.ldac", {"rank": 0, "world_size": 2}, "rank is for a folder in shards"),
        (toy, {"rank": 0}, "rank and world_size belong together"),
        (toy, {"rank": 2, "world_size": 2}, "rank 2 of a world_size of 2"),
        (toy, {"rank": -1, "world_size": 2}, "rank -1 of a world_size of 2"),
        (toy, {"rank": 0, "world_size": 3}, "for 2 shards; .* smaller shards by corpus.save"),
        (
            toy,
            {"rank": 0, "world_size": 2, "metadata": {"a": [1]}},
            "rank is for a folder in shards",
        ),
    ):
        with pytest.raises(CorpusError, match=match):
            read_corpus(path, **options)
    with pytest.raises(ConfigError, match="shard_size is 0; expected at least 1"):
        corpus.save(tmp_path / "other", shard_size=0)
