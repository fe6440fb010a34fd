"""Files: bounded reading with precise errors, and atomic writing.

Plug-ins should use the functions exported here, whereas the package itself imports from the
modules.
"""

from torch_lntm.files.reading import at_line, iterate_lines

__all__ = ["at_line", "iterate_lines"]
