from __future__ import annotations

from typing import Any

import msgspec
import pytest
from swapwarden.api import names, state
from swapwarden.policy.observed import states

BODY: dict[str, Any] = {
    "apiVersion": names.API_VERSION,
    "kind": names.STATE_KIND,
    "metadata": {
        "name": "n",
        "uid": "u",
        "resourceVersion": "17",
        "generation": 4,
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "node-uid"}],
    },
    "spec": {
        "epoch": 2,
        "profileRef": {"name": "p", "generation": 3},
        "pods": {"x": {"reason": "PolicyDisabled", "swapMax": "0"}},
    },
    "status": {
        "observedGeneration": 4,
        "profileRef": {"name": "p", "generation": 2},
        "facts": {"cgroupVersion": 2, "swapController": True, "swapBytes": 1, "memoryBytes": 2},
        "conditions": [
            {"type": "Applied", "status": "True", "reason": "AsSpecified"},
            {"type": "Degraded", "status": "True", "reason": "Polling", "message": "no watch"},
        ],
    },
}


def test_a_state_is_kept_as_a_row() -> None:
    row = states.decode(msgspec.json.encode(BODY))
    assert (row.name, row.uid, row.version, row.owner, row.generation) == ("n", "u", 17, "node-uid", 4)
    assert (row.epoch, row.profile, row.observed) == (2, state.ProfileRef("p", 3), 4)
    assert row.acted == state.ProfileRef("p", 2)
    assert row.applied
    assert row.degraded == "Polling: no watch"
    assert (row.unapplied, row.incompatible) == ("", "")
    assert row.facts is not None
    assert row.facts.memory_bytes == 2
    found = states.spec(row)
    assert isinstance(found, state.StateSpec)
    assert found.pods == {"x": state.PodSettings(reason=names.Reason.POLICY_DISABLED, swap_max="0")}


def test_a_report_of_memory_pressure_is_kept_if_it_is_understood() -> None:
    report = {"seq": 3, "signal": "Headroom", "pods": [{"pod": "x", "swapBytes": 7}]}
    for found, kept in (
        (report, state.PressureReport(3, "Headroom", pods=[state.PressuredPod("x", swap_bytes=7)])),
        ({**report, "seq": "three"}, None),
        ({**report, "pods": [{"pod": "x", "swapBytes": -7}]}, None),
    ):
        status = {**BODY["status"], "pressure": found}
        row = states.decode(msgspec.json.encode({**BODY, "status": status}))
        assert (row.pressure, row.observed) == (kept, 4)


def test_a_fresh_state_has_no_status() -> None:
    row = states.decode(msgspec.json.encode({key: value for key, value in BODY.items() if key != "status"}))
    assert (row.observed, row.facts, row.applied, row.degraded) == (0, None, False, "")


@pytest.mark.parametrize(
    ("conditions", "unapplied", "incompatible", "settled", "enforced"),
    [
        ([("Applied", "False", "Draining")], "Draining: why", "", True, True),
        ([("Applied", "False", "WriteFailed")], "WriteFailed: why", "", False, False),
        ([("Applied", "Unknown", "AwaitingState")], "AwaitingState: why", "", False, False),
        ([("Applied", "False", "AccessDenied")], "AccessDenied: why", "", True, True),
        ([("Applied", "False", "Yielded")], "Yielded: why", "", True, True),
        (
            [("Compatible", "False", "NoCgroupV2"), ("Applied", "False", "Incompatible")],
            "Incompatible: why",
            "NoCgroupV2: why",
            True,
            False,
        ),
        (
            [("Compatible", "Unknown", "Searching"), ("Applied", "False", "NoPodTree")],
            "NoPodTree: why",
            "",
            False,
            False,
        ),
    ],
)
def test_why_a_state_is_not_applied(
    conditions: list[tuple[str, str, str]], unapplied: str, incompatible: str, *, settled: bool, enforced: bool
) -> None:
    told = [{"type": kind, "status": status, "reason": why, "message": "why"} for kind, status, why in conditions]
    row = states.decode(msgspec.json.encode({**BODY, "status": {**BODY["status"], "conditions": told}}))
    assert (row.applied, row.unapplied, row.incompatible) == (False, unapplied, incompatible)
    assert (row.settled, row.enforced) == (settled, enforced)


@pytest.mark.parametrize(("container", "enforced"), [("", False), ("app", True)])
def test_who_lowers_pods_limits_keeps_them_from_being_enforced_and_a_container_does_not(
    container: str, *, enforced: bool
) -> None:
    told = [{"type": "Applied", "status": "False", "reason": "Yielded", "message": "why"}]
    status = {"conditions": told, "violations": [{"pod": "x", "reason": "Yielded", "container": container}]}
    row = states.decode(msgspec.json.encode({**BODY, "status": {**BODY["status"], **status}}))
    assert (row.settled, row.enforced) == (True, enforced)


def test_a_spec_of_another_version_stays_comparable() -> None:
    spec = {"epoch": 2, "profileRef": {"name": "p"}, "pods": {"x": {"reason": "FromTheFuture"}}}
    assert states.spec(states.decode(msgspec.json.encode({**BODY, "spec": spec}))) == spec


@pytest.mark.parametrize(
    ("pod", "wanted"),
    [
        ({"reason": "PolicyDisabled", "swapMax": 0}, states.PodInSpec("PolicyDisabled")),
        ({"reason": {"rule": "New"}, "swapMax": "0"}, states.PodInSpec("", "0")),
        ({"reason": "Bounded", "swapMax": "5", "x": [1]}, states.PodInSpec("Bounded", "5")),
        ({"reason": None}, states.PodInSpec()),
        ({}, states.PodInSpec()),
    ],
)
def test_what_another_version_says_of_pods_is_read_as_far_as_it_is_known(
    pod: dict[str, Any], wanted: states.PodInSpec
) -> None:
    known = {"reason": "LimitedSwap", "swapMax": "4096"}
    spec = {"profileRef": {"name": "p"}, "mode": "Audit", "pods": {"x": pod, "y": known}}
    row = states.decode(msgspec.json.encode({**BODY, "spec": spec}))
    said = states.spec_view(row)
    assert said.pods == {"x": wanted, "y": states.PodInSpec("LimitedSwap", "4096")}
    assert (said.profile_ref.name, said.mode) == ("p", "Audit")
    assert states.reasons(row)["y"] == "LimitedSwap"


def test_a_status_of_a_newer_agent_is_read_as_far_as_it_is_known() -> None:
    status = {
        **BODY["status"],
        "facts": {**BODY["status"]["facts"], "hugepages": {"2Mi": 3}},
        "conditions": [*BODY["status"]["conditions"], {"type": "Novel", "status": "Unknown", "reason": "New", "x": 1}],
        "violations": [{"pod": "x", "reason": "FromTheFuture", "severity": 3}],
        "novel": True,
    }
    assert states.decode(msgspec.json.encode({**BODY, "status": status})) == states.decode(msgspec.json.encode(BODY))


def test_a_status_of_an_older_agent_may_lack_what_came_later() -> None:
    row = states.decode(msgspec.json.encode({**BODY, "status": {"observedGeneration": 4}}))
    assert (row.observed, row.applied, row.settled, row.facts) == (4, False, False, None)


NVME = {"name": "/dev/a", "type": "partition", "sizeBytes": 1, "encrypted": True}
STATUS: dict[str, Any] = {**BODY["status"], "conditions": BODY["status"]["conditions"][:1]}
FACTS = {**STATUS["facts"], "kernelRelease": "6.12", "devices": [NVME]}


@pytest.mark.parametrize(
    "changes",
    [
        {"facts": {**FACTS, "zswap": "on"}},
        {"violations": [{"pod": ["x"], "reason": "Draining"}]},
        {"violations": "none"},
        {"previewCost": {"profileRef": 3}},
        {"violationsOmitted": "many"},
    ],
)
def test_one_field_that_is_not_understood_voids_no_other(changes: dict[str, Any]) -> None:
    status = {**STATUS, "facts": FACTS}
    before, row = (
        states.decode(msgspec.json.encode({**BODY, "status": one})) for one in (status, {**status, **changes})
    )
    assert row.degraded.startswith("NotUnderstood: the agent's status: ")
    assert (row.observed, row.acted, row.applied, row.settled) == (4, before.acted, True, True)
    assert row.facts == before.facts


def test_only_invalid_entries_of_a_list_are_left_out() -> None:
    broken = {"type": "Degraded", "status": "Mostly", "reason": "Polling"}
    exposed = {"pod": "x", "swapBytes": 1, "causes": ["Systemd"]}
    status = {
        **STATUS,
        "conditions": [broken, *STATUS["conditions"][:1], 3],
        "exposures": [{**exposed, "since": 0}, exposed, None],
    }
    row = states.decode(msgspec.json.encode({**BODY, "status": status}))
    assert (row.observed, row.applied) == (4, True)
    assert [(each.pod, each.swap_bytes) for each in row.exposed_pods] == [("x", 1), ("x", 1)]


def test_a_device_that_is_not_understood_leaves_none_known() -> None:
    """The others would be all that there is, and be encrypted."""
    facts = {**FACTS, "devices": [NVME, {**NVME, "encrypted": "by halves"}]}
    row = states.decode(msgspec.json.encode({**BODY, "status": {**STATUS, "facts": facts}}))
    assert row.facts is not None
    assert (row.facts.devices, row.facts.kernel_release) == ([], "6.12")


@pytest.mark.parametrize(
    ("status", "observed"),
    [
        ({**STATUS, "facts": {**FACTS, "cgroupVersion": 3}}, 4),
        ({**STATUS, "facts": {"swapBytes": 1}}, 4),
        ({**STATUS, "facts": [1]}, 4),
        ({**STATUS, "facts": None, "observedGeneration": "4"}, 0),
        (None, 0),
        ("text", 0),
    ],
)
def test_facts_that_lack_what_decides_are_none(status: object, observed: int) -> None:
    row = states.decode(msgspec.json.encode({**BODY, "status": status}))
    assert (row.version, row.epoch, row.facts, row.observed) == (17, 2, None, observed)
    assert row.degraded.startswith("NotUnderstood: the agent's status: ")


def test_an_object_that_is_no_state_is_refused() -> None:
    with pytest.raises(msgspec.MsgspecError):
        states.decode(b'{"metadata": {"name": 3}}')


def test_what_only_verdicts_read_keeps_no_state_from_its_row() -> None:
    spec = {**BODY["spec"], "defaultReason": None, "mode": 3, "pods": {"x": None, "y": {"reason": "LimitedSwap"}}}
    row = states.decode(msgspec.json.encode({**BODY, "spec": spec}))
    assert (row.epoch, states.spec_view(row).pods) == (2, {"y": states.PodInSpec("LimitedSwap")})
