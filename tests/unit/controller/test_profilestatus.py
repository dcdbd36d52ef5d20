from __future__ import annotations

from typing import Any

from swapwarden.api import profile as api
from swapwarden.controller import cluster, profilestatus, profilestore

from tests.unit.controller.objects import profile

THEN, NOW = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


def entry(**fields: Any) -> profilestore.Entry:
    defaults: dict[str, Any] = {"uid": "u", "version": 1, "generation": 3, "error": "", "status": {}}
    return profilestore.Entry(**{"name": "p", "profile": profile(generation=2), **defaults, **fields})


def nodes(count: int, *, applied: bool = True, degraded: str = "") -> list[cluster.Governed]:
    return [cluster.Governed(f"node-{number:02}", applied=applied, degraded=degraded) for number in range(count)]


def conditions(status: dict[str, Any]) -> dict[str, tuple[str, str]]:
    api.ProfileStatus.model_validate(status)
    return {one["type"]: (one["status"], one["reason"]) for one in status["conditions"]}


def message(status: dict[str, Any], kind: str) -> str:
    return next(str(one["message"]) for one in status["conditions"] if one["type"] == kind)


def test_all_is_well() -> None:
    status = profilestatus.build(entry(), nodes(2), [], NOW)
    assert status["observedGeneration"] == 3
    assert status["nodes"] == {"matched": 2, "applied": 2, "degraded": 0}
    assert conditions(status) == {
        "Ready": ("True", "Applied"),
        "Conflicted": ("False", "NoConflict"),
        "Degraded": ("False", "AsExpected"),
    }
    assert {one["observedGeneration"] for one in status["conditions"]} == {3}


def test_a_profile_without_nodes_is_ready() -> None:
    assert conditions(profilestatus.build(entry(), [], [], NOW))["Ready"] == ("True", "NoNodes")


def test_nodes_that_are_waited_for_are_named_and_the_rest_counted() -> None:
    status = profilestatus.build(entry(), nodes(12, applied=False), [], NOW)
    assert conditions(status)["Ready"] == ("False", "Applying")
    assert message(status, "Ready").startswith("0 of 12 nodes applied; waiting for node-00, node-01, ")
    assert message(status, "Ready").endswith("node-09 and 2 more")


def test_what_is_wrong_with_a_node_is_told() -> None:
    status = profilestatus.build(entry(), nodes(1, degraded="WriteFailed: no"), [], NOW)
    assert conditions(status)["Degraded"] == ("True", "NodesDegraded")
    assert message(status, "Degraded") == "node-00 (WriteFailed: no)"
    assert status["nodes"]["degraded"] == 1


def test_an_invalid_version_says_what_stays_in_force() -> None:
    status = profilestatus.build(entry(error="spec.swap: bad"), nodes(1), [], NOW)
    assert conditions(status)["Ready"] == ("False", "Invalid")
    assert message(status, "Ready") == "spec.swap: bad; generation 2 stays in force"
    never = profilestatus.build(entry(error="spec.swap: bad", profile=None), [], [], NOW)
    assert message(never, "Ready") == "spec.swap: bad; the profile is not in force"


def test_a_conflict_names_the_others_and_the_nodes() -> None:
    contested = [profilestatus.Contest("q", "node-2"), profilestatus.Contest("q", "node-1")]
    status = profilestatus.build(entry(), [], contested, NOW)
    assert conditions(status)["Conflicted"] == ("True", "SamePriority")
    assert message(status, "Conflicted") == "same priority as q on node-1, node-2: the oldest profile governs"


def test_a_condition_keeps_its_time_until_it_changes() -> None:
    first = profilestatus.build(entry(), nodes(1), [], THEN)
    second = profilestatus.build(entry(status=first), nodes(1, applied=False), [], NOW)
    times = {one["type"]: one["lastTransitionTime"] for one in second["conditions"]}
    assert times == {"Ready": NOW, "Conflicted": THEN, "Degraded": THEN}
    assert profilestatus.build(entry(status=first), nodes(1), [], NOW) == first
