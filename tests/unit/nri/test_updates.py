"""Orders to set values of running containers."""

from __future__ import annotations

from collections import deque

from swapwarden.nri import orders


def values(count: int, prefix: str = "c") -> dict[str, str]:
    return {f"{prefix}{number}": "0" for number in range(count)}


def test_orders_are_carried_out_in_turn_and_in_parts() -> None:
    waiting = orders.Updates()
    assert waiting.add(1, values(orders.PART + 1))
    assert waiting.add(2, values(1, "d"))
    first = waiting.next()
    assert [container for container, _ in first] == list(values(orders.PART))
    assert waiting.next() == []
    assert waiting.done(None, ["c3"]) == [each for each in first if each[0] != "c3"]
    assert waiting.finished() is None
    assert waiting.next() == [(f"c{orders.PART}", "0")]
    waiting.done("x" * 1000, [])
    finished = waiting.finished()
    assert finished is not None
    assert (finished.seq, set(finished.failed)) == (1, {"c3", f"c{orders.PART}"})
    assert max(map(len, finished.failed.values())) == orders.MAX_MESSAGE
    assert waiting.next() == [("d0", "0")]


def test_an_order_without_containers_is_carried_out_at_once() -> None:
    waiting = orders.Updates()
    waiting.add(5, {})
    assert waiting.next() == []
    assert waiting.finished() == orders.Order(5, deque(), {})


def test_the_rest_of_all_orders_fails() -> None:
    waiting = orders.Updates()
    waiting.add(1, values(orders.PART + 2))
    waiting.add(2, values(1, "d"))
    waiting.next()
    waiting.done(None, [])
    waiting.next()
    assert [(each.seq, set(each.failed)) for each in waiting.fail("gone")] == [
        (1, {f"c{orders.PART}", f"c{orders.PART + 1}"}),
        (2, {"d0"}),
    ]
    assert waiting.next() == []
    assert waiting.finished() is None


def test_orders_are_bounded() -> None:
    waiting = orders.Updates()
    assert [waiting.add(number, values(1)) for number in range(orders.MAX_ORDERS + 1)].count(False) == 1
