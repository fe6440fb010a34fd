"""The reader of Parquet files with texts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch_lntm.corpus.metadata import listed
from torch_lntm.corpus.readers.texts import Options, Record
from torch_lntm.errors import FileError
from torch_lntm.files.reading import byte_limit, open_bytes, read_errors, too_large

#: Rows of a Parquet file per reading step.
_ROWS = 1 << 12
#: Bytes of memory of a row of a table beside its contents.
_ROW_BYTES = 100


def read_parquet(path: Path, options: Options) -> Iterator[Record]:
    """Yields a document per row of a Parquet file, or of a folder of them in order of their names.

    A few rows at a time are in memory. Only the metadata of row groups are consulted, because
    pyarrow aborts the process when the metadata of a column are damaged.
    """
    import pyarrow.parquet as pq

    files = sorted(path.glob("[!.]*.parquet")) if path.is_dir() else [path]
    if not files:
        raise FileError(f"{path}: expected a folder of .parquet files, found none")
    on_disk = sum(file.stat().st_size for file in files)
    limit = of_groups = of_texts = byte_limit(on_disk, options.max_bytes, packed=True)
    text, names = options.text_field or "text", None
    for file in files:
        with open_bytes(file, limit):
            pass  # raises clear errors for a wrong path
        with read_errors(file, "not a complete Parquet file", Exception):
            # Dictionaries hold a repeated text once.
            repeated = [field.name for field in pq.read_schema(file) if str(field.type) == "string"]
            parquet = pq.ParquetFile(
                file, read_dictionary=repeated, buffer_size=1 << 20, pre_buffer=False
            )
            own = parquet.schema_arrow.names
            names = names or own
            if own != names or len({*own}) < len(own):
                raise FileError(
                    f"{file}: has the columns {listed(own)}; expected different names, which are "
                    f"those of the first file: {listed(names)}"
                )
            if text not in names:
                raise FileError(
                    f"{path}: expected a column {text!r} of texts; the columns are "
                    f"{listed(names)}; choose one of texts by text_field, and give counts of words "
                    "to Corpus.from_matrix"
                )
            number, place = 0, "" if file == path else f"{file.name}, "
            for group in range(parquet.num_row_groups):
                about = parquet.metadata.row_group(group)
                of_groups -= about.total_byte_size + _ROW_BYTES * about.num_rows
                if of_groups < 0:
                    raise too_large(path, limit)
                for batch in parquet.iter_batches(_ROWS, [group]):
                    for row in zip(*map(_values, batch.columns), strict=True):
                        number += 1
                        record = dict(zip(names, row, strict=True))
                        of_texts -= len(record[text]) if isinstance(record[text], str) else 0
                        if of_texts < 0:  # a short file can repeat a long text often
                            raise too_large(path, limit)
                        yield f"{place}row {number}", record


def _values(column: Any) -> list[Any]:
    """Values of a column, in which repeated texts share one object."""
    if not hasattr(column, "dictionary"):
        return list(column.to_pylist())
    texts = column.dictionary.to_pylist()
    return [None if i is None else texts[i] for i in column.indices.to_pylist()]
