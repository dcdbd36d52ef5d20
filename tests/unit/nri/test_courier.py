"""Updates on connections of their own: when they are needed, and the order of their steps."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from swapwarden.nri import courier, messages, orders


@pytest.mark.parametrize(
    ("nri", "safe"),
    [
        ("", False),
        ("v0.12.0", False),
        ("v0.12.1-rc.1", False),
        ("v0.12.1-0.20260701000000-abcdefabcdef", False),
        ("v0.12.1", True),
        ("0.12.3", True),
        ("v0.12.5-3-gabcdef0", True),
        ("v0.13.0-rc.1", True),
        ("v1.0", True),
        ("(devel)", False),
        ("unknown", False),
        ("v0.12.x", False),
    ],
)
def test_only_a_runtime_without_the_fault_is_asked_for_updates(nri: str, safe: bool) -> None:
    assert courier.is_safe(nri) is safe


class Driven:
    """A courier whose connections are opened and have no peer."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.opened: list[courier.Lane] = []
        self.failed: list[list[str]] = []
        self.refuses = False

        def open_(lane: courier.Lane, _path: str, _registration: bytes) -> None:
            if self.refuses:
                raise ConnectionRefusedError
            lane.close()
            lane.socket = socket.socket()
            self.opened.append(lane)

        patch.setattr(courier.Lane, "open", open_)
        self.courier = courier.Courier("nri.sock", b"", lambda: self.now)

    def carry(self, **values: str) -> None:
        self.courier.carry(list(values.items()), self.failed.append)

    def tick(self) -> None:
        for lane in self.courier.lanes:
            lane.tick()


@pytest.fixture
def driven(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driven]:
    made = Driven(monkeypatch)
    yield made
    for lane in made.courier.lanes:
        lane.close()


def test_the_next_list_shows_whether_values_took_effect(driven: Driven) -> None:
    driven.carry(a="0", b="max", c="4096")
    driven.tick()
    first = driven.opened[0]
    assert driven.courier.synchronized(first, {"a": None, "b": "1", "c": "1"}) == messages.updates(
        [("a", "0"), ("b", "max"), ("c", "4096")]
    )
    second = driven.opened[1]
    assert second is not first
    assert first.socket is not None
    assert driven.failed == []
    assert driven.courier.synchronized(second, {"a": "0", "b": "1"}) == b""
    # One was not updated, one is gone.
    assert driven.failed == [["b", "c"]]
    assert first.socket is None
    driven.now += courier.LINGER_SECONDS
    driven.tick()
    assert (second.socket, len(driven.opened)) == (None, 2)


def test_the_connection_that_verifies_takes_the_next_values_along(driven: Driven) -> None:
    def go_on(failed: list[str]) -> None:
        driven.failed.append(failed)
        if len(driven.failed) == 1:
            driven.courier.carry([("b", "0")], go_on)

    driven.courier.carry([("a", "0")], go_on)
    driven.tick()
    driven.courier.synchronized(driven.opened[0], {})
    assert driven.courier.synchronized(driven.opened[1], {"a": "0"}) == messages.updates([("b", "0")])
    driven.courier.synchronized(driven.opened[2], {"b": "0"})
    assert driven.failed == [[], []]
    assert len(driven.opened) == 3


def test_a_connection_that_is_lost_or_late_before_its_list_is_a_failure(driven: Driven) -> None:
    driven.carry(a="0")
    driven.tick()
    driven.courier.ended(driven.opened[0])
    assert driven.failed == [["a"]]
    driven.carry(a="0")
    driven.tick()
    driven.now += courier.CARRY_SECONDS
    driven.tick()
    assert driven.failed == [["a"], ["a"]]
    assert [lane.socket for lane in driven.courier.lanes] == [None, None]


def test_a_connection_that_ends_after_its_answer_is_no_failure(driven: Driven) -> None:
    driven.carry(a="0")
    driven.tick()
    driven.courier.synchronized(driven.opened[0], {})
    driven.courier.ended(driven.opened[0])
    assert driven.failed == []
    driven.courier.synchronized(driven.opened[1], {"a": "0"})
    assert driven.failed == [[]]


def test_a_runtime_that_refuses_connections_fails_each_part_in_its_turn(driven: Driven) -> None:
    driven.refuses = True
    left = [["b"], ["c"]]

    def go_on(failed: list[str]) -> None:
        driven.failed.append(failed)
        if left:
            driven.courier.carry([(each, "0") for each in left.pop(0)], go_on)

    driven.courier.carry([("a", "0")], go_on)
    driven.tick()
    driven.tick()
    assert driven.failed == [["a"], ["b"], ["c"]]
    assert driven.courier.lanes[0].due() is None


def test_after_an_error_each_container_is_asked_for_by_itself() -> None:
    waiting = orders.Updates()
    waiting.add(1, {"a": "0", "b": "1", "c": "2"})
    assert waiting.next() == [("a", "0"), ("b", "1"), ("c", "2")]
    assert waiting.done("some failed", []) == []
    assert waiting.next() == [("a", "0")]
    assert waiting.done(None, []) == [("a", "0")]
    assert waiting.next() == [("b", "1")]
    assert waiting.done("it failed", []) == []
    assert waiting.next() == [("c", "2")]
    waiting.done(None, [])
    finished = waiting.finished()
    assert finished is not None
    assert finished.failed == {"b": "it failed"}
    # The next order is carried out in parts again.
    waiting.add(2, {"a": "0", "b": "1", "c": "2"})
    assert len(waiting.next(2)) == 2
