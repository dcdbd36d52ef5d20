"""Counts writes, repairs after external writes, and the exposures of pods until then.

It also ends contention with a writer that keeps lowering a value that the agent must raise. Too little swap breaks no
promise, so the agent yields to such a writer after some rounds, and the status reports it. It never yields to a writer
that keeps raising a value.

A container can use the least of its own limit and those above it. So a pod's cgroup at `max` is no exposure if systemd
holds each of its containers, by the runtime's number, at values that the pod's limit allows together.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections.abc import Callable
from typing import Final

import msgspec

from swapwarden.agent.drift import attribution
from swapwarden.agent.host import cgroupfs, faults
from swapwarden.agent.inventory import exposure, records
from swapwarden.agent.ledger import runtime_records
from swapwarden.api import names
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

_KINDS: Final = ("pod", "container", "kubepods")
WRITES = metrics.counter(
    "swapwarden_agent_writes_total",
    "Writes to memory.swap.max, by kind of cgroup (pod, container, kubepods, system) and result: ok, overwritten (by"
    " another at the same moment), gone (with its cgroup), denied, error.",
    labels=("kind", "result"),
    known=itertools.product(_KINDS, ("ok", "overwritten", "gone", "denied", "error")),
)
MEMORY_WRITES = metrics.counter(
    "swapwarden_agent_memory_writes_total",
    "Writes to memory.min, memory.low and memory.high, by file and result, as in swapwarden_agent_writes_total.",
    labels=("file", "result"),
)
REPAIRS = metrics.counter(
    "swapwarden_agent_repairs_total",
    "Repairs of memory.swap.max after an external write, by kind of cgroup (pod, container, kubepods, system) and by"
    " whether its value was above or below the desired one."
    " Repairs by a third writer, just before the agent's own, are counted too.",
    labels=("kind", "direction"),
    known=itertools.product(_KINDS, ("above", "below")),
)
MEMORY_REPAIRS = metrics.counter(
    "swapwarden_agent_memory_repairs_total",
    "Repairs of memory.min, memory.low and memory.high after systemd or a kubelet reset them, by file.",
    labels=("file",),
)
REPAIR_SECONDS = metrics.histogram(
    "swapwarden_agent_repair_seconds",
    "Time from the detection of an external write to the verified repair.",
    buckets=(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 1.0),
)

YIELDS = metrics.counter(
    "swapwarden_agent_yields_total",
    "Times that the agent left a lower value to another writer, which kept writing it, by kind of cgroup (pod,"
    " container, kubepods, system).",
    labels=("kind",),
    known=[("pod",), ("container",)],
)

ROUNDS: Final = 10
"""Repairs of a lowered value after which the agent yields."""
WINDOW_SECONDS: Final = 600.0
"""The time in which so many make a contention."""
YIELD_SECONDS: Final = 3600.0
"""How long the agent then leaves the lower value alone, unless the desired value changes."""


MOST: Final = 200
"""Most cgroups in one pod's that are read."""


def count_write(file: records.ControlFile, result: str) -> None:
    """Count one write with its result."""
    if file.usage:
        WRITES.inc(file.kind, result)
    else:
        MEMORY_WRITES.inc(file.spec.name, result)


class CgroupWrite(msgspec.Struct, frozen=True):
    """One write to a file, with all that its booking needs. Sizes in bytes, times in monotonic seconds."""

    observed: int
    value: int
    noticed: float
    """When an event or a read showed that the file did not hold its value."""
    since: float
    """From when the file may not have held its value."""
    swap: int
    """Swap in use before the write, in bytes."""
    ran: names.Cause | None
    """Why its pod may have run without the value until now."""
    down: names.Cause | None
    """The cause of a value that the file held when the agent started."""


class Contentions:
    """The contentions of all files; each file keeps its own (records.Contention)."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` in monotonic seconds."""
        self._clock = clock
        self._logged = float("-inf")
        self._unlogged = 0

    def expire(self, file: records.ControlFile, limit: int | None) -> None:
        """Forget a contention after YIELD_SECONDS, or one about another `limit` (bytes).

        `limit` is None if a smaller value is as good: then there is no contention.
        """
        contention = file.contention
        if contention is not None and (
            contention.limit != limit or (contention.until is not None and self._clock() >= contention.until)
        ):
            file.contention = None

    def retry_in(self, file: records.ControlFile) -> float | None:
        """Return the seconds until the file is raised again; None if the agent does not yield."""
        if file.contention is None or file.contention.until is None:
            return None
        return max(0.0, file.contention.until - self._clock())

    def record_lowering(self, file: records.ControlFile, limit: int) -> None:
        """Record the repair of a value below `limit` from another writer than systemd."""
        now = self._clock()
        contention = file.contention
        if contention is None or contention.limit != limit or now - contention.since > WINDOW_SECONDS:
            contention = file.contention = records.Contention(limit, now)
        contention.rounds += 1
        if contention.rounds >= ROUNDS and contention.until is None:
            contention.until = now + YIELD_SECONDS
            YIELDS.inc(file.kind)
            self._log(file, limit, now)

    def _log(self, file: records.ControlFile, limit: int, now: float) -> None:
        self._unlogged += 1
        if now - self._logged < faults.LOG_SECONDS:
            return
        log.warning(
            "another writer keeps lowering a value; it stays for %.0f s, or until the state has another one: find that"
            " writer, or lower the pod's limit",
            YIELD_SECONDS,
            extra={"cgroup": f"/{file.path}", "desired": cgroupfs.render(limit), "cgroups": self._unlogged},
        )
        self._logged, self._unlogged = now, 0


def allows(pod: records.Pod, limit: int, runtime: runtime_records.RuntimeRecords) -> bool:
    """Return whether the runtime's numbers of all running containers together are at most `limit`, in bytes."""
    total = 0
    for container in pod.containers.values():
        seen = runtime.get(container.id)
        if seen is None:
            return False
        total += 0 if seen.is_sandbox else seen.value
    return total <= limit


def holds_below(
    cgroups: cgroupfs.Cgroups,
    runtime: runtime_records.RuntimeRecords,
    pod: records.Pod,
    limit: int,
    since: float,
    *,
    watched: bool,
) -> bool:
    """Return whether no container of a pod could exceed the pod's limit, from `since` until now (monotonic seconds).

    The disk has the values in force, and containers that no event has reported yet. Unless the agent `watched` all the
    time, the same containers must run as before. One that began and ended meanwhile, while no plugin was there either,
    is not noticed.

    A runtime's number only changes by the runtime, to the kubelet's number at a resize without a plugin, and back only
    by the agent. So if a container's file has the known number now, it had it since that is known.
    """
    if pod.ended_at >= since:
        return False
    try:
        listed = cgroups.children(pod.path, most=MOST)
    except cgroupfs.CgroupError:
        return False
    # One that was removed a moment ago may have no event yet.
    names = (name for name in {*listed, *pod.containers} if not records.is_monitor(name))
    ids = {name: records.container_id(name) for name in names}
    known = {each.id for each in runtime.of_pod(pod.uid)}
    if len(listed) >= MOST or not (watched or known == set(ids.values())):
        return False
    total = 0
    for name, container_id in ids.items():
        seen = None if container_id is None else runtime.get(container_id)
        if seen is None:
            return False
        if not seen.is_sandbox:
            if seen.since > since:
                return False
            value = cgroups.number(cgroupfs.join(pod.path, name), cgroupfs.SWAP_MAX)  # None: it is gone
            total += max(seen.value, seen.asked or 0, cgroupfs.NO_LIMIT if value is None else value)
    return total <= limit


class Repairs:
    """Counts the repairs and exposures of all files."""

    def __init__(
        self,
        cgroups: cgroupfs.Cgroups,
        why: attribution.Attribution,
        runtime: runtime_records.RuntimeRecords,
        clock: Callable[[], float],
    ) -> None:
        """`clock` in monotonic seconds."""
        self._runtime = runtime
        self._fs = cgroups
        self._attribution = why
        self.contentions = Contentions(clock)
        self._clock = clock

    def book(self, file: records.ControlFile, write: CgroupWrite, used: int) -> int | None:
        """Count a repair, and an exposure if a running pod was above its value.

        Return the bytes in use that count as taken from now on; None without an exposure.
        """
        observed, value, since, ran = write.observed, write.value, write.since, write.ran
        foreign = file.last_applied is not None and observed != file.last_applied
        now, until = self._clock(), time.time()
        exposed, pod = None, file.pod
        if not (foreign or ran):
            return None
        # Beyond its limit, not beyond the written value: while it drains, that leaves it room.
        used, limit = max(write.swap, used), value if file.status.limit is None else file.status.limit
        grown = max(0, used - max(file.status.in_use, limit))
        breaks = (observed - value) * file.spec.exposed > 0
        if breaks and file.usage and pod is not None and pod.containers and not self._is_bound(file, pod, write, grown):
            # A pod that was above several of its limits at once was so for that time once.
            begins = since >= pod.tally.overlap.last
            lasted = pod.tally.overlap.lasted(since, now)
            grown = pod.tally.overlap.taken(grown, own=file is pod.file, begins=begins)
            exposed = exposure.Exposure(1, lasted * 1000, grown)
            pod.tally.add(pod.uid, exposed, desired=limit, observed=observed, ended=now, until=until, rewritten=foreign)
        if foreign and not file.usage:
            MEMORY_REPAIRS.inc(file.spec.name)
        elif foreign:
            REPAIRS.inc(file.kind, "above" if observed > value else "below")
            if write.down is None:
                REPAIR_SECONDS.observe(now - write.noticed)
            self._attribution.note(file, observed, write.noticed, exposed=exposed, cause=write.down)
            if observed < value and not file.is_systemds(observed):
                self.contentions.record_lowering(file, value)
        elif exposed is not None and ran is not None and pod is not None:
            pod.tally.attribute(ran, exposed)
        return None if exposed is None else used

    def _is_bound(self, file: records.ControlFile, pod: records.Pod, write: CgroupWrite, grown: int) -> bool:
        """Return whether others bound what a file's cgroup could use: the cgroups above in its pod, or those below.

        Those below do so if the container runtime holds them. One above does by a limit and a value that are no larger.

        A cgroup below that one can use no more, whatever its own file holds. If another writer also raised the one
        above, that is its own exposure; during a drain, it may hold more than the ones below must have.
        """
        limit = write.value if file.status.limit is None else file.status.limit
        if file is pod.file:
            # Swap that it took counts in any case: a pod also has the pages of containers that ended.
            if grown or not self._runtime.expected:
                return False
            watched = write.since >= write.noticed
            return holds_below(self._fs, self._runtime, pod, limit, write.since, watched=watched)
        for above in pod.files():
            if above.last_applied is None or above.status.limit is None or above.status.limit > limit:
                continue
            if file.path.startswith(f"{above.path}/"):
                with contextlib.suppress(cgroupfs.CgroupError):
                    if self._fs.read(above.name) <= max(limit, file.last_applied or 0):
                        return True
        return False
