"""The store of the agent's decisions."""

from __future__ import annotations

import pytest
from swapwarden.nri import decide

ONE = decide.PodHolds(decide.Hold("1", at_most=False), {}, decided=True)
TWO = decide.PodHolds(decide.Hold("2", at_most=False), {}, decided=True)


@pytest.fixture
def store() -> decide.Decisions:
    made = decide.Decisions()
    made.put({"a": ONE, "b": ONE})
    return made


def test_earlier_decisions_hold_until_all_were_sent_again(store: decide.Decisions) -> None:
    store.begin()
    store.put({"a": TWO})
    assert (store.of("a"), store.of("b")) == (TWO, ONE)
    store.end()
    assert (store.of("a"), store.of("b")) == (TWO, None)


def test_an_interrupted_replacement_forgets_nothing(store: decide.Decisions) -> None:
    store.begin()
    store.put({"a": TWO})
    store.interrupt()
    store.end()
    assert (store.of("a"), store.of("b")) == (TWO, ONE)


def test_a_pod_that_is_gone_is_forgotten_at_any_time(store: decide.Decisions) -> None:
    store.remove(["a", "unknown"])
    store.begin()
    store.put({"b": TWO})
    store.remove(["b"])
    assert (store.of("a"), store.of("b")) == (None, None)
    store.end()
    assert store.of("b") is None


def test_more_decisions_than_a_node_can_have_are_refused(store: decide.Decisions) -> None:
    many = {name: ONE.default for name in map(str, range(1000)) if ONE.default}
    pod = decide.PodHolds(None, many, decided=True)
    fitting = decide.MAX_SETTINGS // 1001
    for number in range(fitting):
        store.put({f"uid-{number}": pod})
    with pytest.raises(ValueError, match="more than"):
        store.put({"more": pod})
    assert [store.of(uid) for uid in ("uid-1", "a", "more")] == [pod, ONE, None]
