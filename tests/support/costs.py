"""Cost of PyTorch's operations on a CUDA device: kernels and waits of the host."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

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

#: Operations with CPU or device indices.
INDEXING = {"index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_"}

#: Operations that accept a CPU scalar although PyTorch does not mark them as pointwise.
_TAKE_SCALARS = {"where", "masked_fill", "masked_fill_", "fill_", "index_fill_", "index_fill"}

#: Copies. Their cost depends on the source device and the target device.
COPIES = {"_to_copy", "copy_"}


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
        self.launches += other.launches
        self.waits += other.waits

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.launches - other.launches, self.waits - other.waits)


class Operation:
    """Properties of an operation that are independent of its arguments."""

    def __init__(self, func: Any) -> None:
        schema = func._schema
        aliases = [r.alias_info for r in schema.returns]
        self.name: str = schema.name.split("::")[1]
        self.view = bool(aliases) and all(a is not None and not a.is_write for a in aliases)
        self.launches = _KERNELS.get(self.name, 1)
        if self.view or self.name in _WITHOUT_KERNEL:
            self.launches = 0
        self.takes_scalars = torch.Tag.pointwise in func.tags or self.name in _TAKE_SCALARS
        self.num_returns = len(aliases)
        self.returns_changed = any(a is not None and a.is_write for a in aliases)
        self._changed = [
            (position, argument.name)
            for position, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]

    def changed(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        """Arguments to which the operation writes."""
        if not self._changed:
            return []
        return [args[i] if i < len(args) else kwargs.get(name) for i, name in self._changed]


def copy_cost(source: Tensor, from_device: bool, to_device: bool, options: dict[str, Any]) -> Cost:
    """Launches and waits of a copy. The host waits during a copy between the devices."""
    if from_device and to_device:
        return Cost(launches=1)
    converts = options.get("dtype") not in (None, source.dtype) or not _in_one_piece(source)
    unawaited = options.get("non_blocking", False) and is_pinned(source)
    return Cost(launches=int(converts), waits=0 if unawaited else 1)


def call_cost(
    operation: Operation, args: Sequence[Any], kwargs: dict[str, Any], host: Sequence[Tensor]
) -> Cost:
    """Launches and waits of an operation other than a copy.

    Args:
        operation: The operation.
        args: Its arguments, all tensors on the CPU.
        kwargs: Its named arguments, likewise.
        host: Arguments that are on the CPU for the caller too.
    """
    name = operation.name
    cost = Cost(operation.launches, _WAITS.get(name, 0))
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


def is_pinned(tensor: Tensor) -> bool:
    """Whether ``pin_memory`` made a CPU tensor. Here ``pin_memory`` only sets a mark."""
    return getattr(tensor, "pretend_pinned", False)


def _in_one_piece(tensor: Tensor) -> bool:
    """Whether one copy of memory moves the tensor. True for transposed tensors too."""
    if tensor.layout != torch.strided or tensor.is_contiguous():
        return True
    return tensor.dim() > 1 and tensor.mT.is_contiguous()


class LargestStorage(TorchDispatchMode):
    """Bytes of the largest tensor that any operation returns."""

    size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else [result]:
            if isinstance(value, Tensor) and value.layout == torch.strided:
                self.size = max(self.size, value.untyped_storage().nbytes())
        return result
