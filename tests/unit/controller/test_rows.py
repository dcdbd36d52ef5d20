from __future__ import annotations

import msgspec
import pytest
from swapwarden.api import names, state
from swapwarden.controller import rows

BODY = {
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
        "profile": {"name": "p", "generation": 3},
        "pods": {"x": {"reason": "PolicyDisabled", "swapMax": "0"}},
    },
    "status": {
        "observedGeneration": 4,
        "facts": {"cgroupVersion": 2, "swapController": True, "swapBytes": 1, "memoryBytes": 2},
        "conditions": [
            {"type": "Applied", "status": "True", "reason": "AsSpecified"},
            {"type": "Degraded", "status": "True", "reason": "Polling", "message": "no watch"},
        ],
    },
}


def test_what_is_kept_of_a_state() -> None:
    row = rows.decode(msgspec.json.encode(BODY))
    assert (row.name, row.uid, row.version, row.owner, row.generation) == ("n", "u", 17, "node-uid", 4)
    assert (row.epoch, row.profile, row.observed) == (2, state.ProfileRef("p", 3), 4)
    assert row.applied
    assert row.degraded == "Polling: no watch"
    assert row.facts is not None
    assert row.facts.memory_bytes == 2
    found = rows.spec(row)
    assert isinstance(found, state.StateSpec)
    assert found.pods == {"x": state.PodState(reason=names.Reason.POLICY_DISABLED, swap_max="0")}


def test_a_fresh_state_has_no_status() -> None:
    row = rows.decode(msgspec.json.encode({key: value for key, value in BODY.items() if key != "status"}))
    assert (row.observed, row.facts, row.applied, row.degraded) == (0, None, False, "")


def test_a_spec_of_another_version_stays_comparable() -> None:
    spec = {"epoch": 2, "profile": {"name": "p"}, "pods": {"x": {"reason": "FromTheFuture"}}}
    assert rows.spec(rows.decode(msgspec.json.encode({**BODY, "spec": spec}))) == spec


def test_what_is_no_state_is_refused() -> None:
    with pytest.raises(msgspec.MsgspecError):
        rows.decode(b'{"metadata": {"name": 3}}')
