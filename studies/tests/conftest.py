"""What the tests of the studies share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import (
    fused,
    lee,
    numba,
    pytest_collection_modifyitems,
    shared_data,
    shared_state,
    triton,
)
from tests.support.corpora import save_counts
from torch_lntm.corpus import Corpus, synthetic_topics

__all__ = [
    "fused",
    "lee",
    "numba",
    "pytest_collection_modifyitems",
    "shared_data",
    "shared_state",
    "triton",
]


@pytest.fixture
def device() -> torch.device:
    """The processor; only the tests of the package have an option for it."""
    return torch.device("cpu")


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Studies set the number of torch's threads."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus in a file, with labels and a split beside it, as the real ones are.

    240 documents of 30 tokens over 40 words. A document's label is its largest topic of four.
    """
    rng = np.random.default_rng(0)
    topics = torch.as_tensor(synthetic_topics(4, 40, 0.1, seed=0)).double().numpy()
    theta = rng.dirichlet(np.full(4, 0.3), 240)
    counts = np.stack([rng.multinomial(30, row) for row in theta @ topics])
    labels = [f"L{k}" for k in theta.argmax(1)]
    file = tmp_path_factory.mktemp("texts") / "tiny.npz"
    words = [f"word{v}" for v in range(40)]
    save_counts(Corpus.from_matrix(counts, words, metadata={"label": labels}), file)
    parts = ["test" if d % 4 == 0 else "train" for d in range(240)]
    file.with_suffix(".split.txt").write_text("\n".join(parts) + "\n")
    return file
