"""Tensors by name as one flat tensor that processes can add up, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

#: Of tensors by name: whether they are float64, and their shapes. JSON-able.
Layout = dict[str, tuple[bool, list[int]]]

#: Units of the float32 pieces of a float64 number. Each is 2^16 of the next.
PIECE_UNITS = (2.0**28, 2.0**12, 2.0**-4, 2.0**-20)
NUM_PIECES = len(PIECE_UNITS) + 1


def pieces(values: Tensor) -> Tensor:
    """Float64 numbers as sums of float32 numbers, which can be added up without loss.

    All pieces but the last are whole multiples of a unit, below 2^16 of them in a number under
    2^44: the sums of 256 processes are exact. The last is what remains, rounded to 2^-44. So few
    float64 numbers can travel with many of float32, and the many need not become float64.

    Args:
        values: ``(size,)`` float64. What is not finite has pieces that add up to NaN.

    Returns:
        ``(NUM_PIECES * size,)`` float32.
    """
    found, rest = [], values
    for unit in PIECE_UNITS:
        piece = (rest / unit).trunc() * unit
        found.append(piece)
        rest = rest - piece
    return torch.cat([*found, rest]).float()


def joined(parts: Tensor) -> Tensor:
    """The float64 numbers ``(size,)`` of the sums of their pieces ``(NUM_PIECES * size,)``."""
    return parts.view(NUM_PIECES, -1).double().sum(0)


def layout_of(tensors: Mapping[str, Tensor]) -> Layout:
    """The layout of float32 and float64 tensors."""
    return {
        name: (tensor.dtype == torch.float64, list(tensor.shape))
        for name, tensor in tensors.items()
    }


def pack(tensors: Mapping[str, Tensor]) -> Tensor:
    """Float32 and float64 tensors as one flat tensor; float64, if all are.

    Args:
        tensors: Tensors by name on one device, at least one of them float64.
    """
    wide = torch.cat([x.flatten() for x in tensors.values() if x.dtype == torch.float64])
    narrow = [x.flatten() for x in tensors.values() if x.dtype != torch.float64]
    return torch.cat([pieces(wide), *narrow]) if narrow else wide


def unpack(flat: Tensor, layout: Layout) -> dict[str, Tensor]:
    """The tensors of a flat one, as views of it where their type is its own.

    Args:
        flat: What :func:`pack` made of tensors of this layout, or a sum of such.
        layout: The layout, in the order of the tensors.
    """
    sizes = {name: math.prod(shape) for name, (_, shape) in layout.items()}
    wide = sum(sizes[name] for name, (is_wide, _) in layout.items() if is_wide)
    parts = {True: flat, False: flat[:0]}
    if flat.dtype != torch.float64:
        start = NUM_PIECES * wide
        parts = {True: joined(flat[:start]), False: flat[start:]}
    found, taken = {}, {True: 0, False: 0}
    for name, (is_wide, shape) in layout.items():
        start, taken[is_wide] = taken[is_wide], taken[is_wide] + sizes[name]
        found[name] = parts[is_wide][start : taken[is_wide]].view(shape)
    return found
