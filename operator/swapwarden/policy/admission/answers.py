"""Parts of the answer about a new pod: the errors that refuse it, and the changes that complete it."""

from __future__ import annotations

import functools
from typing import Any

import msgspec


class StatusCause(msgspec.Struct, frozen=True):
    """metav1.StatusCause: one error and its field."""

    reason: str
    message: str
    field: str


class Operation(msgspec.Struct, frozen=True):
    """One operation of a JSON patch (RFC 6902)."""

    op: str
    path: str
    value: Any


@functools.lru_cache(maxsize=64)
def pointer(*keys: str) -> str:
    """Return the JSON pointer (RFC 6901) to a value: `/metadata/annotations/swapwarden.dev~1swap-policy`."""
    return "".join("/" + key.replace("~", "~0").replace("/", "~1") for key in keys)
