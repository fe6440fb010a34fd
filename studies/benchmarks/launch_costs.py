"""Kernels and waits of the host on a CUDA device, counted on the tests' pretend device.

Launches of operations with several kernels are estimates from PyTorch's sources.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from support.pretend import COPIES, INDEXING, Operation, PretendDevice, PretendTensor
from torch import Tensor

#: Operations that allocate, describe or reinterpret memory, and launch nothing.
_WITHOUT_KERNEL = {
    *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "lift_fresh"),
    *("_sparse_compressed_tensor_unsafe", "_sparse_csr_tensor_unsafe", "_unsafe_view", "resize_"),
    *("_validate_sparse_csr_tensor_args", "_validate_sparse_compressed_tensor_args", "set_"),
    *("squeeze_", "unsqueeze_", "t_", "transpose_", "as_strided_", "is_same_size", "is_pinned"),
    *("_has_compatible_shallow_copy_type", "_assert_tensor_metadata", "_nnz"),
    "_local_scalar_dense",
}

#: Kernels of each operation that launches several, estimated from PyTorch's sources.
_KERNELS = {
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"), 2),
    **dict.fromkeys(("_embedding_bag", "_embedding_bag_forward_only", "segment_reduce"), 2),
    **dict.fromkeys(("kthvalue", "topk"), 3),
    **dict.fromkeys(("nonzero", "repeat_interleave", "multinomial", "median"), 4),
    **dict.fromkeys(("linalg_cholesky_ex", "linalg_solve_triangular", "cholesky_solve"), 4),
    **dict.fromkeys(("linalg_lu_factor_ex", "linalg_lu_solve", "triangular_solve"), 4),
    **dict.fromkeys(("masked_select", "bincount", "sparse_sampled_addmm"), 5),
    **dict.fromkeys(("cholesky_inverse", "linalg_inv_ex"), 5),
    **dict.fromkeys(("logsumexp", "_linalg_solve_ex", "_linalg_det", "randperm"), 6),
    **dict.fromkeys(("sort", "argsort", "mode", "unique_consecutive", "linalg_qr"), 8),
    "equal": 2,
    "_linalg_slogdet": 8,
    "_unique2": 12,
    "unique_dim": 14,
    "_linalg_eigh": 30,
    "_linalg_svd": 40,
}

#: Waits of the host inside an operation, for all arguments.
_WAITS = {
    **dict.fromkeys(("_local_scalar_dense", "equal", "nonzero", "masked_select", "multinomial"), 1),
    **dict.fromkeys(("_unique2", "unique_dim", "unique_consecutive", "histc", "_coalesce"), 1),
    **dict.fromkeys(("_linalg_check_errors", "_linalg_eigh", "_linalg_svd"), 1),
    **dict.fromkeys(("_to_sparse", "_to_sparse_csr"), 1),
    "bincount": 2,
}


@dataclasses.dataclass
class Cost:
    """Work of the device.

    Attributes:
        launches: Kernels started.
        waits: Times that the host waited for the device.
    """

    launches: int = 0
    waits: int = 0

    def add(self, other: Cost) -> None:
        """Add another cost."""
        self.launches += other.launches
        self.waits += other.waits

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.launches - other.launches, self.waits - other.waits)


class CountingDevice(PretendDevice):
    """The pretend device with its counts.

    Attributes:
        total: The cost of everything since the context was made.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = Cost()

    @contextlib.contextmanager
    def measure(self) -> Iterator[Cost]:
        """Cost of a block. It is complete at the end of the block."""
        before, cost = dataclasses.replace(self.total), Cost()
        yield cost
        cost.add(self.total - before)

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation, and add its cost if it works on the device."""
        operation = self.operation(func)
        # Before the operation, which may change its arguments.
        count = copy_cost if operation.name in COPIES else call_cost
        cost = count(operation, args, kwargs)
        out = super().run(func, args, kwargs)
        if any(isinstance(value, PretendTensor) for value in flat([args, kwargs, out])):
            self.total.add(Cost(0, cost.waits) if is_empty(out) else cost)
        return out


def flat(value: Any) -> Iterator[Any]:
    """What nested lists hold."""
    if isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from flat(item)
    else:
        yield value


def copy_cost(operation: Operation, args: Sequence[Any], kwargs: dict[str, Any]) -> Cost:
    """Launches and waits of a copy. The host waits during a copy between the devices."""
    source, there, asked = args[0], kwargs.get("device"), kwargs.get("dtype")
    if operation.name == "copy_":
        source, there, asked = args[1], args[0].device, None
    to_device = isinstance(source, PretendTensor) if there is None else there.type != "cpu"
    if isinstance(source, PretendTensor):
        if to_device:
            return Cost(launches=1)
        source = source.inner
    converts = asked not in (None, source.dtype) or not _in_one_piece(source)
    return Cost(launches=int(converts), waits=1)


def call_cost(operation: Operation, args: Sequence[Any], kwargs: dict[str, Any]) -> Cost:
    """Launches and waits of an operation other than a copy."""
    name = operation.name
    silent = operation.view or name in _WITHOUT_KERNEL
    cost = Cost(0 if silent else _KERNELS.get(name, 1), _WAITS.get(name, 0))
    host = [
        value
        for value in flat([args, kwargs])
        if isinstance(value, Tensor) and not isinstance(value, PretendTensor)
    ]
    if name in INDEXING:
        indices = [i for i in args[1] if i is not None]
        masks = [i for i in indices if i.dtype in (torch.bool, torch.uint8)]
        # A scalar written through one mask is masked_fill. Other masks become positions first.
        if masks and not (len(args) > 2 and args[2].dim() == 0 and len(args[1]) == 1):
            cost.launches += _KERNELS["nonzero"] * len(masks)
            cost.waits += len(masks)
        cost.waits += sum(any(i is h for h in host) for i in indices)
    elif name == "where":
        cost.waits += len(host)
    elif name == "repeat_interleave":
        cost.waits += kwargs.get("output_size") is None
    elif name == "segment_reduce":
        cost.waits += 2 * (kwargs.get("lengths") is not None and not kwargs.get("unsafe"))
    elif name == "normal":
        cost.waits += any(isinstance(std, Tensor) for std in args[1:2])
    else:
        cost.waits += bool(kwargs.get("check_errors"))
    return cost


def is_empty(out: Any) -> bool:
    """Whether an operation had nothing to do: all of its results are empty tensors."""
    outs = out if isinstance(out, list | tuple) else [out]
    results = [t for t in outs if isinstance(t, Tensor)]
    return bool(results) and not any(t.numel() for t in results)


def _in_one_piece(tensor: Tensor) -> bool:
    """Whether one copy of memory moves the tensor. True for transposed tensors too."""
    if tensor.layout != torch.strided or tensor.is_contiguous():
        return True
    return tensor.dim() > 1 and tensor.mT.is_contiguous()
