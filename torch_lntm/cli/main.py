"""The program: runs a command and reports an error in a single line."""

from __future__ import annotations

import errno
import os
import re
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from torch_lntm.cli.command import visible
from torch_lntm.cli.launch import STOPPED, first_speaks, launched_rank
from torch_lntm.cli.parser import parse
from torch_lntm.errors import ConfigError, LNTMError

#: Exit codes: after a reported error, and after a closed pipe of the output.
FAILED, READER_GONE = 1, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: The arguments, without the program's name. Defaults to the arguments of the process.

    Returns:
        The exit code: 0 after success, 1 after a reported error, 130 after Ctrl-C, 143 after
        SIGTERM, 141 after a closed pipe of the output.

    Raises:
        SystemExit: With code 2 for wrong options, and with code 0 after help or the version.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            with first_speaks():
                command = parse(arguments)
                if launched_rank() is not None and not command.shared:
                    raise ConfigError("this command runs in one process; start it by torch-lntm")
                code = command.run()
            if sys.stdout is not None:  # None if closed
                sys.stdout.flush()
            return code
        except BrokenPipeError:  # the reader, such as head, has ended
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return READER_GONE
        except LNTMError as error:
            if error.shared and launched_rank():  # the first process reports the error
                return FAILED
            return _fail(str(error))
        except OSError as error:
            return _fail(_system_error(error))
        except (MemoryError, RuntimeError) as error:
            shortage = _memory_shortage(error)
            if shortage is None:
                raise
            advice = "Fewer topics or words, smaller batches (max_docs, batch_size) and float32"
            return _fail(f"not enough memory{shortage}. {advice} take less")
        except KeyboardInterrupt as stop:
            reason = "terminated" if type(stop).__name__ == "Terminated" else "interrupted"
            with first_speaks():
                print(reason, file=sys.stderr)
            return STOPPED[reason]


def _fail(message: str) -> int:
    print(f"error: {visible(' '.join(message.split()))}", file=sys.stderr)
    return FAILED


def _system_error(error: OSError) -> str:
    """Message of an error of the operating system: the file, the reason and advice."""
    where = "" if error.filename is None else f"{error.filename}: "
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    advice = "; free some space and run the same command again" if full else ""
    return f"{where}{error.strerror or error}{advice}"


def _show_warning(message: Warning | str, *about: Any, **named: Any) -> None:
    print(f"warning: {visible(str(message))}", file=sys.stderr)


def _memory_shortage(error: BaseException) -> str | None:
    """Missing memory in the words of NumPy and torch; ``None`` for errors of another kind."""
    amount = re.search(r"[Aa]llocate ([\d.]+ (?:[KMGTPE]i)?(?:B|bytes))", str(error))
    if amount is not None:
        return f": needs {amount[1]} more"
    overflow = re.search(r"calculation overflowed|multiplication overflow", str(error))
    return "" if overflow or isinstance(error, MemoryError) else None
