"""Readers of binary tables: AnnData of word counts, Parquet of word counts or texts."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torch_lntm.corpus.metadata import listed
from torch_lntm.corpus.readers.counts import CountStream, Entries, check_size
from torch_lntm.errors import FileError, import_extra
from torch_lntm.files import check_proportion, open_to_read, readable_bytes, unpacked_bytes

#: Entries of a sparse matrix, or numbers of a dense matrix, per reading step.
_ENTRIES = 1 << 20
_ROWS = 1 << 14
#: Bytes of a Parquet file read ahead. By default pyarrow reads whole row groups ahead.
_BUFFER = 1 << 20
#: Approximate bytes of texts per reading step.
_TEXT_BYTES = 32 << 20

#: Maximum bytes of an HDF5 chunk, because HDF5 unpacks complete chunks.
_CHUNK = 128 << 20
#: Minimum number of texts per reading step. HDF5 knows the length of a text only after reading.
_TEXTS = 64


class _Budget:
    """Remaining number of bytes to read from a file.

    A hostile file can announce or unpack to far more than its size.

    Args:
        path: The file or folder.
        max_bytes: Maximum number of bytes of metadata. Defaults to the bound for unpacking a file
            of this size. The bound also replaces infinity.
        files: Files of the folder. Defaults to the file.
        in_memory: The content stays in memory, so the available memory is a further bound.
    """

    def __init__(
        self,
        path: Path,
        max_bytes: float | None,
        files: Sequence[Path] = (),
        *,
        in_memory: bool = True,
    ) -> None:
        self.path = path
        self.on_disk = sum(file.stat().st_size for file in files or (path,))
        unpacked = unpacked_bytes(self.on_disk)
        self.num_entries = unpacked // 6  # an entry takes many bytes in use
        is_finite = max_bytes not in (None, math.inf)
        self.left = max_bytes if is_finite and max_bytes else unpacked
        if in_memory:
            self.left = min(self.left, readable_bytes())

    def take(self, size: int, what: str) -> None:
        """Subtracts the size of a part.

        Args:
            size: Number of bytes.
            what: Name of the part for errors, in the plural.

        Raises:
            FileError: The part exceeds the remaining bytes.
        """
        self.left -= size
        if self.left < 0:
            raise FileError(
                f"{self.path}: {what} take {size} bytes, more than is allowed; check the file"
            )

    def check(self, num_docs: int, num_entries: int) -> None:
        """Compares numbers of documents and entries with the size of the file.

        Raises:
            FileError: A number is out of proportion.
        """
        check_proportion(self.path, num_docs, "documents", 4)
        if num_entries > self.num_entries:
            raise FileError(
                f"{self.path}: {num_entries} entries are out of proportion to its {self.on_disk} "
                "bytes; check the file"
            )


# -------------------------------------------------------------------- AnnData


def stream_h5ad(path: Path, num_words: int | None, max_bytes: float | None) -> CountStream:
    """Stream of an AnnData file: counts ``X``, metadata ``obs``, words ``var``.

    ``X`` is sparse by rows or dense.
    """
    h5py = import_extra("h5py", "files", "the format h5ad")
    open_to_read(path).close()  # raises clear errors for a wrong path
    try:
        file = h5py.File(path, "r", rdcc_nbytes=_CHUNK)
        return _AnnData(path, file, h5py.HardLink, _Budget(path, max_bytes)).stream(num_words)
    except (OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{path}: not a complete .h5ad file ({error})") from error


class _AnnData:
    """Open AnnData file.

    Args:
        path: Path of the file.
        file: The open ``h5py.File``.
        hard_link: ``h5py.HardLink``, the class of links within the file.
        budget: Bytes left to read.
    """

    def __init__(self, path: Path, file: Any, hard_link: type, budget: _Budget) -> None:
        self.path, self.file, self.hard_link, self.budget = path, file, hard_link, budget

    def _get(self, group: Any, name: str) -> Any:
        """Member of a group, after a check that the data are in this file.

        HDF5 links can refer to any file of the machine.

        Raises:
            FileError: The data are in another file, or the chunks are too large.
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
        """Stream of the counts, with words and metadata."""
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
        num_docs, num_columns = (int(size) for size in shape)
        nnz = int(self._get(x, "data").shape[0]) if sparse else num_docs * num_columns
        if num_words is not None and num_words != num_columns:
            raise FileError(
                f"{self.path}: X has {num_columns} columns, the vocabulary {num_words} words"
            )
        vocabulary = self._index("var")
        check_size(self.path, num_docs, num_columns, nnz, len(vocabulary or ()))
        self.budget.check(num_docs, nnz)
        pieces = self._sparse(x, num_docs, num_columns) if sparse else self._dense(x)
        metadata = self._columns("obs", num_docs)
        return CountStream(pieces, num_docs, num_columns, vocabulary, metadata)

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
            # The last document may continue in the next part.
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
        """Complete array, with texts as strings."""
        size, what = dataset.size * max(dataset.dtype.itemsize, 1), f"the values of {dataset.name}"
        self.budget.take(size, what)
        if dataset.dtype.kind not in "OS" or dataset.ndim != 1:
            array: NDArray[Any] = dataset[()]
            return array
        texts = np.empty(dataset.shape, object)
        step = max(_TEXTS, _CHUNK // self.budget.on_disk)  # a text is at most as long as the file
        for start in range(0, dataset.size, step):
            part = dataset.asstr()[start : start + step]
            self.budget.take(sum(map(len, part)), what)
            texts[start : start + step] = part
        return texts

    def _index(self, table: str) -> list[str] | None:
        """Names of the rows of a table; ``None`` if missing."""
        group = self._get(self.file, table)
        name = _text(group.attrs.get("_index", "_index"))
        if name not in group:
            return None
        return [str(value) for value in self._values(group, name)]

    def _columns(self, table: str, num_docs: int) -> dict[str, Any]:
        """Columns of a table, with the index as ``id``."""
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
        values, mask = self._values(column, "values"), self._values(column, "mask")
        if values.shape != mask.shape:
            raise FileError(f"{self.path}: {column.name} has a mask of another length")
        pairs = zip(values.tolist(), mask.tolist(), strict=True)
        return [None if is_missing else value for value, is_missing in pairs]

    def _values(self, group: Any, name: str) -> NDArray[Any]:
        return self._array(self._get(group, name))


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


# -------------------------------------------------------------------- Parquet


def stream_parquet(path: Path, num_words: int | None, max_bytes: float | None) -> CountStream:
    """Stream of a Parquet file, or of a folder of Parquet files, with a row per document.

    The column ``words`` holds lists of strings, or of column numbers from 0. The column ``counts``
    holds lists of equal length; without it, every listed word counts once. Further columns are
    metadata. Memory holds a part of a row group, the distinct words and the metadata.
    """
    return _Parquet(path, max_bytes).stream(num_words)


def iterate_parquet(
    path: Path, text_field: str | None, max_bytes: float | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the rows of a Parquet file, or of a folder of files, of texts, each with its place.

    Args:
        path: The file or folder.
        text_field: Column of the texts. Defaults to ``text``. A single column of another name is
            yielded as ``text``.
        max_bytes: As for ``read_corpus``.

    Raises:
        FileError: A file is damaged or too large, or lacks the column.
    """
    yield from _Parquet(path, max_bytes).records(text_field)


def has_counts(path: Path) -> bool:
    """Whether a Parquet file or folder holds counts, in a column ``words``, rather than texts."""
    return _Parquet(path, None).has_counts


def _parquet_files(path: Path) -> list[Path]:
    """The file, or the files ``*.parquet`` of a folder, sorted by name.

    Raises:
        FileError: The folder has none.
    """
    if not path.is_dir():
        return [path]
    files = sorted(path.glob("[!.]*.parquet"))
    if not files:
        raise FileError(f"{path}: expected a folder of .parquet files, found none")
    return files


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Context with an open ``pyarrow.parquet.ParquetFile``. pyarrow's errors become FileError."""
    parquet = import_extra("pyarrow.parquet", "files", "the format parquet")
    open_to_read(path).close()  # raises clear errors for a wrong path
    with _incomplete(path):
        # Dictionaries hold a repeated text once. A short file can repeat a long text very often.
        schema = parquet.ParquetFile(path).schema
        columns = (schema.column(i) for i in range(len(schema.names)))
        texts = [c.path for c in columns if c.physical_type == "BYTE_ARRAY"]
        flat = [name for name in texts if "." not in name or name.startswith("words.")]
        with parquet.ParquetFile(
            path, read_dictionary=flat, pre_buffer=False, buffer_size=_BUFFER
        ) as file:
            yield file


@contextmanager
def _incomplete(path: Path) -> Iterator[None]:
    """Context to convert errors of pyarrow to ``FileError``."""
    arrow = import_extra("pyarrow", "files", "the format parquet")
    try:
        yield
    except (OSError, ValueError, arrow.ArrowException) as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{path}: not a complete Parquet file ({error})") from error


class _Parquet:
    """Parquet file, or a folder of Parquet files with equal columns. One file is open at a time.

    Args:
        path: The file or folder.
        max_bytes: As for ``read_corpus``.
    """

    def __init__(self, path: Path, max_bytes: float | None) -> None:
        self.path, self.files = path, _parquet_files(path)
        self.arrow = import_extra("pyarrow", "files", "the format parquet")
        #: Bytes left to read.
        self.budget = _Budget(path, max_bytes, self.files)
        #: Bytes left of texts, or of lists of words. Conversion reads them in parts.
        self.streamed = self.budget
        if max_bytes == math.inf:
            self.streamed = _Budget(path, max_bytes, self.files, in_memory=False)
        self.num_docs = 0
        self.names: list[str] = []
        self.words: Any = None
        for file in self.files:
            with _opened(file) as opened:
                self._check_columns(file, opened)
        self.metadata: dict[str, list[Any]] = {
            name: [] for name in self.names if name not in ("words", "counts")
        }

    def _check_columns(self, path: Path, file: Any) -> None:
        """Checks the columns of a file, and counts its rows."""
        names = list(file.schema_arrow.names)
        if repeated := [name for name, times in Counter(names).items() if times > 1]:
            raise FileError(
                f"{path}: columns must have different names, got {listed(repeated)} twice; rename "
                "or remove one"
            )
        words: Any = file.schema_arrow.field("words").type if "words" in names else None
        if path == self.files[0]:
            self.names, self.words = names, words
        elif (names, words) != (self.names, self.words):
            raise FileError(
                f"{path}: has the columns {listed(names)}, with words of the type {words}; "
                f"expected {listed(self.names)}, with {self.words}, as in {self.files[0].name}"
            )
        self.num_docs += file.metadata.num_rows

    @property
    def has_counts(self) -> bool:
        """Whether ``words`` holds lists. Its type is irrelevant without a column ``text``."""
        if "words" not in self.names:
            return False
        return "text" not in self.names or self._is_list(self.words)

    def _is_list(self, kind: Any) -> bool:
        return hasattr(kind, "value_type") and not self.arrow.types.is_dictionary(kind)

    def records(self, text_field: str | None) -> Iterator[tuple[str, dict[str, Any]]]:
        """Rows with their places; see ``iterate_parquet``."""
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
        announced = self._check_sizes(self.names[names.index(text)])
        size = announced // max(1, self.num_docs)
        num_rows = max(1, min(_ROWS, _TEXT_BYTES // (size + 1)))
        for file in self.files:
            place = "" if file == self.path else f"{file.name}, "
            for i, row in enumerate(self._rows(file, names.index(text), num_rows), 1):
                record = dict(zip(names, row, strict=True))
                announced -= len(record[text]) if isinstance(record[text], str) else 0
                if announced < 0:  # texts that a file holds once and repeats
                    self.streamed.take(-announced, "the texts")
                    announced = 0
                yield f"{place}row {i}", record

    def _rows(self, file: Path, text: int, num_rows: int) -> Iterator[tuple[Any, ...]]:
        """Values of each row of a file. All values except the text stay in memory."""
        for batch in self._batches(file, self.names, num_rows):
            with _incomplete(file):  # for example a text in another encoding
                columns = [self._texts(column, i != text) for i, column in enumerate(batch.columns)]
            yield from zip(*columns, strict=True)

    def stream(self, num_words: int | None) -> CountStream:
        """Stream of the counts, with words and metadata."""
        self._check_sizes()
        kind, types = self.words, self.arrow.types
        if not self._is_list(kind):
            raise FileError(f"{self.path}: 'words' must be lists of words or columns, got {kind}")
        values, vocabulary = kind.value_type, None
        if types.is_dictionary(values) or "string" in str(values):
            words: set[str] = set()
            for file in self.files:
                for batch in self._batches(file, ["words"]):
                    words.update(self._texts(batch.column(0).flatten().unique()))
            if None in words:
                raise FileError(f"{self.path}: a word of 'words' is missing")
            vocabulary = sorted(words)
            num_words = len(vocabulary)
        elif not types.is_integer(values):
            raise FileError(f"{self.path}: 'words' must be lists of words or columns, got {kind}")
        pieces = self._pieces(vocabulary, num_words)
        return CountStream(pieces, self.num_docs, num_words, vocabulary, self.metadata)

    def _check_sizes(self, text: str | None = None) -> int:
        """Compares the announced sizes with the budget and the sizes of the files.

        Args:
            text: Column of the texts, if any.

        Returns:
            Announced number of bytes of the texts.

        Raises:
            FileError: A size is too large.
        """
        entries = size = 0
        for path in self.files:
            with _opened(path) as file:
                about = file.metadata
            check_proportion(path, about.num_rows, "documents", 4)
            values = 0
            for group in map(about.row_group, range(about.num_row_groups)):
                for column in map(group.column, range(group.num_columns)):
                    name, num_bytes = column.path_in_schema, column.total_uncompressed_size
                    if name == text:
                        size += num_bytes
                        self.streamed.take(num_bytes, "the texts")
                        continue
                    in_parts = text is None and name.startswith(("words.", "counts."))
                    (self.streamed if in_parts else self.budget).take(num_bytes, "the values")
                    if name.startswith("words."):
                        entries += column.num_values
                    elif not name.startswith("counts."):
                        values += column.num_values
            check_proportion(path, values, "values")
        self.budget.check(self.num_docs, entries)
        return size

    def _batches(
        self, path: Path, columns: list[str], num_rows: int | None = None
    ) -> Iterator[Any]:
        """Yields rows of a file, at most ``num_rows`` at a time. Memory holds a row group."""
        with _opened(path) as file:
            try:
                for group in range(file.num_row_groups):
                    # Rows of several groups would be in memory together.
                    yield from file.iter_batches(num_rows or _ROWS, [group], columns)
            except (OSError, ValueError, self.arrow.ArrowException) as error:
                raise FileError(f"{path}: cannot be read, is it complete? ({error})") from error

    def _texts(self, column: Any, in_memory: bool = True) -> list[Any]:
        """Values of a column. Repeated texts are a single Python object.

        Args:
            column: The column.
            in_memory: Whether the values stay in memory.
        """
        indices = values = column
        if self.arrow.types.is_dictionary(column.type):
            indices = column.indices
            distinct = indices.unique()
            values = column.dictionary.take(distinct)
        if in_memory:
            self.budget.take(values.nbytes, "the values")
        if values is column:
            return list(column.to_pylist())
        texts = dict(zip(distinct.to_pylist(), values.to_pylist(), strict=True))
        return [texts[i] for i in indices.to_pylist()]

    def _pieces(self, vocabulary: list[str] | None, num_words: int | None) -> Iterator[Entries]:
        column = {word: i for i, word in enumerate(vocabulary or ())}
        num_docs = 0
        batches = (self._batches(file, self.names) for file in self.files)
        for batch in itertools.chain.from_iterable(batches):
            for name, values in self.metadata.items():
                values += self._texts(batch.column(name))
            lists = batch.column("words")
            sizes = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
            flat = lists.flatten()
            if vocabulary is None and flat.null_count:
                raise FileError(f"{self.path}: a word of 'words' is missing")
            if vocabulary is not None:
                columns = np.array(
                    [column.get(word, -1) for word in flat.dictionary.to_pylist()], np.int64
                )
                words = columns[flat.indices.to_numpy(zero_copy_only=False)]
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
        num_counts = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        flat = lists.flatten()
        if (num_counts != sizes).any() or flat.null_count:
            raise FileError(f"{self.path}: 'counts' must be as many as 'words' in each document")
        if not (self.arrow.types.is_integer(flat.type) or self.arrow.types.is_floating(flat.type)):
            raise FileError(f"{self.path}: 'counts' must be numbers, got {flat.type}")
        counts: NDArray[Any] = flat.to_numpy(zero_copy_only=False)
        return counts


#: Functions by format; see ``COUNT_STREAMS``.
TABLE_STREAMS = {"h5ad": stream_h5ad, "parquet": stream_parquet}
