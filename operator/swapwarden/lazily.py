"""Imports that programs which must start quickly, or be small, can do without."""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Iterator, Sequence


@contextlib.contextmanager
def without(module: str) -> Iterator[None]:
    """Make imports of `module` fail inside of the block, unless it was imported before."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]  # marks a missing module
    try:
        yield
    finally:
        del sys.modules[module]


class _AtFirstUse:
    def __init__(self, modules: frozenset[str]) -> None:
        self._modules = modules

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return a spec that loads lazily, or None for other modules (importlib.abc.MetaPathFinder)."""
        if name not in self._modules:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec


@contextlib.contextmanager
def at_first_use(*modules: str) -> Iterator[None]:
    """Load modules that are first imported inside of the block only when something in them is used.

    A second import is a use. Only one thread may use them: LazyLoader has a lock only in newer versions of Python.
    """
    finder = _AtFirstUse(frozenset(modules))
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
