"""How many documents fit at once."""

from __future__ import annotations

import pytest
import torch

from torch_lntm.budget import docs_at_once, fits


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [(1.0, 4096), (2**23 / 4096, 4096), (2**23 / 20, 20), (2**23, 8), (2.0**40, 8), (0.0, 4096)],
)
def test_batches_on_a_cpu_have_a_fixed_number_of_numbers(numbers, expected):
    assert docs_at_once(numbers) == expected


def test_batches_on_a_gpu_take_a_share_of_its_memory(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**32, 2**33))
    assert docs_at_once(2**20, "cuda") == 2**33 // 8 // 4 // 2**20
    assert docs_at_once(2**20, torch.device("cuda", 0), torch.float64) == 2**33 // 8 // 8 // 2**20
    assert docs_at_once(1.0, "cuda") == 65536


def test_a_table_takes_at_most_a_thirty_second_of_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**32, 2**33))
    assert fits(2**28, "cuda")
    assert not fits(2**28 + 1, torch.device("cuda", 0))
    assert fits(2.0**60, "cpu")
