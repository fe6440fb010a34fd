"""Effects from a few documents coded by hand, and the model's shares of all documents."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from torch_lntm.corpus import Corpus
from torch_lntm.corpus.metadata import as_frame, column_or_values
from torch_lntm.effects import Effects
from torch_lntm.effects.estimate import make_design
from torch_lntm.effects.linear import regress_linear
from torch_lntm.errors import ConfigError, CorpusError, require_whole
from torch_lntm.formulas.columns import read_survey
from torch_lntm.measurement.measured import Measurement
from torch_lntm.models.topic_groups import topics_of

Array = NDArray[np.float64]
#: Fewest documents coded by hand.
FEWEST = 10


@torch.no_grad()
def debias(
    measured: Measurement,
    labels: Any,
    formula: str = "~ 1",
    *,
    surrogate: Any = None,
    probabilities: Any = None,
    clusters: Any = None,
    num_folds: int = 5,
    seed: int = 0,
) -> Effects:
    """Effects of columns on labels; see :meth:`Codebook.debias`."""
    require_whole(2, num_folds=num_folds)
    corpus, rows = measured.corpus, measured.corpus.nonempty
    table = _by_document(labels, corpus)
    gold = table.to_numpy()[rows]
    coded = np.isfinite(gold[:, 0])
    if (np.isfinite(gold) != coded[:, None]).any():
        raise ConfigError("labels: a document lacks a finite number in one column, but not in all")
    given = coded.mean() if probabilities is None else probabilities
    if np.isscalar(given) and not isinstance(given, str):
        given = np.full(corpus.num_docs, given)
    drawn = column_or_values(corpus, given, "probabilities", rows).astype(np.float64)
    if not ((drawn > 0) & (drawn <= 1)).all():
        raise ConfigError("probabilities must lie above 0, and be at most 1, in each document")
    fitted, design = make_design(corpus, formula, read_survey(corpus, None, clusters, None))
    if fitted.random:
        raise ConfigError(f"formula {formula!r}: random terms; give clusters= instead")
    shares = _surrogates(measured, table, surrogate)[rows]
    if not np.isfinite(shares).all():
        raise ConfigError("surrogate lacks a value in some documents; expected one in each")
    units = np.arange(len(rows)) if design.clusters is None else design.clusters.numpy()
    if (number := np.unique(units[coded]).size) < FEWEST:
        what = "documents with words" if clusters is None else "clusters"
        raise ConfigError(f"labels in {number} {what}; expected at least {FEWEST}")
    rng = np.random.default_rng(seed)
    folds = (rng.permutation(units.max() + 1) % num_folds)[units]
    outcome = torch.from_numpy(pseudo_outcomes(gold, shares, coded, drawn, folds))[None]
    part, each = (torch.arange(len(rows)), outcome), torch.eye(len(table.columns)).double()
    regression = regress_linear(design, lambda: iter([part]), each, "HC3")
    # Most of the variance comes from the coded documents, whose number bounds the degrees.
    few = number - design.x.shape[1]
    method = "HC3" if clusters is None else f"{units.max() + 1} clusters"
    by = "the model's shares" if surrogate is None else "surrogates"
    return Effects(
        formula=fitted,
        topics=tuple(map(str, table)),
        link="identity",
        regression=replace(regression, freedom=float(max(1, min(few, design.freedom)))),
        design=design,
        columns=corpus.metadata.iloc[rows][list(fitted.kinds)],
        notes=(
            f"A linear regression of labels in {len(rows):,} documents on {fitted.text}: "
            f"{coded.sum():,} of them are coded, and {by} stand for the others, corrected.",
            f"In the intervals: the documents and the choice of those to code ({method}).",
        ),
        model=measured.model,
        num_draws=2,  # which all are the same
        measure="value",
    )


def pseudo_outcomes(
    gold: Array, shares: Array, coded: NDArray[np.bool_], drawn: Array, folds: NDArray[np.int64]
) -> Array:
    """Labels of all documents, unbiased over the choice of the coded ones: f + R/π (label − f).

    The prediction f is a line in the surrogate, fitted in the coded documents of other folds, so
    that a surrogate of another scale, or one that is wrong, does no harm.

    Args:
        gold: ``(num_docs, num_labels)`` labels, NaN where a document is not coded.
        shares: ``(num_docs, num_labels)`` surrogates.
        coded: ``(num_docs,)`` whether a document is coded, R.
        drawn: ``(num_docs,)`` probabilities π of coding a document.
        folds: ``(num_docs,)`` fold of each document.

    Returns:
        ``(num_docs, num_labels)``.
    """
    predicted = np.empty_like(shares)
    for fold in np.unique(folds):
        fit, here = coded & (folds != fold), folds == fold
        weights = 1 / drawn[fit, None]
        centre, mean = (np.average(x[fit], 0, weights=1 / drawn[fit]) for x in (shares, gold))
        x = shares[fit] - centre
        square = (weights * x * x).sum(0)
        slope = np.where(square > 1e-12, (weights * x * gold[fit]).sum(0), 0) / (square + 1e-300)
        predicted[here] = mean + slope * (shares[here] - centre)
    known = np.where(coded[:, None], gold, predicted)
    return np.asarray(predicted + (known - predicted) / drawn[:, None])


def _by_document(labels: Any, corpus: Corpus, what: str = "labels") -> pd.DataFrame:
    """Numbers with a row for each document, NaN for documents that have none."""
    names = corpus.metadata.index
    if isinstance(labels, str):
        labels = corpus.metadata.get([labels], pd.DataFrame(index=names))
    if isinstance(labels, pd.Series):
        labels = labels.to_frame(what if labels.name is None else labels.name)
    table = as_frame(labels)
    unknown = table.index[~table.index.isin(names)].tolist()
    if unknown or not table.index.is_unique or not names.is_unique:
        why = f"{unknown[0]!r} is no document" if unknown else "names repeat"
        raise CorpusError(f"{what}: {why}; expected documents' names in the index, each once")
    if not len(table.columns) or {x.kind for x in table.dtypes} - set("bif"):
        raise ConfigError(f"{what} must be numbers or truth values, in at least one column")
    return table.astype(np.float64).reindex(names)


def _surrogates(measured: Measurement, labels: pd.DataFrame, given: Any) -> Array:
    """Values ``(num_docs, num_labels)`` in place of labels: given ones, or the model's shares."""
    if given is not None:
        table = _by_document(given, measured.corpus, "surrogate")
        if not (len(labels.columns) == 1 == len(table.columns) or [*table] == [*labels]):
            raise ConfigError(f"surrogates {[*table]}; expected columns {[*labels]}, as the labels")
        return table.to_numpy()
    means = measured.means
    topics = [topics_of(measured.model, measured.groups, name, "labels") for name in labels]
    return np.stack([means[:, of].sum(1) for of in topics], 1)
