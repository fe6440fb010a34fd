"""Memory that a computation takes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class LargestStorage(TorchDispatchMode):
    """Bytes of the largest tensor that any operation returns."""

    size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else [result]:
            if isinstance(value, Tensor) and value.layout == torch.strided:
                self.size = max(self.size, value.untyped_storage().nbytes())
        return result
