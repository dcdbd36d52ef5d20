"""The part of a profile about moving idle memory to swap, in the form in which decisions use it."""

from __future__ import annotations

import msgspec

from swapwarden.api import names


class Reclaim(msgspec.Struct, frozen=True):
    """A profile's reclaim with a mode other than Off, compiled."""

    mode: names.ReclaimMode
    """The most that a pod may have."""
    max_stall_permille: int = 1
    interval: int = 6
    """Seconds."""
    step_percent: int = 1
    keep_swap_free: str = "20%"
    """A quantity or percents, as written: percents need a node to become bytes."""
    writes_per_day: int = 5 << 30
    """Bytes."""
