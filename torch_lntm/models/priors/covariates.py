"""Covariates, the columns from which a structural prior computes its mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError, CorpusError, CorpusWarning, warn
from torch_lntm.formulas import Formula

#: Names of the arrays in a batch's covariates: columns, and positions of random terms' levels.
PREVALENCE, LEVELS = "prevalence", "prevalence_levels"
#: Limit on the largest absolute value of a column. Its inverse is the lower limit.
MAX_SIZE = 1e30


@dataclass(frozen=True)
class Covariates:
    """Columns of metadata in which the prior mean of a structural topic model is linear.

    They remember the levels, knots and moments of the training documents, so that other documents
    are encoded in the same way. The intercept is implied and has no column.

    Attributes:
        names: Names of the columns.
        means: Means of the columns in the training documents.
        scales: Standard deviations of the columns in the training documents.
        formula: Formula that makes the columns from metadata. ``None`` if the columns are the array
            of ``corpus.with_covariates({"prevalence": x})``.

    Example:
        >>> covariates = lntm.models.Covariates.of(posts, "~ party + year")
        >>> covariates.names, covariates.means
        (('party[T.right]', 'year'), (0.5, 2002.0))
    """

    names: tuple[str, ...]
    means: tuple[float, ...]
    scales: tuple[float, ...]
    formula: Formula | None = None

    @property
    def random(self) -> Mapping[str, tuple[Any, ...]]:
        """Levels of each random term, by the name of its column."""
        return {} if self.formula is None else self.formula.random

    def without_random(self) -> Covariates:
        """The covariates without random terms."""
        formula = None if self.formula is None else self.formula.without_random()
        return replace(self, formula=formula)

    @classmethod
    def of(cls, corpus: Corpus, formula: str | None) -> Covariates:
        """Learn the covariates of training documents.

        Args:
            corpus: The documents. For a part of a corpus, the columns of the whole corpus are read.
            formula: A formula over their metadata. ``None`` uses their array ``"prevalence"``
                ``(num_docs, num_columns)``, which has no intercept column.

        Raises:
            ConfigError: The formula is invalid or lacks an intercept, or a column is constant, too
                large or too small, or varies too little for single precision.
            CorpusError: Documents lack a value, or the corpus lacks the array.
        """
        corpus = corpus.columns_of_whole()
        if formula is None:
            fitted, matrix = None, _array(corpus)
            names = tuple(f"x{j}" for j in range(matrix.shape[1]))
        elif isinstance(formula, str):
            fitted, matrix = Formula.fit(formula, corpus.metadata)
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
        # Relative spread that float32, the type of batches, still resolves to 0.1 %.
        blurred = np.flatnonzero(scales <= 1e-4 * sizes)
        if len(blurred):
            column = blurred[0]
            name, scale = names[column], scales[column]
            if scale <= 1e-10 * sizes[column]:
                raise ConfigError(
                    f"prevalence: the column {name} is the same in all documents, like the "
                    "intercept; leave it out"
                )
            raise ConfigError(
                f"prevalence: the column {name} varies by {scale:.2g} around {means[column]:.9g}, "
                f"and single precision would round this variation; use center({name}) in the "
                "formula, or subtract the mean; write dates as in 2004-09-30"
            )
        return cls(names, tuple(means.tolist()), tuple(scales.tolist()), fitted)

    def encode(self, corpus: Corpus) -> Corpus:
        """The corpus with the array ``"prevalence"`` ``(num_docs, num_columns)``.

        A corpus that is encoded already comes back unchanged. If the documents lack all the columns
        they keep an existing array, such as generated documents have. Without columns and array,
        they get the columns' means in the training documents, with a warning.

        Raises:
            CorpusError: Some of the columns or a value are missing, or a level is unknown.
        """
        if not self.names:
            return corpus
        formula = self.formula
        if formula is not None and formula.reads_any(corpus.metadata):
            return corpus.with_encoding(
                PREVALENCE, self, lambda: formula.matrix(corpus.metadata)[:, 1:]
            )
        if PREVALENCE in corpus.covariates:
            width = _array(corpus).shape[1]
            if width != len(self.names):
                raise CorpusError(
                    f"the covariate {PREVALENCE!r} has {width} columns; the model was made for "
                    f"{len(self.names)}: {', '.join(self.names)}"
                )
            return corpus.without_encodings(PREVALENCE)
        return corpus.with_encoding(PREVALENCE, self, lambda: self._typical(corpus))

    def encode_levels(self, corpus: Corpus) -> Corpus:
        """The corpus with the positions ``"prevalence_levels"`` ``(num_docs, num_random_terms)``.

        Levels absent from the training documents are -1. An existing array is kept if the documents
        lack all the columns.

        Raises:
            CorpusError: Some of the columns or a value are missing.

        Warns:
            CorpusWarning: Documents have new levels.
        """
        formula = self.formula
        if formula is None or not formula.random:
            return corpus
        if LEVELS in corpus.covariates and not formula.reads_any(corpus.metadata):
            array = corpus.covariates[LEVELS]
            sizes = [len(levels) for levels in formula.random.values()]
            fits = array.shape == (corpus.num_docs, len(sizes)) and array.dtype.kind == "i"
            if not fits or (array < -1).any() or (array >= sizes).any():
                raise CorpusError(
                    f"the covariate {LEVELS!r} must hold whole numbers from -1 to below {sizes}, "
                    "with a row for each document: positions of levels, and -1 for new levels"
                )
            return corpus.without_encodings(LEVELS)
        return corpus.with_encoding(LEVELS, self, lambda: self._derive_levels(corpus))

    def _derive_levels(self, corpus: Corpus) -> NDArray[np.int64]:
        assert self.formula is not None
        if not self.formula.reads_any(corpus.metadata):
            return np.full((corpus.num_docs, len(self.random)), -1)
        positions = self.formula.positions(corpus.metadata)
        for name, column in zip(self.random, positions.T, strict=True):
            if (column < 0).any():
                warn(
                    f"{(column < 0).sum()} documents have values of {name} that the model was not "
                    f"fitted to, such as {corpus.metadata[name].iloc[column.argmin()]!r:.40}; the "
                    f"effect of a new {name} is 0. model.prior.at_new_levels() is the prior with "
                    "its uncertainty",
                    CorpusWarning,
                )
        return positions

    def _typical(self, corpus: Corpus) -> NDArray[np.float64]:
        """The means of the columns, for documents without any of the columns."""
        warn(
            f"{corpus!r} has no column of the model's prevalence ({', '.join(self.names)}); its "
            "documents get the columns' means in the training documents",
            CorpusWarning,
        )
        return np.broadcast_to(self.means, (corpus.num_docs, len(self.names)))

    def to_json(self) -> dict[str, Any]:
        """The covariates as JSON-able data."""
        formula = None if self.formula is None else self.formula.to_json()
        lists = {name: list(getattr(self, name)) for name in ("names", "means", "scales")}
        return lists | {"formula": formula}

    @classmethod
    def from_json(cls, data: Any) -> Covariates:
        """The covariates from the data of :meth:`to_json`.

        Raises:
            ConfigError: The data are damaged, or their formula is unsafe to evaluate.
        """
        try:
            names, means, scales = (tuple(data[key]) for key in ("names", "means", "scales"))
            formula = None if data["formula"] is None else Formula.from_json(data["formula"])
            finite = np.isfinite([*means, *scales]).all() and all(scale > 0 for scale in scales)
            if not (finite and len(names) == len(means) == len(scales)):
                raise TypeError("expected a finite mean and a positive scale for each name")
        except (KeyError, TypeError) as error:
            raise ConfigError(
                f"prevalence is {data!r:.80}; expected the result of Covariates.to_json(). Make "
                "the model by models.stm(num_topics, corpus, prevalence='~ party')"
            ) from error
        return cls(names, means, scales, formula)


def _array(corpus: Corpus) -> NDArray[np.float64]:
    """The array ``"prevalence"`` of a corpus, ``(num_docs, num_columns)`` float64."""
    array = np.asarray(corpus.covariates[PREVALENCE], np.float64)
    if array.ndim != 2:
        raise CorpusError(
            f"the covariate {PREVALENCE!r} has shape {array.shape}; expected (num_docs, "
            "num_columns)"
        )
    return array
