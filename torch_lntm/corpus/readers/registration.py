"""Registration of readers for further formats, by plug-ins and other packages."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from torch_lntm.corpus.corpus import Corpus
from torch_lntm.corpus.readers import CORPUS_READERS, SUFFIXES, known_formats
from torch_lntm.corpus.readers.texts import TEXT_READERS, Record, TextOptions
from torch_lntm.errors import ConfigError, FileError, LNTMError, refuse_other_owner
from torch_lntm.files.reading import read_errors

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
            does not take a path and options. A second registration of a function under the same
            name is accepted, because notebooks run cells again.

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
    if not isinstance(name, str) or not name or name != "".join(name.split()):
        raise ConfigError(f"format name {name!r}; expected a word")
    try:
        inspect.signature(function).bind("path", "options")
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"the reader of the format {name!r} cannot take a path and the options of reading "
            f"({error}); write def {getattr(function, '__name__', 'read')}(path, options)"
        ) from error
    if name in known_formats() and name not in _REGISTERED:
        raise ConfigError(f"format name {name!r} is one of torch_lntm's own; choose another")
    refuse_other_owner("format name", name, _REGISTERED.get(name), function)
    endings = [] if isinstance(suffixes, str) else list(suffixes)
    usable = [s for s in endings if Path(f"name{s}").suffix == s.lower() == s not in ("", ".gz")]
    if isinstance(suffixes, str) or usable != endings:
        raise ConfigError(
            f"suffixes of the format {name!r} are {suffixes!r}; expected a list of lower-case "
            "endings such as ['.rst']"
        )
    for suffix in endings:
        if SUFFIXES.get(suffix, name) != name:
            raise ConfigError(
                f"files that end in {suffix} have the format {SUFFIXES[suffix]!r} already; choose "
                "another ending, or none and read them by format=..."
            )
    for suffix in [suffix for suffix, format in SUFFIXES.items() if format == name]:
        del SUFFIXES[suffix]  # of an earlier registration
    _REGISTERED[name] = function
    SUFFIXES.update(dict.fromkeys(endings, name))
    TEXT_READERS.pop(name, None)
    CORPUS_READERS.pop(name, None)
    if holds == "texts":
        TEXT_READERS[name] = functools.partial(_records, name, function)
    else:
        CORPUS_READERS[name] = functools.partial(_corpus, name, function)
    return function


def _records(name: str, function: Reader, path: Path, options: TextOptions) -> Iterator[Record]:
    """Records of a registered reader, each with its place in the file."""
    place = "document 1"
    try:
        for number, record in enumerate(function(path, options), 2):
            yield place, dict(record)
            place = f"document {number}"
    except LNTMError:
        raise
    except Exception as error:
        raise FileError(
            f"{path}, {place}: the reader of the format {name!r} failed, which yields a mapping "
            f"for each document ({type(error).__name__}: {error}); mend the file or the reader"
        ) from error


def _corpus(name: str, function: Reader, path: Path, options: TextOptions) -> Corpus:
    """Corpus of a registered reader."""
    with read_errors(path, f"the reader of the format {name!r} failed", Exception):
        corpus = function(path, options)
    if not isinstance(corpus, Corpus):
        raise ConfigError(
            f"the reader of the format {name!r} returned {type(corpus).__name__}; expected a Corpus"
        )
    return corpus
