"""Progress bars for terminals and notebooks."""

from __future__ import annotations

from typing import Any

from tqdm.auto import tqdm as _tqdm

#: A bar appears once the work has lasted this long, in seconds.
DELAY = 2.0


class tqdm(_tqdm):
    """Progress bar in terminals and notebooks. It is hidden if standard error is a file or a pipe.

    Short work shows no bar, so that everything can report its progress by default.

    Args:
        *args: As for ``tqdm.tqdm``.
        disable: Whether to hide the bar everywhere.
        **options: As for ``tqdm.tqdm``.
    """

    def __init__(self, *args: Any, disable: bool = False, **options: Any) -> None:
        # tqdm looks for a terminal if disable is None. Its notebook bar reads None as False.
        super().__init__(*args, disable=disable or None, **{"delay": DELAY, **options})
