"""When to change a node's labels: a label is set at once, and removed only when it has been wrong for long.

A kubelet that restarts fails running pods whose node selector no longer matches (k/k: pkg/kubelet/lifecycle). Swap that
is off for a moment, or a silent agent, is no reason for that.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Change(msgspec.Struct, frozen=True):
    """The present step for a node's labels."""

    labels: dict[str, str | None]
    """Labels to set, or to take away (None)."""
    again: float | None
    """Seconds after which to decide again; None if nothing is pending."""


class Labels:
    """Remembers since when a label of a node should be gone. `grace` in seconds."""

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._unwanted: dict[tuple[str, str], float] = {}

    def decide(self, node: str, desired: Mapping[str, str | None], current: Mapping[str, str], now: float) -> Change:
        """Compare the desired labels of a node with its present ones; `now` is a monotonic clock in seconds."""
        labels: dict[str, str | None] = {}
        again: list[float] = []
        for key, value in desired.items():
            if value is not None:
                self._unwanted.pop((node, key), None)
                if current.get(key) != value:
                    labels[key] = value
            elif key not in current:
                self._unwanted.pop((node, key), None)
            else:
                left = self._unwanted.setdefault((node, key), now) + self._grace - now
                if left <= 0:
                    labels[key] = None
                else:
                    again.append(left)
        return Change(labels, min(again, default=None))

    def forget(self, node: str) -> None:
        """Forget a deleted node."""
        for pending in [pending for pending in self._unwanted if pending[0] == node]:
            del self._unwanted[pending]
