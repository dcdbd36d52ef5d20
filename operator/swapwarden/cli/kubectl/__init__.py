"""`kubectl swap`: what pods and nodes have of swap, and why.

Users wait for imports, so modules of this package are imported by load() when they are needed. Modules of others are
imported late where they are used: yaml in output/tables.py, kube.tunnel in cluster/connection.py, difflib in main.py,
the official client in cluster/credentials.py.
"""

from __future__ import annotations

import importlib
from typing import Any


def load(module: str) -> Any:
    """Import a module of this package by its name within it: check.report."""
    return importlib.import_module(f"{__name__}.{module}")
