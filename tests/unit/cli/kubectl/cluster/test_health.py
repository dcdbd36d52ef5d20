from __future__ import annotations

import pytest
from swapwarden.api import names, state
from swapwarden.cli.kubectl.cluster import health
from swapwarden.cli.kubectl.cluster.health import Standing

PROFILE = state.ProfileRef("batch", 3)


def status(*conditions: tuple[str, str, str], profile: state.ProfileRef = PROFILE) -> state.StateStatus:
    """A healthy node's, with these conditions (type, status, reason) in the place of its own."""
    healthy = {
        "Compatible": ("True", "Compatible"),
        "Applied": ("True", "AsSpecified"),
        "Degraded": ("False", "AsExpected"),
        "Drift": ("False", "Quiet"),
    }
    found = healthy | {kind: (value, reason) for kind, value, reason in conditions}
    told = [state.Condition(kind, value, reason, f"{kind} says") for kind, (value, reason) in found.items()]
    return state.StateStatus(observed_generation=5, profile=profile, conditions=told)


def spec(mode: names.Mode = names.Mode.ENFORCE) -> state.StateSpec:
    return state.StateSpec(PROFILE, mode=mode)


@pytest.mark.parametrize(
    ("conditions", "mode", "expected"),
    [
        ([], "Enforce", Standing.ENFORCED),
        ([("Applied", "True", "Audit")], "Audit", Standing.AUDIT),
        ([("Applied", "True", "Restored")], "Restore", Standing.RESTORED),
        ([("Applied", "False", "Restoring")], "Restore", Standing.RESTORING),
        ([("Applied", "False", "Draining")], "Enforce", Standing.DRAINING),
        ([("Applied", "False", "Yielded"), ("Drift", "True", "Yielded")], "Enforce", Standing.YIELDED),
        ([("Applied", "Unknown", "AwaitingState")], "Enforce", Standing.PENDING),
        ([("Applied", "False", "FromTheFuture")], "Enforce", Standing.NOT_UNDERSTOOD),
        ([("Compatible", "Unknown", "Searching"), ("Applied", "False", "NoPodTree")], "Enforce", Standing.PENDING),
        ([("Compatible", "False", "NoCgroupV2"), ("Degraded", "True", "Polling")], "Enforce", Standing.INCOMPATIBLE),
        ([("Degraded", "True", "WriteFailed"), ("Applied", "False", "Draining")], "Enforce", Standing.DEGRADED),
        ([("RequirementsMet", "False", "RequirementUnmet")], "Enforce", Standing.UNMET),
    ],
)
def test_what_the_agent_says(conditions: list[tuple[str, str, str]], mode: str, expected: Standing) -> None:
    for has_agent in (True, None):
        verdict = health.decide(spec(names.Mode(mode)), status(*conditions), has_agent=has_agent)
        assert verdict.standing is expected


def test_the_message_comes_from_the_condition_that_decides() -> None:
    degraded = health.decide(spec(), status(("Degraded", "True", "WriteFailed")), has_agent=True)
    assert degraded.why == "Degraded says"
    fine = health.decide(spec(), status(("SecretsOnDisk", "True", "Tmpfs"), ("Drift", "True", "x")), has_agent=True)
    assert fine == health.Verdict(Standing.ENFORCED, "Drift says; SecretsOnDisk: SecretsOnDisk says")
    assert health.decide(spec(), status(), has_agent=True).why == ""


def test_an_agent_that_no_longer_runs_is_not_believed() -> None:
    assert health.decide(spec(), status(), has_agent=False).standing is Standing.SILENT


def test_an_agent_that_never_spoke() -> None:
    silent = state.StateStatus()
    assert health.decide(spec(), silent, has_agent=True).standing is Standing.PENDING
    assert health.decide(spec(), silent, has_agent=False).standing is Standing.NO_AGENT
    assert health.decide(spec(), silent, has_agent=None).standing is Standing.NO_AGENT


def test_a_profile_that_the_agent_has_not_seen() -> None:
    old = status(profile=state.ProfileRef("batch", 2))
    assert health.decide(spec(), old, has_agent=True).standing is Standing.PENDING


def test_a_node_without_a_plan() -> None:
    assert health.decide(None, state.StateStatus(), has_agent=True).standing is Standing.NO_STATE


def test_each_standing_has_a_style_and_a_place() -> None:
    assert set(health.STYLES) == set(Standing)
    assert min(Standing, key=lambda each: health.ORDER[each]) is Standing.DEGRADED
