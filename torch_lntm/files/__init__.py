"""Files: reading with a bound and with errors that say where, writing whole or not at all."""

from torch_lntm.files.arrays import checked_header, read_arrays, write_arrays
from torch_lntm.files.reading import (
    at_line,
    excerpt,
    iterate_lines,
    open_to_read,
    read_bytes,
    read_lines,
    read_pieces,
    read_text,
    read_text_pieces,
    readable_bytes,
)
from torch_lntm.files.writing import atomic_folder, atomic_write, unwritable, write_lines

__all__ = [
    "at_line",
    "atomic_folder",
    "atomic_write",
    "checked_header",
    "excerpt",
    "iterate_lines",
    "open_to_read",
    "read_arrays",
    "read_bytes",
    "read_lines",
    "read_pieces",
    "read_text",
    "read_text_pieces",
    "readable_bytes",
    "unwritable",
    "write_arrays",
    "write_lines",
]
