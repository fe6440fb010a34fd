"""Classification against scikit-learn's search, scores and confusion matrices."""

from __future__ import annotations

import math
import statistics
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, confusion_matrix, recall_score
from sklearn.model_selection import ShuffleSplit, StratifiedKFold, cross_val_score
from sklearn.svm import LinearSVC

from studies.scores.classification import accuracy_difference, classification
from torch_lntm.errors import ConfigError

CLASSES = ("ape", "bee", "cow")
PENALTIES = (0.01, 1.0, 100.0)


@pytest.fixture(scope="module")
def problem() -> tuple[torch.Tensor, list[str], list[Any]]:
    """Proportions of 120 documents of three overlapping kinds, with two splits."""
    rng = np.random.default_rng(0)
    kinds = rng.integers(0, 3, 120)
    theta = torch.from_numpy(rng.dirichlet(np.ones(6), 120))
    theta[torch.arange(120), torch.from_numpy(kinds)] += 0.25
    splits = list(ShuffleSplit(2, test_size=0.25, random_state=0).split(theta))
    return theta / theta.sum(1, keepdim=True), [CLASSES[k] for k in kinds], splits


def by_hand(theta: Any, labels: Any, train: Any, test: Any, folds: int) -> tuple[float, Any]:
    """The best penalty of a cross-validation, and what it predicts."""
    x, y = theta.numpy(), np.array(labels)
    inner = StratifiedKFold(folds, shuffle=True, random_state=0)
    machines = [LinearSVC(C=c, max_iter=10_000, random_state=0) for c in PENALTIES]
    scores = [cross_val_score(m, x[train], y[train], cv=inner).mean() for m in machines]
    best = int(np.argmax(scores))
    return PENALTIES[best], machines[best].fit(x[train], y[train]).predict(x[test])


def test_the_classifier_equals_scikit_learns(problem: Any) -> None:
    theta, labels, splits = problem
    result = classification(theta, labels, splits, penalties=PENALTIES, folds=3)
    assert result.classes == CLASSES
    everything: tuple[list[str], list[str]] = ([], [])
    for i, (train, test) in enumerate(splits):
        penalty, predicted = by_hand(theta, labels, train, test, 3)
        truth = [labels[d] for d in test]
        assert float(result.penalties[i]) == penalty
        expected = confusion_matrix(truth, predicted, labels=list(CLASSES))
        assert result.confusion[i].tolist() == expected.tolist()
        assert float(result.accuracies[i]) == pytest.approx(accuracy_score(truth, predicted))
        everything[0].extend(truth)
        everything[1].extend(predicted)
    expected = recall_score(*everything, average=None, labels=list(CLASSES))
    assert result.recalls.tolist() == pytest.approx(expected.tolist())
    assert 0.4 < result.accuracy < 1.0  # better than chance, and not trivial
    assert result.accuracy == pytest.approx(float(result.accuracies.mean()))
    assert "2 splits, 3 classes" in repr(result)


def test_differences_compare_split_by_split_and_allow_for_overlap(problem: Any) -> None:
    theta, labels, splits = problem
    ours = classification(theta, labels, splits, penalties=[1.0], folds=2)
    other = classification(theta[:, :3], labels, splits, penalties=[1.0], folds=2)
    mean, error = accuracy_difference(ours, other)
    pairs = zip(ours.accuracies.tolist(), other.accuracies.tolist(), strict=True)
    gaps = [a - b for a, b in pairs]
    assert mean == pytest.approx(sum(gaps) / 2)
    # Two splits, a third as many documents to test as to train.
    assert error == pytest.approx(math.sqrt(1 / 2 + 30 / 90) * statistics.stdev(gaps))
    assert accuracy_difference(other, ours)[0] == -mean
    single = classification(theta, labels, splits[:1], penalties=[1.0], folds=2)
    assert math.isnan(single.standard_error)
    with pytest.raises(ConfigError, match="different documents"):
        accuracy_difference(ours, single)


def test_labels_of_any_type_work_in_any_order(problem: Any) -> None:
    theta, labels, splits = problem
    numbers = [CLASSES.index(label) for label in labels]
    ours = classification(theta, labels, splits[:1], penalties=[1.0], folds=2)
    other = classification(theta.numpy(), numbers, splits[:1], penalties=[1.0], folds=2)
    assert other.classes == ("0", "1", "2")
    assert torch.equal(ours.confusion, other.confusion)
    train, test = splits[0]
    turned = classification(theta, labels, [(train, test[::-1])], penalties=[1.0], folds=2)
    assert torch.equal(ours.confusion, turned.confusion)
