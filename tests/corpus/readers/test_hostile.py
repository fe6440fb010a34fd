"""Damaged files are read or refused in words."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from support.corpora import random_counts, write

from torch_lntm.corpus import read_corpus
from torch_lntm.errors import FileError

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
