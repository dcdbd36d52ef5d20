"""The records and evictions of a simulation, and the rules that they break."""

from __future__ import annotations

import collections
import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from swapwarden.policy.pressure import limits

from tests.unit.controller.pressure.simulated.machines import Machine, Pod

SETTLE_SECONDS: Final = 15.0
FORGOTTEN_SECONDS: Final = 35.0
"""Reports that are older play no part in an eviction: 15 s, its requests and their repetitions."""
LEAST, WIDE_PERCENT = 3, 55
COUNTED_SECONDS: Final = 3.0
"""Within this time a leader knows that most nodes are under pressure."""


class Request(NamedTuple):
    """A record of a victim, or an eviction that the API server executed."""

    sent: float
    at: float
    node: str
    pod: str
    epoch: int


class Judge:
    """Takes down all records of victims and all evictions, with the rules that they break."""

    def __init__(self, machines: Mapping[str, Machine], per_hour: int) -> None:
        self._machines = machines
        self._per_hour = per_hour
        self._sizes = collections.Counter(machine.pool for machine in machines.values())
        self._pressed: collections.Counter[str] = collections.Counter()
        self._wide_since: dict[str, float] = {}
        self._log = hashlib.sha256()
        self.records: list[Request] = []
        self.evictions: list[Request] = []
        self.waits: list[float] = []
        """Seconds from the arrival of the report by which a pod was chosen to its eviction."""
        self.queued: list[float] = []
        """Seconds from when a node came under pressure to its first eviction."""
        self._began: dict[str, float] = {}
        self.violations: list[str] = []

    def signal(self, machine: Machine, change: int, now: float) -> None:
        """Take in that a node came under pressure (1), or is no longer (-1)."""
        pool = machine.pool
        self._pressed[pool] += change
        if change > 0:
            self._began[machine.name] = now
        if self._pressed[pool] < LEAST or self._pressed[pool] * 100 <= WIDE_PERCENT * self._sizes[pool]:
            self._wide_since.pop(pool, None)
        else:
            self._wide_since.setdefault(pool, now)

    def recorded(self, machine: Machine, before: str | None, request: Request) -> None:
        """Judge the record of a victim; `before` is the one that it replaces."""
        self.records.append(request)
        self._note("record", request)
        wide = self._wide_since.get(machine.pool, request.sent)
        reasons = {
            f"{before} is recorded": before is not None,
            "most nodes of its pool are under pressure": request.sent - wide > COUNTED_SECONDS,
        }
        self.violations += [f"{request}: {reason}" for reason, holds in reasons.items() if holds]

    def evicted(self, pod: Pod, request: Request) -> None:
        """Judge an eviction; the pod is not marked yet."""
        machine, now = self._machines[pod.node], request.at
        self.evictions.append(request)
        self._note("evict", request)
        reasons = {
            "it must stay": pod.spared(),
            "it keeps within its grant": not any(
                now - at < FORGOTTEN_SECONDS and found.get(pod.uid, 0) > pod.grant() for at, found in machine.reports
            ),
            "it is not the recorded one": machine.victim != pod.uid,
            "another one of its node is on its way": any(one.evicted for one in machine.pods.values()),
            "its node settles": now - machine.terminated < SETTLE_SECONDS,
        }
        self.violations += [f"{request}: {reason}" for reason, holds in reasons.items() if holds]
        if (began := self._began.pop(machine.name, None)) is not None:
            self.queued.append(now - began)
        seq = machine.spec["pressure"].get("victim", {}).get("seq", 0)
        if seq in machine.arrived:
            self.waits.append(now - machine.arrived[seq])

    def digest(self) -> str:
        """Return a number for all decisions and their times."""
        return self._log.hexdigest()

    def excesses(self) -> Iterator[str]:
        """Yield each rate that the records exceed in some window."""
        hours = self._times(lambda one: one.node)
        profiles = self._times(lambda one: self._machines[one.node].pool)
        for groups, window, bound in (
            (hours, limits.HOUR, self._per_hour),
            (profiles, limits.RATE_SECONDS, limits.PER_PROFILE),
            (self._times(lambda _: "cluster"), limits.RATE_SECONDS, limits.PER_CLUSTER),
        ):
            for name, times in groups.items():
                if (found := most(times, window)) > bound:
                    yield f"{name}: {found} in {window:g} s"

    def fastest(self) -> tuple[int, int]:
        """Return the most records of one profile, and of all, within RATE_SECONDS."""
        profiles = self._times(lambda one: self._machines[one.node].pool)
        whole = self._times(lambda _: "cluster")
        one, all_of_them = (
            max((most(times, limits.RATE_SECONDS) for times in groups.values()), default=0)
            for groups in (profiles, whole)
        )
        return one, all_of_them

    def _times(self, group: Callable[[Request], str]) -> dict[str, list[float]]:
        found = collections.defaultdict[str, list[float]](list)
        for one in sorted(self.records):
            found[group(one)].append(one.sent)
        return found

    def _note(self, kind: str, request: Request) -> None:
        self._log.update(f"{kind} {request.sent:.9f} {request.node} {request.pod} {request.epoch}\n".encode())


def most(times: list[float], window: float) -> int:
    """Return the most that happened in any window of this length."""
    found, first = 0, 0
    for last, at in enumerate(times):
        while at - times[first] >= window:
            first += 1
        found = max(found, last - first + 1)
    return found
