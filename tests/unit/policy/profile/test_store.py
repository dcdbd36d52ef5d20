from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from swapwarden.api import decoding, names, state
from swapwarden.policy.observed import revisions
from swapwarden.policy.profile.store import ProfileStore, Replaced

from tests.unit.objects import profile_object

LIMITED = {"behavior": "LimitedSwap"}


@pytest.fixture
def store() -> ProfileStore:
    return ProfileStore()


def test_an_object_becomes_a_profile(store: ProfileStore) -> None:
    store.offer(profile_object(swap=LIMITED, generation=3))
    assert store.valid()["p"].swap.behavior is names.Behavior.LIMITED_SWAP
    assert store.valid()["p"].generation == 3
    assert store.entries["p"].error == ""


def test_the_newest_version_counts_from_any_source(store: ProfileStore) -> None:
    store.offer(profile_object(version=7, swap=LIMITED))
    store.offer(profile_object(version=6))
    assert store.valid()["p"].swap.behavior is names.Behavior.LIMITED_SWAP


def test_a_version_that_cannot_be_understood_leaves_the_last_one_in_force(store: ProfileStore) -> None:
    store.offer(profile_object(version=1, swap=LIMITED))
    store.offer(profile_object(version=2, generation=2, swap={"behavior": "Newfangled"}, fromTheFuture=1))
    assert store.valid()["p"].swap.behavior is names.Behavior.LIMITED_SWAP
    assert store.entries["p"].generation == 2
    assert "spec.swap.behavior" in store.entries["p"].error
    assert "fromTheFuture" in store.entries["p"].error
    store.offer(profile_object(version=3, generation=3))
    assert store.entries["p"].error == ""


def test_an_object_that_never_was_valid_governs_nothing(store: ProfileStore) -> None:
    store.offer(profile_object(priority="high"))
    assert store.valid() == {}
    assert "spec.priority" in store.entries["p"].error


def test_fields_of_another_versions_status_do_no_harm(store: ProfileStore) -> None:
    store.offer({**profile_object(), "status": {"fromTheFuture": 1}})
    assert store.valid().keys() == {"p"}
    assert store.entries["p"].status == {"fromTheFuture": 1}


def being_deleted(version: int, generation: int, **spec: Any) -> dict[str, Any]:
    """As the API server has it: it raises the generation where it begins a deletion."""
    found = profile_object(version=version, generation=generation, **spec)
    found["metadata"]["deletionTimestamp"] = "2026-01-02T00:00:00Z"
    return found


def test_one_that_is_being_deleted_selects_no_node_and_is_remembered(store: ProfileStore) -> None:
    store.offer(profile_object(version=1, generation=1))
    store.offer(profile_object(version=2, generation=2, swap=LIMITED))
    store.offer(being_deleted(3, 3, swap=LIMITED, rollout={"maxUnavailable": 7}))
    assert store.valid() == {}
    assert store.ending()["p"].max_unavailable == "7", "how many may leave at once can be changed meanwhile"
    assert generations(store) == [(2, LIMITED_SWAP), (1, KUBELET)], "nobody is to follow the generation of the end"
    assert [each.generation for each in store.entries["p"].needed({1})] == [2, 1]


def test_one_that_is_being_deleted_is_remembered_by_who_has_just_come(store: ProfileStore) -> None:
    store.offer(being_deleted(3, 3, swap=LIMITED))
    store.set_stored([kept(2, swap=LIMITED), kept(1)])
    assert (store.valid(), set(store.ending())) == ({}, {"p"})
    assert generations(store) == [(2, LIMITED_SWAP), (1, KUBELET)]


def test_a_deleted_profile_stays_deleted(store: ProfileStore) -> None:
    store.offer(profile_object(version=1))
    store.remove("p", "uid-of-p")
    store.offer(profile_object(version=2))
    assert store.valid() == {}


def test_the_late_deletion_of_an_older_object_does_not_hit_its_namesake(store: ProfileStore) -> None:
    store.offer(profile_object(version=5, uid="new"))
    store.remove("p", "old")
    assert store.valid().keys() == {"p"}


def test_a_list_shows_changes_that_a_watch_has_missed(store: ProfileStore) -> None:
    store.offer(profile_object("gone", version=1))
    store.offer(profile_object("newer-than-the-list", version=9))
    store.offer(profile_object("replaced", version=2, uid="old"))
    store.replace([profile_object("came", version=3), profile_object("replaced", version=4, uid="new")], version=5)
    assert store.valid().keys() == {"newer-than-the-list", "came", "replaced"}
    assert store.entries["replaced"].uid == "new"


def generations(store: ProfileStore) -> list[tuple[int, names.Behavior]]:
    return [(each.generation, each.profile.swap.behavior) for each in store.entries["p"].revisions]


KUBELET, LIMITED_SWAP, NO_SWAP = names.Behavior.KUBELET, names.Behavior.LIMITED_SWAP, names.Behavior.NO_SWAP


def test_what_a_profile_said_before_is_remembered(store: ProfileStore) -> None:
    store.offer(profile_object(version=1))
    store.offer(profile_object(version=2, generation=2, swap=LIMITED))
    assert generations(store) == [(2, LIMITED_SWAP), (1, KUBELET)]
    assert set(store.history()) == {state.ProfileRef("p", 1), state.ProfileRef("p", 2)}


def kept(generation: int, uid: str = "uid-of-p", **spec: Any) -> revisions.Stored:
    """A ControllerRevision of a profile."""
    return revisions.Stored(
        f"nsp-{uid}-{generation}", f"uid-{generation}", uid, generation, {"nodeSelector": {}, **spec}
    )


def test_stored_generations_are_known(store: ProfileStore) -> None:
    store.offer(profile_object(generation=4, swap=LIMITED))
    others = [kept(2, fromTheFuture=True), kept(3, uid="another"), msgspec.structs.replace(kept(3), spec=None)]
    assert store.set_stored([kept(1, swap={"behavior": "NoSwap"}), *others])
    assert generations(store) == [(4, LIMITED_SWAP), (1, NO_SWAP)]
    assert [each.stored for each in store.entries["p"].revisions] == [False, True]
    store.offer(profile_object(generation=5, version=2))
    assert generations(store)[-1] == (1, NO_SWAP), "what the object is like later says nothing of its past"


def test_a_forged_revision_changes_no_known_generation(store: ProfileStore) -> None:
    """Its writer is not certain: a generation that this process has read counts as it was read."""
    store.offer(profile_object(generation=1))
    store.offer(profile_object(version=2, generation=2, swap=LIMITED))
    assert not store.set_stored([kept(1, swap=LIMITED), kept(2, swap=LIMITED)])
    assert generations(store) == [(2, LIMITED_SWAP), (1, KUBELET)]
    assert [each.stored for each in store.entries["p"].revisions] == [True, False]
    store.set_stored([])
    assert [each.stored for each in store.entries["p"].revisions] == [False, False], "somebody deleted it"


def test_of_generations_without_a_revision_only_the_newest_are_known(store: ProfileStore) -> None:
    store.offer(profile_object(version=1, generation=1))
    store.set_stored([kept(1)])
    for number in range(2, 20):
        store.offer(profile_object(version=number, generation=number))
    assert [number for number, _ in generations(store)] == [19, 18, 17, 16, 15, 14, 13, 12, 11, 10, 1]


def test_a_namesake_has_no_past(store: ProfileStore) -> None:
    store.offer(profile_object(version=1, generation=1, uid="first"))
    store.offer(profile_object(version=2, generation=5, uid="second", swap=LIMITED))
    assert generations(store) == [(5, LIMITED_SWAP)]


def test_unneeded_generations_are_forgotten(store: ProfileStore) -> None:
    for number in range(1, 6):
        store.offer(profile_object(version=number, generation=number))
    entry = store.entries["p"]
    assert [each.generation for each in entry.needed({2})] == [5, 4, 2]
    assert [each.generation for each in entry.needed(())] == [5, 4], "one for a controller that lacks the newest"
    store.forget("p", entry.needed({2}))
    assert [number for number, _ in generations(store)] == [5, 4, 2]


NEWER = {"behavior": "Newfangled"}


def test_a_new_process_continues_with_the_last_version_that_it_understands(
    store: ProfileStore,
) -> None:
    store.offer(profile_object(generation=4, swap=NEWER))
    assert store.valid() == {}
    store.set_stored([kept(3, swap=NEWER), kept(2, swap=LIMITED), kept(1)])
    assert store.valid()["p"].swap.behavior is names.Behavior.LIMITED_SWAP
    assert store.valid()["p"].generation == 2
    assert "spec.swap.behavior" in store.entries["p"].error
    assert [each.generation for each in store.entries["p"].needed(())] == [2, 1]


def test_a_version_that_was_missed_counts_where_it_is_stored(store: ProfileStore) -> None:
    store.offer(profile_object(version=1, generation=1))
    store.offer(profile_object(version=3, generation=3, swap=NEWER))
    assert store.valid()["p"].generation == 1
    store.set_stored([kept(2, swap=LIMITED), kept(1)])
    assert store.valid()["p"].generation == 2


def test_revisions_of_later_generations_are_ignored(store: ProfileStore) -> None:
    """Of an object that was put back from a copy, generations begin at 1 again."""
    store.offer(profile_object(generation=1, swap=NEWER))
    store.set_stored([kept(7, swap=LIMITED), kept(1, swap=LIMITED)])
    assert store.valid() == {}
    assert store.history() == {}


def test_a_deep_revision_hides_no_other(store: ProfileStore) -> None:
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"a": deep}
    body = profile_object("q", generation=2)
    body["spec"]["swap"] = deep
    store.offer(body)
    store.offer(profile_object(generation=2))
    same: dict[str, Any] = {}
    for _ in range(100_000):
        same = {"a": same}
    past = [kept(2, "uid-of-q", swap=same), kept(1, "uid-of-q", swap=deep), kept(1, swap=LIMITED)]
    store.set_stored(past)
    assert generations(store) == [(2, KUBELET), (1, LIMITED_SWAP)]


def test_a_profile_that_cannot_be_taken_in_hides_no_other(store: ProfileStore) -> None:
    broken = profile_object("broken", uid="of-broken")
    broken["metadata"]["resourceVersion"] = "none"
    found = store.replace([broken, profile_object("sound", uid="of-sound")], version=5)
    assert (found.changed, list(found.failed), found.newer) == (True, ["broken"], 1)
    assert isinstance(found.failed["broken"], ValueError)
    assert store.entries.keys() == {"sound"}


def test_a_profile_that_is_as_deep_as_can_be_decoded_is_taken_in(store: ProfileStore) -> None:
    deepest = 0
    for depth in range(900, 1100):
        fields = '{"f:a":' * depth + "{}" + "}" * depth
        body = profile_object(f"p-{depth}", uid=f"uid-{depth}")
        text = json.dumps(body).replace('{"manager": "kubectl"}', fields).encode()
        decoded = decoding.decode(text, dict[str, Any])
        deepest = max(deepest, depth if decoded["metadata"]["managedFields"] else 0)
        store.offer(decoded)
    assert len(store.entries) == 200
    assert deepest > 900, "as deep as this Python can"


def test_a_store_says_whether_what_someone_saw_is_news(store: ProfileStore) -> None:
    body = profile_object(version=3)
    assert [store.offer(body), store.offer(body)] == [True, False]
    assert store.replace([body], version=4) == Replaced(changed=False, failed={})
    assert store.replace([], version=5) == Replaced(changed=True, failed={}, gone=1)
    assert not store.remove("p", "uid-of-p")
