"""Decide whose idle memory is moved to swap, with the reason: the tables in docs/reclaim.md."""

from __future__ import annotations

from typing import Final

import msgspec

from swapwarden.api import names, quantity, state
from swapwarden.policy.observed import nodes, pods
from swapwarden.policy.swap import limits

Mode = names.ReclaimMode
Reason = names.ReclaimReason
_OFF: Final = Mode.OFF
_MOST: Final = 1 << 62
"""The largest size in a state, in bytes: more than any node has."""


class Reclaim(msgspec.Struct, frozen=True):
    """A profile's reclaim with a mode other than Off, compiled."""

    mode: names.ReclaimMode
    """The farthest mode that a pod may have."""
    max_stall_permille: int = 1
    interval: int = 6
    """The time between two steps, in seconds."""
    step_percent: int = 1
    keep_swap_free: str = "20%"
    """The swap that reclaim leaves free: a quantity or percents, as written, which need a node to become bytes."""
    writes_per_day: int = 5 << 30
    """How much may be written to swap in a day, in bytes."""


class PodReclaim(msgspec.Struct, frozen=True):
    """The decision on one pod."""

    mode: names.ReclaimMode
    reason: names.ReclaimReason


def decide(
    offered: Reclaim | None, row: pods.PodRow, swap: limits.PodDecision, given: names.ReclaimMode | None
) -> PodReclaim:
    """Decide on one pod, whose swap limits are decided; `given` is the mode of the override that selects it.

    The profile offers. If the override refuses, no annotation gives it; else the pod's annotation decides before the
    override. Without both, there is none.
    """
    asked = row.reclaim or given
    if offered is None or asked is None or asked is _OFF or given is _OFF:
        return PodReclaim(_OFF, _unasked(offered, row, given))
    if row.ending or swap.swap_max in {None, "0"}:
        return PodReclaim(_OFF, Reason.POD_ENDS if row.ending else Reason.NO_SWAP)
    if asked is Mode.CONTINUOUS and offered.mode is Mode.STARTUP:
        return PodReclaim(Mode.STARTUP, Reason.STARTUP_ONLY)
    return PodReclaim(asked, Reason.OVERRIDE if row.reclaim is None else Reason.ANNOTATION)


def _unasked(offered: Reclaim | None, row: pods.PodRow, given: names.ReclaimMode | None) -> names.ReclaimReason:
    if offered is None:
        return Reason.NOT_OFFERED
    if given is _OFF:
        return Reason.OVERRIDE_REFUSES
    return Reason.NOT_ASKED if row.reclaim is None else Reason.POD_REFUSES


def bounds(offered: Reclaim, facts: nodes.NodeFacts) -> state.ReclaimSettings:
    """Return the bounds for a node's agent."""
    return state.ReclaimSettings(
        max_stall_permille=offered.max_stall_permille,
        interval_seconds=offered.interval,
        step_percent=offered.step_percent,
        keep_swap_free_bytes=min(quantity.percent_or_bytes(offered.keep_swap_free, facts.swap_bytes), _MOST),
        writes_per_day_bytes=min(offered.writes_per_day, _MOST),
    )
