"""The program ``torch-lntm`` and its commands.

A command is a dataclass. Its fields are the options of the command line and of configuration files.
The types of the fields check the values, and the documentation of the fields is the help. Options
of the functions that a command calls come from the signatures and docstrings of these functions.
"""

from torch_lntm.cli.command import Command as Command
from torch_lntm.cli.command import say as say
from torch_lntm.cli.documents import OnDocuments as OnDocuments
from torch_lntm.cli.documents import ReadsDocuments as ReadsDocuments
from torch_lntm.cli.main import main
from torch_lntm.cli.registration import register_command

__all__ = ["main", "register_command"]
