"""Compares a recorder's samples of a pod that must have no swap with the agents' logs of it. Pure."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from swapwarden.agent.inventory import exposure
from swapwarden.agent.reconcile import file_reconciler, swap_drain

from testbed.vm.nodevm import Sample
from tests.e2e import cgroups

NOTICE_SECONDS = 0.05
"""So much of each time above 0 may be missing in logs and metrics: the agent counts from its notice of a write, for
which it needs the CPU. Measured on an idle node with one CPU: 2 ms. Repairs on a busy one must take 50 ms at p99."""
LOG_SECONDS = 1.0
"""So much later than it wrote, an agent that has to wait for the CPU may log it."""
LOOK_SECONDS = file_reconciler.DRAIN_SECONDS[1]
"""An agent's figure of the swap in use of a pod that drains may be so old; it publishes swap taken beyond that."""
SAMPLE_BYTES = 512 << 10
"""Of such a pod, the recorder's samples may show so much less than the agent saw between two of them: what the tests
ask the kernel to take at once."""


@dataclasses.dataclass(frozen=True)
class Exposure:
    """One, as an agent's log has it: seconds of the node's clock, and the bytes of swap taken meanwhile."""

    start: float
    end: float
    bytes: int = 0


@dataclasses.dataclass(frozen=True)
class Told:
    """The agents' log lines about a pod."""

    exposures: Sequence[Exposure] = ()
    """In order of their ends."""
    wrote: Sequence[tuple[float, int]] = ()
    """When they wrote which limits of the pod's own, those above 0: they let it drain."""


def told(lines: Iterable[dict[str, Any]], uid: str) -> Told:
    """Return the lines about a pod among the LINES of an agent's log at level debug."""
    exposures, wrote = [], []
    for line in lines:
        if line["logger"] == exposure.__name__ and line.get("uid") == uid:
            exposures.append(Exposure(_moment(line["from"]), _moment(line["until"]), line["swapBytes"]))
        elif line["message"] == "wrote" and line["cgroup"].endswith(cgroups.slice_of(uid)) and line["wrote"]:
            wrote.append((_moment(line["time"]), line["wrote"]))
    return Told(sorted(exposures, key=lambda each: each.end), sorted(wrote))


def _moment(text: str) -> float:
    return datetime.datetime.fromisoformat(text).timestamp()


@dataclasses.dataclass
class Episode:
    """A time in which a cgroup held neither 0 nor the limit of a drain."""

    begin: float
    """Not before that."""
    start: float
    before: int
    """Bytes of swap that an agent may have known to be in use."""
    end: float
    surely: float = 0.0
    """Seconds for which it lasted, however late the recorder was."""
    writes: int = 0
    most: int = 0
    """Bytes in use."""
    left: int = 0
    """Bytes in use at its end, at least."""
    exposures: list[Exposure] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        return f"above 0 from {self.start:.3f} to {self.end:.3f}"

    @property
    def was_seen(self) -> bool:
        """Whether it was recorded itself, and not only the limit that an agent may have ended it with."""
        return self.writes > 0

    @property
    def published(self) -> int:
        """Bytes."""
        return sum(each.bytes for each in self.exposures)

    @property
    def known(self) -> int:
        """Bytes in use at its end, as far as published. Exact where nothing was in use before."""
        return self.before + self.published + (SAMPLE_BYTES if self.before else 0)

    def may_be(self, one: Exposure) -> bool:
        """Whether ONE may be of it: noticed before it was over, and repaired in it."""
        return self.begin <= one.end <= self.end + LOG_SECONDS and one.start <= self.end + NOTICE_SECONDS

    def broken(self) -> Iterator[str]:
        """Yield its parts that no agent published."""
        if not self.exposures and self.was_seen:
            yield f"{self}, of which nothing is published"
            return
        # Only what can be of this one: that an exposure is published for longer than it was makes no room for another.
        lasted = sum(max(0.0, min(one.end, self.end) - max(one.start, self.begin)) for one in self.exposures)
        if self.surely - NOTICE_SECONDS * min(self.writes, len(self.exposures)) > lasted:
            yield f"{self}, for {self.surely:.3f} s at least, of which {lasted:.3f} s are published"
        # No agent knows what came back before it looked; in so short a time nothing does.
        taken = self.most if self.surely <= NOTICE_SECONDS else self.left
        if taken > self.known:
            yield f"{self}: {taken - self.before} bytes went to swap, of which {self.published} are published"


@dataclasses.dataclass(frozen=True)
class Drain:
    """A limit above 0 that an agent gave, and that it did not give before."""

    first: Sample
    let: int
    """The limit that the agent gave it before, since it was last at 0; 0 for none."""
    after: Episode
    """The episode that it ended."""

    def broken(self) -> Iterator[str]:
        """Yield why a limit is wrong: it is more than the swap in use, as far as published, with its room."""
        in_use = self.after.known
        limit = self.first.max_bytes or 0
        if limit > max(self.let, in_use + in_use // swap_drain.ROOM_SHARE):
            yield f"at {self.first.at:.3f} an agent lets it have {limit} bytes, while it publishes that it has {in_use}"


def broken(samples: Sequence[Sample], started: float, known: Told) -> Iterator[str]:
    """Yield what of the promise does not hold; nothing where all of it does.

    `samples` are all of the pod's own cgroup, in order; its first container was made when it `started`. Each time above
    0 is held against the exposures that may be of it, each of which counts for one only.
    """
    episodes, drains = _cut(samples, started, known)
    missed = _assign(known.exposures, episodes)
    last = samples[-1]
    if last.event != "gone" and last.max_bytes != 0:
        yield f"above 0 without an end, at {last.at:.3f}: {'max' if last.max_bytes is None else last.max_bytes}"
    yield from itertools.chain.from_iterable(each.broken() for each in episodes)
    yield from itertools.chain.from_iterable(each.broken() for each in drains)
    yield from _at_0(samples, episodes, missed)


def _cut(samples: Sequence[Sample], started: float, known: Told) -> tuple[list[Episode], list[Drain]]:
    """The times above 0: those that are exposures, and those that agents allowed."""
    episodes: list[Episode] = []
    drains: list[Drain] = []
    now: Episode | None = None
    let, held = 0, started

    def begin(number: int) -> Episode:
        each = samples[number]
        since, start = max(each.after, started), max(each.at, started)
        episodes.append(Episode(since, start, _in_use(samples[:number], since), end=start))
        return episodes[-1]

    for number, (each, after) in enumerate(itertools.pairwise(samples)):
        if each.event == "gone" or each.max_bytes == 0 or after.at <= started:
            now, let = None, 0
        elif any(limit == each.max_bytes and at <= each.at + LOG_SECONDS for at, limit in known.wrote):
            if each.max_bytes != let:
                drains.append(Drain(each, let, now or begin(number)))
            now, let = None, each.max_bytes or 0
        else:
            if now is None or each.event != "used":
                held = max(each.at, started)
            now = now or begin(number)
            now.end = after.at
            # Nothing was written between a sample and the next line's `after`.
            now.surely += max(0.0, after.after - held)
            held = max(held, after.after)
            now.writes += each.event != "used" or not now.writes
            now.most = max(now.most, each.current_bytes, after.current_bytes if after.max_bytes == 0 else 0)
            # At 0 no more pages are swapped out; with a limit to drain some may be.
            more = after.max_bytes != 0 and each.current_bytes < after.current_bytes
            now.left = each.current_bytes if more else after.current_bytes
    return episodes, drains


def _in_use(before: Sequence[Sample], moment: float) -> int:
    """Return the most bytes that an agent may take to be in use at a moment, by the samples BEFORE."""
    known = [each for each in before if each.at <= moment]
    lately = [each.current_bytes for each in known if each.at >= moment - LOOK_SECONDS]
    return max([*lately, *(each.current_bytes for each in known[-1:])], default=0)


def _assign(exposures: Sequence[Exposure], episodes: Sequence[Episode]) -> list[Exposure]:
    """Give each exposure to the episode that it is of; those of none, which the recorder was too late for."""
    missed = []
    for one in exposures:
        fitting = [each for each in episodes if each.may_be(one)]
        # By the order of time, but first to those that surely were.
        fitting.sort(key=lambda each: not each.was_seen)
        if fitting:
            next((each for each in fitting if not each.exposures), fitting[-1]).exposures.append(one)
        else:
            missed.append(one)
    return missed


def _at_0(samples: Sequence[Sample], episodes: Sequence[Episode], missed: Sequence[Exposure]) -> Iterator[str]:
    """Yield what went to swap while it was at 0 and no exposure explains that the recorder MISSED."""
    left = [one.bytes for one in missed]
    for each, after in itertools.pairwise(samples):
        grown = after.current_bytes - each.current_bytes
        if grown <= 0 or each.max_bytes != 0 or after.max_bytes != 0 or "gone" in {each.event, after.event}:
            continue
        # One that begins only then may be why: it was written between two reads of the recorder's.
        if any(episode.begin <= after.at and each.at < episode.end for episode in episodes):
            continue
        for number, one in enumerate(missed):
            if one.start <= after.at and each.after <= one.end:
                explained = min(grown, left[number])
                left[number] -= explained
                grown -= explained
        if grown:
            yield f"at {after.at:.3f} {grown} bytes had gone to swap while it was at 0"
