"""Corpora in remote folders: fetched once from a server on this machine, checked, and mapped."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from support.corpora import make_corpus
from support.servers import Server, serving

from torch_lntm.corpus import Corpus, convert_corpus, read_corpus, remote
from torch_lntm.errors import ConfigError, CorpusError, FileError


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "served").mkdir()
    with serving(tmp_path / "served") as server:
        yield server


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LNTM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return tmp_path / "cache"


@pytest.fixture
def corpus(server: Server) -> Corpus:
    """Documents in 6 shards, as the folder ``posts`` of the server."""
    columned = make_corpus(num_docs=60, num_words=20).with_metadata({"year": np.arange(60)})
    columned = columned.with_covariates({"age": np.arange(60.0) % 7})
    columned.save(server.folder / "posts", shard_size=10)
    return read_corpus(server.folder / "posts")


def assert_equal(found: Corpus, expected: Corpus) -> None:
    for name in ("row_offsets", "word_index", "counts"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    assert (found.name, found.vocabulary) == (expected.name, expected.vocabulary)
    for mapping in ("metadata", "covariates"):
        mine, theirs = getattr(found, mapping), getattr(expected, mapping)
        assert list(mine) == list(theirs)
        for name in mine:
            np.testing.assert_array_equal(mine[name], theirs[name])


def test_the_whole_corpus_is_fetched_once(server: Server, corpus: Corpus, cache: Path) -> None:
    found = read_corpus(server.address)
    assert_equal(found, corpus)
    assert len(server.shards()) == 6
    again = read_corpus(server.address + "/")
    assert_equal(again, corpus)
    assert server.requested == ["posts/corpus.json"]


def test_a_process_fetches_its_own_shards_only(server: Server, corpus: Corpus) -> None:
    for rank in range(3):
        expected = read_corpus(server.folder / "posts", rank=rank, world_size=3)
        found = read_corpus(server.address, rank=rank, world_size=3)
        assert_equal(found, expected)
        assert found.part.fingerprint == expected.part.fingerprint
        assert found.part.shards == expected.part.shards
        assert server.shards() == {f"shard-{i:05}" for i in range(*expected.part.shards)}
    assert_equal(read_corpus(server.address), corpus)  # all shards are there by now
    assert server.shards() == set()


def test_a_part_knows_the_columns_of_the_whole(server: Server, corpus: Corpus) -> None:
    part = read_corpus(server.address, rank=1, world_size=3)
    server.requested.clear()
    whole = part.columns_of_whole()
    assert whole.num_docs == 60
    np.testing.assert_array_equal(whole.metadata["year"], corpus.metadata["year"])
    np.testing.assert_array_equal(whole.covariates["age"], corpus.covariates["age"])
    names = {path.rpartition("/")[2] for path in server.requested}
    assert names == {"metadata.parquet", "covariates.npz"}
    server.requested.clear()
    part.columns_of_whole()
    assert server.requested == []


def test_a_folder_without_shards(server: Server, corpus: Corpus) -> None:
    corpus.save(server.folder / "plain")
    address = server.address.replace("posts", "plain")
    assert_equal(read_corpus(address), read_corpus(server.folder / "plain"))
    server.requested.clear()
    read_corpus(address)
    assert server.requested == ["plain/corpus.json"]
    with pytest.raises(CorpusError, match="for 1 shards"):
        read_corpus(address, rank=0, world_size=2)


def test_other_protocols_and_conversion(corpus: Corpus, server: Server, tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.put(str(server.folder / "posts"), "/remote/posts", recursive=True)
    try:
        assert_equal(read_corpus("memory://remote/posts"), corpus)
        folder = convert_corpus("memory://remote/posts", tmp_path / "posts")
        assert_equal(read_corpus(folder), corpus)
    finally:
        memory.rm("/remote", recursive=True)


def test_a_changed_folder_is_fetched_anew(server: Server, corpus: Corpus) -> None:
    read_corpus(server.address)
    shutil.rmtree(server.folder / "posts")
    corpus[::-1].save(server.folder / "posts", shard_size=20)
    assert_equal(read_corpus(server.address), read_corpus(server.folder / "posts"))


def test_processes_fetch_at_the_same_time(server: Server, corpus: Corpus) -> None:
    code = f"import torch_lntm as lntm; print(lntm.read_corpus({server.address!r}).num_tokens)"
    command = [sys.executable, "-c", code]
    readers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [int(reader.communicate()[0]) for reader in readers] == [corpus.num_tokens] * 2


# ------------------------------------------------------------------ errors

OTHER = "is damaged, or of another corpus"


@pytest.mark.parametrize(
    ("name", "damage", "match"),
    [
        # A valid count that differs.
        ("counts.npy", lambda data: data[:-4] + bytes([data[-4] + 1]) + data[-3:], OTHER),
        ("word_index.npy", lambda data: data[:-8], "is damaged"),
        ("counts.npy", lambda data: data + bytes(1000), "is damaged"),
        ("counts.npy", None, "cannot be fetched"),
        ("covariates.npz", lambda data: b"PK", "is damaged"),
        ("metadata.parquet", "shard-00000", OTHER),
    ],
)
def test_a_damaged_shard_is_refused(
    server: Server, corpus: Corpus, cache: Path, tmp_path: Path, name: str, damage: Any, match: str
) -> None:
    shutil.copytree(server.folder / "posts", tmp_path / "good")
    file = server.folder / "posts" / "shard-00004" / name
    if damage is None:
        file.unlink()
    elif isinstance(damage, str):
        shutil.copy(server.folder / "posts" / damage / name, file)
    else:
        file.write_bytes(damage(file.read_bytes()))
    match = rf"posts/shard-00004/{name}: {match}"
    for _ in range(2):  # a damaged shard is not in the cache for the second reader
        with pytest.raises(FileError, match=match) as raised:
            read_corpus(server.address)
        assert str(cache) not in str(raised.value).partition(":")[0]
        assert server.address in str(raised.value)
    assert read_corpus(server.address, rank=0, world_size=6).num_docs == 10
    shutil.rmtree(server.folder / "posts")
    shutil.copytree(tmp_path / "good", server.folder / "posts")
    server.requested.clear()
    assert_equal(read_corpus(server.address), read_corpus(server.folder / "posts"))
    assert server.shards() == {"shard-00004", "shard-00005"}
    assert not list(cache.rglob(".*"))


def test_a_server_that_stops_leaves_no_half_of_a_file(
    server: Server, corpus: Corpus, cache: Path
) -> None:
    server.stop_at("shard-00002/counts.npy")
    with pytest.raises(FileError, match=r"shard-00002/counts\.npy: cannot be fetched .* run again"):
        read_corpus(server.address)
    assert not list(cache.rglob(".*"))
    server.stop_at(None)
    server.requested.clear()
    assert_equal(read_corpus(server.address), corpus)
    assert server.shards() == {f"shard-{i:05}" for i in range(2, 6)}


def test_a_silent_server_is_left(
    server: Server, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_SILENCE", 0.5)
    server.stop_at("shard-00003/word_index.npy", silent=True)
    with pytest.raises(FileError, match=r"shard-00003/word_index\.npy: cannot be fetched \(.*Time"):
        read_corpus(server.address)
    server.stop_at(None)
    assert_equal(read_corpus(server.address), corpus)


def test_an_absent_server_or_manifest_is_a_clear_error(server: Server, cache: Path) -> None:
    with pytest.raises(FileError, match=r"posts/corpus\.json: cannot be fetched .*check the addr"):
        read_corpus(server.address)
    assert not cache.exists()
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # nobody listens
        address = f"http://127.0.0.1:{reserved.getsockname()[1]}/posts"
        with pytest.raises(FileError, match=rf"{address}/corpus\.json: cannot be fetched"):
            read_corpus(address)


@pytest.mark.parametrize("name", ["../../out", "/tmp/out", "shard-00001/../../../out"])
def test_a_manifest_cannot_name_other_folders(
    server: Server, corpus: Corpus, cache: Path, name: str
) -> None:
    file = server.folder / "posts" / "corpus.json"
    about = json.loads(file.read_text())
    about["shards"][1]["folder"] = name  # has no effect
    file.write_text(json.dumps(about))
    assert_equal(read_corpus(server.address), corpus)
    about["shards"][1]["files"][f"{name}.npy"] = 1
    file.write_text(json.dumps(about))
    with pytest.raises(FileError, match=r"corpus\.json: is damaged"):
        read_corpus(server.address)


@pytest.mark.parametrize(
    ("end", "name"), [("..hidden", "hidden"), ("a b%c", "a_b_c"), ("ä" * 80, None)]
)
def test_a_name_of_the_address_stays_in_the_cache(
    server: Server, corpus: Corpus, cache: Path, end: str, name: str | None
) -> None:
    (server.folder / "posts").rename(server.folder / end)
    found = read_corpus(f"file://{server.folder / end}", rank=0, world_size=2)
    assert found.part.folder.parent.parent == cache
    assert name in (None, found.name)


def test_files_beyond_their_bounds_are_refused(server: Server, corpus: Corpus) -> None:
    with pytest.raises(FileError, match=r"metadata.parquet: holds more than 10 bytes"):
        read_corpus(server.address, max_bytes=10)


def test_a_vocabulary_out_of_proportion_and_a_slow_server_are_left(
    server: Server, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    (server.folder / "posts" / "vocabulary.txt").write_bytes(b"w\n" * (1 << 20))  # for 20 words
    with pytest.raises(FileError, match=r"vocabulary\.txt: cannot .* more than 1069056 bytes"):
        read_corpus(server.address)
    monkeypatch.setattr(remote, "_LEAST_RATE", -1)  # the clock of the test stands nearly still
    with pytest.raises(FileError, match=r"corpus\.json: cannot .* fewer than -1 bytes a second"):
        read_corpus(server.address)


CHAINS = ["reference://::{}/refs.json", "simplecache::{}", "{}::file:///etc"]


@pytest.mark.parametrize("address", [*CHAINS, "nosuch://a/b", "dask://a/b", "github://a:b@c/d"])
def test_other_kinds_of_addresses_and_chains_are_refused(server: Server, address: str) -> None:
    with pytest.raises(ConfigError, match=r"kind of address cannot be used; expected .* https, s3"):
        read_corpus(address.format(server.address))
    assert server.requested == []


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    with pytest.raises(ConfigError, match=r"s3://a/b: this kind of address .*Install s3fs"):
        read_corpus("s3://a/b")
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(ConfigError, match=r"needs aiohttp.*torch-lntm\[files\]"):
        read_corpus(server.address)
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ConfigError, match=r"needs fsspec.*torch-lntm\[files\]"):
        read_corpus(server.address)
