"""The reader of Parquet files with texts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from torch_lntm.corpus.metadata import listed
from torch_lntm.corpus.readers.texts import Options, Record
from torch_lntm.errors import FileError
from torch_lntm.files.reading import read_errors

#: Rows of a Parquet file per reading step.
_ROWS = 1 << 12


def read_parquet(path: Path, options: Options) -> Iterator[Record]:
    """Yields a document per row of a Parquet file, or of a folder of them in order of their names.

    A few rows at a time are in memory.
    """
    import pyarrow.parquet as pq

    files = sorted(path.glob("[!.]*.parquet")) if path.is_dir() else [path]
    names = None
    for file in files:
        with read_errors(file, "not a complete Parquet file", Exception):
            parquet = pq.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False)
            own = parquet.schema_arrow.names
            names = names or own
            if own != names or len({*own}) < len(own):
                raise FileError(
                    f"{file}: has the columns {listed(own)}; expected different names, which are "
                    f"those of the first file: {listed(names)}"
                )
            place = "" if file == path else f"{file.name}, "
            batches = (batch.to_pylist() for batch in parquet.iter_batches(_ROWS))
            for number, record in enumerate(chain.from_iterable(batches), 1):
                yield f"{place}row {number}", record
