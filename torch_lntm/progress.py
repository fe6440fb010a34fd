"""Progress bars for people who watch."""

from __future__ import annotations

from typing import Any

from tqdm.auto import tqdm as _tqdm


class tqdm(_tqdm):
    """tqdm's bar in terminals and notebooks, and none where standard error is a file or a pipe.

    Args:
        *args: As for ``tqdm.tqdm``.
        disable: Whether to show no bar anywhere.
        **options: As for ``tqdm.tqdm``.
    """

    def __init__(self, *args: Any, disable: bool = False, **options: Any) -> None:
        # None asks tqdm whether a terminal is there; its notebook bar takes it for False.
        super().__init__(*args, disable=disable or None, **options)
