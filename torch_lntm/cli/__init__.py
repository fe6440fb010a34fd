"""The command ``torch-lntm``: fit, topics, transform and evaluate."""

from torch_lntm.cli.commands import COMMANDS, Evaluate, Fit, Topics, Transform
from torch_lntm.cli.parser import main

__all__ = ["COMMANDS", "Evaluate", "Fit", "Topics", "Transform", "main"]
