"""Counts writes, values that others wrote over and the agent wrote again, and exposures of pods until then."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable
from typing import Final

import msgspec

from swapwarden.agent.drift import attribution, contention, holders
from swapwarden.agent.host import cgroupfs
from swapwarden.agent.inventory import exposure, records
from swapwarden.api import names
from swapwarden.telemetry import metrics

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


def count_write(file: records.ControlFile, result: str) -> None:
    """Count one write with its result."""
    if file.usage:
        WRITES.inc(file.kind, result)
    else:
        MEMORY_WRITES.inc(file.spec.name, result)


class CgroupWrite(msgspec.Struct, frozen=True):
    """One write to a file, with all that its booking needs. Bytes, and monotonic seconds."""

    found: int
    value: int
    noticed: float
    """When the agent heard, or looked, that the file did not hold its value."""
    since: float
    """From when it may not have held it."""
    swap: int
    """In use before."""
    ran: names.Cause | None
    """Why its pod may have run without the value until now."""
    down: names.Cause | None
    """The cause of a value that the agent found at its start."""


class Repairs:
    """Of all files."""

    def __init__(
        self,
        cgroups: cgroupfs.Cgroups,
        why: attribution.Attribution,
        contentions: contention.Contentions,
        clock: Callable[[], float],
        *,
        holds: holders.Holders,
    ) -> None:
        """`clock` in monotonic seconds."""
        self._holders = holds
        self._fs = cgroups
        self._attribution = why
        self._contentions = contentions
        self._clock = clock

    def book(self, file: records.ControlFile, write: CgroupWrite, used: int) -> int | None:
        """Count a repair, and an exposure if a running pod was above its value.

        Return the bytes in use that count as taken from now on; None without an exposure.
        """
        found, value, since, ran = write.found, write.value, write.since, write.ran
        foreign = file.last_applied is not None and found != file.last_applied
        now, until = self._clock(), time.time()
        exposed, pod = None, file.pod
        if not (foreign or ran):
            return None
        # Beyond its limit, not beyond the written value: while it drains, that leaves it room.
        used, limit = max(write.swap, used), value if file.status.limit is None else file.status.limit
        grown = max(0, used - max(file.status.in_use, limit))
        breaks = (found - value) * file.spec.exposed > 0
        if breaks and file.usage and pod is not None and pod.containers and not self._is_bound(file, pod, write, grown):
            # A pod that was above several of its limits at once was so for that time once.
            begins = since >= pod.tally.overlap.last
            lasted = pod.tally.overlap.lasted(since, now)
            grown = pod.tally.overlap.taken(grown, own=file is pod.file, begins=begins)
            exposed = exposure.Exposure(1, lasted * 1000, grown)
            pod.tally.add(pod.uid, exposed, wanted=limit, found=found, ended=now, until=until, rewritten=foreign)
        if foreign and not file.usage:
            MEMORY_REPAIRS.inc(file.spec.name)
        elif foreign:
            REPAIRS.inc(file.kind, "above" if found > value else "below")
            if write.down is None:
                REPAIR_SECONDS.observe(now - write.noticed)
            self._attribution.note(file, found, write.noticed, exposed=exposed, cause=write.down)
            if found < value and not file.is_systemds(found):
                self._contentions.record_lowering(file, value)
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
            if grown or not self._holders.runtime.expected:
                return False
            return self._holders.bound(pod, limit, write.since, watched=write.since >= write.noticed)
        for above in pod.files():
            if above.last_applied is None or above.status.limit is None or above.status.limit > limit:
                continue
            if file.path.startswith(f"{above.path}/"):
                with contextlib.suppress(cgroupfs.CgroupError):
                    if self._fs.read(above.name) <= max(limit, file.last_applied or 0):
                        return True
        return False
