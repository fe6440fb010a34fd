"""The pretend device: what it refuses, and that its numbers are the CPU's."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from support.pretend import PretendDevice, PretendDeviceError
from torch import Tensor


@pytest.fixture
def cuda() -> Iterator[PretendDevice]:
    with PretendDevice() as device:
        yield device


def there() -> Tensor:
    return torch.arange(6.0, device="cuda").view(2, 3)


HERE = torch.ones(3)
INTEGERS = torch.arange(4).view(2, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: there() @ HERE, "same device"),
        (lambda: there() + torch.from_numpy(np.ones(3, dtype=np.float32)), "same device"),
        # A CPU tensor takes neither indices nor numbers from the device, however few.
        (lambda: HERE[torch.tensor([1], device="cuda")], "same device"),
        (lambda: torch.tensor(1.0).add_(there()[0, 0]), "same device"),
        (lambda: torch.nn.Linear(3, 2)(there()), "same device"),
        (lambda: there() * HERE, r"mul; .*\(3,\)"),
        (lambda: there().normal_(generator=torch.Generator()), "device type for generator"),
        (lambda: torch.randn(3, generator=torch.Generator("cuda")), "device type for generator"),
        (lambda: INTEGERS.cuda() @ INTEGERS.cuda(), "not implemented"),
    ],
)
def test_what_cuda_refuses(cuda: PretendDevice, call: Callable[[], Any], message: str) -> None:
    with pytest.raises(PretendDeviceError, match=message):
        call()


@pytest.mark.parametrize("convert", [operator.methodcaller("numpy"), np.asarray, np.from_dlpack])
def test_numpy_is_refused(cuda: PretendDevice, convert: Callable[[Tensor], Any]) -> None:
    with pytest.raises((TypeError, BufferError)):
        convert(there())


def test_it_ends_with_its_context() -> None:
    with PretendDevice():
        tensor = there()
        assert torch.cuda.is_available()
    assert not torch.cuda.is_available()
    with pytest.raises(PretendDeviceError, match="outside"):
        tensor + 1


def test_a_generator_has_its_device_and_another_stream(cuda: PretendDevice) -> None:
    def draw(seed: int) -> list[float]:
        generator = torch.Generator("cuda").manual_seed(seed)
        return torch.rand(3, device="cuda", generator=generator).tolist()

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    assert draw(1) != torch.rand(3, generator=torch.Generator().manual_seed(1)).tolist()
