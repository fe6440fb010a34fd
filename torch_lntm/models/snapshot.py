"""Snapshot: the values of some tensors, to detect later changes."""

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
        self._identities = _identities(tensors)
        self._values = [tensor.clone() for tensor in tensors]

    def holds(self, tensors: Iterable[Tensor]) -> bool:
        """Whether the tensors are the same objects with unchanged values.

        Version counters show most changes at no cost. But optimisers that write to ``.data``, such
        as Pyro's, leave the counters unchanged, so the values are compared too.
        """
        tensors = [tensor.detach() for tensor in tensors]
        if _identities(tensors) != self._identities:
            return False
        return all(map(torch.equal, tensors, self._values))


def _identities(tensors: list[Tensor]) -> list[tuple[int, int]]:
    # Inference tensors lack a version counter.
    return [(t.data_ptr(), -1 if t.is_inference() else t._version) for t in tensors]
