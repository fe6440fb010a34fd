"""Small files that would take all memory or time, or read other files, are refused."""

from __future__ import annotations

import subprocess
import sys
from io import BytesIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from support.corpora import random_counts, write

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


# ------------------------------------------------------------------ Parquet


def test_a_repeated_long_text_of_parquet_is_in_memory_once(tmp_path):
    long = pa.DictionaryArray.from_arrays(pa.array([0] * 3000), pa.array(["x" * 1_000_000]))
    pq.write_table(pa.table({"text": ["a bb"] * 3000, "long": long}), tmp_path / "a.parquet")
    corpus = read_corpus(tmp_path / "a.parquet")
    assert len({id(value) for value in corpus.metadata["long"]}) == 1
    assert corpus.num_docs == 3000


def test_rows_of_tables_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "_UNPACKED", 10_000)
    (tmp_path / "a.parquet").write_bytes(posts("ab", 30_000))
    with pytest.raises(FileError, match="holds more than"):
        read_corpus(tmp_path / "a.parquet")


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
@pytest.mark.parametrize("name", ["texts.parquet", "counts.npz"])
def test_damaged_tables_are_read_or_refused_in_words(tmp_path, name):
    """pyarrow aborted the process at damaged metadata of a column; others were tracebacks."""
    path = tmp_path / name
    labels, words = ["a", "b", None] * 4, [["cat", "dog"], ["emu"], []] * 4
    if name == "texts.parquet":
        rows = {"text": [f"cat dog {i}" for i in range(12)], "label": labels, "tags": words}
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
