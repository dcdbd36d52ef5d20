from __future__ import annotations

from typing import Any

import msgspec
import pytest
from swapwarden.api import profile as api
from swapwarden.policy.fleet import profile_status, rollout
from swapwarden.policy.fleet import progress as fleet
from swapwarden.policy.pressure import thresholds
from swapwarden.policy.profile.store import Entry
from swapwarden.policy.swap import requirements

from tests.unit.objects import named_profile

COUNTS = ("matched", "updated", "applied", "pending", "incompatible", "withoutAgent", "degraded", "requirementsUnmet")
NOTHING = dict.fromkeys(COUNTS, 0)
THEN, NOW = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


def entry(**fields: Any) -> Entry:
    defaults: dict[str, Any] = {"uid": "u", "version": 1, "generation": 3, "error": "", "status": {}}
    return Entry(**{"name": "p", "profile": named_profile(generation=2), **defaults, **fields})


def node(name: str, **fields: Any) -> fleet.Governed:
    """One that has applied its plan."""
    return fleet.Governed(**{"node": name, "applied": not fields.get("pending"), "degraded": "", **fields})


def nodes(count: int, **fields: Any) -> list[fleet.Governed]:
    return [node(f"node-{number:02}", **fields) for number in range(count)]


def build(
    which: Entry,
    governed: list[fleet.Governed],
    contested: list[profile_status.Contest],
    now: str,
    *,
    progress: rollout.RolloutProgress | None = None,
    stalled: bool = False,
    extended_resource: bool = False,
    eviction: bool = False,
) -> dict[str, Any]:
    """Return the status; by default no rollout is under way."""
    progress = progress or rollout.RolloutProgress(updated=len(governed), pending=0)
    overdue = {(waiting, True) for waiting in progress.waiting if stalled}
    judged = profile_status.Judged(which.uid, which.generation, which.profile, governed, contested, progress, overdue)
    rights = profile_status.Rights(extended_resource=extended_resource, eviction=eviction)
    return profile_status.build(which, judged, now, rights)


def conditions(status: dict[str, Any]) -> dict[str, tuple[str, str]]:
    api.status.ProfileStatus.model_validate(status)
    return {one["type"]: (one["status"], one["reason"]) for one in status["conditions"]}


def message(status: dict[str, Any], kind: str) -> str:
    return next(str(one["message"]) for one in status["conditions"] if one["type"] == kind)


def test_all_is_well() -> None:
    status = build(entry(), nodes(2), [], NOW)
    assert status["observedGeneration"] == 3
    assert status["nodes"] == {**NOTHING, "matched": 2, "updated": 2, "applied": 2}
    assert status["appliedGeneration"] == 3
    assert conditions(status) == {
        "Ready": ("True", "Applied"),
        "Progressing": ("False", "Complete"),
        "Conflicted": ("False", "NoConflict"),
        "Degraded": ("False", "AsExpected"),
    }
    assert {one["observedGeneration"] for one in status["conditions"]} == {3}


def test_nodes_with_unmet_requirements_are_named_once_by_an_event() -> None:
    requiring = entry(profile=named_profile(generation=2, require=requirements.Require(encrypted=True)))
    good = build(requiring, nodes(2), [], NOW)
    assert conditions(good)["RequirementsMet"] == ("True", "AllMet")
    lacking = build(requiring, [node("a"), node("b", unmet="encrypted: sda2")], [], NOW)
    assert conditions(lacking)["RequirementsMet"] == ("False", "NodesLack")
    assert message(lacking, "RequirementsMet").endswith(": b (encrypted: sda2)")
    assert lacking["nodes"]["requirementsUnmet"] == 1
    assert conditions(lacking)["Ready"] == ("True", "Applied"), "the node has its plan"
    assert conditions(lacking)["Degraded"] == ("False", "AsExpected"), "it must not stop a rollout"
    assert [reason for _, reason, _ in told(good, lacking)] == ["RequirementUnmet"]
    assert told(lacking, lacking) == []


def test_a_profile_without_nodes_is_ready_and_applied_by_none() -> None:
    status = build(entry(), [], [], NOW)
    assert conditions(status)["Ready"] == ("True", "NoNodes")
    assert status["appliedGeneration"] == 0


def test_nodes_that_are_waited_for_are_named_and_the_rest_counted() -> None:
    status = build(entry(), nodes(12, pending="why"), [], NOW)
    assert conditions(status)["Ready"] == ("False", "Applying")
    assert message(status, "Ready").startswith("0 of 12 nodes applied; pending: node-00 (why), node-01 (why), ")
    assert message(status, "Ready").endswith("node-09 (why) and 2 more")
    assert status["nodes"] == {**NOTHING, "matched": 12, "updated": 12, "pending": 12}


def test_each_node_counts_as_one_kind_and_degraded_ones_besides() -> None:
    found = [
        node("e-applied", degraded="Polling: no watch"),
        node("d-pending", pending="Draining: 1 cgroup", degraded="WriteFailed: no"),
        node("c-old", pending="Incompatible: v1", incompatible="NoCgroupV2: v1"),
        node("b-gone", has_agent=False),
        node("a-gone", pending="Incompatible: v1", incompatible="NoCgroupV2: v1", has_agent=False),
    ]
    status = build(entry(), found, [], NOW)
    counts = {
        "matched": 5,
        "updated": 5,
        "applied": 1,
        "pending": 1,
        "incompatible": 1,
        "withoutAgent": 2,
        "degraded": 2,
        "requirementsUnmet": 0,
    }
    assert status["nodes"] == counts
    assert message(status, "Ready") == (
        "1 of 5 nodes applied; pending: d-pending (Draining: 1 cgroup); without an agent: a-gone, b-gone;"
        " incompatible: c-old (NoCgroupV2: v1)"
    )
    assert message(status, "Degraded") == "d-pending (WriteFailed: no), e-applied (Polling: no watch)"


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ([node("a", pending="x"), node("b", has_agent=False), node("c", incompatible="x")], "Applying"),
        ([node("b", has_agent=False), node("c", incompatible="x")], "NoAgent"),
        ([node("c", incompatible="x"), node("d")], "Incompatible"),
    ],
)
def test_what_passes_by_itself_is_the_first_reason(found: list[fleet.Governed], reason: str) -> None:
    assert conditions(build(entry(), found, [], NOW))["Ready"] == ("False", reason)


def test_a_message_fits_whatever_agents_say() -> None:
    long = "x" * 5000
    kinds: list[dict[str, Any]] = [
        {"pending": long, "degraded": long},
        {"has_agent": False},
        {"incompatible": long},
    ]
    found = [node(f"{at}-{number}-{'n' * 240}", **kinds[at]) for at in range(3) for number in range(500)]
    contested = [profile_status.Contest(f"{number}-{'p' * 240}", f"{number}-{'n' * 240}") for number in range(500)]
    status = build(entry(), found, contested, NOW)
    conditions(status)
    assert all(len(one["message"]) < 16_000 for one in status["conditions"])
    assert message(status, "Ready").count(" and 490 more") == 3
    assert "..." in message(status, "Degraded")


def test_problems_of_a_node_are_in_the_status() -> None:
    status = build(entry(), nodes(1, degraded="WriteFailed: no"), [], NOW)
    assert conditions(status)["Degraded"] == ("True", "NodesDegraded")
    assert message(status, "Degraded") == "node-00 (WriteFailed: no)"
    assert status["nodes"]["degraded"] == 1


def test_settings_that_are_unsafe_for_a_node_count_as_degraded() -> None:
    found = [node("a", refused="vm.min_free_kbytes: too much"), node("b")]
    status = build(entry(), found, [], NOW)
    assert conditions(status)["Degraded"] == ("True", "SettingsRefused")
    assert message(status, "Degraded") == "a (SettingsRefused: vm.min_free_kbytes: too much)"
    assert status["nodes"]["degraded"] == profile_status.counted(found)[("degraded",)] == 1
    both = build(entry(), [*found, node("c", degraded="Polling: x")], [], NOW)
    assert conditions(both)["Degraded"] == ("True", "NodesDegraded")


def test_a_resource_that_this_controller_does_not_offer_is_in_the_status() -> None:
    asking = entry(profile=named_profile(extended_resource=True))
    status = build(asking, nodes(1, degraded="WriteFailed: no"), [], NOW)
    assert conditions(status)["Degraded"] == ("True", "NoExtendedResource")
    assert message(status, "Degraded").startswith(profile_status.NO_EXTENDED_RESOURCE)
    assert message(status, "Degraded").endswith("; node-00 (WriteFailed: no)")
    assert conditions(build(asking, nodes(1), [], NOW))["Degraded"] == ("True", "NoExtendedResource")
    assert conditions(build(asking, nodes(1), [], NOW, extended_resource=True))["Degraded"] == ("False", "AsExpected")


def test_evictions_that_this_controller_may_not_make_are_in_the_status() -> None:
    pressure = thresholds.Pressure("5%", "10%", 5, 40, 10)
    asking = entry(profile=named_profile(pressure=msgspec.structs.replace(pressure, enforce=True)))
    status = build(asking, nodes(1), [], NOW)
    assert conditions(status)["Degraded"] == ("True", "NoEviction")
    assert "eviction: Enforce in the chart" in message(status, "Degraded")
    assert conditions(build(asking, nodes(1), [], NOW, eviction=True))["Degraded"] == ("False", "AsExpected")
    observing = entry(profile=named_profile(pressure=pressure))
    assert conditions(build(observing, nodes(1), [], NOW))["Degraded"] == ("False", "AsExpected")


def test_an_invalid_version_says_what_stays_in_force() -> None:
    status = build(entry(error="spec.swap: bad"), nodes(1), [], NOW)
    assert conditions(status)["Ready"] == ("False", "Invalid")
    assert message(status, "Ready") == f"spec.swap: bad; {profile_status.STAYS_IN_FORCE.format(2)}"
    never = build(entry(error="spec.swap: bad", profile=None), [], [], NOW)
    assert message(never, "Ready") == f"spec.swap: bad; {profile_status.NONE_IN_FORCE}"


def test_a_conflict_names_the_others_and_the_nodes() -> None:
    contested = [profile_status.Contest("q", "node-2"), profile_status.Contest("q", "node-1")]
    status = build(entry(), [], contested, NOW)
    assert conditions(status)["Conflicted"] == ("True", "SamePriority")
    assert message(status, "Conflicted") == profile_status.SAME_PRIORITY.format("q", "node-1, node-2")


def test_a_condition_keeps_its_time_until_it_changes() -> None:
    first = build(entry(), nodes(1), [], THEN)
    second = build(entry(status=first), nodes(1, pending="why"), [], NOW)
    times = {one["type"]: one["lastTransitionTime"] for one in second["conditions"]}
    assert times == {"Ready": NOW, "Progressing": THEN, "Conflicted": THEN, "Degraded": THEN}
    assert build(entry(status=first), nodes(1), [], NOW) == first


@pytest.mark.parametrize(
    ("progress", "stalled", "expected", "says"),
    [
        (rollout.RolloutProgress(4, 0), False, ("False", "Complete"), "4 of 4 nodes have generation 2"),
        (rollout.RolloutProgress(1, 3), False, ("True", "RollingOut"), "1 of 4 nodes have generation 2"),
        (rollout.RolloutProgress(1, 2, next=("c",)), False, ("True", "RollingOut"), "1 of 4 nodes have generation 2"),
        (
            rollout.RolloutProgress(1, 3, waiting=("a",)),
            False,
            ("True", "Waiting"),
            "1 of 4 nodes have generation 2; waiting for a",
        ),
        (rollout.RolloutProgress(1, 3, waiting=("a",)), True, ("False", "Stopped"), "these do not answer: a"),
        (
            rollout.RolloutProgress(1, 3, asking=("b",)),
            False,
            ("True", "Asking"),
            "asking what the change takes from pods on b",
        ),
        (rollout.RolloutProgress(1, 2, paused=True), False, ("False", "Paused"), "while rollout.paused is true"),
        (rollout.RolloutProgress(1, 2, paused=True, waiting=("a",)), False, ("True", "Waiting"), "waiting for a"),
        (rollout.RolloutProgress(3, 0, paused=True), False, ("False", "Complete"), "3 of 3 nodes"),
        (
            rollout.RolloutProgress(1, 1, held=("b",)),
            False,
            ("False", "Held"),
            "pods would lose swap that they use on b",
        ),
        (rollout.RolloutProgress(1, 2, held=("b",)), False, ("True", "RollingOut"), "1 of 3 nodes have generation 2"),
        (
            rollout.RolloutProgress(2, 2, waiting=("a",), stopped_by=("b",)),
            False,
            ("False", "Stopped"),
            "while these do worse: b",
        ),
    ],
)
def test_how_far_a_rollout_is(
    progress: rollout.RolloutProgress, stalled: bool, expected: tuple[str, str], says: str
) -> None:
    status = build(entry(), [], [], NOW, progress=progress, stalled=stalled)
    assert conditions(status)["Progressing"] == expected
    assert says in message(status, "Progressing")


def test_the_cost_of_a_change_is_in_the_status() -> None:
    status = build(entry(), [], [], NOW, progress=rollout.RolloutProgress(1, 3, taken=rollout.Taken(2, 5, 2**30)))
    api.status.ProfileStatus.model_validate(status)
    assert status["pendingReclaim"] == {"nodes": 2, "pods": 5, "bytes": 2**30}


def told(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, str, str]]:
    found = list(profile_status.notices(entry(status=before), after))
    assert {(notice.regarding.kind, notice.regarding.name) for notice in found} <= {("NodeSwapProfile", entry().name)}
    return [(notice.type, notice.reason, notice.message) for notice in found]


def test_an_applied_generation_is_reported_once() -> None:
    first = build(entry(), nodes(2), [], THEN)
    assert told({}, first) == [("Normal", "Applied", "all 2 nodes applied generation 3")]
    joined = build(entry(status=first), [*nodes(2), node("new", pending="why")], [], NOW)
    assert conditions(joined)["Ready"] == ("False", "Applying")
    assert told(first, joined) == []
    again = build(entry(status=joined), [*nodes(2), node("new")], [], NOW)
    assert conditions(again)["Ready"] == ("True", "Applied")
    assert told(joined, again) == [], "more nodes are no news"
    changed = build(entry(status=again, generation=4), nodes(2), [], NOW)
    assert told(again, changed) == [("Normal", "Applied", "all 2 nodes applied generation 4")]


def test_a_fault_is_reported_when_it_begins() -> None:
    fine = build(entry(), nodes(2), [], THEN)
    contested = [profile_status.Contest("q", "node-00")]
    bad = build(entry(status=fine), nodes(1, degraded="Polling: no"), contested, NOW)
    assert told(fine, bad) == [
        ("Warning", "Conflicted", profile_status.SAME_PRIORITY.format("q", "node-00")),
        ("Warning", "NodesDegraded", "node-00 (Polling: no)"),
    ]
    contested.append(profile_status.Contest("q", "node-01"))
    worse = build(entry(status=bad), nodes(2, degraded="Polling: no"), contested, NOW)
    assert told(bad, worse) == [], "it goes on"
    better = build(entry(status=worse), nodes(2), [], NOW)
    assert told(worse, better) == []
    assert [reason for _, reason, _ in told(better, bad)] == ["Conflicted", "NodesDegraded"], "it begins again"


def test_each_invalid_version_is_reported_once() -> None:
    first = build(entry(error="spec: bad"), nodes(1), [], THEN)
    assert told({}, first) == [("Warning", "Invalid", f"spec: bad; {profile_status.STAYS_IN_FORCE.format(2)}")]
    assert told(first, build(entry(error="spec: bad", status=first), nodes(2), [], NOW)) == []
    next_one = build(entry(error="spec: bad", status=first, generation=4), nodes(1), [], NOW)
    assert [reason for _, reason, _ in told(first, next_one)] == ["Invalid"]


def test_a_status_of_an_older_controller_is_no_news_but_for_what_it_could_not_say() -> None:
    status = build(entry(), nodes(1, degraded="Polling: no"), [], THEN)
    del status["appliedGeneration"]
    after = build(entry(status=status), nodes(1, degraded="Polling: no"), [], NOW)
    assert [reason for _, reason, _ in told(status, after)] == ["Applied"]


def test_nodes_are_counted_by_state() -> None:
    nodes = [
        fleet.Governed("a", applied=True, degraded=""),
        fleet.Governed("b", applied=False, degraded="WriteFailed: x", pending="later"),
        fleet.Governed("c", applied=False, degraded="", incompatible="NoSwap: x", unmet="encrypted: no"),
        fleet.Governed("d", applied=False, degraded="", has_agent=False),
    ]
    assert profile_status.counted(nodes) == {
        ("applied",): 1,
        ("pending",): 1,
        ("incompatible",): 1,
        ("without_agent",): 1,
        ("degraded",): 1,
        ("requirements_unmet",): 1,
    }
