"""Two parts: what a Claim decides, told all it knows; and the thread around it, at an API server made of a dict."""

from __future__ import annotations

import asyncio
import collections
import functools
import heapq
import json
import logging
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from swapwarden.kube import client, config, errors, lease

Json = dict[str, Any]

TIMING = lease.Timing(15.0, 10.0, 2.0)
LONG_AGO, FAR_AHEAD = "1970-01-01T00:00:00.000000Z", "2999-12-31T23:59:59.999999Z"


def held(holder: str | None, version: int = 1, **spec: Any) -> lease.Lease:
    spec = {"lease_duration_seconds": 15, "acquire_time": "then", "renew_time": f"r{version}", **spec}
    return lease.Lease({"name": "l", "uid": "u", "resourceVersion": str(version)}, lease.Spec(holder, **spec))


def claim(identity: str = "me", timing: lease.Timing = TIMING) -> lease.Claim:
    return lease.Claim(identity, timing, lambda: 1.0)


def stored(made: lease.Claim, write: lease.Write, version: int = 1) -> lease.Lease:
    """The Lease after a write."""
    metadata = {"name": "l", "uid": "u", "resourceVersion": str(version)}
    return lease.Lease(metadata, made.renewed(write.term, f"r{version}"))


def write_of(step: lease.Step) -> lease.Write:
    assert isinstance(step, lease.Write), step
    return step


def leader(sent: float = 100.0, now: float = 100.5) -> tuple[lease.Claim, lease.Lease]:
    """One who made the Lease, and it."""
    made = claim()
    made.saw(None, sent)
    write = write_of(made.step(sent, "t1"))
    answer = stored(made, write)
    assert made.wrote(write, answer, sent, now)
    return made, answer


# --- taking it ---


def test_the_first_one_makes_the_lease() -> None:
    made = claim()
    assert made.step(100.0, "t1") == lease.Look()
    made.saw(None, 100.1)
    write = write_of(made.step(100.2, "t2"))
    assert write == lease.Write(lease.Term("t2", 0), None)
    assert not made.leading
    assert made.wrote(write, stored(made, write), 100.2, 100.3)
    assert made.leading


def test_what_is_written() -> None:
    made = claim(timing=lease.Timing(1.2, 0.8, 0.1))
    spec = made.renewed(lease.Term("t1", 7), "t9")
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


def test_an_answer_that_comes_when_its_time_is_over_does_not_make_a_leader() -> None:
    made = claim()
    made.saw(None, 100.0)
    write = write_of(made.step(100.0, "t1"))
    assert not made.wrote(write, stored(made, write), 100.0, 109.6)
    assert not made.leading
    assert made.valid_until == float("-inf")
    # It is in our name, so it is taken at once.
    assert made.step(109.6, "t2") == lease.Look()
    made.saw(stored(made, write), 109.7)
    again = write_of(made.step(109.7, "t3"))
    assert again.term == lease.Term("t3", 0)


@pytest.mark.parametrize("when", [LONG_AGO, FAR_AHEAD, None])
def test_the_time_of_another_is_that_of_our_own_clock(when: str | None) -> None:
    made = claim()
    other = held("other", acquire_time=when, renew_time=when)
    made.saw(other, 100.0)
    assert made.free_at() == 115.0
    for now in (100.0, 102.0, 114.0, 114.9):
        step = made.step(now, FAR_AHEAD)
        assert isinstance(step, lease.Sleep), step
        made.saw(other, step.until)
        if step.until == 115.0:
            break
    assert write_of(made.step(115.0, "t")).over == other


def test_one_who_waits_looks_often_and_exactly_when_the_lease_expires() -> None:
    made = claim()
    other = held("other")
    times = []
    now = 100.0
    while True:
        step = made.step(now, "t")
        if isinstance(step, lease.Look):
            times.append(now)
            made.saw(other, now)
        elif isinstance(step, lease.Sleep):
            now = step.until
        else:
            break
    assert times == [100.0, 102.0, 104.0, 106.0, 108.0, 110.0, 112.0, 114.0, 115.0]


def test_a_renewal_begins_the_time_anew_and_a_label_does_not() -> None:
    made = claim()
    made.saw(held("other", 1), 100.0)
    made.saw(held("other", 2), 107.0)
    assert made.free_at() == 122.0
    labelled = held("other", 3, renew_time="r2")
    made.saw(labelled, 110.0)
    assert made.free_at() == 122.0
    # The newest version is written over all the same.
    assert write_of(made.step(122.0, "t")).over == labelled


@pytest.mark.parametrize(("seconds", "free"), [(40, 140.0), (1, 101.0), (None, 115.0)])
def test_the_holder_says_how_long_to_wait_for_it(seconds: int | None, free: float) -> None:
    made = claim()
    made.saw(held("other", lease_duration_seconds=seconds), 100.0)
    assert made.free_at() == free


@pytest.mark.parametrize("nobody", ["", None])
def test_a_released_lease_is_taken_at_once(nobody: str | None) -> None:
    made = claim()
    made.saw(held(nobody, lease_transitions=4), 100.0)
    assert write_of(made.step(100.0, "t1")).term == lease.Term("t1", 5)


def test_transitions_count_changes_of_the_holder() -> None:
    made = claim()
    made.saw(held("other", lease_transitions=4), 100.0)
    assert write_of(made.step(115.0, "t1")).term.transitions == 5
    made = claim()
    made.saw(held("other", lease_transitions=None), 100.0)
    assert write_of(made.step(115.0, "t1")).term.transitions == 1


def test_the_holder_of_the_same_name_is_another_one() -> None:
    made = claim("me")
    before_restart = held("me", lease_transitions=3)
    made.saw(before_restart, 100.0)
    assert isinstance(made.step(100.0, "t1"), lease.Sleep)
    made.saw(before_restart, 115.0)
    assert write_of(made.step(115.0, "t2")).term == lease.Term("t2", 4)


def test_a_leader_is_deposed_by_one_of_the_same_name() -> None:
    made, answer = leader()
    made.failed(102.0, 0.0)
    taken = held("me", 2, acquire_time="another", lease_transitions=1)
    assert taken.spec.holder_identity == answer.spec.holder_identity
    made.saw(taken, 102.0)
    assert made.step(102.0, "t") == lease.Stop("the Lease went to me")


def test_a_write_whose_answer_was_lost_is_recognized() -> None:
    made = claim()
    made.saw(held("", lease_transitions=1), 100.0)
    write = write_of(made.step(100.0, "t1"))
    made.failed(105.0, 1.0)
    assert made.step(105.0, "t2") == lease.Sleep(106.0)
    assert made.step(106.0, "t3") == lease.Look()
    made.saw(stored(made, write, 2), 106.0)
    again = write_of(made.step(106.0, "t4"))
    assert again.term == lease.Term("t4", 2)
    assert again.over == stored(made, write, 2)


# --- keeping it ---


def test_a_leader_renews_without_a_look() -> None:
    made, answer = leader(sent=100.0)
    assert made.step(100.5, "t") == lease.Sleep(102.0)
    write = write_of(made.step(102.0, "t2"))
    assert write == lease.Write(lease.Term("t1", 0), answer)
    renewed = stored(made, write, 2)
    assert not made.wrote(write, renewed, 102.0, 102.1)
    assert made.valid_until == 112.0
    assert write_of(made.step(104.0, "t3")).over == renewed


def test_a_leader_who_missed_an_answer_looks_before_it_writes() -> None:
    made, _ = leader(sent=100.0)
    write = write_of(made.step(102.0, "t"))
    made.failed(104.0, 0.5)
    assert made.step(104.2, "t") == lease.Sleep(104.5)
    assert made.step(104.5, "t") == lease.Look()
    got_through = stored(made, write, 2)
    made.saw(got_through, 104.6)
    assert made.valid_until == 110.0, "a look renews nothing"
    again = write_of(made.step(104.6, "t"))
    assert again.over == got_through
    assert again.term is write.term


@pytest.mark.parametrize(("holder", "told"), [("other", "other"), ("", "nobody"), (None, "nobody")])
def test_a_leader_that_sees_another_holder_stops_at_once(holder: str | None, told: str) -> None:
    made, _ = leader()
    made.failed(102.0, 0.0)
    made.saw(held(holder, 2), 102.0)
    assert made.step(102.0, "t") == lease.Stop(f"the Lease went to {told}")


def test_a_leader_stops_before_its_time_is_over() -> None:
    made, _ = leader(sent=100.0)
    made.failed(102.0, 60.0)
    assert made.step(109.4, "t") == lease.Sleep(109.5)
    assert made.step(109.5, "t") == lease.Stop("the Lease was not renewed for 10 s")
    assert made.valid_until == 110.0


def test_one_who_was_frozen_stops_first_of_all() -> None:
    made, _ = leader(sent=100.0)
    assert isinstance(made.step(5000.0, "t"), lease.Stop)


def test_an_answer_read_after_a_freeze_does_not_revive_a_leader() -> None:
    made, _ = leader(sent=100.0)
    write = write_of(made.step(102.0, "t"))
    made.wrote(write, stored(made, write, 2), 102.0, 140.0)
    assert made.valid_until == 112.0
    assert isinstance(made.step(140.0, "t"), lease.Stop)


def test_requests_leave_time_for_another_try() -> None:
    made, _ = leader(sent=100.0)
    assert made.timeout(102.0) == 5.0
    assert made.timeout(107.5) == 2.0
    assert claim().timeout(102.0) == 5.0


# --- losing it ---


def test_one_who_lost_the_lease_looks_again_after_a_while() -> None:
    made, _ = leader(sent=100.0)
    made.stopped(109.5)
    assert (made.leading, made.valid_until) == (False, float("-inf"))
    assert made.step(109.5, "t") == lease.Sleep(111.5)
    assert made.step(111.5, "t") == lease.Look()


def test_who_takes_its_own_lease_back_begins_a_new_term_of_the_same_number() -> None:
    made, answer = leader(sent=100.0)
    made.stopped(109.5)
    made.step(111.5, "t")
    made.saw(answer, 111.5)
    assert write_of(made.step(111.5, "t9")).term == lease.Term("t9", 0)


def test_a_renewal_on_its_way_does_not_undo_a_stop() -> None:
    made, _ = leader(sent=100.0)
    write = write_of(made.step(102.0, "t"))
    made.stopped(102.5, aside=17.0)
    assert not made.wrote(write, stored(made, write, 2), 102.0, 103.0)
    assert (made.leading, made.valid_until) == (False, float("-inf"))
    assert made.step(103.0, "t") == lease.Sleep(121.5)
    assert made.step(121.5, "t") == lease.Look()


def test_a_look_on_its_way_does_not_either() -> None:
    made, answer = leader(sent=100.0)
    made.stopped(102.5, aside=17.0)
    made.saw(answer, 103.0)
    assert made.step(103.0, "t") == lease.Sleep(121.5)
    assert made.step(121.5, "t") == lease.Look(), "what was seen that long ago says nothing"


def test_a_failure_does_not_shorten_the_wait_of_one_who_stepped_down() -> None:
    made, _ = leader(sent=100.0)
    write_of(made.step(102.0, "t"))
    made.stopped(102.5, aside=17.0)
    made.failed(103.0, 0.1)
    assert made.step(103.2, "t") == lease.Sleep(121.5)


def test_who_steps_down_lets_all_others_go_first() -> None:
    made, answer = leader(sent=100.0, now=100.0)
    made.stopped(100.0, made.aside())
    slowest = claim("other")
    slowest.saw(answer, 100.0 + TIMING.retry_period * lease.SPREAD[1])
    back = made.step(100.0, "t")
    assert isinstance(back, lease.Sleep)
    assert slowest.free_at() < back.until


# --- without it ---


def test_a_leader_makes_a_deleted_lease_again() -> None:
    made = claim()
    made.saw(held("", lease_transitions=6), 100.0)
    write = write_of(made.step(100.0, "t1"))
    assert made.wrote(write, stored(made, write), 100.0, 100.1)
    made.failed(102.0, 0.0)
    made.saw(None, 102.1)
    again = write_of(made.step(102.1, "t2"))
    assert again == lease.Write(lease.Term("t1", 7), None)
    assert not made.wrote(again, stored(made, again, 9), 102.1, 102.2), "it is the same term"
    assert made.valid_until == 112.1


def test_others_do_not_take_a_deleted_lease_before_its_holder_must_be_gone() -> None:
    made = claim()
    made.saw(held("other", lease_transitions=6), 100.0)
    made.saw(None, 102.0)
    made.saw(None, 104.0)
    assert made.free_at() == 117.0
    assert isinstance(made.step(116.9, "t"), lease.Sleep)
    made.saw(None, 117.0)
    assert write_of(made.step(117.0, "t1")) == lease.Write(lease.Term("t1", 7), None)


def test_a_write_that_comes_late_does_not_make_a_leader_of_a_deleted_lease() -> None:
    """Of several deletions and creations, one instance has seen none and another's first request arrives last."""
    made = claim()
    made.saw(None, 100.0)
    write = write_of(made.step(100.0, "t1"))
    made.failed(105.0, 0.0)
    made.saw(held("other"), 105.0)
    late = stored(made, write)
    made.saw(lease.Lease({**late.metadata, "uid": "another"}, late.spec), 107.0)
    assert made.free_at() == 122.0


def test_a_lease_that_was_free_when_last_seen_may_have_had_a_holder_since() -> None:
    made = claim()
    made.saw(held("", lease_duration_seconds=1), 100.0)
    made.saw(None, 102.0)
    assert made.free_at() == 117.0


def test_one_who_lost_the_lease_does_not_make_it_again_at_once() -> None:
    made, _ = leader(sent=100.0)
    made.stopped(109.5)
    made.saw(None, 130.0)
    assert made.free_at() == 145.0


def test_a_lease_that_came_back_unchanged_counts_as_changed() -> None:
    made = claim()
    other = held("other")
    made.saw(other, 100.0)
    made.saw(None, 110.0)
    made.saw(other, 112.0)
    assert made.free_at() == 127.0


# --- the rest ---


def test_a_leader_has_more_transitions_counted_from_its_next_renewal_on() -> None:
    made, _ = leader(sent=100.0)
    before = write_of(made.step(102.0, "t"))
    made.count_from(7)
    assert not made.wrote(before, stored(made, before, 2), 102.0, 102.1)
    assert made.leading
    assert made.transitions == 0, "one that was on its way"
    made.count_from(5)
    write = write_of(made.step(104.0, "t"))
    assert write.term == lease.Term("t1", 7)
    answer = stored(made, write, 3)
    assert not made.wrote(write, answer, 104.0, 104.1)
    assert made.is_mine(answer)
    made.stopped(105.0)
    made.count_from(9)
    made.saw(answer, 107.0)
    assert write_of(made.step(107.0, "t9")).term == lease.Term("t9", 7), "who does not lead counts nothing"


def test_a_released_lease_is_as_client_go_leaves_it() -> None:
    spec = lease.released(held("me", lease_transitions=3), "t")
    assert spec == lease.Spec("", 1, "t", "t", 3)


@pytest.mark.parametrize("seconds", [(15, 10, 10), (15, 15, 2), (10, 15, 2), (15, 10, 0), (15, 10, -1)])
def test_timings_that_let_two_lead_are_refused(seconds: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="the retry period must be above 0 and below the renew deadline"):
        lease.Timing(*seconds)


# --- one that is no candidate ---


def test_one_that_is_no_candidate_takes_no_lease_that_is_free() -> None:
    made = claim()
    made.stand(100.0, candidate=False)
    made.saw(None, 100.0)
    assert isinstance(made.step(100.0, "t"), lease.Sleep)
    made.saw(held(""), 110.0)
    assert isinstance(made.step(110.0, "t"), lease.Sleep)
    assert not made.tried


def test_one_that_becomes_a_candidate_looks_at_once_and_has_waited_for_the_holder_already() -> None:
    made = claim()
    made.stand(100.0, candidate=False)
    made.saw(held("other"), 100.0)
    assert isinstance(made.step(100.0, "t"), lease.Sleep)
    made.saw(held("other"), 114.9)
    watching = made.step(115.0, "t")
    assert isinstance(watching, lease.Sleep)
    assert watching.until > 116.0
    made.stand(115.1, candidate=True)
    assert made.step(115.1, "t") == lease.Look()
    made.saw(held("other"), 115.2)
    assert write_of(made.step(115.2, "t1")).term == lease.Term("t1", 1)


def test_becoming_a_candidate_shortens_no_other_wait() -> None:
    made, answer = leader(sent=100.0)
    made.stand(101.0, candidate=False)
    assert made.leading, "who leads goes on to"
    made.stopped(102.0, made.aside())
    waiting = made.step(102.0, "t")
    made.stand(103.0, candidate=True)
    assert made.step(103.0, "t") == waiting, "others go first"
    made.saw(answer, 104.0)
    made.stand(104.0, candidate=False)
    made.failed(104.0, 60.0)
    made.stand(105.0, candidate=True)
    refused = made.step(105.0, "t")
    assert isinstance(refused, lease.Sleep)
    assert refused.until >= 164.0, "the API server asked for it"


# --- all together ---


class _Node:
    """One instance on its own clock."""

    def __init__(self, name: str, offset: float, rng: random.Random) -> None:
        self.name = name
        self.offset = offset
        self.rng = rng
        self.claim = self.fresh()
        self.life = 0
        self.frozen_until = 0.0
        self.asleep: tuple[int, float] = (0, 0.0)

    def fresh(self) -> lease.Claim:
        return lease.Claim(self.name, TIMING, lambda: self.rng.uniform(*lease.SPREAD))

    def clock(self, now: float) -> float:
        return now + self.offset

    def leads(self, now: float) -> bool:
        return self.clock(now) < self.claim.valid_until


class World:
    """Instances, one Lease, and a network between them that is slow, loses things and takes hours at times."""

    def __init__(self, seed: int, count: int) -> None:
        self.rng = random.Random(seed)  # noqa: S311 it must repeat
        self.nodes = [_Node(f"n{at}", self.rng.uniform(0, 1e6), self.rng) for at in range(count)]
        self.now = 0.0
        self.faults = True
        self.lease: lease.Lease | None = None
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
            elif kind == "delete" and self.lease and all(one.claim._exists for one in self.nodes):
                # A number that nobody wrote under would be lost with it.
                self.highest = max(self.highest, (self.lease.spec.lease_transitions or 0) + 1)
                self.lease = None
            elif kind == "step down" and node.claim.leading:
                node.claim.stopped(node.clock(self.now), node.claim.aside())
            elif kind == "release" and node.claim.leading and self.lease and node.claim.is_mine(self.lease):
                node.claim.stopped(node.clock(self.now))
                self.store(lease.released(self.lease, self.stamp()))
            elif kind == "edit" and self.lease:
                self.store(self.lease.spec)
        self.at(self.now + self.rng.expovariate(1 / 6), self.mischief)

    def start_anew(self, node: _Node) -> None:
        node.claim = node.fresh()
        node.life += 1
        self.at(self.now + self.rng.uniform(0, 20), functools.partial(self.turn, node, node.life))

    def stamp(self) -> str:
        self._order += 1
        return f"s{self._order}"

    def store(self, spec: lease.Spec) -> lease.Lease:
        self.version += 1
        self.uid += self.lease is None
        self.lease = lease.Lease({"uid": str(self.uid), "resourceVersion": str(self.version)}, spec)
        return self.lease

    def turn(self, node: _Node, life: int) -> None:
        """A node does what its claim says, unless it is frozen or another process by now."""
        if life != node.life:
            return
        if self.now < node.frozen_until:
            self.at(node.frozen_until, lambda: self.turn(node, life))
            return
        clock = node.clock(self.now)
        step = node.claim.step(clock, self.stamp())
        if isinstance(step, lease.Sleep):
            late = self.rng.uniform(0.001, 0.2)
            self.at(self.now + max(0.0, step.until - clock) + late, lambda: self.turn(node, life))
        elif isinstance(step, lease.Stop):
            node.claim.stopped(clock)
            self.at(self.now, lambda: self.turn(node, life))
        else:
            self.send(node, life, step, clock)

    def send(self, node: _Node, life: int, step: lease.Look | lease.Write, sent: float) -> None:
        timeout = max(0.0, node.claim.timeout(sent))
        there = self.latency()
        back = self.latency()
        lost = self.faults and self.rng.random() < 0.1
        spec = node.claim.renewed(step.term, self.stamp()) if isinstance(step, lease.Write) else None

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
            node.claim.count_from(self.highest)
            return
        assert self.writers.setdefault(number, writer) == writer, f"{number} is a term of two"
        # Often a leader finds nothing to write, and its number stands in the Lease alone.
        if self.rng.random() < 0.1:
            self.highest = max(self.highest, number)

    def latency(self) -> float:
        slow = self.faults and self.rng.random() < 0.15
        return self.rng.expovariate(1 / 8) if slow else self.rng.uniform(0.001, 0.05)

    def serve(self, step: lease.Look | lease.Write, spec: lease.Spec | None) -> lease.Lease | str | None:
        if isinstance(step, lease.Look):
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
        step: lease.Look | lease.Write,
        answer: lease.Lease | str | None,
        sent: float,
    ) -> None:
        if life != node.life:
            return
        if self.now < node.frozen_until:
            self.at(node.frozen_until, lambda: self.deliver(node, life, step, answer, sent))
            return
        clock = node.clock(self.now)
        if isinstance(answer, str):
            node.claim.failed(clock, self.rng.uniform(0, 2))
        elif isinstance(step, lease.Look):
            node.claim.saw(answer, clock)
        else:
            assert answer is not None
            self.terms[node.name] += node.claim.wrote(step, answer, sent, clock)
            if node.claim.leading:
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


# --- the thread ---

CONFIG = config.Config(server="http://localhost:1")
PATIENT = {"lease_duration": 600.0, "renew_deadline": 400.0, "retry_period": 0.01}
HASTY = {"lease_duration": 0.9, "renew_deadline": 0.6, "retry_period": 0.01}
COLLECTION = "/apis/coordination.k8s.io/v1/namespaces/ns/leases"


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 10.0
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within 10 s"
        time.sleep(0.001)


class FakeApi:
    """One Lease as a real API server keeps it, and what goes wrong on the way."""

    def __init__(self) -> None:
        self.lease: Json | None = None
        self.requests: list[tuple[str, str, Json]] = []
        self.trouble: Callable[[str], Exception | bytes | None] = lambda _: None
        """Instead of an answer, by the request's method."""
        self.held: set[str] = set()
        """Methods whose answers are kept back."""
        self.deaf: set[str] = set()
        """Methods that are done and not answered."""
        self._version = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def count(self, method: str) -> int:
        return sum(one[0] == method for one in self.requests)

    def change(self, **spec: Any) -> None:
        """Someone else writes the Lease."""
        before = self.lease or {"metadata": {"name": "l", "uid": "u"}, "spec": {}}
        self.store({**before, "spec": {**before["spec"], **spec}})

    def store(self, body: Json) -> bytes:
        self._version += 1
        self.lease = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self._version)}}
        return json.dumps(self.lease).encode()

    async def get(self, path: str, *, timeout: float) -> bytes:  # noqa: ASYNC109 as the client's
        return await self._request("GET", path, b"{}", timeout)

    async def post(self, path: str, body: bytes, *, timeout: float) -> bytes:  # noqa: ASYNC109 as the client's
        return await self._request("POST", path, body, timeout)

    async def put(self, path: str, body: bytes, *, timeout: float) -> bytes:  # noqa: ASYNC109 as the client's
        return await self._request("PUT", path, body, timeout)

    async def _request(self, method: str, path: str, body: bytes, timeout: float) -> bytes:  # noqa: ASYNC109 handed on
        self.requests.append((method, path, json.loads(body)))
        trouble = self.trouble(method)
        if isinstance(trouble, Exception):
            raise trouble
        try:
            async with asyncio.timeout(timeout):
                answer = trouble or self._serve(method, json.loads(body))
                while method in self.held or method in self.deaf:  # noqa: ASYNC110 set by another thread
                    await asyncio.sleep(0.001)
                return answer
        except TimeoutError as error:
            raise errors.Unreachable("no answer in time") from error

    def _serve(self, method: str, body: Json) -> bytes:
        if method == "POST":
            if self.lease:
                raise errors.ApiError(409, "AlreadyExists", "it exists")
            return self.store({**body, "metadata": {**body["metadata"], "uid": f"u{self._version}"}})
        if self.lease is None:
            raise errors.ApiError(404, "NotFound", "there is none") if method == "GET" else conflict()
        if method == "GET":
            return json.dumps(self.lease).encode()
        if body["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise conflict()
        return self.store(body)


def conflict() -> errors.ApiError:
    return errors.ApiError(409, "Conflict", "the object has been modified")


class Told(NamedTuple):
    what: str
    detail: int | str
    at: float
    thread: str
    leading: bool


class Instance:
    """An elector and what it tells."""

    def __init__(self, timing: dict[str, float], identity: str = "me") -> None:
        self.told: queue.Queue[Told] = queue.Queue()
        self.elector = lease.Elector(
            CONFIG,
            namespace="ns",
            name="l",
            identity=identity,
            on_started=lambda led: self._tell("started", led.transitions),
            on_stopped=lambda _, reason: self._tell("stopped", reason),
            **timing,
        )

    def _tell(self, what: str, detail: int | str) -> None:
        name = threading.current_thread().name
        self.told.put(Told(what, detail, lease._boottime(), name, self.elector.is_leading()))

    def next(self) -> Told:
        return self.told.get(timeout=10.0)


Start = Callable[..., Instance]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    made = FakeApi()
    monkeypatch.setattr(client, "Client", lambda *_, **__: made)
    return made


@pytest.fixture
def start(fake: FakeApi) -> Iterator[Start]:
    started: list[Instance] = []

    def run(timing: dict[str, float] = PATIENT, identity: str = "me") -> Instance:
        made = Instance(timing, identity)
        started.append(made)
        made.elector.start()
        return made

    yield run
    fake.held.clear()
    fake.deaf.clear()
    for one in started:
        one.elector.stop(release=False)
        assert not one.elector.alive()


def test_the_thread_leads_renews_and_releases(fake: FakeApi, start: Start) -> None:
    fake.change(holderIdentity="", leaseTransitions=3)
    one = start()
    assert one.next()[:2] == ("started", 4)
    assert one.elector.is_leading()
    until(lambda: fake.count("PUT") > 5, "renewals")
    assert fake.lease is not None
    assert (fake.lease["spec"]["holderIdentity"], fake.lease["spec"]["leaseTransitions"]) == ("me", 4)
    assert lease.TRANSITIONS.value() == 4
    one.elector.stop()
    assert one.next()[:2] == ("stopped", "this instance ends")
    assert one.told.empty()
    assert not one.elector.alive()
    spec = fake.lease["spec"]
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("", 1, 4)


def test_callbacks_come_from_the_thread_when_it_leads_and_when_it_does_not_any_more(start: Start) -> None:
    one = start()
    started = one.next()
    one.elector.stop()
    stopped = one.next()
    assert (started.thread, started.leading) == ("lease", True)
    assert (stopped.thread, stopped.leading) == ("lease", False)


def test_the_lease_is_released_after_all_have_been_told(fake: FakeApi) -> None:
    holders = []

    def stopped(*_: object) -> None:
        assert fake.lease is not None
        holders.append(fake.lease["spec"]["holderIdentity"])

    leading = threading.Event()
    elector = lease.Elector(
        CONFIG,
        namespace="ns",
        name="l",
        identity="me",
        on_started=lambda _: leading.set(),
        on_stopped=stopped,
        **PATIENT,
    )
    elector.start()
    assert leading.wait(10.0)
    elector.stop()
    assert holders == ["me"]
    assert fake.lease is not None
    assert fake.lease["spec"]["holderIdentity"] == ""


def test_what_others_wrote_on_the_lease_stays(fake: FakeApi, start: Start) -> None:
    metadata = {"name": "l", "uid": "u", "labels": {"a": "b"}, "managedFields": [{"manager": "x"}]}
    fake.store({"metadata": metadata, "spec": {}})
    one = start()
    one.next()
    assert fake.lease is not None
    assert fake.lease["metadata"]["labels"] == {"a": "b"}
    assert "managedFields" not in fake.lease["metadata"], "an empty list of them would mean something"
    method, path, body = next(request for request in fake.requests if request[0] == "PUT")
    assert (method, path) == ("PUT", f"{COLLECTION}/l")
    assert (body["apiVersion"], body["kind"]) == ("coordination.k8s.io/v1", "Lease")
    assert body["metadata"]["uid"] == "u", "without it a PUT would make a deleted Lease anew"


def test_the_lease_is_made_where_there_is_none(fake: FakeApi, start: Start) -> None:
    assert start().next()[:2] == ("started", 0)
    method, path, body = next(request for request in fake.requests if request[0] == "POST")
    assert (method, path, body["metadata"]) == ("POST", COLLECTION, {"namespace": "ns", "name": "l"})


def test_without_release_the_lease_stays_ours(fake: FakeApi, start: Start) -> None:
    one = start()
    one.next()
    one.elector.stop(release=False)
    assert fake.lease is not None
    assert fake.lease["spec"]["holderIdentity"] == "me"
    assert one.next().what == "stopped"


def test_one_who_does_not_lead_releases_nothing(fake: FakeApi, start: Start) -> None:
    fake.change(holderIdentity="other", leaseDurationSeconds=600)
    one = start()
    until(lambda: fake.count("GET") > 2, "looks")
    one.elector.stop()
    assert fake.lease is not None
    assert fake.lease["spec"]["holderIdentity"] == "other"
    assert fake.count("PUT") == 0
    assert one.told.empty()


def test_a_lease_that_was_taken_meanwhile_is_not_released(fake: FakeApi, start: Start) -> None:
    one = start()
    one.next()
    fake.held.add("PUT")
    before = fake.count("PUT")
    until(lambda: fake.count("PUT") > before, "a renewal on its way")
    fake.change(holderIdentity="other")
    one.elector.stop()
    assert fake.lease is not None
    assert fake.lease["spec"]["holderIdentity"] == "other"


def test_a_lease_that_was_taken_without_our_knowledge_is_released(fake: FakeApi, start: Start) -> None:
    fake.deaf.add("POST")
    one = start()
    until(lambda: fake.lease, "the first write")
    one.elector.stop()
    assert one.told.empty(), "it never led"
    assert fake.lease is not None
    assert fake.lease["spec"]["holderIdentity"] == ""


def test_a_conflict_at_the_release_is_looked_into(fake: FakeApi, start: Start) -> None:
    one = start()
    one.next()
    conflicts = iter([conflict(), conflict()])

    def twice(method: str) -> Exception | None:
        # Renewals are not troubled.
        return next(conflicts, None) if method == "PUT" and one.elector._stopping.is_set() else None

    fake.trouble = twice
    one.elector.stop()
    assert fake.lease is not None
    assert fake.lease["spec"]["holderIdentity"] == ""
    assert next(conflicts, None) is None


def test_a_release_that_is_refused_is_told(fake: FakeApi, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    one = start()
    one.next()
    refusal = errors.ApiError(500, "InternalError", "etcd is down")
    fake.trouble = lambda method: refusal if method == "PUT" else None
    one.elector.stop()
    assert not one.elector.alive()
    told = "the Lease could not be released; others wait until it expires: etcd is down (500 InternalError)"
    assert told in [record.getMessage() for record in caplog.records]


def test_a_release_takes_no_longer_than_it_may(
    fake: FakeApi, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lease, "RELEASE_SECONDS", 0.05)
    one = start()
    one.next()
    fake.held.update({"GET", "PUT"})
    one.elector.stop()
    assert not one.elector.alive()
    assert one.next().what == "stopped"
    assert "the Lease could not be released; others wait until it expires" in caplog.text


def test_a_thread_that_does_not_end_is_told_of(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    busy, done = threading.Event(), threading.Event()
    monkeypatch.setattr(lease, "STOP_SECONDS", 0.05)
    one = start()
    one.next()

    def block(*_: object) -> None:
        busy.set()
        done.wait(10.0)

    monkeypatch.setattr(one.elector, "_on_stopped", block)
    one.elector.stop()
    assert busy.is_set()
    assert "the thread that holds the Lease has not ended within 0.05 s" in caplog.text
    monkeypatch.setattr(lease, "STOP_SECONDS", 10.0)
    done.set()


def test_the_order_of_start_and_stop(fake: FakeApi) -> None:
    one = Instance(PATIENT)
    assert not one.elector.alive()
    assert not one.elector.is_leading()
    one.elector.step_down("nobody leads here")
    one.elector.stop()
    assert fake.requests == []
    one.elector.start()
    with pytest.raises(RuntimeError, match="once only"):
        one.elector.start()
    assert one.next().what == "started"
    one.elector.stop()
    one.elector.stop()
    one.elector.step_down("it has ended")
    assert one.next().what == "stopped"
    assert one.told.empty()


def test_transitions_that_are_raised_are_told_once_when_they_are_written(fake: FakeApi, start: Start) -> None:
    one = start()
    assert one.next()[:2] == ("started", 0)
    one.elector.count_from(9)
    assert one.next()[:2] == ("started", 9)
    assert fake.lease is not None
    assert fake.lease["spec"]["leaseTransitions"] == 9
    renewals = fake.count("PUT")
    until(lambda: fake.count("PUT") > renewals + 2, "more renewals")
    assert one.told.empty()
    assert fake.lease["spec"]["leaseTransitions"] == 9


def test_stepping_down_takes_effect_at_once_and_leaves_the_lease(fake: FakeApi, start: Start) -> None:
    one = start(HASTY)
    one.next()
    fake.held.add("PUT")
    until(lambda: fake.requests[-1][0] == "PUT", "a renewal on its way")
    one.elector.step_down("someone else writes")
    assert not one.elector.is_leading()
    assert one.next()[:2] == ("stopped", "someone else writes")
    requests = len(fake.requests)
    fake.held.clear()
    begin = lease._boottime()
    again = one.next()
    assert again.what == "started"
    assert again.at - begin > HASTY["lease_duration"] / 2
    mine = {body["spec"]["holderIdentity"] for method, _, body in fake.requests if method != "GET"}
    assert mine == {"me"}, "it was not released"
    assert [request[0] for request in fake.requests[requests : requests + 2]] == ["GET", "PUT"]


def test_what_is_stepped_down_from_is_one_leadership_and_not_the_next(fake: FakeApi) -> None:
    led: queue.Queue[lease.Leadership] = queue.Queue()
    elector = lease.Elector(
        CONFIG,
        namespace="ns",
        name="l",
        identity="me",
        on_started=led.put,
        on_stopped=lambda *_: None,
        **HASTY,
    )
    elector.start()
    first = led.get(timeout=10.0)
    assert 0 < first.left() < HASTY["renew_deadline"]
    elector.step_down("someone else writes", first)
    assert first.left() == 0.0
    second = led.get(timeout=10.0)
    elector.step_down("an earlier write was refused", first)
    assert elector.is_leading()
    assert (first.left(), second.left() > 0) == (0.0, True)
    renewals = fake.count("PUT")
    until(lambda: fake.count("PUT") > renewals + 2, "renewals")
    assert first.left() == 0.0
    elector.stop()
    assert second.left() == 0.0


def test_the_time_that_is_left_ends_before_the_lease_can_be_anothers(start: Start, fake: FakeApi) -> None:
    one = start(HASTY)
    one.next()
    fake.held.add("PUT")
    until(lambda: fake.requests[-1][0] == "PUT", "a renewal on its way")
    leadership = one.elector._leadership
    assert leadership is not None
    assert leadership.left() < HASTY["renew_deadline"] < HASTY["lease_duration"]
    assert one.next().what == "stopped"
    assert leadership.left() == 0.0


def test_one_that_is_no_candidate_only_looks_until_it_is_one(fake: FakeApi) -> None:
    one = Instance(PATIENT)
    one.elector.start(candidate=False)
    until(lambda: fake.count("GET") > 3, "looks")
    assert {method for method, _, _ in fake.requests} == {"GET"}
    one.elector.stand(candidate=True)
    assert one.next().what == "started"
    one.elector.stand(candidate=False)
    renewals = fake.count("PUT")
    until(lambda: fake.count("PUT") > renewals + 2, "who leads goes on to")
    one.elector.stop()
    one.elector.stand(candidate=True)


def test_one_that_becomes_a_candidate_is_not_kept_waiting_for_its_next_look(fake: FakeApi) -> None:
    one = Instance({"lease_duration": 600.0, "renew_deadline": 400.0, "retry_period": 300.0})
    one.elector.start(candidate=False)
    until(lambda: fake.count("GET") == 1, "a look")
    one.elector.stand(candidate=True)
    assert one.next().what == "started"
    one.elector.stop()


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """By how many seconds the clock went on without the thread."""
    seconds = [0.0]
    real = lease._boottime
    monkeypatch.setattr(lease, "_boottime", lambda: real() + seconds[0])
    return seconds


def test_a_clock_that_went_on_without_the_thread_ends_the_term(fake: FakeApi, start: Start, ahead: list[float]) -> None:
    """As after SIGSTOP and SIGCONT, or when the machine wakes."""
    one = start()
    one.next()
    fake.held.add("PUT")
    until(lambda: fake.requests[-1][0] == "PUT", "a renewal on its way")
    assert one.elector.is_leading()
    ahead[0] = 1000.0
    assert not one.elector.is_leading()
    assert one.told.empty(), "the thread does not know yet"
    fake.held.clear()
    assert one.next()[:2] == ("stopped", "the Lease was not renewed for 400 s")


@pytest.mark.parametrize(
    "error",
    [
        errors.Unreachable("cannot connect"),
        errors.ApiError(500, "InternalError", "etcd is down"),
        errors.ApiError(429, "TooManyRequests", "later", retry_after=60.0),
        errors.ApiError(409, "Conflict", "again and again"),
        errors.ApiError(403, "Forbidden", "no"),
        errors.ApiError(401, "Unauthorized", "who?"),
        errors.ConfigError("the token file holds no token"),
        b"<html>a proxy speaks</html>",
        b'{"metadata": {}, "spec": {"leaseTransitions": "many"}}',
    ],
    ids=str,
)
def test_whatever_goes_wrong_the_thread_tries_on_until_its_time_is_over(
    fake: FakeApi, start: Start, ahead: list[float], error: Exception | bytes
) -> None:
    one = start()
    one.next()
    fake.trouble = lambda _: error
    count = len(fake.requests)
    until(lambda: len(fake.requests) > count + 5, "tries")
    assert one.elector.is_leading()
    assert one.told.empty()
    ahead[0] = PATIENT["renew_deadline"] * (1 - lease.MARGIN)
    stopped = one.next()
    assert stopped[:2] == ("stopped", "the Lease was not renewed for 400 s")
    fake.trouble = lambda _: None
    if not isinstance(error, errors.ApiError) or not error.retry_after:
        assert one.next().what == "started", "it competes again when all is well"


def test_answers_that_do_not_come_are_not_waited_for(fake: FakeApi, start: Start) -> None:
    one = start(HASTY)
    one.next()
    fake.held.update({"GET", "PUT"})
    assert one.next()[:2] == ("stopped", "the Lease was not renewed for 0.6 s")
    fake.held.clear()
    assert one.next().what == "started"


def test_a_renewal_done_and_not_answered_costs_no_leadership(fake: FakeApi, start: Start) -> None:
    one = start()
    one.next()
    failed = lease.RENEWALS.value("failed")
    lost = iter([errors.Unreachable("cut")])
    real = fake._serve

    def serve(method: str, body: Json) -> bytes:
        answer = real(method, body)
        if method == "PUT" and (error := next(lost, None)):
            raise error
        return answer

    fake._serve = serve  # type: ignore[method-assign] # the one fault that comes after the deed
    until(lambda: lease.RENEWALS.value("failed") > failed, "the fault")
    count = fake.count("PUT")
    until(lambda: fake.count("PUT") > count + 3, "renewals go on")
    assert one.elector.is_leading()
    assert one.told.empty()


def test_a_lease_edited_by_others_is_renewed_all_the_same(fake: FakeApi, start: Start) -> None:
    one = start()
    one.next()
    conflicts = lease.RENEWALS.value("conflict")
    fake.change()
    until(lambda: lease.RENEWALS.value("conflict") > conflicts, "the conflict")
    count = fake.count("PUT")
    until(lambda: fake.count("PUT") > count + 3, "renewals go on")
    assert one.told.empty()


def test_a_lease_given_to_another_by_hand_is_let_go(fake: FakeApi, start: Start) -> None:
    one = start()
    one.next()
    fake.change(holderIdentity="other", leaseDurationSeconds=600)
    assert one.next()[:2] == ("stopped", "the Lease went to other")
    assert fake.lease is not None
    assert fake.lease["spec"]["holderIdentity"] == "other"


def test_a_deleted_lease_is_made_again_by_its_holder(fake: FakeApi, start: Start) -> None:
    fake.change(holderIdentity="", leaseTransitions=8)
    one = start()
    one.next()
    fake.lease = None
    until(lambda: fake.lease, "the Lease is back")
    assert fake.count("POST") == 1
    assert one.told.empty()
    made = next(body for method, _, body in fake.requests if method == "POST")
    assert made["spec"]["leaseTransitions"] == 9


def test_a_missing_right_is_named(fake: FakeApi, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    fake.trouble = lambda method: errors.ApiError(403, "Forbidden", "leases is forbidden") if method == "POST" else None
    start()
    until(lambda: fake.count("POST") > 2, "tries")
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    told = (
        "cannot create the Lease ns/l: leases is forbidden (403 Forbidden); grant this instance's service account the"
        " right to create leases in coordination.k8s.io in namespace ns, as deploy/manifests/controller-rbac.yaml does"
    )
    assert warnings == [told], "once, not at each try"


def test_others_are_named_in_the_log(fake: FakeApi, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    fake.change(holderIdentity="other", leaseDurationSeconds=600)
    start()
    until(lambda: fake.count("GET") > 3, "looks")
    assert [record.getMessage() for record in caplog.records] == ["the Lease is held by other"]


def test_a_callback_that_fails_ends_the_thread_and_the_term(fake: FakeApi, caplog: pytest.LogCaptureFixture) -> None:
    stopped: queue.Queue[str] = queue.Queue()

    def fail(_: lease.Leadership) -> None:
        raise LookupError("a mistake")

    elector = lease.Elector(
        CONFIG,
        namespace="ns",
        name="l",
        identity="me",
        on_started=fail,
        on_stopped=lambda _, why: stopped.put(why),
        **PATIENT,
    )
    elector.start()
    assert stopped.get(timeout=10.0) == "the thread that holds the Lease ends"
    until(lambda: not elector.alive(), "the thread's end")
    assert not elector.is_leading()
    assert "a mistake" in caplog.text
    elector.stop()
    assert fake.lease is not None
    assert fake.lease["spec"]["holderIdentity"] == "me", "nobody is left who could release it"


def test_a_configuration_that_cannot_be_used_is_refused_at_once() -> None:
    with pytest.raises(errors.ConfigError, match="certificates"):
        lease.Elector(
            config.Config(server="https://localhost:1", ca_data="-----BEGIN nothing"),
            namespace="ns",
            name="l",
            identity="me",
            on_started=lambda _: None,
            on_stopped=lambda *_: None,
        )
