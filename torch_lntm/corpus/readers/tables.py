"""Readers of binary tables: AnnData of word counts, Parquet of word counts or texts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp

from torch_lntm.corpus.metadata import listed
from torch_lntm.corpus.readers.counts import CountStream, Entries, check_size
from torch_lntm.errors import CorpusError, FileError, import_extra
from torch_lntm.files.reading import (
    FREE,
    open_to_read,
    read_errors,
    readable_bytes,
    too_large,
    unpacked_bytes,
)

T = TypeVar("T")

#: Numbers of a matrix, and rows of a Parquet file, per reading step.
_NUMBERS, _ROWS = 1 << 22, 1 << 12
#: Maximum bytes of an HDF5 chunk, because HDF5 unpacks complete chunks.
_CHUNK = 128 << 20
_NO_H5AD = "not a complete .h5ad file"


def _limit(max_bytes: float | None, on_disk: int) -> float:
    """Maximum number of bytes that a file may announce."""
    if max_bytes is None:
        return min(readable_bytes(), unpacked_bytes(on_disk))
    return unpacked_bytes(on_disk) if max_bytes == math.inf else max_bytes


# -------------------------------------------------------------------- AnnData


def stream_anndata(x: Any, obs: Any, words: Any) -> CountStream:
    """Stream of the parts of an AnnData object, in memory or in a file.

    Args:
        x: ``(num_docs, num_words)`` counts. Rows are read in parts.
        obs: The data frame of the documents. Its index becomes the column ``id``.
        words: Names of the words.

    Raises:
        CorpusError: ``x`` is missing or no matrix.
    """
    if len(getattr(x, "shape", ())) != 2:
        raise CorpusError(
            f"expected a matrix of counts, cells by genes, got {type(x).__name__}; if the counts "
            "are in a layer, name it: layer='counts'"
        )
    num_docs, num_words = map(int, x.shape)
    x = x.to_memory() if hasattr(x, "to_memory") else x  # of an object that is backed by a file
    x = x.tocsr() if hasattr(x, "tocsr") else x

    def pieces() -> Iterator[Entries]:
        step = max(1, _NUMBERS // max(1, num_words))
        for start in range(0, num_docs, step):
            stop = min(start + step, num_docs)
            part = sp.coo_array(x[start:stop])
            yield Entries(
                stop, start + part.row.astype(np.int64), part.col.astype(np.int64), part.data
            )

    metadata = {"id": obs.index.to_numpy(), **{str(name): obs[name].array for name in obs}}
    return CountStream(pieces(), num_words, [str(word) for word in words], metadata)


class _RowsOfFile:
    """Sparse matrix in a group of an HDF5 file, sliced by rows.

    anndata's own slices need private functions of scipy, which some versions lack.

    Raises:
        ValueError: The matrix is not in rows, or incomplete.
    """

    def __init__(self, group: Any) -> None:
        if group.attrs.get("encoding-type") != "csr_matrix":
            raise ValueError("X is not in rows; write adata.X = adata.X.tocsr()")
        self.group, self.shape = group, tuple(map(int, group.attrs["shape"]))
        self.offsets = group["indptr"][()].astype(np.int64)
        sizes = [group[name].size for name in ("data", "indices")]
        steps = np.diff(self.offsets, prepend=0)
        fits = steps.shape == (self.shape[0] + 1,) and not steps[0] and steps.min() >= 0
        if not fits or {*sizes, steps.sum()} != {sizes[0]}:
            raise ValueError(f"X's indptr does not fit its {sizes[0]} entries")

    def __getitem__(self, rows: slice) -> Any:
        offsets = self.offsets[rows.start : rows.stop + 1]
        data, words = (self.group[name][offsets[0] : offsets[-1]] for name in ("data", "indices"))
        shape = (len(offsets) - 1, self.shape[1])
        part = sp.csr_array((data, words, offsets - offsets[0]), shape)
        part.check_format(full_check=True)
        return part


def stream_h5ad(path: Path, num_words: int | None, max_bytes: float | None) -> CountStream:
    """Stream of an AnnData file: counts ``X``, metadata ``obs``, words ``var``.

    ``X`` is sparse by rows or dense.
    """
    h5py = import_extra("h5py", "files", "the format h5ad")
    anndata = import_extra("anndata.io", "files", "the format h5ad")
    open_to_read(path).close()  # raises clear errors for a wrong path
    on_disk = path.stat().st_size
    with read_errors(path, _NO_H5AD, Exception):
        file = h5py.File(path, "r", rdcc_nbytes=_CHUNK)
        _check_links(path, file, h5py, _limit(max_bytes, on_disk))
        x, obs, var = file["X"], anndata.read_elem(file["obs"]), anndata.read_elem(file["var"])
        x = _RowsOfFile(x) if isinstance(x, h5py.Group) else x
        stream = stream_anndata(x, obs, var.index)
        check_size(path, len(obs), len(var), on_disk, len(var))
        if x.shape != (len(obs), len(var)) or num_words not in (None, len(var)):
            raise FileError(
                f"{path}: X has {x.shape[0]} rows and {x.shape[1]} columns; expected the "
                f"{len(obs)} documents of obs and {num_words or len(var)} words"
            )

    def guarded() -> Iterator[Entries]:
        with read_errors(path, _NO_H5AD, Exception):
            yield from stream.pieces

    return replace(stream, pieces=guarded())


def _check_links(path: Path, file: Any, h5py: Any, limit: float) -> None:
    """Refuses data in other files, which HDF5 would read, and announced sizes beyond a limit.

    Raises:
        FileError: See above.
    """
    links: list[tuple[str, Any]] = []
    file.visititems_links(lambda *link: links.append(link))
    size = 0
    for name, link in links:
        node = file[name] if isinstance(link, h5py.HardLink) else None
        if name.partition("/")[0] not in ("X", "obs", "var") or isinstance(node, h5py.Group):
            continue
        if node is None or node.is_virtual or node.external or not node.shape:
            raise FileError(
                f"{path}: {name} is a link, a single number, or in other files; write the file "
                "without them"
            )
        size += node.size * node.dtype.itemsize
        if size > limit or math.prod(node.chunks or ()) * node.dtype.itemsize > _CHUNK:
            raise FileError(
                f"{path}: {name}, of shape {node.shape} in chunks of {node.chunks}, takes more "
                "bytes than the file and the memory allow; check the file"
            )


# -------------------------------------------------------------------- Parquet


class ParquetFiles:
    """Parquet file, or a folder of Parquet files with equal columns. One file is open at a time.

    Args:
        path: The file or folder.
        max_bytes: As for ``read_corpus``.

    Raises:
        FileError: A file is missing, damaged or too large, or has other columns than the first.
    """

    def __init__(self, path: Path, max_bytes: float | None) -> None:
        self.path = path
        self.files = sorted(path.glob("[!.]*.parquet")) if path.is_dir() else [path]
        if not self.files:
            raise FileError(f"{path}: expected a folder of .parquet files, found none")
        num_docs = size = 0
        self.schema: Any = None
        for file in self.files:
            with self._opened(file) as parquet:
                about, schema = parquet.metadata, parquet.schema_arrow
            # pyarrow aborts the process at damaged metadata of a column; those of groups are safe.
            size += sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups))
            num_docs += about.num_rows
            self.schema = self.schema or schema
            words = [
                [field.type for field in s if field.name == "words"] for s in (schema, self.schema)
            ]
            if schema.names != self.schema.names or words[0] != words[1]:
                raise FileError(
                    f"{file}: has the columns {listed(schema.names)}; expected "
                    f"{listed(self.schema.names)}, with words of one type, as in "
                    f"{self.files[0].name}"
                )
        on_disk = sum(file.stat().st_size for file in self.files)
        self.limit = _limit(max_bytes, on_disk)
        if size > self.limit or num_docs > FREE + on_disk:
            raise too_large(path, self.limit)
        self.names: list[str] = self.schema.names
        repeated = [name for name, times in Counter(self.names).items() if times > 1]
        if repeated:
            raise FileError(
                f"{path}: columns must have different names, got {listed(repeated)} twice"
            )

    @contextmanager
    def _opened(self, file: Path) -> Iterator[Any]:
        import pyarrow.parquet as pq

        open_to_read(file).close()  # raises clear errors for a wrong path
        with read_errors(file, "not a complete Parquet file", Exception):
            # Dictionaries hold a repeated text once. A short file can repeat a long text often.
            texts = [field.name for field in pq.read_schema(file) if str(field.type) == "string"]
            yield pq.ParquetFile(file, read_dictionary=texts, buffer_size=1 << 20, pre_buffer=False)

    def _batches(self, use: Callable[[dict[str, Any]], T]) -> Iterator[tuple[Path, T]]:
        """Yields each file with what ``use`` makes of the columns of some rows.

        Memory holds a part of a row group.
        """
        for file in self.files:
            with self._opened(file) as parquet:
                for group in range(parquet.num_row_groups):
                    for batch in parquet.iter_batches(_ROWS, [group]):
                        yield file, use(dict(zip(self.names, batch.columns, strict=True)))

    def _type(self, name: str) -> str:
        return str(self.schema.field(name).type) if name in self.names else ""

    @property
    def has_counts(self) -> bool:
        """Whether ``words`` holds lists. Its type is irrelevant without a column ``text``."""
        return "words" in self.names and (
            "text" not in self.names or "list<" in self._type("words")
        )

    def records(self, text_field: str | None) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields the rows, each with its place. A single column of any name is the text.

        Args:
            text_field: Column of the texts. Defaults to ``text``.

        Raises:
            FileError: A file is damaged or too large, or lacks the column.
        """
        names, text, left = list(self.names), text_field or "text", self.limit
        if text not in names and (text_field is not None or len(names) != 1):
            raise FileError(
                f"{self.path}: expected a column {text!r} of texts, or a column 'words' of lists "
                f"of counted words; the columns are {listed(names)}; choose one of texts by "
                "text_field"
            )
        names = names if text in names else [text]
        numbers: Counter[Path] = Counter()
        for file, columns in self._batches(lambda batch: [*map(_values, batch.values())]):
            place = "" if file == self.path else f"{file.name}, "
            for row in zip(*columns, strict=True):
                record = dict(zip(names, row, strict=True))
                numbers[file] += 1
                left -= len(record[text]) if isinstance(record[text], str) else 0
                if left < 0:
                    raise too_large(self.path, self.limit)
                yield f"{place}row {numbers[file]}", record

    def stream(self, num_words: int | None) -> CountStream:
        """Stream of the counts; see ``stream_parquet``."""
        import pyarrow as pa
        import pyarrow.compute as pc

        kinds, vocabulary = self._type("words"), None
        if "list<" not in kinds or not ("string" in kinds or "int" in kinds):
            raise FileError(f"{self.path}: 'words' must be lists of words or columns, got {kinds}")
        if "string" in kinds:
            words: set[Any] = set()
            for _, some in self._batches(lambda batch: _flat(batch["words"]).unique().to_pylist()):
                words.update(some)
            vocabulary = sorted(words - {None})
            num_words = len(vocabulary)
        kinds = self._type("counts")
        if kinds and not ("list<" in kinds and any(x in kinds for x in ("int", "float", "double"))):
            raise FileError(f"{self.path}: 'counts' must be lists of numbers, got {kinds}")
        metadata = {name: list[Any]() for name in self.names if name not in ("words", "counts")}
        num_docs = 0

        def entries(batch: dict[str, Any]) -> Entries:
            nonlocal num_docs
            for name, values in metadata.items():
                values += _values(batch[name])
            words, rows = _flat(batch["words"]), pc.list_parent_indices(batch["words"])
            if vocabulary is not None:
                words = pc.index_in(words, pa.array(vocabulary, words.type))
            counts = (
                _flat(batch["counts"])
                if "counts" in batch
                else pa.array(np.ones(len(words), np.int8))
            )
            same = pc.list_parent_indices(batch.get("counts", batch["words"])).equals(rows)
            if words.null_count or counts.null_count or not same:
                raise FileError(
                    f"{self.path}: 'words' and 'counts' must be complete, and equally many in each "
                    "document"
                )
            columns = np.asarray(words).astype(np.int64)
            if columns.size and (columns.min() < 0 or columns.max() >= (num_words or np.inf)):
                raise FileError(f"{self.path}: 'words' must be columns from 0 to {num_words}")
            first, num_docs = num_docs, num_docs + len(batch["words"])
            return Entries(num_docs, first + np.asarray(rows), columns, np.asarray(counts))

        pieces = (piece for _, piece in self._batches(entries))
        return CountStream(pieces, num_words, vocabulary, metadata)


def _values(column: Any) -> list[Any]:
    """Values of a column. Repeated texts are a single object."""
    if not hasattr(column, "dictionary"):
        return list(column.to_pylist())
    texts = column.dictionary.to_pylist()
    return [None if i is None else texts[i] for i in column.indices.to_pylist()]


def _flat(lists: Any) -> Any:
    """The values of lists, one after another."""
    values = lists.flatten()
    return values.dictionary_decode() if hasattr(values, "dictionary") else values


def stream_parquet(path: Path, num_words: int | None, max_bytes: float | None) -> CountStream:
    """Stream of a Parquet file, or of a folder of Parquet files, with a row per document.

    The column ``words`` holds lists of strings, or of column numbers from 0. The column ``counts``
    holds lists of equal length; without it, every listed word counts once. Further columns are
    metadata. Memory holds a part of a row group, the distinct words and the metadata.
    """
    return ParquetFiles(path, max_bytes).stream(num_words)
