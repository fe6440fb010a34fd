"""Positions of topics in a graph, and lines between them."""

from __future__ import annotations

import numpy as np
import pytest

from torch_lntm.plotting.graph_layout import TOPIC_WIDTH, lay_out_topics, route_line, rows_height

#: Half the inches that each of ten topics takes.
ROOM = np.full((10, 2), [TOPIC_WIDTH / 2, 0.3])


def test_a_line_without_obstacles_is_straight():
    points = np.array([[0.0, 0.0], [4.0, 2.0], [0.0, 2.0], [4.0, 0.0]])
    line = route_line(points, 0, 1)
    np.testing.assert_allclose(line[0], points[0])
    np.testing.assert_allclose(line[-1], points[1])
    np.testing.assert_allclose(line[:, 1], line[:, 0] / 2, atol=1e-12)


@pytest.mark.parametrize("offset", [-0.1, 0.1])
def test_a_line_bends_around_a_topic(offset):
    points = np.array([[0.0, 0.0], [5.0, 0.0], [2.5, offset]])
    line = route_line(points, 0, 1)
    gap = line - points[2]
    # Nowhere in the topic's circle, nor in the name below it.
    assert not ((np.abs(gap[:, 0]) < 0.3) & (gap[:, 1] > -0.25) & (gap[:, 1] < 0.12)).any()
    np.testing.assert_allclose(line[[0, -1]], points[:2])


def test_a_line_with_topics_on_every_side_stays_nearly_straight():
    wall = np.stack([np.full(60, 2.0), np.linspace(-5, 5, 60)], 1)
    points = np.concatenate([[[0.0, 0.0], [4.0, 0.0]], wall])
    assert np.abs(route_line(points, 0, 1)[:, 1]).max() < 1.0


def test_topics_without_a_line_are_in_rows_at_the_bottom():
    correlation = np.eye(9)
    correlation[0, 1] = correlation[1, 0] = 0.8
    width = 3 * TOPIC_WIDTH + 0.1
    height = 3.0 + rows_height(7, width)
    points = lay_out_topics(correlation, [0, 1], list(range(2, 9)), ROOM, width, height)
    assert points[2:, 1].max() < points[:2, 1].min() - 0.3
    assert points[:, 1].max() - points[:, 1].min() < height
    rows = np.unique(points[2:, 1].round(6))
    assert len(rows) == 3
    assert (np.diff(rows) > 2 * ROOM[0, 1]).all()
    first = points[2:5]
    assert np.ptp(first[:, 1]) == 0
    np.testing.assert_allclose(np.diff(first[:, 0]), TOPIC_WIDTH)


def test_layouts_work_if_all_or_none_of_the_topics_have_a_line():
    for height in (None, 5.0):
        assert np.isfinite(lay_out_topics(np.eye(3), [], [0, 1, 2], ROOM, 5.0, height)).all()
        assert np.isfinite(lay_out_topics(np.eye(3), [0, 1, 2], [], ROOM, 5.0, height)).all()
