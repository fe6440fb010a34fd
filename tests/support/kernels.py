"""Switches of the fused kernels."""

from __future__ import annotations

import pytest


def without_fused_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let PyTorch's operations compute from here to the end of a test."""
    for name in ("LNTM_TRITON", "LNTM_COMPILED"):
        monkeypatch.setenv(name, "0")
