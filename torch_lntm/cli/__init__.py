"""The program ``torch-lntm`` and its commands.

A command is a dataclass. Its fields are the options of the command line and of configuration files.
The types of the fields check the values, and the documentation of the fields is the help.
"""

from torch_lntm.cli.documents import Command, OnDocuments, ReadsDocuments, say
from torch_lntm.cli.main import main
from torch_lntm.cli.registration import register_command

__all__ = ["Command", "OnDocuments", "ReadsDocuments", "main", "register_command", "say"]
