"""Reads how much swap the node, its pods and its slices use, when metrics are scraped.

The kernel counts. Nothing but the published values is kept between scrapes. A value that cannot be read is left out: 0
would be a claim.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
import itertools
import math
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from swapwarden.agent.host import cgroupfs, files
from swapwarden.agent.inventory import exposure, inventory, records
from swapwarden.agent.ledger import runtime_records
from swapwarden.agent.node import headroom_reader, node_info
from swapwarden.telemetry import metrics

_gauge: Final = functools.partial(metrics.reading, "gauge")
_counter: Final = functools.partial(metrics.reading, "counter")
TOTAL = _gauge("swapwarden_node_swap_total_bytes", "Swap that the node has (SwapTotal of /proc/meminfo).")
USED = _gauge(
    "swapwarden_node_swap_usage_bytes",
    "Swap in use on the node, by pods and all else (SwapTotal less SwapFree of /proc/meminfo).",
)
ACCESSIBLE = _gauge(
    "swapwarden_node_swap_accessible_bytes",
    "Swap that all pods together may use: the least of the node's swap and of memory.swap.max of the cgroup above all"
    " pods and of those above it.",
)
RESERVED = _gauge(
    "swapwarden_node_swap_reserved_bytes",
    "Swap that pods cannot get (swap.reserved of the profile): the node's swap less the accessible part.",
)
UNASSIGNED = _gauge(
    "swapwarden_node_swap_unassigned_bytes",
    "Accessible swap less the pods' own limits; 0 where they come to more, or a pod has no limit of its own.",
)
MEMORY_TOTAL = _gauge("swapwarden_node_memory_total_bytes", "Memory that the node has (MemTotal of /proc/meminfo).")
PROTECTED = _gauge(
    "swapwarden_node_memory_protected_bytes",
    "Memory that is protected for all pods together, by file: memory.low and memory.min of the cgroup above all pods,"
    " of any writer.",
    labels=("file",),
)
SWAPPED_IN = _counter(
    "swapwarden_node_swap_in_bytes_total",
    "Bytes read back from swap devices since boot (pswpin of /proc/vmstat); what zswap holds in memory is not counted.",
)
SWAPPED_OUT = _counter(
    "swapwarden_node_swap_out_bytes_total",
    "Bytes written to swap devices since boot (pswpout of /proc/vmstat); what zswap holds in memory is not counted.",
)
REFAULTS = _counter(
    "swapwarden_node_refaults_total",
    "Pages that were evicted and soon needed again, since boot, by type: anon from swap, file from file systems"
    " (workingset_refault_anon and workingset_refault_file of /proc/vmstat).",
    labels=("type",),
)
STALLED = _counter(
    "swapwarden_node_pressure_stalled_seconds_total",
    "Time since boot in which some or all (full) tasks with work to do waited for the resource, memory or io (total of"
    " /proc/pressure).",
    labels=("resource", "kind"),
)
PODS_STALLED = _counter(
    "swapwarden_pods_pressure_stalled_seconds_total",
    "Time in which some or all (full) tasks of all pods of the node together, and that had work to do, waited for the"
    " resource, memory or io (total of memory.pressure and io.pressure of the cgroup above all pods).",
    labels=("resource", "kind"),
)
SLICE_USED = _gauge(
    "swapwarden_slice_swap_usage_bytes",
    "Swap in use by a top-level slice of systemd that holds no pods (memory.swap.current).",
    labels=("slice",),
)
SLICE_STALLED = _counter(
    "swapwarden_slice_pressure_stalled_seconds_total",
    "Time in which some or all (full) tasks of a top-level slice of systemd that holds no pods, and that had work to"
    " do, waited for the resource, memory or io (total of memory.pressure and io.pressure).",
    labels=("slice", "resource", "kind"),
)
POD_USED = _gauge(
    "swapwarden_pod_swap_usage_bytes",
    "Swap in use by the pod (memory.swap.current), for those that use most (--metrics-top-pods); the rest are summed as"
    ' pod_uid="other".',
    labels=("pod_uid",),
)
POD_LIMIT = _gauge(
    "swapwarden_pod_swap_limit_bytes",
    "Swap that the pod may use: the least memory.swap.max of its cgroup and of those above, or the sum of its"
    " containers' limits if that is less; +Inf if none has a limit. For the pods that use most.",
    labels=("pod_uid",),
)
POD_SWAP_EVENTS = _counter(
    "swapwarden_pod_swap_events_total",
    "The pod's memory.swap.events, by event: max (it was refused swap at its limit), fail (it was refused swap, at a"
    " limit or because there was none left), high. For the pods that use most.",
    labels=("pod_uid", "event"),
)
POD_MEMORY_EVENTS = _counter(
    "swapwarden_pod_memory_events_total",
    "The pod's memory.events, by event: high and max (it was held back at that limit), oom (reclaim could not help),"
    " oom_kill (a process was killed). For the pods that use most.",
    labels=("pod_uid", "event"),
)
CONTAINER_USED = _gauge(
    "swapwarden_container_swap_usage_bytes",
    "Swap in use by the container (memory.swap.current), in the pods that use most.",
    labels=("pod_uid", "container_id"),
)
CONTAINER_LIMIT = _gauge(
    "swapwarden_container_swap_limit_bytes",
    "Swap that the container may use: the least memory.swap.max of its cgroup and of those above; +Inf if none has a"
    " limit. In the pods that use most.",
    labels=("pod_uid", "container_id"),
)
PODS_SWAP_EVENTS = _counter(
    "swapwarden_pods_swap_events_total",
    "memory.swap.events of all pods of the node together, by event, also of pods that are gone.",
    labels=("event",),
)
PODS_MEMORY_EVENTS = _counter(
    "swapwarden_pods_memory_events_total",
    "memory.events of all pods of the node together, by event, also of pods that are gone.",
    labels=("event",),
)

OTHER: Final = "other"
"""The label of all pods that are not listed."""
TOP_PODS: Final = 50
"""Pods listed by default. With two containers each they have about 700 series."""
MAX_TOP_PODS: Final = 500
FRESH_SECONDS: Final = 1.0
"""How long values are served again: several scrapers cost as much as one."""
_CONTAINERS: Final = 64
"""Most containers listed for a pod."""
_SLICES: Final = 32
_SWAP_EVENTS: Final = ("high", "max", "fail")
_MEMORY_EVENTS: Final = ("high", "max", "oom", "oom_kill")
_RESOURCES: Final = ("memory", "io")

_Values = dict[tuple[str, ...], float]


class _Reading:
    """The values of one reading, by metric."""

    def __init__(self) -> None:
        self.values: dict[metrics.Reading, _Values] = {}

    def put(self, metric: metrics.Reading, value: float | None, *labels: str) -> None:
        """Add a value; None: it could not be read."""
        if value is not None:
            self.values.setdefault(metric, {})[labels] = value


class SwapUsage:
    """Reads the use of swap for metrics. Not thread-safe: everything runs in the event loop."""

    def __init__(
        self,
        cgroups: cgroupfs.Cgroups,
        proc: pathlib.Path,
        sys: pathlib.Path,
        *,
        top: int,
        known: inventory.Inventory,
        runtime: runtime_records.RuntimeRecords,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`top` of the pods are listed by themselves."""
        self._fs = cgroups
        self._proc = proc
        self._top = top
        self._known = known
        self._runtime = runtime
        self._clock = clock
        self._read_at = -math.inf
        self._reading = asyncio.Lock()
        self._headroom = headroom_reader.HeadroomReader(cgroups, proc, sys / "block", known)

    async def refresh(self) -> None:
        """Read all, unless the values are fresh."""
        async with self._reading:
            if self._clock() - self._read_at < FRESH_SECONDS:
                return
            reading = _Reading()
            turn = headroom_reader.Turn(self._clock)
            total = self._node(reading)
            self._slices(reading)
            if self._known.root is not None:
                await self._pods(reading, self._known.root.path, total, turn)
            for scope, size in (await self._headroom.read(turn.pause)).items():
                reading.put(headroom_reader.HEADROOM, size, scope.lower())
            for metric in READINGS:
                metric.hold(reading.values.get(metric, {}))
            self._read_at = self._clock()

    # The node

    def _node(self, reading: _Reading) -> int | None:
        """Return the node's swap in bytes."""
        sizes = node_info.meminfo(files.text(self._proc / "meminfo") or "")
        total, free = sizes.get("SwapTotal"), sizes.get("SwapFree")
        reading.put(TOTAL, total)
        reading.put(MEMORY_TOTAL, sizes.get("MemTotal"))
        if total is not None and free is not None:
            reading.put(USED, max(0, total - free))
        counted = cgroupfs.counts(files.text(self._proc / "vmstat") or "")
        for metric, name in ((SWAPPED_IN, "pswpin"), (SWAPPED_OUT, "pswpout")):
            if name in counted:
                reading.put(metric, counted[name] * self._fs.page)
        for kind in ("anon", "file"):
            reading.put(REFAULTS, counted.get(f"workingset_refault_{kind}"), kind)
        for resource in _RESOURCES:
            stalls = cgroupfs.stalls(files.text(self._proc / "pressure" / resource) or "")
            for kind, microseconds in stalls.items():
                reading.put(STALLED, microseconds / 1e6, resource, kind)
        return total

    def _slices(self, reading: _Reading) -> None:
        root = "" if self._known.root is None else self._known.root.path.partition("/")[0]
        names = (name for name in self._fs.dirs("") if name.endswith(".slice") and name != root)
        used = [(self._fs.number(name, cgroupfs.SWAP_CURRENT), name) for name in names]
        for size, name in heapq.nlargest(_SLICES, [(size, name) for size, name in used if size is not None]):
            reading.put(SLICE_USED, size, name)
            for resource in _RESOURCES:
                for kind, microseconds in cgroupfs.if_any(self._fs.pressure, name, resource).items():
                    reading.put(SLICE_STALLED, microseconds / 1e6, name, resource, kind)

    # Pods

    async def _pods(self, reading: _Reading, root: str, total: int | None, turn: headroom_reader.Turn) -> None:
        above: dict[str, int] = {}
        users, given = [], 0
        for pod in list(self._known.pods.values()):
            used, limit = self._fs.number(pod.path, cgroupfs.SWAP_CURRENT), self._fs.number(pod.path, cgroupfs.SWAP_MAX)
            if used is not None and limit is not None:
                users.append((used, pod))
                given += limit
            await turn.pause()
        if total is not None:
            accessible = min(total, self._least(root, above))
            reading.put(ACCESSIBLE, accessible)
            reading.put(RESERVED, total - accessible)
            reading.put(UNASSIGNED, max(0, accessible - given))
        for file in (cgroupfs.MEMORY_LOW, cgroupfs.MEMORY_MIN):
            reading.put(PROTECTED, self._fs.number(root, file), file)
        for metric, event, count in self._events(root, PODS_SWAP_EVENTS, PODS_MEMORY_EVENTS):
            reading.put(metric, count, event)
        for resource in _RESOURCES:
            for kind, microseconds in cgroupfs.if_any(self._fs.pressure, root, resource).items():
                reading.put(PODS_STALLED, microseconds / 1e6, resource, kind)
        users.sort(reverse=True, key=lambda each: (each[0], each[1].uid))
        for used, pod in users[: self._top]:
            self._pod(reading, pod, used, above)
            await turn.pause()
        if rest := users[self._top :]:
            reading.put(POD_USED, sum(used for used, _ in rest), OTHER)
        self._exposed(reading)

    def _exposed(self, reading: _Reading) -> None:
        """List the pods that took most above their limit, then those above it for longest."""
        exposed = (pod for pod in self._known.pods.values() if pod.tally.count)
        for pod in heapq.nlargest(self._top, exposed, key=lambda each: (each.tally.grown, each.tally.milliseconds)):
            reading.put(exposure.POD_EXPOSURES, pod.tally.count, pod.uid)
            reading.put(exposure.POD_EXPOSED, pod.tally.milliseconds / 1000, pod.uid)
            for cause, milliseconds in pod.tally.milliseconds_of.items():
                reading.put(exposure.POD_EXPOSED_BY_CAUSE, milliseconds / 1000, pod.uid, cause.value)
            reading.put(exposure.POD_GROWN, pod.tally.grown, pod.uid)

    def _pod(self, reading: _Reading, pod: records.Pod, used: int, above: dict[str, int]) -> None:
        uid = pod.uid
        limit = self._fs.number(pod.path, cgroupfs.SWAP_MAX)
        if limit is None:  # gone since
            return
        limit = min(limit, self._least(pod.path.rpartition("/")[0], above))
        listed = list(itertools.islice(pod.containers.values(), _CONTAINERS))
        inside = {each.id: self._inside(each) for each in listed}
        reading.put(POD_USED, used, uid)
        reading.put(POD_LIMIT, _shown(min(limit, self._together(pod, inside))), uid)
        for metric, event, count in self._events(pod.path, POD_SWAP_EVENTS, POD_MEMORY_EVENTS):
            reading.put(metric, count, uid, event)
        for container in listed:
            its, own = self._fs.number(container.path, cgroupfs.SWAP_CURRENT), inside[container.id]
            if its is not None and own is not None:
                reading.put(CONTAINER_USED, its, uid, container.id)
                reading.put(CONTAINER_LIMIT, _shown(min(own, limit)), uid, container.id)

    def _inside(self, container: records.Container) -> int | None:
        """Return the least limit in a container's cgroup; None if it is gone."""
        own = self._fs.number(container.path, cgroupfs.SWAP_MAX)
        # With crun the processes are in a cgroup of their own inside.
        return None if own is None else min((own, *(self._limit(file.path) for file in container.files)))

    def _together(self, pod: records.Pod, limits: Mapping[str, int | None]) -> int:
        """Return the sum of the containers' limits; NO_LIMIT if one is not known. A sandbox does not count."""
        total, is_running = 0, False
        for container in pod.containers.values():
            record = self._runtime.get(container.id)
            if record is None or not record.is_sandbox:
                limit = limits.get(container.id)
                if limit is None:
                    return cgroupfs.NO_LIMIT
                total, is_running = total + limit, True
        return total if is_running else cgroupfs.NO_LIMIT

    def _events(
        self, path: str, swap: metrics.Reading, memory: metrics.Reading
    ) -> Iterator[tuple[metrics.Reading, str, int | None]]:
        rows = ((swap, cgroupfs.SWAP_EVENTS, _SWAP_EVENTS), (memory, cgroupfs.MEMORY_EVENTS, _MEMORY_EVENTS))
        for metric, file, events in rows:
            counted = cgroupfs.if_any(self._fs.counts, path, file)
            for event in events:
                yield metric, event, counted.get(event)

    def _least(self, path: str, known: dict[str, int]) -> int:
        """Return the lowest limit of a cgroup and of those above it, up to the root of the file system."""
        if path not in known:
            above = cgroupfs.NO_LIMIT if not path else self._least(path.rpartition("/")[0], known)
            known[path] = min(self._limit(path), above)
        return known[path]

    def _limit(self, path: str) -> int:
        """Return a cgroup's own limit; NO_LIMIT if it has no such file."""
        limit = self._fs.number(path, cgroupfs.SWAP_MAX)
        return cgroupfs.NO_LIMIT if limit is None else limit


def _shown(limit: int) -> float:
    return math.inf if limit >= cgroupfs.NO_LIMIT else limit


READINGS: Final = (
    *(TOTAL, USED, ACCESSIBLE, RESERVED, UNASSIGNED, SWAPPED_IN, SWAPPED_OUT, REFAULTS, STALLED),
    *(MEMORY_TOTAL, PROTECTED, headroom_reader.HEADROOM, SLICE_USED, SLICE_STALLED),
    *(POD_USED, POD_LIMIT, POD_SWAP_EVENTS, POD_MEMORY_EVENTS, CONTAINER_USED, CONTAINER_LIMIT),
    *(PODS_SWAP_EVENTS, PODS_MEMORY_EVENTS, PODS_STALLED),
    *(exposure.POD_EXPOSURES, exposure.POD_EXPOSED, exposure.POD_EXPOSED_BY_CAUSE, exposure.POD_GROWN),
)
"""Metrics that one reading of the node fills."""
