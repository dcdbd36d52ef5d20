"""The part of a profile about memory QoS, in the form in which decisions use it."""

from __future__ import annotations

from typing import Final

import msgspec

from swapwarden.api import names

SYSTEM_SLICE: Final = "system.slice"
"""The node's daemons, which memory protects beside pods."""


class Guard(msgspec.Struct, frozen=True):
    """The agent's answer to pods that are stuck at their memory.high. Times in seconds."""

    action: names.GuardAction = names.GuardAction.RELEASE
    """The agent's answer where Swapwarden set the memory.high."""
    window: int = 10
    """How long a pod must be stuck."""
    hold: int = 300
    """How long a released pod stays without memory.high, at least."""
    kubelet: names.KubeletGuard = names.KubeletGuard.REPORT
    """The agent's answer where the kubelet or another writer set the memory.high."""


class MemoryOverride(msgspec.Struct, frozen=True):
    """Memory QoS that an override of a profile has for the pods that it selects."""

    reservation: names.ReservationPolicy | None = None
    """How pods are protected: NONE or SOFT; None: as the profile says."""
    throttling: int | None = None
    """Where memory.high lies between request and limit, in percent; throttling.NEVER for Disabled."""


class MemoryQoS(msgspec.Struct, frozen=True):
    """A profile's memoryQoS, compiled."""

    reservation: names.ReservationPolicy = names.ReservationPolicy.NONE
    reservation_percent: int = 100
    """The share of a pod's request that is protected, from 0 to 100."""
    throttling_percent: int | None = None
    """Where memory.high lies between request (0) and limit (100), in percent. None: no memory.high."""
    without_swap: names.WithoutSwap = names.WithoutSwap.SKIP
    max_stall: int = 30
    """How long a pod may be throttled on its way from memory.high to its limit under Bounded, in seconds."""
    guard: Guard = Guard()
    system_low: str = "5%"
    """memory.low of system.slice where a pod is protected: a quantity or percents of the node's memory, as written.
    Percents give at most 1 GiB."""
