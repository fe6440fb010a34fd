"""Estimates of log likelihoods, and the base class of methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import pandas as pd
import torch
from torch import Tensor

from torch_lntm.corpus import Corpus
from torch_lntm.evaluation.checks import check_arguments
from torch_lntm.evaluation.per_token import PerTokenScore
from torch_lntm.models import TopicModel

#: Largest Pareto k̂ of a reliable importance estimate.
PARETO_K_LIMIT = 0.7


@dataclass(frozen=True, eq=False, repr=False)
class LikelihoodEstimate(PerTokenScore):
    """Estimates of log p(w_d), the log probability of a document's tokens in a given order.

    Attributes:
        log_likelihood: ``(num_docs,)`` float64 nats; 0 for an empty document.
        standard_error: ``(num_docs,)`` standard error of each estimate over draws or chains, nats.
        lengths: ``(num_docs,)`` int64 tokens.
        method: Name of the method.
        description: The method and its settings, in words.
        num_draws: Draws or chains per document.
        seed: Seed of the draws; None for a method without draws.
        corpus_name: Name of the corpus.
        effective_sample_size: ``(num_docs,)`` effective number of draws or chains; None for a
            method without draws.
        pareto_k: ``(num_docs,)`` tail shape of the importance weights, ``-inf`` for an empty
            document. An estimate is unreliable above 0.7. None for other methods.
        acceptance: ``(num_docs,)`` mean acceptance probability of the chains' transitions, 1 for an
            empty document. None for methods other than annealed importance sampling.
        documents: Names of the documents, the index of the corpus's metadata.
    """

    log_likelihood: Tensor
    standard_error: Tensor
    lengths: Tensor
    method: str
    description: str
    num_draws: int
    seed: int | None = None
    corpus_name: str | None = None
    effective_sample_size: Tensor | None = None
    pareto_k: Tensor | None = None
    acceptance: Tensor | None = None
    documents: pd.Index | None = None

    _values = ("log_likelihood", "lengths")

    def frame(self) -> pd.DataFrame:
        """A row for each document, by name.

        The columns are ``tokens``, ``log_likelihood``, ``standard_error``, and the diagnostics that
        the method has: ``effective_sample_size``, ``pareto_k``, ``acceptance``.
        """
        names = ("log_likelihood", "standard_error", "effective_sample_size", "pareto_k")
        columns = {name: getattr(self, name) for name in (*names, "acceptance")}
        given = {name: x.numpy() for name, x in columns.items() if x is not None}
        return pd.DataFrame({"tokens": self.lengths.numpy()} | given, self.documents)

    @property
    def total(self) -> float:
        """Σ_d log p(w_d), nats."""
        return float(self.log_likelihood.sum())

    @property
    def total_error(self) -> float:
        """Monte Carlo standard error of ``total``, nats."""
        return float(self.standard_error.square().sum().sqrt())

    def __repr__(self) -> str:
        where = f" of {self.corpus_name}" if self.corpus_name else ""
        seed = "" if self.seed is None else f", seed {self.seed}"
        text = (
            f"LikelihoodEstimate: log p(w){where} by {self.description}{seed}\n"
            f"  total       {self.total:.1f} nats ± {self.total_error:.2g} (Monte Carlo s.e.), "
            f"{self.num_docs} documents, {int(self.lengths.sum())} tokens"
        )
        if not self.num_docs:
            return text
        text += f"\n{self._figures()}"
        used, size = self.lengths > 0, self.effective_sample_size
        digits = 0 if self.num_draws >= 100 else 1
        spread = {"effective sample size": (size, digits), "acceptance": (self.acceptance, 2)}
        lines = [
            f"{name} {float(values[used].median()):.{digits}f} in the median, "
            f"{float(values[used].min()):.{digits}f} at least"
            for name, (values, digits) in spread.items()
            if values is not None
        ]
        if self.pareto_k is not None:
            k = self.pareto_k[used]
            lines.append(
                f"Pareto k {float(k.median()):.2f} in the median, above {PARETO_K_LIMIT} in "
                f"{int((k > PARETO_K_LIMIT).sum())} documents"
            )
        return "\n  weights     ".join([text, "; ".join(lines)] if lines else [text])


class LikelihoodMethod(ABC):
    """Base class of methods that estimate log p(w_d).

    A subclass is a frozen dataclass of the method's settings, and defines :meth:`compute`.
    """

    #: Name of the method for :func:`~torch_lntm.evaluation.log_likelihood`.
    name: ClassVar[str]

    @torch.no_grad()
    def estimate(
        self,
        model: TopicModel,
        corpus: Corpus,
        *,
        seed: int = 0,
        max_docs: int = 256,
        progress: bool = True,
    ) -> LikelihoodEstimate:
        """Estimate log p(w_d) of every document.

        Args:
            model: The model. Its present parameters are used, on its device, in float64.
            corpus: Documents over the model's vocabulary, or a matrix of counts.
            seed: Seed of the draws.
            max_docs: Most documents computed together.
            progress: Show a progress bar.

        Raises:
            ConfigError: A setting is out of range, or the corpus has another vocabulary.
            IncompatibleGuideError: The guide belongs to another model, or the method does not
                support the model's prior.
            NumericalError: A computation failed; names documents.

        Warns:
            UnreliableEstimateWarning: Estimates of some documents are unreliable.
        """
        corpus = check_arguments(model, corpus, seed=seed, max_docs=max_docs)
        estimate = self.compute(model, corpus, seed, max_docs, progress)
        return replace(estimate, documents=corpus.metadata.index)

    @abstractmethod
    def compute(
        self, model: TopicModel, corpus: Corpus, seed: int, max_docs: int, progress: bool
    ) -> LikelihoodEstimate:
        """The computation of :meth:`estimate`, with checked arguments.

        Args:
            model: See :meth:`estimate`.
            corpus: The documents, with the covariates that the model's prior reads.
            seed: See :meth:`estimate`.
            max_docs: See :meth:`estimate`.
            progress: See :meth:`estimate`.
        """
