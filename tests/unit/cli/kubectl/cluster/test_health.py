from __future__ import annotations

import pytest
from swapwarden.api import names, state
from swapwarden.cli.kubectl.cluster import health
from swapwarden.cli.kubectl.cluster.health import NodeHealth
from swapwarden.policy.node.observations import NodeObservation, NodeProblem

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
        verdict = health.judge(spec(names.Mode(mode)), status(*conditions), has_agent=has_agent)
        assert verdict.health is expected


def test_problems_that_no_agent_reports() -> None:
    unmet = [NodeObservation(NodeProblem.REQUIREMENT_UNMET, "encrypted: no")]
    found = health.judge(spec(), status(), has_agent=True, observed=unmet)
    assert found == health.HealthVerdict(NodeHealth.UNMET, "encrypted: no")
    draining = health.judge(spec(), status(("Applied", "False", "Draining")), has_agent=True, observed=unmet)
    assert draining.health is NodeHealth.DRAINING
    restoring = spec(names.Mode.RESTORE)
    assert health.judge(restoring, status(), has_agent=True, observed=unmet).health is NodeHealth.RESTORED


def test_the_message_is_of_the_condition_that_decides() -> None:
    degraded = health.judge(spec(), status(("Degraded", "True", "WriteFailed")), has_agent=True)
    assert degraded.why == "Degraded says"
    fine = health.judge(spec(), status(("SecretsOnDisk", "True", "Tmpfs"), ("Drifted", "True", "x")), has_agent=True)
    assert fine == health.HealthVerdict(NodeHealth.ENFORCED, "Drifted says; SecretsOnDisk: SecretsOnDisk says")
    assert health.judge(spec(), status(), has_agent=True).why == ""


def test_an_agent_that_no_longer_runs_is_not_believed() -> None:
    assert health.judge(spec(), status(), has_agent=False).health is NodeHealth.SILENT


def test_an_agent_that_never_spoke() -> None:
    silent = state.StateStatus()
    assert health.judge(spec(), silent, has_agent=True).health is NodeHealth.PENDING
    assert health.judge(spec(), silent, has_agent=False).health is NodeHealth.NO_AGENT
    assert health.judge(spec(), silent, has_agent=None).health is NodeHealth.NO_AGENT


def test_a_profile_that_the_agent_has_not_seen() -> None:
    old = status(profile=state.ProfileRef("batch", 2))
    assert health.judge(spec(), old, has_agent=True).health is NodeHealth.PENDING


def test_a_node_without_a_plan() -> None:
    assert health.judge(None, state.StateStatus(), has_agent=True).health is NodeHealth.NO_STATE


def test_each_standing_has_a_style_and_a_place() -> None:
    assert set(health.STYLES) == set(NodeHealth)
    assert min(NodeHealth, key=lambda each: health.ORDER[each]) is NodeHealth.DEGRADED
