"""Results of ``posterior_accuracy``: distances as numbers and as a table."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

#: Name of the chains' own noise among the names of guides.
NOISE = "noise"


@dataclass(frozen=True, eq=False)
class Accuracy:
    """Distances of a guide's posteriors from the chains' draws, for each document.

    The compared variable is the K centred logits of theta, in prior standard deviations. (The
    softmax ignores the mean of the logits.) Under a Dirichlet prior the variable is theta.

    Attributes:
        mean_error: ``(num_docs,)`` root mean square over topics of the difference of the means.
        std_ratio: ``(num_docs,)`` geometric mean over topics of the ratio of standard deviations,
            guide to chains. The guide's uncertainty is too small if the ratio is below 1.
        covariance_error: ``(num_docs,)`` Frobenius norm of the difference of the covariances,
            divided by the norm of the chains' covariance.
        total_variation: ``(num_docs,)`` ½ Σ_k |E_q theta_k − E_p theta_k|, the share of a
            document's tokens that the guide assigns to a different topic.
    """

    mean_error: Tensor
    std_ratio: Tensor
    covariance_error: Tensor
    total_variation: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class PosteriorAccuracy:
    """Result of :func:`posterior_accuracy`; ``print`` shows a table.

    Attributes:
        guides: Distances of all documents, by name of the guide.
        noise: Expected distances of an exact posterior. They are above 0 because the chains and
            the guide's draws of theta are finite. ``std_ratio`` is 1 plus the standard error of the
            ratio. Measured errors of the mean and of the covariance contain the noise: their
            squares are about the sum of the squared true error and the squared noise.
        unconverged: Number of documents that a guide's solver did not finish, by name of the guide.
        index: ``(num_docs,)`` positions of the documents in the corpus.
        lengths: ``(num_docs,)`` tokens of the documents.
        rhat: ``(num_docs,)`` largest split R-hat over topics.
        effective_sample_size: ``(num_docs,)`` smallest effective sample size over topics.
        reliable: ``(num_docs,)`` bool, whether R-hat is at most 1.01, the effective sample size at
            least 400, and every chain moved. The table and all averages use reliable documents.
        variable: The compared variable, ``"centred logits"`` or ``"theta"``.
        method: Sampler and length of the chains, in words.
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
            ``(mean, standard error)`` by the field names of :class:`Accuracy`. ``std_ratio`` has a
            geometric mean and a relative error. NaN if there are too few documents.
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
        """All numbers, per document and averaged, ready for JSON; None for a NaN average."""
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
    """Distances of the documents of all batches."""
    names = [field.name for field in fields(Accuracy)]
    return Accuracy(*(torch.cat([getattr(part, name) for part in parts]) for name in names))


def _or_none(value: float) -> float | None:
    """The value, or None (JSON's null) for NaN."""
    return None if math.isnan(value) else value
