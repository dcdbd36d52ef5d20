"""Times as the Kubernetes API writes them."""

from __future__ import annotations

import datetime
from typing import Literal


def rfc3339(seconds: float, timespec: Literal["seconds", "milliseconds", "microseconds"] = "seconds") -> str:
    """Return a time, in seconds since 1970, as metav1.Time has it; with microseconds, as metav1.MicroTime."""
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.isoformat(timespec=timespec).removesuffix("+00:00") + "Z"


def seconds(text: str) -> float | None:
    """Return a time of that form in seconds since 1970; None if it is none."""
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo else None
