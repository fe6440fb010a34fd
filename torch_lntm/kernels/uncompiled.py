"""Decorator that makes ``torch.compile`` leave a function to Python."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

F = TypeVar("F", bound=Callable[..., Any])


def uncompiled(function: F) -> F:
    """Make ``torch.compile`` leave a function, and its calls, to Python.

    It is needed because the compiler's tracer fails at sparse counts and at Pyro's handlers, and
    PyTorch's own decorator loads the compiler at import, which costs every program a second.
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
