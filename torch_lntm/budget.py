"""How many documents fit in memory at once, by device."""

from __future__ import annotations

import torch

#: Numbers that documents computed together take on a CPU. More gain nothing: they leave the caches.
CPU_NUMBERS = 2**23
#: Share of a CUDA device's memory that they take there.
CUDA_SHARE = 1 / 8
#: Bounds on the number of documents, by type of device; beyond the upper one launches cost nothing.
LEAST_DOCS = 16
MOST_DOCS = {"cpu": 1024, "cuda": 65536}


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
        The number of documents, at least 16.
    """
    device = torch.device(device)
    numbers = float(CPU_NUMBERS)
    if device.type == "cuda":
        memory = torch.cuda.mem_get_info(device)[1]
        numbers = CUDA_SHARE * memory / dtype.itemsize
    most = MOST_DOCS.get(device.type, MOST_DOCS["cpu"])
    return min(max(LEAST_DOCS, int(numbers / max(numbers_per_document, 1.0))), most)
