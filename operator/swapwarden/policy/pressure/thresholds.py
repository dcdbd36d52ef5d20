"""When a node counts as under memory pressure, by its profile."""

from __future__ import annotations

from typing import Final

import msgspec

from swapwarden.api import names, quantity, state
from swapwarden.policy.observed import nodes

REPORT_SECONDS: Final = 5
"""The time between reports of a node from which pods are evicted."""


class Eviction(msgspec.Struct, frozen=True):
    """A profile's bounds on evictions, compiled; times in seconds."""

    excluded: frozenset[str] = frozenset(names.EVICTION_EXCLUDED)
    """Namespaces whose pods are never evicted."""
    daemon_sets: bool = False
    """Whether pods of DaemonSets may be evicted."""
    unmanaged: bool = False
    """Whether pods without a controller may be evicted."""
    grace: int = 30
    """How long a pod may take to end, at most."""
    settle: int = 15
    """How long no other pod of the node is evicted after one is gone."""
    per_hour: int = 6
    """Most evictions from one node in an hour."""


class Pressure(msgspec.Struct, frozen=True):
    """A profile's pressure, compiled; times in seconds."""

    below: str
    """The headroom below which the signal is set: a quantity or percents of the node's memory, as written."""
    clear: str
    """The headroom above which the signal is cleared: a quantity or percents, as written."""
    held: int
    """How long the headroom must be below."""
    full_percent: int
    """The stall above which the signal is set."""
    over: int
    """The time over which the stall is taken."""
    taint: names.TaintEffect | None = None
    """The effect of the taint of nodes under pressure; None: they have none."""
    enforce: bool = False
    """Whether pods are evicted."""
    eviction: Eviction = Eviction()


def of_node(pressure: Pressure, facts: nodes.NodeFacts) -> state.PressureSettings | None:
    """Return the thresholds of one node; None if its memory is not known."""
    if not facts.compatible or facts.memory_bytes <= 0:
        return None
    settings = state.PressureSettings(
        state.HeadroomThresholds(
            below_bytes=quantity.percent_or_bytes(pressure.below, facts.memory_bytes),
            clear_bytes=quantity.percent_or_bytes(pressure.clear, facts.memory_bytes),
            for_milliseconds=1000 * pressure.held,
        ),
        state.StallThresholds(full_permille=10 * pressure.full_percent, over_milliseconds=1000 * pressure.over),
    )
    return msgspec.structs.replace(settings, report_seconds=REPORT_SECONDS) if pressure.enforce else settings
