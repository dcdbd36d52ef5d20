"""Moves idle memory to swap in a thread: has the kernel reclaim what desired.reclaim decides for pods that are due.

The thread reads and writes cgroups only by a descriptor of its own, and shares immutable data with the event loop:
orders come in, and a view leaves. A kernel that hangs in a write stops this thread, and nothing else. No thread runs
until a pod asks for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pathlib
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from swapwarden.agent.desired import reclaim, spec
from swapwarden.agent.host import cgroupfs, faults, files
from swapwarden.agent.inventory import board, records
from swapwarden.agent.ledger import replaced_file
from swapwarden.agent.node import node_info
from swapwarden.agent.pressure import sampler
from swapwarden.api import names, state
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

FILE: Final = "reclaim"
_BYTES: Final = 1 << 20
MAX_DONE: Final = 512
"""Pods that are kept: with the next agent, others begin Startup again."""


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
"""Seconds between two views for the status: etcd stores the whole object with each."""
IDLE_SECONDS: Final = 600.0
"""The longest wait for an order, a pod or the end."""
EFFECTLESS: Final = 8
"""Pieces in a row that the kernel took and did nothing for, after which it counts as one that never does."""
SHOWN_BYTES: Final = 256 << 10
"""A smaller piece may show no effect: the kernel counts pages in batches."""
NODE_SECONDS: Final = 2.0
"""How old a look at the node may be."""


RETRY_SECONDS: Final = 60.0
"""Seconds before the next turn after an unexpected error."""
END_SECONDS: Final = 2.0
"""How long an agent that ends waits for the piece under way."""
_NO_EFFECT: Final = f"the node's kernel accepts {cgroupfs.RECLAIM} and reclaims nothing"
_NO_PRESSURE: Final = "the node's kernel shows no memory pressure of cgroups: it needs CONFIG_PSI, and psi=1"


_READ: Final = (cgroupfs.MEMORY_CURRENT, cgroupfs.SWAP_CURRENT, cgroupfs.MEMORY_LOW, cgroupfs.MEMORY_MIN)


class _Stored(msgspec.Struct, omit_defaults=True):
    """The content of the file."""

    slots: list[tuple[float, int]] = []
    done: dict[str, list[str]] = {}


class History:
    """Records that outlive an agent: bytes moved within 24 hours, and the containers whose Startup has ended.

    The file is in the agent's run folder, so both end with the boot. One that cannot be understood counts as none. Only
    one thread may use it.
    """

    def __init__(self, folder: pathlib.Path, now: float) -> None:
        """Read the file of an agent before. `now`: monotonic seconds, which a boot resets."""
        self.writes = reclaim.WriteBudget()
        self.done: dict[str, frozenset[str]] = {}
        """Containers of each pod, by UID, when its Startup ended."""
        self._file = replaced_file.ReplacedFile(folder / FILE, self._content, lambda: now)
        self._saved = b""
        try:
            stored = msgspec.json.decode(files.whole(folder / FILE, _BYTES), type=_Stored)
        except FileNotFoundError:
            return
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            log.warning("the record of reclaim is lost: its writes of the last 24 hours do not count: %s", error)
            return
        if all(0 <= begin <= now and size >= 0 for begin, size in stored.slots):
            self.writes.slots = sorted(stored.slots)[-reclaim.MAX_SLOTS :]
            self.done = {uid: frozenset(ids) for uid, ids in list(stored.done.items())[-MAX_DONE:]}
            self._saved = self._content()

    def save(self) -> None:
        """Write the changes; a full disk is logged, and stops nothing."""
        content = self._content()
        if content != self._saved and self._file.write_anew() is None:
            self._saved = content

    def close(self) -> None:
        """Close the file, which stays."""
        self._file.close()

    def _content(self) -> bytes:
        done = {uid: sorted(ids) for uid, ids in list(self.done.items())[-MAX_DONE:]}
        return msgspec.json.encode(_Stored(self.writes.slots, done))


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
    """Bounds of the steps; None: nothing is moved."""
    root: str = ""
    """The cgroup above all pods."""
    targets: tuple[ReclaimTarget, ...] = ()


class View(msgspec.Struct, frozen=True):
    """Reclaim as the event loop sees it: amounts by pod, and why it cannot work."""

    pods: tuple[state.ReclaimedPod, ...] = ()
    """The most first."""
    problem: str = ""
    """Why idle memory cannot be moved on this node, or empty."""


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
        fs: cgroupfs.ReclaimFiles,
        proc: pathlib.Path,
        past: History,
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
        targets = {target.uid: target for target in order.targets}
        for uid in self._pods.keys() - targets.keys():
            del self._pods[uid]
            self._past.done.pop(uid, None)
        for uid, target in targets.items():
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
        elif not self._fs.has(order.root, cgroupfs.RECLAIM):
            problem = f"the node's kernel has no {cgroupfs.RECLAIM}: it needs Linux 5.19 or newer"
        elif sampler.node_totals(self._proc) is None:
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
        now, totals = self._clock(), sampler.node_totals(self._proc)
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
                piece = min(left, cgroupfs.PIECE_BYTES)
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


class Runner:
    """The thread as the event loop has it: begun when a pod asks, given orders, ended with the agent."""

    def __init__(
        self, cgroups: cgroupfs.Cgroups, proc: pathlib.Path, run_dir: pathlib.Path, reports: board.Board
    ) -> None:
        self._cgroups = cgroups
        self._proc = proc
        self._run_dir = run_dir
        self._board = reports
        self._began = time.monotonic()
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._order = ReclaimOrder()
        self._thread: threading.Thread | None = None
        self._turns: Reclaimer | None = None
        self._published = float("-inf")

    def follow(self, desired: spec.NodeSpec | None, root: str | None, pods: Iterable[records.Pod]) -> None:
        """Take the state in force and the pods there are."""
        if desired is None or desired.reclaim is None or root is None or desired.mode is not names.Mode.ENFORCE:
            order = ReclaimOrder()
        else:
            order = ReclaimOrder(desired.reclaim, root, tuple(self._targets(desired, pods)))
        if order != self._order:
            self._order = order
            if self._thread is None and order.targets:
                self._begin()
            if self._turns is not None:
                self._turns.order = order
                self._wake.set()
        if self._turns is not None:
            self._show(self._turns.view)

    def close(self) -> None:
        """End after the piece under way; a thread that hangs in the kernel is left behind."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(END_SECONDS)

    def remove(self) -> None:
        """End, and leave no file behind. OSError if that fails."""
        self.close()
        (self._run_dir / FILE).unlink(missing_ok=True)

    def _targets(self, desired: spec.NodeSpec, pods: Iterable[records.Pod]) -> Iterable[ReclaimTarget]:
        for pod in pods:
            entry = desired.pods.get(pod.uid)
            if entry is None or entry.reclaim in {None, names.ReclaimMode.OFF} or not pod.containers:
                continue
            if pod.file.status.draining:
                continue
            since = max(self._began, *(each.since for each in pod.containers.values()))
            ids = frozenset(each.id[: state.ID_LENGTH] for each in pod.containers.values())
            yield ReclaimTarget(pod.uid, pod.path, names.ReclaimMode(entry.reclaim), since, ids)

    def _show(self, view: View) -> None:
        """Have the status show what changed: amounts rarely, a problem at once."""
        asked = bool(self._order.targets)
        problem = board.SettingProblem("reclaim", names.Problem.NOT_SUPPORTED, view.problem)
        shown = (problem,) if asked and view.problem else ()
        status = board.SettingStatus(concerned=bool(shown), problems=shown)
        pods = view.pods if asked else ()
        now = time.monotonic()
        late = now - self._published >= PUBLISH_SECONDS or not pods
        if status != self._board.reclaim or (late and pods != self._board.reclaimed):
            self._published = now
            self._board.reclaim, self._board.reclaimed = status, pods
            self._board.touch()

    def _begin(self) -> None:
        try:
            fs = cgroupfs.ReclaimFiles(self._cgroups.root, self._cgroups.page)
        except OSError as error:
            log.warning("idle memory is not moved to swap: %s", error)
            return
        past = History(self._run_dir, time.monotonic())
        self._turns = Reclaimer(fs, self._proc, past, self._stop)
        self._turns.order = self._order
        loop = asyncio.get_running_loop()
        self._thread = threading.Thread(
            target=self._run, args=(self._turns, fs, past, loop), name="reclaim", daemon=True
        )
        try:
            self._thread.start()
        except RuntimeError as error:
            fs.close()
            self._thread = self._turns = None
            self._order = ReclaimOrder()
            log.warning("idle memory is not moved to swap: %s", error)

    def _run(
        self,
        turns: Reclaimer,
        fs: cgroupfs.ReclaimFiles,
        past: History,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Be the thread."""
        published, problem = time.monotonic(), ""
        try:
            while not self._stop.is_set():
                try:
                    wait = turns.turn()
                except Exception as error:  # noqa: BLE001 the thread must not end
                    faults.fault("reclaim", error)
                    wait = RETRY_SECONDS
                now = time.monotonic()
                if turns.view.problem != problem or now - published >= PUBLISH_SECONDS:
                    published, problem = now, turns.view.problem
                    self._publish(loop, turns)
                self._wake.wait(wait)
                self._wake.clear()
        finally:
            past.save()
            past.close()
            fs.close()

    def _publish(self, loop: asyncio.AbstractEventLoop, turns: Reclaimer) -> None:
        try:
            loop.call_soon_threadsafe(lambda: self._show(turns.view))
        except RuntimeError:  # the loop has ended
            self._stop.set()
