"""Words for the memory QoS of a pod; every amount is the planner's. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from swapwarden.api import names, state, throttling
from swapwarden.api.conditions import ConditionType
from swapwarden.cli.kubectl.explain.planned import PlannedPod
from swapwarden.cli.kubectl.output.sizes import exact
from swapwarden.policy.memory import amounts, qos, settings

Protection = names.ProtectionReason
Throttling = names.ThrottlingReason


class MemoryLine(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One file of a pod or of a container, or its request."""

    of: str
    """requested, protected or throttled, with the name of the container if it is about one; node: why files differ."""
    text: str
    file: str = ""
    value: int | None = None
    """Bytes; absent if nothing is written."""
    reason: str = ""


def lines(planned: PlannedPod, status: state.StateStatus | None = None) -> Iterator[MemoryLine]:
    """Yield the parts of a pod's memory QoS; nothing if nobody asks for any. `status` is the node's, if it is known."""
    row, profile = planned.row, planned.profile
    memory = qos.decide(profile, planned.facts, row, planned.trace.decision, planned.override)
    if memory is None:
        return
    own = profile.memory_qos or settings.MemoryQoS()
    yield MemoryLine("requested", "with its overhead" if row.whole.overhead else "", value=amounts.pod_request(row))
    file = "memory.low" if memory.minimum is None else "memory.min"
    amount = memory.low if memory.minimum is None else memory.minimum
    why = _PROTECTED[memory.protection](own)
    yield MemoryLine("protected", why, file if amount else "", amount, memory.protection.value)
    words = _throttled(planned, own)
    yield _high("throttled", memory.high, memory.throttling, words)
    if memory.throttling is Throttling.PER_CONTAINER:
        for one in memory.containers:
            yield _high(f"throttled {one.name}", one.high, one.throttling, words)
    for condition in status.conditions if status else ():
        if condition.type == ConditionType.MEMORY_QOS and condition.status == "False":
            yield MemoryLine("node", condition.message, reason=condition.reason)


def _high(of: str, high: int | None, reason: names.ThrottlingReason, words: dict[Throttling, str]) -> MemoryLine:
    return MemoryLine(of, words[reason], "memory.high" if high else "", high, reason.value)


_PROTECTED: Final[dict[Protection, Callable[[settings.MemoryQoS], str]]] = {
    Protection.REQUEST: lambda own: f"{own.reservation_percent}% of the memory request",
    Protection.LOW_ANNOTATION: lambda _: f"annotation {names.MEMORY_LOW_ANNOTATION}, at most the request",
    Protection.PER_POD: lambda _: "by the pod",
    Protection.NOTHING_REQUESTED: lambda _: "the pod requests no memory",
    Protection.RESERVATION_NONE: lambda _: "neither asked for by the profile nor by the pod, or refused",
}


def _throttled(planned: PlannedPod, own: settings.MemoryQoS) -> dict[Throttling, str]:
    """Return the words for each reason of memory.high."""
    return {
        Throttling.PERCENT: f"{_share(planned, own)}% of the way from the memory request to the limit",
        Throttling.HIGH_ANNOTATION: "the annotation's amount",
        Throttling.SWAP_ROOM: "the memory limit less the swap limit: below it, swap would be too small",
        Throttling.STALL_BOUND: f"raised, so that the way to the limit takes at most {own.max_stall} s",
        Throttling.NO_SWAP: "the pod has no swap for what would be reclaimed",
        Throttling.SWAP_UNKNOWN: "the kubelet decides the swap limit",
        Throttling.NO_LIMIT: "there is no memory limit",
        Throttling.REQUEST_IS_LIMIT: "the memory request equals the limit",
        Throttling.NO_ROOM: "it would not lie between request and limit",
        Throttling.PER_POD: "by the pod",
        Throttling.PER_CONTAINER: "each container by itself",
        Throttling.THROTTLING_NONE: "neither asked for by the profile nor by the pod, or refused",
    }


def _share(planned: PlannedPod, own: settings.MemoryQoS) -> int:
    asked = planned.row.asks.throttling if planned.row.asks else None
    of_override = planned.override.memory_throttling if planned.override else None
    known = (asked, of_override, own.throttling_percent)
    return next((each for each in known if each is not None), throttling.NEVER)


def result(line: MemoryLine) -> str:
    """Return the end of a line for users: = 1Gi (memory.low)."""
    if line.value is None:
        return ""
    return f"= {exact(line.value)}" + (f" ({line.file} {line.value})" if line.file else "")
