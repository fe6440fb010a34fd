"""A pretend CUDA device, which refuses every operation that CUDA refuses.

    with PretendDevice():
        model.to("cuda")
        guide.posterior(batch.to("cuda"))

A ``PretendTensor`` says that it is on ``cuda:0`` and keeps its numbers in a CPU tensor. Inside the
context, every operation of PyTorch passes through :meth:`PretendDevice.run`, which unwraps the
tensors, calls the CPU's kernel, and wraps the results. It raises an error for:

* tensors of both devices in one operation. CUDA allows three exceptions: one CPU tensor of
  dimension 0 in a pointwise operation, CPU indices into device tensors, and copies;
* ``.numpy()``, ``np.asarray`` and ``np.from_dlpack``;
* a generator of one device for random numbers on the other;
* matrix products of integers, for which CUDA has no kernel.

Results equal the CPU's results to the last bit. Generators differ on purpose: as on a GPU, a seed
gives other numbers than on the CPU. Random numbers without a generator come from one stream for
both devices.

The device cannot find differences in rounding, limits of cuSPARSE and of memory, and races. It is
not thread safe. ``studies/benchmarks/launch_costs.py`` counts kernels and waits on it.

Two modes do the work. A function mode sees the calls of Python code, and replaces the name "cuda"
by PyTorch's meta device. For C++ the tensors are on the meta device: it needs no driver, and never
reads the numbers. A dispatch mode sees the operations of these calls, including the backward pass.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = torch.device("cuda", 0)
_HOST, _META = torch.device("cpu"), torch.device("meta")
_HostGenerator = torch.Generator
_ACTIVE: list[PretendDevice] = []


class PretendDeviceError(RuntimeError):
    """Error for an operation that CUDA refuses. A RuntimeError, like CUDA's own errors."""


class PretendTensor(torch.Tensor):
    """A tensor with the device ``cuda:0``. Its numbers are in the CPU tensor ``inner``."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor) -> PretendTensor:
        # Wrappers exist for strided tensors only, so C++ treats a sparse tensor as strided.
        strided = inner.layout == torch.strided
        outer = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride() if strided else None,
            storage_offset=inner.storage_offset() if strided else None,
            dtype=inner.dtype,
            device=_META,
        )
        outer.inner = inner
        return outer

    device = property(lambda self: DEVICE)
    layout = property(lambda self: self.inner.layout)
    is_cuda = property(lambda self: True)
    is_cpu = is_meta = property(lambda self: False)
    is_sparse = property(lambda self: self.inner.is_sparse)

    @property
    def data(self) -> Tensor:
        return PretendTensor(self.inner.detach())  # not self.detach(), whose writes autograd sees

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor "
            "to host memory first."
        )

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.numpy()

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        raise BufferError("a tensor on cuda:0 cannot be read by a library that computes on the CPU")

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"{self.inner!r}[cuda:0]"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _active().run(func, args, kwargs or {})


def _active() -> PretendDevice:
    if not _ACTIVE:
        raise PretendDeviceError("a PretendTensor is used outside of `with PretendDevice():`")
    return _ACTIVE[-1]


def is_device(device: Any) -> bool:
    """Whether a name or ``torch.device`` is the pretend device. It is the only CUDA device."""
    if isinstance(device, str) and device.startswith("cuda"):
        device = torch.device(device)
    return isinstance(device, torch.device) and device.type == "cuda"


class _Generator(_HostGenerator):
    """What ``torch.Generator`` is inside the context; "cpu" gives one of PyTorch's own."""

    def __new__(cls, device: Any = "cpu") -> torch.Generator:
        if not is_device(device):
            return _HostGenerator(device)
        return super().__new__(cls, "cpu").manual_seed(0)

    def __init__(self, device: Any = "cpu") -> None:
        pass

    device = property(lambda self: DEVICE)

    def manual_seed(self, seed: int) -> _Generator:
        super().manual_seed(seed ^ 0x5DEECE66D)
        return self


#: Matrix products. CUDA has none for integers.
_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot"}
#: Operations with CPU or device indices.
INDEXING = {"index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_"}
#: Operations that accept a CPU scalar although PyTorch does not mark them as pointwise.
_TAKE_SCALARS = {"where", "masked_fill", "masked_fill_", "fill_", "index_fill_", "index_fill"}
#: Copies, from any device to any.
COPIES = {"_to_copy", "copy_"}


class Operation:
    """Properties of an operation that are independent of its arguments."""

    def __init__(self, func: Any) -> None:
        schema = func._schema
        aliases = [r.alias_info for r in schema.returns]
        self.name: str = schema.name.split("::")[1]
        self.view = bool(aliases) and all(a is not None and not a.is_write for a in aliases)
        self.takes_scalars = torch.Tag.pointwise in func.tags or self.name in _TAKE_SCALARS
        self.num_returns = len(aliases)
        self._changed = [
            (position, argument.name)
            for position, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]

    def changed(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        """Arguments to which the operation writes."""
        return [args[i] if i < len(args) else kwargs.get(name) for i, name in self._changed]


# -- the device --------------------------------------------------------------------------------


_CUDA: dict[str, Callable[..., Any]] = {
    # C++ calls this function before it makes a tensor on cuda:0.
    "_lazy_init": lambda: None,
    "is_available": lambda: True,
    "device_count": lambda: 1,
    "mem_get_info": lambda device=None: (16 * 2**30, 16 * 2**30),
}


class PretendDevice:
    """Context in which "cuda" is the pretend device."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> PretendDevice:
        enter = self._stack.enter_context
        # Triton's interpreter is slow. Its kernels run here only if LNTM_TRITON asks for them.
        enter(mock.patch.dict(os.environ, {"LNTM_TRITON": os.environ.get("LNTM_TRITON", "0")}))
        enter(mock.patch.object(torch, "Generator", _Generator))
        enter(mock.patch.multiple(torch.cuda, **_CUDA))
        _ACTIVE.append(self)
        self._stack.callback(_ACTIVE.clear)
        enter(_Kernels(self))
        calls = enter(_Calls())
        # A function mode is off during its own calls, for example during Tensor.backward.
        run_backward = torch.autograd._engine_run_backward

        def with_calls(*args: Any, **kwargs: Any) -> Any:
            with calls:
                return run_backward(*args, **kwargs)

        enter(mock.patch.object(torch.autograd, "_engine_run_backward", with_calls))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @staticmethod
    @functools.cache
    def operation(func: Any) -> Operation:
        """Properties of an operation of PyTorch."""
        return Operation(func)

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation, on either device."""
        operation = self.operation(func)
        here: list[Tensor] = []
        host: list[Tensor] = []

        def unwrap(value: Any) -> Any:
            if isinstance(value, PretendTensor):
                here.append(value.inner)
                return value.inner
            if isinstance(value, Tensor):
                host.append(value)
            elif type(value) in (list, tuple):
                return type(value)([unwrap(v) for v in value])
            return value

        inner_args = [unwrap(a) for a in args]
        inner_kwargs = {name: unwrap(value) for name, value in kwargs.items()}
        asked = kwargs.get("device")
        on_device = bool(here) if asked is None else asked != _HOST
        if not here and not on_device:
            return func(*args, **kwargs)
        if asked is not None:
            inner_kwargs["device"] = _HOST
        if operation.name not in COPIES:
            if host:
                self._refuse_mixture(operation, args, kwargs, host)
            if operation.name in _PRODUCTS and not inner_args[0].is_floating_point():
                raise PretendDeviceError(f'"{operation.name}_cuda" not implemented for integers')
        elif operation.name != "copy_" and inner_args[0].layout != torch.strided:
            inner_kwargs.pop("layout", None)  # C++'s opinion of it
        out = func(*inner_args, **inner_kwargs)
        return self._wrap(operation, args, kwargs, out, on_device)

    def _refuse_mixture(
        self, operation: Operation, args: Any, kwargs: Any, host: list[Tensor]
    ) -> None:
        if operation.name in INDEXING:
            # Of any indices; of values, scalars.
            allowed = isinstance(args[0], PretendTensor) and not any(
                t is v for t in host if t.dim() for v in args[2:3]
            )
        else:
            # A single scalar, which is not written to.
            allowed = (
                operation.takes_scalars
                and all(t.dim() == 0 for t in host)
                and (len(host) == 1 or operation.name == "where")
                and not any(t is c for t in host for c in operation.changed(args, kwargs))
            )
        if allowed:
            return
        shapes = ", ".join(str(tuple(t.shape)) for t in host)
        raise PretendDeviceError(
            "Expected all tensors to be on the same device, but found at least two devices, cuda:0 "
            f"and cpu! ({operation.name}; of the CPU are those of shape {shapes})"
        )

    def _wrap(self, operation: Operation, args: Any, kwargs: Any, out: Any, on_device: bool) -> Any:
        changed = operation.changed(args, kwargs)
        if changed:
            for tensor in changed:
                if isinstance(tensor, PretendTensor):
                    _follow(tensor)
            return changed[0] if operation.num_returns == 1 else tuple(changed)
        return _wrapped(out, on_device)


def _wrapped(out: Any, on_device: bool) -> Any:
    if not on_device:
        return out
    if isinstance(out, Tensor):
        return PretendTensor(out)
    if isinstance(out, (list, tuple)):
        return type(out)([_wrapped(o, True) for o in out])
    return out


def _follow(outer: PretendTensor) -> None:
    """Give the wrapper of a tensor the shape of its numbers after an operation."""
    inner = outer.inner
    if inner.layout == torch.strided and (
        outer.shape != inner.shape or outer.stride() != inner.stride()
    ):
        torch.Tensor.data.__set__(outer, PretendTensor(inner))  # type: ignore[attr-defined]


class _Kernels(TorchDispatchMode):
    def __init__(self, device: PretendDevice) -> None:
        super().__init__()
        self._device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # The types are the types of the wrappers among the tensors.
        if not types and kwargs.get("device", _HOST) == _HOST:
            return func(*args, **kwargs)
        return self._device.run(func, args, kwargs)


@contextlib.contextmanager
def suspended() -> Iterator[None]:
    """Switch off an active pretend device, so that work on the CPU runs at full speed."""
    device = _ACTIVE[-1] if _ACTIVE else contextlib.nullcontext()
    device.__exit__(None, None, None)
    try:
        yield
    finally:
        device.__enter__()


# -- the calls that name a device --------------------------------------------------------------


def _translated(value: Any) -> Any:
    return _META if is_device(value) else value


def _to(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return func(args[0], *map(_translated, args[1:]), **kwargs)


def _cuda(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    kwargs.pop("device", None)
    return Tensor.to(args[0], _META, **kwargs)


def _numbers(data: Any) -> Any:
    """Nested sequences with device tensors replaced by their numbers. Each takes a wait."""
    if isinstance(data, (list, tuple)):
        return type(data)([_numbers(item) for item in data])
    return data.tolist() if isinstance(data, PretendTensor) else data


def _from_data(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Functions like torch.tensor. C++ would leave a tensor on the meta device unfilled."""
    if args and isinstance(args[0], (list, tuple)):
        args = (_numbers(args[0]), *args[1:])
    on_device = kwargs.get("device") == _META
    if on_device and not isinstance(args[0] if args else kwargs.get("data"), PretendTensor):
        del kwargs["device"]
        requires_grad = kwargs.pop("requires_grad", False)
        return func(*args, **kwargs).to(_META).requires_grad_(requires_grad)
    return func(*args, **kwargs)


def _index(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Lists and arrays as indices. ``_from_data`` gives the reason."""
    tensor, index, *value = args

    def to_host(part: Any) -> Any:
        return torch.as_tensor(part) if isinstance(part, list | np.ndarray) else part

    if isinstance(tensor, PretendTensor):
        index = tuple(map(to_host, index)) if isinstance(index, tuple) else to_host(index)
    return func(tensor, index, *value, **kwargs)


_CALLS: dict[Any, Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]] = {
    Tensor.to: _to,
    Tensor.cuda: _cuda,
    Tensor.__getitem__: _index,
    Tensor.__setitem__: _index,
    torch.tensor: _from_data,
    torch.as_tensor: _from_data,
    torch.asarray: _from_data,
}


class _Calls(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if kwargs:
            kwargs = dict(kwargs)
            if (generator := kwargs.get("generator")) is not None:
                self._check_generator(func, generator, args, kwargs)
            if kwargs.get("device") is not None:
                kwargs["device"] = _translated(kwargs["device"])
        call = _CALLS.get(func)
        if call is not None:
            return call(func, args, dict(kwargs or {}))
        return func(*args, **kwargs) if kwargs else func(*args)

    @staticmethod
    def _check_generator(func: Any, generator: Any, args: Any, kwargs: Any) -> None:
        """Check the device of a generator. Later, C++ replaces generators by new objects."""
        tensors = [v for v in (*args, *kwargs.values()) if isinstance(v, Tensor)]
        if kwargs.get("device") is not None:
            here = is_device(kwargs["device"])
        else:
            here = any(isinstance(t, PretendTensor) for t in tensors)
        if isinstance(generator, _Generator) != here:
            expected, found = ("cuda", "cpu") if here else ("cpu", "cuda")
            raise PretendDeviceError(
                f"Expected a '{expected}' device type for generator but found '{found}' "
                f"({getattr(func, '__name__', func)})"
            )
