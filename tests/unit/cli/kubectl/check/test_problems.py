from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from swapwarden.agent.node import diagnostics
from swapwarden.api import names, state
from swapwarden.api.conditions import ABNORMAL_STATUS, DIAGNOSTICS, ConditionType
from swapwarden.cli.kubectl.check import catalogue, problems
from swapwarden.cli.kubectl.check.catalogue import Check, ClusterProblem, Severity
from swapwarden.cli.kubectl.cluster import snapshot
from swapwarden.policy import plan
from swapwarden.policy.node.observations import NodeProblem
from swapwarden.policy.observed import resources
from swapwarden.policy.observed.nodes import NodeFacts
from swapwarden.policy.profile import compiled

from tests.unit.objects import GI, agent_facts, container, node, pod, profile_object, raw, reported_row, view

NOTHING: set[tuple[str, str, str]] = set()


def told(read: snapshot.ClusterSnapshot, behind: tuple[str, ...] = ()) -> set[tuple[str, str, str]]:
    """Check, reason and object of each problem."""
    return {(one.check.value, one.reason, one.object) for one in problems.live(read, behind)}


def following(profile: str, **fields: Any) -> Any:
    return reported_row(spec=state.StateSpec(profile_ref=state.ProfileRef(profile, 1)), **fields)


def severities(read: snapshot.ClusterSnapshot) -> list[Severity]:
    return [one.severity for one in problems.live(read)]


def test_a_cluster_without_problems() -> None:
    namespaces = {"a": {"swapwarden.dev/default-swap-policy": "Disabled", "team": "x"}}
    read = view([node()], [pod(container(), policy="Disabled")], [reported_row()], namespaces=namespaces)
    assert told(read) == NOTHING


def test_a_node_that_nobody_planned() -> None:
    assert told(view([node()])) == {("NoState", "NoState", "node/node-1"), ("NoAgent", "NoAgent", "node/node-1")}


@pytest.mark.parametrize(("swap", "expected"), [(GI, Severity.ERROR), (0, Severity.WARNING)])
def test_a_node_without_an_agent(swap: int, expected: Severity) -> None:
    read = view([node(swap_bytes=swap)], [], [reported_row(observed=0, facts=None)])
    assert told(read) == {("NoAgent", "NoAgent", "node/node-1")}
    assert severities(read) == [expected]


def test_an_agent_whose_pod_is_not_ready() -> None:
    labels = {"app.kubernetes.io/name": "swapwarden", "app.kubernetes.io/component": "agent"}
    document = {
        "metadata": {"name": "agent-1", "namespace": "swapwarden-system", "uid": "u", "labels": labels},
        "spec": {"nodeName": "node-1", "containers": [{"name": "agent"}]},
        "status": {"conditions": [{"type": "Ready", "status": "False"}]},
    }
    read = view([node()], [], [reported_row()])
    read.add_pod(raw(document))
    assert ("NoAgent", "NoAgent", "node/node-1") in told(read)
    document["status"] = {"conditions": [{"type": "Ready", "status": "True"}]}
    read = view([node()], [], [reported_row()])
    read.add_pod(raw(document))
    assert told(read) == NOTHING


def test_an_agent_that_does_not_follow() -> None:
    read = view([node()], [], [reported_row(generation=7)])
    assert problems.lagging(read) == {"node-1": 7}
    assert told(read) == NOTHING
    assert told(read, ("node-1",)) == {("AgentBehind", "AgentBehind", "node/node-1")}
    assert problems.lagging(view([node()], [], [reported_row()])) == {}


@pytest.mark.parametrize(
    ("kind", "status", "severity"),
    [
        ("Compatible", "False", Severity.ERROR),
        ("Degraded", "True", Severity.ERROR),
        ("Drifted", "True", Severity.WARNING),
        ("SettingsApplied", "False", Severity.WARNING),
        ("StrictInEffect", "False", Severity.WARNING),
        ("MemoryQoS", "False", Severity.WARNING),
    ],
)
def test_conditions_of_a_node(kind: str, status: str, severity: Severity) -> None:
    found = problems.condition("n", state.Condition(kind, status, "Why", "the problem"))
    assert found is not None
    assert (found.severity, found.reason, found.object, found.message) == (
        severity,
        kind,
        "node/n",
        "Why: the problem",
    )
    other = "True" if status == "False" else "False"
    assert problems.condition("n", state.Condition(kind, other, "Why", "")) is None


def test_every_problem_of_a_node_has_a_remedy() -> None:
    assert set(NodeProblem) == catalogue.NODE_PROBLEMS.keys()


def test_every_condition_of_an_agent_is_known() -> None:
    kinds = {
        ConditionType.COMPATIBLE,
        ConditionType.DEGRADED,
        ConditionType.DRIFTED,
        ConditionType.SETTINGS_APPLIED,
        ConditionType.STRICT_IN_EFFECT,
        ConditionType.MEMORY_QOS,
    }
    assert kinds == catalogue.CONDITIONS.keys()
    assert kinds | set(DIAGNOSTICS) == ABNORMAL_STATUS.keys()
    assert problems.condition("n", state.Condition(ConditionType.APPLIED, "False", "Draining")) is None


def test_what_systemd_writes_over_is_no_problem() -> None:
    """A daemon-reload; the agent repairs it."""
    found = {
        why: problems.condition("n", state.Condition("Drifted", "True", why)) for why in ("Rewritten", "OtherWriter")
    }
    assert found["Rewritten"] is None
    assert found["OtherWriter"] is not None


@pytest.mark.parametrize("kind", DIAGNOSTICS)
def test_findings_end_with_their_remedy(kind: ConditionType) -> None:
    found = diagnostics.Diagnostic(kind, "Reason", "one thing; and another", "do this, or that")
    message = f"{found.message}; {found.remedy}"
    problem = problems.condition("n", state.Condition(kind, "True", found.reason, message))
    assert problem is not None
    assert (problem.message, problem.remedy) == ("one thing; and another", "do this, or that")
    severe = kind is ConditionType.KUBELET_WILL_NOT_START
    assert problem.severity is (Severity.ERROR if severe else Severity.WARNING)
    assert problems.condition("n", state.Condition(kind, "False", "Reason")) is None


def test_no_remedy_of_a_finding_has_what_separates_it() -> None:
    remedies, kinds = [], set()
    for each in ast.walk(ast.parse(Path(diagnostics.__file__).read_text(encoding="utf-8"))):
        match each:
            case ast.Call(func=ast.Name("Diagnostic"), args=[ast.Attribute(attr=kind), *_, last]):
                kinds.add(kind)
                remedies.append(ast.unparse(last))
            case ast.Tuple(elts=[ast.Constant(str()), ast.Constant(str()) as last]):  # messages and remedies by reason
                remedies.append(ast.unparse(last))
    assert kinds == {one.name for one in DIAGNOSTICS}
    assert not [one for one in remedies if "; " in one]


def test_a_report_that_is_not_understood() -> None:
    read = view([node()], [], [reported_row(degraded="NotUnderstood: the agent's status: x")])
    assert told(read) == {("OtherVersion", "OtherVersion", "node/node-1")}


def test_profiles() -> None:
    far = {"matchLabels": {"pool": "none"}}
    stopped = profile_object("stopped", nodeSelector=far)
    stopped["status"] = {
        "observedGeneration": 1,
        "conditions": [
            {"type": "Progressing", "status": "False", "reason": "Stopped", "message": "1 of 2"},
            {"type": "Degraded", "status": "True", "reason": "NoExtendedResource", "message": "no effect"},
        ],
    }
    objects = [
        profile_object("first", priority=7),
        profile_object("second", priority=7),
        profile_object("weak", priority=1),
        profile_object("wrong", swap={"behavior": "Guess"}),
        stopped,
    ]
    read = view([node()], [], [following("first")], objects)
    assert told(read) == {
        ("ProfileConflict", "ProfileConflict", "nodeswapprofile/first"),
        ("GovernsNoNode", "GovernsNoNode", "nodeswapprofile/second"),
        ("GovernsNoNode", "GovernsNoNode", "nodeswapprofile/weak"),
        ("GovernsNoNode", "GovernsNoNode", "nodeswapprofile/stopped"),
        ("InvalidProfile", "InvalidProfile", "nodeswapprofile/wrong"),
        ("RolloutStopped", "Stopped", "nodeswapprofile/stopped"),
        ("NoEffect", "NoExtendedResource", "nodeswapprofile/stopped"),
    }


def test_namespaces() -> None:
    key = "swapwarden.dev/default-swap-policy"
    namespaces = {
        "typo": {key: "disabled"},
        "kube-system": {key: "Disabled"},
        "other": {"swapwarden.dev/default-swap-polcy": "Disabled", "swapwarden.dev/x": "y"},
        "fine": {key: "Avoid"},
    }
    found = catalogue.worst_first(problems.live(view(namespaces=namespaces)))
    assert [(one.severity.value, one.check.value, one.object) for one in found] == [
        ("Error", "NamespacePolicy", "namespace/typo"),
        ("Warning", "NoEffect", "namespace/kube-system"),
        ("Warning", "NoEffect", "namespace/other"),
        ("Warning", "NoEffect", "namespace/other"),
    ]
    assert 'did you mean "Disabled"?' in found[0].message


@pytest.mark.parametrize(
    ("fields", "profile", "expected"),
    [
        ({"policy": "disabld"}, {}, ("PodNotEnforced", "InvalidPolicy")),
        ({"swap_limit": "1Gi"}, {"swap": {"behavior": "NoSwap"}}, ("PodNotEnforced", "ProfileNoSwap")),
        ({"policy": "Required"}, {"swap": {"behavior": "NoSwap"}}, ("PodNotEnforced", "Required")),
        ({"policy": "Disabled"}, {"mode": "Audit"}, ("PodNotEnforced", "Audit")),
    ],
)
def test_pods_on_nodes_that_do_not_do_what_they_ask(
    fields: dict[str, Any], profile: dict[str, Any], expected: tuple[str, str]
) -> None:
    read = view([node()], [pod(container(), **fields)], [following("p")], [profile_object("p", **profile)])
    assert told(read) == {(*expected, "pod/default/pod")}


def test_pods_with_a_policy_where_nothing_enforces_it() -> None:
    pods = [pod(container(), policy="Disabled"), pod(container(), name="other", uid="2", policy="Avoid")]
    spec = plan.plan_node(compiled.BUILT_IN, NodeFacts(compatible=True, memory_bytes=GI, swap_bytes=GI), pods)
    lonely = view([node()], [*pods, pod(container(), name="plain", uid="3")], [reported_row(observed=0, spec=spec)])
    found = {one.object: one.severity for one in problems.live(lonely) if one.check is Check.POD_NOT_ENFORCED}
    assert found == {"pod/default/pod": Severity.ERROR, "pod/default/other": Severity.WARNING}
    old = view([node()], pods[:1], [reported_row(facts=agent_facts(cgroup_version=1))])
    assert told(old) == {("PodNotEnforced", "NodeIncompatible", "pod/default/pod")}


def test_a_pod_that_waits_for_swap() -> None:
    waiting = pod(container(), policy="Required", node="")
    assert told(view([node()], [waiting], [reported_row()])) == {("PodNotEnforced", "Required", "pod/default/pod")}
    labelled = node(labels={"node.swapwarden.dev/swap": "true"})
    assert told(view([labelled], [waiting], [reported_row()])) == NOTHING


def test_swap_against_a_policy() -> None:
    draining = (state.Violation("uid-1", "Draining", swap_bytes=4096), state.Violation("unknown", "Draining"))
    read = view([node()], [pod(container(), policy="Disabled")], [reported_row(violations=draining)])
    assert told(read) == {("SwapAgainstPolicy", "Draining", "pod/default/pod")}
    (found,) = problems.live(read)
    assert (found.severity, "(4Ki in use)" in found.message) == (Severity.ERROR, True)
    exposed = [state.ExposedPod(key, desired="0", swap_bytes=4096) for key in ("uid-1", "unknown")]
    report = state.StateStatus(exposures=exposed)
    read = view([node()], [pod(container(), policy="Disabled")], [reported_row()], reports={"node-1": report})
    assert told(read) == {("SwapAgainstPolicy", "Exposed", "pod/default/pod")}
    assert severities(read) == [Severity.ERROR]


def test_annotations_that_have_no_effect() -> None:
    read = view([node()], [], [reported_row()])
    annotations = {"swapwarden.dev/swap-polcy": "Disabled", "swapwarden.dev/swap-policy": "Disabled"}
    limits = {"swap-limit.swapwarden.dev/app": "1Gi"}
    meta = {"name": "web", "namespace": "default", "uid": "u", "annotations": annotations | limits}
    read.add_pod(raw({"metadata": meta, "spec": {"nodeName": "node-1", "containers": [{"name": "app"}]}}))
    assert told(read) == {
        ("NoEffect", "NoEffect", "pod/default/web"),
        ("NoEffect", "Contradiction", "pod/default/web"),
    }


@pytest.mark.parametrize(
    ("asks", "profiles", "expected"),
    [
        ({"low": 1}, [profile_object("p")], "set memoryQoS in p"),
        ({"throttling": 50}, [], "select the node by a profile with memoryQoS"),
        ({"low": 1}, [profile_object("p", memoryQoS={})], None),
        ({"reservation": names.ReservationPolicy.NONE, "low": 1, "throttling": 0, "high": 1}, [], None),
    ],
)
def test_memory_that_a_node_does_not_offer(asks: dict[str, Any], profiles: list[Any], expected: str | None) -> None:
    row = pod(container(), asks=resources.MemoryAsks(**asks))
    state_row = following("p") if profiles else reported_row()
    found = list(problems.live(view([node()], [row], [state_row], profiles)))
    shown = [(one.check, one.reason, one.object, one.remedy.partition(" (")[0].partition(",")[0]) for one in found]
    assert shown == ([(Check.NO_EFFECT, "NotOffered", "pod/default/pod", expected)] if expected else [])


@pytest.mark.parametrize(
    ("mode", "profiles", "expected"),
    [
        ("Startup", [profile_object("p")], "set reclaim.mode in p"),
        ("Continuous", [], "select the node by a profile with reclaim.mode"),
        ("Startup", [profile_object("p", reclaim={"mode": "Startup"})], None),
        ("Off", [], None),
    ],
)
def test_reclaim_that_a_node_does_not_offer(mode: str, profiles: list[Any], expected: str | None) -> None:
    row = pod(container(), reclaim=names.ReclaimMode(mode))
    found = list(problems.live(view([node()], [row], [following("p") if profiles else reported_row()], profiles)))
    shown = [(one.check, one.reason, one.object, one.remedy.partition(",")[0]) for one in found]
    assert shown == ([(Check.NO_EFFECT, "NotOffered", "pod/default/pod", expected)] if expected else [])


def test_a_node_whose_pods_ask_for_more_than_it_has() -> None:
    greedy = pod(container(request=2**40))
    profile = profile_object("p", memoryQoS={"reservationPolicy": "Soft"})
    read = view([node()], [greedy], [following("p")], [profile], reports={"node-1": state.StateStatus()})
    assert told(read) == {("NodeCondition", "ProtectionOvercommitted", "node/node-1")}


def test_what_cannot_be_read_is_not_judged() -> None:
    read = view([node()], [pod(container(), policy="Disabled")], unread={"nodeswapstates": "forbidden"})
    assert told(read) == NOTHING
    assert problems.lagging(read) == {}


def test_order() -> None:
    def problem(severity: Severity, check: Check, name: str) -> ClusterProblem:
        return ClusterProblem(severity, check, check, name, "", "")

    wanted = [
        problem(Severity.ERROR, Check.NO_LEADER, "b"),
        problem(Severity.ERROR, Check.NO_AGENT, "a"),
        problem(Severity.ERROR, Check.NO_AGENT, "b"),
        problem(Severity.WARNING, Check.NO_LEADER, "a"),
    ]
    assert catalogue.worst_first([*reversed(wanted), wanted[0]]) == wanted
