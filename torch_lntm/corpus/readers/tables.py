"""Readers of word counts in binary tables: AnnData and Parquet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torch_lntm.corpus.readers.counts import CountStream, Entries, check_size
from torch_lntm.errors import FileError, import_extra
from torch_lntm.files import open_to_read, readable_bytes

#: Entries, or numbers of a dense matrix, that are read at once.
_ENTRIES = 1 << 20
_ROWS = 1 << 14


def _refuse_large(path: Path, size: int, max_bytes: float | None, what: str) -> None:
    limit = readable_bytes() if max_bytes is None else max_bytes
    if size > min(limit, readable_bytes()):
        raise FileError(f"{path}: {what} take {size} bytes, more than is allowed; check the file")


# -------------------------------------------------------------------- AnnData


def stream_h5ad(path: Path, num_words: int | None, max_bytes: float | None) -> CountStream:
    """AnnData: the counts ``X``, sparse by rows or dense, columns of ``obs``, names of ``var``."""
    h5py = import_extra("h5py", "files", "the format h5ad")
    open_to_read(path).close()  # says what is wrong with a path
    try:
        file = h5py.File(path, "r")
        return _AnnData(path, file, max_bytes).stream(num_words)
    except (OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{path}: not a complete .h5ad file ({error})") from error


class _AnnData:
    """An open file.

    Args:
        path: The file.
        file: The same, open.
        max_bytes: The most bytes to read of any part but ``X``.
    """

    def __init__(self, path: Path, file: Any, max_bytes: float | None) -> None:
        self.path, self.file, self.max_bytes = path, file, max_bytes

    def stream(self, num_words: int | None) -> CountStream:
        """The counts, and what is known of them."""
        x = self.file["X"]
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
        nnz = int(x["data"].shape[0]) if sparse else num_docs * found_words
        if num_words is not None and num_words != found_words:
            raise FileError(
                f"{self.path}: X has {found_words} columns, the vocabulary {num_words} words"
            )
        vocabulary = self._index("var")
        check_size(self.path, num_docs, found_words, nnz, len(vocabulary or ()))
        pieces = self._sparse(x, num_docs, found_words) if sparse else self._dense(x)
        metadata = self._columns("obs", num_docs)
        return CountStream(pieces, num_docs, found_words, vocabulary, metadata)

    def _sparse(self, x: Any, num_docs: int, num_words: int) -> Iterator[Entries]:
        offsets = self._array(x["indptr"]).astype(np.int64)
        nnz = int(x["data"].shape[0])
        if (
            offsets.shape != (num_docs + 1,)
            or x["indices"].shape != (nnz,)
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
            words = self._part(x["indices"], start, stop).astype(np.int64)
            if ((words < 0) | (words >= num_words)).any():
                raise FileError(f"{self.path}: X has indices that are not below {num_words}")
            rows = np.searchsorted(offsets, np.arange(start, stop), "right") - 1
            counts = self._part(x["data"], start, stop)
            # The last document may go on in the next part.
            yield Entries(int(rows[-1]), rows, words, counts)

    def _dense(self, x: Any) -> Iterator[Entries]:
        num_rows = max(1, _ENTRIES // x.shape[1])
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
        size = dataset.size * max(dataset.dtype.itemsize, 1)
        _refuse_large(self.path, size, self.max_bytes, f"the values of {dataset.name}")
        if dataset.dtype.kind in "OS":
            texts: NDArray[Any] = dataset.asstr()[()]
            return texts
        array: NDArray[Any] = dataset[()]
        return array

    def _index(self, table: str) -> list[str] | None:
        """The names of the rows of a table."""
        group = self.file[table]
        name = _text(group.attrs.get("_index", "_index"))
        return [str(value) for value in self._array(group[name])] if name in group else None

    def _columns(self, table: str, num_docs: int) -> dict[str, Any]:
        """The columns of a table, and its index as ``id``."""
        group = self.file[table]
        columns: dict[str, Any] = {}
        index = self._index(table)
        if index is not None:
            columns["id"] = index
        for name in map(_text, group.attrs.get("column-order", ())):
            columns[name] = self._column(group[name])
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
            codes, names = self._array(column["codes"]), self._array(column["categories"])
            if codes.dtype.kind not in "iu" or (codes >= len(names)).any():
                raise FileError(f"{self.path}: {column.name} has codes without a category")
            return [names[code] if code >= 0 else None for code in codes.tolist()]
        values, missing = self._array(column["values"]), self._array(column["mask"])
        if values.shape != missing.shape:
            raise FileError(f"{self.path}: {column.name} has a mask of another length")
        pairs = zip(values.tolist(), missing.tolist(), strict=True)
        return [None if absent else value for value, absent in pairs]


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


# -------------------------------------------------------------------- Parquet


def stream_parquet(path: Path, num_words: int | None, max_bytes: float | None) -> CountStream:
    """Parquet: a document a row, with a list ``words`` and a list ``counts`` as long.

    The words are strings, or columns from 0. Without ``counts`` every word counts once for each
    time that it is listed. All other columns are metadata.
    """
    parquet = import_extra("pyarrow.parquet", "files", "the format parquet")
    arrow_error = import_extra("pyarrow", "files", "the format parquet").ArrowException
    open_to_read(path).close()  # says what is wrong with a path
    try:
        return _Parquet(path, parquet.ParquetFile(path), arrow_error).stream(num_words)
    except (OSError, arrow_error) as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{path}: not a complete Parquet file ({error})") from error


class _Parquet:
    """An open file.

    Args:
        path: The file.
        file: The same, open.
        error: What its reader raises.
    """

    def __init__(self, path: Path, file: Any, error: type[Exception]) -> None:
        self.path, self.file, self.error = path, file, error
        self.names = list(file.schema_arrow.names)
        self.metadata: dict[str, list[Any]] = {
            name: [] for name in self.names if name not in ("words", "counts")
        }

    def stream(self, num_words: int | None) -> CountStream:
        """The counts, and what is known of them."""
        if "words" not in self.names:
            raise FileError(
                f"{self.path}: expected counted words, in a column of lists 'words', got the "
                f"columns {', '.join(self.names[:20])}; write texts as .jsonl or .csv instead: "
                "data_frame.to_json('posts.jsonl', orient='records', lines=True)"
            )
        kind = str(self.file.schema_arrow.field("words").type)
        vocabulary = None
        if "string" in kind:
            words: set[str] = set()
            for batch in self._batches(["words"]):
                words.update(batch.column(0).flatten().unique().to_pylist())
            if None in words:
                raise FileError(f"{self.path}: a word of 'words' is missing")
            vocabulary = sorted(words)
            num_words = len(vocabulary)
        elif "int" not in kind:
            raise FileError(f"{self.path}: 'words' must be lists of words or columns, got {kind}")
        num_docs = self.file.metadata.num_rows
        pieces = self._pieces(vocabulary, num_words)
        return CountStream(pieces, num_docs, num_words, vocabulary, self.metadata)

    def _batches(self, columns: list[str]) -> Iterator[Any]:
        try:
            yield from self.file.iter_batches(_ROWS, columns=columns)
        except (OSError, self.error) as error:
            raise FileError(f"{self.path}: cannot be read, is it complete? ({error})") from error

    def _pieces(self, vocabulary: list[str] | None, num_words: int | None) -> Iterator[Entries]:
        column = {word: i for i, word in enumerate(vocabulary or ())}
        num_docs = 0
        for batch in self._batches(self.names):
            for name, values in self.metadata.items():
                values += batch.column(name).to_pylist()
            lists = batch.column("words")
            sizes = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
            flat = lists.flatten()
            if vocabulary is not None:
                words = np.fromiter((column[w] for w in flat.to_pylist()), np.int64, len(flat))
            elif flat.null_count:
                raise FileError(f"{self.path}: a word of 'words' is missing")
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
        counts: NDArray[Any] = flat.to_numpy(zero_copy_only=False)
        if counts.dtype.kind not in "biuf":
            raise FileError(f"{self.path}: 'counts' must be numbers, got {flat.type}")
        return counts


#: Streams by format, as ``COUNT_STREAMS``.
TABLE_STREAMS = {"h5ad": stream_h5ad, "parquet": stream_parquet}
