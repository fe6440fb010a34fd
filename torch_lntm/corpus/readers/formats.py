"""The file formats and their readers, and how to register further ones."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torch_lntm.corpus.corpus import Corpus
from torch_lntm.corpus.readers.counts import read_ldac, read_matrix_market, read_npz, read_uci
from torch_lntm.corpus.readers.texts import (
    Options,
    read_csv,
    read_folder,
    read_json,
    read_jsonl,
    read_parquet,
    read_txt,
)
from torch_lntm.corpus.store import is_store, read_store
from torch_lntm.errors import ConfigError, CorpusError, refuse_other_owner


class Format(NamedTuple):
    """A format of files.

    Attributes:
        name: Its name.
        read: The reader: a function of a path and of :class:`Options`.
        holds: ``"texts"`` if the reader yields texts with their fields, ``"counts"`` if it returns
            a corpus.
        suffixes: Endings of the format's files.
    """

    name: str
    read: Callable[[Path, Options], Any]
    holds: Literal["texts", "counts"]
    suffixes: tuple[str, ...] = ()


def read_mapped(path: Path, options: Options) -> Corpus:
    """The corpus of a folder, or one process's part of it."""
    return Corpus(**read_store(path, options.part))


#: All formats by name.
FORMATS: dict[str, Format] = {
    each.name: each
    for each in (
        Format("npz", read_npz, "counts", (".npz",)),
        Format("ldac", read_ldac, "counts", (".ldac", ".dat")),
        Format("uci", read_uci, "counts"),
        Format("mtx", read_matrix_market, "counts", (".mtx", ".mm")),
        Format("parquet", read_parquet, "texts", (".parquet",)),
        Format("store", read_mapped, "counts"),
        Format("txt", read_txt, "texts", (".txt",)),
        Format("jsonl", read_jsonl, "texts", (".jsonl",)),
        Format("json", read_json, "texts", (".json",)),
        Format("csv", read_csv, "texts", (".csv", ".tsv")),
        Format("folder", read_folder, "texts"),
    )
}


def find_format(path: Path, name: str | None = None) -> Format:
    """The format of a name, or else that of a path; see :func:`read_corpus`.

    Raises:
        CorpusError: The path is missing, or its name fits none of the formats.
    """
    if not path.exists():
        raise CorpusError(
            f"{path}: no such file or folder; check the path, or put a text in a list"
        )
    name = format_name(path) if name is None else name
    if name not in FORMATS:
        raise CorpusError(f"{path}: unknown format {name!r}; give one of {', '.join(FORMATS)}")
    return FORMATS[name]


def format_name(path: Path) -> str:
    """Name of the format of a path.

    Raises:
        CorpusError: The path's name fits none of the formats.
    """
    if path.is_dir():
        tables = any(path.glob("*.parquet")) and not any(path.glob("*.txt"))
        return "store" if is_store(path) else "parquet" if tables else "folder"
    file = unzipped(path.name).lower()
    if file.startswith("docword") and file.endswith(".txt"):
        return "uci"
    known = {suffix: each.name for each in FORMATS.values() for suffix in each.suffixes}
    suffix = Path(file).suffix
    if suffix not in known:
        raise CorpusError(
            f"{path}: cannot tell the format from the ending {suffix!r}; expected "
            f"{', '.join(known)}, docword*.txt or a folder, or give format=...; save a sheet as "
            "CSV, with a document in each row, and other documents as plain text"
        )
    return known[suffix]


def unzipped(name: str) -> str:
    """The name of a file without ``.gz``."""
    return name[:-3] if name.lower().endswith(".gz") else name


def register_reader(
    name: str,
    suffixes: Sequence[str],
    function: Callable[[Path, Options], Any] | None = None,
    *,
    holds: Literal["texts", "counts"] = "texts",
) -> Any:
    r"""Register a reader of a file format.

    Afterwards, ``read_corpus`` and every command can read that format. Your function receives the
    path and the reading options (:class:`Options`). A reader of texts yields one mapping per
    document, in which the field ``"text"`` is the text and all other fields become columns of the
    metadata. A reader of counts returns a :class:`Corpus`.

    ``torch_lntm.files.iterate_lines(path, options.encoding)`` reads lines: it unpacks ``.gz``
    files, and names the file in errors.

    Args:
        name: Name of the format, for ``read_corpus(format=...)`` and ``--format``.
        suffixes: Endings of the format's files, such as ``[".rst"]``. May be empty.
        function: The reader. ``register_reader`` is a decorator if the reader is left out.
        holds: Contents of the files: ``"texts"`` for a function that yields records, ``"counts"``
            for a function that returns a corpus.

    Returns:
        The function.

    Raises:
        ConfigError: The name or a suffix belongs to another reader. A second registration of a
            function under the same name is accepted, because notebooks run cells again.

    Example:
        >>> @lntm.corpus.register_reader("paragraphs", [".para"])
        ... def read_paragraphs(path, options):
        ...     for text in path.read_text(options.encoding).split("\n\n"):
        ...         yield {"text": text, "length": len(text)}
        >>> from pathlib import Path
        >>> _ = Path("two.para").write_text("red apple, red pear\n\ngreen apple")
        >>> lntm.read_corpus("two.para").metadata["length"].tolist()
        [19, 11]
    """
    if function is None:
        return functools.partial(register_reader, name, suffixes, holds=holds)
    owner = FORMATS[name].read if name in FORMATS else None
    refuse_other_owner("format name", name, owner, function)
    for suffix in suffixes:
        for other, about in FORMATS.items():
            if other != name and suffix in about.suffixes:
                raise ConfigError(
                    f"files that end in {suffix} have the format {other!r} already; choose "
                    "another ending, or none and read them by format=..."
                )
    FORMATS[name] = Format(name, function, holds, tuple(suffixes))
    return function
