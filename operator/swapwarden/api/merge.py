"""JSON merge patches (RFC 7386), the form in which small changes of large objects are written.

By hand: twelve lines, and json-merge-patch 0.3 has no types.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the patch from `before` to `after`: whole lists, null for removed fields; empty without a difference."""
    patch: dict[str, Any] = {key: None for key in before if key not in after}
    for key, value in after.items():
        was = before.get(key)
        if isinstance(value, dict) and isinstance(was, dict):
            if inner := merge_patch(was, value):
                patch[key] = inner
        elif key not in before or value != was:
            patch[key] = value
    return patch
