"""The effect of other profiles on a cluster: the controller's own planning, before and after.

Pure.
"""

from __future__ import annotations

import collections
import enum
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from swapwarden.api import names, sizes, state
from swapwarden.api.conditions import ConditionType
from swapwarden.cli.kubectl.cluster import snapshot
from swapwarden.cli.kubectl.output import tables
from swapwarden.policy import plan
from swapwarden.policy.fleet import rollout
from swapwarden.policy.memory import qos
from swapwarden.policy.node import labels
from swapwarden.policy.observed import pods
from swapwarden.policy.pod_settings import text
from swapwarden.policy.profile import compiled
from swapwarden.policy.reclaim import decisions
from swapwarden.policy.swap import limits
from swapwarden.policy.swap.settings import SwapOptions

Place = tuple[str, str]
"""A pod's namespace and name."""

_LIMITED: Final = SwapOptions(behavior=names.Behavior.LIMITED_SWAP)


class Direction(enum.StrEnum):
    """The change of a pod's swap."""

    GAINS = "Gains"
    LOSES = "Loses"
    SAME = "Same"
    UNKNOWN = "Unknown"
    """The kubelet decides, before or after, and it is not known how; or the pod's namespace is not known."""


_NOTHING: Final = "-"


def _rounded(amount: str) -> str:
    return sizes.rounded(int(amount))


class SimulatedMemory(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """memory.min, memory.low and memory.high of a pod, in bytes; None where nothing is written."""

    protection_reason: str = ""
    throttling_reason: str = ""
    """Empty if nobody asks for memory QoS."""
    memory_min: str | None = None
    memory_low: str | None = None
    memory_high: str | None = None
    containers: Mapping[str, str] = {}
    """memory.high of its containers that have one, by name."""

    @property
    def protection(self) -> tuple[str | None, str | None]:
        """Return memory.min and memory.low."""
        return self.memory_min, self.memory_low

    @property
    def throttling(self) -> tuple[str | None, Mapping[str, str]]:
        """Return memory.high of the pod, and of containers."""
        return self.memory_high, self.containers

    @property
    def protected(self) -> str:
        """Return memory.min and memory.low for users, rounded."""
        parts = [f"min {_rounded(self.memory_min)}"] if self.memory_min else []
        parts += [_rounded(self.memory_low)] if self.memory_low else []
        return ", ".join(parts) or _NOTHING

    @property
    def throttled(self) -> str:
        """Return memory.high for users, rounded."""
        parts = [_rounded(self.memory_high)] if self.memory_high else []
        parts += [f"{name} {_rounded(high)}" for name, high in self.containers.items()]
        return ", ".join(parts) or _NOTHING


NO_MEMORY_QOS: Final = SimulatedMemory()


class SimulatedLimit(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The limit of a pod by one plan."""

    profile: str
    reason: names.Reason | None
    """None if the pod waits: labels of its namespace decide, and are not known."""
    swap_max: str | None = None
    """The pod's memory.swap.max, or the most where the kubelet decides; None if nothing limits that, or is written."""
    override: str | None = None
    """Name of the profile's override that made the difference."""
    audit: bool = False
    """Whether the profile only reports."""
    kubelet: str | None = None
    """The most that the kubelet gives the pod where it decides, in bytes, or max; None if unknown."""
    memory: SimulatedMemory = NO_MEMORY_QOS
    reclaim: decisions.PodReclaim | None = None
    """None if the profile offers none, and the pod does not ask."""

    @property
    def bytes(self) -> float | None:
        """Return the most that the pod can use: infinite if nothing limits it, None if unknown."""
        if self.reason is None:
            return None
        own = math.inf if self.audit else _number(self.swap_max)
        left_to_kubelet = self.audit or self.reason is names.Reason.KUBELET_DECIDES
        if not left_to_kubelet or own == 0:
            return own
        return None if self.kubelet is None else min(own, _number(self.kubelet))


class PodChange(msgspec.Struct, frozen=True):
    """A pod, what it gets now, and what it would get."""

    namespace: str
    name: str
    node: str
    before: SimulatedLimit
    after: SimulatedLimit
    used: int | None = None
    """Swap in use now, in bytes; None if unknown."""

    @property
    def direction(self) -> Direction:
        """Return the direction in which its swap changes."""
        old, new = self.before.bytes, self.after.bytes
        if old is None or new is None:
            alike = (self.before.reason, self.before.swap_max) == (self.after.reason, self.after.swap_max)
            alike = alike and self.before.audit == self.after.audit and self.before.reason is not None
            return Direction.SAME if alike else Direction.UNKNOWN
        if old == new:
            return Direction.SAME
        return Direction.GAINS if new > old else Direction.LOSES

    @property
    def protection_changes(self) -> bool:
        """Whether its memory.min or memory.low changes."""
        return self.before.memory.protection != self.after.memory.protection

    @property
    def throttling_changes(self) -> bool:
        """Whether its memory.high, or that of a container, changes."""
        return self.before.memory.throttling != self.after.memory.throttling

    @property
    def reclaim_changes(self) -> bool:
        """Whether its idle memory is moved to swap in one of the plans, and not in the same way in the other."""
        before, after = (
            names.ReclaimMode.OFF if one.reclaim is None else one.reclaim.mode for one in (self.before, self.after)
        )
        return before is not after

    @property
    def above(self) -> int:
        """Return the bytes in use above the new limit; 0 if the use is unknown."""
        limit = self.after.bytes
        if self.used is None or limit is None or limit >= self.used:
            return 0
        return self.used - int(limit)


class NodeChange(msgspec.Struct, frozen=True):
    """A node, the profile that it follows now, and the one that it would follow."""

    node: str
    before: compiled.Profile
    after: compiled.Profile
    settings: dict[str, tuple[str | None, str | None]] = {}
    """Changes of the node's own plan, besides pods: before and after by name, None where absent."""
    swap_label: tuple[bool, bool] = (False, False)
    """Whether pods can get swap there, by which Required pods are placed."""
    conflicts: tuple[str, ...] = ()
    """Other profiles of the same priority that would also select it."""

    @property
    def changes_profile(self) -> bool:
        """Whether another profile would govern it."""
        return self.before.name != self.after.name

    @property
    def changes(self) -> bool:
        """Whether it would follow another profile, or another version of it."""
        return plan.reference(self.before) != plan.reference(self.after)


class Wave(msgspec.Struct, frozen=True):
    """Nodes that change at the same time."""

    nodes: tuple[str, ...]


class SimulatedRollout(msgspec.Struct, frozen=True):
    """How a profile would reach its nodes."""

    profile: str
    most: int
    """Nodes that may be under way at once."""
    waves: tuple[Wave, ...]
    at_once: tuple[str, ...] = ()
    """Nodes without an agent so far: they do not count."""
    held: tuple[str, ...] = ()
    """Nodes that would keep what they have: pods there use swap that they would lose."""
    stopped_by: tuple[str, ...] = ()
    """Nodes that would be the end of it, degraded as they are."""
    left: tuple[str, ...] = ()
    """Nodes whose turn would not come because of those."""


class Simulation(msgspec.Struct, frozen=True):
    """All that would become of a cluster."""

    pods: tuple[PodChange, ...]
    nodes: tuple[NodeChange, ...]
    rollouts: tuple[SimulatedRollout, ...]
    notes: tuple[str, ...] = ()


def simulate(
    view: snapshot.ClusterSnapshot, change: snapshot.ProfileChange, used: Mapping[str, int] | None = None
) -> Simulation:
    """Plan the cluster as it is, and as it would be once CHANGE has reached all nodes.

    As it is means by the profiles that nodes follow now, a rollout that is under way included. `used` is the swap that
    pods use, in bytes, by their keys. UnknownProfileError if there is none that could be deleted.
    """
    known = view.known_profiles()
    before = view.planned(known.valid, known.history)
    after = view.planned(snapshot.apply(known, change), known.history)
    changes: list[PodChange] = []
    changed: list[NodeChange] = []
    by_node: dict[str, list[PodChange]] = {}
    for name in sorted(view.nodes):
        node, by_node[name] = _node(view, name, before[name], after[name], used or {})
        changed.append(node)
        changes += by_node[name]
    changes.sort(key=lambda one: (one.namespace, one.name))
    result = Simulation(tuple(changes), tuple(changed), tuple(_rollouts(after, changed, by_node)))
    broken = {name: entry.error for name, entry in known.entries.items() if entry.error}
    return msgspec.structs.replace(result, notes=tuple(_notes(view, before, change, result, broken)))


def only(
    result: Simulation, *, nodes: Collection[str] | None = None, pods: Collection[Place] | None = None
) -> Simulation:
    """Return the part about these nodes and these pods; None for all."""
    inside = {one.node for one in result.nodes if nodes is None or one.node in nodes}
    governing = {one.after.name for one in result.nodes if one.node in inside}
    of_pods = [one for one in result.pods if pods is None or (one.namespace, one.name) in pods]
    return msgspec.structs.replace(
        result,
        rollouts=tuple(one for one in result.rollouts if one.profile in governing),
        pods=tuple(one for one in of_pods if one.node in inside),
        nodes=tuple(one for one in result.nodes if one.node in inside),
    )


def _number(swap_max: str | None) -> float:
    return math.inf if swap_max in {None, names.MAX_SWAP} else int(swap_max or 0)


def _node(
    view: snapshot.ClusterSnapshot,
    name: str,
    before: snapshot.PlannedNode,
    after: snapshot.PlannedNode,
    used: Mapping[str, int],
) -> tuple[NodeChange, list[PodChange]]:
    """Return the change of a node, and those of its pods."""
    facts, known = before.facts, view.known_namespaces() or {}
    now, target = before.profile, after.target
    rows = [row for row in before.pods if not row.terminal]
    old = plan.explain_node(now, facts, rows, known)
    new = old if target == now else plan.explain_node(target, facts, rows, known)
    by_key = [{one.row.uid or one.row.key: one for one in explained.pods} for explained in (old, new)]
    changes = []
    for row in rows:
        left = _kubelet_gives(row, before, view.reports.get(name))
        first, second = (
            _given(explained.get(row.uid or row.key), profile, left)
            for explained, profile in zip(by_key, (now, target), strict=True)
        )
        changes.append(PodChange(row.namespace, row.name, name, first, second, used.get(row.key)))
    change = NodeChange(
        name,
        now,
        target,
        settings=_settings(old, new),
        swap_label=(labels.gives_swap(now.swap, facts), labels.gives_swap(target.swap, facts)),
        conflicts=after.conflicts,
    )
    return change, changes


def _kubelet_gives(row: pods.PodRow, node: snapshot.PlannedNode, report: state.StateStatus | None) -> str | None:
    """Return the limit in bytes, or max, that the node's kubelet sets by itself; None if unknown."""
    kubelet = node.report.facts.kubelet if node.report is not None and node.report.facts is not None else None
    if not node.facts.swap_bytes:
        return "0"
    if kubelet is None or not kubelet.swap_behavior:
        return None
    conditions = report.conditions if report is not None else ()
    if any(one.type == ConditionType.KUBELET_SETS_NO_LIMITS and one.status == "True" for one in conditions):
        return names.MAX_SWAP
    if kubelet.swap_behavior != names.Behavior.LIMITED_SWAP:
        return "0"
    # Of a pod without annotations: its own limit is counted beside this one.
    containers = (msgspec.structs.replace(one, swap_limit=None, swap_resource=None) for one in row.containers)
    bare = msgspec.structs.replace(row, policy=None, swap_limit=None, containers=tuple(containers))
    return limits.decide(_LIMITED, node.facts, bare).swap_max


def _given(explained: plan.ExplainedPod | None, profile: compiled.Profile, kubelet: str | None) -> SimulatedLimit:
    audit = profile.mode is not names.Mode.ENFORCE
    if explained is None:
        return SimulatedLimit(profile.name, None, audit=audit)
    decision = explained.decision
    asks = audit or decision.reason is names.Reason.KUBELET_DECIDES
    limit = next(filter(None, limits.as_settings(decision)), None)
    given = decision.reason, limit, explained.override, audit, kubelet if asks else None
    if audit:
        return SimulatedLimit(profile.name, *given)
    return SimulatedLimit(profile.name, *given, _memory_of_pod(explained.memory), explained.reclaim)


def _memory_of_pod(memory: qos.PodMemory | None) -> SimulatedMemory:
    """Return the numbers of a plan."""
    if memory is None:
        return NO_MEMORY_QOS
    highs = {one.name: str(one.high) for one in memory.containers if one.high}
    numbers = text(memory.minimum), text(memory.low), text(memory.high)
    return SimulatedMemory(memory.protection.value, memory.throttling.value, *numbers, highs)


def _settings(old: plan.Explanation, new: plan.Explanation) -> dict[str, tuple[str | None, str | None]]:
    first, second = _flat(old), _flat(new)
    keys = dict.fromkeys((*first, *second))
    return {key: (first.get(key), second.get(key)) for key in keys if first.get(key) != second.get(key)}


def _flat(explained: plan.Explanation) -> dict[str, str]:
    """Return a node's own plan, one text for each thing, by the names that profiles have for them."""
    header, protection = explained.header, explained.protection
    settings = {"mode": str(header.mode), "guarantee": str(header.guarantee), "beforePlan": str(header.before_plan)}
    if header.kubepods is not None and header.kubepods.swap_max is not None:
        settings["kubepods"] = header.kubepods.swap_max
    amounts = {
        "kubepods memory.min": protection.kubepods_min,
        "kubepods memory.low": protection.kubepods_low,
        "burstable memory.low": protection.burstable_low,
    }
    settings |= {name: str(amount) for name, amount in amounts.items() if amount}
    settings |= dict(plan.of_units(header))
    settings |= header.kernel_settings
    settings |= {f"refused: {key}": why for key, why in explained.refused.items()}
    settings |= {f"unmet: {key}": why for key, why in (explained.unmet or {}).items()}
    if explained.extended_resource is not None:
        settings[names.SWAP_RESOURCE] = str(explained.extended_resource)
    return settings


def _rollouts(
    after: Mapping[str, snapshot.PlannedNode], changed: Iterable[NodeChange], by_node: Mapping[str, list[PodChange]]
) -> Iterator[SimulatedRollout]:
    """Yield how each profile would reach nodes that do not follow it yet. The built-in one takes over at once."""
    members: dict[str, list[rollout.RolloutNode]] = collections.defaultdict(list)
    targets: dict[str, compiled.Profile] = {}
    for one in changed:
        if one.after != compiled.BUILT_IN:
            targets[one.after.name] = one.after
            members[one.after.name].append(_member(after[one.node], one, by_node[one.node]))
    changing = {one.after.name for one in changed if one.changes}
    for name in sorted(changing & members.keys()):
        moved = {one.node for one in changed if one.changes and one.after.name == name}
        yield _waves(targets[name], members[name], moved)


def _member(after: snapshot.PlannedNode, one: NodeChange, pod_changes: Iterable[PodChange]) -> rollout.RolloutNode:
    row = after.report
    if row is None or row.observed == 0:
        return rollout.RolloutNode(one.node, updated=True, silent=True)
    losing = [each.above for each in pod_changes if each.above]
    return rollout.RolloutNode(
        one.node,
        updated=not one.changes,
        answered=row.acted == row.profile,
        degraded=after.degraded,
        before=() if one.changes else row.before,
        overdue=True,
        pods=len(losing),
        bytes=sum(losing),
    )


def _waves(profile: compiled.Profile, members: list[rollout.RolloutNode], moved: Collection[str]) -> SimulatedRollout:
    """Let each wave do well, as long as there is a next one."""
    by_name = {member.node: member for member in members}
    live = sum(not member.silent for member in members)
    waves: list[Wave] = []
    while True:
        progress = rollout.progress(by_name.values(), profile.max_unavailable, hold=profile.hold, paused=profile.paused)
        if not progress.next:
            break
        waves.append(Wave(progress.next))
        for name in progress.next:
            was = by_name[name]
            by_name[name] = msgspec.structs.replace(
                was, updated=True, answered=True, before=(*was.before, *was.degraded)
            )
    held = progress.held
    left = tuple(name for name, one in sorted(by_name.items()) if not one.updated and name not in held)
    return SimulatedRollout(
        profile.name,
        most=rollout.limit(profile.max_unavailable, live),
        waves=tuple(waves),
        at_once=tuple(sorted(one.node for one in members if one.silent and one.node in moved)),
        held=held,
        stopped_by=progress.stopped_by if left else (),
        left=left,
    )


def _notes(
    view: snapshot.ClusterSnapshot,
    before: Mapping[str, snapshot.PlannedNode],
    change: snapshot.ProfileChange,
    result: Simulation,
    broken: Mapping[str, str],
) -> Iterator[str]:
    count = tables.count
    for name, error in broken.items():
        yield f"profile {name} of the cluster is invalid and ignored: {error}"
    if late := sum(node.profile != node.target for node in before.values()):
        follow = f"{count(late, 'node does', 'nodes do')} not follow the newest version of the profile yet"
        yield f"{follow}: the result includes the effect of that rollout"
    for resource, what in _UNREAD.items():
        if resource in view.unread:
            yield f"{resource} cannot be read ({view.unread[resource]}): {what}"
    yield from _ungoverned(view, change, result.nodes)
    ties = collections.Counter((one.after.name, *one.conflicts) for one in result.nodes if one.conflicts)
    for (governs, *others), number in sorted(ties.items()):
        tied = f"{', '.join([governs, *others])} have the same priority on {count(number, 'node')}"
        yield f"{tied}: {governs} governs there as the older one; give one of them another priority"
    if unknown := len({one.node for one in result.pods if one.direction is Direction.UNKNOWN}):
        yield (
            f"on {count(unknown, 'node')} the kubelet decides what pods get, before or after, and how is not"
            " known: no agent reported the kubelet's configuration there"
        )
    leaving = {one.node for one in result.nodes if one.swap_label == (True, False)}
    staying = [view.pods[one.namespace, one.name] for one in result.pods if one.node in leaving]
    if required := sum(row.policy == names.Policy.REQUIRED for row in staying):
        pods = f"{count(required, 'pod')} with policy {names.Policy.REQUIRED}"
        yield f"{pods} on nodes that would give no swap: they stay there, and new ones go elsewhere"


_UNREAD: Final = {
    "nodeswapstates": "agents' facts are not known, so nodes are planned as their kubelets describe them",
    "namespaces": "overrides that select by labels of namespaces cannot be judged",
}


def _ungoverned(
    view: snapshot.ClusterSnapshot, change: snapshot.ProfileChange, node_changes: Collection[NodeChange]
) -> Iterator[str]:
    for profile in change.put:
        rivals = [one.after.name for one in node_changes if profile.selects(view.nodes[one.node].labels)]
        if not rivals:
            yield f"profile {profile.name} selects no node"
        elif profile.name not in rivals:
            number, others = tables.count(len(rivals), "node"), ", ".join(sorted(set(rivals)))
            yield f"profile {profile.name} would govern none of the {number} that it selects: {others} does"
