"""The containers that are remembered for an agent that connects later."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some
from swapwarden.nri import inventory, messages
from swapwarden.nri.inventory import SANDBOX, Item


def pod(uid: str, sandbox: str) -> messages.PodSandbox:
    return messages.PodSandbox(sandbox, uid, None, None, "")


def container(name: str, sandbox: str) -> messages.RuntimeContainer:
    return messages.RuntimeContainer(f"{sandbox}-{name}", sandbox, name, "5", None)


@pytest.fixture
def held() -> inventory.RuntimeInventory:
    made = inventory.RuntimeInventory()
    made.put("a", SANDBOX, Item("sandbox", None, None))
    made.put("a", "app", Item("first", "0", "7"))
    return made


def ids(held: inventory.RuntimeInventory) -> set[tuple[str, str, str]]:
    return {(uid, name, item.id) for uid, name, item in held.items()}


def test_a_restarted_container_replaces_the_one_before_and_outlives_its_removal(
    held: inventory.RuntimeInventory,
) -> None:
    held.put("a", "app", Item("second", "0", "7"))
    held.remove("a", "app", "first")
    assert ids(held) == {("a", SANDBOX, "sandbox"), ("a", "app", "second")}
    held.remove("a", "app", "second")
    assert ids(held) == {("a", SANDBOX, "sandbox")}


def test_the_end_of_a_sandbox_is_the_end_of_its_pod(held: inventory.RuntimeInventory) -> None:
    held.put("a", SANDBOX, Item("second", None, None))
    held.remove("a", SANDBOX, "sandbox")
    assert len(ids(held)) == 2
    held.remove("a", SANDBOX, "second")
    assert ids(held) == set()


def test_a_new_value_is_recorded(held: inventory.RuntimeInventory) -> None:
    held.set_value("first", "9")
    held.set_value("unknown", "1")
    assert ("a", "app", Item("first", "9", "7")) in list(held.items())


def test_the_runtimes_list_replaces_all(held: inventory.RuntimeInventory) -> None:
    held.replace([pod("b", "s1"), pod("c", "s2")], [container("x", "s2"), container("lost", "s3")])
    assert ids(held) == {("b", SANDBOX, "s1"), ("c", SANDBOX, "s2"), ("c", "x", "s2-x")}
    assert held.omitted == 1


def test_bounds_of_pods_and_containers() -> None:
    held = inventory.RuntimeInventory()
    held.replace([pod(f"u{number}", f"s{number}") for number in range(inventory.MAX_PODS + 5)], [])
    assert len(ids(held)) == inventory.MAX_PODS
    for number in range(inventory.MAX_CONTAINERS + 5):
        held.put("u0", f"name-{number}", Item("id", None, None))
    assert held.omitted == 5 + 6
    for uid in map("u{}".format, range(1, 100)):
        for number in range(200):
            held.put(uid, f"name-{number}", Item("id", None, None))
    assert len(ids(held)) == inventory.MAX_ITEMS
    held.remove("u0", SANDBOX, "s0")
    held.put("new", SANDBOX, Item("id", None, None))
    assert ("new", SANDBOX, "id") in ids(held)


NAMES = some.sampled_from((SANDBOX, "x", "y"))
STEPS = some.tuples(some.booleans(), some.sampled_from("abc"), NAMES, some.sampled_from("12"))


@given(some.lists(STEPS))
def test_room_is_given_back(steps: list[tuple[bool, str, str, str]]) -> None:
    held = inventory.RuntimeInventory()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inventory, "MAX_ITEMS", room := 12)
        for adds, uid, name, which in steps:
            if adds:
                held.put(uid, name, Item(which, None, None))
            else:
                held.remove(uid, name, which)
        left = len(ids(held))
        for number in range(room):
            held.put("new", str(number), Item("id", None, None))
    assert len(ids(held)) == room
    assert held.omitted == left
