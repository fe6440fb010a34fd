"""Settings of tuned peers by the length of documents, and the trials of the study ``search``.

The search uses splits that no table has. :data:`CENTRE` is its start; :data:`GRID` has its trials.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Classes by the mean number of tokens of a training document, with the largest mean of each.
LENGTHS = {"titles": 20.0, "abstracts": 110.0, "news": float("inf")}

#: The first settings of the search.
CENTRE: dict[str, dict[str, Any]] = {
    "topica LDA": {
        "iters": 1000,
        "alpha_sum": 1.0,
        "beta": 0.01,
        "optimize_interval": 10,
        "num_samples": 40,
        "sample_interval": 10,
    },
    "tomotopy LDA": {
        "sweeps": 1000,
        "alpha_sum": 1.0,
        "eta": 0.05,
        "optim_interval": 10,
        "states": 40,
        "lag": 10,
    },
}
#: Values of each setting, tried in this order. ``"K"`` is the number of topics.
GRID: dict[str, dict[str, tuple[Any, ...]]] = {
    "topica LDA": {
        "beta": (0.01, 0.05, 0.1),
        "alpha_sum": (1.0, 5.0, "K"),
        "optimize_interval": (10, 50),
        "use_symmetric_alpha": (False, True),
        "init": ("random", "spectral"),
        "sampler": ("sparse", "cvb0"),
        "iters": (1000, 2000),
        "num_samples": (40, 1),
    },
    "tomotopy LDA": {
        "eta": (0.05, 0.01, 0.1),
        "alpha_sum": (1.0, 5.0, "K"),
        "optim_interval": (10, 50),
        "sweeps": (1000, 2000),
        "states": (40, 1),
    },
    "torch_lntm ctm, auto": {
        "topic_smoothing": (0.05, 0.01, 0.1),
        "num_chains": (1, 4),
        "num_transitions": (3, 5),
        "max_epochs": (60, 120),
        "min_gain": (0.003, 0.001),
        "pseudo_variance": (10.0, 3.0),
    },
}
#: Settings of the tuned peers: the best of the search (``studies/results/search.json``).
TUNED: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "topica LDA": {
        "titles": CENTRE["topica LDA"]
        | {"beta": 0.05, "optimize_interval": 50, "init": "spectral", "iters": 2000},
        "abstracts": CENTRE["topica LDA"] | {"beta": 0.1, "alpha_sum": 5.0},
        "news": CENTRE["topica LDA"] | {"beta": 0.05, "alpha_sum": 5.0},
    },
    "tomotopy LDA": {
        "titles": CENTRE["tomotopy LDA"],
        "abstracts": CENTRE["tomotopy LDA"] | {"eta": 0.1},
        "news": CENTRE["tomotopy LDA"] | {"sweeps": 2000},
    },
}


def length_class(length: float) -> str:
    """The class of documents with a mean number of tokens."""
    return next(name for name, most in LENGTHS.items() if length <= most)
