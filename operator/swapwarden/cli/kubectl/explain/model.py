"""Why a pod has its swap limit, or has none: from the objects of a cluster to the explanation of one pod. Pure.

The rules and every number are the planner's own (policy.plan.trace_pod); here they only get words.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

import msgspec

from swapwarden.api import names, state, throttling
from swapwarden.api.conditions import ConditionType
from swapwarden.api.sizes import exact, with_bytes
from swapwarden.cli.kubectl.cluster import usage
from swapwarden.cli.kubectl.explain import memory, rules
from swapwarden.cli.kubectl.explain.advice import Advice, changes
from swapwarden.cli.kubectl.explain.memory import MemoryLine, PodPressure
from swapwarden.cli.kubectl.explain.rules import Number, PlannedPod
from swapwarden.policy import plan
from swapwarden.policy.admission import scheduling, validation
from swapwarden.policy.memory import settings as memory_settings
from swapwarden.policy.observed import namespaces, nodes, pods, resources, states
from swapwarden.policy.observed.pods import WirePod, WirePodCondition
from swapwarden.policy.profile import compiled, overrides
from swapwarden.policy.swap import limits, requirements
from swapwarden.policy.verdict import pod as verdict

Reason = names.Reason
MAX_LISTED: Final = 3
"""Mistakes of one pod; kubectl swap check lists all."""
# Below, names of fields stand before those of modules.
_Profile = compiled.Profile
_ProfileRef = state.ProfileRef
_State = state.NodeSwapState
_StateRow = states.StateRow
_PodRow = pods.PodRow


class Observed(msgspec.Struct, frozen=True):
    """Everything that was read of a cluster for one pod."""

    pod: WirePod
    node: nodes.NodeRow | None = None
    """None if the pod has no node yet, it is gone, or may not be seen."""
    profiles: Mapping[str, _Profile] | None = None
    """Profiles by name; None if they may not be seen."""
    history: Mapping[_ProfileRef, _Profile] = {}
    """Profiles as they were in generations that nodes may still follow."""
    state: _State | None = None
    """The state of the pod's node; None if there is none, or it may not be seen."""
    state_row: _StateRow | None = None
    """The state in the form in which verdicts read it."""
    namespace: Mapping[str, str] | None = None
    """Labels of the pod's namespace; None if they may not be seen."""
    others: tuple[_PodRow, ...] | None = None
    """The other pods of the node; None if they may not be seen, or were not asked for."""
    neighbours: tuple[WirePod, ...] | None = None
    """The other pods as they are; only while the node is under memory pressure."""
    has_agent: bool | None = None
    """Whether a Ready agent is on the node; None if unknown."""
    used: usage.PodUse | None = None
    """None if nobody could be asked."""
    unseen: tuple[str, ...] = ()
    """Kinds of what the user may not see, by plural."""


class PodPolicy(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The policy of the pod, and whose word it is."""

    value: str | None
    source: Literal["Pod", "Namespace", "Nothing"]
    text: str
    valid: bool = True


class TriedRule(msgspec.Struct, frozen=True, rename="camel"):
    """A rule that was tried."""

    reason: Reason
    matched: bool
    why: str


class GoverningProfile(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The profile that the node follows, and why that one."""

    name: str
    behavior: names.Behavior
    generation: int
    text: str
    override: str | None = None
    """Name of the override that selects the pod."""
    override_text: str = ""


class PlannedLimits(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The desired limits of a pod."""

    swap_max: str | None
    reason: Reason | None
    containers: dict[str, str | None] = {}
    """The value or the most of each container; null: none of its own."""
    swap_at_most: str | None = None
    """The most; the kubelet may give less."""


class KernelState(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The state of a pod's limit in the kernel."""

    status: str
    """True, False or Unknown: whether the limit is enforced, as in the pod's condition."""
    reason: str
    text: str
    remedy: str = ""
    holder: str = ""
    """Who holds the limit, of names.Holder; empty if that is not known."""
    detail: str = ""
    """The agent's message and values for a violation; empty if there is none."""
    since: str = ""
    """RFC 3339: since when, at the latest, it has been held; empty if it is not held."""
    exposures: int = 0
    """How many times it was observed above its value in the last ten minutes."""
    exposed_milliseconds: int = 0
    exposed_bytes: int = 0
    """Swapped above the value meanwhile."""
    exposed_text: str = ""
    drift: str = ""
    """Writes of others on the node."""


class PodExplanation(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """All that is said of one pod."""

    namespace: str
    name: str
    summary: str
    qos: resources.Class
    node: str
    policy: PodPolicy
    admission: str = ""
    """The parts that admission gives and the pod lacks; empty if none."""
    node_text: str = ""
    profile: GoverningProfile | None = None
    rules: list[TriedRule] = []
    numbers: list[Number] = []
    memory: list[MemoryLine] = []
    """The planned memory QoS and reclaim; empty if nobody asks for any."""
    behaviors: list[Number] = []
    """Limits of the pod by each behavior, where its node or the node's profile is not known."""
    desired: PlannedLimits | None = None
    """Limits in the node's state; None if it does not name the pod."""
    planned: PlannedLimits | None = None
    """Limits by the rules now."""
    desired_text: str = ""
    kernel: KernelState | None = None
    enforced: WirePodCondition | None = None
    """For those who may not see the node's state, the pod's condition SwapPolicyEnforced."""
    used_bytes: int | None = None
    used_containers: dict[str, int] = {}
    secrets: str = ""
    pressure: PodPressure | None = None
    """Whether the pod would be evicted; None unless its node is under memory pressure."""
    changes: list[Advice] = []
    unseen: list[str] = []


def explain(seen: Observed, flags: Sequence[str] = ()) -> PodExplanation:
    """Explain one pod; its commands for users get the `flags` that choose the cluster."""
    pod, row = seen.pod, pods.project(seen.pod)
    if seen.node is not None:
        row = row.on(seen.node.uid)
    planned, waiting = None, ""
    if not row.terminal and seen.node is not None and seen.profiles is not None:
        try:
            planned = _plan(seen, seen.node, row)
        except overrides.UnknownNamespaceError:
            waiting = "an override may select the pod by labels of its namespace, which are not known"
    desired = _desired(seen, row)
    stands = row.node and not row.terminal and names.STATE_PLURAL not in seen.unseen
    kernel = enforced = None
    if names.STATE_PLURAL in seen.unseen and not row.terminal:
        conditions = (one for one in pod.status.conditions if one.type == ConditionType.SWAP_POLICY_ENFORCED)
        enforced = next(conditions, None)
    if stands:
        status = seen.state.status if seen.state else state.StateStatus()
        kernel = kernel_state(seen.state_row, status, row, has_agent=seen.has_agent)
    used = seen.used or usage.PodUse(namespace=row.namespace, name=row.name, node=row.node)
    return PodExplanation(
        namespace=row.namespace,
        name=row.name,
        summary=_summary(seen, row, planned, desired),
        qos=row.qos,
        node=row.node,
        policy=_policy(row),
        admission=missing(pod, _labels(seen)),
        node_text=_node_text(seen, row),
        profile=_governing(row, planned) if planned else None,
        rules=[TriedRule(step.reason, step.matched, rules.why(step, planned)) for step in planned.trace.steps]
        if planned
        else [],
        numbers=list(rules.numbers(row, planned)) if planned else [],
        memory=[*memory.lines(planned, seen.state), *memory.reclaim_lines(planned, seen.state)] if planned else [],
        behaviors=[] if planned or row.terminal else list(rules.by_behavior(row)),
        desired=desired,
        planned=_given(planned.trace.decision) if planned else None,
        desired_text=waiting or _difference(seen, row, planned, desired),
        kernel=kernel,
        enforced=enforced,
        used_bytes=used.swap_bytes,
        used_containers={one.name: one.swap_bytes for one in used.containers if one.swap_bytes is not None},
        secrets=_secrets(seen),
        pressure=memory.pressure_of(planned, seen.node.uid, seen.state, seen.neighbours)
        if planned and seen.node
        else None,
        changes=[] if row.terminal else list(changes(pod, row, planned, flags)),
        unseen=list(seen.unseen),
    )


def _policy(row: pods.PodRow) -> PodPolicy:
    if row.policy is None:
        unasked = row.namespace in namespaces.UNDEFAULTED
        why = "; pods of this namespace get no default" if unasked else ""
        return PodPolicy(None, "Nothing", f"none: the pod gets what its node's profile gives{why}")
    source: Literal["Pod", "Namespace"] = "Namespace" if row.defaulted else "Pod"
    if not rules.is_policy(row.policy):
        return PodPolicy(row.policy, source, f"{rules.no_policy(row.policy)}; it counts as Disabled", valid=False)
    default = f"the default of namespace {row.namespace} when the pod was created"
    return PodPolicy(row.policy, source, f"{row.policy}, {default if row.defaulted else 'an annotation of the pod'}")


def _plan(seen: Observed, node: nodes.NodeRow, row: pods.PodRow) -> PlannedPod:
    known = seen.profiles or {}
    selection = compiled.select(known.values(), node.labels)
    reported = seen.state.status.facts if seen.state else None
    facts = nodes.facts(node, reported)
    profile, chosen = selection.profile, _chosen(selection, known, node)
    spec = seen.state.spec if seen.state else None
    if spec is not None and spec.profile_ref != plan.reference(profile):
        older = (
            compiled.BUILT_IN if spec.profile_ref.name == names.BUILT_IN_PROFILE else seen.history.get(spec.profile_ref)
        )
        if older is not None:
            newest = f"{profile.name} generation {profile.generation}"
            profile, chosen = older, f"in force now; {newest} is next, once the rollout reaches the node"
    labels = _labels(seen)
    others = seen.others or ()
    trace = plan.trace_pod(profile, facts, row, others, labels)
    return PlannedPod(seen.pod, row, profile, chosen, facts, reported is not None, trace, others, labels)


def _labels(seen: Observed) -> namespaces.Labels:
    return {} if seen.namespace is None else {seen.pod.metadata.namespace: seen.namespace}


def _chosen(selection: compiled.Selection, known: Mapping[str, compiled.Profile], node: nodes.NodeRow) -> str:
    profile = selection.profile
    if profile.name == names.BUILT_IN_PROFILE:
        reason = "there is no profile" if not known else f"none of {len(known)} profiles selects the node"
        return f"built in, as {reason}: what the kubelet gives stays"
    if selection.conflicts:
        ties = ", ".join(selection.conflicts)
        return f"the oldest of those with priority {profile.priority}; these select the node as well: {ties}"
    below = [each for each in known.values() if each.name != profile.name and each.selects(node.labels)]
    if not below:
        return "the only one that selects the node"
    ranked = sorted(below, key=lambda each: (-each.priority, each.name))
    return f"priority {profile.priority}, before " + ", ".join(f"{each.name} ({each.priority})" for each in ranked)


def _governing(row: pods.PodRow, planned: PlannedPod) -> GoverningProfile:
    profile, override, text = planned.profile, planned.override, ""
    if override is not None:
        swap, memory = override.swap, override.memory or memory_settings.MemoryOverride()
        given = [] if swap.policy is None else [f"policy {swap.policy}"]
        given += [] if swap.limit is None else [f"at most {exact(swap.limit)}"]
        given += [] if memory.reservation is None else [f"memory reservation {memory.reservation}"]
        given += [] if memory.throttling is None else [f"memory throttling {throttling.written(memory.throttling)}"]
        text = f"overrides[{override.name}] selects the pod: {', '.join(given)}"
    elif profile.overrides:
        refuses = not overrides.can_change(profile, row)
        why = "counts: the pod itself refuses swap" if refuses else "selects the pod"
        text = f"none of {len(profile.overrides)} {why}"
    name = None if override is None else override.name
    return GoverningProfile(profile.name, profile.swap.behavior, profile.generation, planned.chosen, name, text)


def _given(decision: limits.PodDecision) -> PlannedLimits:
    containers = {one.name: next(filter(None, limits.as_settings(one)), None) for one in decision.containers}
    swap_max, at_most = limits.as_settings(decision)
    return PlannedLimits(swap_max, decision.reason, containers, at_most)


def _desired(seen: Observed, row: pods.PodRow) -> PlannedLimits | None:
    spec = seen.state.spec if seen.state else None
    entry = spec.pods.get(row.key) if spec else None
    if spec is None or entry is None:
        return None
    each = {one.name: entry.containers.get(one.name) or entry.container_default for one in row.containers}
    containers = {name: own.swap_max or own.swap_at_most for name, own in each.items() if own is not None}
    # An earlier controller's word for no limit of Swapwarden's.
    swap_max = None if entry.swap_max == names.MAX_SWAP else entry.swap_max
    return PlannedLimits(swap_max, state.reason_of(spec, entry), containers, entry.swap_at_most)


def _difference(seen: Observed, row: pods.PodRow, planned: PlannedPod | None, desired: PlannedLimits | None) -> str:
    """Return how the node's state differs from the rules, if it does."""
    spec = seen.state.spec if seen.state else None
    if row.terminal or spec is None:
        return ""
    if spec.mode is names.Mode.RESTORE:
        return "the state orders to restore the values from before Swapwarden"
    if desired is None:
        denied = spec.before_plan is names.BeforePlan.NO_SWAP
        return f"the state does not name the pod yet: until then {'it has no swap' if denied else 'it is left alone'}"
    given = None if planned is None else _given(planned.trace.decision)
    if given is not None and (desired.swap_max, desired.swap_at_most) != (given.swap_max, given.swap_at_most):
        value = with_bytes(given.swap_max or given.swap_at_most)
        if given.swap_max is None and given.reason is not Reason.NODE_INCOMPATIBLE:
            value = "what the kubelet gives" + (f", at most {value}" if given.swap_at_most else "")
        return f"by the current rules it would be {value}; if it stays, check that the controller runs"
    return ""


def _summary(seen: Observed, row: pods.PodRow, planned: PlannedPod | None, desired: PlannedLimits | None) -> str:
    if row.terminal:
        return f"has ended ({seen.pod.status.phase}): pods that have ended are not planned, and use no swap"
    known = desired or (_given(planned.trace.decision) if planned else None)
    if known is not None:
        return _amount(known)
    # The pod's own policy holds on every node, but an override can lift a namespace's default.
    if limits.forbids_swap(row.policy) and not row.defaulted:
        return "no swap, on any node with an agent"
    if not row.node:
        return "not on a node yet: its limit depends on the node's profile"
    return "its limit depends on the profile of its node, which cannot be seen"


def _amount(known: PlannedLimits) -> str:
    if known.swap_at_most is not None:
        return f"what the kubelet gives, up to {exact(int(known.swap_at_most))} of swap"
    if known.swap_max is not None:
        return "no swap" if known.swap_max == "0" else f"up to {exact(int(known.swap_max))} of swap"
    if known.reason is Reason.NODE_INCOMPATIBLE:
        return "not limited: nothing can be enforced on its node"
    return "as much swap as the kubelet gives: no limit of Swapwarden's"


def _node_text(seen: Observed, row: pods.PodRow) -> str:
    if not row.node:
        return "none yet: the pod waits to be scheduled"
    if seen.node is None:
        return f"{row.node}, which {'may not be seen' if 'nodes' in seen.unseen else 'does not exist any more'}"
    reported = seen.state.status.facts if seen.state else None
    facts = nodes.facts(seen.node, reported)
    swap_text = f"{exact(facts.swap_bytes)} swap" if facts.swap_bytes else "no swap"
    devices = [
        f"{each.name} ({each.backing}{', encrypted' if each.encrypted else ''})"
        for each in facts.devices[: requirements.NAMED]
    ]
    on = f" on {', '.join(devices)}" if devices else ""
    said = "" if reported else "; as in the Node's status, since no agent has reported"
    return f"{row.node}: {exact(facts.memory_bytes)} memory, {swap_text}{on}{said}"


def _secrets(seen: Observed) -> str:
    """Return whether Secrets of the pod can reach a disk; empty if the node does not report it."""
    status = seen.state.status if seen.state else None
    if status is None or status.facts is None:
        return ""
    volumes = [one.name for one in seen.pod.spec.volumes or () if one.secret is not None or one.projected is not None]
    has = f"it mounts {len(volumes)} volumes with secrets or tokens" if volumes else "it mounts none"
    if not status.facts.swap_bytes:
        return "cannot reach a disk: the node has no swap"
    condition = next((one for one in status.conditions if one.type == ConditionType.SECRETS_ON_DISK), None)
    if condition is not None:
        return (
            f"can reach the disk, whatever the pod's limit: their pages are the kubelet's ({has}). {condition.message}"
        )
    if status.facts.tmpfs_noswap:
        return "stay in memory: the kubelet mounts them with noswap"
    if status.facts.devices and all(each.encrypted for each in status.facts.devices):
        return "reach swap encrypted only, or not at all"
    return "stay in memory: the kubelet, whose pages they are, does not swap"


# Whether the kernel holds the limit


def kernel_state(
    row: states.StateRow | None, status: state.StateStatus, pod: pods.PodRow, *, has_agent: bool | None
) -> KernelState:
    """Return whether the kernel holds a pod's limit; `row` is the state of its node with `status`, None without one."""
    judged = verdict.judge(pod, verdict.ReadState.of(row, has_agent=has_agent), pod.enforced)
    conditions = {each.type: each for each in status.conditions if each.status == "True"}
    drift, applied = conditions.get(ConditionType.DRIFTED), conditions.get(ConditionType.APPLIED)
    # The later of the pod's start and the time from which all of the node has been as specified.
    since = max(pod.started, applied.last_transition_time if applied else "")
    times = next((each for each in status.exposures if each.pod == pod.key), None)
    listed = (each for each in status.violations if each.pod == pod.key and not each.setting)
    wrong = next((each for each in listed if each.reason == judged.reason), None)
    return KernelState(
        judged.status,
        judged.reason,
        judged.message,
        judged.remedy,
        judged.holder,
        detail=_violation(wrong) if wrong else "",
        since=since if judged.status == "True" else "",
        exposures=times.count if times else 0,
        exposed_milliseconds=times.milliseconds if times else 0,
        exposed_bytes=times.swap_bytes if times else 0,
        exposed_text=_exposed(times) if times else "",
        drift=drift.message if drift else "",
    )


def _violation(wrong: state.Violation) -> str:
    # An agent's values are untrusted.
    known = all(value == names.MAX_SWAP or value.isdecimal() for value in (wrong.desired, wrong.observed))
    values = f"desired {with_bytes(wrong.desired)}, observed {with_bytes(wrong.observed)}" if known else ""
    used = f"{exact(wrong.swap_bytes)} in use" if wrong.swap_bytes else ""
    where = "a container" if wrong.container else ""
    return "; ".join(filter(None, (wrong.message, where, values, used)))


def _exposed(times: state.ExposedPod) -> str:
    """Return the times in which the pod was above its value."""
    often = "once" if times.count == 1 else f"{times.count} times"
    causes = f" ({', '.join(times.causes)})" if times.causes else ""
    most = "" if names.UNWATCHED.isdisjoint(times.causes) else "at most "
    swapped = f"swapped {most}{exact(times.swap_bytes)} meanwhile"
    return f"above its limit {often}, {times.milliseconds} ms in all{causes}; {swapped}"


# Whether the pod looks like an admitted one


def missing(pod: WirePod, labels: namespaces.Labels) -> str:
    """Return how the pod differs from an admitted one, and the likely cause; empty if it does not.

    `labels` are those of namespaces by name, as far as they are known. The pod does not show the cause: one that was
    made with a node, or before the installation, looks like one that admission is not asked about. A dry run does:
    kubectl swap check --try-admission.
    """
    differences = "; ".join(_missing(pod, labels))
    return f"{differences}: {_cause(pod)}" if differences else ""


def _missing(pod: WirePod, labels: namespaces.Labels) -> Iterator[str]:
    default = labels.get(pod.metadata.namespace, {}).get(names.DEFAULT_POLICY_LABEL)
    if names.POLICY_ANNOTATION not in pod.metadata.annotations and default in frozenset[str](names.Policy):
        yield f"the default {default} of its namespace is not in the pod"
    # By now the scheduler has chosen a node, which must not look as if the pod had come with it.
    asked = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=""))
    policy = asked.annotations.get(names.POLICY_ANNOTATION, "")
    lacks = {operation.path.split("/")[2]: None for operation in scheduling.operations(asked, policy)}
    if lacks:
        yield f"its policy {policy} does not place it: it lacks {' and '.join(f'spec.{field}' for field in lacks)}"
    for cause in itertools.islice(validation.errors(asked), MAX_LISTED):
        yield f"admission would refuse it: {cause.field}: {cause.message}"


def _cause(pod: WirePod) -> str:
    space = pod.metadata.namespace
    if pod.is_mirror:
        return "it is a static pod, of which the API server only has a mirror"
    if space in namespaces.UNDEFAULTED:
        return f"pods of namespace {space} start without admission"
    return (
        "it was created with a node, or before Swapwarden was installed, or admission is not asked about"
        f" such pods; kubectl swap check --try-admission -n {space} finds out"
    )
