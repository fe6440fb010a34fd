"""The program: runs a command and reports an error in a single line."""

from __future__ import annotations

import codecs
import errno
import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any, TextIO, cast

from torch_lntm.cli.documents import in_options, visible
from torch_lntm.cli.fit import STOPPED
from torch_lntm.cli.launch import first_speaks, launched_rank
from torch_lntm.cli.parser import parse
from torch_lntm.errors import ConfigError, LNTMError

#: Exit codes: after a reported error, and after a closed pipe of the output.
FAILED, READER_GONE = 1, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: The arguments, without the program's name. Defaults to the arguments of the process.

    Returns:
        The exit code: 0 after success, 1 after a reported error, 130 after Ctrl-C, 141 after a
        closed pipe of the output.

    Raises:
        SystemExit: With code 2 for wrong options, and with code 0 after help or the version.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    with _any_encoding(sys.stdout), _visible_output(), warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            with first_speaks():
                command, options = parse(arguments)
                if launched_rank() is not None and not command.shared:
                    raise ConfigError("this command runs in one process; start it by torch-lntm")
                code = command(**options).run()
            if sys.stdout is not None:  # None if closed
                sys.stdout.flush()
            return code
        except BrokenPipeError:  # the reader, such as head, has ended
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return READER_GONE
        except LNTMError as error:
            if error.shared and launched_rank():  # the first process reports the error
                return FAILED
            return _fail(in_options(str(error)))
        except OSError as error:
            return _fail(_system_error(error))
        except (MemoryError, RuntimeError) as error:
            shortage = _memory_shortage(error)
            if shortage is None:
                raise
            return _fail(
                f"not enough memory: {shortage}. Fewer topics or words, smaller batches (max_docs, "
                "batch_size) and float32 take less"
            )
        except KeyboardInterrupt:
            with first_speaks():
                print("interrupted", file=sys.stderr)
            return STOPPED["interrupted"]


def _fail(message: str) -> int:
    print(f"error: {visible(' '.join(message.split()))}", file=sys.stderr)
    return FAILED


def _system_error(error: OSError) -> str:
    """Message of an error of the operating system: the file, the reason and advice."""
    where = "" if error.filename is None else f"{error.filename}: "
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    advice = "; free some space and run the same command again" if full else ""
    return f"{where}{error.strerror or error}{advice}"


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    print(f"warning: {visible(in_options(str(message)))}", file=sys.stderr)


# -------------------------------------------------------------------- memory

#: Sizes in the messages of NumPy and torch about memory.
_WITH_UNIT = re.compile(r"(?:[Aa]llocate) ([\d.]+) ((?:[KMGTPE]i)?B|bytes)")
_TOO_LARGE = re.compile(r"Storage size calculation overflowed|integer multiplication overflow")
_UNITS = {"B": 0, "bytes": 0, "KiB": 1, "MiB": 2, "GiB": 3, "TiB": 4, "PiB": 5, "EiB": 6}


def _memory_shortage(error: BaseException) -> str | None:
    """Missing memory in words; ``None`` for errors of another kind."""
    text = str(error)
    amount = _WITH_UNIT.search(text)
    if amount is not None:
        gigabytes = float(amount[1]) * 1024.0 ** (_UNITS[amount[2]] - 3)
        return f"needs {gigabytes:.3g} GiB more"
    if _TOO_LARGE.search(text):
        return "needs more than any machine has"
    return "needs more than there is" if isinstance(error, MemoryError) else None


# -------------------------------------------------------------------- the output


class _VisibleStream:
    """Stream that escapes control characters.

    Words and names come from files of unknown origin and must not control the terminal.

    Args:
        stream: The underlying stream.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(visible(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def _visible_output() -> Iterator[None]:
    """Context in which standard output escapes control characters."""
    if sys.stdout is None:  # if closed
        yield
        return
    with redirect_stdout(cast("TextIO", _VisibleStream(sys.stdout))):
        yield


#: ASCII replacements of characters of the tables, for encodings that lack them.
_PLAIN = {"−": "-", "–": "-", "…": "...", "±": "+/-", "’": "'"}


def _plain_character(error: UnicodeError) -> tuple[str, int]:
    """Replacement of a character that the output's encoding lacks."""
    assert isinstance(error, UnicodeEncodeError)
    return _PLAIN.get(error.object[error.start], "?"), error.start + 1


codecs.register_error("torch_lntm.plain", _plain_character)


@contextmanager
def _any_encoding(stream: TextIO) -> Iterator[None]:
    """Context in which printing replaces characters that the encoding of ``stream`` lacks."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is None or stream.errors != "strict":
        yield
        return
    reconfigure(errors="torch_lntm.plain")
    try:
        yield
    finally:
        reconfigure(errors="strict")
