"""Checks of arguments and warnings about documents, which all evaluations share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from torch_lntm.corpus import Corpus
from torch_lntm.corpus.corpus import as_corpus
from torch_lntm.errors import ConfigError, UnreliableEstimateWarning, require_whole, warn
from torch_lntm.latents.identified import IdentifiedSpace
from torch_lntm.models import TopicModel
from torch_lntm.models.model import require_model


def check_arguments(model: Any, corpus: Any, *, seed: int, max_docs: int) -> Corpus:
    """Check the arguments that all evaluations have in common.

    Args:
        model: The model.
        corpus: Documents over the model's vocabulary, or a matrix of counts.
        seed: A seed.
        max_docs: Documents to compute together.

    Returns:
        The corpus, with the covariates that the model's prior reads.

    Raises:
        ConfigError: The model or the corpus has another type, the vocabularies differ, or a number
            is too small.
    """
    require_model(model)
    require_whole(0, seed=seed)
    require_whole(1, max_docs=max_docs)
    return model.encode(as_corpus(corpus, allow_empty=True))


def corpus_space(model: TopicModel, corpus: Corpus) -> IdentifiedSpace:
    """Coordinates of the corpus's first document, to ask for properties of the prior."""
    return model.prior.identified(corpus.batch([0], model.device, model.dtype))


def format_positions(documents: Tensor) -> str:
    """The first five positions as text."""
    positions = documents.tolist()
    return ", ".join(map(str, positions[:5])) + (", …" if len(positions) > 5 else "")


def warn_of_documents(bad: Tensor, problem: str, cure: str, what: str = "log likelihoods") -> None:
    """Warn of all unreliable documents at once, by their number and the first few positions.

    Args:
        bad: ``(num_docs,)`` bool, the unreliable documents. There is a warning if any is True.
        problem: The reason, such as "chains that never moved".
        cure: Advice to the user.
        what: The unreliable quantity.
    """
    if bool(bad.any()):
        positions = bad.nonzero().flatten()
        warn(
            f"{len(positions)} of {len(bad)} documents have {problem} "
            f"(positions {format_positions(positions)}): their {what} are not reliable; {cure}",
            UnreliableEstimateWarning,
        )


def as_matrix(values: Any, name: str) -> Tensor:
    """A model's topics, or a matrix of any library, as a float64 tensor on the CPU.

    Args:
        values: A model; or nonnegative numbers, an array or a tensor. A data frame is refused,
            because its rows and columns may be in another order.
        name: Name of the argument, for messages.

    Raises:
        ConfigError: The values are no matrix of finite, nonnegative numbers.
    """
    if isinstance(values, TopicModel):
        values = values.topics.mean_probs
    try:
        if isinstance(values, pd.DataFrame):
            raise TypeError("rows and columns may be in another order")
        numbers = values if isinstance(values, Tensor) else torch.from_numpy(np.array(values))
        rows = numbers.detach().cpu().double()
    except (TypeError, ValueError, RuntimeError):
        raise ConfigError(
            f"{name} is a {type(values).__name__}; expected a matrix of numbers: an array or a "
            "tensor, frame.to_numpy() of a data frame with its rows and columns in order"
        ) from None
    if rows.dim() != 2 or not torch.isfinite(rows).all() or (rows < 0).any():
        raise ConfigError(
            f"{name} has shape {tuple(rows.shape)}; expected two dimensions, and finite and "
            "nonnegative numbers, without NaN, inf or a negative"
        )
    return rows


def as_probabilities(values: Any, name: str) -> Tensor:
    """Rows of probabilities as a float64 tensor on the CPU, normalised.

    Args:
        values: See :func:`as_matrix`.
        name: Name of the argument, for messages.

    Raises:
        ConfigError: A row is 0. See also :func:`as_matrix`.
    """
    rows = as_matrix(values, name)
    total = rows.sum(1, keepdim=True)
    if (total == 0).any():
        row = int((total == 0).nonzero()[0, 0])
        raise ConfigError(f"{name}: row {row} sums to 0; give it some mass")
    return rows / total
