"""How well topic proportions tell documents' labels apart, by a linear classifier."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.errors import ConfigError, require_whole
from torch_lntm.progress import tqdm

#: Penalties C to choose from. Proportions are below 1, so that the good ones are large.
PENALTIES = (0.1, 1.0, 10.0, 100.0, 1000.0)
#: Bound on the iterations of the support vector machine.
_MAX_ITERATIONS = 10_000


@dataclass(frozen=True, eq=False, repr=False)
class Classification:
    """Test documents classified by their features, one split after the other.

    Attributes:
        classes: The labels, in ascending order.
        confusion: ``(num_splits, num_classes, num_classes)`` int64 test documents by their label
            (rows) and by what they were classified as (columns).
        penalties: ``(num_splits,)`` the penalty C that cross-validation chose.
        train_sizes: ``(num_splits,)`` int64 training documents.
    """

    classes: tuple[str, ...]
    confusion: Tensor
    penalties: Tensor
    train_sizes: Tensor

    @property
    def num_splits(self) -> int:
        """Number of splits."""
        return len(self.confusion)

    @property
    def test_sizes(self) -> Tensor:
        """``(num_splits,)`` int64 test documents."""
        return self.confusion.sum((1, 2))

    @property
    def test_ratio(self) -> float:
        """Test documents for every training document, mean over splits."""
        return float((self.test_sizes / self.train_sizes).mean())

    @property
    def accuracies(self) -> Tensor:
        """``(num_splits,)`` float64 share of the test documents that were classified right."""
        right = self.confusion.diagonal(dim1=1, dim2=2).sum(1)
        return right.double() / self.test_sizes

    @property
    def accuracy(self) -> float:
        """Mean accuracy over splits."""
        return float(self.accuracies.mean())

    @property
    def standard_error(self) -> float:
        """Standard error of ``accuracy``, see :func:`accuracy_difference`."""
        return resampled_error(self.accuracies, self.test_ratio)

    @property
    def recalls(self) -> Tensor:
        """``(num_classes,)`` float64 share of each class classified right, over all splits."""
        counts = self.confusion.sum(0).double()
        return counts.diagonal() / counts.sum(1)

    def __repr__(self) -> str:
        return (
            f"Classification: accuracy {self.accuracy:.3f} ± {self.standard_error:.2g}, "
            f"{self.num_splits} splits, {len(self.classes)} classes"
        )


def classification(
    features: Any,
    labels: Sequence[object],
    splits: Iterable[tuple[Any, Any]],
    *,
    penalties: Sequence[float] = PENALTIES,
    folds: int = 5,
    seed: int = 0,
    progress: bool = False,
) -> Classification:
    """Classifies documents by a linear support vector machine (*Ahmed & Xing 2007, §4.3*).

    The classifier is scikit-learn's ``LinearSVC``, one class against the others. Its penalty C is
    the one with the best accuracy in a cross-validation within the training documents, the smallest
    of several.

    Args:
        features: ``(num_docs, num_features)`` numbers, array or tensor, such as the posterior means
            of theta that ``transform(guide, corpus, "mean").theta`` holds.
        labels: One label a document.
        splits: Pairs of the positions of training and of test documents.
        penalties: Values of C to choose from.
        folds: Folds of the inner cross-validation, which has every label in each; at least 2.
        seed: Seed of the folds.
        progress: Show a progress bar on standard error.

    Returns:
        The classified test documents; two results over the same splits compare split by split, see
        :func:`accuracy_difference`.

    Raises:
        ConfigError: Features that are not finite or not one row a document, positions that are not
            documents' or are in both parts, no test documents, training documents with one label
            only or with fewer than ``folds`` of a label, or a penalty that is not positive.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.model_selection import GridSearchCV, StratifiedKFold
    from sklearn.svm import LinearSVC

    require_whole(2, folds=folds)
    require_whole(0, seed=seed)
    rows, names = _features(features, labels)
    grid = sorted(float(value) for value in penalties)
    if not grid or not 0 < grid[0] <= grid[-1] < math.inf:
        raise ConfigError(f"penalties are {list(penalties)}; expected positive numbers")
    classes, codes = np.unique(names, return_inverse=True)
    confusions, chosen, sizes = [], [], []
    for train, test in tqdm(list(splits), disable=not progress):
        train, test = _positions(train, "training", codes), _positions(test, "test", codes)
        _check_split(train, test, codes, classes, folds)
        search = GridSearchCV(
            LinearSVC(max_iter=_MAX_ITERATIONS, random_state=seed),
            {"C": grid},
            cv=StratifiedKFold(folds, shuffle=True, random_state=seed),
        )
        with warnings.catch_warnings():
            # A penalty at which the machine does not converge loses by its accuracy.
            warnings.simplefilter("ignore", ConvergenceWarning)
            found = search.fit(rows[train], codes[train]).predict(rows[test])
        pairs = np.ravel_multi_index((codes[test], found), (len(classes),) * 2)
        counts = np.bincount(pairs, minlength=len(classes) ** 2)
        confusions.append(counts.reshape(len(classes), -1))
        chosen.append(search.best_params_["C"])
        sizes.append(len(train))
    if not confusions:
        raise ConfigError("there are no splits; expected pairs of training and test positions")
    return Classification(
        tuple(classes.tolist()),
        torch.from_numpy(np.stack(confusions)),
        torch.tensor(chosen, dtype=torch.float64),
        torch.tensor(sizes),
    )


def accuracy_difference(ours: Classification, other: Classification) -> tuple[float, float]:
    """By how much the accuracy of one result is higher, split by split, and its standard error.

    Splits of the same documents overlap, and so depend on each other; the error allows for it, see
    :func:`resampled_error`.

    Args:
        ours: Documents classified by some features.
        other: The same test documents classified by others.

    Returns:
        The mean difference and its standard error, which is NaN for a single split.

    Raises:
        ConfigError: The results are of other documents.
    """
    same = ours.classes == other.classes and torch.equal(ours.train_sizes, other.train_sizes)
    if not (same and torch.equal(ours.confusion.sum(2), other.confusion.sum(2))):
        raise ConfigError("the results are of different documents; classify the same splits")
    difference = ours.accuracies - other.accuracies
    return float(difference.mean()), resampled_error(difference, ours.test_ratio)


def resampled_error(values: Tensor, test_ratio: float) -> float:
    """Standard error of a mean over random splits of the same documents.

    Args:
        values: ``(num_splits,)`` one number a split.
        test_ratio: Test documents for every training document.

    Returns:
        √((1/n + test_ratio) × variance over the n splits) (*Nadeau & Bengio 2003, eq. 11*); NaN for
        a single split.
    """
    if len(values) < 2:
        return math.nan
    return math.sqrt(1 / len(values) + test_ratio) * float(values.std())


def _features(
    features: Any, labels: Sequence[object]
) -> tuple[NDArray[np.float64], NDArray[np.str_]]:
    """Features and labels as arrays, checked."""
    rows = torch.as_tensor(features).detach().cpu().double().numpy()
    names = np.array([str(label) for label in labels])
    if rows.ndim != 2 or len(rows) != len(names):
        raise ConfigError(
            f"features of shape {rows.shape} and {len(names)} labels; expected one row and one "
            "label a document"
        )
    if not np.isfinite(rows).all():
        raise ConfigError("features must be finite; got NaN or inf")
    return rows, names


def _positions(given: Any, part: str, codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Positions of documents, checked."""
    positions = np.asarray(given)
    whole = positions.ndim == 1 and positions.dtype.kind in "iu" and len(positions) > 0
    if not whole or positions.min() < 0 or positions.max() >= len(codes):
        raise ConfigError(
            f"{part} positions must be whole numbers from 0 to {len(codes) - 1}, at least one"
        )
    return positions.astype(np.int64)


def _check_split(
    train: NDArray[np.int64],
    test: NDArray[np.int64],
    codes: NDArray[np.int64],
    classes: NDArray[np.str_],
    folds: int,
) -> None:
    """Raises ``ConfigError`` for a split that cannot be learned from, or that tells the answers."""
    both = np.intersect1d(train, test)
    if len(both):
        raise ConfigError(f"document {both[0]} is in both parts of a split; leave it in one")
    found, sizes = np.unique(codes[train], return_counts=True)
    if len(found) < 2:
        raise ConfigError(
            f"the training documents of a split have only the label {str(classes[found[0]])!r}; "
            "expected at least two labels"
        )
    if sizes.min() < folds:
        rare = str(classes[found[sizes.argmin()]])
        raise ConfigError(
            f"{sizes.min()} training documents of a split have the label {rare!r}; expected at "
            f"least {folds}, one a fold: leave the label out, or take fewer folds"
        )
