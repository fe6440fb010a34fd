"""Four small documents with held-out tokens, and priors and topics for them."""

from __future__ import annotations

import numpy as np

from torch_lntm.corpus import Corpus, WordHoldOut

_RNG = np.random.default_rng(0)
NUM_WORDS = 6
TOPICS = {k: _RNG.dirichlet(np.full(NUM_WORDS, 0.5), k) * 0.97 + 0.03 / NUM_WORDS for k in (2, 3)}
ALPHA = {2: np.array([0.4, 1.1]), 3: np.array([0.2, 0.7, 0.4])}
LOC = {2: np.array([0.5, -0.3]), 3: np.array([0.2, -0.4, 0.6])}
_ROOT = _RNG.normal(size=(3, 3)) + np.eye(3)
COVARIANCE = {k: (_ROOT @ _ROOT.T)[:k, :k] for k in (2, 3)}
#: Observed and held-out counts; one document has nothing observed, one nothing held out.
OBSERVED = np.array(
    [[3, 0, 1, 0, 2, 0], [0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0], [1, 2, 0, 4, 1, 6]]
)
HELD_OUT = np.array(
    [[1, 1, 0, 2, 0, 1], [0, 0, 2, 1, 0, 0], [2, 0, 0, 0, 1, 0], [0, 0, 0, 0, 0, 0]]
)


def hold_out(times: int = 1) -> WordHoldOut[Corpus]:
    """The documents, each several times."""
    observed, rest = (np.tile(x, (times, 1)) for x in (OBSERVED, HELD_OUT))
    corpus = Corpus.from_matrix(observed + rest, name="few")
    entries = (
        np.repeat(np.arange(corpus.num_docs), np.diff(corpus.row_offsets)),
        corpus.word_index,
    )
    return WordHoldOut(corpus, observed[entries].astype(np.int64))
