"""Small files that would take all memory or time, or read other files, are refused."""

from __future__ import annotations

import csv
import gzip
import json
import re
import subprocess
import sys
import threading
import zipfile
from io import BytesIO

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from support.corpora import dense, random_counts, write

from torch_lntm.corpus import convert_corpus, read_corpus
from torch_lntm.corpus.readers import tables, texts
from torch_lntm.errors import CorpusError, FileError
from torch_lntm.files import reading

MIB = 1 << 20


def zipped(head: bytes, repeated: bytes, size: int, tail: bytes = b"") -> bytes:
    """A gzipped text of about ``size`` bytes that repeats."""
    piece = gzip.compress(repeated * (size // 40 // len(repeated)))
    return gzip.compress(head) + piece * 40 + gzip.compress(tail)


def npz(num_entries: int) -> bytes:
    """A corpus of one document that holds one word, in very many entries."""
    file = BytesIO()
    arrays = {
        "data": np.ones(num_entries, np.uint8),
        "indices": np.zeros(num_entries, np.uint8),
        "indptr": np.array([0, num_entries]),
        "shape": np.array([1, 5]),
    }
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, array in arrays.items():
            held = BytesIO()
            np.save(held, array)
            archive.writestr(f"{name}.npy", held.getvalue())
    return file.getvalue()


def parquet(words: pa.Array, num_entries: int) -> bytes:
    """One document of a word that repeats."""
    repeated = words.take(pa.array(np.zeros(num_entries, np.int32)))
    file = BytesIO()
    lists = pa.ListArray.from_arrays(pa.array([0, num_entries], pa.int32()), repeated)
    pq.write_table(pa.table({"words": lists}), file, compression="zstd")
    return file.getvalue()


def posts(text: str, num_docs: int) -> bytes:
    """Documents of one text that repeats."""
    file = BytesIO()
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(num_docs, np.int32)), pa.array([text]))
    pq.write_table(pa.table({"text": texts}), file, compression="zstd")
    return file.getvalue()


def h5ad(num_entries: int, chunk: int) -> bytes:
    """One document of a word that repeats, in compressed chunks."""
    held = BytesIO()
    with h5py.File(held, "w") as file:
        x = file.create_group("X")
        x.attrs["encoding-type"], x.attrs["shape"] = "csr_matrix", (1, 5)
        for name in ("data", "indices"):
            packed = x.create_dataset(
                name, (num_entries,), np.uint8, chunks=(chunk,), compression=1
            )
            packed[:] = np.ones(num_entries, np.uint8)
        x["indptr"] = np.array([0, num_entries])
        file.create_group("obs"), file.create_group("var")
    return held.getvalue()


def bombs(scale: int) -> dict[str, tuple[bytes, str]]:
    """Files that announce or unpack to far more than their size, with the expected outcome.

    The files and the limits of the readers are both smaller than usual by the factor ``scale``.
    """
    mib, million = MIB // scale, 1_000_000 // scale
    cells = f"a,text,{','.join(map(str, range(98)))}".encode()
    return {
        "line.txt.gz": (
            zipped(b"", b"wood ", 300 * mib),
            f"holds more than {128 * mib} bytes",
        ),
        "documents.txt.gz": (zipped(b"", b"ab\n", 100 * mib), "lines and more are out of prop"),
        "blank.csv.gz": (zipped(b"text\n", b"\n", 100 * mib), "lines and more are out of prop"),
        "blank.jsonl.gz": (zipped(b"", b"\n", 100 * mib), "lines and more are out of prop"),
        "header.csv.gz": (
            zipped(b"text,", b"a,", 40 * mib, b"b\n"),
            "different names, got a twice",
        ),
        "cells.csv.gz": (
            zipped(cells, b"\n1,ab" + b",1" * 98, 100 * mib),
            "values and more are out of proportion",
        ),
        "lists.jsonl.gz": (zipped(b'{"a":[', b"[],", 100 * mib), "not JSON .an object of more"),
        "lists.json.gz": (zipped(b'[{"a":[', b"[],", 100 * mib), "not JSON .an object of more"),
        "records.json.gz": (
            zipped(b"[", b'{"text":"ab"},', 100 * mib),
            "documents and more are out of proportion",
        ),
        "line.ldac.gz": (
            zipped(b"1 ", b"1:1 ", 120 * mib),
            f"announces 1 words and holds {120 * mib // 160 * 40}; ",
        ),
        "lines.ldac.gz": (zipped(b"", b"0\n", 100 * mib), "lines and more are out of proportion"),
        "docword.line.txt.gz": (zipped(b"", b"1 ", 120 * mib), "expected the number D"),
        "line.mtx.gz": (zipped(b"", b"1 ", 120 * mib), "expected .%%MatrixMarket"),
        "many.npz": (npz(34 * mib), f"holds more than {64 * mib} bytes"),
        "some.npz": (npz(30 * mib), f"num_tokens={30 * mib}"),
        "words.parquet": (
            parquet(pa.array(["wood"]), 25 * million),
            f"{25 * million} entries are out of proportion",
        ),
        "columns.parquet": (
            parquet(pa.array([0]), 25 * million),
            f"{25 * million} entries are out of proportion",
        ),
        "some.parquet": (parquet(pa.array(["wood"]), 20 * million), f"num_tokens={20 * million}"),
        "long.parquet": (posts("wood " * (60 * mib), 1), "the texts take"),
        "texts.parquet": (posts("wood " * 20_000, million), "the texts take 100000 bytes"),
        "rows.parquet": (posts("ab", 3 * million), "documents and more are out of proportion"),
        "chunk.h5ad": (h5ad(130 * mib, 130 * mib), f"chunks of .{130 * mib},. values"),
        "many.h5ad": (h5ad(24 * mib, mib), f"{24 * mib} entries are out of proportion"),
    }


#: Reads files with limits and pieces that are smaller by a factor: a true miniature of the usual
#: reading. Prints the CPU seconds, the peak of memory in kB since the start, and the corpus or the
#: error of each file. The arguments are factors and paths.
READ = """
import gc, sys, time
import h5py, pyarrow.parquet, sklearn.feature_extraction.text
from torch_lntm.corpus import read_corpus
from torch_lntm.corpus.readers import counts, tables, texts
from torch_lntm.files import reading

def peak():
    about = open("/proc/self/status").read() if sys.platform == "linux" else "VmHWM: 0"
    return int(about.split("VmHWM:")[1].split()[0])

limits = [(reading, "_UNPACKED"), (reading, "_FREE"), (reading, "_PIECE"), (counts, "_LINES"),
          (texts, "_MOST_CHARACTERS"), (texts, "_DOCUMENTS"),
          (tables, "_CHUNK"), (tables, "_ENTRIES"), (tables, "_ROWS")]
usual = [getattr(module, name) for module, name in limits]
gc.collect()
gc.freeze()  # a collection that traverses the modules would take longer than small files
before = peak()
for scale, path in zip(sys.argv[1::2], sys.argv[2::2]):
    for (module, name), limit in zip(limits, usual):
        setattr(module, name, limit // int(scale))
    start = time.process_time()
    try:
        said = repr(read_corpus(path))
    except Exception as error:
        said = f"{type(error).__name__} {error}"
    print(time.process_time() - start, peak() - before, said.replace("\\n", " ")[:300])
"""


def test_limits_of_the_readers_bound_small_files():
    assert reading._UNPACKED == 128 * MIB
    assert reading._FREE == MIB
    assert texts._MOST_CHARACTERS == 32 * MIB
    assert tables._CHUNK == 128 * MIB


@pytest.mark.slow
def test_small_files_are_read_or_refused_in_bounded_time_and_memory(tmp_path):
    """Files of an eighth of the limits' usual size, and of a fourth of this.

    Times and memory in proportion to the size stay below 15 s and 2.5 GB at the usual size. A time
    that grows with the square of the size shows between the two sizes.
    """
    small, large = 32, 8
    arguments, expected = [], []
    for scale in (small, large):
        for name, (content, outcome) in bombs(scale).items():
            path = tmp_path / str(scale) / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
            assert len(content) < 10_000_000 / scale, name
            arguments += [str(scale), str(path)]
            expected.append(outcome)
    ran = subprocess.run(
        [sys.executable, "-c", READ, *arguments], capture_output=True, text=True, check=True
    )
    lines = ran.stdout.splitlines()
    assert len(lines) == len(expected)
    times = []
    for line, outcome in zip(lines, expected, strict=True):
        seconds, kilobytes, said = line.split(maxsplit=2)
        times.append(float(seconds))
        assert int(kilobytes) < 2_500_000 / large, line
        assert said.startswith(("FileError", "CorpusError", "Corpus(")), line
        assert re.search(outcome, said), line
    half = len(times) // 2
    for before, after, line in zip(times[:half], times[half:], lines[half:], strict=True):
        assert after < 15 / large, line
        assert after < max(0.3, 2.5 * small / large * before), line


def test_uncompressed_files_are_not_bounded_by_their_size(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "_UNPACKED", 4000)
    monkeypatch.setattr(reading, "_FREE", 100)
    text = "wood stone\n" * 500
    with pytest.raises(FileError, match="holds more than 4000 bytes"):
        read_corpus(write(tmp_path / "a.txt.gz", text))
    monkeypatch.setattr(reading, "_UNPACKED", 10**6)
    with pytest.raises(FileError, match=r"500 lines and more are out of proportion to its \d+ b"):
        read_corpus(write(tmp_path / "a.txt.gz", text))
    assert read_corpus(write(tmp_path / "a.txt", text)).num_docs == 500


def test_max_bytes_replaces_the_default_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "_UNPACKED", 100)
    path = write(tmp_path / "a.txt.gz", "wood stone\n" * 100)
    assert read_corpus(path, max_bytes=10_000).num_docs == 100
    with pytest.raises(FileError, match="holds more than 100 bytes"):
        read_corpus(path)
    with pytest.raises(FileError, match="holds more than 100 bytes"):
        convert_corpus(path, tmp_path / "out")


def test_large_compressed_files_may_unpack_to_a_hundred_times_their_size():
    assert reading.unpacked_bytes(0) == reading.unpacked_bytes(10 * MIB) == 128 * MIB
    assert reading.unpacked_bytes(20 * MIB) == 1128 * MIB


def test_a_json_array_is_read_in_pieces_of_any_size(tmp_path, monkeypatch):
    records = [{"text": f"wörd {i} \\u20ac", "n": i, "x": [1.5, "a]", {}]} for i in range(20)]
    path = write(tmp_path / "a.json", "\n" + json.dumps(records, indent=1) + " ")
    expected = read_corpus(path)
    assert expected.metadata["n"].tolist() == list(range(20))
    assert expected.metadata["x"][3] == "1.5|a]|{}"
    for size in (1, 2, 3, 7, 50, 1000):
        monkeypatch.setattr(reading, "_PIECE", size)
        assert read_corpus(path).fingerprint() == expected.fingerprint()
    for damage in ('{"text": tru}', '{"text": "a" 3}', '{"text": "a}', "{,}"):
        write(path, '[{"text": "wood"},\n' + damage + ', {"text": "' + "a " * 500 + '"}]')
        with pytest.raises(FileError, match=r"a\.json, line 2: not JSON"):
            read_corpus(path)
    for end, what in (("", "comma or the end"), ("] 3", "nothing behind"), ("3]", "comma or")):
        write(path, '[{"text": "wood"}' + end)
        with pytest.raises(FileError, match=f"line 1: not JSON .expected .*{what}"):
            read_corpus(path)


def test_long_json_objects_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(texts, "_MOST_CHARACTERS", 1000)
    monkeypatch.setattr(reading, "_PIECE", 64)
    for name, form in (("a.json", "[%s]"), ("a.jsonl", "%s\n")):
        short, long = ('{"text": "%s"}' % ("wood " * times) for times in (190, 220))
        assert read_corpus(write(tmp_path / name, form % short)).num_tokens == 190
        with pytest.raises(FileError, match=r"line 1: not JSON .an object of more than"):
            read_corpus(write(tmp_path / name, form % long))


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_records_have_at_most_ten_thousand_fields(tmp_path, name):
    def of(number):
        names = ["text", *(f"c{i}" for i in range(number - 1))]
        values = ["wood", *["1"] * (number - 1)]
        if name == "a.jsonl":
            return json.dumps(dict(zip(names, values, strict=True)))
        return ",".join(names) + "\n" + ",".join(values) + "\n"

    assert read_corpus(write(tmp_path / name, of(10_000))).metadata.shape == (1, 9_999)
    with pytest.raises(FileError, match=r"at most 10000 fields, got 1000[12]"):
        read_corpus(write(tmp_path / name, of(10_002)))


# ------------------------------------------------------------------ CSV


def test_csv_files_are_read_in_parallel_and_the_field_limit_is_restored(tmp_path):
    path = write(tmp_path / "a.csv", "text\n" + f"{'wood ' * 40_000}\n" * 3)
    limit = csv.field_size_limit()
    first, second = (iter(texts.TextStream(path, "csv", texts.TextOptions())) for _ in "ab")
    next(first), next(second)
    assert csv.field_size_limit() == limit
    assert len(list(first)) == 2
    assert csv.field_size_limit() == limit
    assert len(list(second)) == 2
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
    assert csv.field_size_limit() == limit


# ------------------------------------------------------------------ AnnData


@pytest.fixture
def table(tmp_path):
    """An AnnData file of 12 documents, open for writing, beside a file with a secret."""
    (tmp_path / "secret.txt").write_bytes(b"top secret!!")
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["s"] = np.frombuffer(b"top secret!!", np.uint8)
    counts = sp.csr_array(random_counts(12, 5))
    with h5py.File(tmp_path / "a.h5ad", "w") as file:
        x = file.create_group("X")
        x.attrs["encoding-type"], x.attrs["shape"] = "csr_matrix", counts.shape
        x["data"], x["indices"], x["indptr"] = counts.data, counts.indices, counts.indptr
        file.create_group("var")
        file.create_group("obs").attrs["column-order"] = ["s"]
        yield file, tmp_path


def test_anndata_reads_no_external_storage(table):
    file, folder = table
    storage = [(str(folder / "secret.txt"), 0, 12)]
    file["obs"].create_dataset("s", (12,), np.uint8, external=storage)
    file.close()
    with pytest.raises(FileError, match=r"/obs/s is in other files; write it into this one"):
        read_corpus(folder / "a.h5ad")


def test_anndata_reads_no_virtual_data(table):
    file, folder = table
    layout = h5py.VirtualLayout((12,), np.uint8)
    layout[:] = h5py.VirtualSource(folder / "other.h5", "s", (12,))
    file["obs"].create_virtual_dataset("s", layout)
    file.close()
    with pytest.raises(FileError, match=r"/obs/s is in other files"):
        read_corpus(folder / "a.h5ad")


@pytest.mark.parametrize("name", ["s", "outside/s", "soft", "X/data", "X", "obs"])
def test_anndata_follows_no_links(table, name):
    file, folder = table
    other = h5py.ExternalLink(str(folder / "other.h5"), "/" if "outside" in name else "s")
    obs = file["obs"]
    obs.attrs["column-order"] = [name]
    if name == "outside/s":
        obs["outside"] = other
    elif name == "soft":
        obs["soft"] = h5py.SoftLink("/obs/elsewhere")
        obs["elsewhere"] = other
    else:
        where = obs if name == "s" else file
        if name != "s":
            del file[name]
        where[name] = other
    file.close()
    for read in (read_corpus, lambda path: convert_corpus(path, folder / "out")):
        with pytest.raises(FileError, match="is a link; write the file without links"):
            read(folder / "a.h5ad")


def test_anndata_with_a_very_often_repeated_long_text_is_refused(table, monkeypatch):
    file, folder = table
    file["obs"]["s"] = ["x" * 1000] * 12
    file.close()
    assert read_corpus(folder / "a.h5ad").metadata["s"][11] == "x" * 1000
    monkeypatch.setattr(reading, "_UNPACKED", 5000)
    with pytest.raises(FileError, match="the values of /obs/s take 12000 bytes"):
        read_corpus(folder / "a.h5ad")


@pytest.mark.parametrize("shape", [(12, 0), (0, 5)])
def test_anndata_of_an_empty_matrix_is_refused(table, shape):
    file, folder = table
    del file["X"]
    file["X"] = np.zeros(shape)
    file["obs"].attrs["column-order"] = []
    file.close()
    with pytest.raises(CorpusError, match=f"the corpus is empty: {shape[0]} documents, {shape[1]}"):
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
    with pytest.raises(FileError, match=r"the texts take .* more than is allowed"):
        read_corpus(path)
    with pytest.raises(FileError, match=r"the texts take .* more than is allowed"):
        convert_corpus(path, tmp_path / "out")
    assert read_corpus(path, max_bytes=50_000).num_tokens == 2400


def test_conversion_of_parquet_texts_has_bounded_memory(tmp_path, monkeypatch):
    texts = [f"wood{i} " * 1000 for i in range(300)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet", row_group_size=50)
    monkeypatch.setattr(tables, "readable_bytes", lambda: 100_000)
    with pytest.raises(FileError, match=r"the texts take .* more than is allowed"):
        read_corpus(tmp_path / "a.parquet")
    folder = convert_corpus(tmp_path / "a.parquet", tmp_path / "out", min_df=1)
    assert read_corpus(folder).num_tokens == 300_000


def test_a_parquet_column_whose_name_is_not_unicode_is_refused(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"words": [["a"]], "nameless": [1]}), path)
    path.write_bytes(path.read_bytes().replace(b"nameless", b"name\xff\xfess"))
    with pytest.raises(FileError, match="not a complete Parquet file"):
        read_corpus(path)


# ------------------------------------------------------------------ encodings


@pytest.mark.parametrize("encoding", ["zlib_codec", "rot13", "undefined", "punycode", "a\0b", "no"])
def test_encodings_of_other_data_than_text_are_refused(tmp_path, encoding):
    path = write(tmp_path / "a.txt", "wood")
    with pytest.raises(FileError, match=r"a\.txt: encoding .* cannot be used"):
        read_corpus(path, encoding=encoding)


def test_utf_16_without_a_byte_order_mark_is_refused_with_an_explanation(tmp_path):
    with pytest.raises(FileError, match=r"a\.txt, line 1: not utf-16 text \(.*BOM"):
        read_corpus(write(tmp_path / "a.txt", "wood"), encoding="utf-16")
