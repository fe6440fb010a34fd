"""Plots of a fitted model, with Matplotlib."""

from torch_lntm.plotting.correlations import correlation_graph, correlation_heatmap
from torch_lntm.plotting.documents import document_proportions
from torch_lntm.plotting.paths import path_plot
from torch_lntm.plotting.simplex import simplex_plot
from torch_lntm.plotting.sources import source_plot
from torch_lntm.plotting.style import PALETTE, use_style
from torch_lntm.plotting.tree import tree_plot

__all__ = [
    "PALETTE",
    "correlation_graph",
    "correlation_heatmap",
    "document_proportions",
    "path_plot",
    "simplex_plot",
    "source_plot",
    "tree_plot",
    "use_style",
]
