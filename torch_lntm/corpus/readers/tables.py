"""Readers of Parquet files that hold word counts or texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from torch_lntm.corpus.corpus import Corpus
from torch_lntm.corpus.metadata import listed, typed
from torch_lntm.corpus.readers.counts import corpus_of
from torch_lntm.corpus.readers.texts import Options, Record
from torch_lntm.errors import FileError
from torch_lntm.files.reading import byte_limit, open_to_read, read_errors, too_large

#: Rows of a Parquet file per reading step.
_ROWS = 1 << 12
#: Bytes of memory of a row of a table beside its contents.
_ROW_BYTES = 100


def holds_counts(path: Path) -> bool:
    """Whether Parquet files have lists in ``words``, or any ``words`` but no column ``text``."""
    schema = _schema(path)
    has_words = "words" in schema.names
    return has_words and ("text" not in schema.names or "list<" in str(schema.field("words").type))


def read_parquet_texts(path: Path, options: Options) -> Iterator[Record]:
    """A document per row of Parquet files."""
    names, text = list(_schema(path).names), options.text_field or "text"
    if text not in names:
        raise FileError(
            f"{path}: expected a column {text!r} of texts, or a column 'words' of lists of counted "
            f"words; the columns are {listed(names)}; choose one of texts by text_field"
        )
    numbers: Counter[Path] = Counter()
    left = _limit(path, options)
    for file, columns in _batches(path, options):
        place = "" if file == path else f"{file.name}, "
        for row in zip(*map(_values, columns.values()), strict=True):
            numbers[file] += 1
            record = dict(zip(names, row, strict=True))
            left -= len(record[text]) if isinstance(record[text], str) else 0
            if left < 0:  # a short file can repeat a long text often
                raise too_large(path, _limit(path, options))
            yield f"{place}row {numbers[file]}", record


def read_parquet_counts(path: Path, options: Options) -> Corpus:
    """A document per row of Parquet files, with the lists ``words`` and perhaps ``counts``."""
    import pyarrow as pa
    import pyarrow.compute as pc

    schema = _schema(path)
    found: dict[str, int] = {}
    for name, kinds in (("words", ("string", "int")), ("counts", ("int", "float", "double"))):
        kind = str(schema.field(name).type) if name in schema.names else f"list<{kinds[0]}>"
        if "list<" not in kind or not any(each in kind for each in kinds):
            raise FileError(f"{path}: {name!r} must be lists of {' or '.join(kinds)}, got {kind}")
    has_strings = "string" in str(schema.field("words").type)
    pieces, tables, num_docs = [], [], 0
    for _, batch in _batches(path, options):
        lists = batch.pop("words")
        counted = batch.pop("counts", lists)
        rows, words = pc.list_parent_indices(lists), _flat(lists)
        numbers = pa.array(np.ones(len(words), np.int8)) if counted is lists else _flat(counted)
        same = counted is lists or pc.list_parent_indices(counted).equals(rows)
        if words.null_count or numbers.null_count or not same:
            raise FileError(
                f"{path}: 'words' and 'counts' must be complete, and equally many in each document"
            )
        if has_strings:
            codes = words.dictionary_encode()
            at = [found.setdefault(word, len(found)) for word in codes.dictionary.to_pylist()]
            words = np.array(at, np.int64)[np.asarray(codes.indices)]
        numbers, words = np.asarray(numbers), np.asarray(words).astype(np.int64)
        pieces.append((num_docs + np.asarray(rows), words, numbers))
        columns = {name: _values(column) for name, column in batch.items()}
        tables.append(pd.DataFrame(columns, range(num_docs, num_docs + len(lists)), dtype=object))
        num_docs += len(lists)
    vocabulary = tuple(sorted(found)) if has_strings else None
    if vocabulary is not None:
        place = np.argsort([found[word] for word in vocabulary])
        pieces = [(rows, place[words], numbers) for rows, words, numbers in pieces]
    num_words = options.num_words if vocabulary is None else len(vocabulary)
    confirmed = num_words is not None
    corpus = corpus_of(path, pieces, num_docs, num_words, has_vocabulary=confirmed)
    table = pd.concat(tables) if tables else pd.DataFrame()
    return replace(corpus, vocabulary=vocabulary, table=typed(table.items(), table.index))


def _files(path: Path) -> list[Path]:
    files = sorted(path.glob("[!.]*.parquet")) if path.is_dir() else [path]
    if not files:
        raise FileError(f"{path}: expected a folder of .parquet files, found none")
    return files


def _limit(path: Path, options: Options) -> float:
    on_disk = sum(file.stat().st_size for file in _files(path))
    return byte_limit(on_disk, options.max_bytes, packed=True)


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    import pyarrow.parquet as pq

    open_to_read(file).close()  # raises clear errors for a wrong path
    with read_errors(file, "not a complete Parquet file", Exception):
        # Dictionaries hold a repeated text once.
        texts = [field.name for field in pq.read_schema(file) if str(field.type) == "string"]
        yield pq.ParquetFile(file, read_dictionary=texts, buffer_size=1 << 20, pre_buffer=False)


def _schema(path: Path) -> Any:
    with _opened(_files(path)[0]) as parquet:
        return parquet.schema_arrow


def _batches(path: Path, options: Options) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yields the columns a few rows at a time, with their file, so that memory stays bounded.

    Only the metadata of row groups are consulted, because pyarrow aborts the process when the
    metadata of a column are damaged.
    """
    left, names = _limit(path, options), _schema(path).names
    for file in _files(path):
        with _opened(file) as parquet:
            own = parquet.schema_arrow.names
            if own != names or len({*own}) < len(own):
                raise FileError(
                    f"{file}: has the columns {listed(own)}; expected different names, which are "
                    f"those of the first file: {listed(names)}"
                )
            for group in range(parquet.num_row_groups):
                about = parquet.metadata.row_group(group)
                left -= about.total_byte_size + _ROW_BYTES * about.num_rows
                if left < 0:
                    raise too_large(path, _limit(path, options))
                for batch in parquet.iter_batches(_ROWS, [group]):
                    yield file, dict(zip(own, batch.columns, strict=True))


def _values(column: Any) -> list[Any]:
    """Values of a column, in which repeated texts share one object."""
    if not hasattr(column, "dictionary"):
        return list(column.to_pylist())
    texts = column.dictionary.to_pylist()
    return [None if i is None else texts[i] for i in column.indices.to_pylist()]


def _flat(lists: Any) -> Any:
    """The values of lists, one after another."""
    values = lists.flatten()
    return values.dictionary_decode() if hasattr(values, "dictionary") else values
