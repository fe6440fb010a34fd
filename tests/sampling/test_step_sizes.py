"""First step sizes: each chain's search is its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from torch_lntm.sampling import step_sizes


def test_a_chain_keeps_its_step_size_after_crossing_the_threshold(monkeypatch) -> None:
    """Its acceptance at later keys is ignored while the search of other chains continues."""
    script = iter(
        torch.tensor([[[a, b]]])
        for a, b in ((0.9, 0.1), (0.9, 0.2), (0.5, 0.3), (0.95, 0.4), (0.95, 0.9), (0.9, 0.1))
    )
    tried = []

    def step(random: Any, target: Any, state: Any, step_size: torch.Tensor, *rest: Any) -> Any:
        tried.append(step_size.flatten().tolist())
        return state, SimpleNamespace(acceptance=next(script)[0])

    monkeypatch.setattr(step_sizes.hmc, "step", step)
    monkeypatch.setattr(step_sizes.hmc, "draw", lambda key, target: None)
    state: Any = SimpleNamespace(log_prior=torch.zeros(1, 2, dtype=torch.float64))
    nothing: Any = None
    keys = torch.zeros(1, 2, dtype=torch.int64)
    found = step_sizes.find_step_size(keys, nothing, state, nothing)
    # Doubled until acceptance falls below the threshold, or halved until it exceeds the threshold.
    assert found.tolist() == [[4.0, 1 / 16]]
    assert tried[:3] == [[1.0, 1.0], [2.0, 0.5], [4.0, 0.25]]
    assert len(tried) == 5
