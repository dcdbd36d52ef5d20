"""Turn a profile, a node's facts and its pods into the spec of the node's NodeSwapState, and explain it."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from swapwarden.api import formats, names, state
from swapwarden.policy import pod_settings
from swapwarden.policy.memory import qos as memory_qos
from swapwarden.policy.memory import settings as memory_settings
from swapwarden.policy.node import labels
from swapwarden.policy.node import settings as node_settings
from swapwarden.policy.observed import namespaces, nodes, pods
from swapwarden.policy.pressure import thresholds
from swapwarden.policy.profile import compiled, overrides
from swapwarden.policy.reclaim import decisions as reclaim
from swapwarden.policy.swap import limits, requirements

_UNCOMPARED: Final = "epoch"
"""The writer's term: a difference in it alone is no reason to write."""
_PRESSURE: Final = "pressure"
_EVICTIONS: Final = frozenset({"victim", "evictedAt"})
"""The fields of a state's pressure about evictions: the plan neither writes nor removes them."""
_NONE: Final[namespaces.Labels] = {}
_UNPROTECTED: Final = memory_qos.Sums()
_NO_SETTINGS: Final = state.CgroupSettings()
_GUARD: Final = state.GuardSettings()
_NOTHING_MORE: Final = (None, None, None, None)
"""Neither the profile nor a pod has memory QoS or reclaim: most pods have swap limits only."""
_USUAL_REASONS: Final = {
    names.Behavior.KUBELET: names.Reason.KUBELET_DECIDES,
    names.Behavior.NO_SWAP: names.Reason.PROFILE_NO_SWAP,
    names.Behavior.LIMITED_SWAP: names.Reason.LIMITED_SWAP,
    names.Behavior.WORKLOAD_CONTROLLED: names.Reason.WORKLOAD_LIMIT,
}
"""The reason of most pods, which a state has once."""
_MAX_VALUE: Final = 32
"""A value in quotes, with the text around it and around keys."""
_MAX_KEYS: Final = 2 * 130 + _MAX_VALUE
"""A pod's key twice, as long as its pattern allows, and _MAX_VALUE."""


class NodePlan(NamedTuple):
    """The plan of a node's cgroups, and the pods without room in it."""

    spec: state.StateSpec
    """The epoch is left at 0."""
    left_out: tuple[pods.PodRow, ...] = ()


class ExplainedPod(msgspec.Struct, frozen=True):
    """A pod and the decision on it."""

    row: pods.PodRow
    decision: limits.PodDecision
    override: str | None = None
    """Name of the profile's override that changes the decision."""
    memory: memory_qos.PodMemory | None = None
    """memory.min, memory.low and memory.high; None if nothing is asked for."""
    reclaim: reclaim.PodReclaim | None = None
    """Whose idle memory is moved; None if the profile offers none, and the pod does not ask."""


class Explanation(msgspec.Struct, frozen=True):
    """A node's plan with all decisions, written or not."""

    header: state.StateSpec
    """The plan without its pods."""
    pods: tuple[ExplainedPod, ...]
    """Sorted by namespace and name; pods that have ended are left out."""
    extended_resource: int | None = None
    """The node's offer of the extended resource, in bytes; None if it has none."""
    refused: Mapping[str, str] = {}
    """The profile's settings that are unsafe for the node, with the reason."""
    unmet: Mapping[str, str] | None = None
    """Unmet requirements, with the observed facts and the remedy; None if nothing is required."""
    protection: memory_qos.Sums = _UNPROTECTED
    """The protected memory of all pods."""


class Trace(msgspec.Struct, frozen=True):
    """The steps to one pod's part of a plan."""

    steps: tuple[limits.TraceStep, ...]
    """The rules in order; the last one has the decision."""
    override: int | None = None
    """Index of the override that selects the pod, whether it makes a difference or not."""
    left: int | None = None
    """The node's swap that earlier pods leave, in bytes; None if their shares do not matter."""

    @property
    def decision(self) -> limits.PodDecision:
        """The pod's part of the plan."""
        decision = self.steps[-1].decision
        assert decision is not None  # noqa: S101 for mypy: what is tried last matches
        return decision


def plan_node(
    profile: compiled.Profile, facts: nodes.NodeFacts, rows: Iterable[pods.PodRow], known: namespaces.Labels = _NONE
) -> state.StateSpec:
    """Plan the values of one node's cgroups. `rows` are the node's pods in any order; the epoch is left at 0.

    `known` namespaces are only needed if profile.needs_namespaces(): a pod whose namespace is not among them waits. See
    plan_all() for the pods that have room.
    """
    return plan_all(profile, facts, rows, known).spec


def plan_all(
    profile: compiled.Profile, facts: nodes.NodeFacts, rows: Iterable[pods.PodRow], known: namespaces.Labels = _NONE
) -> NodePlan:
    """Plan one node like plan_node, and name the pods that are left out.

    At most MAX_PODS pods are planned, of each MAX_CONTAINERS containers, and at most MAX_PODS_BYTES of JSON, including
    their largest preview: the API server would refuse a larger object as a whole. A kubelet runs far fewer.
    """
    owners = _owners(rows)
    left: list[pods.PodRow] = []
    if len(owners) > state.MAX_PODS:
        owners, left = share_room(owners, state.MAX_PODS)
    usual = _USUAL_REASONS[profile.swap.behavior]
    decided = {one.row.key: one for one in _decided(profile, facts, owners, known)}
    planned = {key: pod_settings.of(one.decision, one.memory, usual, one.reclaim) for key, one in decided.items()}
    if _size(planned.values()) + len(planned) * _MAX_KEYS > state.MAX_PODS_BYTES:
        concerned = [row for row in owners if row.key in planned]
        owners, large = share_room(concerned, state.MAX_PODS_BYTES, lambda row: cost(row.key, planned[row.key]))
        planned = {row.key: planned[row.key] for row in owners}
        left += large
    protection = _protection(profile, facts, (decided[key] for key in planned))
    return NodePlan(msgspec.structs.replace(_header(profile, facts, protection), pods=planned), tuple(left))


def preview(now: state.StateSpec, coming: state.StateSpec) -> state.ProfilePreview:
    """Return the limits in `coming` of those pods of `now` that lose swap by it. In Audit nothing is taken."""
    less = {}
    if coming.mode is names.Mode.ENFORCE:
        for key, planned in now.pods.items():
            before, pod = planned if now.mode is names.Mode.ENFORCE else None, coming.pods.get(key)
            if pod is not None and (limit := _limit(pod)) is not None and _number(pod) < _number(before):
                less[key] = limit
    return state.ProfilePreview(coming.profile_ref, less)


def _limit(pod: state.PodSettings) -> str | None:
    return pod.swap_max or pod.swap_at_most


def _number(pod: state.PodSettings | None) -> float:
    limit = None if pod is None else _limit(pod)
    return math.inf if limit is None or limit == names.MAX_SWAP else int(limit)


def restore_node(profile: compiled.Profile) -> state.StateSpec:
    """Plan a node that must restore its earlier values: nothing is planned for any pod. The epoch is left at 0."""
    return state.StateSpec(
        profile_ref=reference(profile), mode=names.Mode.RESTORE, before_plan=profile.swap.before_plan
    )


def explain_node(
    profile: compiled.Profile, facts: nodes.NodeFacts, rows: Iterable[pods.PodRow], known: namespaces.Labels = _NONE
) -> Explanation:
    """Plan one node like plan_node, and keep every container's number and reason, running or not."""
    decided = sorted(_decided(profile, facts, _owners(rows), known), key=lambda one: (one.row.namespace, one.row.name))
    protection = _protection(profile, facts, decided)
    return Explanation(
        _header(profile, facts, protection),
        tuple(decided),
        labels.swap_resource_capacity(profile.node, profile.swap, facts),
        node_settings.plan_kernel(profile.node.kernel, facts).refused,
        requirements.unmet(profile.swap.require, facts),
        protection,
    )


def trace_pod(
    profile: compiled.Profile,
    facts: nodes.NodeFacts,
    row: pods.PodRow,
    others: Iterable[pods.PodRow] = (),
    known: namespaces.Labels = _NONE,
) -> Trace:
    """Return the steps of plan_node for `row`, a pod that has not ended; `others` are the node's other pods.

    UnknownNamespaceError (see overrides) if the pod has to wait until its namespace is known.
    """
    place = _place(profile, row, known)
    override = None if place is None else profile.overrides[place]
    steps = tuple(limits.trace(profile.swap, facts, row, None if override is None else override.swap))
    total = limits.overcommit_budget(profile.swap, facts)
    if total is None:
        return Trace(steps, place)
    served = _decided(profile, facts, _owners((row, *others)), known)
    own = limits.served_order(row)
    left = total - sum(int(one.decision.swap_max or 0) for one in served if limits.served_order(one.row) < own)
    before = Trace(steps, place, left)
    decision = limits.cut(before.decision, left, facts.page_size, names.Reason.OVERCOMMIT_REACHED)
    if decision is before.decision:
        return before
    return Trace((*steps, limits.TraceStep(decision.reason, matched=True, decision=decision)), place, left)


def of_units(header: state.StateSpec) -> Iterator[tuple[str, str]]:
    """Return the values of the node's own units, for users: swap by the unit's name, others with the file name."""
    for name, unit in header.units.items():
        if unit.swap_max is not None:
            yield name, unit.swap_max
        if unit.memory_low is not None:
            yield f"{name} memory.low", unit.memory_low
        if unit.io_latency_microseconds is not None:
            yield f"{name} io.latency", f"{unit.io_latency_microseconds} us"
        if unit.io_weight is not None:
            yield f"{name} io.weight", str(unit.io_weight)


def spec_patch(old: state.StateSpec | Mapping[str, Any] | None, new: state.StateSpec) -> dict[str, Any] | None:
    """Return the JSON merge patch (RFC 7386) for .spec that turns `old` into `new`; None if they are equal.

    The epoch and the pod that is evicted are neither compared nor in the patch: their writers add them. From None, the
    patch is the whole of `new`. `old` may be plain JSON, for a spec of another version that this one does not
    understand.
    """
    if isinstance(old, state.StateSpec):
        planned = None if old.pressure is None else old.pressure.planned()
        if msgspec.structs.replace(old, epoch=new.epoch, pressure=planned) == new:
            return None
    before = dict(old) if isinstance(old, Mapping) else msgspec.to_builtins(old) if old else {}
    after = msgspec.to_builtins(new)
    before.pop(_UNCOMPARED, None)
    after.pop(_UNCOMPARED, None)
    if isinstance(pressure := before.get(_PRESSURE), dict):
        before[_PRESSURE] = {key: value for key, value in pressure.items() if key not in _EVICTIONS}
    return formats.merge_patch(before, after) or None


def reference(profile: compiled.Profile) -> state.ProfileRef:
    """Return the reference of a plan to its profile."""
    return state.ProfileRef(name=profile.name, generation=profile.generation)


def _protection(profile: compiled.Profile, facts: nodes.NodeFacts, decided: Iterable[ExplainedPod]) -> memory_qos.Sums:
    planned = [(one.row, one.memory) for one in decided if one.memory is not None]
    return memory_qos.sums(profile.memory_qos, facts, planned) if planned else _UNPROTECTED


def _header(profile: compiled.Profile, facts: nodes.NodeFacts, protection: memory_qos.Sums) -> state.StateSpec:
    swap_max = None
    if facts.compatible and profile.swap.reserved is not None:
        swap_max = str(limits.floor_to_page(limits.available(profile.swap, facts), facts.page_size))
    kubepods = state.CgroupSettings(
        swap_max, pod_settings.text(protection.kubepods_min), pod_settings.text(protection.kubepods_low)
    )
    burstable = state.CgroupSettings(memory_low=pod_settings.text(protection.burstable_low))
    require = profile.swap.require
    unmet = None if require is None else requirements.first_unmet(require, facts)
    return state.StateSpec(
        profile_ref=reference(profile),
        mode=profile.mode,
        guarantee=profile.guarantee,
        # If no pod may have swap, there is nothing to wait for.
        before_plan=profile.swap.before_plan if unmet is None else names.BeforePlan.NO_SWAP,
        default_reason=_USUAL_REASONS[profile.swap.behavior],
        kubepods=None if kubepods == _NO_SETTINGS else kubepods,
        burstable=None if burstable == _NO_SETTINGS else burstable,
        memory_guard=_guard(profile),
        pressure=None if profile.pressure is None else thresholds.of_node(profile.pressure, facts),
        reclaim=None if profile.reclaim is None else reclaim.bounds(profile.reclaim, facts),
        units=_units(profile, protection),
        kernel_settings=node_settings.plan_kernel(profile.node.kernel, facts).values if profile.node.kernel else {},
    )


def _guard(profile: compiled.Profile) -> state.GuardSettings | None:
    """Return the guard of a profile that has another one than all agents have by default."""
    if profile.memory_qos is None:
        return None
    asked = profile.memory_qos.guard
    times = {"window_seconds": asked.window, "hold_seconds": asked.hold}
    guard = {"action": asked.action, **times, "kubelet": asked.kubelet}
    # msgspec leaves out a default only if it is the same object, which not every equal number is.
    others = {name: value for name, value in guard.items() if value != getattr(_GUARD, name)}
    return msgspec.structs.replace(_GUARD, **others) if others else None


def _units(profile: compiled.Profile, protection: memory_qos.Sums) -> dict[str, state.UnitSettings]:
    units = dict(profile.node.units)
    low = protection.system_low
    if low:
        own = units.get(memory_settings.SYSTEM_SLICE, state.UnitSettings())
        units[memory_settings.SYSTEM_SLICE] = msgspec.structs.replace(own, memory_low=str(low))
    return units


def _owners(rows: Iterable[pods.PodRow]) -> list[pods.PodRow]:
    """Return running and pending pods. If several claim one cgroup, keep its rightful owner."""
    by_key: dict[str, pods.PodRow] = {}
    for row in rows:
        if not row.terminal:
            rival = by_key.get(row.key)
            by_key[row.key] = row if rival is None else min(rival, row, key=_claim)
    return list(by_key.values())


def _claim(row: pods.PodRow) -> tuple[bool, bool, str, str, str]:
    """Return a sort key for pods that name one cgroup: its owner is first, then running ones, then older ones.

    Everyone who can create pods can write the annotation that names a static pod's cgroup.
    """
    return row.key != row.uid, not row.started, row.created, row.namespace, row.name


def _decided(
    profile: compiled.Profile, facts: nodes.NodeFacts, rows: Iterable[pods.PodRow], known: namespaces.Labels
) -> list[ExplainedPod]:
    """Decide on pods that name a cgroup each."""
    explained = (_explained(profile, facts, row, known) for row in rows)
    served = [one for one in explained if one is not None]
    total = limits.overcommit_budget(profile.swap, facts)
    if total is not None:
        served = list(_shared(served, total, facts.page_size))
    return [
        one
        if (profile.memory_qos, profile.reclaim, one.row.asks, one.row.reclaim) == _NOTHING_MORE
        else _with_features(profile, facts, one, known)
        for one in served
    ]


def _with_features(
    profile: compiled.Profile, facts: nodes.NodeFacts, one: ExplainedPod, known: namespaces.Labels
) -> ExplainedPod:
    row, decision, waits, place = one.row, one.decision, False, None
    try:
        place = overrides.find(profile, row, known)
    except overrides.UnknownNamespaceError:
        waits = True  # a pod without swap does not wait; an override may refuse it memory QoS
    override = compiled.Override() if place is None else profile.overrides[place]
    memory = moved = None
    changed = one.override
    if not waits and (profile.memory_qos is not None or row.asks is not None):
        memory = memory_qos.decide(profile.memory_qos, facts, row, decision, override.memory)
        if override.memory and memory != memory_qos.decide(profile.memory_qos, facts, row, decision):
            changed = override.name
    if profile.reclaim is not None or row.reclaim is not None:
        moved = reclaim.decide(profile.reclaim, row, decision, override.reclaim)
        if override.reclaim and moved != reclaim.decide(profile.reclaim, row, decision, None):
            changed = override.name
    return ExplainedPod(row, decision, changed, memory, moved)


def _explained(
    profile: compiled.Profile, facts: nodes.NodeFacts, row: pods.PodRow, known: namespaces.Labels
) -> ExplainedPod | None:
    """Return the decision on a pod; None if it has to wait until its namespace is known."""
    try:
        place = _place(profile, row, known) if profile.overrides else None
    except overrides.UnknownNamespaceError:
        return None
    plain = limits.decide(profile.swap, facts, row)
    if place is None:
        return ExplainedPod(row, plain)
    decision = limits.decide(profile.swap, facts, row, profile.overrides[place].swap)
    return ExplainedPod(row, decision, None if decision == plain else profile.overrides[place].name)


def _place(profile: compiled.Profile, row: pods.PodRow, known: namespaces.Labels) -> int | None:
    """Return the index of the override that applies to the pod."""
    try:
        return overrides.find(profile, row, known)
    except overrides.UnknownNamespaceError:
        # A pod without swap does not wait for an override that may lift it.
        if limits.forbids_swap(row.policy):
            return None
        raise


def _shared(decided: Iterable[ExplainedPod], left: int, page: int) -> Iterator[ExplainedPod]:
    for one in sorted(decided, key=lambda each: limits.served_order(each.row)):
        decision = limits.cut(one.decision, left, page, names.Reason.OVERCOMMIT_REACHED)
        left -= int(decision.swap_max or 0)
        yield ExplainedPod(one.row, decision, one.override)


def cost(key: str, entry: state.PodSettings) -> int:
    """Return the bytes of JSON that a pod takes in a plan, and at most in the preview beside it."""
    return _size([entry]) + 2 * len(msgspec.json.encode(key)) + _MAX_VALUE


def _size(entries: Iterable[state.PodSettings]) -> int:
    return len(msgspec.json.encode(list(entries)))


def share_room(
    rows: Iterable[pods.PodRow], room: int, cost: Callable[[pods.PodRow], int] = lambda _: 1
) -> tuple[list[pods.PodRow], list[pods.PodRow]]:
    """Split pods into those that have room in a plan and those that do not, each in the order in which they are served.

    The API server keeps pods that no kubelet ever runs, and everyone who can create pods can create thousands of them
    for one node. So pods that the kubelet has accepted come first: their number is bounded, and only the kubelet writes
    status.startTime. Among these, and among the others, namespaces share the room: the one with least is served next,
    so that a namespace that needs less than its share gets all of it, whatever others request.

    `cost` is a pod's share of `room`. A pod that is too large for the rest does not end its namespace's turn. Within
    one namespace, pods that must not swap come first, then earlier accepted ones, then older ones.
    """
    kept: list[pods.PodRow] = []
    left: list[pods.PodRow] = []
    started: dict[str, list[pods.PodRow]] = {}
    waiting: dict[str, list[pods.PodRow]] = {}
    for row in rows:
        (started if row.started else waiting).setdefault(row.namespace, []).append(row)
    for tier in (started, waiting):
        turns = [(0, namespace) for namespace in sorted(tier)]
        queues = {namespace: iter(sorted(queue, key=_room_order)) for namespace, queue in tier.items()}
        while turns and room > 0:
            used, namespace = turns[0]
            one = next(queues[namespace], None)
            if one is None:
                heapq.heappop(turns)
                continue
            size = cost(one)
            if size > room:
                left.append(one)
                continue
            kept.append(one)
            room -= size
            heapq.heapreplace(turns, (used + size, namespace))
        left += itertools.chain.from_iterable(queues[namespace] for _, namespace in sorted(turns))
    return kept, left


def _room_order(row: pods.PodRow) -> tuple[bool, str, str, str]:
    return not limits.forbids_swap(row.policy), row.started, row.created, row.key
