"""What is wrong in a cluster, or without effect, each with its remedy. Pure: from what was read to plain data."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from swapwarden.api import names, state
from swapwarden.api.conditions import DIAGNOSTICS, ConditionType, is_abnormal
from swapwarden.api.violations import ViolationReason
from swapwarden.cli.kubectl.cluster import planning, snapshot
from swapwarden.cli.kubectl.output import sizes, tables
from swapwarden.policy import plan, pod_annotations
from swapwarden.policy.observed import pods
from swapwarden.policy.observed.namespaces import UNDEFAULTED
from swapwarden.policy.profile import compiled
from swapwarden.webhook import validation


class Severity(enum.StrEnum):
    """How bad it is."""

    ERROR = "Error"
    """A promise is not kept, or will not be; or something is refused."""
    WARNING = "Warning"
    """Something has no effect, or not the one that was meant; or goes wrong if nobody looks at it."""


class Check(enum.StrEnum):
    """What is looked at: the kind of a problem, by the object that it is about. In the order of report."""

    NOT_INSTALLED = "NotInstalled"
    OTHER_VERSION = "OtherVersion"
    NO_LEADER = "NoLeader"
    NO_ADMISSION = "NoAdmission"
    ADMISSION_FAILS = "AdmissionFails"
    WEBHOOK_CERTIFICATE = "WebhookCertificate"
    WEBHOOK_NOT_READY = "WebhookNotReady"
    FAILURE_POLICY = "FailurePolicy"
    NO_STATE = "NoState"
    NO_AGENT = "NoAgent"
    AGENT_BEHIND = "AgentBehind"
    NODE_CONDITION = "NodeCondition"
    INVALID_PROFILE = "InvalidProfile"
    PROFILE_CONFLICT = "ProfileConflict"
    GOVERNS_NO_NODE = "GovernsNoNode"
    ROLLOUT_STOPPED = "RolloutStopped"
    NAMESPACE_POLICY = "NamespacePolicy"
    POD_NOT_ENFORCED = "PodNotEnforced"
    SWAP_AGAINST_POLICY = "SwapAgainstPolicy"
    NO_EFFECT = "NoEffect"
    REFUSED = "Refused"
    """Of manifests: the API server would not take it."""


class Problem(msgspec.Struct, frozen=True, rename="camel"):
    """One thing that is wrong with one object."""

    severity: Severity
    check: Check
    reason: str
    """One word for programs: the node's condition, the pod's reason, or the check itself."""
    object: str
    """kind/name, with the namespace where there is one: pod/NAMESPACE/NAME; of a file, the place in it."""
    message: str
    remedy: str


def worst_first(found: Iterable[Problem]) -> list[Problem]:
    """In the order of report: by severity, then by check and reason, then by object; each once."""
    order, checks = list(Severity), list(Check)
    return sorted(
        set(found),
        key=lambda one: (
            order.index(one.severity),
            checks.index(one.check),
            one.reason,
            one.remedy,
            one.object,
            one.message,
        ),
    )


def live(view: snapshot.View, behind: Collection[str] = ()) -> Iterator[Problem]:
    """Yield the problems of nodes, profiles, namespaces and pods. `behind` are nodes whose agents did not follow."""
    yield from namespaces(view)
    yield from useless_keys(view)
    if not view.installed or {"nodes", "nodeswapstates", "nodeswapprofiles"} & view.unread.keys():
        return
    found = view.known_profiles()
    known = view.planned(found.valid, found.history)
    yield from _nodes(view, known, behind)
    yield from _profiles(found, known)
    if "pods" not in view.unread:
        yield from _pods(view, known)
        yield from _held(view)


def lagging(view: snapshot.View) -> dict[str, int]:
    """Nodes with an agent that has not told of the newest generation of its state yet, and that generation.

    That passes by itself within seconds where the agent is well.
    """
    if "nodeswapstates" in view.unread:
        return {}
    rows = ((name, node.report) for name, node in view.planned({}, {}).items() if node.has_agent)
    return {name: row.generation for name, row in rows if row is not None and row.observed < row.generation}


# Nodes


_CONDITIONS: Final[dict[str, tuple[Severity, str]]] = {
    ConditionType.COMPATIBLE: (
        Severity.ERROR,
        (
            "boot the node with cgroup v2 (systemd.unified_cgroup_hierarchy=1) and a kernel with swap accounting, or"
            " keep pods with a policy off it"
        ),
    ),
    ConditionType.DEGRADED: (
        Severity.ERROR,
        "kubectl swap nodes -o wide and the agent's log say more; docs/agent.md has the reasons",
    ),
    ConditionType.DRIFT: (
        Severity.WARNING,
        "find who else writes memory.swap.max there; docs/agent.md has who it may be",
    ),
    ConditionType.NODE_SETTINGS: (Severity.WARNING, "docs/node-settings.md has each reason and what to do"),
    ConditionType.REQUIREMENTS_MET: (
        Severity.WARNING,
        "give the node what its profile requires, or require less (swap.require)",
    ),
    ConditionType.STRICT: (Severity.WARNING, "docs/strict.md has each reason and what to do"),
}
"""How bad a condition of a node's state is, and the remedy, where its message does not end with that."""
_DIAGNOSTICS: Final[dict[str, Severity]] = {ConditionType.KUBELET_WILL_NOT_START: Severity.ERROR}
"""Those that are worse than a warning."""


def condition(node: str, one: state.Condition) -> Problem | None:
    """The problem that a condition of a node's state tells of; None where it tells of none."""
    if not is_abnormal(one.type, one.status, one.reason):
        return None
    if one.type in DIAGNOSTICS:
        # The agent ends the message of these with the remedy.
        message, _, remedy = one.message.rpartition("; ")
        severity = _DIAGNOSTICS.get(one.type, Severity.WARNING)
        return Problem(severity, Check.NODE_CONDITION, one.type, f"node/{node}", message, remedy)
    severity, remedy = _CONDITIONS[one.type]
    told = f"{one.reason}: {one.message}" if one.message else one.reason
    return Problem(severity, Check.NODE_CONDITION, one.type, f"node/{node}", told, remedy)


def _nodes(view: snapshot.View, known: Mapping[str, planning.NodeView], behind: Collection[str]) -> Iterator[Problem]:
    where = view.agent_namespace() or "swapwarden-system"
    for name, node in known.items():
        row, report = node.report, view.reports.get(name)
        if row is None:
            yield Problem(
                Severity.ERROR,
                Check.NO_STATE,
                Check.NO_STATE,
                f"node/{name}",
                "the controller has not planned it: there is no NodeSwapState of its own",
                f"see that the controller runs and what it logs: kubectl -n {where} logs"
                " -l app.kubernetes.io/component=controller",
            )
        if not node.has_agent:
            yield Problem(
                Severity.ERROR if node.facts.swap_bytes else Severity.WARNING,
                Check.NO_AGENT,
                Check.NO_AGENT,
                f"node/{name}",
                "no agent is at work there: no policy is enforced on new pods"
                + ("" if node.facts.swap_bytes else "; the node is not known to have swap"),
                f"kubectl -n {where} get pods -l app.kubernetes.io/component=agent -o wide shows where they run; the"
                " DaemonSet must tolerate the taints of the node",
            )
        elif name in behind and row is not None:
            yield Problem(
                Severity.ERROR,
                Check.AGENT_BEHIND,
                Check.AGENT_BEHIND,
                f"node/{name}",
                f"its agent is Ready, but still at generation {row.observed} of {row.generation} of its state",
                f"see what the agent logs, and whether it reaches the API server: kubectl -n {where} logs"
                " -l app.kubernetes.io/component=agent",
            )
        if report is not None and node.has_agent:
            yield from filter(None, (condition(name, one) for one in report.conditions))
        elif row is not None and row.degraded.startswith("NotUnderstood"):
            yield Problem(
                Severity.WARNING,
                Check.OTHER_VERSION,
                Check.OTHER_VERSION,
                f"node/{name}",
                f"what its agent reports is not understood: {row.degraded}",
                "use the kubectl swap of the version that is installed",
            )


# Profiles


def _profiles(found: planning.KnownProfiles, known: Mapping[str, planning.NodeView]) -> Iterator[Problem]:
    for entry in found.entries.values():
        here = f"nodeswapprofile/{entry.name}"
        if entry.error:
            yield Problem(
                Severity.ERROR,
                Check.INVALID_PROFILE,
                Check.INVALID_PROFILE,
                here,
                f"not valid, so that it is not in force, or an older version is: {entry.error}",
                "correct it; kubectl explain nodeswapprofile.spec has what each field takes",
            )
        yield from _told(entry, here)
        if entry.profile is not None:
            yield from ungoverned(entry.profile, known, here)
    ties: dict[tuple[str, ...], list[str]] = {}
    for name, node in known.items():
        selection = node.selection
        if selection.conflicts:
            ties.setdefault((selection.profile.name, *selection.conflicts), []).append(name)
    for (winner, *others), nodes in ties.items():
        yield Problem(
            Severity.WARNING,
            Check.PROFILE_CONFLICT,
            Check.PROFILE_CONFLICT,
            f"nodeswapprofile/{winner}",
            f"has the same priority as {', '.join(others)} on {some(nodes)}, and governs as the older one",
            "give them different priorities, or selectors that do not overlap",
        )


def ungoverned(profile: compiled.Profile, known: Mapping[str, planning.NodeView], here: str) -> Iterator[Problem]:
    """Yield the problem of a profile that governs no node."""
    selected = [node for node in known.values() if profile.selects(node.row.labels)]
    rivals = {node.selection.profile.name for node in selected}
    if profile.name in rivals:
        return
    message, remedy = "selects no node", "correct nodeSelector, or label the nodes"
    if selected:
        number, first = tables.count(len(selected), "node"), ", ".join(sorted(rivals))
        message, remedy = (
            f"governs none of the {number} that it selects: {first} does",
            "raise its priority, or remove it",
        )
    yield Problem(Severity.WARNING, Check.GOVERNS_NO_NODE, Check.GOVERNS_NO_NODE, here, message, remedy)


def _told(entry: planning.ProfileEntry, here: str) -> Iterator[Problem]:
    """Yield what the profile's own status tells, and nothing else does."""
    found = {one.get("type"): one for one in entry.status.get("conditions", ())}
    progressing, degraded = found.get(ConditionType.PROGRESSING, {}), found.get(ConditionType.DEGRADED, {})
    if progressing.get("reason") in {"Stopped", "Held"}:
        yield Problem(
            Severity.WARNING,
            Check.ROLLOUT_STOPPED,
            str(progressing["reason"]),
            here,
            str(progressing.get("message", "")),
            "mend the nodes that are named, or let the change through: rollout.maxUnavailable: 100%,"
            " rollout.onSwapInUse: Proceed",
        )
    if degraded.get("reason") == "NoExtendedResource":
        yield Problem(
            Severity.WARNING,
            Check.NO_EFFECT,
            "NoExtendedResource",
            here,
            str(degraded.get("message", "")),
            "install with extendedResource: true, or remove scheduling.extendedResource",
        )


# Namespaces


def namespaces(view: snapshot.View) -> Iterator[Problem]:
    """Yield what is wrong with labels of namespaces."""
    exempt = UNDEFAULTED | {view.agent_namespace()}
    for name, labels in view.namespaces.items():
        yield from namespace(f"namespace/{name}", labels, exempt=name in exempt)


def namespace(here: str, labels: Mapping[str, str], *, exempt: bool) -> Iterator[Problem]:
    """Yield what is wrong with the labels of one namespace; no default reaches pods of those that are exempt."""
    accepted = ", ".join(names.Policy)
    value = labels.get(names.DEFAULT_POLICY_LABEL)
    if value is not None and value not in frozenset[str](names.Policy):
        meant = pod_annotations.resembling(value, list(names.Policy))
        yield Problem(
            Severity.ERROR,
            Check.NAMESPACE_POLICY,
            Check.NAMESPACE_POLICY,
            here,
            f"label {names.DEFAULT_POLICY_LABEL}: unsupported value {validation.quoted(value)}"
            + (f"; did you mean {validation.quoted(meant)}?" if meant else "")
            + ": new pods without a policy of their own are refused",
            f"set it to one of {accepted}, or remove it",
        )
    elif value is not None and exempt:
        yield Problem(
            Severity.WARNING,
            Check.NO_EFFECT,
            Check.NAMESPACE_POLICY,
            here,
            f"label {names.DEFAULT_POLICY_LABEL}: {value} has no effect: pods of this namespace must start without the"
            " webhook",
            "use an override of a profile for its pods, or their own annotation",
        )
    for key in sorted(labels):
        if pod_annotations.is_of_domain(key) and key != names.DEFAULT_POLICY_LABEL:
            meant = pod_annotations.resembling(key, [names.DEFAULT_POLICY_LABEL])
            yield Problem(
                Severity.WARNING,
                Check.NO_EFFECT,
                Check.NAMESPACE_POLICY,
                here,
                f"label {key} has no effect: there is no such label of namespaces",
                f"write {meant or names.DEFAULT_POLICY_LABEL}, or remove it",
            )


# Pods

_POD_REMEDIES: Final[dict[str, str]] = {
    names.Mode.AUDIT: "set mode: Enforce in the profile when what it reports is as it should be",
    names.Reason.NODE_INCOMPATIBLE: "see the node's condition Compatible, or keep such pods off it",
    names.Reason.INVALID_POLICY: "correct the template of the workload that made it",
    names.Reason.REQUIREMENT_UNMET: "see the node's condition RequirementsMet, or have policy Required place the pod",
    names.Reason.PROFILE_NO_SWAP: "remove the limit, or have policy Required bring the pod onto nodes that give swap",
    names.Reason.QOS_NOT_ELIGIBLE: "make the pod Burstable, or have a profile of behavior WorkloadControlled",
    names.Reason.CRITICAL_POD: "remove the limit, or have a profile of behavior WorkloadControlled",
    names.Reason.OVERRIDE_DISABLED: "ask who keeps the profile, or remove what the pod says of swap",
    names.Reason.OVERRIDE_LIMIT: "lower the pod's limit, or raise swapLimit of the override",
    names.Reason.BOUNDED: "lower the pod's limit, or raise maxPerPod or maxPerContainer of the profile",
    names.Reason.OVERCOMMIT_REACHED: "lower limits, move pods to other nodes, or raise overcommitPercent",
}
_SERIOUS: Final = frozenset({names.Reason.NODE_INCOMPATIBLE, names.Reason.INVALID_POLICY})
_TEMPLATE: Final = "correct the template of the workload that made it"


def useless_keys(view: snapshot.View) -> Iterator[Problem]:
    """Yield what pods say of swap and has no effect, or contradicts itself, whatever their nodes."""
    for (name_space, name), pod in view.asked.items():
        here = f"pod/{name_space}/{name}"
        if view.pods[name_space, name].terminal:
            continue
        told = [told for told in validation.warnings(pod) if pod_annotations.NOT_PLACED not in told]
        for message in told:
            yield Problem(Severity.WARNING, Check.NO_EFFECT, Check.NO_EFFECT, here, message, _TEMPLATE)
        values = {cause.field for cause in validation.wrong_values(pod)}
        for cause in validation.errors(pod):
            if cause.field not in values:
                text = f"{cause.field}: {cause.message}"
                yield Problem(Severity.WARNING, Check.NO_EFFECT, "Contradiction", here, text, _TEMPLATE)


def _pods(view: snapshot.View, known: Mapping[str, planning.NodeView]) -> Iterator[Problem]:
    labels = view.known_namespaces() or {}
    for node in known.values():
        rows = [row for row in node.pods if not row.terminal]
        spec = plan.plan_node(node.in_force, node.facts, rows, labels)
        for notice in planning.pod_notices(rows, spec):
            yield Problem(
                Severity.ERROR if notice.reason in _SERIOUS else Severity.WARNING,
                Check.POD_NOT_ENFORCED,
                notice.reason,
                f"pod/{notice.regarding.namespace}/{notice.regarding.name}",
                notice.message,
                _POD_REMEDIES[notice.reason],
            )
        for row in rows:
            if row.policy is not None or row.limited():
                yield from _unenforced(row, spec, has_agent=node.has_agent)
    yield from _pending(view)


def _unenforced(row: pods.PodRow, spec: state.StateSpec, *, has_agent: bool) -> Iterator[Problem]:
    planned = spec.pods.get(row.key)
    disabled = row.policy == names.Policy.DISABLED
    if not has_agent:
        yield Problem(
            Severity.ERROR if disabled else Severity.WARNING,
            Check.POD_NOT_ENFORCED,
            Check.NO_AGENT,
            _pod(row),
            f"has a swap policy or limit, and no agent is at work on node {row.node}",
            "see the problem NoAgent of the node",
        )
    requires = spec.mode is names.Mode.ENFORCE and row.policy == names.Policy.REQUIRED
    if requires and planned is not None and planned.swap_max == "0":
        if planned.reason in _POD_REMEDIES and row.limited():
            return  # told already
        yield Problem(
            Severity.WARNING,
            Check.POD_NOT_ENFORCED,
            names.Policy.REQUIRED,
            _pod(row),
            f"requires swap, and gets none on node {row.node}: {planned.reason}",
            "docs/semantics.md has the reasons and what each needs",
        )


def _pending(view: snapshot.View) -> Iterator[Problem]:
    placed = any(node.labels.get(names.SWAP_LABEL) == "true" for node in view.nodes.values())
    for row in view.pods.values():
        if row.policy == names.Policy.REQUIRED and not row.node and not row.terminal and not placed:
            yield Problem(
                Severity.WARNING,
                Check.POD_NOT_ENFORCED,
                names.Policy.REQUIRED,
                _pod(row),
                f"waits for a node with swap: none has the label {names.SWAP_LABEL}: true",
                "turn swap on, on some node that a profile lets give it",
            )


def _held(view: snapshot.View) -> Iterator[Problem]:
    by_key = {row.key: row for row in view.pods.values()}
    for name, report in view.reports.items():
        for one in report.violations:
            row = by_key.get(one.pod)
            if row is None or one.container or one.wanted != "0" or not one.swap_bytes or row.node != name:
                continue
            amount = sizes.rounded(one.swap_bytes)
            causes = ", ".join(one.causes) or "cause not known"
            most = "" if names.UNWATCHED.isdisjoint(one.causes) else "at most "
            by_reason: dict[str, str] = {
                ViolationReason.DRAINING: f"has {amount} of swap in use, and is to have none; it can grow little",
                ViolationReason.EXPOSED: f"took {most}{amount} of swap while its limit was undone ({causes})",
            }
            told = by_reason.get(one.reason)
            if told is not None:
                yield Problem(
                    Severity.ERROR if row.policy == names.Policy.DISABLED else Severity.WARNING,
                    Check.SWAP_AGAINST_POLICY,
                    one.reason,
                    _pod(row),
                    told,
                    "restart the pod, which frees it; docs/agent.md has the causes",
                )


def _pod(row: pods.PodRow) -> str:
    return f"pod/{row.namespace}/{row.name}"


def some(found: Collection[str], most: int = 5) -> str:
    """The first of them, and how many more there are."""
    rest = len(found) - most
    return ", ".join(sorted(found)[:most]) + (f" and {rest} more" if rest > 0 else "")
