"""Snapshot: what tensors held, to tell whether they still do."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class Snapshot:
    """The values of some tensors at one time.

    Args:
        tensors: The tensors.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        tensors = [tensor.detach() for tensor in tensors]
        self._places = _places(tensors)
        self._values = [tensor.clone() for tensor in tensors]

    def holds(self, tensors: Iterable[Tensor]) -> bool:
        """Whether tensors are the same ones with the same values.

        Their versions tell of most changes at once. But optimisers that write to ``.data``, as
        Pyro's own do, leave no trace there, so values decide.
        """
        tensors = [tensor.detach() for tensor in tensors]
        if _places(tensors) != self._places:
            return False
        return all(map(torch.equal, tensors, self._values))


def _places(tensors: list[Tensor]) -> list[tuple[int, int]]:
    # Tensors of inference mode have no version.
    return [(t.data_ptr(), -1 if t.is_inference() else t._version) for t in tensors]
