"""Figures are drawn off screen, and closed after each test."""

from __future__ import annotations

import matplotlib as mpl
import pytest

mpl.use("Agg")

from matplotlib import pyplot as plt


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")
