"""Readers of binary tables: AnnData of word counts, Parquet of word counts or of texts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torch_lntm.corpus.frames import listed
from torch_lntm.corpus.readers.counts import CountStream, Entries, check_size
from torch_lntm.errors import FileError, import_extra
from torch_lntm.files import check_proportion, open_to_read, readable_bytes, unpacked_bytes

#: Entries, or numbers of a dense matrix, that are read at once.
_ENTRIES = 1 << 20
_ROWS = 1 << 14
#: Bytes of a Parquet file that are read ahead; without it whole row groups are.
_BUFFER = 1 << 20
#: Bytes of texts that are read at once, about.
_TEXT_BYTES = 32 << 20

#: The most bytes of a chunk of HDF5, which is unpacked as a whole.
_CHUNK = 128 << 20
#: Texts that are read at once at least: HDF5 tells the length of a text only by reading it.
_TEXTS = 64


class _Budget:
    """How much of a file may be read, which may say that it holds far more than it does.

    Args:
        path: The file.
        max_bytes: The most bytes of metadata; if not given, or infinite, what a file of this size
            may unpack to.
        held: Whether what is read stays in memory, which then bounds it too.
    """

    def __init__(self, path: Path, max_bytes: float | None, *, held: bool = True) -> None:
        self.path = path
        self.on_disk = path.stat().st_size
        unpacked = unpacked_bytes(self.on_disk)
        self.num_entries = unpacked // 6  # an entry takes many bytes in use
        given = max_bytes not in (None, math.inf)
        self.left = max_bytes if given and max_bytes else unpacked
        if held:
            self.left = min(self.left, readable_bytes())

    def take(self, size: int, what: str) -> None:
        """Refuses what does not fit into the rest.

        Raises:
            FileError: It takes more bytes than are left.
        """
        self.left -= size
        if self.left < 0:
            raise FileError(
                f"{self.path}: {what} take {size} bytes, more than is allowed; check the file"
            )

    def check(self, num_docs: int, num_entries: int) -> None:
        """Refuses more documents or entries than a file of this size holds.

        Raises:
            FileError: There are more.
        """
        check_proportion(self.path, num_docs, "documents", 4)
        if num_entries > self.num_entries:
            raise FileError(
                f"{self.path}: {num_entries} entries are out of proportion to its {self.on_disk} "
                "bytes; check the file"
            )


# -------------------------------------------------------------------- AnnData


def stream_h5ad(path: Path, num_words: int | None, max_bytes: float | None) -> CountStream:
    """AnnData: the counts ``X``, sparse by rows or dense, columns of ``obs``, names of ``var``."""
    h5py = import_extra("h5py", "files", "the format h5ad")
    open_to_read(path).close()  # says what is wrong with a path
    try:
        file = h5py.File(path, "r", rdcc_nbytes=_CHUNK)
        return _AnnData(path, file, h5py.HardLink, _Budget(path, max_bytes)).stream(num_words)
    except (OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{path}: not a complete .h5ad file ({error})") from error


class _AnnData:
    """An open file.

    Args:
        path: The file.
        file: The same, open.
        hard_link: The class of links to what the file itself holds.
        budget: How much of it may be read.
    """

    def __init__(self, path: Path, file: Any, hard_link: type, budget: _Budget) -> None:
        self.path, self.file, self.hard_link, self.budget = path, file, hard_link, budget

    def _get(self, group: Any, name: str) -> Any:
        """A part of a group, which must be in this file: HDF5 can refer to any file there is.

        Raises:
            FileError: It is elsewhere, or its chunks are too large.
        """
        for part in name.split("/"):
            link = group.get(part, getlink=True)
            if link is None:
                raise KeyError(f"{part} is not in {group.name}")
            if not isinstance(link, self.hard_link):
                raise FileError(f"{self.path}: {name!r} is a link; write the file without links")
            group = group[part]
        if hasattr(group, "keys"):
            return group
        if group.is_virtual or group.external:
            raise FileError(f"{self.path}: {group.name} is in other files; write it into this one")
        if group.chunks and math.prod(group.chunks) * group.dtype.itemsize > _CHUNK:
            raise FileError(
                f"{self.path}: {group.name} has chunks of {group.chunks} values, each more than "
                f"{_CHUNK >> 20} MiB; write the file with smaller ones"
            )
        return group

    def stream(self, num_words: int | None) -> CountStream:
        """The counts, and what is known of them."""
        x = self._get(self.file, "X")
        kind = _text(x.attrs.get("encoding-type", "array"))
        sparse = hasattr(x, "keys")
        if sparse and kind != "csr_matrix":
            raise FileError(
                f"{self.path}: X is a {kind}; expected rows, so convert it: adata.X = "
                "adata.X.tocsr(), and write the file again"
            )
        shape = x.attrs["shape"] if sparse else x.shape
        if len(shape) != 2:
            raise FileError(f"{self.path}: X has {len(shape)} dimensions; expected 2")
        num_docs, found_words = (int(size) for size in shape)
        nnz = int(self._get(x, "data").shape[0]) if sparse else num_docs * found_words
        if num_words is not None and num_words != found_words:
            raise FileError(
                f"{self.path}: X has {found_words} columns, the vocabulary {num_words} words"
            )
        vocabulary = self._index("var")
        check_size(self.path, num_docs, found_words, nnz, len(vocabulary or ()))
        self.budget.check(num_docs, nnz)
        pieces = self._sparse(x, num_docs, found_words) if sparse else self._dense(x)
        metadata = self._columns("obs", num_docs)
        return CountStream(pieces, num_docs, found_words, vocabulary, metadata)

    def _sparse(self, x: Any, num_docs: int, num_words: int) -> Iterator[Entries]:
        offsets = self._array(self._get(x, "indptr")).astype(np.int64)
        data, indices = self._get(x, "data"), self._get(x, "indices")
        nnz = int(data.shape[0])
        if (
            offsets.shape != (num_docs + 1,)
            or indices.shape != (nnz,)
            or (np.diff(offsets, prepend=0) < 0).any()
            or offsets[0] != 0
            or offsets[-1] != nnz
        ):
            raise FileError(
                f"{self.path}: X's indptr must go from 0 to its {nnz} entries in {num_docs} steps, "
                "with as many indices; is the file complete?"
            )
        for start in range(0, nnz, _ENTRIES):
            stop = min(start + _ENTRIES, nnz)
            words = self._part(indices, start, stop).astype(np.int64)
            if ((words < 0) | (words >= num_words)).any():
                raise FileError(f"{self.path}: X has indices that are not below {num_words}")
            rows = np.searchsorted(offsets, np.arange(start, stop), "right") - 1
            counts = self._part(data, start, stop)
            # The last document may go on in the next part.
            yield Entries(int(rows[-1]), rows, words, counts)

    def _dense(self, x: Any) -> Iterator[Entries]:
        num_rows = max(1, _ENTRIES // max(1, x.shape[1]))
        for start in range(0, x.shape[0], num_rows):
            block = self._part(x, start, min(start + num_rows, x.shape[0]))
            rows, words = np.nonzero(block)
            yield Entries(start + len(block), start + rows, words, block[rows, words])

    def _part(self, dataset: Any, start: int, stop: int) -> NDArray[Any]:
        if dataset.dtype.kind not in "biuf":
            raise FileError(f"{self.path}: {dataset.name} must hold numbers, got {dataset.dtype}")
        try:
            part: NDArray[Any] = dataset[start:stop]
            return part
        except OSError as error:
            raise FileError(f"{self.path}: cannot be read, is it complete? ({error})") from error

    def _array(self, dataset: Any) -> NDArray[Any]:
        """All of an array, texts as strings."""
        size, what = dataset.size * max(dataset.dtype.itemsize, 1), f"the values of {dataset.name}"
        self.budget.take(size, what)
        if dataset.dtype.kind not in "OS" or dataset.ndim != 1:
            array: NDArray[Any] = dataset[()]
            return array
        texts = np.empty(dataset.shape, object)
        step = max(_TEXTS, _CHUNK // self.budget.on_disk)  # a text is at most the file
        for start in range(0, dataset.size, step):
            part = dataset.asstr()[start : start + step]
            self.budget.take(sum(map(len, part)), what)
            texts[start : start + step] = part
        return texts

    def _index(self, table: str) -> list[str] | None:
        """The names of the rows of a table."""
        group = self._get(self.file, table)
        name = _text(group.attrs.get("_index", "_index"))
        if name not in group:
            return None
        return [str(value) for value in self._values(group, name)]

    def _columns(self, table: str, num_docs: int) -> dict[str, Any]:
        """The columns of a table, and its index as ``id``."""
        group = self._get(self.file, table)
        columns: dict[str, Any] = {}
        index = self._index(table)
        if index is not None:
            columns["id"] = index
        for name in map(_text, group.attrs.get("column-order", ())):
            columns[name] = self._column(self._get(group, name))
        for name, values in columns.items():
            if len(values) != num_docs:
                raise FileError(
                    f"{self.path}: {table} has {len(values)} values of {name!r} for {num_docs} "
                    "documents"
                )
        return columns

    def _column(self, column: Any) -> Any:
        if not hasattr(column, "keys"):
            return self._array(column)
        if "categories" in column:
            codes, names = self._values(column, "codes"), self._values(column, "categories")
            if codes.dtype.kind not in "iu" or (codes >= len(names)).any():
                raise FileError(f"{self.path}: {column.name} has codes without a category")
            return [names[code] if code >= 0 else None for code in codes.tolist()]
        values, missing = self._values(column, "values"), self._values(column, "mask")
        if values.shape != missing.shape:
            raise FileError(f"{self.path}: {column.name} has a mask of another length")
        pairs = zip(values.tolist(), missing.tolist(), strict=True)
        return [None if absent else value for value, absent in pairs]

    def _values(self, group: Any, name: str) -> NDArray[Any]:
        return self._array(self._get(group, name))


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


# -------------------------------------------------------------------- Parquet


def stream_parquet(path: Path, num_words: int | None, max_bytes: float | None) -> CountStream:
    """Parquet: a document a row, with a list ``words`` and a list ``counts`` as long.

    The words are strings, or columns from 0. Without ``counts`` every word counts once for each
    time that it is listed. All other columns are metadata.
    """
    with _opened(path, max_bytes) as file:
        return file.stream(num_words)


def iterate_parquet(
    path: Path, text_field: str | None, max_bytes: float | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the rows of a Parquet file of texts, each with its place in the file.

    Args:
        path: The file.
        text_field: The column of the texts. Defaults to ``text``, or to the only column, which is
            then called ``text``.
        max_bytes: As for ``read_corpus``.

    Raises:
        FileError: The file is damaged, too large, or has no such column.
    """
    with _opened(path, max_bytes) as file:
        yield from file.records(text_field, max_bytes)


def has_counts(path: Path) -> bool:
    """Whether a Parquet file holds counted words, in a column ``words``, and not texts."""
    with _opened(path, None) as file:
        return file.has_counts


@contextmanager
def _opened(path: Path, max_bytes: float | None) -> Iterator[_Parquet]:
    """An open Parquet file, whose damages are told as errors of the file."""
    parquet = import_extra("pyarrow.parquet", "files", "the format parquet")
    arrow = import_extra("pyarrow", "files", "the format parquet")
    open_to_read(path).close()  # says what is wrong with a path
    try:
        # Texts that repeat are read once: a short file may repeat a long one a million times.
        schema = parquet.ParquetFile(path).schema
        columns = (schema.column(i) for i in range(len(schema.names)))
        texts = [c.path for c in columns if c.physical_type == "BYTE_ARRAY"]
        flat = [name for name in texts if "." not in name or name.startswith("words.")]
        file = parquet.ParquetFile(
            path, read_dictionary=flat, pre_buffer=False, buffer_size=_BUFFER
        )
        yield _Parquet(path, file, arrow, _Budget(path, max_bytes))
    except (OSError, ValueError, arrow.ArrowException) as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{path}: not a complete Parquet file ({error})") from error


class _Parquet:
    """An open file.

    Args:
        path: The file.
        file: The same, open.
        arrow: The module of its reader.
        budget: How much of it may be read.
    """

    def __init__(self, path: Path, file: Any, arrow: Any, budget: _Budget) -> None:
        self.path, self.file, self.arrow, self.budget = path, file, arrow, budget
        self.names = list(file.schema_arrow.names)
        if twice := [name for name, times in Counter(self.names).items() if times > 1]:
            raise FileError(
                f"{path}: columns must have different names, got {listed(twice)} twice; rename or "
                "remove one"
            )
        self.metadata: dict[str, list[Any]] = {
            name: [] for name in self.names if name not in ("words", "counts")
        }

    @property
    def has_counts(self) -> bool:
        """Whether there are lists ``words``, or ``words`` of another type but no ``text``."""
        if "words" not in self.names:
            return False
        kind = self.file.schema_arrow.field("words").type
        return "text" not in self.names or self._is_list(kind)

    def _is_list(self, kind: Any) -> bool:
        return hasattr(kind, "value_type") and not self.arrow.types.is_dictionary(kind)

    def records(
        self, text_field: str | None, max_bytes: float | None
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """The rows, each with its place; see ``iterate_parquet``."""
        names = list(self.names)
        text = "text" if text_field is None else text_field
        if text not in names:
            if text_field is not None or len(names) != 1:
                raise FileError(
                    f"{self.path}: expected a column {text!r} of texts, or a column 'words' of "
                    f"lists of counted words; the columns are {listed(names)}; choose one of "
                    "texts by text_field"
                )
            names = [text]
        texts = self.budget
        if max_bytes == math.inf:  # they are read twice, and not held
            texts = _Budget(self.path, max_bytes, held=False)
        announced = self._check_sizes(self.names[names.index(text)], texts)
        size = announced // max(1, self.file.metadata.num_rows)
        num_rows = max(1, min(_ROWS, _TEXT_BYTES // (size + 1)))
        for i, row in enumerate(self._rows(names.index(text), num_rows), 1):
            record = dict(zip(names, row, strict=True))
            announced -= len(record[text]) if isinstance(record[text], str) else 0
            if announced < 0:  # repetitions, of which the file holds one
                texts.take(-announced, "the texts")
                announced = 0
            yield f"row {i}", record

    def _rows(self, text: int, num_rows: int) -> Iterator[tuple[Any, ...]]:
        """The values of each row, of which all but the text stay in memory."""
        for batch in self._batches(self.names, num_rows):
            columns = [self._texts(column, i != text) for i, column in enumerate(batch.columns)]
            yield from zip(*columns, strict=True)

    def stream(self, num_words: int | None) -> CountStream:
        """The counts, and what is known of them."""
        self._check_sizes()
        kind = self.file.schema_arrow.field("words").type
        types = self.arrow.types
        if not self._is_list(kind):
            raise FileError(f"{self.path}: 'words' must be lists of words or columns, got {kind}")
        values, vocabulary = kind.value_type, None
        if types.is_dictionary(values) or "string" in str(values):
            words: set[str] = set()
            for batch in self._batches(["words"]):
                words.update(self._texts(batch.column(0).flatten().unique()))
            if None in words:
                raise FileError(f"{self.path}: a word of 'words' is missing")
            vocabulary = sorted(words)
            num_words = len(vocabulary)
        elif not types.is_integer(values):
            raise FileError(f"{self.path}: 'words' must be lists of words or columns, got {kind}")
        num_docs = self.file.metadata.num_rows
        pieces = self._pieces(vocabulary, num_words)
        return CountStream(pieces, num_docs, num_words, vocabulary, self.metadata)

    def _check_sizes(self, text: str | None = None, texts: _Budget | None = None) -> int:
        """Refuses a file that would take all memory or time.

        Args:
            text: Name of the column of texts, if any.
            texts: How much of them may be read.

        Returns:
            The bytes of the texts.
        """
        about = self.file.metadata
        entries = values = size = 0
        for group in map(about.row_group, range(about.num_row_groups)):
            for column in map(group.column, range(group.num_columns)):
                if texts is not None and column.path_in_schema == text:
                    size += column.total_uncompressed_size
                    texts.take(column.total_uncompressed_size, "the texts")
                    continue
                self.budget.take(column.total_uncompressed_size, "the values")
                if column.path_in_schema.startswith("words."):
                    entries += column.num_values
                elif not column.path_in_schema.startswith("counts."):
                    values += column.num_values
        self.budget.check(about.num_rows, entries)
        check_proportion(self.path, values, "values")
        return size

    def _batches(self, columns: list[str], num_rows: int = _ROWS) -> Iterator[Any]:
        try:
            yield from self.file.iter_batches(num_rows, columns=columns)
        except (OSError, ValueError, self.arrow.ArrowException) as error:
            raise FileError(f"{self.path}: cannot be read, is it complete? ({error})") from error

    def _texts(self, column: Any, held: bool = True) -> list[Any]:
        """The values of a column, of which those that repeat are the same objects.

        Args:
            column: The column.
            held: Whether they stay in memory.
        """
        indices = values = column
        if self.arrow.types.is_dictionary(column.type):
            indices = column.indices
            different = indices.unique()
            values = column.dictionary.take(different)
        if held:
            self.budget.take(values.nbytes, "the values")
        if values is column:
            return list(column.to_pylist())
        texts = dict(zip(different.to_pylist(), values.to_pylist(), strict=True))
        return [texts[i] for i in indices.to_pylist()]

    def _pieces(self, vocabulary: list[str] | None, num_words: int | None) -> Iterator[Entries]:
        column = {word: i for i, word in enumerate(vocabulary or ())}
        num_docs = 0
        for batch in self._batches(self.names):
            for name, values in self.metadata.items():
                values += self._texts(batch.column(name))
            lists = batch.column("words")
            sizes = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
            flat = lists.flatten()
            if vocabulary is None and flat.null_count:
                raise FileError(f"{self.path}: a word of 'words' is missing")
            if vocabulary is not None:
                place = np.array([column.get(w, -1) for w in flat.dictionary.to_pylist()], np.int64)
                words = place[flat.indices.to_numpy(zero_copy_only=False)]
            else:
                words = flat.to_numpy(zero_copy_only=False).astype(np.int64)
            if words.size and (words.min() < 0 or words.max() >= (num_words or np.inf)):
                raise FileError(f"{self.path}: 'words' must be columns from 0 to {num_words}")
            rows = num_docs + np.repeat(np.arange(len(sizes)), sizes)
            num_docs += len(sizes)
            yield Entries(num_docs, rows, words, self._counts(batch, sizes, words.size))

    def _counts(self, batch: Any, sizes: NDArray[Any], nnz: int) -> NDArray[Any]:
        if "counts" not in self.names:
            return np.ones(nnz, np.int64)
        lists = batch.column("counts")
        if not hasattr(lists, "value_lengths"):
            raise FileError(f"{self.path}: 'counts' must be lists, got {lists.type}")
        theirs = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        flat = lists.flatten()
        if (theirs != sizes).any() or flat.null_count:
            raise FileError(f"{self.path}: 'counts' must be as many as 'words' in each document")
        if not (self.arrow.types.is_integer(flat.type) or self.arrow.types.is_floating(flat.type)):
            raise FileError(f"{self.path}: 'counts' must be numbers, got {flat.type}")
        counts: NDArray[Any] = flat.to_numpy(zero_copy_only=False)
        return counts


#: Streams by format, as ``COUNT_STREAMS``.
TABLE_STREAMS = {"h5ad": stream_h5ad, "parquet": stream_parquet}
