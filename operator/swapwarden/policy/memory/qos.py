"""Decide memory.min, memory.low and memory.high of pods, with the reasons: the tables in docs/semantics.md.

Numbers are bytes, floored to the page. Limits of swap and of memory are one plan: memory.high is at least the memory
limit less the swap limit, so that what it pushes out has room.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from swapwarden.api import names, quantity, throttling
from swapwarden.policy.memory import kubelet, settings
from swapwarden.policy.observed import nodes, pods, resources
from swapwarden.policy.swap import limits

Protection = names.ProtectionReason
Throttling = names.ThrottlingReason
Reservation = names.ReservationPolicy

_ASKS: Final = resources.MemoryAsks()
_NO_OVERRIDE: Final = settings.MemoryOverride()
_MAX_SYSTEM_LOW: Final = 2**30
_MAX_OVERAGE: Final = 0.177
"""The share above memory.high from which the kernel's pause no longer grows: 64 * 0.177**2 are 2 seconds."""
_STALL: Final = 64 * 85.0
"""The longest walk from memory.high to the limit: seconds per MiB of memory.high and per third power of the overage."""
_MIB: Final = 2**20


class ContainerMemory(msgspec.Struct, frozen=True):
    """The values of one container; None where nothing is written."""

    name: str
    low: int | None
    high: int | None
    protection: names.ProtectionReason
    throttling: names.ThrottlingReason


class PodMemory(msgspec.Struct, frozen=True):
    """The values of one pod's cgroups; None where nothing is written. Containers in the order of the row."""

    minimum: int | None
    low: int | None
    high: int | None
    protection: names.ProtectionReason
    """The reason of minimum and low."""
    throttling: names.ThrottlingReason
    containers: tuple[ContainerMemory, ...]

    @property
    def is_protected(self) -> bool:
        """Whether the pod has memory.min or memory.low."""
        return self.minimum is not None or self.low is not None


class Sums(msgspec.Struct, frozen=True):
    """The protection of the cgroups above pods; 0 where nothing is written."""

    kubepods_min: int = 0
    kubepods_low: int = 0
    burstable_low: int = 0
    system_low: int = 0
    """memory.low of system.slice, beside protected pods: these move reclaim onto the node's daemons."""
    overcommitted: bool = False
    """Whether the pods ask for more protection than the node has: the kernel then scales all of it down."""


class _MemoryCase(msgspec.Struct, frozen=True):
    """The input of the rules for one pod."""

    memory: settings.MemoryQoS
    page: int
    recursive: bool
    row: pods.PodRow
    asks: resources.MemoryAsks
    request: int
    """Memory that the pod requests in all."""
    reservation: names.ReservationPolicy
    unprotected: names.ProtectionReason
    """Why nothing is protected if `reservation` is NONE."""
    percent: int
    """Where memory.high lies between request and limit, in percent; throttling.NEVER for nowhere."""
    unthrottled: names.ThrottlingReason
    """Why there is no memory.high if `percent` is throttling.NEVER."""


def decide(
    offered: settings.MemoryQoS | None,
    node: nodes.NodeFacts,
    row: pods.PodRow,
    swap: limits.PodDecision,
    override: settings.MemoryOverride | None = None,
) -> PodMemory | None:
    """Decide on one pod, whose swap limits are decided; None if the profile offers none and the pod asks nothing.

    A pod's own annotations take precedence over the override, which takes precedence over the profile. If the override
    refuses, no annotation gives it.
    """
    if not node.compatible:
        return None
    if offered is None:
        return None if row.asks is None else _not_offered(row)
    case = _case(offered, node, row, override)
    minimum, low, protection = _protection(case)
    on_pod = len(row.containers) == 1
    high, reason = (None, Throttling.PER_CONTAINER)
    if on_pod:
        high, reason = _pod_high(case, row.containers[0], _swap(swap, swap.containers[0]))
    containers = []
    for one, decided in zip(row.containers, swap.containers, strict=True):
        throttled: tuple[int | None, names.ThrottlingReason] = None, Throttling.PER_POD if high else reason
        if not on_pod:
            throttled = _high(case, one.request, one.limit, _swap(swap, decided), _own_high(case, one.name))
        protected = _container_low(case, one, minimum or low)
        containers.append(ContainerMemory(one.name, protected[0], throttled[0], protected[1], throttled[1]))
    return PodMemory(minimum, low, high, protection, reason, tuple(containers))


def sums(
    offered: settings.MemoryQoS | None, node: nodes.NodeFacts, decided: Iterable[tuple[pods.PodRow, PodMemory]]
) -> Sums:
    """Return the protection above these pods, without which theirs has no effect, and that of system.slice.

    All of it is at most the node's memory: pods that no kubelet ever runs must not protect others.
    """
    minimum = low = burstable = asked = 0
    for row, memory in decided:
        if memory.is_protected:
            hard, soft = memory.minimum or 0, memory.low or 0
            minimum += hard
            low += soft
            burstable += soft if row.qos is resources.Class.BURSTABLE else 0
            asked += max(hard, soft)
    if not asked:
        return Sums()
    system = _system_low(offered or settings.MemoryQoS(), node)
    top = limits.floor_to_page(max(0, node.memory_bytes - system), node.page_size)
    minimum = min(minimum, top)
    # Without recursive protection, memory.low has what memory.min has as well.
    low = min(low, top - minimum if node.recursive_protection else top)
    return Sums(minimum, low, min(burstable, low), system, overcommitted=asked > top)


def _system_low(memory: settings.MemoryQoS, node: nodes.NodeFacts) -> int:
    """Return memory.low of system.slice in bytes; by percents at most 1 GiB."""
    asked = quantity.percent_or_bytes(memory.system_low, node.memory_bytes)
    if memory.system_low.endswith("%"):
        asked = min(asked, _MAX_SYSTEM_LOW)
    return limits.floor_to_page(min(asked, node.memory_bytes), node.page_size)


def _not_offered(row: pods.PodRow) -> PodMemory:
    why = None, None, Protection.NOT_OFFERED, Throttling.NOT_OFFERED
    return PodMemory(None, *why, tuple(ContainerMemory(one.name, *why) for one in row.containers))


def _case(
    memory: settings.MemoryQoS, node: nodes.NodeFacts, row: pods.PodRow, override: settings.MemoryOverride | None
) -> _MemoryCase:
    asks, given = row.asks or _ASKS, override or _NO_OVERRIDE
    chosen = *_reservation(memory, asks, given.reservation), *_share(memory, asks, given.throttling)
    request, recursive = pods.pod_request(row), node.recursive_protection
    return _MemoryCase(memory, node.page_size, recursive, row, asks, request, *chosen)


def _reservation(
    memory: settings.MemoryQoS, asks: resources.MemoryAsks, given: names.ReservationPolicy | None
) -> tuple[names.ReservationPolicy, names.ProtectionReason]:
    """Return how a pod is protected, and the reason if that is NONE; `given` is the override's."""
    if given is Reservation.NONE:
        return given, Protection.OVERRIDE_REFUSES
    if asks.reservation is not None:
        return asks.reservation, Protection.POD_REFUSES
    chosen = memory.reservation if given is None else given
    if chosen is Reservation.NONE and asks.low is not None:
        chosen = Reservation.SOFT  # a pod that names an amount asks for protection
    return chosen, Protection.RESERVATION_NONE


def _share(
    memory: settings.MemoryQoS, asks: resources.MemoryAsks, given: int | None
) -> tuple[int, names.ThrottlingReason]:
    """Return where memory.high lies, in percent, and the reason if that is NEVER; `given` is the override's."""
    if given == throttling.NEVER:
        return given, Throttling.OVERRIDE_REFUSES
    if asks.throttling is not None:
        return asks.throttling, Throttling.POD_REFUSES
    own = memory.throttling_percent if given is None else given
    return own or throttling.NEVER, Throttling.THROTTLING_NONE


def _protection(case: _MemoryCase) -> tuple[int | None, int | None, names.ProtectionReason]:
    """Return memory.min and memory.low of the pod, with the reason."""
    row, asks = case.row, case.asks
    if case.reservation is Reservation.NONE:
        return None, None, case.unprotected
    request = 0 if row.qos is resources.Class.BEST_EFFORT else case.request
    if asks.low is None:
        amount, reason = request * case.memory.reservation_percent // 100, Protection.REQUEST
    else:
        amount, reason = min(asks.low, request), Protection.LOW_ANNOTATION
    amount = limits.floor_to_page(amount, case.page)
    if not amount:
        return None, None, Protection.NOTHING_REQUESTED
    if case.reservation is Reservation.TIERED_RESERVATION and row.qos is resources.Class.GUARANTEED:
        # Containers never have memory.min, and their memory.low needs that of the pod.
        return amount, None if case.recursive else amount, reason
    return None, amount, reason


def _container_low(
    case: _MemoryCase, one: pods.ContainerRow, of_pod: int | None
) -> tuple[int | None, names.ProtectionReason]:
    """Return memory.low of a container. Never memory.min: a container's own pages would leave its pod none to reclaim.

    With the mount option memory_recursiveprot, the kernel shares the pod's protection among its containers.
    """
    if of_pod is None:
        reserves = case.reservation is not Reservation.NONE
        return None, Protection.NOTHING_REQUESTED if reserves else case.unprotected
    if case.recursive:
        return None, Protection.PER_POD
    amount = limits.floor_to_page(min(one.request * case.memory.reservation_percent // 100, of_pod), case.page)
    return (amount, Protection.REQUEST) if amount else (None, Protection.NOTHING_REQUESTED)


def _pod_high(case: _MemoryCase, one: pods.ContainerRow, swap: int | None) -> tuple[int | None, names.ThrottlingReason]:
    """Return memory.high of a pod with one container: its cgroup has the value before the container starts."""
    row, own = case.row, _own_high(case, one.name, pod=True)
    limit = row.whole.limit or one.limit
    if limit:
        limit = min(limit, one.limit or limit) + row.whole.overhead
    return _high(case, case.request, limit, swap, own)


def _own_high(case: _MemoryCase, name: str, *, pod: bool = False) -> int | None:
    """Return the memory.high that annotations ask for a container, or for a pod of one; None without any."""
    if case.asks is _ASKS:
        return None
    asked = [high for container, high in case.asks.container_high if container == name]
    if pod and case.asks.high is not None:
        asked.append(case.asks.high)
    return min(asked, default=None)


def _high(
    case: _MemoryCase, request: int, limit: int, swap: int | None, own: int | None
) -> tuple[int | None, names.ThrottlingReason]:
    """Return memory.high with the reason; `swap` is the limit of swap, None if it is not known."""
    unthrottled = _unthrottled(case, request, limit, own)
    if unthrottled is not None:
        return None, unthrottled
    top = limits.floor_to_page(limit, case.page)
    if own is None:
        high, reason = kubelet.throttled_from(request, limit, case.percent / 100, case.page), Throttling.PERCENT
    else:
        high, reason = _floored_above(own, request, case.page), Throttling.HIGH_ANNOTATION
    least, bound = _floor(case.memory, top, swap)
    if least > high:
        high, reason = limits.floor_to_page(least, case.page), bound
        if high >= top:
            return None, bound
    if not request <= high < top or (own is None and high == request):
        return None, Throttling.NO_ROOM
    return high, reason


def _unthrottled(case: _MemoryCase, request: int, limit: int, own: int | None) -> names.ThrottlingReason | None:
    """Return why there can be no memory.high, whatever the limit of swap; None if there can."""
    if case.row.ending:
        return Throttling.POD_ENDS
    if not case.percent and (own is None or case.unthrottled is not Throttling.THROTTLING_NONE):
        return case.unthrottled
    if own == throttling.NEVER:
        return Throttling.POD_REFUSES
    if not limit:
        return Throttling.NO_LIMIT
    if request >= limit:
        return Throttling.REQUEST_IS_LIMIT
    return Throttling.NO_ROOM if limit < case.page else None


def _floored_above(own: int, request: int, page: int) -> int:
    """Return the page below `own` bytes, or the one above where only that is not below the request."""
    floored = limits.floor_to_page(own, page)
    return floored if floored >= request or own < request else floored + page


def _floor(memory: settings.MemoryQoS, limit: int, swap: int | None) -> tuple[int, names.ThrottlingReason]:
    """Return the least memory.high in bytes, not floored, with the reason of a pod that gets it.

    Above it, all memory up to the limit has room in memory and swap. Without such room nothing can be reclaimed, and
    the kernel makes a process wait longer and longer on its way to the limit. Bounded admits so much of that as takes
    max_stall seconds for one thread: 85 * overage**3 for each MiB of memory.high (mm/memcontrol.c,
    mem_cgroup_handle_over_high, integrated), where its cgroup is alone on the CPU. The kernel charges 64 pages at once,
    pauses for all of them, and takes unused ones back as soon as another cgroup charges there: then it pauses for each
    page.
    """
    room = limit - (swap or 0)
    reason = Throttling.SWAP_UNKNOWN if swap is None else Throttling.NO_SWAP if not swap else Throttling.SWAP_ROOM
    if memory.without_swap is names.WithoutSwap.SKIP:
        return room, reason
    overage = min(_MAX_OVERAGE, (memory.max_stall / (_STALL * limit / _MIB)) ** (1 / 3))
    bounded = int(limit / (1 + overage))
    return (room, reason) if room <= bounded else (bounded, Throttling.STALL_BOUND)


def _swap(pod: limits.PodDecision, container: limits.ContainerDecision) -> int | None:
    """Return the limit of swap that is in effect for a container; None if the kubelet decides it, or nobody knows."""
    first, second = _known_swap(pod), _known_swap(container)
    if first is None or second is None:
        return 0 if 0 in {first, second} else None
    return min(first, second)


def _known_swap(one: limits.PodDecision | limits.ContainerDecision) -> int | None:
    if one.swap_max is None or (one.cap and one.swap_max != "0"):
        return None
    return limits.in_bytes(one.swap_max)
