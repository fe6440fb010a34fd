"""``python -m torch_lntm.cli`` runs ``torch-lntm``."""

from __future__ import annotations

import sys

from torch_lntm.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
