"""How many documents fit in memory at once, by device."""

from __future__ import annotations

import torch

#: Numbers that documents computed together take on a CPU.
CPU_NUMBERS = 2**23
#: Share of a CUDA device's memory that they take there.
CUDA_SHARE = 1 / 8
#: Share of it that a table may take which a fit keeps there: it has a few, and two copies of each.
TABLE_SHARE = 1 / 32
#: Bounds on the number of documents. Solvers' last rounds, of few documents, cost as much for every
#: batch; beyond the upper bounds that and, on CUDA, launches cost next to nothing.
LEAST_DOCS = 8
MOST_ON_CPU, MOST_ON_CUDA = 4096, 65536


def docs_at_once(
    numbers_per_document: float,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> int:
    """The number of documents to compute together, to bound memory.

    It depends on the kind of machine, not on what else runs there: the same command computes the
    same batches again.

    Args:
        numbers_per_document: Floating-point numbers that one document takes, such as the entries
            of its posterior covariance.
        device: Where the computation happens.
        dtype: The type of these numbers.

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
    """Whether one of a fit's few large tables may stay on a device: always, on a CPU."""
    device = torch.device(device)
    if device.type != "cuda":
        return True
    return num_bytes <= TABLE_SHARE * torch.cuda.mem_get_info(device)[1]
