"""Covariates: what a structural prior knows of its documents' columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError, CorpusError, CorpusWarning, warn
from torch_lntm.formulas import Formula

#: The name of the array in a batch's covariates.
PREVALENCE = "prevalence"
#: A column's spread below which it is taken for constant, relative to its size.
MIN_SPREAD = 1e-10
#: And the least that single precision, in which batches carry columns, resolves to a thousandth.
RESOLVED_SPREAD = 1e-4
#: The largest size that a column's values may have, and the inverse of the smallest: single
#: precision holds no others.
MAX_SIZE = 1e30


@dataclass(frozen=True)
class Covariates:
    """The columns that the prior mean of a structural topic model is linear in.

    There is no column for the intercept, which every such mean has.

    Attributes:
        names: Names of the columns.
        means: Their means in the training documents.
        scales: Their standard deviations there.
        formula: The formula that makes them of documents' metadata; None if they are given as an
            array, ``corpus.with_covariates({"prevalence": x})``.
    """

    names: tuple[str, ...]
    means: tuple[float, ...]
    scales: tuple[float, ...]
    formula: Formula | None = None

    @classmethod
    def of(cls, corpus: Corpus, formula: str | None) -> Covariates:
        """Learn the covariates of training documents.

        Args:
            corpus: The documents.
            formula: A formula over their metadata; None for their array ``"prevalence"``
                ``(num_docs, num_columns)``, without an intercept.

        Raises:
            ConfigError: The formula cannot be used or has no intercept, or a column is constant, or
                varies so little for its size that single precision would round it.
            CorpusError: Documents lack a value or the array.
        """
        if formula is None:
            fitted, matrix = None, _array(corpus)
            names = tuple(f"x{j}" for j in range(matrix.shape[1]))
        elif isinstance(formula, str):
            fitted, matrix = Formula.fit(formula, corpus.metadata, corpus.num_docs)
            if fitted.names[:1] != ("Intercept",):
                raise ConfigError(f"prevalence {formula!r} has no intercept; leave out the 0 or -1")
            names, matrix = fitted.names[1:], matrix[:, 1:]
        else:
            raise ConfigError(
                f"prevalence is a {type(formula).__name__}; expected a formula such as "
                "'~ party', or None for the array of corpus.with_covariates({'prevalence': x})"
            )
        sizes = np.abs(matrix).max(0, initial=0.0)
        extreme = np.flatnonzero((sizes > MAX_SIZE) | (sizes > 0) & (sizes < 1 / MAX_SIZE))
        if len(extreme):
            raise ConfigError(
                f"prevalence: the values of the column {names[extreme[0]]} reach "
                f"{sizes[extreme[0]]:.3g}, and single precision holds {1 / MAX_SIZE:g} to "
                f"{MAX_SIZE:g}; multiply the column by a constant"
            )
        means, scales = matrix.mean(0), matrix.std(0)
        constant = np.flatnonzero(scales <= MIN_SPREAD * sizes)
        if len(constant):
            raise ConfigError(
                f"prevalence: the column {names[constant[0]]} is the same in all documents, which "
                "the intercept says already; leave it out"
            )
        blurred = np.flatnonzero(scales <= RESOLVED_SPREAD * sizes)
        if len(blurred):
            name = names[blurred[0]]
            raise ConfigError(
                f"prevalence: the column {name} varies by {scales[blurred[0]]:.2g} around "
                f"{means[blurred[0]]:.9g}, which single precision would round; take center({name}) "
                "in the formula, or subtract the mean; and write dates as in 2004-09-30"
            )
        return cls(names, tuple(means.tolist()), tuple(scales.tolist()), fitted)

    def encode(self, corpus: Corpus) -> Corpus:
        """The corpus with the array ``"prevalence"`` ``(num_docs, num_columns)``.

        It is derived once: an encoded corpus is returned as it is. Documents without any of the
        columns keep the array that they have, such as those that the model generated. Without one
        they get the mean of the training documents, with a warning.

        Raises:
            CorpusError: Some of the columns are missing, a value is, or a level is not known.
        """
        has_columns = self.formula is not None and self.formula.reads_any(corpus.metadata)
        if PREVALENCE in corpus.covariates and not has_columns:
            width = _array(corpus).shape[1]
            if width != len(self.names):
                raise CorpusError(
                    f"the covariate {PREVALENCE!r} has {width} columns; the model was made for "
                    f"{len(self.names)}: {', '.join(self.names)}"
                )
            return corpus.without_encodings(PREVALENCE)
        return corpus.with_encoding(PREVALENCE, self, lambda: self._derive(corpus))

    def _derive(self, corpus: Corpus) -> NDArray[np.float64]:
        if self.formula is not None and self.formula.reads_any(corpus.metadata):
            return self.formula.matrix(corpus.metadata, corpus.num_docs)[:, 1:]
        warn(
            f"{corpus!r} has no column of the model's prevalence ({', '.join(self.names)}); its "
            "documents get the mean of the training documents'",
            CorpusWarning,
        )
        return np.broadcast_to(self.means, (corpus.num_docs, len(self.names)))

    def to_json(self) -> dict[str, Any]:
        """The covariates as JSON-able data."""
        return {
            "names": list(self.names),
            "means": list(self.means),
            "scales": list(self.scales),
            "formula": None if self.formula is None else self.formula.to_json(),
        }

    @classmethod
    def from_json(cls, data: Any) -> Covariates:
        """The covariates that :meth:`to_json` gave.

        Raises:
            ConfigError: The data are damaged, or hold a formula that may not be evaluated.
        """
        if not isinstance(data, Mapping):
            raise ConfigError(
                f"prevalence is {data!r:.80}; expected what Covariates.to_json() gives. Make the "
                "model by models.stm(num_topics, corpus, prevalence='~ party')"
            )
        try:
            names = tuple(map(str, data["names"]))
            means, scales = (tuple(map(float, data[key])) for key in ("means", "scales"))
            formula = data["formula"]
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"the covariates of prevalence are damaged ({error!r})") from error
        numbers = np.array([means, scales])
        fits = len(names) == len(means) == len(scales)
        if not fits or not np.isfinite(numbers).all() or not (numbers[1] > 0).all():
            raise ConfigError("the covariates of prevalence are damaged: their sizes do not fit")
        fitted = None if formula is None else Formula.from_json(formula)
        if fitted is not None and fitted.names != ("Intercept", *names):
            raise ConfigError("the covariates of prevalence are not those of its formula")
        return cls(names, means, scales, fitted)


def _array(corpus: Corpus) -> NDArray[np.float64]:
    """The array of covariates that a corpus carries."""
    array = np.asarray(corpus.covariates[PREVALENCE], np.float64)
    if array.ndim != 2:
        raise CorpusError(
            f"the covariate {PREVALENCE!r} has shape {array.shape}; expected (num_docs, "
            "num_columns)"
        )
    return array
