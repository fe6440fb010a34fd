"""Compiled kernels on disk, where they stay for the next processes.

Numba keeps them beside the package, or in the user's folder of caches. Whatever fails there costs
the time of compiling, but never a fit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from numba import config, njit
from numba.core.caching import FunctionCache, NullCache

from torch_lntm.progress import tqdm

if getattr(config, "DISABLE_JIT", False):
    raise ImportError("the variable NUMBA_DISABLE_JIT turns it off")


def kernel(**options: Any) -> Callable[[Any], Any]:
    """Decorator of a kernel that Numba compiles at its first call and keeps on disk.

    Args:
        **options: As for ``numba.njit``.
    """

    def decorate(function: Any) -> Any:
        compiled = njit(**options)(function)
        try:
            compiled._cache = _Kept(function)
        except (OSError, RuntimeError):  # no folder is writable
            compiled._cache = _Unkept()
        return compiled

    return decorate


class _Kept(FunctionCache):
    """Kernel on disk. If its files are damaged or cannot be written, it is compiled again.

    Numba knows when the file of a kernel changes. A kernel calls functions of its folder's other
    files too, so that all of them count.
    """

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        files = sorted(Path(function.__code__.co_filename).parent.glob("*.py"))
        stamps = [(file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in files]
        self._cache_file._source_stamp = stamps

    def load_overload(self, *args: Any) -> Any:
        found = None
        try:
            found = super().load_overload(*args)
        except Exception:  # pickles of a damaged file raise anything
            with suppress(Exception):
                self.flush()
        if found is None:
            _announce("once")
        return found

    def save_overload(self, *args: Any) -> None:
        with suppress(Exception):
            super().save_overload(*args)


class _Unkept(NullCache):
    """No kernel on disk."""

    def load_overload(self, *args: Any) -> Any:
        _announce("in every process, because no folder is writable; NUMBA_CACHE_DIR can name one")


@cache
def _announce(when: str) -> None:
    """Say that the first use takes longer, unless progress bars are hidden as well."""
    with tqdm() as bar:
        if not bar.disable:
            line = f"compiling the kernels for this machine, 10 to 15 seconds, {when}"
            bar.write(line, file=sys.stderr)
