"""The command ``torch-lntm``: fit, topics, sources, transform, evaluate and convert.

A command is a dataclass. Its fields are the options, on the command line and in configuration
files; their types and documentation are what the options are checked against and explained by.
"""

from torch_lntm.cli.documents import Command, OnDocuments, ReadsDocuments, say
from torch_lntm.cli.main import main
from torch_lntm.cli.registration import register_command

__all__ = ["Command", "OnDocuments", "ReadsDocuments", "main", "register_command", "say"]
