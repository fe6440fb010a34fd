"""uncompiled: a decorator for what ``torch.compile`` leaves to Python."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

F = TypeVar("F", bound=Callable[..., Any])


def uncompiled(function: F) -> F:
    """Leave a function, and all that it calls, to Python where ``torch.compile`` meets it.

    The compiler's tracer follows neither sparse counts nor Pyro's handlers. PyTorch has such a
    decorator, which loads the compiler: that takes a second even where nothing is compiled.
    """
    eager: F | None = None

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        nonlocal eager
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        if eager is None:
            eager = torch.compiler.disable(function)
        return eager(*args, **kwargs)

    return cast(F, run)
