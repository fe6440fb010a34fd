"""Registration of readers for further formats, by plug-ins and other packages."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from torch_lntm.corpus.corpus import Corpus
from torch_lntm.corpus.readers import CORPUS_READERS, SUFFIXES, known_formats
from torch_lntm.corpus.readers.texts import (
    TEXT_READERS,
    WITH_FIELDS,
    Record,
    RecordReader,
    TextOptions,
)
from torch_lntm.errors import ConfigError, FileError, LNTMError, refuse_other_owner

#: A function of a file and the options of reading: it yields records, or returns a corpus.
Reader = Callable[[Path, TextOptions], Any]

#: The registered functions by format.
_REGISTERED: dict[str, Reader] = {}


def register_reader(
    name: str,
    suffixes: Sequence[str],
    function: Reader | None = None,
    *,
    holds: Literal["texts", "counts"] = "texts",
) -> Any:
    r"""Register a reader of a file format.

    ``read_corpus``, ``convert_corpus`` and every command then read files of the format. A reader
    of texts yields a mapping for each document, with the text in the field ``"text"``. All further
    fields become columns of the metadata. A reader of counts returns a :class:`Corpus`.

    The function is called with the file's path and the options of reading (:class:`TextOptions`).
    ``torch_lntm.files.iterate_lines(path, options.encoding, options.max_bytes)`` reads lines
    safely. It unpacks ``.gz`` files, bounds the size, and names the file in errors.

    Args:
        name: Name of the format, for ``read_corpus(format=...)`` and ``--format``.
        suffixes: Endings of the format's files, such as ``[".rst"]``. May be empty.
        function: The reader. ``register_reader`` is a decorator if the reader is left out.
        holds: Contents of the files: ``"texts"`` for a function that yields records, ``"counts"``
            for a function that returns a corpus.

    Returns:
        The function.

    Raises:
        ConfigError: The name or a suffix belongs to another reader, or is unusable, or the reader
            does not take a path and options. A second
            registration of a function under the same name is accepted, because notebooks run cells
            again.

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
    _check_name(name, function)
    if isinstance(suffixes, str) or not all(_is_suffix(suffix) for suffix in suffixes):
        raise ConfigError(
            f"suffixes of the format {name!r} are {suffixes!r}; expected a list of lower-case "
            "endings such as ['.rst']"
        )
    for suffix in suffixes:
        if SUFFIXES.get(suffix, name) != name:
            raise ConfigError(
                f"files that end in {suffix} have the format {SUFFIXES[suffix]!r} already; choose "
                "another ending, or none and read them by format=..."
            )
    if holds not in ("texts", "counts"):
        raise ConfigError(f"holds is {holds!r}; expected 'texts' or 'counts'")
    _forget(name)
    _REGISTERED[name] = function
    SUFFIXES.update(dict.fromkeys(suffixes, name))
    if holds == "texts":
        TEXT_READERS[name] = _records_of(name, function)
        WITH_FIELDS.append(name)
    else:
        CORPUS_READERS[name] = functools.partial(_corpus_of, name, function)
    return function


def _check_name(name: str, function: Reader) -> None:
    """Refuse a name that is taken or contains spaces, and a reader without the two arguments."""
    if not isinstance(name, str) or not name or name != "".join(name.split()):
        raise ConfigError(f"format name {name!r}; expected a word")
    if not callable(function):
        raise ConfigError(f"reader {function!r} of the format {name!r}; expected a function")
    try:
        inspect.signature(function).bind("path", "options")
    except TypeError as error:
        raise ConfigError(
            f"the reader of the format {name!r} cannot take a path and the options of reading "
            f"({error}); write def {getattr(function, '__name__', 'read')}(path, options)"
        ) from error
    except ValueError:  # functions in C may keep their arguments to themselves
        pass
    if name in known_formats() and name not in _REGISTERED:
        raise ConfigError(f"format name {name!r} is one of torch_lntm's own; choose another")
    refuse_other_owner("format name", name, _REGISTERED.get(name), function)


def _is_suffix(suffix: object) -> bool:
    return (
        isinstance(suffix, str)
        and Path(f"name{suffix}").suffix == suffix != ""
        and suffix == suffix.lower()
        and suffix != ".gz"
    )


def _forget(name: str) -> None:
    """Remove an earlier registration of a format."""
    if _REGISTERED.pop(name, None) is None:
        return
    for suffix in [suffix for suffix, format in SUFFIXES.items() if format == name]:
        del SUFFIXES[suffix]
    CORPUS_READERS.pop(name, None)
    if TEXT_READERS.pop(name, None) is not None:
        WITH_FIELDS.remove(name)


@contextmanager
def _named(name: str, place: Callable[[], str]) -> Iterator[None]:
    """A context whose errors name the file, the place in the file and the reader.

    Args:
        name: Name of the format.
        place: Returns the file and the place at the error.
    """
    try:
        yield
    except (LNTMError, MemoryError):
        raise
    except Exception as error:
        raise FileError(
            f"{place()}: the reader of the format {name!r} failed "
            f"({type(error).__name__}: {error}); mend the file or the reader"
        ) from error


def _records_of(name: str, function: Reader) -> RecordReader:
    """The function in the form of the built-in readers: each record with its place in the file."""

    def read(path: Path, options: TextOptions) -> Iterator[Record]:
        place = "document 1"
        with _named(name, lambda: f"{path}, {place}"):
            records: Iterable[Any] = function(path, options)
            if not isinstance(records, Iterable):
                raise ConfigError(
                    f"the reader of the format {name!r} returned {type(records).__name__}; "
                    "expected an iterable of mappings, one for each document"
                )
            for position, record in enumerate(records, 1):
                if not isinstance(record, Mapping):
                    raise FileError(
                        f"{path}, {place}: the reader of the format {name!r} yielded "
                        f"{type(record).__name__}; expected a mapping with a field 'text'"
                    )
                yield place, dict(record)
                place = f"document {position + 1}"

    return read


def _corpus_of(name: str, function: Reader, path: Path, options: TextOptions) -> Corpus:
    with _named(name, lambda: str(path)):
        corpus = function(path, options)
    if not isinstance(corpus, Corpus):
        raise ConfigError(
            f"the reader of the format {name!r} returned {type(corpus).__name__}; expected a Corpus"
        )
    return corpus
