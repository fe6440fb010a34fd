"""The command ``torch-lntm``: fit, topics, sources, transform, evaluate and convert.

A command is a dataclass. Its fields are the options, on the command line and in configuration
files; their types and documentation are what the options are checked against and explained by.
"""

from torch_lntm.cli.main import main

__all__ = ["main"]
