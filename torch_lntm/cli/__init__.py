"""The program ``torch-lntm`` and its commands.

A command is a function. Its parameters become the options of the command line and of configuration
files, their annotations check the values, and its docstring is the help. A parameter whose type is
a class, such as :class:`Documents`, brings in the options of that class.
"""

from torch_lntm.cli.cheatsheet import guide as guide
from torch_lntm.cli.command import register_command, say, show
from torch_lntm.cli.documents import Computation, Documents, RunDocuments
from torch_lntm.cli.main import main as main

__all__ = [
    "Computation",
    "Documents",
    "RunDocuments",
    "register_command",
    "say",
    "show",
]
