"""The one place where modules of this package are imported when they are needed: users wait for imports.

Modules of others are imported late where they are used: yaml in output/tables.py, kube.tunnel in cluster/connection.py,
difflib in groups.py.
"""

from __future__ import annotations

import importlib
from typing import Any


def load(module: str) -> Any:
    """Import a module of this package by its name within it: check.report."""
    return importlib.import_module(f"{__package__}.{module}")
