"""NodeSwapProfile.spec.memoryQoS and spec.reclaim, and their parts of an override."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic

from swapwarden.api import names, rules, values


class MemoryGuard(rules.Model):
    """The agent's answer to pods that are stuck at their memory.high."""

    action: Annotated[names.GuardAction, pydantic.Field()] = names.GuardAction.RELEASE
    """About values that Swapwarden wrote. Release: raise memory.high, and report. Report: report only."""
    window_seconds: Annotated[int, pydantic.Field(ge=4, le=600)] = 10
    """How long a pod must be stuck before the agent acts."""
    hold_seconds: Annotated[int, pydantic.Field(ge=30, le=3600)] = 300
    """How long a released pod stays without memory.high, at least. It doubles each time the pod is stuck again, up to
    an hour."""
    kubelet: Annotated[names.KubeletGuard, pydantic.Field()] = names.KubeletGuard.REPORT
    """About values that the kubelet or another writer set. Release: replace memory.high by max, until that writer sets
    another value, and report. Report: report only. Off: do not look at them."""


class MemoryQoSSpec(rules.Model):
    """Protection of the memory that pods request, and throttling before they reach their memory limits."""

    reservation_policy: Annotated[names.ReservationPolicy, pydantic.Field()] = names.ReservationPolicy.NONE
    """None: no protection, except of pods that ask for it. Soft: the kernel reclaims the requested memory of Guaranteed
    and Burstable pods last (memory.low). TieredReservation: as Soft, but it never reclaims that of Guaranteed pods
    (memory.min), so that others are OOM-killed first."""
    reservation_percent: Annotated[int, pydantic.Field(ge=1, le=100)] = 100
    """The share of a pod's memory request that is protected, in percent."""
    throttling_percent: Annotated[int, pydantic.Field(ge=1, le=99)] | None = None
    """Where the kernel begins to slow a pod down (memory.high), in percent of the way from its memory request to its
    memory limit. Absent: nowhere, except of pods that ask for it."""
    without_swap: Annotated[names.WithoutSwap, pydantic.Field()] = names.WithoutSwap.SKIP
    """memory.high of pods whose swap limit is less than what lies between it and the memory limit. Skip: never below
    the limit less the swap, so that pods without swap have none. Bounded: lower, as far as the slowest way up to the
    limit takes no longer than maxStallSeconds."""
    max_stall_seconds: Annotated[int, pydantic.Field(ge=1, le=3600)] = 30
    """How long the kernel may slow down a process on its way from memory.high to the limit, under Bounded."""
    guard: MemoryGuard = MemoryGuard()
    """The agent's answer to pods that are stuck at their memory.high."""
    system_low: values.QuantityOrPercent | None = None
    """Memory of system.slice that is protected as soon as a pod of the node is: a quantity, or percent of the node's
    memory. Absent: 5 %, at most 1Gi."""


class OverrideMemory(rules.Model):
    """Memory QoS of an override's pods."""

    RULES = (
        rules.Rule(
            "has(self.reservation) || has(self.throttling)",
            lambda memory: memory.reservation is not None or memory.throttling is not None,
            "memory needs a reservation or a throttling: without both it changes nothing",
        ),
    )

    reservation: Literal["None", "Soft"] | None = None
    """None: no protection, whatever the pod asks. Soft: the kernel reclaims the requested memory last (memory.low),
    unless the pod asks otherwise. Absent: as memoryQoS."""
    throttling: values.ListedThrottling | None = None
    """Disabled: no memory.high, whatever the pod asks. Or where memory.high lies on the way from the pod's memory
    request to its limit (90%), unless the pod asks otherwise. Absent: as memoryQoS."""


class ReclaimSpec(rules.Model):
    """Moving idle memory to swap, for pods that ask for it by annotation, or for which an override does."""

    mode: Annotated[names.ReclaimMode, pydantic.Field()] = names.ReclaimMode.OFF
    """The most that a pod may have. Off: none. Startup: once, from ten minutes after its newest container started
    until its tasks begin to wait for memory, or three steps free none. Continuous: also steadily, as long as its tasks
    do not wait."""
    max_stall_permille: Annotated[int, pydantic.Field(ge=1, le=100)] = 1
    """The target: how long a pod's tasks may wait for memory, in thousandths of the time (some of memory.pressure).
    Steps become smaller on the way to it, and end there."""
    interval_seconds: Annotated[int, pydantic.Field(ge=2, le=600)] = 6
    """Seconds between two steps of a pod."""
    step_percent: Annotated[int, pydantic.Field(ge=1, le=10)] = 1
    """The most that a step takes, in percent of the pod's memory in use."""
    keep_swap_free: values.QuantityOrPercent = "20%"
    """Swap that stays free on the node: a quantity, or percent of its swap."""
    writes_per_day: values.Quantity = "5Gi"
    """The most that is moved to swap on a node within 24 hours, in all: SSDs wear out."""


class OverrideReclaim(rules.Model):
    """Reclaim of an override's pods."""

    mode: Annotated[names.ReclaimMode, pydantic.Field()]
    """Off: none, whatever the pod asks. Startup or Continuous: unless the pod asks otherwise, and at most the profile's
    mode."""
