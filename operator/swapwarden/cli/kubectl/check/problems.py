"""Problems of a cluster and settings without effect, each with its remedy. Pure."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from swapwarden.api import names, sizes, state
from swapwarden.api.conditions import DIAGNOSTICS, ConditionType, is_abnormal
from swapwarden.api.violations import ViolationReason
from swapwarden.cli.kubectl.check import catalogue
from swapwarden.cli.kubectl.check.catalogue import Check, ClusterProblem, Severity, problem
from swapwarden.cli.kubectl.cluster import snapshot
from swapwarden.cli.kubectl.output import tables
from swapwarden.policy import plan
from swapwarden.policy.admission import pod_annotations, validation
from swapwarden.policy.node.observations import observe
from swapwarden.policy.observed import pods
from swapwarden.policy.observed.namespaces import UNDEFAULTED
from swapwarden.policy.profile import compiled
from swapwarden.policy.verdict import node as node_verdict
from swapwarden.policy.verdict import pod as pod_verdict
from swapwarden.policy.verdict import words
from swapwarden.policy.verdict.node import NodeHealth

_Specs = Mapping[str, state.StateSpec]
"""Plans by node."""

_TURN_ON: Final = "turn on swap on a node whose profile gives it"


def live(view: snapshot.ClusterSnapshot, behind: Collection[str] = ()) -> Iterator[ClusterProblem]:
    """Yield the problems of nodes, profiles, namespaces and pods. `behind` are nodes whose agents did not follow."""
    yield from namespaces(view)
    yield from useless_keys(view)
    if not view.installed or {"nodes", "nodeswapstates", "nodeswapprofiles"} & view.unread.keys():
        return
    profiles = view.known_profiles()
    known = view.planned(profiles.valid, profiles.history)
    specs = {name: plan.plan_node(node.profile, node.facts, node.pods, node.namespaces) for name, node in known.items()}
    yield from _nodes(view, known, specs, behind)
    yield from _profiles(profiles, known)
    if "pods" not in view.unread:
        yield from _pods(known, specs)
        yield from _pending(view)
        yield from _exposed(view)


def lagging(view: snapshot.ClusterSnapshot) -> dict[str, int]:
    """Return nodes with an agent that has not reported the newest generation of its state yet, and that generation.

    That passes by itself within seconds where the agent is well.
    """
    if "nodeswapstates" in view.unread:
        return {}
    rows = ((name, node.report) for name, node in view.planned({}, {}).items() if node.has_agent)
    return {name: row.generation for name, row in rows if row is not None and row.observed < row.generation}


# Nodes


def condition(node: str, one: state.Condition) -> ClusterProblem | None:
    """Return the problem that a condition of a node's state reports, if any."""
    if not is_abnormal(one.type, one.status, one.reason):
        return None
    severity: Severity | None
    if one.type in DIAGNOSTICS:
        # The agent ends the message of these with the remedy.
        text, _, remedy = one.message.rpartition("; ")
        severity = Severity.ERROR if one.type == ConditionType.KUBELET_WILL_NOT_START else None
    else:
        text = f"{one.reason}: {one.message}" if one.message else one.reason
        severity, remedy = catalogue.CONDITIONS[one.type]
    return problem(Check.NODE_CONDITION, f"node/{node}", text, reason=one.type, severity=severity, remedy=remedy)


def _nodes(
    view: snapshot.ClusterSnapshot, known: Mapping[str, snapshot.PlannedNode], specs: _Specs, behind: Collection[str]
) -> Iterator[ClusterProblem]:
    where = view.agent_namespace() or "swapwarden-system"
    for name, node in known.items():
        row, report, here = node.report, view.reports.get(name), f"node/{name}"
        verdict = node_verdict.judge(node_verdict.NodeCase(row, has_agent=node.has_agent))
        if verdict.text("NoState"):
            text = "the controller has not planned it: there is no NodeSwapState of its own"
            yield problem(Check.NO_STATE, here, text, where=where)
        if verdict.text("Silent"):
            swap = bool(node.facts.swap_bytes)
            text = "no agent runs there: no policy is enforced on new pods"
            text += "" if swap else "; the node is not known to have swap"
            yield problem(Check.NO_AGENT, here, text, severity=None if swap else Severity.WARNING, where=where)
            continue
        if name in behind and row is not None:
            text = f"its agent is Ready, but still at generation {row.observed} of {row.generation} of its state"
            yield problem(Check.AGENT_BEHIND, here, text, where=where)
        if verdict.health is NodeHealth.NOT_UNDERSTOOD:
            yield problem(
                Check.OTHER_VERSION, here, f"its agent's report is invalid: {verdict.text(ConditionType.DEGRADED)}"
            )
        elif report is not None:
            yield from filter(None, (condition(name, one) for one in report.conditions))
            for one in observe(node.profile.node, node.profile.swap, node.facts, specs[name]):
                remedy = catalogue.NODE_PROBLEMS[one.problem]
                text = one.message.removesuffix(f"; {remedy}")
                yield problem(Check.NODE_CONDITION, here, text, reason=one.problem, remedy=remedy)


# Profiles


def _profiles(profiles: snapshot.KnownProfiles, known: Mapping[str, snapshot.PlannedNode]) -> Iterator[ClusterProblem]:
    for entry in profiles.entries.values():
        here = f"nodeswapprofile/{entry.name}"
        if entry.error:
            text = f"invalid, so that an older version or none is in force: {entry.error}"
            yield problem(Check.INVALID_PROFILE, here, text)
        yield from _of_status(entry, here)
        if entry.profile is not None:
            yield from ungoverned(entry.profile, known, here)
    ties: dict[tuple[str, ...], list[str]] = {}
    for name, node in known.items():
        if node.conflicts:
            ties.setdefault((node.target.name, *node.conflicts), []).append(name)
    for (winner, *others), nodes in ties.items():
        text = (
            f"has the same priority as {', '.join(others)} on {tables.first_few(nodes)}, and governs as the older one"
        )
        yield problem(Check.PROFILE_CONFLICT, f"nodeswapprofile/{winner}", text)


def ungoverned(
    profile: compiled.Profile, known: Mapping[str, snapshot.PlannedNode], here: str
) -> Iterator[ClusterProblem]:
    """Yield the problem of a profile that governs no node."""
    selected = [node for node in known.values() if profile.selects(node.node.labels)]
    rivals = {node.target.name for node in selected}
    if not selected:
        yield problem(Check.GOVERNS_NO_NODE, here, "selects no node")
    elif profile.name not in rivals:
        number, first = tables.count(len(selected), "node"), ", ".join(sorted(rivals))
        text = f"governs none of the {number} that it selects: {first} does"
        yield problem(Check.GOVERNS_NO_NODE, here, text, remedy="raise its priority, or remove it")


def _of_status(entry: snapshot.ProfileEntry, here: str) -> Iterator[ClusterProblem]:
    """Yield the problems that only the profile's own status reports."""
    conditions = {one.get("type"): one for one in entry.status.get("conditions", ())}
    progressing, degraded = conditions.get(ConditionType.PROGRESSING, {}), conditions.get(ConditionType.DEGRADED, {})
    if (reason := progressing.get("reason")) in {"Stopped", "Held"}:
        yield problem(Check.ROLLOUT_STOPPED, here, str(progressing.get("message", "")), reason=str(reason))
    if (reason := degraded.get("reason")) == "NoExtendedResource":
        remedy = "install with extendedResource: true, or remove scheduling.extendedResource"
        yield problem(Check.NO_EFFECT, here, str(degraded.get("message", "")), reason=reason, remedy=remedy)


# Namespaces


def namespaces(view: snapshot.ClusterSnapshot) -> Iterator[ClusterProblem]:
    """Yield the problems of namespace labels."""
    exempt = UNDEFAULTED | {view.agent_namespace()}
    for name, labels in view.namespaces.items():
        yield from namespace(f"namespace/{name}", labels, exempt=name in exempt)


def namespace(here: str, labels: Mapping[str, str], *, exempt: bool) -> Iterator[ClusterProblem]:
    """Yield the problems of one namespace's labels; no default reaches pods of exempt namespaces."""
    useless = functools.partial(problem, Check.NO_EFFECT, here, reason=Check.NAMESPACE_POLICY)
    label = f"label {names.DEFAULT_POLICY_LABEL}: "
    value = labels.get(names.DEFAULT_POLICY_LABEL)
    if value is not None and value not in frozenset[str](names.Policy):
        meant = pod_annotations.closest(value, list(names.Policy))
        hint = f"; did you mean {validation.quoted(meant)}?" if meant else ""
        text = f"unsupported value {validation.quoted(value)}{hint}: new pods without a policy of their own are refused"
        yield problem(Check.NAMESPACE_POLICY, here, label + text)
    elif value is not None and exempt:
        text = f"{value} has no effect: pods of this namespace must start without the webhook"
        yield useless(label + text, remedy="use an override of a profile for its pods, or their own annotation")
    for key in sorted(labels):
        if pod_annotations.is_of_domain(key) and key != names.DEFAULT_POLICY_LABEL:
            meant = pod_annotations.closest(key, [names.DEFAULT_POLICY_LABEL])
            remedy = f"write {meant or names.DEFAULT_POLICY_LABEL}, or remove it"
            yield useless(f"label {key} has no effect: there is no such label of namespaces", remedy=remedy)


# Pods


def useless_keys(view: snapshot.ClusterSnapshot) -> Iterator[ClusterProblem]:
    """Yield annotations of pods that have no effect or contradict each other, on any node."""
    for (name_space, name), pod in view.admitted_pods.items():
        here = f"pod/{name_space}/{name}"
        if view.pods[name_space, name].terminal:
            continue
        for text in validation.warnings(pod):
            if pod_annotations.NOT_PLACED not in text:
                yield problem(Check.NO_EFFECT, here, text)
        values = {cause.field for cause in validation.wrong_values(pod)}
        for cause in validation.errors(pod):
            if cause.field not in values:
                yield problem(Check.NO_EFFECT, here, f"{cause.field}: {cause.message}", reason="Contradiction")


_not_enforced: Final = functools.partial(problem, Check.POD_NOT_ENFORCED)


def _pods(known: Mapping[str, snapshot.PlannedNode], specs: _Specs) -> Iterator[ClusterProblem]:
    for name, node in known.items():
        report = pod_verdict.ReadState.of(node.report, has_agent=node.has_agent)
        for row in node.pods:
            if row.terminal:
                continue
            yield from of_pod(row, report, specs[name])
            if (
                row.asks is not None
                and (row.asks.wants_protection or row.asks.wants_throttling)
                and node.profile.memory_qos is None
            ):
                yield _not_offered(row, node.profile, "annotations about memory have", "memoryQoS", " ({} is enough)")
            if row.reclaim in pod_annotations.RECLAIMING and node.profile.reclaim is None:
                yield _not_offered(row, node.profile, f"annotation {names.RECLAIM_ANNOTATION} has", "reclaim.mode")


def of_pod(row: pods.PodRow, report: pod_verdict.ReadState, planned: state.StateSpec) -> Iterator[ClusterProblem]:
    """Yield the problems of a pod by its node's state, or by its plan as long as that state does not name the pod."""
    entry, own = report.spec.pod(row.key), planned.pods.get(row.key)
    reason, profile, mode = report.entry_reason(row.key), report.spec.profile_ref.name, report.spec.mode
    if entry is None and own is not None:
        reason, profile, mode = state.reason_of(planned, own) or "", planned.profile_ref.name, planned.mode
    audit = mode == names.Mode.AUDIT
    lacks = pod_verdict.shortfall(row, reason, profile, audit=audit)
    judged = pod_verdict.judge(row, report, row.enforced)
    if lacks is not None:
        yield _problem_of(row, lacks.reason, lacks.message, lacks.remedy)
    if judged.reason == ViolationReason.DRAINING and (entry is None or entry.swap_max == "0"):
        used = sum(each.swap_bytes for each in report.listed(row.key) if not each.container)
        text = f"{judged.message} ({sizes.rounded(used)} in use)"
        severity = Severity.ERROR if row.policy == names.Policy.DISABLED else None
        yield problem(
            Check.SWAP_AGAINST_POLICY, _pod(row), text, reason=judged.reason, severity=severity, remedy=judged.remedy
        )
    elif pod_verdict.concerns(row, judged, reason) and (lacks is None or lacks.reason != judged.reason):
        yield _problem_of(row, judged.reason, judged.message, judged.remedy)
    elif entry is None and lacks is None and audit and pod_verdict.is_audited(row, reason):
        audited = words.ENFORCEMENT[names.Mode.AUDIT].about(row, profile)
        yield _problem_of(row, names.Mode.AUDIT, audited.message, audited.remedy)
    limit = own.swap_max if entry is None and own is not None else entry.swap_max if entry is not None else ""
    # Pods with a limit have been reported with the reason that they get none.
    requires = row.policy == names.Policy.REQUIRED and limit == "0" and lacks is None
    if requires and mode in {"", names.Mode.ENFORCE}:
        sentence = f"requires swap, and gets none on node {row.node}: {reason}"
        yield _not_enforced(_pod(row), sentence, reason=names.Policy.REQUIRED)


def _problem_of(row: pods.PodRow, reason: str, message: str, remedy: str) -> ClusterProblem:
    broken = row.policy == names.Policy.DISABLED and reason != names.Mode.AUDIT
    severity = Severity.ERROR if broken or reason in catalogue.WORST_REASONS else None
    return _not_enforced(_pod(row), message, reason=reason, severity=severity, remedy=remedy)


def _not_offered(
    row: pods.PodRow, profile: compiled.Profile, what: str, field: str, enough: str = ""
) -> ClusterProblem:
    if profile.name == names.BUILT_IN_PROFILE:
        text, remedy = "no profile selects it", f"select the node by a profile with {field}"
    else:
        text, remedy = f"profile {profile.name} has no {field}", f"set {field} in {profile.name}{enough}"
    sentence = f"its {what} no effect on node {row.node}: {text}"
    remedy += ", or remove the annotations"
    return problem(Check.NO_EFFECT, _pod(row), sentence, reason=names.ProtectionReason.NOT_OFFERED, remedy=remedy)


def _pending(view: snapshot.ClusterSnapshot) -> Iterator[ClusterProblem]:
    placed = any(node.labels.get(names.SWAP_LABEL) == "true" for node in view.nodes.values())
    sentence, remedy = f"waits for a node with swap: none has the label {names.SWAP_LABEL}: true", _TURN_ON
    for row in view.pods.values():
        if row.policy == names.Policy.REQUIRED and not row.node and not row.terminal and not placed:
            yield _not_enforced(_pod(row), sentence, reason=names.Policy.REQUIRED, remedy=remedy)


def _exposed(view: snapshot.ClusterSnapshot) -> Iterator[ClusterProblem]:
    """Yield the problem of each pod that took swap above a limit of 0."""
    by_key = {row.key: row for row in view.pods.values()}
    for name, report in view.reports.items():
        for one in report.exposures:
            row = by_key.get(one.pod)
            if one.desired == "0" and one.swap_bytes and row is not None and row.node == name:
                causes = ", ".join(one.causes) or "cause not known"
                amount = ("" if names.UNWATCHED.isdisjoint(one.causes) else "at most ") + sizes.rounded(one.swap_bytes)
                text = f"took {amount} of swap while its limit was overwritten ({causes})"
                severity = Severity.ERROR if row.policy == names.Policy.DISABLED else None
                yield problem(Check.SWAP_AGAINST_POLICY, _pod(row), text, reason="Exposed", severity=severity)


def _pod(row: pods.PodRow) -> str:
    return f"pod/{row.namespace}/{row.name}"
