"""Tables that a whole process shares: registered names, and Pyro's parameters."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pyro

from torch_lntm.cli.command import COMMANDS
from torch_lntm.corpus.readers.formats import FORMATS
from torch_lntm.models.registry import CONSTRUCTORS
from torch_lntm.reports import sections


@contextmanager
def restored() -> Iterator[None]:
    """Context after which registered names are as before, and Pyro's store is empty.

    A test must not see the plug-ins and the parameters of another test.
    """
    tables = (COMMANDS, CONSTRUCTORS, FORMATS, sections._REGISTERED)
    before, modules = [dict(table) for table in tables], set(sys.modules)
    try:
        yield
    finally:
        for table, content in zip(tables, before, strict=True):
            table.clear()
            table.update(content)
        for name in set(sys.modules) - modules:
            if name == "letters" or name.startswith("torch_lntm_plugin_"):
                del sys.modules[name]
        pyro.clear_param_store()
