"""Small files that would take all memory or time, or read other files, are refused."""

from __future__ import annotations

import subprocess
import sys
import threading
from io import BytesIO

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from anndata.io import write_elem
from support.corpora import dense, random_counts, write

from torch_lntm.corpus import read_corpus
from torch_lntm.corpus.readers import texts
from torch_lntm.errors import FileError
from torch_lntm.files import reading

MIB = 1 << 20


def posts(text: str, num_docs: int) -> bytes:
    """Documents of one text that repeats."""
    file = BytesIO()
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(num_docs, np.int32)), pa.array([text]))
    pq.write_table(pa.table({"text": texts}), file, compression="zstd")
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("a.txt.gz", "%s", "line 1: has 1000 characters or more"),
        ("a.csv.gz", "text\n%s\n", "line 2: has 1000 characters or more"),
        ("a.jsonl.gz", '{"text": "%s"}', "line 1: has 1000 characters or more"),
        ("a.ldac", "1 %s", "line 1: has 1000 characters or more"),
        ("a.json", '[{"text": "%s"}]', "record 1: has more than 1000 characters; divide it"),
        ("a.parquet", "%s", "row 1: has more than 1000 characters; divide it"),
    ],
)
def test_lines_and_documents_are_bounded(tmp_path, monkeypatch, name, text, match):
    """A zipped line of 120 MB took 90 s and 2 GB."""
    assert reading.LONGEST == 16 * MIB
    monkeypatch.setattr(reading, "LONGEST", 1000)
    monkeypatch.setattr(texts, "LONGEST", 1000)
    path = tmp_path / name
    if name == "a.parquet":
        path.write_bytes(posts("ab " * 400, 1))
    else:
        write(path, text % ("ab " * 400))
    with pytest.raises(FileError, match=rf"{name}, {match}"):
        read_corpus(path)


def test_rows_and_chunks_of_tables_are_bounded(table, monkeypatch):
    file, folder = table
    monkeypatch.setattr(reading, "_UNPACKED", 10_000)
    file.create_dataset("var/s", (5,), np.float64, chunks=(20_000,), maxshape=(None,))
    file.close()
    with pytest.raises(FileError, match=r"of shape .* in chunks of .*, takes more"):
        read_corpus(folder / "a.h5ad")
    (folder / "a.parquet").write_bytes(posts("ab", 30_000))
    with pytest.raises(FileError, match="holds more than"):
        read_corpus(folder / "a.parquet")


def test_documents_of_a_zipped_file_are_at_most_its_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "FREE", 100)
    text = "wood stone\n" * 500
    with pytest.raises(FileError, match=r"line \d+: has more lines than bytes"):
        read_corpus(write(tmp_path / "a.txt.gz", text))
    assert read_corpus(write(tmp_path / "a.txt", text)).num_docs == 500


def test_max_bytes_replaces_the_default_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "_UNPACKED", 100)
    path = write(tmp_path / "a.txt.gz", "wood stone\n" * 100)
    assert read_corpus(path, max_bytes=10_000).num_docs == 100
    with pytest.raises(FileError, match="holds more than 100 bytes"):
        read_corpus(path)


# ------------------------------------------------------------------ CSV


def test_csv_files_of_long_fields_are_read_in_parallel(tmp_path):
    path = write(tmp_path / "a.csv", "text\n" + f"{'wood ' * 40_000}\n" * 3)
    found: list[int] = []
    readers = [
        threading.Thread(target=lambda: found.append(read_corpus(path).num_tokens))
        for _ in range(6)
    ]
    for thread in readers:
        thread.start()
    for thread in readers:
        thread.join()
    assert found == [120_000] * 6


# ------------------------------------------------------------------ AnnData


@pytest.fixture
def table(tmp_path):
    """An AnnData file of 12 documents, open for writing, beside a file with a secret."""
    (tmp_path / "secret.txt").write_bytes(b"top secret!!")
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["s"] = np.frombuffer(b"top secret!!", np.uint8)
        write_elem(other, "X", sp.csr_array(random_counts(12, 5)))
    obs = pd.DataFrame({"s": np.arange(12.0)}, pd.Index([f"d{d}" for d in range(12)], dtype=object))
    with h5py.File(tmp_path / "a.h5ad", "w") as file:
        write_elem(file, "X", sp.csr_array(random_counts(12, 5)))
        write_elem(file, "obs", obs)
        write_elem(file, "var", pd.DataFrame(index=pd.Index([*"abcde"], dtype=object)))
        yield file, tmp_path


def external(file, folder):
    storage = [(str(folder / "secret.txt"), 0, 12)]
    file["obs"].create_dataset("s", (12,), np.uint8, external=storage)


def virtual(file, folder):
    layout = h5py.VirtualLayout((12,), np.uint8)
    layout[:] = h5py.VirtualSource(folder / "other.h5", "s", (12,))
    file["obs"].create_virtual_dataset("s", layout)


def soft(file, folder):
    file["obs/s"] = h5py.SoftLink("/elsewhere")
    file["elsewhere"] = h5py.ExternalLink(str(folder / "other.h5"), "s")


def linked(name, target):
    def edit(file, folder):
        if name in file:
            del file[name]
        file[name] = h5py.ExternalLink(str(folder / "other.h5"), target)

    return edit


@pytest.mark.parametrize(
    "edit",
    [
        *(external, virtual, soft),
        *(linked("obs/s", "s"), linked("X", "X"), linked("X/data", "X/data"), linked("obs", "/")),
    ],
)
def test_anndata_reads_no_other_files(table, edit):
    file, folder = table
    del file["obs/s"]
    edit(file, folder)
    file.close()
    with pytest.raises(FileError, match=r"is a link, .* or in other files"):
        read_corpus(folder / "a.h5ad")


# ------------------------------------------------------------------ Parquet


def test_a_repeated_long_text_of_parquet_is_in_memory_once(tmp_path):
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 3000), pa.array(["x" * 1_000_000]))
    words = pa.array([["a", "b"]] * 3000)
    pq.write_table(pa.table({"words": words, "long": texts}), tmp_path / "a.parquet")
    corpus = read_corpus(tmp_path / "a.parquet")
    assert len({id(value) for value in corpus.metadata["long"]}) == 1
    np.testing.assert_array_equal(dense(corpus), np.ones((3000, 2)))


def test_every_repetition_of_a_parquet_text_counts_towards_the_bound(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    path.write_bytes(posts("wood coal " * 100, 12))
    assert read_corpus(path).num_tokens == 2400
    monkeypatch.setattr(reading, "_UNPACKED", 5000)
    with pytest.raises(FileError, match="holds more than"):
        read_corpus(path)
    assert read_corpus(path, max_bytes=50_000).num_tokens == 2400


#: Reads mutants of a file in a child process, and prints the kind of each outcome.
MUTATE = """
import random, sys, warnings
from pathlib import Path
from torch_lntm.corpus import read_corpus
warnings.simplefilter("ignore")
whole, number = Path(sys.argv[1]), int(sys.argv[2])
content, choice = whole.read_bytes(), random.Random(0)
for i in range(number):
    mutant = bytearray(content)
    for _ in range(choice.choice([1, 1, 2, 4])):
        mutant[choice.randrange(len(mutant))] = choice.randrange(256)
    path = whole.with_name("mutant" + whole.suffix)
    path.write_bytes(mutant)
    try:
        print(type(read_corpus(path)).__name__)
    except Exception as error:
        print(type(error).__name__, repr(error))
"""


@pytest.mark.long
@pytest.mark.parametrize("name", ["texts.parquet", "counts.parquet", "counts.npz"])
def test_damaged_tables_are_read_or_refused_in_words(tmp_path, name):
    """pyarrow aborted the process at damaged metadata of a column; others were tracebacks."""
    path = tmp_path / name
    labels, words = ["a", "b", None] * 4, [["cat", "dog"], ["emu"], []] * 4
    if name == "texts.parquet":
        rows = {"text": [f"cat dog {i}" for i in range(12)], "label": labels, "tags": words}
        pq.write_table(pa.table(rows), path, row_group_size=5)
    elif name == "counts.parquet":
        rows = {"words": words, "counts": [[1, 2], [3], []] * 4, "who": labels}
        pq.write_table(pa.table(rows), path, row_group_size=5)
    else:
        sp.save_npz(path, sp.csr_matrix(random_counts(12, 5)))
    ran = subprocess.run(
        [sys.executable, "-c", MUTATE, path, "120"], capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr[-1000:]
    outcomes = {line.split()[0] for line in ran.stdout.splitlines()}
    assert outcomes | {"CorpusError"} == {"Corpus", "FileError", "CorpusError"}


# ------------------------------------------------------------------ encodings


@pytest.mark.parametrize("encoding", ["zlib_codec", "rot13", "undefined", "a\0b", "no", "utf-16"])
def test_encodings_of_other_data_are_refused(tmp_path, encoding):
    with pytest.raises(FileError, match=r"a\.txt"):
        read_corpus(write(tmp_path / "a.txt", "wood"), encoding=encoding)
