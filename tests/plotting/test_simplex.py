"""The simplex plot shows draws at their proportions."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest
import torch

from torch_lntm import ConfigError
from torch_lntm.plotting import PALETTE, simplex_plot, use_style


def cells(ax):
    """Places ``(num_cells, 2)`` of the cells with draws, and how many draws each has."""
    found = ax.collections[0]
    return found.get_offsets(), found.get_array()


def test_draws_lie_at_their_proportions():
    corner = torch.eye(3)
    third = torch.full((3,), 1 / 3)
    draws = torch.cat([corner[:1].expand(50, 3), corner[2:].expand(7, 3), third.expand(20, 3)])
    ax = simplex_plot(draws, point=third, labels=("sport", "war", "rain"), grid_size=30)
    places, counts = cells(ax)
    height = np.sqrt(3) / 2
    expected = {50: (0, 0), 7: (0.5, height), 20: (0.5, height / 3)}
    assert sorted(counts) == sorted(expected)
    for place, count in zip(places, counts, strict=True):
        # A cell is as wide as a thirtieth of the side.
        assert np.abs(np.array(place) - expected[int(count)]).max() < 1 / 30
    cross = ax.lines[0].get_xydata()[0]
    np.testing.assert_allclose(cross, (0.5, height / 3), atol=1e-6)
    assert [text.get_text() for text in ax.texts] == ["sport", "war", "rain"]


@pytest.mark.parametrize(
    ("draws", "options"),
    [
        (torch.full((5, 4), 0.25), {}),
        (torch.zeros(0, 3), {}),
        (torch.eye(3), {"labels": ("a", "b")}),
        (torch.eye(3), {"point": torch.full((2,), 0.5)}),
    ],
)
def test_two_or_four_topics_are_refused(draws, options):
    with pytest.raises(ConfigError, match="expected draws"):
        simplex_plot(draws, **options)


def test_the_style_sets_the_palette():
    with mpl.rc_context():
        use_style()
        _, ax = mpl.pyplot.subplots()
        lines = [ax.plot([0, 1])[0].get_color() for _ in PALETTE]
        assert lines == list(PALETTE)
        assert not ax.spines["top"].get_visible()
