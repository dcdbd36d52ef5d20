from __future__ import annotations

from collections.abc import Iterable

import hypothesis
import msgspec
import pytest
from hypothesis import stateful
from hypothesis import strategies as st
from swapwarden.policy.fleet import rollout
from swapwarden.policy.fleet.rollout import NO_ANSWER, RolloutNode, RolloutProgress, Taken


def old(*names: str) -> list[RolloutNode]:
    return [RolloutNode(name, updated=False) for name in names]


def new(*names: str) -> list[RolloutNode]:
    return [RolloutNode(name, updated=True) for name in names]


def many(count: int, prefix: str = "n", **fields: object) -> list[RolloutNode]:
    return [RolloutNode(f"{prefix}-{number:03}", **{"updated": False, **fields}) for number in range(count)]  # type: ignore[arg-type]  # of whichever field


@pytest.mark.parametrize(
    ("text", "members", "expected"),
    [("25%", 100, 25), ("25%", 7, 1), ("25%", 1, 1), ("1%", 0, 1), ("100%", 7, 7), ("3", 100, 3), ("3", 1, 3)],
)
def test_how_many_may_be_under_way(text: str, members: int, expected: int) -> None:
    assert rollout.limit(text, members) == expected


def test_a_wave_is_as_large_as_allowed() -> None:
    assert rollout.progress(old("d", "c", "b", "a"), "2") == RolloutProgress(updated=0, pending=2, next=("a", "b"))


def test_a_node_that_has_not_answered_holds_its_place() -> None:
    members = [RolloutNode("a", updated=True, answered=False), *new("b"), *old("c", "d")]
    assert rollout.progress(members, "1") == RolloutProgress(updated=2, pending=2, waiting=("a",))
    assert rollout.progress(members, "2") == RolloutProgress(updated=2, pending=1, next=("c",), waiting=("a",))


def test_one_that_does_worse_stops_it() -> None:
    members = [RolloutNode("a", updated=True, degraded=("WriteFailed",)), *new("b"), *old("c", "d")]
    assert rollout.progress(members, "3") == RolloutProgress(updated=2, pending=2, stopped_by=("a",))


def test_one_that_does_as_badly_as_before_stops_nobody() -> None:
    was = RolloutNode("a", updated=True, degraded=("Polling",), before=("Polling",))
    assert rollout.progress([was, *old("b", "c")], "1").next == ("b",)
    for worse in ("StateRefused", "WriteFailed"):
        found = rollout.progress([msgspec.structs.replace(was, degraded=(worse,)), *old("b", "c")], "1")
        assert (found.stopped_by, found.next) == (("a",), ()), "something else is wrong now"


def test_nothing_stops_a_rollout_that_has_reached_all() -> None:
    members = [RolloutNode("a", updated=True, degraded=("WriteFailed",)), *new("b")]
    assert rollout.progress(members, "1") == RolloutProgress(updated=2, pending=0)


def test_all_at_once() -> None:
    members = [
        RolloutNode("a", updated=True, degraded=("WriteFailed",)),
        *old("b", "c"),
        RolloutNode("d", False, answered=False),
    ]
    found = rollout.progress(members, "100%")
    assert (found.updated, found.pending, found.next, found.stopped_by) == (1, 0, ("b", "c", "d"), ())


def test_nodes_without_an_agent_wait_for_nobody_and_nobody_for_them() -> None:
    members = [RolloutNode("a", updated=True, silent=True, answered=False, degraded=("old news",)), *old("c", "d")]
    assert rollout.progress(members, "1") == RolloutProgress(updated=1, pending=1, next=("c",))
    silent = [RolloutNode(f"s{number}", updated=True, silent=True) for number in range(12)]
    assert rollout.progress([*silent, *old("a", "b", "c", "d")], "25%").next == ("a",)


def test_nodes_that_did_badly_before_come_last_and_the_mute_after_the_degraded() -> None:
    degraded, mute = (
        RolloutNode("b", updated=False, degraded=("x",)),
        RolloutNode("a", updated=False, answered=False, overdue=True),
    )
    assert rollout.progress([degraded, mute, *old("c", "d")], "3").next == ("c", "d")
    assert rollout.progress([degraded, mute, *new("c", "d")], "3").next == ("b",)
    was = RolloutNode("b", updated=True, degraded=("x",), before=("x",))
    assert rollout.progress([was, mute, *new("c", "d")], "3").next == ("a",)


def test_degraded_nodes_come_in_waves_too() -> None:
    fleet = many(100, degraded=("Polling",))
    waves = 0
    while any(not member.updated for member in fleet):
        found = rollout.progress(fleet, "25%")
        assert len(found.next) == 25
        fleet = [
            msgspec.structs.replace(member, updated=True, before=("Polling",)) if member.node in found.next else member
            for member in fleet
        ]
        waves += 1
    assert waves == 4


def test_nodes_that_do_not_answer_come_in_waves_too_and_keep_no_place_for_ever() -> None:
    mute, well = many(60, "mute", asked=False, overdue=True), many(40, "well", updated=True)
    first = rollout.progress([*mute, *well], "10%")
    assert len(first.next) == 10
    sent = [RolloutNode(name, updated=True, answered=False, before=(NO_ANSWER,)) for name in first.next]
    assert rollout.progress([*sent, *mute[10:], *well], "10%").next == ()
    given_up = [msgspec.structs.replace(member, overdue=True) for member in sent]
    assert len(rollout.progress([*given_up, *mute[10:], *well], "10%").next) == 10
    assert rollout.progress([*given_up, *mute[10:], *well, *old("z")], "10%").next == ("z",), "one that came late"


def test_one_that_fell_silent_in_its_turn_holds_its_place_however_long() -> None:
    fallen = RolloutNode("a", updated=True, answered=False, overdue=True)
    assert rollout.progress([fallen, *old("b", "c")], "1").next == ()


def test_nodes_on_their_way_to_an_earlier_generation_are_under_way() -> None:
    behind = RolloutNode("a", updated=False, answered=False)
    assert rollout.progress([behind, *old("b", "c")], "1").next == ()
    assert rollout.progress([behind, *old("b", "c")], "2").next == ("b",)
    assert rollout.progress([msgspec.structs.replace(behind, overdue=True), *old("b", "c")], "1").next == ("b",)


def test_a_turn_waits_until_its_effect_is_known() -> None:
    members = [
        RolloutNode("a", updated=False, asked=False),
        RolloutNode("b", updated=False, pods=2, bytes=10),
        *old("c"),
    ]
    found = rollout.progress(members, "1")
    assert (found.asking, found.next, found.taken) == (("a",), ("b",), Taken(1, 2, 10))
    assert rollout.progress([members[0]], "1").next == ()
    assert rollout.progress([members[0]], "100%").next == ()
    assert rollout.progress([msgspec.structs.replace(members[0], overdue=True)], "1").next == ("a",)


def test_degraded_nodes_are_asked_too() -> None:
    asked = [
        RolloutNode("a", updated=False, asked=False, degraded=("x",)),
        RolloutNode("b", updated=False, degraded=("x",)),
    ]
    found = rollout.progress([*asked, *new("c")], "1")
    assert (found.asking, found.next) == (("a",), ())


def test_nodes_with_swap_in_use_are_held_if_asked() -> None:
    using = RolloutNode("a", updated=False, pods=2)
    unknown = RolloutNode("b", updated=False, asked=False, answered=False, overdue=True)
    for most in ("1", "100%"):
        found = rollout.progress([using, unknown, *old("c")], most, hold=True)
        assert (found.held, found.next, found.pending) == (("a", "b"), ("c",), 2)
        assert rollout.progress([using, unknown], most, hold=True).next == ()
        assert rollout.progress([using], most).next == ("a",)


@pytest.mark.parametrize("most", ["1", "100%"])
def test_a_paused_rollout_gives_no_turn(most: str) -> None:
    members = [*new("a"), *old("b", "c")]
    assert rollout.progress(members, most).next
    found = rollout.progress(members, most, paused=True)
    assert (found.next, found.pending, found.updated, found.paused) == ((), 2, 1, True)


def test_a_node_that_was_degraded_before_does_not_stop_those_that_hold() -> None:
    holding = [RolloutNode("b", updated=False, pods=1), RolloutNode("c", updated=False, pods=1)]
    bad = RolloutNode("a", updated=False, degraded=("Polling",))
    assert rollout.progress([bad, *holding], "1", hold=True).next == ("a",)
    done = RolloutNode("a", updated=True, degraded=("Polling",), before=("Polling",))
    free = [msgspec.structs.replace(holding[0], pods=0), holding[1]]
    assert rollout.progress([done, *free], "1", hold=True).next == ("b",)


NAMES = [f"n{number}" for number in range(8)]
SOME = st.sampled_from(NAMES)
REASONS = st.sampled_from(["Polling", "WriteFailed"])


class _Node(msgspec.Struct):
    """One whose agent acts on what it was given, when it answers."""

    given: int = 1
    acted: int = 1
    asked: int = 1
    """The generation that its agent was asked about last, and answered."""
    degraded: str = ""
    before: tuple[str, ...] = ()
    dead: bool = False


class Fleet(stateful.RuleBasedStateMachine):
    """Edits, agents that answer, die, degrade and recover, and turns, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.newest = 1
        self.nodes: dict[str, _Node] = {name: _Node() for name in NAMES}
        self.overdue: set[str] = set()

    @stateful.initialize(most=st.sampled_from(["1", "2", "5", "25%", "50%"]))
    def begins(self, most: str) -> None:
        self.most = most
        self.limit = rollout.limit(most, len(NAMES))

    def members(self) -> list[RolloutNode]:
        return [
            RolloutNode(
                name,
                updated=node.given == self.newest,
                answered=node.acted == node.given,
                asked=node.asked == self.newest,
                degraded=(node.degraded,) if node.degraded else (),
                before=node.before,
                overdue=name in self.overdue,
            )
            for name, node in self.nodes.items()
        ]

    @stateful.rule()
    def the_profile_changes(self) -> None:
        self.newest += 1
        self.overdue.clear()

    @stateful.rule(names=st.sets(SOME))
    def agents_answer(self, names: Iterable[str]) -> None:
        for name in names:
            node = self.nodes[name]
            if not node.dead:
                node.acted, node.asked = node.given, self.newest
                self.overdue.discard(name)

    @stateful.rule(name=SOME, reason=REASONS)
    def a_node_degrades(self, name: str, reason: str) -> None:
        self.nodes[name].degraded = reason

    @stateful.rule(name=SOME)
    def a_node_recovers(self, name: str) -> None:
        self.nodes[name].degraded = ""

    @stateful.rule(name=SOME, dead=st.booleans())
    def an_agent_dies_or_comes_back(self, name: str, *, dead: bool) -> None:
        self.nodes[name].dead = dead

    @stateful.rule()
    def time_passes(self) -> None:
        found = rollout.progress(self.members(), self.most)
        self.overdue = {*found.waiting, *found.unheard}

    @stateful.rule()
    def turns_come(self) -> None:
        members = {member.node: member for member in self.members()}
        found = rollout.progress(members.values(), self.most)
        under_way = {name for name, member in members.items() if member.is_under_way()}
        worse = [name for name, node in self.nodes.items() if members[name].is_worse()]
        assert len(found.next) <= self.limit
        if found.next:
            assert len(under_way | set(found.next)) <= self.limit
            assert not worse
        for name in found.next:
            node = self.nodes[name]
            assert node.given < self.newest
            answered = node.acted == node.given and node.asked == self.newest
            node.before = tuple(filter(None, (node.degraded, "" if answered else NO_ANSWER)))
            node.given = self.newest
            self.overdue.discard(name)

    @stateful.rule()
    def all_goes_on_as_well_as_it_can(self) -> None:
        """Dead agents stay dead, degraded nodes degraded; worse nodes recover, silent agents return."""
        for _ in range(3 * len(NAMES) + 3):
            for member in self.members():
                node = self.nodes[member.node]
                node.degraded = "" if member.is_worse() else node.degraded
                node.dead = node.dead and (not member.updated or NO_ANSWER in node.before)
            self.agents_answer(NAMES)
            self.turns_come()
            self.time_passes()
        assert {node.given for node in self.nodes.values()} == {self.newest}

    def teardown(self) -> None:
        self.all_goes_on_as_well_as_it_can()


TestFleet = Fleet.TestCase
TestFleet.settings = hypothesis.settings(max_examples=200, stateful_step_count=30, deadline=None)
