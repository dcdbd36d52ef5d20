"""The turns of the thread: looks at pods that are due, and has the kernel reclaim what desired.reclaim decides.

It reads and writes cgroups only by a descriptor of its own, and shares immutable data with the event loop: orders come
in, and a view leaves. A kernel that hangs in a write stops this thread, and nothing else.
"""

from __future__ import annotations

import contextlib
import logging
import pathlib
import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec

from swapwarden.agent.desired import reclaim
from swapwarden.agent.host import cgroupfs, faults, files, memory_reclaim
from swapwarden.agent.node import node_info
from swapwarden.agent.pressure import kernel_totals
from swapwarden.agent.reclaim import history
from swapwarden.api import names, state
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

MOVED = metrics.counter(
    "swapwarden_agent_reclaim_moved_bytes_total", "Swap that pods took while their idle memory was moved there."
)
FREED = metrics.counter(
    "swapwarden_agent_reclaim_freed_bytes_total",
    "Memory in use of pods that became less by it, page cache included.",
)
REFAULTED = metrics.counter(
    "swapwarden_agent_reclaim_refaulted_bytes_total",
    "Swapped memory that these pods soon needed again (workingset_refault_anon), however it was swapped.",
)
SECONDS = metrics.counter(
    "swapwarden_agent_reclaim_seconds_total", "Time that the kernel took to move idle memory of pods to swap."
)
LOOKS = metrics.counter(
    "swapwarden_agent_reclaim_looks_total",
    "Looks at pods whose idle memory may be moved to swap, by result: Step, or why there was none.",
    labels=("result",),
    known=[(hold.value,) for hold in names.ReclaimHold],
)

PUBLISH_SECONDS: Final = 300.0
"""Between two views for the status: etcd stores the whole object with each."""
IDLE_SECONDS: Final = 600.0
"""The longest wait for an order, a pod or the end."""
EFFECTLESS: Final = 8
"""Pieces in a row that the kernel took and did nothing for, after which it counts as one that never does."""
SHOWN_BYTES: Final = 256 << 10
"""A smaller piece may show no effect: the kernel counts pages in batches."""
NODE_SECONDS: Final = 2.0
"""How old a look at the node may be."""
_NO_EFFECT: Final = f"the node's kernel accepts {memory_reclaim.RECLAIM} and reclaims nothing"
_NO_PRESSURE: Final = "the node's kernel shows no memory pressure of cgroups: it needs CONFIG_PSI, and psi=1"


class ReclaimTarget(msgspec.Struct, frozen=True):
    """A pod whose idle memory may be moved."""

    uid: str
    path: str
    mode: names.ReclaimMode
    since: float
    """When its newest container started, in monotonic seconds."""
    containers: frozenset[str]
    """The ids."""


class ReclaimOrder(msgspec.Struct, frozen=True):
    """All that the thread must know."""

    bounds: state.ReclaimSettings | None = None
    """None: nothing is moved."""
    root: str = ""
    """The cgroup above all pods."""
    targets: tuple[ReclaimTarget, ...] = ()


class View(msgspec.Struct, frozen=True):
    """How it stands, for the event loop."""

    pods: tuple[state.ReclaimedPod, ...] = ()
    """The most first."""
    problem: str = ""
    """Why it cannot work on this node."""


class _PodProgress(msgspec.Struct, eq=False):
    target: ReclaimTarget
    pace: reclaim.Pace
    hold: names.ReclaimHold = names.ReclaimHold.WAITS
    refaults: int | None = None
    moved: int = 0
    refaulted: int = 0
    seconds: float = 0.0


class Reclaimer:
    """Turns, without the thread: see Runner. `order` and `stop` may be set by another thread."""

    def __init__(
        self,
        fs: memory_reclaim.ReclaimFiles,
        proc: pathlib.Path,
        past: history.History,
        stop: threading.Event,
        *,
        startup: float = reclaim.STARTUP_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.order = ReclaimOrder()
        self.view = View()
        self._fs = fs
        self._proc = proc
        self._past = past
        self._stop = stop
        self._startup = startup
        self._clock = clock
        self._pods: dict[str, _PodProgress] = {}
        self._node: reclaim.NodeSample | None = None
        self._pressed = True
        self._effectless = 0

    def turn(self) -> float:
        """Look at the pods that are due; return the seconds until the next turn."""
        order = self.order
        self._follow(order)
        bounds, now = order.bounds, self._clock()
        due = [pod for pod in self._pods.values() if pod.pace.due <= now]
        if bounds is not None and due and self._can_work(order):
            swap: dict[str, int] = {}
            self._look_at_node()
            for pod in sorted(due, key=lambda each: each.pace.due):
                if self._stop.is_set() or self.order is not order or self._effectless >= EFFECTLESS:
                    break
                if self._node is not None and self._clock() - self._node.now >= NODE_SECONDS:
                    self._look_at_node()
                    swap.clear()
                try:
                    self._look(pod, bounds, swap)
                except Exception as error:  # noqa: BLE001 one pod must not stop the others
                    pod.pace.look_anew(self._clock() + reclaim.WAIT_SECONDS, bounds)
                    faults.fault(f"/{pod.target.path}", error)
            self._past.save()
        self._publish()
        waits = [pod.pace.due - self._clock() for pod in self._pods.values() if not pod.pace.done]
        if self.order is not order:
            return 0.0
        return min(max(0.1, min(waits, default=IDLE_SECONDS)), IDLE_SECONDS) if bounds else IDLE_SECONDS

    def _follow(self, order: ReclaimOrder) -> None:
        """Take the pods of an order; a pod with a new container starts again."""
        wanted = {target.uid: target for target in order.targets}
        for uid in self._pods.keys() - wanted.keys():
            del self._pods[uid]
            self._past.done.pop(uid, None)
        for uid, target in wanted.items():
            known = self._pods.get(uid)
            if known is None or known.target.mode is not target.mode or target.containers - known.target.containers:
                begins = target.since + self._startup if target.mode is names.ReclaimMode.STARTUP else self._clock()
                pod = _PodProgress(target, reclaim.Pace(target.mode, begins))
                if known is not None:
                    pod.refaults, pod.moved, pod.refaulted = known.refaults, known.moved, known.refaulted
                    pod.seconds = known.seconds
                done = self._past.done.get(uid, frozenset())
                if target.mode is names.ReclaimMode.STARTUP and target.containers <= done:
                    pod.pace.done, pod.hold = True, names.ReclaimHold.DONE
                self._pods[uid] = pod
            else:
                known.target = target

    def _can_work(self, order: ReclaimOrder) -> bool:
        """Return whether the kernel can; else the view says why not, and it is tried again in an hour."""
        if self._effectless >= EFFECTLESS:
            problem = _NO_EFFECT
            self._effectless -= 1  # one piece decides then
        elif not self._fs.has(order.root, memory_reclaim.RECLAIM):
            problem = f"the node's kernel has no {memory_reclaim.RECLAIM}: it needs Linux 5.19 or newer"
        elif kernel_totals.of_node(self._proc) is None:
            problem = _NO_PRESSURE
        else:
            if not (self.view.problem == _NO_EFFECT and self._effectless):
                self._report("")
            return True
        self._report(problem)
        for pod in self._pods.values():
            pod.pace.due = self._clock() + reclaim.MAX_WAIT_SECONDS
        return False

    def _report(self, problem: str) -> None:
        if problem and problem != self.view.problem:
            log.warning("no idle memory can be moved to swap: %s", problem)
        self.view = msgspec.structs.replace(self.view, problem=problem)

    def _look_at_node(self) -> None:
        """Take a sample; none if the kernel's files lack something.

        The signals of memory pressure do not serve here: they ask for an eviction, long after steps must end, and exist
        only with spec.pressure.
        """
        now, totals = self._clock(), kernel_totals.of_node(self._proc)
        free = node_info.meminfo(files.text(self._proc / "meminfo") or "").get("SwapFree")
        before, self._node = self._node, None
        if totals is not None and "pgscan_direct" in totals.counted and free is not None:
            self._node = reclaim.NodeSample(now, totals.counted["pgscan_direct"], totals.full, free)
            self._pressed = reclaim.is_pressed(before, self._node)

    def _look(self, pod: _PodProgress, bounds: state.ReclaimSettings, swap: dict[str, int]) -> None:
        sample, node = self._sample(pod.target.path, swap), self._node
        if sample is None or node is None:
            pod.pace.look_anew(self._clock(), bounds)
            pod.refaults = None
            self._held(pod, names.ReclaimHold.UNREADABLE)
            return
        if pod.refaults is not None and sample.refaults > pod.refaults:
            back = (sample.refaults - pod.refaults) * self._fs.page
            pod.refaulted += back
            REFAULTED.inc(by=back)
        pod.refaults = sample.refaults
        decision = pod.pace.decide(
            sample,
            bounds,
            swap_free=node.swap_free,
            writes_left=self._past.writes.left(sample.now, bounds.writes_per_day_bytes),
            pressed=self._pressed,
            page=self._fs.page,
        )
        self._held(pod, decision.hold)
        if decision.size:
            freed, moved = self._step(pod, decision.size, sample)
            self._node = msgspec.structs.replace(node, swap_free=max(0, node.swap_free - moved))
            for path in (pod.target.path, *cgroupfs.above(pod.target.path)):
                swap.pop(path, None)
            pod.pace.took(decision.size, freed, self._clock())
        if pod.pace.done:
            self._past.done[pod.target.uid] = pod.target.containers

    def _held(self, pod: _PodProgress, hold: names.ReclaimHold) -> None:
        pod.hold = hold
        LOOKS.inc(hold.value)

    def _step(self, pod: _PodProgress, size: int, sample: reclaim.PodSample) -> tuple[int, int]:
        """Reclaim in pieces; return the bytes that are not in use any more, and those that went to swap."""
        path, left, begun = pod.target.path, size, self._clock()
        current, swapped = sample.current, sample.swap
        with contextlib.suppress(cgroupfs.CgroupError):  # less than asked, or the cgroup is gone
            while left > 0 and not self._stop.is_set():
                piece = min(left, memory_reclaim.PIECE_BYTES)
                try:
                    self._fs.reclaim(path, piece)
                finally:
                    was = current, swapped
                    current = self._fs.read(cgroupfs.join(path, cgroupfs.MEMORY_CURRENT))
                    swapped = self._fs.read(cgroupfs.join(path, cgroupfs.SWAP_CURRENT))
                    self._past.writes.spend(swapped - was[1], self._clock())
                if piece >= SHOWN_BYTES and current >= was[0] and swapped <= was[1]:
                    self._effectless += 1
                    break
                self._effectless = 0
                left -= piece
        freed, moved = max(0, sample.current - current), max(0, swapped - sample.swap)
        took = max(0.0, self._clock() - begun)
        pod.moved += moved
        pod.seconds += took
        for metric, amount in ((MOVED, moved), (FREED, freed), (SECONDS, took)):
            metric.inc(by=amount)
        return freed, moved

    def _sample(self, path: str, swap: dict[str, int]) -> reclaim.PodSample | None:
        """Return a look at a pod; None if it is gone, or the kernel shows too little."""
        try:
            some = self._fs.pressure(path, "memory").get("some")
            refaults = self._fs.counts(path, cgroupfs.MEMORY_STAT).get("workingset_refault_anon")
            current, used, *protected = (self._fs.read(cgroupfs.join(path, file)) for file in _READ)
        except cgroupfs.CgroupError:
            return None
        if some is None or refaults is None:
            return None
        left = self._left(path, swap)
        return reclaim.PodSample(self._clock(), some, refaults, current, used, left, max(protected))

    def _left(self, path: str, known: dict[str, int]) -> int:
        """Return the swap that a cgroup and those above it leave to it; 0 if that is unreadable."""
        if not path:
            return cgroupfs.NO_LIMIT
        if path not in known:
            try:
                limit = self._fs.read(cgroupfs.join(path, cgroupfs.SWAP_MAX))
                used = self._fs.read(cgroupfs.join(path, cgroupfs.SWAP_CURRENT))
            except cgroupfs.CgroupError:
                limit = used = 0
            own = cgroupfs.NO_LIMIT if limit >= cgroupfs.NO_LIMIT else max(0, limit - used)
            known[path] = min(own, self._left(path.rpartition("/")[0], known))
        return known[path]

    def _publish(self) -> None:
        listed = [
            state.ReclaimedPod(
                pod=uid,
                hold=pod.hold.value,
                moved_bytes=pod.moved,
                refaulted_bytes=pod.refaulted,
                milliseconds=round(pod.seconds * 1000),
            )
            for uid, pod in self._pods.items()
        ]
        listed.sort(key=lambda each: (-each.moved_bytes, each.pod))
        self.view = msgspec.structs.replace(self.view, pods=tuple(listed))


_READ: Final = (cgroupfs.MEMORY_CURRENT, cgroupfs.SWAP_CURRENT, cgroupfs.MEMORY_LOW, cgroupfs.MEMORY_MIN)
