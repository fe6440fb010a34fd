"""Classification of documents by their topic proportions, with a linear classifier."""

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

#: Candidates for the penalty C. Good penalties are large because proportions are below 1.
PENALTIES = (0.1, 1.0, 10.0, 100.0, 1000.0)
#: Most iterations of the support vector machine.
_MAX_ITERATIONS = 10_000


@dataclass(frozen=True, eq=False, repr=False)
class Classification:
    """Result of :func:`classification`: confusion matrices of the test documents, one per split.

    Attributes:
        classes: The labels, in ascending order.
        confusion: ``(num_splits, num_classes, num_classes)`` int64 numbers of test documents by
            true label (rows) and predicted label (columns).
        penalties: ``(num_splits,)`` penalties C chosen by cross-validation.
        train_sizes: ``(num_splits,)`` int64 numbers of training documents.
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
        """``(num_splits,)`` int64 numbers of test documents."""
        return self.confusion.sum((1, 2))

    @property
    def test_ratio(self) -> float:
        """Ratio of test to training documents, mean over splits."""
        return float((self.test_sizes / self.train_sizes).mean())

    @property
    def accuracies(self) -> Tensor:
        """``(num_splits,)`` float64 shares of correctly classified test documents."""
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
        """``(num_classes,)`` float64 correctly classified share of each class, over all splits."""
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
    """Accuracy of a linear support vector machine on topic proportions (*Ahmed & Xing 2007, §4.3*).

    The classifier is scikit-learn's ``LinearSVC``, one class against the rest. Cross-validation
    within the training documents chooses the penalty C with the best accuracy, the smallest C in a
    tie.

    Args:
        features: ``(num_docs, num_features)`` numbers, array or tensor, such as the posterior means
            of theta in ``transform(guide, corpus, "mean").theta``.
        labels: A label for each document.
        splits: Pairs (positions of training documents, positions of test documents).
        penalties: Candidates for C.
        folds: Folds of the inner cross-validation, stratified by label; at least 2.
        seed: Seed of the folds.
        progress: Show a progress bar on standard error.

    Returns:
        The classified test documents. :func:`accuracy_difference` compares two results over the
        same splits.

    Raises:
        ConfigError: The features are infinite or NaN, or have another number of rows. A position is
            outside the documents or in both parts of a split. A part is empty. The training
            documents have a single label, or fewer than ``folds`` documents of a label. A penalty
            is 0 or negative.

    Example:
        >>> theta = lntm.inference.transform(guide, posts).theta
        >>> split = list(range(200)), list(range(200, 270))
        >>> classification(theta, posts.metadata["party"], [split])
        Classification: accuracy ... 1 splits, 2 classes
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
    confusions, chosen_penalties, sizes = [], [], []
    for train, test in tqdm(list(splits), disable=not progress):
        train, test = _positions(train, "training", codes), _positions(test, "test", codes)
        _check_split(train, test, codes, classes, folds)
        search = GridSearchCV(
            LinearSVC(max_iter=_MAX_ITERATIONS, random_state=seed),
            {"C": grid},
            cv=StratifiedKFold(folds, shuffle=True, random_state=seed),
        )
        with warnings.catch_warnings():
            # Cross-validation rejects penalties without convergence by their accuracy.
            warnings.simplefilter("ignore", ConvergenceWarning)
            predicted = search.fit(rows[train], codes[train]).predict(rows[test])
        pairs = np.ravel_multi_index((codes[test], predicted), (len(classes),) * 2)
        counts = np.bincount(pairs, minlength=len(classes) ** 2)
        confusions.append(counts.reshape(len(classes), -1))
        chosen_penalties.append(search.best_params_["C"])
        sizes.append(len(train))
    if not confusions:
        raise ConfigError("there are no splits; expected pairs of training and test positions")
    return Classification(
        tuple(classes.tolist()),
        torch.from_numpy(np.stack(confusions)),
        torch.tensor(chosen_penalties, dtype=torch.float64),
        torch.tensor(sizes),
    )


def accuracy_difference(ours: Classification, other: Classification) -> tuple[float, float]:
    """Difference of two accuracies over the same splits, with its standard error.

    The standard error allows for the overlap of splits; see :func:`resampled_error`.

    Args:
        ours: A result. The difference is positive if this result is better.
        other: A result for the same splits and other features.

    Returns:
        The mean difference and its standard error, which is NaN for a single split.

    Raises:
        ConfigError: The results are for different documents.
    """
    same = ours.classes == other.classes and torch.equal(ours.train_sizes, other.train_sizes)
    if not (same and torch.equal(ours.confusion.sum(2), other.confusion.sum(2))):
        raise ConfigError("the results are of different documents; classify the same splits")
    difference = ours.accuracies - other.accuracies
    return float(difference.mean()), resampled_error(difference, ours.test_ratio)


def resampled_error(values: Tensor, test_ratio: float) -> float:
    """Standard error of a mean over random splits of the same documents.

    Args:
        values: ``(num_splits,)`` numbers, one per split.
        test_ratio: Ratio of test to training documents.

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
    """Checked features and labels as arrays."""
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


def _positions(values: Any, part: str, codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Checked positions of documents."""
    positions = np.asarray(values)
    valid = positions.ndim == 1 and positions.dtype.kind in "iu" and len(positions) > 0
    if not valid or positions.min() < 0 or positions.max() >= len(codes):
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
    """Raises ``ConfigError`` for overlapping parts or too few training documents of a label."""
    both = np.intersect1d(train, test)
    if len(both):
        raise ConfigError(f"document {both[0]} is in both parts of a split; leave it in one")
    labels, sizes = np.unique(codes[train], return_counts=True)
    if len(labels) < 2:
        raise ConfigError(
            f"the training documents of a split have only the label {str(classes[labels[0]])!r}; "
            "expected at least two labels"
        )
    if sizes.min() < folds:
        rare = str(classes[labels[sizes.argmin()]])
        raise ConfigError(
            f"{sizes.min()} training documents of a split have the label {rare!r}; expected at "
            f"least {folds}, one a fold: leave the label out, or take fewer folds"
        )
