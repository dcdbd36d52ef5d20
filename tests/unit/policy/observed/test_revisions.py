from __future__ import annotations

from typing import Any

import msgspec
import pytest
from swapwarden.api import names
from swapwarden.policy.observed import revisions

DAEMON_SET = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u"}
SPEC = {"nodeSelector": {}, "swap": {"behavior": "NoSwap"}}


def wire(**fields: Any) -> revisions.WireRevision:
    """As the API server gives back what to_object() makes; `fields` are different."""
    found = revisions.to_object("p", "u", 3, SPEC)
    found["metadata"]["uid"] = "of-the-revision"
    return msgspec.json.decode(msgspec.json.encode({**found, **fields}), type=revisions.WireRevision)


def test_a_written_revision_is_read_again() -> None:
    assert revisions.project(wire()) == revisions.Stored("nsp-u-3", "of-the-revision", "u", 3, SPEC)


def test_the_garbage_collector_removes_it_with_its_profile() -> None:
    metadata = revisions.to_object("p", "u", 3, SPEC)["metadata"]
    [owner] = metadata["ownerReferences"]
    assert (owner["apiVersion"], owner["kind"]) == (names.API_VERSION, names.PROFILE_KIND)
    assert (owner["name"], owner["uid"]) == ("p", "u")
    # To set it takes a right that the controller has not (OwnerReferencesPermissionEnforcement).
    assert "blockOwnerDeletion" not in owner
    assert metadata["labels"][revisions.OWNER_LABEL] == "u"


def test_no_name_is_too_long() -> None:
    assert len(revisions.object_name("0123456789ab-0123-0123-0123-0123456789ab", 2**63)) < 253


@pytest.mark.parametrize(
    "fields",
    [
        {"revision": 4},
        {"metadata": {"name": "nsp-u-3", "uid": "x"}},
        {
            "metadata": {
                "name": "nsp-u-3",
                "uid": "x",
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u"}],
            }
        },
    ],
    ids=["its name says another generation", "nobody owns it", "a DaemonSet owns it"],
)
def test_a_revision_of_no_profile_is_passed_over(fields: dict[str, Any]) -> None:
    assert revisions.project(wire(**fields)) is None


@pytest.mark.parametrize(
    "data",
    [
        None,
        7,
        "text",
        [],
        {},
        {"apiVersion": names.API_VERSION},
        {"apiVersion": names.API_VERSION, "spec": 7},
        {"apiVersion": "swapwarden.dev/v2", "spec": SPEC},
        {"apiVersion": 1, "spec": SPEC},
    ],
)
def test_revisions_of_another_version_or_writer_are_known_and_unused(data: object) -> None:
    found = revisions.project(wire(data=data))
    assert found is not None
    assert (found.generation, found.spec) == (3, None)
