"""Documents with a party and an age."""

import numpy as np
import pytest

from torch_lntm.corpus import Corpus


@pytest.fixture(scope="session")
def corpus() -> Corpus:
    """40 documents over 12 words."""
    rng = np.random.default_rng(0)
    counts = rng.multinomial(25, rng.dirichlet(np.full(12, 0.3), 40))
    party = rng.permutation(np.repeat(["Left", "Right"], 20))
    metadata = {"party": party, "age": rng.uniform(20, 60, 40)}
    return Corpus.from_matrix(counts, [f"w{v}" for v in range(12)], metadata=metadata)
