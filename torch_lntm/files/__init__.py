"""Files: bounded reading with precise errors, and atomic writing."""

from torch_lntm.files.arrays import read_arrays, read_header, write_arrays
from torch_lntm.files.reading import (
    at_line,
    excerpt,
    iterate_lines,
    open_to_read,
    read_bytes,
    read_consistent,
    read_lines,
    read_text,
    readable_bytes,
    unpacked_bytes,
)
from torch_lntm.files.writing import (
    as_json,
    as_lines,
    atomic_folder,
    atomic_write,
    make_folder,
    path_errors,
    resolve_link,
    shortened,
    try_lock,
)

__all__ = [
    "as_json",
    "as_lines",
    "at_line",
    "atomic_folder",
    "atomic_write",
    "excerpt",
    "iterate_lines",
    "make_folder",
    "open_to_read",
    "path_errors",
    "read_arrays",
    "read_bytes",
    "read_consistent",
    "read_header",
    "read_lines",
    "read_text",
    "readable_bytes",
    "resolve_link",
    "shortened",
    "try_lock",
    "unpacked_bytes",
    "write_arrays",
]
