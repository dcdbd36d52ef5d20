"""Decisions of an election."""

from __future__ import annotations

import collections
import functools
import heapq
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from swapwarden.kube.election import election

Json = dict[str, Any]

TIMING = election.Timing(15.0, 10.0, 2.0)
LONG_AGO, FAR_AHEAD = "1970-01-01T00:00:00.000000Z", "2999-12-31T23:59:59.999999Z"


def held(holder: str | None, version: int = 1, **spec: Any) -> election.Lease:
    spec = {"lease_duration_seconds": 15, "acquire_time": "then", "renew_time": f"r{version}", **spec}
    return election.Lease({"name": "l", "uid": "u", "resourceVersion": str(version)}, election.Spec(holder, **spec))


def competitor(identity: str = "me", timing: election.Timing = TIMING) -> election.Election:
    return election.Election(identity, timing, lambda: 1.0)


def stored(made: election.Election, write: election.WriteLease, version: int = 1) -> election.Lease:
    """The Lease after a write."""
    metadata = {"name": "l", "uid": "u", "resourceVersion": str(version)}
    return election.Lease(metadata, made.spec(write.term, f"r{version}"))


def write_of(step: election.Step) -> election.WriteLease:
    assert isinstance(step, election.WriteLease), step
    return step


def leader(sent: float = 100.0, now: float = 100.5) -> tuple[election.Election, election.Lease]:
    """One who made the Lease, and it."""
    made = competitor()
    made.observe(None, sent)
    write = write_of(made.step(sent, "t1"))
    answer = stored(made, write)
    assert made.renewed(write, answer, sent, now)
    return made, answer


# --- taking it ---


def test_the_first_one_makes_the_lease() -> None:
    made = competitor()
    assert made.step(100.0, "t1") == election.Look()
    made.observe(None, 100.1)
    write = write_of(made.step(100.2, "t2"))
    assert write == election.WriteLease(election.LeaseTerm("t2", 0), None)
    assert not made.leading
    assert made.renewed(write, stored(made, write), 100.2, 100.3)
    assert made.leading


def test_the_lease_that_is_written_has_the_fields_of_client_go() -> None:
    made = competitor(timing=election.Timing(1.2, 0.8, 0.1))
    spec = made.spec(election.LeaseTerm("t1", 7), "t9")
    assert msgspec.to_builtins(spec) == {
        "holderIdentity": "me",
        "leaseDurationSeconds": 2,
        "acquireTime": "t1",
        "renewTime": "t9",
        "leaseTransitions": 7,
    }


def test_the_time_of_a_leader_counts_from_before_its_request() -> None:
    made, _ = leader(sent=100.0, now=104.0)
    assert made.valid_until == 110.0


def test_a_late_answer_does_not_make_a_leader() -> None:
    made = competitor()
    made.observe(None, 100.0)
    write = write_of(made.step(100.0, "t1"))
    assert not made.renewed(write, stored(made, write), 100.0, 109.6)
    assert not made.leading
    assert made.valid_until == float("-inf")
    # It is in our name, so it is taken at once.
    assert made.step(109.6, "t2") == election.Look()
    made.observe(stored(made, write), 109.7)
    again = write_of(made.step(109.7, "t3"))
    assert again.term == election.LeaseTerm("t3", 0)


@pytest.mark.parametrize("when", [LONG_AGO, FAR_AHEAD, None])
def test_the_time_of_another_is_that_of_our_own_clock(when: str | None) -> None:
    made = competitor()
    other = held("other", acquire_time=when, renew_time=when)
    made.observe(other, 100.0)
    assert made.free_at() == 115.0
    for now in (100.0, 102.0, 114.0, 114.9):
        step = made.step(now, FAR_AHEAD)
        assert isinstance(step, election.Sleep), step
        made.observe(other, step.until)
        if step.until == 115.0:
            break
    assert write_of(made.step(115.0, "t")).over == other


def test_one_who_waits_looks_often_and_exactly_when_the_lease_expires() -> None:
    made = competitor()
    other = held("other")
    times = []
    now = 100.0
    while True:
        step = made.step(now, "t")
        if isinstance(step, election.Look):
            times.append(now)
            made.observe(other, now)
        elif isinstance(step, election.Sleep):
            now = step.until
        else:
            break
    assert times == [100.0, 102.0, 104.0, 106.0, 108.0, 110.0, 112.0, 114.0, 115.0]


def test_a_renewal_begins_the_time_again_and_a_label_does_not() -> None:
    made = competitor()
    made.observe(held("other", 1), 100.0)
    made.observe(held("other", 2), 107.0)
    assert made.free_at() == 122.0
    labelled = held("other", 3, renew_time="r2")
    made.observe(labelled, 110.0)
    assert made.free_at() == 122.0
    # The newest version is written over all the same.
    assert write_of(made.step(122.0, "t")).over == labelled


@pytest.mark.parametrize(("seconds", "free"), [(40, 140.0), (1, 101.0), (None, 115.0)])
def test_the_holder_says_how_long_to_wait_for_it(seconds: int | None, free: float) -> None:
    made = competitor()
    made.observe(held("other", lease_duration_seconds=seconds), 100.0)
    assert made.free_at() == free


@pytest.mark.parametrize("nobody", ["", None])
def test_a_released_lease_is_taken_at_once(nobody: str | None) -> None:
    made = competitor()
    made.observe(held(nobody, lease_transitions=4), 100.0)
    assert write_of(made.step(100.0, "t1")).term == election.LeaseTerm("t1", 5)


def test_transitions_count_changes_of_the_holder() -> None:
    made = competitor()
    made.observe(held("other", lease_transitions=4), 100.0)
    assert write_of(made.step(115.0, "t1")).term.transitions == 5
    made = competitor()
    made.observe(held("other", lease_transitions=None), 100.0)
    assert write_of(made.step(115.0, "t1")).term.transitions == 1


def test_the_holder_of_the_same_name_is_another_one() -> None:
    made = competitor("me")
    before_restart = held("me", lease_transitions=3)
    made.observe(before_restart, 100.0)
    assert isinstance(made.step(100.0, "t1"), election.Sleep)
    made.observe(before_restart, 115.0)
    assert write_of(made.step(115.0, "t2")).term == election.LeaseTerm("t2", 4)


def test_a_leader_is_deposed_by_one_of_the_same_name() -> None:
    made, answer = leader()
    made.failed(102.0, 0.0)
    taken = held("me", 2, acquire_time="another", lease_transitions=1)
    assert taken.spec.holder_identity == answer.spec.holder_identity
    made.observe(taken, 102.0)
    assert made.step(102.0, "t") == election.Stop(election.TAKEN.format("me"))


def test_a_write_whose_answer_was_lost_is_recognized() -> None:
    made = competitor()
    made.observe(held("", lease_transitions=1), 100.0)
    write = write_of(made.step(100.0, "t1"))
    made.failed(105.0, 1.0)
    assert made.step(105.0, "t2") == election.Sleep(106.0)
    assert made.step(106.0, "t3") == election.Look()
    made.observe(stored(made, write, 2), 106.0)
    again = write_of(made.step(106.0, "t4"))
    assert again.term == election.LeaseTerm("t4", 2)
    assert again.over == stored(made, write, 2)


# --- keeping it ---


def test_a_leader_renews_without_a_look() -> None:
    made, answer = leader(sent=100.0)
    assert made.step(100.5, "t") == election.Sleep(102.0)
    write = write_of(made.step(102.0, "t2"))
    assert write == election.WriteLease(election.LeaseTerm("t1", 0), answer)
    renewed = stored(made, write, 2)
    assert not made.renewed(write, renewed, 102.0, 102.1)
    assert made.valid_until == 112.0
    assert write_of(made.step(104.0, "t3")).over == renewed


def test_a_leader_who_missed_an_answer_looks_before_it_writes() -> None:
    made, _ = leader(sent=100.0)
    write = write_of(made.step(102.0, "t"))
    made.failed(104.0, 0.5)
    assert made.step(104.2, "t") == election.Sleep(104.5)
    assert made.step(104.5, "t") == election.Look()
    got_through = stored(made, write, 2)
    made.observe(got_through, 104.6)
    assert made.valid_until == 110.0, "a look renews nothing"
    again = write_of(made.step(104.6, "t"))
    assert again.over == got_through
    assert again.term is write.term


@pytest.mark.parametrize(("holder", "told"), [("other", "other"), ("", "nobody"), (None, "nobody")])
def test_a_leader_that_sees_another_holder_stops_at_once(holder: str | None, told: str) -> None:
    made, _ = leader()
    made.failed(102.0, 0.0)
    made.observe(held(holder, 2), 102.0)
    assert made.step(102.0, "t") == election.Stop(election.TAKEN.format(told))


def test_a_leader_stops_before_its_time_is_over() -> None:
    made, _ = leader(sent=100.0)
    made.failed(102.0, 60.0)
    assert made.step(109.4, "t") == election.Sleep(109.5)
    assert made.step(109.5, "t") == election.Stop(election.NOT_RENEWED.format(10))
    assert made.valid_until == 110.0


def test_one_who_was_frozen_stops_first_of_all() -> None:
    made, _ = leader(sent=100.0)
    assert isinstance(made.step(5000.0, "t"), election.Stop)


def test_an_answer_read_after_a_freeze_does_not_revive_a_leader() -> None:
    made, _ = leader(sent=100.0)
    write = write_of(made.step(102.0, "t"))
    made.renewed(write, stored(made, write, 2), 102.0, 140.0)
    assert made.valid_until == 112.0
    assert isinstance(made.step(140.0, "t"), election.Stop)


def test_requests_leave_time_for_another_try() -> None:
    made, _ = leader(sent=100.0)
    assert made.timeout(102.0) == 5.0
    assert made.timeout(107.5) == 2.0
    assert competitor().timeout(102.0) == 5.0


# --- losing it ---


def test_one_who_lost_the_lease_looks_again_after_a_while() -> None:
    made, _ = leader(sent=100.0)
    made.stepped_down(109.5)
    assert (made.leading, made.valid_until) == (False, float("-inf"))
    assert made.step(109.5, "t") == election.Sleep(111.5)
    assert made.step(111.5, "t") == election.Look()


def test_who_takes_its_own_lease_back_begins_a_new_term_of_the_same_number() -> None:
    made, answer = leader(sent=100.0)
    made.stepped_down(109.5)
    made.step(111.5, "t")
    made.observe(answer, 111.5)
    assert write_of(made.step(111.5, "t9")).term == election.LeaseTerm("t9", 0)


def test_a_renewal_on_its_way_does_not_undo_a_stop() -> None:
    made, _ = leader(sent=100.0)
    write = write_of(made.step(102.0, "t"))
    made.stepped_down(102.5, cooldown=17.0)
    assert not made.renewed(write, stored(made, write, 2), 102.0, 103.0)
    assert (made.leading, made.valid_until) == (False, float("-inf"))
    assert made.step(103.0, "t") == election.Sleep(121.5)
    assert made.step(121.5, "t") == election.Look()


def test_a_look_on_its_way_does_not_either() -> None:
    made, answer = leader(sent=100.0)
    made.stepped_down(102.5, cooldown=17.0)
    made.observe(answer, 103.0)
    assert made.step(103.0, "t") == election.Sleep(121.5)
    assert made.step(121.5, "t") == election.Look(), "so old a look proves nothing"


def test_a_failure_does_not_shorten_the_wait_of_one_who_stepped_down() -> None:
    made, _ = leader(sent=100.0)
    write_of(made.step(102.0, "t"))
    made.stepped_down(102.5, cooldown=17.0)
    made.failed(103.0, 0.1)
    assert made.step(103.2, "t") == election.Sleep(121.5)


def test_who_steps_down_lets_all_others_go_first() -> None:
    made, answer = leader(sent=100.0, now=100.0)
    made.stepped_down(100.0, made.cooldown())
    slowest = competitor("other")
    slowest.observe(answer, 100.0 + TIMING.retry_period * election.JITTER[1])
    back = made.step(100.0, "t")
    assert isinstance(back, election.Sleep)
    assert slowest.free_at() < back.until


# --- without it ---


def test_a_leader_makes_a_deleted_lease_again() -> None:
    made = competitor()
    made.observe(held("", lease_transitions=6), 100.0)
    write = write_of(made.step(100.0, "t1"))
    assert made.renewed(write, stored(made, write), 100.0, 100.1)
    made.failed(102.0, 0.0)
    made.observe(None, 102.1)
    again = write_of(made.step(102.1, "t2"))
    assert again == election.WriteLease(election.LeaseTerm("t1", 7), None)
    assert not made.renewed(again, stored(made, again, 9), 102.1, 102.2), "it is the same term"
    assert made.valid_until == 112.1


def test_others_do_not_take_a_deleted_lease_before_its_holder_must_be_gone() -> None:
    made = competitor()
    made.observe(held("other", lease_transitions=6), 100.0)
    made.observe(None, 102.0)
    made.observe(None, 104.0)
    assert made.free_at() == 117.0
    assert isinstance(made.step(116.9, "t"), election.Sleep)
    made.observe(None, 117.0)
    assert write_of(made.step(117.0, "t1")) == election.WriteLease(election.LeaseTerm("t1", 7), None)


def test_a_late_write_does_not_make_a_leader_of_a_deleted_lease() -> None:
    """Of several deletions and creations, one instance has seen none and another's first request arrives last."""
    made = competitor()
    made.observe(None, 100.0)
    write = write_of(made.step(100.0, "t1"))
    made.failed(105.0, 0.0)
    made.observe(held("other"), 105.0)
    late = stored(made, write)
    made.observe(election.Lease({**late.metadata, "uid": "another"}, late.spec), 107.0)
    assert made.free_at() == 122.0


def test_a_lease_that_was_free_when_last_seen_may_have_had_a_holder_since() -> None:
    made = competitor()
    made.observe(held("", lease_duration_seconds=1), 100.0)
    made.observe(None, 102.0)
    assert made.free_at() == 117.0


def test_one_who_lost_the_lease_does_not_make_it_again_at_once() -> None:
    made, _ = leader(sent=100.0)
    made.stepped_down(109.5)
    made.observe(None, 130.0)
    assert made.free_at() == 145.0


def test_a_lease_that_came_back_unchanged_counts_as_changed() -> None:
    made = competitor()
    other = held("other")
    made.observe(other, 100.0)
    made.observe(None, 110.0)
    made.observe(other, 112.0)
    assert made.free_at() == 127.0


# --- the rest ---


def test_a_leader_has_more_transitions_counted_from_its_next_renewal_on() -> None:
    made, _ = leader(sent=100.0)
    before = write_of(made.step(102.0, "t"))
    made.count_from(7)
    assert not made.renewed(before, stored(made, before, 2), 102.0, 102.1)
    assert made.leading
    assert made.observed.transitions == 0, "one that was on its way"
    made.count_from(5)
    write = write_of(made.step(104.0, "t"))
    assert write.term == election.LeaseTerm("t1", 7)
    answer = stored(made, write, 3)
    assert not made.renewed(write, answer, 104.0, 104.1)
    assert made.is_mine(answer)
    made.stepped_down(105.0)
    made.count_from(9)
    made.observe(answer, 107.0)
    assert write_of(made.step(107.0, "t9")).term == election.LeaseTerm("t9", 7), "who does not lead counts nothing"


def test_a_released_lease_is_as_client_go_leaves_it() -> None:
    spec = election.released(held("me", lease_transitions=3), "t")
    assert spec == election.Spec("", 1, "t", "t", 3)


@pytest.mark.parametrize("seconds", [(15, 10, 10), (15, 15, 2), (10, 15, 2), (15, 10, 0), (15, 10, -1)])
def test_timings_that_let_two_lead_are_refused(seconds: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match=r"retry period.*renew deadline"):
        election.Timing(*seconds)


# --- one that is no candidate ---


def test_one_that_is_no_candidate_takes_no_lease_that_is_free() -> None:
    made = competitor()
    made.stand(100.0, candidate=False)
    made.observe(None, 100.0)
    assert isinstance(made.step(100.0, "t"), election.Sleep)
    made.observe(held(""), 110.0)
    assert isinstance(made.step(110.0, "t"), election.Sleep)
    assert not made.tried


def test_one_that_becomes_a_candidate_looks_at_once_and_has_waited_for_the_holder_already() -> None:
    made = competitor()
    made.stand(100.0, candidate=False)
    made.observe(held("other"), 100.0)
    assert isinstance(made.step(100.0, "t"), election.Sleep)
    made.observe(held("other"), 114.9)
    watching = made.step(115.0, "t")
    assert isinstance(watching, election.Sleep)
    assert watching.until > 116.0
    made.stand(115.1, candidate=True)
    assert made.step(115.1, "t") == election.Look()
    made.observe(held("other"), 115.2)
    assert write_of(made.step(115.2, "t1")).term == election.LeaseTerm("t1", 1)


def test_becoming_a_candidate_shortens_no_other_wait() -> None:
    made, answer = leader(sent=100.0)
    made.stand(101.0, candidate=False)
    assert made.leading, "the leader continues to lead"
    made.stepped_down(102.0, made.cooldown())
    waiting = made.step(102.0, "t")
    made.stand(103.0, candidate=True)
    assert made.step(103.0, "t") == waiting, "others go first"
    made.observe(answer, 104.0)
    made.stand(104.0, candidate=False)
    made.failed(104.0, 60.0)
    made.stand(105.0, candidate=True)
    refused = made.step(105.0, "t")
    assert isinstance(refused, election.Sleep)
    assert refused.until >= 164.0, "the API server asked for it"


# --- all together ---


class _Node:
    """One instance on its own clock."""

    def __init__(self, name: str, offset: float, rng: random.Random) -> None:
        self.name = name
        self.offset = offset
        self.rng = rng
        self.election = self.fresh()
        self.life = 0
        self.frozen_until = 0.0
        self.asleep: tuple[int, float] = (0, 0.0)

    def fresh(self) -> election.Election:
        return election.Election(self.name, TIMING, lambda: self.rng.uniform(*election.JITTER))

    def clock(self, now: float) -> float:
        return now + self.offset

    def leads(self, now: float) -> bool:
        return self.clock(now) < self.election.valid_until


class World:
    """Instances, one Lease, and a network between them that is slow, loses things and takes hours at times."""

    def __init__(self, seed: int, count: int) -> None:
        self.rng = random.Random(seed)  # noqa: S311 it must repeat
        self.nodes = [_Node(f"n{at}", self.rng.uniform(0, 1e6), self.rng) for at in range(count)]
        self.now = 0.0
        self.faults = True
        self.lease: election.Lease | None = None
        self.version = 0
        self.uid = 0
        self.terms: collections.Counter[str] = collections.Counter()
        self.writers: dict[int, tuple[str, int]] = {}
        self.highest = 0
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        for node in self.nodes:
            self.at(self.rng.uniform(0, 5), functools.partial(self.turn, node, node.life))
        self.at(10.0, self.mischief)

    def at(self, when: float, what: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._agenda, (when, self._order, what))

    def run(self, until: float) -> None:
        while self._agenda and self._agenda[0][0] <= until:
            self.now, _, what = heapq.heappop(self._agenda)
            what()
            leading = [node.name for node in self.nodes if node.leads(self.now)]
            assert len(leading) <= 1, f"{leading} lead at {self.now}"
        self.now = until

    def mischief(self) -> None:
        if self.faults:
            node = self.rng.choice(self.nodes)
            kind = self.rng.choice(["freeze", "kill", "delete", "step down", "release", "edit", "nothing"])
            if kind == "freeze":
                node.frozen_until = self.now + self.rng.expovariate(1 / 12)
            elif kind == "kill" and self.lease:
                self.start_anew(node)
            # Nobody can know of a Lease that came and went between two looks.
            elif kind == "delete" and self.lease and all(one.election.observed.exists for one in self.nodes):
                # A number that nobody wrote under would be lost with it.
                self.highest = max(self.highest, (self.lease.spec.lease_transitions or 0) + 1)
                self.lease = None
            elif kind == "step down" and node.election.leading:
                node.election.stepped_down(node.clock(self.now), node.election.cooldown())
            elif kind == "release" and node.election.leading and self.lease and node.election.is_mine(self.lease):
                node.election.stepped_down(node.clock(self.now))
                self.store(election.released(self.lease, self.stamp()))
            elif kind == "edit" and self.lease:
                self.store(self.lease.spec)
        self.at(self.now + self.rng.expovariate(1 / 6), self.mischief)

    def start_anew(self, node: _Node) -> None:
        node.election = node.fresh()
        node.life += 1
        self.at(self.now + self.rng.uniform(0, 20), functools.partial(self.turn, node, node.life))

    def stamp(self) -> str:
        self._order += 1
        return f"s{self._order}"

    def store(self, spec: election.Spec) -> election.Lease:
        self.version += 1
        self.uid += self.lease is None
        self.lease = election.Lease({"uid": str(self.uid), "resourceVersion": str(self.version)}, spec)
        return self.lease

    def turn(self, node: _Node, life: int) -> None:
        """A node does what its claim says, unless it is frozen or another process by now."""
        if life != node.life:
            return
        if self.now < node.frozen_until:
            self.at(node.frozen_until, lambda: self.turn(node, life))
            return
        clock = node.clock(self.now)
        step = node.election.step(clock, self.stamp())
        if isinstance(step, election.Sleep):
            late = self.rng.uniform(0.001, 0.2)
            self.at(self.now + max(0.0, step.until - clock) + late, lambda: self.turn(node, life))
        elif isinstance(step, election.Stop):
            node.election.stepped_down(clock)
            self.at(self.now, lambda: self.turn(node, life))
        else:
            self.send(node, life, step, clock)

    def send(self, node: _Node, life: int, step: election.Look | election.WriteLease, sent: float) -> None:
        timeout = max(0.0, node.election.timeout(sent))
        there = self.latency()
        back = self.latency()
        lost = self.faults and self.rng.random() < 0.1
        spec = node.election.spec(step.term, self.stamp()) if isinstance(step, election.WriteLease) else None

        def arrive() -> None:
            answer = self.serve(step, spec)
            if there + back < timeout and not lost:
                self.at(self.now + back, lambda: self.deliver(node, life, step, answer, sent))

        if there + back >= timeout or lost:
            self.at(self.now + timeout, lambda: self.deliver(node, life, step, "timeout", sent))
        self.at(self.now + there, arrive)

    def numbered(self, node: _Node, transitions: int) -> None:
        """A leader writes under a number that the Lease counts, beyond all that it sees others wrote under."""
        number, writer = transitions + 1, (node.name, node.life)
        if transitions < self.highest and self.writers.get(number) != writer:
            node.election.count_from(self.highest)
            return
        assert self.writers.setdefault(number, writer) == writer, f"{number} is a term of two"
        # Often a leader finds nothing to write, and its number stands in the Lease alone.
        if self.rng.random() < 0.1:
            self.highest = max(self.highest, number)

    def latency(self) -> float:
        slow = self.faults and self.rng.random() < 0.15
        return self.rng.expovariate(1 / 8) if slow else self.rng.uniform(0.001, 0.05)

    def serve(
        self, step: election.Look | election.WriteLease, spec: election.Spec | None
    ) -> election.Lease | str | None:
        if isinstance(step, election.Look):
            return self.lease
        assert spec is not None
        expected = step.over.metadata if step.over else None
        if expected != (self.lease.metadata if self.lease else None):
            return "conflict"
        return self.store(spec)

    def deliver(
        self,
        node: _Node,
        life: int,
        step: election.Look | election.WriteLease,
        answer: election.Lease | str | None,
        sent: float,
    ) -> None:
        if life != node.life:
            return
        if self.now < node.frozen_until:
            self.at(node.frozen_until, lambda: self.deliver(node, life, step, answer, sent))
            return
        clock = node.clock(self.now)
        if isinstance(answer, str):
            node.election.failed(clock, self.rng.uniform(0, 2))
        elif isinstance(step, election.Look):
            node.election.observe(answer, clock)
        else:
            assert answer is not None
            self.terms[node.name] += node.election.renewed(step, answer, sent, clock)
            if node.election.leading:
                self.numbered(node, step.term.transitions)
        self.turn(node, life)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 5))
def test_whatever_happens_at_most_one_leads_and_in_the_end_one_does(seed: int, count: int) -> None:
    world = World(seed, count)
    world.run(600.0)
    world.faults = False
    # The last freeze, the slowest request, the longest wait of one who stepped down, and a Lease's time.
    world.run(900.0)
    assert [node.name for node in world.nodes if node.leads(world.now)] != []
    before = world.terms.total()
    world.run(1000.0)
    assert world.terms.total() == before, "leadership does not change without a reason"


def test_the_world_is_hard_enough() -> None:
    """Without what the property test is about: leaders come, go, and are of all names."""
    world = World(7, 3)
    world.run(3000.0)
    assert len(world.terms) == 3
    assert world.terms.total() > 30
    assert world.version > 500
