"""PosteriorAccuracy: distances of posteriors from long chains, as a table and as numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

#: The name under which the chains' own noise stands among the guides.
NOISE = "noise"


@dataclass(frozen=True, eq=False)
class Accuracy:
    """Distances of posteriors from the chains' draws, of each document.

    Means and covariances are compared of what the prior's identified space calls its variable, in
    units of prior standard deviations: the K centred logits of theta, because the softmax ignores
    their mean, or theta itself under a Dirichlet prior.

    Attributes:
        mean_error: ``(num_docs,)`` root mean square over topics of the difference of the means.
        std_ratio: ``(num_docs,)`` geometric mean over topics of the ratio of standard deviations,
            guide to chains: below 1 the guide is too sure.
        covariance_error: ``(num_docs,)`` Frobenius norm of the difference of the covariances, as a
            part of that of the chains' covariance.
        total_variation: ``(num_docs,)`` ½ Σ_k |E_q theta_k − E_p theta_k|, the share of a
            document's tokens that the guide gives to other topics.
    """

    mean_error: Tensor
    std_ratio: Tensor
    covariance_error: Tensor
    total_variation: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class PosteriorAccuracy:
    """What :func:`posterior_accuracy` found; ``print`` shows it as a table.

    Attributes:
        guides: The distances by the names of the guides, of all documents drawn.
        noise: The value each distance would have for an exact posterior, because the reference
            chains and the guide's draws of theta are finite. Its ``std_ratio`` is 1 plus one
            standard error. Errors of the mean and covariance add to it in squares.
        unconverged: Documents that a guide's solver did not finish, by the names of the guides.
        index: ``(num_docs,)`` positions of the documents in the corpus.
        lengths: ``(num_docs,)`` their tokens.
        rhat: ``(num_docs,)`` split R-hat of the worst topic.
        effective_sample_size: ``(num_docs,)`` of the slowest topic's mean.
        reliable: ``(num_docs,)`` bool, R-hat is at most 1.01, the effective sample size at least
            400, and all chains moved; the others are left out of the table and of all averages.
        variable: What was compared, ``"centred logits"`` or ``"theta"``.
        method: What drew the chains, in words.
        corpus_name: Name of the corpus.
    """

    guides: dict[str, Accuracy]
    noise: Accuracy
    unconverged: dict[str, int]
    index: Tensor
    lengths: Tensor
    rhat: Tensor
    effective_sample_size: Tensor
    reliable: Tensor
    variable: str
    method: str
    corpus_name: str | None

    def average(self, name: str) -> dict[str, tuple[float, float]]:
        """Means over the reliable documents, with standard errors over documents.

        Args:
            name: Name of a guide, or ``"noise"``.

        Returns:
            ``(mean, standard error)`` by the names of :class:`Accuracy`; of ``std_ratio`` the
            geometric mean, its error relative to 1. NaN where there are too few documents.
        """
        result = {}
        accuracy = self.noise if name == NOISE else self.guides[name]
        for field in fields(Accuracy):
            values = getattr(accuracy, field.name)[self.reliable]
            ratio = field.name == "std_ratio"
            values = values.log() if ratio else values
            mean = float(values.mean()) if len(values) else math.nan
            error = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else math.nan
            result[field.name] = (math.exp(mean) if ratio else mean, error)
        return result

    def __repr__(self) -> str:
        where = f" on {self.corpus_name}" if self.corpus_name else ""
        used = int(self.reliable.sum())
        lines = [
            f"PosteriorAccuracy{where}: {used} of {len(self.reliable)} documents, against "
            f"{self.method}",
            f"means over documents ± s.e.; mean errors in prior s.d. of {self.variable}",
        ]
        header = ["posterior", "mean error", "s.d. ratio", "covariance error", "TV of theta"]
        rows = [[*header, "TV of 90 %", "unconverged"]]
        for name, accuracy in [*self.guides.items(), (NOISE, self.noise)]:
            cells = [f"{m:.3f} ± {e:.3f}" for m, e in self.average(name).values()]
            distances = accuracy.total_variation[self.reliable]
            tail = float(distances.quantile(0.9)) if used else math.nan
            label, ends = name, str(self.unconverged.get(name, ""))
            if name == NOISE:
                label = "(chains' noise)"
                cells = [cell.split(" ± ")[0] for cell in cells]
                ratio = self.average(name)["std_ratio"][0]
                cells[1] = f"1 ± {ratio - 1:.3f}"
            rows.append([label, *cells, f"{tail:.3f}", ends])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for label, *cells in rows:
            padded = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
            lines.append("  ".join([label.ljust(widths[0]), *padded]).rstrip())
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON-able numbers, per document and averaged; None for a NaN average."""
        guides = {
            name: {
                "average": {
                    key: {"mean": _or_none(mean), "standard_error": _or_none(error)}
                    for key, (mean, error) in self.average(name).items()
                },
                "unconverged": self.unconverged.get(name, 0),
                "documents": {
                    field.name: getattr(accuracy, field.name).tolist() for field in fields(Accuracy)
                },
            }
            for name, accuracy in [*self.guides.items(), (NOISE, self.noise)]
        }
        chains = ("index", "lengths", "rhat", "effective_sample_size", "reliable")
        return {
            "corpus": self.corpus_name,
            "variable": self.variable,
            "method": self.method,
            "num_reliable": int(self.reliable.sum()),
            "posteriors": guides,
            "chains": {name: getattr(self, name).tolist() for name in chains},
        }


def concatenate(parts: list[Accuracy]) -> Accuracy:
    """The distances of all batches' documents."""
    names = [field.name for field in fields(Accuracy)]
    return Accuracy(*(torch.cat([getattr(part, name) for part in parts]) for name in names))


def _or_none(value: float) -> float | None:
    """What JSON has for NaN."""
    return None if math.isnan(value) else value
