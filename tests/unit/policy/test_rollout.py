from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.policy import rollout
from swapwarden.policy.rollout import Member, Progress, Taken


def old(*names: str) -> list[Member]:
    return [Member(name, updated=False) for name in names]


def new(*names: str) -> list[Member]:
    return [Member(name, updated=True) for name in names]


@pytest.mark.parametrize(
    ("text", "members", "expected"),
    [("25%", 100, 25), ("25%", 7, 1), ("25%", 1, 1), ("1%", 0, 1), ("100%", 7, 7), ("3", 100, 3), ("3", 1, 3)],
)
def test_how_many_may_be_under_way(text: str, members: int, expected: int) -> None:
    assert rollout.limit(text, members) == expected


def test_a_wave_is_as_large_as_allowed() -> None:
    assert rollout.progress(old("d", "c", "b", "a"), "2") == Progress(updated=0, pending=2, next=("a", "b"))


def test_who_has_not_answered_holds_its_place() -> None:
    members = [Member("a", updated=True, answered=False), *new("b"), *old("c", "d")]
    assert rollout.progress(members, "1") == Progress(updated=2, pending=2, waiting=("a",))
    assert rollout.progress(members, "2") == Progress(updated=2, pending=1, next=("c",), waiting=("a",))


def test_one_that_does_worse_stops_it() -> None:
    members = [Member("a", updated=True, degraded="WriteFailed"), *new("b"), *old("c", "d")]
    assert rollout.progress(members, "3") == Progress(updated=2, pending=2, stopped_by=("a",))


def test_nothing_stops_what_has_reached_all() -> None:
    members = [Member("a", updated=True, degraded="WriteFailed"), *new("b")]
    assert rollout.progress(members, "1") == Progress(updated=2, pending=0)


def test_all_at_once() -> None:
    members = [Member("a", updated=True, degraded="WriteFailed"), *old("b", "c"), Member("d", False, answered=False)]
    assert rollout.progress(members, "100%") == Progress(updated=1, pending=0, next=("b", "c", "d"))


def test_nodes_without_an_agent_wait_for_nobody_and_nobody_for_them() -> None:
    members = [Member("a", updated=True, silent=True, answered=False, degraded="old news"), *old("c", "d")]
    assert rollout.progress(members, "1") == Progress(updated=1, pending=1, next=("c",))
    silent = [Member(f"s{number}", updated=True, silent=True) for number in range(12)]
    assert rollout.progress([*silent, *old("a", "b", "c", "d")], "25%").next == ("a",)


def test_nodes_that_did_badly_before_come_last() -> None:
    bad = [Member("a", updated=False, degraded="x"), Member("b", updated=False, answered=False)]
    assert rollout.progress([*bad, *old("c", "d")], "1").next == ("c",)
    waiting = Member("c", updated=True, answered=False)
    assert rollout.progress([*bad, waiting, *new("d")], "2") == Progress(updated=2, pending=2, waiting=("c",))
    assert rollout.progress([*bad, *new("c", "d")], "1") == Progress(updated=2, pending=0, next=("a", "b"))


def test_nobodys_turn_comes_before_it_is_known_what_it_takes() -> None:
    members = [Member("a", updated=False, asked=False), Member("b", updated=False, pods=2, bytes=10), *old("c")]
    found = rollout.progress(members, "1")
    assert (found.asking, found.next, found.taken) == (("a",), ("b",), Taken(1, 2, 10))
    assert rollout.progress([members[0]], "1").next == ()
    assert rollout.progress([members[0]], "100%").next == ()
    assert rollout.progress([members[0]], "1", overdue=True).next == ("a",)


def test_nodes_with_swap_in_use_are_held_if_asked() -> None:
    using, unknown = Member("a", updated=False, pods=2), Member("b", updated=False, asked=False, answered=False)
    for most in ("1", "100%"):
        found = rollout.progress([using, unknown, *old("c")], most, hold=True)
        assert (found.held, found.next, found.pending) == (("a", "b"), ("c",), 2)
        assert rollout.progress([using, unknown], most, hold=True).next == ()
        assert rollout.progress([using], most).next == ("a",)


MEMBERS = st.lists(
    st.builds(
        Member,
        node=st.text("abcdef", min_size=1, max_size=3),
        updated=st.booleans(),
        answered=st.booleans(),
        degraded=st.sampled_from(["", "bad"]),
    ),
    max_size=12,
    unique_by=lambda member: member.node,
)


@given(MEMBERS, st.sampled_from(["1", "2", "5", "25%", "50%"]))
def test_healthy_nodes_never_move_beyond_the_limit(members: Sequence[Member], most: str) -> None:
    found = rollout.progress(members, most)
    allowed = rollout.limit(most, len(members))
    by_name = {member.node: member for member in members}
    healthy = [
        name
        for name in found.next
        if by_name[name].answered and not by_name[name].degraded and not by_name[name].silent
    ]
    if allowed < len(members):
        assert len(healthy) + min(len(found.waiting), allowed) <= allowed
    assert found.updated + found.pending + len(found.next) == len(members)


@given(MEMBERS, st.sampled_from(["1", "2", "25%", "100%"]))
def test_where_all_answer_and_do_well_it_ends(members: Sequence[Member], most: str) -> None:
    left = {member.node: Member(member.node, updated=False) for member in members}
    for _ in range(len(left) + 1):
        found = rollout.progress(left.values(), most)
        if not found.pending and not found.next:
            break
        assert found.next
        for name in found.next:
            left[name] = Member(name, updated=True)
    assert all(member.updated for member in left.values())
