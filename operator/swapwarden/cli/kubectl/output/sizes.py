"""Sizes and ages as people write them."""

from __future__ import annotations

import datetime
from typing import Final

from swapwarden.api import names

_UNITS: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def size(number: int) -> str:
    """Bytes in the unit in which they are whole, where it has few digits (1536Mi), else to one digit: ~66.7Mi, 1.5Gi.

    Behind a tilde, it is rounded.
    """
    unit, value = 0, number
    while value and value % 1024 == 0 and unit < len(_UNITS) - 1:
        unit, value = unit + 1, value // 1024
    if value < 10_000:
        return f"{value}{_UNITS[unit]}"
    rounded = float(value)
    while rounded >= 1000 and unit < len(_UNITS) - 1:
        unit, rounded = unit + 1, rounded / 1024
    return f"~{rounded:.1f}{_UNITS[unit]}"


def in_bytes(swap_max: str | None) -> str:
    """A value of memory.swap.max with its size, where that is easier to read: 402653184 (384Mi), 0, max."""
    if swap_max is None:
        return "nothing"
    if swap_max in {"0", names.MAX_SWAP} or int(swap_max) < 10_000:
        return swap_max
    return f"{swap_max} ({size(int(swap_max))})"


def age(since: str, now: datetime.datetime) -> str:
    """How long ago an RFC 3339 time was, as kubectl shows it: 35s, 5m, 2h5m, 3d; empty where it is none."""
    try:
        seconds = int((now - datetime.datetime.fromisoformat(since)).total_seconds())
    except (TypeError, ValueError):
        return ""
    seconds = max(0, seconds)
    days, hours, minutes = seconds // 86400, seconds // 3600 % 24, seconds // 60 % 60
    if days:
        return f"{days}d" if days > 7 or not hours else f"{days}d{hours}h"
    if hours:
        return f"{hours}h{minutes}m" if minutes and hours < 8 else f"{hours}h"
    return f"{minutes}m" if minutes > 9 else f"{minutes}m{seconds % 60}s" if minutes else f"{seconds}s"
