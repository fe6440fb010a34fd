"""Plots of a fitted model, with Matplotlib."""

from torch_lntm.plotting.lines import document_proportions, path_plot
from torch_lntm.plotting.style import use_style
from torch_lntm.plotting.topics import correlation_graph, perspective_plot, source_plot, tree_plot

__all__ = [
    "correlation_graph",
    "document_proportions",
    "path_plot",
    "perspective_plot",
    "source_plot",
    "tree_plot",
    "use_style",
]
