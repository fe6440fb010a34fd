"""Plots of a fitted model, with Matplotlib."""

from torch_lntm.plotting.documents import document_proportions
from torch_lntm.plotting.lines import path_plot
from torch_lntm.plotting.style import PALETTE, use_style
from torch_lntm.plotting.topics import correlation_graph, source_plot, tree_plot

__all__ = [
    "PALETTE",
    "correlation_graph",
    "document_proportions",
    "path_plot",
    "source_plot",
    "tree_plot",
    "use_style",
]
