"""WordCounts, the counts of documents as a tensor with sparse storage."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_lntm.corpus.batch import DocumentBatch
from torch_lntm.errors import ConfigError

#: Largest number of entries of a dense tensor: 2 GiB in float32.
MAX_DENSE = 2**29

#: Functions of a tensor's metadata: shape, strides, type.
_METADATA = {
    Tensor.dim,
    Tensor.size,
    Tensor.stride,
    Tensor.numel,
    Tensor.nelement,
    Tensor.is_contiguous,
    Tensor.is_floating_point,
    Tensor.__len__,
    # Pyro's inspection makes a subclass, and keeps the counts beside it.
    Tensor.as_subclass,
    torch.is_floating_point,
    torch.numel,
}
#: Functions that return the counts unchanged: counts are immutable and lack a gradient.
_IDENTITIES = {Tensor.detach, Tensor.clone, Tensor.contiguous, torch.clone, torch.detach}
#: Attributes that return rearranged tensors.
_VIEWS = {"T", "mT", "H", "mH", "real", "imag"}
_SHAPES = {Tensor.expand, Tensor.reshape, torch.reshape}
_MOVES = {Tensor.to, Tensor.cpu, Tensor.cuda, Tensor.float, Tensor.double}


class WordCounts(Tensor):
    """Counts ``(..., num_docs, num_words)`` as a tensor, stored as batches of documents.

    It is the value of a Pyro site of words, observed or drawn. Pyro's handlers read its shape,
    expand, stack and reshape it, all of which keep the sparse storage. Any other function of
    PyTorch first converts it to a dense tensor of at most :data:`MAX_DENSE` entries.

    Args:
        batches: A batch of documents for all indices of the leading dimensions, or a batch for each
            index, in row-major order.
        leading: Sizes of the leading dimensions. Defaults to zero dimensions.

    Example:
        >>> counts = lntm.distributions.WordCounts(batch)
        >>> counts.shape, counts.expand(7, 5, 2132).shape
        (torch.Size([5, 2132]), torch.Size([7, 5, 2132]))
    """

    batches: tuple[DocumentBatch, ...]

    def __new__(
        cls, batches: DocumentBatch | Sequence[DocumentBatch], leading: Sequence[int] = ()
    ) -> WordCounts:
        """Make a tensor of the right shape and dtype over a single entry of NaN."""
        parts = (batches,) if isinstance(batches, DocumentBatch) else tuple(batches)
        entry = torch.full((), math.nan, dtype=parts[0].dtype)
        shape = (*leading, parts[0].num_docs, parts[0].num_words)
        counts = entry.expand(shape).as_subclass(cls)
        counts.batches = parts
        return counts

    def batches_at(self, leading: Sequence[int]) -> list[DocumentBatch]:
        """The batches at each index of broadcast leading dimensions, in row-major order."""
        if len(self.batches) == 1:
            return [self.batches[0]] * math.prod(leading)
        position = torch.arange(len(self.batches)).reshape(self.shape[:-2]).expand(*leading)
        return [self.batches[i] for i in position.flatten().tolist()]

    def to_dense(self, *args: Any, **kwargs: Any) -> Tensor:
        """The counts as a dense tensor of this shape.

        Raises:
            ConfigError: The tensor would have more than :data:`MAX_DENSE` entries.
        """
        if self.numel() > MAX_DENSE:
            raise ConfigError(
                f"counts of shape {tuple(self.shape)} would have {self.numel():,} entries as a "
                f"dense tensor, and the limit is {MAX_DENSE:,}; use fewer documents or draws, or "
                "read counts[i].to_sparse_csr()"
            )
        *leading, num_docs, num_words = self.shape
        dense = torch.stack([batch.to_csr().to_dense() for batch in self.batches])
        if len(self.batches) == 1:
            dense = dense.expand(math.prod(leading), -1, -1)
        return dense.reshape(*leading, num_docs, num_words)

    def to_sparse_csr(self, *args: Any, **kwargs: Any) -> Tensor:
        """The counts ``(num_docs, num_words)`` as a sparse CSR tensor."""
        if self.dim() == 2:
            return self.batches[0].to_csr()
        return self.to_dense().to_sparse_csr(*args, **kwargs)

    def __getitem__(self, index: Any) -> Tensor:
        """Counts at an index of the first leading dimension, or entries of the dense tensor."""
        if not isinstance(index, int) or self.dim() == 2:
            return self.to_dense()[index]
        leading = self.shape[:-2]
        index = range(leading[0])[index]
        if len(self.batches) == 1:
            return WordCounts(self.batches, leading[1:])
        size = math.prod(leading[1:])
        return WordCounts(self.batches[index * size : (index + 1) * size], leading[1:])

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        """Shape and number of stored counts."""
        nnz = sum(batch.nnz for batch in self.batches)
        return f"WordCounts(shape={tuple(self.shape)}, nnz={nnz}, dtype={self.dtype})"

    def __deepcopy__(self, memo: Any) -> WordCounts:
        """The same object: counts are immutable."""
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle the batches."""
        return WordCounts, (self.batches, tuple(self.shape[:-2]))

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Keep the sparse storage if possible; otherwise apply the function to dense tensors."""
        kwargs = kwargs or {}
        counts: Any = args[0] if args else None
        if isinstance(counts, WordCounts):
            attribute = _attribute(func)
            if func in _IDENTITIES or attribute == "data":
                return counts
            if attribute == "device":
                return counts.batches[0].device
            if attribute == "is_cuda":
                return counts.batches[0].device.type == "cuda"
            if func in _METADATA or (attribute is not None and attribute not in _VIEWS):
                with torch._C.DisableTorchFunctionSubclass():
                    return func(*args, **kwargs)
            if func in _MOVES:
                single = torch.empty((), dtype=counts.dtype, device=counts.device)
                moved = func(single, *args[1:], **kwargs)
                if moved.is_floating_point():
                    batches = [batch.to(moved.device, moved.dtype) for batch in counts.batches]
                    return WordCounts(batches, counts.shape[:-2])
            if func in _SHAPES:
                with torch._C.DisableTorchFunctionSubclass():
                    reshaped = func(*args, **kwargs)
                if reshaped.shape[-2:] == counts.shape[-2:]:
                    leading, parts = reshaped.shape[:-2], counts.batches
                    if func is Tensor.expand and len(parts) > 1:
                        parts = tuple(counts.batches_at(leading))
                    return WordCounts(parts, leading)
        elif func is torch.stack and len(args) == 1 and not kwargs and _alike(counts):
            leading = (len(counts), *counts[0].shape[:-2])
            if len(counts[0].batches) == 1 and len({part.batches for part in counts}) == 1:
                return WordCounts(counts[0].batches, leading)
            return WordCounts([b for part in counts for b in part.batches_at(leading[1:])], leading)
        return func(*_dense(args), **_dense(kwargs))


def _attribute(func: Any) -> str | None:
    """Name of the attribute read by a function. ``None`` if the function reads no attribute."""
    reads = getattr(func, "__name__", None) == "__get__"
    return func.__self__.__name__ if reads else None


def _alike(parts: Any) -> bool:
    """Whether all arguments are counts of equal shape, type and device."""
    return all(isinstance(part, WordCounts) for part in parts) and all(
        (part.shape, part.dtype, part.device) == (parts[0].shape, parts[0].dtype, parts[0].device)
        for part in parts
    )


def _dense(value: Any) -> Any:
    """The arguments of a function with dense tensors in place of counts."""
    if isinstance(value, WordCounts):
        return value.to_dense()
    if isinstance(value, dict):
        return {key: _dense(entry) for key, entry in value.items()}
    return type(value)(map(_dense, value)) if type(value) in (list, tuple) else value
