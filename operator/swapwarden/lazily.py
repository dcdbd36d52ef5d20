"""Imports that programs which must start quickly, or be small, can do without."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def without(module: str) -> Iterator[None]:
    """An import of `module` fails meanwhile, unless it was imported before."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]  # what the import system takes for a module that is not there
    try:
        yield
    finally:
        del sys.modules[module]
