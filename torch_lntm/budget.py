"""Devices, and the number of documents to compute together by the memory of a device."""

from __future__ import annotations

import ctypes
from contextlib import suppress

import torch

from torch_lntm.errors import ConfigError

#: Largest number of floating-point numbers to hold for documents computed together on a CPU.
CPU_NUMBERS = 2**23
#: Largest share of a CUDA device's memory for the documents computed together.
CUDA_SHARE = 1 / 8
#: Largest share of a CUDA device's memory for one table of a fit. A fit has a few tables, with two
#: copies of each.
TABLE_SHARE = 1 / 32
#: Bounds on the number of documents. Every batch has fixed costs: the last rounds of the solver,
#: where few documents remain, and kernel launches on CUDA. Above the upper bounds these costs are
#: negligible.
LEAST_DOCS = 8
#: Smallest number of floating-point numbers in the tables of a fit for which free memory is
#: returned to the system.
LARGE_TABLES = 2**22
MOST_ON_CPU, MOST_ON_CUDA = 4096, 65536


def find_device(name: torch.device | str) -> torch.device:
    """Device of a name.

    Args:
        name: A device, ``"auto"``, or torch's name of a device, such as ``"cpu"`` or ``"cuda:1"``.
            ``"auto"`` is the CUDA device if the machine has one, and the CPU otherwise.

    Raises:
        ConfigError: The device is unknown or missing.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"device {name!r}; expected auto, cpu or cuda") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device {name}: torch finds no CUDA device here; use auto or cpu")
    return device


def docs_at_once(
    numbers_per_document: float,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> int:
    """Number of documents to compute together, to bound memory.

    The number depends on the machine's total memory and ignores its load. A repeated command
    therefore computes the same batches.

    Args:
        numbers_per_document: Number of floating-point numbers that one document needs, such as the
            entries of its posterior covariance.
        device: Device of the computation.
        dtype: Type of the numbers.

    Returns:
        The number of documents, at least 8.
    """
    device = torch.device(device)
    numbers, most = float(CPU_NUMBERS), MOST_ON_CPU
    if device.type == "cuda":
        memory = torch.cuda.mem_get_info(device)[1]
        numbers, most = CUDA_SHARE * memory / dtype.itemsize, MOST_ON_CUDA
    return min(max(LEAST_DOCS, int(numbers / max(numbers_per_document, 1.0))), most)


def fits(num_bytes: float, device: torch.device | str) -> bool:
    """Whether a large table of a fit may stay on a device. CPUs have room for any table.

    Args:
        num_bytes: Size of the table.
        device: The device.
    """
    device = torch.device(device)
    if device.type != "cuda":
        return True
    return num_bytes <= TABLE_SHARE * torch.cuda.mem_get_info(device)[1]


def release_memory(num_rows: int, num_columns: int) -> None:
    """Return free memory to the system after work with large tables.

    The allocator of the GNU C library keeps the memory of freed tensors, in pieces that the next
    tensors may not fit. With other C libraries the function does nothing.

    Args:
        num_rows: Number of rows of all tables together.
        num_columns: Number of their columns. Small tables are not worth the time.
    """
    if num_rows * num_columns >= LARGE_TABLES:
        with suppress(AttributeError, OSError, TypeError):
            ctypes.CDLL(None).malloc_trim(0)
