"""Looks at the node's memory while the state asks for it, and holds the report for the status while a signal is on.

A look costs some files of the kernel. It is rare until memory is short; then the headroom is read with swap too, which
takes some files of each pod.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import pathlib
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from swapwarden.agent.host import cgroupfs, files
from swapwarden.agent.inventory import board, inventory, records
from swapwarden.agent.node import headroom_reader
from swapwarden.agent.pressure import signals
from swapwarden.api import formats, names, state
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

_REFAULTS: Final = ("workingset_refault_anon", "workingset_refault_file")


SIGNAL = metrics.reading(
    "gauge",
    "swapwarden_node_memory_pressure",
    "1 while a signal of spec.pressure is on, else 0, by signal (headroom, stall) and scope (node, pods). A stall of"
    " scope pod is no signal: tasks stall because a pod is at its own limit. Only where the profile has spec.pressure.",
    labels=("signal", "scope"),
)
STALL = metrics.reading(
    "gauge",
    "swapwarden_node_memory_stall_ratio",
    "Share of the time in which all tasks waited for memory at once, over the seconds that spec.pressure.stall gives or"
    " longer, by scope: node and pods. Only where the profile has spec.pressure.",
    labels=("scope",),
)
_SHARE: Final = 10
"""A look is followed by a pause of so many times its length: it then takes a tenth of a CPU at most."""
_LONGEST_WAIT: Final = 2.0
"""Seconds of that pause, whatever the length: on a node that thrashes all takes long."""
_SEQ_END: Final = 1 << 53
"""Above any number of reports that agents make."""
_SIGNALS: Final = tuple((signal, scope) for signal in names.PressureSignal for scope in names.PressureScope)
_OF_A_POD: Final = (names.PressureSignal.STALL.lower(), "pod")


class NodeTotals(msgspec.Struct, frozen=True):
    """The kernel's totals of a node. Its counts of reclaim leave out reclaim at the limits of cgroups."""

    full: float
    """Seconds in which all tasks waited for memory."""
    counted: Mapping[str, int]
    """/proc/vmstat."""


def node_totals(proc: pathlib.Path) -> NodeTotals | None:
    """Return the totals; None if the kernel does not report stalls. Any thread may call it."""
    full = _full(cgroupfs.stalls(files.text(proc / "pressure/memory") or ""))
    return None if full is None else NodeTotals(full, cgroupfs.counts(files.text(proc / "vmstat") or ""))


class KernelTotals:
    """Totals of the node and of the cgroup above all pods. It logs once of each scope that its stalls are unknown."""

    def __init__(self, cgroups: cgroupfs.Cgroups, proc: pathlib.Path, known: inventory.Inventory) -> None:
        self._fs = cgroups
        self._proc = proc
        self._known = known
        self._logged: set[names.PressureScope] = set()

    def read(self) -> Mapping[names.PressureScope, signals.StallTotals]:
        """Return the totals by scope, without scopes whose stalls cannot be read."""
        totals = {}
        if (node := node_totals(self._proc)) is not None:
            scanned = _sum(node.counted, "pgscan_kswapd", "pgscan_direct")
            pages = _pages(node.counted, "pgsteal_kswapd", "pgsteal_direct")
            totals[names.PressureScope.NODE] = signals.StallTotals(node.full, scanned, *pages)
        else:
            self._log(names.PressureScope.NODE)
        root = self._known.root_path
        if root is None:
            return totals
        if (full := _full(cgroupfs.if_any(self._fs.pressure, root, "memory"))) is not None:
            totals[names.PressureScope.PODS] = self._of_pods(full, root)
        else:
            self._log(names.PressureScope.PODS)
        return totals

    def _log(self, scope: names.PressureScope) -> None:
        if scope not in self._logged:
            self._logged.add(scope)
            log.warning(
                "no stall of this scope is a signal of memory pressure: the kernel does not report its stalls; boot"
                " with psi=1, a kernel with CONFIG_PSI",
                extra={"scope": scope},
            )

    def _of_pods(self, full: float, root: str) -> signals.StallTotals:
        """Count how often all pods together met their limit."""
        limited = _sum(cgroupfs.if_any(self._fs.counts, root, cgroupfs.MEMORY_EVENTS_LOCAL), "max", "high")
        pages = _pages(cgroupfs.if_any(self._fs.counts, root, cgroupfs.MEMORY_STAT), "pgsteal")
        return signals.StallTotals(full, limited, *pages)


def _full(stalls: Mapping[str, int]) -> float | None:
    """Return the seconds in which all tasks stalled; None if they are not among these."""
    return stalls["full"] / 1e6 if "full" in stalls else None


def _sum(counted: Mapping[str, int], *names: str) -> int | None:
    return sum(counted[name] for name in names) if counted.keys() >= set(names) else None


def _pages(counted: Mapping[str, int], *reclaimed: str) -> tuple[int, int]:
    """Return the pages that were reclaimed, and those that were needed again; zeros if either is unknown."""
    out, back = _sum(counted, *reclaimed), _sum(counted, *_REFAULTS)
    return (0, 0) if out is None or back is None else (out, back)


Pause = Callable[[], Awaitable[None]]
"""Lets other work run."""


class PodWatch:
    """Reads what the pods of a node hold, for the report of memory pressure; counts refaults from its beginning.

    Not thread-safe: only the event loop may use it.
    """

    def __init__(self, cgroups: cgroupfs.Cgroups, known: inventory.Inventory) -> None:
        self._fs = cgroups
        self._known = known
        self._before: dict[str, int] | None = None
        """Refaults at the beginning by UID; pods that appeared later had none."""

    async def begin(self, pause: Pause) -> None:
        """Count from now on, unless it does already."""
        if self._before is not None:
            return
        refaults = {}
        for pod in list(self._known.pods.values()):
            if (read := self._read(pod)) is not None:
                refaults[pod.uid] = read.refaults
            await pause()
        self._before = refaults

    def end(self) -> None:
        """Count no longer."""
        self._before = None

    async def largest(self, pause: Pause) -> tuple[list[state.PressuredPod], int]:
        """Return the readable pods that use most memory and swap, the largest first, and how many are left out."""
        await self.begin(pause)
        before = self._before or {}
        listed = []
        for pod in list(self._known.pods.values()):
            if (read := self._read(pod)) is not None:
                refaults = max(0, read.refaults - before.get(pod.uid, 0))
                listed.append(state.PressuredPod(read.pod, read.working_set_bytes, read.swap_bytes, refaults))
            await pause()
        most = heapq.nlargest(state.MAX_PRESSURED, listed, key=lambda each: (_usage(each), each.pod))
        return most, len(listed) - len(most)

    def _read(self, pod: records.Pod) -> state.PressuredPod | None:
        """Return what a pod holds, with all of its refaults; None if it cannot be read."""
        try:
            used = self._fs.read(cgroupfs.join(pod.path, cgroupfs.MEMORY_CURRENT))
            stat = self._fs.stat(pod.path)
        except cgroupfs.CgroupError:
            return None
        swap = self._fs.number(pod.path, cgroupfs.SWAP_CURRENT) or 0  # a kernel may lack the controller of swap
        refaults = stat.workingset_refault_anon + stat.workingset_refault_file
        return state.PressuredPod(pod.uid, max(0, used - stat.inactive_file), swap, refaults)


def _usage(pod: state.PressuredPod) -> int:
    return pod.working_set_bytes + pod.swap_bytes


class Sampler:
    """Samples memory pressure and holds its report. Not thread-safe: only the event loop may use it."""

    def __init__(
        self,
        headroom: headroom_reader.HeadroomReader,
        cgroups: cgroupfs.Cgroups,
        proc: pathlib.Path,
        known: inventory.Inventory,
        reports: board.Board,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._headroom = headroom
        self._kernel = KernelTotals(cgroups, proc, known)
        self._pods = PodWatch(cgroups, known)
        self._board = reports
        self._clock = clock
        self._signals: signals.PressureSignals | None = None
        self._due = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._seq = 0
        """Number of the last report."""
        self._resumed = False
        self._reported_at = 0.0
        self.report: state.PressureReport | None = None
        """The report for the status; None: no signal is on."""

    def set_desired(self, settings: state.PressureSettings | None) -> None:
        """Look by these thresholds from now on; None: not at all."""
        if settings == (None if self._signals is None else self._signals.settings):
            return
        self._signals = None if settings is None else signals.PressureSignals(settings)
        self._due.set()

    def resume(self, status: Mapping[str, Any] | None) -> None:
        """Continue the numbers of reports after that of the first status, which the agent before wrote."""
        if self._resumed:
            return
        self._resumed = True
        before = (status or {}).get("pressure")
        seq = before.get("seq") if isinstance(before, dict) else None
        if type(seq) is int and self._seq <= seq < _SEQ_END:
            self._seq = seq
            if self.report is not None:  # by the cached state, before there was a status
                self._seq += 1
                self.report = msgspec.structs.replace(self.report, seq=self._seq)

    async def run(self) -> None:
        """Look whenever it is due; never returns."""
        self._due.set()
        try:
            while True:
                await self._due.wait()
                self._due.clear()
                self._stop()
                wait = await self.look()
                if wait is not None:
                    self._timer = asyncio.get_running_loop().call_later(wait, self._due.set)
        finally:
            self._stop()

    async def look(self) -> float | None:
        """Look now. Return the seconds until the next look; None: another one is due, or none at all."""
        began, asked = self._clock(), self._signals
        if asked is None:
            self._end()
            return None
        verdict = await self._look(asked)
        if asked is not self._signals:  # the thresholds changed meanwhile
            return None
        _publish(verdict)
        await self._update(verdict, asked.settings.report_seconds)
        return max(asked.pause, min(_SHARE * (self._clock() - began), _LONGEST_WAIT))

    async def _look(self, asked: signals.PressureSignals) -> signals.Verdict:
        turn = headroom_reader.Turn(self._clock)
        cheap = self._headroom.without_swap()
        stalls = self._kernel.read()
        headroom = await self._headroom.read(turn.pause) if asked.needs_swap(cheap) else cheap
        verdict = asked.step(signals.MemoryReading(self._clock(), cheap, headroom, stalls))
        if verdict.near:
            await self._pods.begin(turn.pause)
        else:
            self._pods.end()
        return verdict

    async def _update(self, verdict: signals.Verdict, often: float) -> None:
        """Make the report that is due, or remove the last one. `often` are the seconds between two reports."""
        before, now = self.report, self._clock()
        if verdict.signal is None:
            self._remove()
            return
        if before is not None and before.signal == verdict.signal:
            # Also of another scope: with two of nearly the same headroom that may change each second.
            if now - self._reported_at < often:
                return
            since = before.since
        else:
            since = formats.rfc3339(time.time() - (now - verdict.since))
            log.warning(
                "the node is under memory pressure",
                extra={
                    "signal": verdict.signal,
                    "scope": verdict.scope,
                    "headroom_bytes": verdict.headroom,
                    "stall_permille": verdict.stall,
                },
            )
        largest, omitted = await self._pods.largest(headroom_reader.Turn(self._clock).pause)
        self._seq += 1
        self._reported_at = now
        self.report = state.PressureReport(
            seq=self._seq,
            signal=verdict.signal,
            scope=verdict.scope,
            headroom_bytes=verdict.headroom or 0,
            stall_permille=verdict.stall,
            since=since,
            pods=largest,
            pods_omitted=omitted,
        )
        self._board.touch()

    def _remove(self) -> None:
        if self.report is not None:
            log.info("the node is no longer under memory pressure")
            self.report = None
            self._board.touch()

    def _end(self) -> None:
        """Leave nothing of what the state no longer asks for."""
        self._remove()
        self._pods.end()
        SIGNAL.hold({})
        STALL.hold({})

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _publish(verdict: signals.Verdict) -> None:
    on: dict[tuple[str, ...], float]
    on = {(signal.lower(), scope.lower()): float((signal, scope) in verdict.on) for signal, scope in _SIGNALS}
    SIGNAL.hold({**on, _OF_A_POD: float(verdict.of_a_pod)})
    STALL.hold({(scope.lower(),): permille / 1000 for scope, permille in verdict.stalls.items()})
