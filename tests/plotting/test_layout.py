"""Layout of topics in a plane."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import pdist, squareform

from torch_lntm.plotting.layout import avoid_overlaps, plane_coordinates


def test_coordinates_reproduce_distances_of_the_plane():
    points = np.random.default_rng(0).normal(size=(12, 2))
    distance = squareform(pdist(points))
    assert squareform(pdist(plane_coordinates(distance))) == pytest.approx(distance, abs=0.02)


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_few_or_identical_topics_have_coordinates(size):
    for distance in (np.zeros((size, size)), 1.0 - np.eye(size)):
        points = plane_coordinates(distance)
        assert points.shape == (size, 2)
        assert np.isfinite(points).all()


@pytest.mark.parametrize("size", [1, 2, 10, 100])
@pytest.mark.parametrize("crowded", [False, True])
def test_no_topic_covers_another_or_leaves_the_picture(size, crowded):
    generator = np.random.default_rng(size)
    points = np.zeros((size, 2)) if crowded else generator.standard_cauchy((size, 2))
    room = np.column_stack([np.full(size, 56.0), generator.uniform(20, 36, size)])
    places, height = avoid_overlaps(points, room, 960.0)
    gap = np.abs(places[:, None] - places)
    apart = (gap > room[:, None] + room - 1e-3).any(-1)
    assert apart[~np.eye(size, dtype=bool)].all()
    assert (places >= room - 1e-9).all()
    assert (places <= np.array([960.0, height]) - room + 1e-9).all()
    assert height <= 30 * size + 432
