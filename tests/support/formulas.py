"""Counts of the evaluations of formulas."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def count_evaluations() -> Iterator[list[str]]:
    """List the formulas that formulaic evaluates in the block, in order."""
    formulaic = pytest.importorskip("formulaic")
    found: list[str] = []
    evaluate = formulaic.ModelSpec.get_model_matrix

    def counted(spec: Any, *args: Any, **kwargs: Any) -> Any:
        found.append(str(spec.formula))
        return evaluate(spec, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(formulaic.ModelSpec, "get_model_matrix", counted)
        yield found
