from __future__ import annotations

from typing import Any

import msgspec
import pytest
from swapwarden.api import names, state
from swapwarden.cli.kubectl.status import STYLES
from swapwarden.policy.node.observations import NodeProblem
from swapwarden.policy.observed import states
from swapwarden.policy.verdict import node
from swapwarden.policy.verdict.node import NodeCase, NodeHealth, NodeVerdict

PROFILE = state.ProfileRef("batch", 3)


def status(*conditions: tuple[str, str, str], profile: state.ProfileRef = PROFILE) -> state.StateStatus:
    """A healthy node's, with these conditions (type, status, reason) in the place of its own."""
    healthy = {
        "Compatible": ("True", "Compatible"),
        "Applied": ("True", "AsSpecified"),
        "Degraded": ("False", "AsExpected"),
        "Drifted": ("False", "Quiet"),
    }
    found = healthy | {kind: (value, reason) for kind, value, reason in conditions}
    told = [state.Condition(kind, value, reason, f"{kind} says") for kind, (value, reason) in found.items()]
    return state.StateStatus(observed_generation=5, profile_ref=profile, conditions=told)


def spec(mode: names.Mode = names.Mode.ENFORCE) -> state.StateSpec:
    return state.StateSpec(PROFILE, mode=mode)


def judge(
    found: state.StateSpec | None, reported: state.StateStatus, *, has_agent: bool | None, **more: Any
) -> NodeVerdict:
    if found is None:
        return node.judge(NodeCase(None, has_agent=has_agent, **more))
    spec, said = (msgspec.Raw(msgspec.json.encode(each)) for each in (found, reported))
    row = states.project(states.WireState(state.ObjectMeta(name="n", resource_version="1"), spec, said))
    return node.judge(NodeCase(row, found.mode, has_agent, **more))


@pytest.mark.parametrize(
    ("conditions", "mode", "expected"),
    [
        ([], "Enforce", NodeHealth.ENFORCED),
        ([("Applied", "True", "Audit")], "Audit", NodeHealth.AUDIT),
        ([("Applied", "True", "Restored")], "Restore", NodeHealth.RESTORED),
        ([("Applied", "False", "Restoring")], "Restore", NodeHealth.RESTORING),
        ([("Applied", "False", "Draining")], "Enforce", NodeHealth.DRAINING),
        ([("Applied", "False", "Yielded"), ("Drifted", "True", "Yielded")], "Enforce", NodeHealth.YIELDED),
        ([("Applied", "Unknown", "AwaitingState")], "Enforce", NodeHealth.PENDING),
        ([("Applied", "False", "FromTheFuture")], "Enforce", NodeHealth.NOT_UNDERSTOOD),
        ([("Compatible", "Unknown", "Searching"), ("Applied", "False", "NoPodTree")], "Enforce", NodeHealth.PENDING),
        ([("Compatible", "False", "NoCgroupV2"), ("Degraded", "True", "Polling")], "Enforce", NodeHealth.INCOMPATIBLE),
        ([("Degraded", "True", "WriteFailed"), ("Applied", "False", "Draining")], "Enforce", NodeHealth.DEGRADED),
    ],
)
def test_what_the_agent_says(conditions: list[tuple[str, str, str]], mode: str, expected: NodeHealth) -> None:
    for has_agent in (True, None):
        verdict = judge(spec(names.Mode(mode)), status(*conditions), has_agent=has_agent)
        assert verdict.health is expected


def test_problems_that_no_agent_reports() -> None:
    unmet = {NodeProblem.REQUIREMENT_UNMET: "encrypted: no"}
    found = judge(spec(), status(), has_agent=True, problems=unmet)
    assert (found.health, found.why) == (NodeHealth.UNMET, "encrypted: no")
    draining = judge(spec(), status(("Applied", "False", "Draining")), has_agent=True, problems=unmet)
    assert draining.health is NodeHealth.DRAINING
    restoring = spec(names.Mode.RESTORE)
    assert judge(restoring, status(), has_agent=True, problems=unmet).health is NodeHealth.RESTORED


def test_the_message_is_of_the_condition_that_decides() -> None:
    degraded = judge(spec(), status(("Degraded", "True", "WriteFailed")), has_agent=True)
    assert degraded.why == "Degraded says"
    fine = judge(spec(), status(("SecretsOnDisk", "True", "Tmpfs"), ("Drifted", "True", "x")), has_agent=True)
    assert (fine.health, fine.why) == (NodeHealth.ENFORCED, "Drifted says; SecretsOnDisk: SecretsOnDisk says")
    assert judge(spec(), status(), has_agent=True).why == ""


def test_an_agent_that_no_longer_runs_is_not_believed() -> None:
    assert judge(spec(), status(), has_agent=False).health is NodeHealth.SILENT


def test_an_agent_that_never_spoke() -> None:
    silent = state.StateStatus()
    assert judge(spec(), silent, has_agent=True).health is NodeHealth.PENDING
    assert judge(spec(), silent, has_agent=False).health is NodeHealth.NO_AGENT
    assert judge(spec(), silent, has_agent=None).health is NodeHealth.NO_AGENT


def test_a_profile_that_the_agent_has_not_seen() -> None:
    old = status(profile=state.ProfileRef("batch", 2))
    assert judge(spec(), old, has_agent=True).health is NodeHealth.PENDING


def test_a_node_without_a_plan() -> None:
    assert judge(None, state.StateStatus(), has_agent=True).health is NodeHealth.NO_STATE


def test_each_standing_has_a_style_and_a_place() -> None:
    assert set(STYLES) == set(NodeHealth)
    assert min(NodeHealth, key=lambda each: node.ORDER[each]) is NodeHealth.DEGRADED


def test_a_node_that_waits_for_its_turn() -> None:
    newer = state.ProfileRef("batch", 4)
    waits = judge(spec(), status(), has_agent=True, desired=newer, in_turn=False)
    assert (waits.text(*node.PENDING), waits.why) == (node.NOT_ITS_TURN, node.NOT_ITS_TURN)
    assert judge(spec(), status(), has_agent=True, desired=newer).text(*node.PENDING) == node.NOT_WRITTEN
    assert judge(None, status(), has_agent=True, desired=newer).text(*node.PENDING) == node.NOT_WRITTEN
    draining = judge(spec(), status(("Applied", "False", "Draining")), has_agent=True, desired=PROFILE)
    assert draining.text(*node.PENDING) == "Draining: Applied says"
    assert judge(spec(), status(), has_agent=True, desired=PROFILE).text(*node.PENDING) == ""
