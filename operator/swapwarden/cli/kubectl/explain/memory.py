"""Words for the memory of a pod: its memory QoS, reclaim, and its place under memory pressure. Pure.

Every decision is the planner's; amounts are the planner's, or follow from the agent's report.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from swapwarden.api import names, quantity, state, throttling
from swapwarden.api.conditions import ConditionType
from swapwarden.api.sizes import exact, rounded
from swapwarden.api.violations import ViolationReason
from swapwarden.cli.kubectl.explain.rules import PlannedPod
from swapwarden.policy.memory import protection, qos, settings
from swapwarden.policy.observed import pods
from swapwarden.policy.observed.pods import WirePod
from swapwarden.policy.pressure import candidates, ranking
from swapwarden.policy.pressure import words as pressure_words
from swapwarden.policy.pressure.ranking import Ranked, Spared
from swapwarden.policy.reclaim import decisions

Protection = names.ProtectionReason
Throttling = names.ThrottlingReason


class MemoryLine(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One file of a pod or of a container, or its request."""

    of: str
    """requested, protected, in effect, throttled, so far or guard, with the name of the container if it is about one;
    node: why files differ."""
    text: str
    file: str = ""
    value: int | None = None
    """Bytes; absent if nothing is written."""
    reason: str = ""
    count: int = 0
    """How many times the kernel throttled."""
    milliseconds: int = 0
    """For how long a task stalled meanwhile."""


def lines(planned: PlannedPod, node_state: state.NodeSwapState | None = None) -> Iterator[MemoryLine]:
    """Yield the parts of a pod's memory QoS, with the remedy where it is refused; nothing if nobody asks for any.

    `node_state` is its node's state, if known.
    """
    row, profile = planned.row, planned.profile
    if profile.memory_qos is None and row.asks is None:
        return
    override = None if planned.override is None else planned.override.memory
    memory = qos.decide(profile.memory_qos, planned.facts, row, planned.trace.decision, override)
    if memory is None:
        return
    own = profile.memory_qos or settings.MemoryQoS()
    yield MemoryLine("requested", "with its overhead" if row.whole.overhead else "", value=pods.pod_request(row))
    file = "memory.low" if memory.minimum is None else "memory.min"
    amount = memory.low if memory.minimum is None else memory.minimum
    why = _protected(planned, own)[memory.protection]
    yield MemoryLine("protected", why, file if amount else "", amount, memory.protection.value)
    if node_state is not None and (reached := _in_effect(planned, node_state)) is not None:
        yield reached
    words = _throttled(planned, own)
    yield _high("throttled", memory.high, memory.throttling, words)
    if memory.throttling is Throttling.PER_CONTAINER:
        for one in memory.containers:
            yield _high(f"throttled {one.name}", one.high, one.throttling, words)
    if node_state is not None and (memory.high or any(one.high for one in memory.containers)):
        yield from _seen(planned, node_state.status)
    for condition in node_state.status.conditions if node_state else ():
        if condition.type == ConditionType.MEMORY_QOS and condition.status == "False":
            yield MemoryLine("node", condition.message, reason=condition.reason)


def _in_effect(planned: PlannedPod, node_state: state.NodeSwapState) -> MemoryLine | None:
    """Return what of the protection is in effect; None if none is planned."""
    row = planned.row
    for hard, file in ((True, "memory.min"), (False, "memory.low")):
        reached = protection.in_effect(node_state, row.key, row.qos, hard=hard)
        if reached is not None:
            has_less = _ABOVE.get(reached.cgroup, f"the cgroup /{reached.cgroup}")
            text = _EFFECTS[reached.effect].format(
                cgroup=has_less, file=file, mode=node_state.spec and node_state.spec.mode
            )
            if reached.effect is protection.Effect.NODE_HAS_LESS:
                text = next((one.message for one in node_state.status.conditions if one.type == _INEFFECTIVE), text)
            return MemoryLine("in effect", text, value=reached.amount, reason=reached.effect.value)
    return None


_INEFFECTIVE: Final = ConditionType.PROTECTION_INEFFECTIVE
_ABOVE: Final = {
    protection.ROOT: "the cgroup above all pods (kubepods)",
    protection.BURSTABLE: "the cgroup above all Burstable pods",
    protection.POD: "the pod's cgroup",
}
_EFFECTS: Final = {
    protection.Effect.IN_EFFECT: "all cgroups above the pod have as much",
    protection.Effect.ANCESTOR_HAS_LESS: "{cgroup} has too little {file} for its pods",
    protection.Effect.NODE_HAS_LESS: "a cgroup above that of all pods has too little {file}",
    protection.Effect.POD_HAS_LESS: "{cgroup} has another {file}",
    protection.Effect.NOT_WRITTEN: "mode {mode}: {file} is not written",
    protection.Effect.KUBELET_OWNED: "not known: some files are left to the kubelet or to another writer",
    protection.Effect.UNKNOWN: "not known: the agent has not reported all cgroups",
}


def _seen(planned: PlannedPod, status: state.StateStatus) -> Iterator[MemoryLine]:
    """Yield how often and for how long the pod was throttled, and what the guard made of it."""
    row = planned.row
    listed = [each for each in status.throttled if each.pod == row.key]
    for each in listed:
        of = _container(planned, each.container)
        often = "once" if each.count == 1 else f"{each.count} times"
        since = f", since {each.since}" if each.since else ""
        text = f"{often}; some task stalled for {each.milliseconds / 1000:.1f} s meanwhile{since}"
        yield MemoryLine(f"so far{of}", text, count=each.count, milliseconds=each.milliseconds)
        if each.guard:
            why = next((one.message for one in status.violations if _is_eased(one, each)), "")
            text = _GUARD.get(each.guard, f"the agent reports {each.guard}") + (f": {why}" if why else "")
            yield MemoryLine(f"guard{of}", text, reason=each.guard)
    if not listed and status.observed_generation and not status.throttled_omitted:
        yield MemoryLine("so far", "not throttled in the last ten minutes")


def _container(planned: PlannedPod, identity: str) -> str:
    """Return the name of a container with this id, after a space; empty for a pod's own cgroup."""
    if not identity:
        return ""
    return " " + next((one.name for one in planned.row.containers if one.id and identity.startswith(one.id)), identity)


def _is_eased(violation: state.Violation, throttled: state.ThrottledCgroup) -> bool:
    cgroups = (violation.pod, violation.container) == (throttled.pod, throttled.container)
    return cgroups and violation.reason == ViolationReason.THROTTLING_EASED


_GUARD: Final = {
    "Stepped": "memory.high is raised halfway to the memory limit",
    "Released": "memory.high is raised to max",
    "Latched": "memory.high is raised to max until the plan or the cgroup changes",
}


def _high(of: str, high: int | None, reason: names.ThrottlingReason, words: dict[Throttling, str]) -> MemoryLine:
    return MemoryLine(of, words[reason], "memory.high" if high else "", high, reason.value)


def _not_offered(planned: PlannedPod) -> str:
    name = planned.profile.name
    if name == names.BUILT_IN_PROFILE:
        return "not offered: no profile selects the node; one with memoryQoS does"
    return f"not offered: set memoryQoS in {name} ({{}} is enough)"


def _refused(planned: PlannedPod, field: str) -> str:
    return f"refused: remove memory.{field} from {planned.override_name} of {planned.profile.name}"


_ASKED_BY_NOBODY: Final = "neither the profile nor the pod asks for it"
_POD_REFUSES: Final = "an annotation of the pod refuses it, or is invalid"


def _protected(planned: PlannedPod, own: settings.MemoryQoS) -> dict[Protection, str]:
    """Return the words for each reason of memory.min and memory.low."""
    return {
        Protection.REQUEST: f"{own.reservation_percent}% of the memory request",
        Protection.LOW_ANNOTATION: f"annotation {names.MEMORY_LOW_ANNOTATION}, at most the request",
        Protection.PER_POD: "by the pod",
        Protection.NOTHING_REQUESTED: "the pod requests no memory",
        Protection.RESERVATION_NONE: _ASKED_BY_NOBODY,
        Protection.POD_REFUSES: _POD_REFUSES,
        Protection.OVERRIDE_REFUSES: _refused(planned, "reservation"),
        Protection.NOT_OFFERED: _not_offered(planned),
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
        Throttling.POD_ENDS: "the pod was deleted",
        Throttling.PER_POD: "by the pod",
        Throttling.PER_CONTAINER: "each container by itself",
        Throttling.THROTTLING_NONE: _ASKED_BY_NOBODY,
        Throttling.POD_REFUSES: _POD_REFUSES,
        Throttling.OVERRIDE_REFUSES: _refused(planned, "throttling"),
        Throttling.NOT_OFFERED: _not_offered(planned),
    }


def _share(planned: PlannedPod, own: settings.MemoryQoS) -> int:
    asked = planned.row.asks.throttling if planned.row.asks else None
    given = planned.override.memory if planned.override else None
    of_override = None if given is None else given.throttling
    known = (asked, of_override, own.throttling_percent)
    return next((each for each in known if each is not None), throttling.NEVER)


def result(line: MemoryLine) -> str:
    """Return the end of a line for users: = 1Gi (memory.low)."""
    if line.value is None:
        return ""
    return f"= {exact(line.value)}" + (f" ({line.file} {line.value})" if line.file else "")


# Reclaim


Reclaim = names.ReclaimReason
HOLDS: Final[dict[str, str]] = {
    names.ReclaimHold.STEP: "steps go on",
    names.ReclaimHold.WAITS: "it waits for its next step",
    names.ReclaimHold.FIRST_LOOK: "it waits for its next step",
    names.ReclaimHold.DONE: "Startup has ended",
    names.ReclaimHold.STALLED: "the pod waits for memory",
    names.ReclaimHold.REFAULTS: "the pod needed swapped memory again",
    names.ReclaimHold.SMALL: "too little memory is in use",
    names.ReclaimHold.PROTECTED: "the rest is protected",
    names.ReclaimHold.SWAP_LIMIT: "the swap limit of the pod, or of a cgroup above it, is reached",
    names.ReclaimHold.SWAP_KEPT: "the node keeps the rest of its swap free (reclaim.keepSwapFree)",
    names.ReclaimHold.WRITES: "the writes of 24 hours are spent (reclaim.writesPerDay)",
    names.ReclaimHold.NODE_PRESSURE: "the node is short of memory",
    names.ReclaimHold.UNREADABLE: "the kernel does not show how the pod does",
}


def reclaim_lines(planned: PlannedPod, node_state: state.NodeSwapState | None = None) -> Iterator[MemoryLine]:
    """Yield whether idle memory of a pod is moved to swap, and how much was; nothing if nobody asks.

    `node_state` is its node's state, if known.
    """
    row, override = planned.row, planned.override
    given = None if override is None else override.reclaim
    if row.reclaim is None and given is None:
        return
    decided = decisions.decide(planned.profile.reclaim, row, planned.trace.decision, given)
    why = _reclaim_words(planned)[decided.reason]
    yield MemoryLine("reclaim", f"{decided.mode.value}: {why}", reason=decided.reason.value)
    if node_state is None or decided.mode is names.ReclaimMode.OFF:
        return
    if node_state.spec is not None and node_state.spec.mode is not names.Mode.ENFORCE:
        yield MemoryLine("moved", f"mode {node_state.spec.mode}: nothing is moved", reason=node_state.spec.mode.value)
        return
    listed = next((each for each in node_state.status.reclaimed if each.pod == row.key), None)
    if listed is not None:
        last = HOLDS.get(listed.hold, f"the agent reports {listed.hold}")
        text = (
            f"{rounded(listed.moved_bytes)} to swap by it, in {listed.milliseconds / 1000:.1f} s;"
            f" {rounded(listed.refaulted_bytes)} of swapped memory soon came back; {last}"
        )
        yield MemoryLine("moved", text, reason=listed.hold, milliseconds=listed.milliseconds)


def _reclaim_words(planned: PlannedPod) -> dict[Reclaim, str]:
    profile, override = planned.profile, planned.override_name
    offer = f"set reclaim.mode in {profile.name}"
    if profile.name == names.BUILT_IN_PROFILE:
        offer = "no profile selects the node; one with reclaim does"
    return {
        Reclaim.ANNOTATION: f"annotation {names.RECLAIM_ANNOTATION}",
        Reclaim.OVERRIDE: f"{override} of {profile.name}",
        Reclaim.STARTUP_ONLY: f"{profile.name} offers no more; its reclaim.mode Continuous does",
        Reclaim.NO_SWAP: "the pod has no swap",
        Reclaim.POD_ENDS: "the pod was deleted",
        Reclaim.NOT_ASKED: "nobody asks for it",
        Reclaim.POD_REFUSES: "an annotation of the pod refuses it, or is invalid",
        Reclaim.OVERRIDE_REFUSES: f"refused: remove reclaim from {override} of {profile.name}",
        Reclaim.NOT_OFFERED: f"not offered: {offer}",
    }


# Memory pressure


class PodPressure(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The place of a pod among those that would be evicted. Sizes in bytes."""

    text: str
    rank: int | None = None
    """Among the pods that may be evicted, from 1; absent if the pod is spared, or if the others are not known."""
    spared: Spared | None = None
    usage: int | None = None
    """Working set and swap; absent if the agent did not measure the pod."""
    request: int = 0
    swap: int = 0
    """The swap that it may use."""


def pressure_of(
    planned: PlannedPod,
    node_uid: str,
    node_state: state.NodeSwapState | None,
    neighbours: Iterable[WirePod] | None,
) -> PodPressure | None:
    """Return the decision on a pod; None if its node is not under pressure, or if its profile does not ask.

    `node_state` is the state of the node; `neighbours` are its other pods, None if they are not known.
    """
    if (
        node_state is None
        or node_state.spec is None
        or node_state.spec.pressure is None
        or node_state.status.pressure is None
    ):
        return None
    report, spec, uid = node_state.status.pressure, node_state.spec, planned.pod.metadata.uid

    def read() -> Iterator[candidates.Candidate]:
        for wire in (planned.pod, *(neighbours or ())):
            with contextlib.suppress(quantity.QuantityError):
                one = candidates.read(wire, planned.facts, node_uid, spec.pods)
                if one is not None:
                    yield one

    ranked = ranking.rank(read(), report, planned.facts.memory_bytes, planned.profile.eviction)
    own = next((one for one in ranked if one.pod.uid == uid), None)
    if own is None:
        return None
    able = [one.pod.uid for one in ranked if one.spared is None]
    rank = able.index(own.pod.uid) + 1 if own.spared is None and neighbours is not None else None
    victim = node_state.spec.pressure.victim
    goes = victim is not None and victim.uid == uid
    what = "this pod is being evicted" if goes else _would(own, rank, len(able))
    text = f"{pressure_words.pressure(report, node_state.spec.pressure)}; {what}"
    if own.measured is not None:
        text += f": {pressure_words.arithmetic(own)}"
    usage = None if own.measured is None else own.usage
    return PodPressure(text, rank, own.spared, usage, own.pod.request, own.pod.swap)


def _would(own: Ranked, rank: int | None, able: int) -> str:
    if own.spared is not None:
        return f"this pod would not be evicted: {pressure_words.WHY_SPARED[own.spared]}"
    if rank is None:
        return "this pod may be evicted"
    return (
        "this pod would be evicted first" if rank == 1 else f"this pod is number {rank} of {able} that may be evicted"
    )
