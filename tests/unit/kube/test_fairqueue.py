from __future__ import annotations

import collections

from hypothesis import given
from hypothesis import strategies as st
from swapwarden.kube import events

SIZE = 12


@given(st.lists(st.sampled_from("aaaabc") | st.just("-"), max_size=80), st.integers(3, SIZE))
def test_nobody_within_its_share_loses_an_entry(steps: list[str], size: int) -> None:
    """Which is the size of the queue, shared among all that ever used it."""
    queue = events.FairQueue[int, str](size)
    kept: dict[str, list[int]] = collections.defaultdict(list)
    for number, owner in enumerate(steps):
        if owner == "-":
            if queue:
                key, found = queue.pop()
                assert key in kept[found]
                kept[found].remove(key)
            continue
        lost = not queue.put(owner, number, owner)
        kept[owner].append(number)
        for each, entries in kept.items():
            there = [key for key in entries if queue.get(each, key) is not None]
            assert lost or there == entries
            assert there == entries or len(entries) > size // 3
            kept[each] = there
        assert len(queue) == sum(map(len, kept.values())) <= size


def test_owners_take_turns() -> None:
    queue = events.FairQueue[str, None](SIZE)
    for key in ("a1", "a2", "a3", "b1", "c1", "c2"):
        queue.put(key[0], key, None)
    assert [queue.pop()[0] for _ in range(6)] == ["a1", "b1", "c1", "a2", "c2", "a3"]


def test_where_all_have_one_entry_nobody_loses_it() -> None:
    queue = events.FairQueue[str, None](3)
    assert all(queue.put(key, key, None) for key in "abc")
    assert not queue.put("d", "d", None)
    assert [queue.pop()[0] for _ in range(3)] == list("abc")


def test_in_a_full_queue_the_newest_of_who_has_most_makes_room() -> None:
    queue = events.FairQueue[str, str](4)
    for key in ("a1", "a2", "a3", "a4"):
        assert queue.put("a", key, key)
    assert not queue.put("a", "a5", "a5"), "it has its share already"
    assert not queue.put("b", "b1", "b1"), "one is lost for it"
    assert not queue.put("b", "b2", "b2"), "another one"
    assert not queue.put("b", "b3", "b3"), "the share of two is two"
    assert len(queue) == 4
    assert [key for key in ("a1", "a2", "a3", "a4", "b1", "b2") if queue.get(key[0], key)] == ["a1", "a2", "b1", "b2"]
    assert [queue.pop()[0] for _ in range(4)] == ["a1", "b1", "a2", "b2"]
    assert not queue
