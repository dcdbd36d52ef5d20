"""Forms that the Kubernetes API gives to times and to small changes of large objects."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, Literal


def rfc3339(seconds: float, timespec: Literal["seconds", "milliseconds", "microseconds"] = "seconds") -> str:
    """Return a time, in seconds since 1970, as metav1.Time has it; with microseconds, as metav1.MicroTime."""
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.isoformat(timespec=timespec).removesuffix("+00:00") + "Z"


def timestamp(text: str) -> float | None:
    """Return an RFC 3339 time in seconds since 1970; None if the text is none."""
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo else None


def merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON merge patch (RFC 7386) from `before` to `after`; empty without a difference.

    It has whole lists, and null for removed fields. By hand: json-merge-patch 0.3 has no types.
    """
    patch: dict[str, Any] = {key: None for key in before if key not in after}
    for key, value in after.items():
        was = before.get(key)
        if isinstance(value, dict) and isinstance(was, dict):
            if inner := merge_patch(was, value):
                patch[key] = inner
        elif key not in before or value != was:
            patch[key] = value
    return patch
