"""Makes the cgroups of a node's pods hold what the state says, and keeps it so.

Everything here happens in one event loop, without waiting: inotify tells of new cgroups and of writes to files, the
state comes through `apply`, and each leads to settling the files concerned. A full comparison (`resync`) is the safety
net. Files that another wrote to are settled at once; cgroups that came or went, and then what is only compared, wait in
a worklist, so that no repair waits for them. Each pod and each container is reconciled in its own right: what fails
there is its own violation (trouble.Troubles), and stops nothing else.

inventory.Inventory keeps which cgroups there are, resolve answers what a file must hold, and file_reconciler.Settler
brings it there.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import functools
import logging
import pathlib
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from swapwarden.agent.desired import resolve, spec
from swapwarden.agent.drift import attribution, systemd_zero
from swapwarden.agent.host import cgroupfs, faults, inotify, systemd_dropins, watches
from swapwarden.agent.inventory import inventory, layout, records
from swapwarden.agent.ledger import ledger
from swapwarden.agent.node import swap_devices
from swapwarden.agent.reconcile import file_reconciler, headroom, system_units, trouble, unit_io, worklist
from swapwarden.api import names
from swapwarden.api.violations import ViolationReason
from swapwarden.kube import backoff
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

APPLY_SECONDS = metrics.histogram(
    "swapwarden_agent_apply_seconds", "Time to bring all cgroups to a state that arrived."
)
OVERFLOWS = metrics.counter(
    "swapwarden_agent_watch_overflows_total", "Times that inotify lost events, after which all cgroups were compared."
)
RESYNCS = metrics.counter("swapwarden_agent_resyncs_total", "Comparisons of all cgroups with what they are to hold.")
FIND_SECONDS: Final = (1.0, 10.0)
"""First and longest bound of the wait between searches for the tree of pods while there is none."""
LOST_SECONDS: Final = 600.0
"""How long it is told of that the kernel dropped events."""
SLICE_SECONDS: Final = 0.001
"""How long cgroups that came are taken in before what the kernel tells meanwhile has its turn."""
YOUNG_SECONDS: Final = 3.0
"""How long runtimes and systemd normally take to write to a new container's files: a value of the agent's would be
written over, and be repaired, at every start. The pod's own limit holds from the start."""
STIRS: Final = 10
"""Times that what happens inside of a container's cgroup is looked at at once; after that so many seconds later."""
STIR_SECONDS: Final = 1.0
CALM_SECONDS: Final = 60.0
"""After so long without anything it counts anew."""


class Child(NamedTuple):
    """A name in a cgroup: behind it there may be another thing now, or nothing, than was known."""

    owner: watches.Watched
    name: str
    found: bool = False
    """Whether it was found by looking, and not heard of."""

    def __str__(self) -> str:
        """For logs."""
        return f"{self.owner}/{self.name}"


class Rest(enum.Enum):
    """What is reconciled as one."""

    UNITS = "units"
    SWEEP = "sweep"
    """What ends a comparison of all."""


Key = Child | Rest | records.Level | records.Pod | records.Container


class Enforcer:
    """The agent's state machine. Not thread-safe: everything runs in the event loop of `start`."""

    def __init__(
        self,
        cgroups: cgroupfs.Cgroups,
        book: ledger.Ledger,
        *,
        proc: pathlib.Path,
        own_uid: str = "",
        anchor: str = "",
        away: float | None = None,
        changed: Callable[[], None] = lambda: None,
        held_at_zero: Callable[[str], bool] = lambda _: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`changed` is called, often, when `standing` may have become another.

        `held_at_zero` tells of the node's units which ones systemd holds at 0 by the agent's doing.
        `away` is since when no agent can have been at work on the node, where that is known.
        """
        self._fs = cgroups
        self._ledger = book
        self._limits = book.limits
        self._changed = changed
        self._clock = clock
        self._watches = watches.WatchRegistry(readable=lambda: self._guarded(self._readable), degraded=self._poll_later)
        self.inventory = inventory.Inventory(cgroups, self._watches, self, own_uid=own_uid, anchor=anchor)
        self._attribution = attribution.Attribution(
            cgroups, book, self.inventory.pods.values, guarded=self._guarded, changed=changed, clock=clock
        )
        self._settler = file_reconciler.Settler(
            cgroups,
            book,
            headroom.Headroom(cgroups, proc),
            self._attribution,
            own_uid=own_uid,
            again=lambda file: self._guarded(lambda: self._again(file)),
            changed=changed,
            clock=clock,
        )
        if away is not None and not book.initialised:
            book.mark_incomplete()
        self._evidence = systemd_zero.Evidence(cgroups, book, clock)
        self._worklist: worklist.Worklist[Key] = worklist.Worklist()
        self._turn: asyncio.TimerHandle | None = None
        """When it is gone on with."""
        self._troubles: trouble.Troubles[Key] = trouble.Troubles(again=self._mark, short=self._short, changed=changed)
        self._began: float | None = None
        """When the comparison of all began that is under way."""
        self._cut_short = False
        """Whether something of the tree could not be read in it, for reasons that are not one cgroup's."""
        self._drained = clock()
        """Until then inotify has told of everything that happened to what it watches."""
        self._complete = self._lost_until = float("-inf")
        """Between these times events were lost: what they were about is known of files that were looked at since."""
        self._lossy = False
        """Whether some were not."""
        self._read_until = 0
        """So many of the settler's writes have been told of by inotify for certain."""
        io = unit_io.UnitIo(cgroups, book.settings, again=lambda: self._guarded(self._bring_units))
        self._units = system_units.Units(cgroups, book, self._watches, self._settler, io, held_at_zero=held_at_zero)
        self._state: spec.NodeSpec | None = None
        self._problem: layout.TreeError | None = None
        self._away = away
        self._absent = True
        """Whether pods that are found now ran without an agent until now."""
        self._by_looking = False
        """Whether what comes to be known at this moment was found, and not heard of."""
        self._first = not book.initialised
        """Whether pods that are found now were there before any agent."""
        self._waits = backoff.Backoff(*FIND_SECONDS)
        self._search: asyncio.TimerHandle | None = None
        self._poll: asyncio.TimerHandle | None = None
        self._lost = 0
        """How often the kernel dropped events, each time soon after the one before; the last time at `_lost_at`."""
        self._lost_at = float("-inf")
        self._caught_up = clock()
        """All pods that ran before this time are known."""
        self.last_resync = clock()

    # What the rest of the agent uses

    @property
    def root(self) -> str | None:
        """The cgroup above all pods, once found."""
        return None if self.inventory.root is None else self.inventory.root.path

    @property
    def problem(self) -> layout.TreeError | None:
        """Why there is no such cgroup yet."""
        return self._problem

    @property
    def known(self) -> list[records.Pod]:
        """The pods that have a cgroup now."""
        return list(self.inventory.pods.values())

    @property
    def runs(self) -> bool:
        """Whether any pod has a container now."""
        return any(pod.containers for pod in self.inventory.pods.values())

    @property
    def progress(self) -> records.Progress:
        """What is to be reported of reconciling beside the records of pods and files."""
        failures = (records.KeyFailure(*_whose(key), reason, why) for key, reason, why in self._troubles.items())
        return records.Progress(
            spec=self._state,
            problem=self._problem,
            degraded=self._watches.degraded,
            lost=self._lost_lately(self._clock()),
            failures=tuple(failures),
            others=self._attribution.others(),
            settings=tuple(self._units.shortfalls()) if self._units.concerned else None,
            to_restore=self._units.to_put_back,
        )

    @property
    def evidence(self) -> systemd_zero.View:
        """What was seen of systemd's part in guarantee Strict."""
        return self._evidence.view(self.root, self.inventory.pods.values())

    @property
    def drop_in_prefix(self) -> str | None:
        """What the slices begin with that are to have drop-ins; empty: none are to be; None: not known yet."""
        if self._state is None or (self._evidence.wanted and self.root is None):
            return None
        return (systemd_zero.prefix(self.root) or "") if self._evidence.wanted and self.root is not None else ""

    @property
    def drop_in_slices(self) -> tuple[str, ...] | None:
        """The node's slices that are to have drop-ins; None: not known yet."""
        current = self._state
        if current is None or (current.system is not None and self.root is None):
            return None
        if current.system is None or current.system.limit != 0 or current.mode is not names.Mode.ENFORCE:
            return ()
        return systemd_dropins.slices(current.system.units, self.root or "")

    def start(self, cached: spec.NodeSpec | None) -> None:
        """Begin, with the state of an earlier run in force, if there is one. Call it in the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._state = cached
        self._evidence.follow(cached, None, ())
        self._watches.open()
        self._guarded(self._find)

    def close(self) -> None:
        """End; what files hold stays."""
        for file in (*self.inventory.files(), *self._units.files()):
            self._settler.cancel(file)
        self._units.io.cancel_retry()
        self._attribution.close()
        self._worklist.clear()
        self._troubles.clear_all()
        ripening = [container.ripe for pod in self.inventory.pods.values() for container in pod.containers.values()]
        for timer in (self._poll, self._search, self._turn, *ripening):
            if timer is not None:
                timer.cancel()
        self._watches.close()

    def apply(self, new: spec.NodeSpec) -> None:
        """Put a state in force; on return every file that could be brought to it was."""
        self._guarded(lambda: self._apply(new))

    def _apply(self, new: spec.NodeSpec) -> None:
        self._guarded(self._take_in)  # what others wrote until now they wrote over the old values
        begun = self._clock()
        old, self._state = self._state, new
        self._guarded(lambda: self._evidence.follow(new, self.root, self.inventory.pods.values()))
        everything = old is None or (old.mode, old.before_plan) != (new.mode, new.before_plan)
        above = everything or old is None or old.kubepods != new.kubepods
        with self._settler.lowering_first():
            if above:
                self._retarget_root()
            for pod in list(self.inventory.pods.values()):
                changed = everything or old is None or old.pods.get(pod.uid) != new.pods.get(pod.uid)
                # What drains can be lowered as far as what is above it binds it.
                if changed or (above and any(file.status.draining for file in pod.files())):
                    retarget = functools.partial(self._retarget, pod, begun, arrived=True)
                    self._troubles.attempt(pod, retarget, whole=False)
        if everything or old is None or old.system != new.system:
            self._bring_units()
        APPLY_SECONDS.observe(self._clock() - begun)
        self._changed()

    def swap_on(self, disks: swap_devices.Disks) -> None:
        """What the node swaps to, whenever that may have become another."""
        if disks != self._units.io.disks:
            self._units.io.disks = disks
            self._guarded(self._bring_units)

    def catch_up(self) -> None:
        """Take in what inotify has to tell by now. It is done anyway: this is to know that there is nothing more."""
        self._guarded(self._readable)

    def resync(self) -> None:
        """Compare everything with what is wanted, and with what is there: pod by pod, in turns of the event loop."""
        self._guarded(self._resync)

    def _resync(self) -> None:
        known = self._caught_up
        self._take_in()  # what has been told by now is no find
        self._sweep(known)

    def _sweep(self, known: float) -> None:
        """Begin to compare all. One that is under way takes in what it has done already once more.

        All pods are known that there were when it was `known`.
        """
        RESYNCS.inc()
        now = self._clock()
        self._watches.retry()
        self._ledger.retry()
        if not self.inventory.is_there():
            self.inventory.lose()
            self._find()
            self._watches.retried()
            self.last_resync = now
            return
        self.inventory.prune_levels()
        mark = worklist.Mark(now, self._drained)
        # A root that is to hold less does so first, and one that is to hold more last, as in `Settler.lowering_first`.
        if self._is_root_above():
            self._retarget_root()
        for level in self.inventory.levels.values():
            self._worklist.mark(level, worklist.Weight.SWEEP, worklist.Mark(now, known))
        for pod in self.inventory.pods.values():
            self._worklist.mark(pod, worklist.Weight.SWEEP, mark)
        self._worklist.mark(Rest.SWEEP, worklist.Weight.SWEEP, mark)
        # Last: one that is said to have begun, and has not, would keep all others from beginning.
        if self._began is None:
            self._began, self._cut_short = now, False
        self._soon()

    def _is_root_above(self) -> bool:
        file = self.inventory.root
        try:
            return (
                file is not None
                and isinstance(file.desired.value, int)
                and self._fs.read(file.name) > file.desired.value
            )
        except cgroupfs.CgroupError:  # settling it fails, too, and says why
            return False

    def _swept(self, mark: worklist.Mark) -> None:
        """All pods have been compared: what is left to be done, and to be said."""
        if any(isinstance(key, Child) and key.found for key in self._worklist):  # not yet
            self._worklist.mark(Rest.SWEEP, worklist.Weight.SWEEP, mark)
            return
        if not self._cut_short and self._began is not None:
            self._taken_in(self._began)
        if self._worklist.waits(worklist.Weight.SWEEP):  # another comparison began meanwhile
            self._worklist.mark(Rest.SWEEP, worklist.Weight.SWEEP, mark)
        else:
            self._began = None
            self._lossy = False
        self.last_resync = self._clock()
        self._retarget_root()
        self._bring_units()
        self._watches.retried()
        if self._watches.degraded:
            self._poll_later()
        self._changed()

    def _lost_lately(self, now: float) -> int:
        return self._lost if now - self._lost_at < LOST_SECONDS else 0

    # The tree

    def _find(self) -> None:
        """Find the tree of pods and take it in; try again later where there is none."""
        if self._search is not None:
            self._search.cancel()
            self._search = None
        begun = self._clock()
        try:
            level = self.inventory.find()
        except layout.TreeError as problem:
            if self._problem is None or self._problem.reason != problem.reason:
                log.warning("no pods to look after yet: %s", problem)
            self._problem = problem
            self._first = self._first and problem.reason != layout.NO_POD_TREE
            self._absent = self._absent and problem.reason != layout.NO_POD_TREE
            if problem.reason == layout.NO_POD_TREE:
                self._caught_up = begun
            self._changed()
            self._search = self._loop.call_later(self._waits.next(), self._guarded, self._find)
            return
        self._problem = None
        self._waits.reset()
        self._cut_short = False
        with self._settler.lowering_first():
            self._retarget_root()
            self._enter(level, worklist.Mark(begun, self._caught_up), found=True)
            self._take_arrivals()
        if not self._cut_short:
            self._taken_in(begun)
        # Only now: what comes from here on is heard of.
        log.info("found the tree of pods", extra={"root": f"/{level.path}", "pods": len(self.inventory.pods)})
        for record in self._limits:
            self._forget_gone(record.key)
        self._bring_units()
        self._changed()

    def _forget_gone(self, key: ledger.Key) -> None:
        with contextlib.suppress(cgroupfs.CgroupError):  # it may be there
            if self._fs.inode(key.path) != key.inode:
                self._limits.forget(key)

    def _bring_units(self) -> None:
        """Once there is a state, and it is known where pods are, which are no business of these."""
        if self._state is None or self.root is None:
            return
        self._units.bring(self._state, self.root, self._clock())
        if self._units.unfinished:
            self._troubles.failed(Rest.UNITS, None, self._units.unfinished)
        else:
            self._troubles.clear(Rest.UNITS)
        self._changed()

    def _enter(self, level: records.Level, mark: worklist.Mark, *, found: bool) -> None:
        """Have what is in a level, and not known, taken in; what cannot be listed is tried again."""

        def step() -> None:
            try:
                names = self.inventory.enter(level)
            except cgroupfs.DeniedError as error:  # it is nobody's but the node's
                raise cgroupfs.CgroupError(str(error)) from None
            for name in names:
                if not self.inventory.is_known(level, name):
                    self._worklist.mark(Child(level, name, found), worklist.Weight.ARRIVAL, mark)

        self._troubles.attempt(level, step)

    def _taken_in(self, begun: float) -> None:
        """All pods are known that there were when it `begun`."""
        self._absent = self._first = False
        self._caught_up = max(self._caught_up, begun)
        self._ledger.initialise()

    def level_came(self, level: records.Level, mark: worklist.Mark) -> None:
        """As inventory.Listener."""
        self._enter(level, mark, found=self._by_looking)

    def pod_came(self, pod: records.Pod, mark: worklist.Mark, *, denied: str) -> None:
        """As inventory.Listener. A pod that has a container already ran before it was seen.

        Since when, nothing tells: events have no time, and that of a cgroup's directory is when its inode came to
        memory (set_default_inode_attr in the kernel's fs/kernfs/inode.c), which under memory pressure can be long after
        it was made. So its exposure is counted from when the agent last knew all pods: it is at most that long.
        """
        # The mirror knows it from now on, so what fails is the pod's.
        self._troubles.attempt(pod, lambda: self._take_pod(pod, mark))
        if denied:
            self._troubles.failed(pod, ViolationReason.ACCESS_DENIED, denied)

    def _take_pod(self, pod: records.Pod, mark: worklist.Mark) -> None:
        entry = self._limits.get(pod.file.key)
        # Where systemd's 0 is all that was noted, the agent has not known the pod before.
        known = entry is not None and (entry.found is None or bool(entry.wrote))
        if known or resolve.mode_of(self._state) is not names.Mode.ENFORCE:
            pod.origin = resolve.Origin.PREEXISTING
        applied = self._settler.recall(pod.file)
        if applied is not None:
            pod.last = applied
        found = pod.origin is resolve.Origin.PREEXISTING
        taking_in = self._absent and self._by_looking
        pod.enforced = found or taking_in
        self._attribution.look(pod.file)
        ran, since = None, mark.noticed
        if taking_in:
            ran = names.Cause.AGENT_DOWN
            since = mark.noticed if self._away is None else self._away
        else:
            pod.file.created_at = mark.noticed
            if not found:
                ran, since = names.Cause.AGENT_LATE, mark.since
        self._retarget(pod, mark.noticed, since=since, ran=ran)
        if found and self._limits.get(pod.file.key) is None:
            self._limits.mark_known(pod.file.key)
        if resolve.awaits_entry(self._state, pod.uid, origin=pod.origin, last=pod.last):
            self._loop.call_later(resolve.AWAIT_SECONDS, self._changed)
        self._changed()

    def pod_went(self, pod: records.Pod) -> None:
        """As inventory.Listener."""
        self._troubles.clear(pod)
        self._changed()

    def container_came(self, container: records.Container, mark: worklist.Mark) -> None:
        """As inventory.Listener."""
        self._changed()
        if self._puts_off(container):
            self._watches.release(container)
        else:
            self._retarget_container(container, mark.noticed)

    @staticmethod
    def _container_of(file: records.ControlFile) -> records.Container | None:
        everyone = () if file.pod is None else file.pod.containers.values()
        return next((each for each in everyone if file in each.files), None)

    def _puts_off(self, container: records.Container | None) -> bool:
        """Whether so much happens to a container, whose doing that may be, that it is looked at a little later.

        Until then nothing is to be told of it: what is done in a loop would fill the queue that all events come by.
        """
        if container is None:
            return False
        now = self._clock()
        container.stirs = 1 if now - container.stirred > CALM_SECONDS else container.stirs + 1
        container.stirred = now
        if container.stirs <= STIRS:
            return False
        self._ripen(container, STIR_SECONDS)
        return True

    def container_went(self, container: records.Container) -> None:
        """As inventory.Listener."""
        self._troubles.clear(container)

    def file_went(self, file: records.ControlFile) -> None:
        """As inventory.Listener."""
        self._settler.drop(file)

    # What files are to hold

    def _retarget(
        self,
        pod: records.Pod,
        noticed: float,
        *,
        watched: float | None = None,
        since: float | None = None,
        ran: names.Cause | None = None,
        arrived: bool = False,
    ) -> None:
        """Work out anew what a pod's files are to hold, and bring them there: ancestors first.

        Until `watched` events told of all that was written to them, by default until now. `since` is from when the pod
        may have run without a value of ours, and `ran` why. `arrived` where a state arrived just now: a pod that it
        names for the first time ran without until then.
        """
        current, mode = self._state, resolve.mode_of(self._state)
        entry = None if current is None else current.pods.get(pod.uid)
        if mode is not names.Mode.ENFORCE:
            pod.last = None
            pod.enforced = True
        elif entry is not None:
            pod.last = entry.limit
        file = pod.file
        self._look(file)
        of_pod = functools.partial(
            resolve.of_pod, current, entry, origin=pod.origin, last=pod.last, denied=file.spec.denied
        )
        file.desired = records.Desired(of_pod(mode=mode), of_pod(mode=names.Mode.ENFORCE))
        if file.last_applied is not None:
            ran = None
        elif arrived and entry is not None and not pod.stated:
            ran, since = names.Cause.STATE_LATE, pod.since
        if entry is not None:
            pod.stated = True
            pod.origin = resolve.Origin.PREEXISTING
        self.inventory.watch(file)
        with self._settler.lowering_first():
            right = self._last_right(file, watched) if since is None else since
            self._settler.settle(file, noticed, since=right, ran=ran)
            for container in list(pod.containers.values()):
                self._retarget_container(container, noticed, watched=watched)

    def _last_right(self, file: records.ControlFile, watched: float | None = None) -> float | None:
        """The last moment at which a file is known to have held what the agent left in it; None where there is none.

        `watched` as in `_retarget`.
        """
        if file.watch is not None and file.watch == file.times.right_watch:
            told = self._drained if watched is None else watched
            return max(file.times.right_at, min(told, self._complete) if self._may_lack_events(file) else told)
        return file.times.right_at if file.times.right_at > records.NEVER else None

    def _may_lack_events(self, file: records.ControlFile) -> bool:
        """Whether events about a file may have been lost since it was last looked at."""
        return file.times.right_at < self._lost_until

    def _retarget_root(self) -> None:
        file = self.inventory.root
        if file is None:
            return
        of_root = functools.partial(resolve.of_root, self._state)
        mode = resolve.mode_of(self._state)
        file.desired = records.Desired(of_root(mode=mode), of_root(mode=names.Mode.ENFORCE))
        self.inventory.watch(file)
        self._settler.settle(file, self._clock())

    def _retarget_container(
        self, container: records.Container, noticed: float, *, watched: float | None = None
    ) -> None:
        """As `_retarget`; what fails is the container's own violation."""
        step = functools.partial(self._bring_container, container, noticed, watched)
        self._troubles.attempt(container, step)

    def _bring_container(self, container: records.Container, noticed: float, watched: float | None) -> None:
        current, mode = self._state, resolve.mode_of(self._state)
        of_pod = None if current is None else current.pods.get(container.pod.uid)
        entry = own = None if of_pod is None else of_pod.containers.get(container.id)
        if of_pod is not None and own is None:
            entry = of_pod.each
        if not container.files and entry is not own and self._is_young(container):
            return
        error: Exception | None = None
        try:
            if entry is not None or self._was_written(container):
                # Each time: where it cannot be watched, nothing else tells of crun's cgroup inside.
                self._open(container)
        except Exception as unknown:  # noqa: BLE001 raised when the files that are known have what they are to hold
            # A cgroup inside without a process is looked for again, but not where there is ever another one.
            if not (isinstance(unknown, cgroupfs.TransientError) and container.stirs > STIRS):
                error = unknown
        for file in container.files:
            self.inventory.watch(file)
            enforced, at_most = file.desired.if_enforced, file.desired.at_most
            if entry is not None:
                enforced, at_most = entry.limit, entry.cap
            elif of_pod is not None:
                enforced = resolve.Handling.RESTORE
            value = enforced if mode is names.Mode.ENFORCE else resolve.Handling.RESTORE
            file.desired = records.Desired(value, enforced, at_most)
            self._settler.settle(file, noticed, since=self._last_right(file, watched))
        if error is not None:
            raise error

    def _is_young(self, container: records.Container) -> bool:
        """Whether others still write to its files; it is then looked at again."""
        left = container.since + YOUNG_SECONDS - self._clock()
        if left > 0:
            self._ripen(container, left)
        return left > 0

    def _ripen(self, container: records.Container, seconds: float) -> None:
        """Look at it again later."""
        if container.ripe is None:
            container.ripe = self._loop.call_later(seconds, self._guarded, lambda: self._ripened(container))

    def _ripened(self, container: records.Container) -> None:
        container.ripe = None
        self._retarget_container(container, self._clock())

    def _was_written(self, container: records.Container) -> bool:
        """Whether an earlier run may have written to it: it then keeps what it was given, until told otherwise."""
        return any(self._limits.has_name(cgroupfs.SWAP_MAX, path) for path in self.inventory.paths(container))

    def _open(self, container: records.Container) -> None:
        known = set(container.files)
        try:
            self.inventory.open(container)
        finally:
            for file in [file for file in container.files if file not in known]:
                self._know(file, container)

    def _know(self, file: records.ControlFile, container: records.Container) -> None:
        """A file has come to be known."""
        file.created_at = container.since
        self._attribution.look(file)
        # As of its pod, what nobody looked after counts from when the agent went.
        applied = self._settler.recall(file, records.NEVER if self._away is None else self._away)
        if applied is not None:
            file.desired = file.desired._replace(if_enforced=applied)

    # What the kernel tells

    def _guarded(self, step: Callable[[], None]) -> None:
        """Run one step of the event loop. A mistake in it must not end the agent: all is compared a little later."""
        try:
            step()
        except cgroupfs.CgroupError as error:
            self._short(error)
        except Exception as error:  # noqa: BLE001 the last resort
            self._watches.degrade(watches.Degraded.FAULT, faults.fault("the event loop", error))
            self._changed()

    def _short(self, error: cgroupfs.CgroupError) -> None:
        self._cut_short = True
        self._watches.degrade(watches.Degraded.UNREADABLE, f"the tree of pods cannot be read whole ({error})")
        self._changed()

    def _readable(self) -> None:
        """Follow what inotify has to tell."""
        self._take_in()
        if self._worklist.waits(worklist.Weight.ARRIVAL):
            self._work()
        self._find_again()

    def _take_in(self) -> None:
        """Hear what inotify has to tell: what others wrote over is repaired at once, what came or went waits."""
        noticed = self._clock()
        written = self._settler.writes
        touched: dict[records.ControlFile, float] = {}
        lost = False
        for owner, event in self._watches.read():
            if event.mask & inotify.Q_OVERFLOW:
                lost = True
                self._note_loss()
            elif isinstance(owner, records.ControlFile):
                touched.setdefault(owner, self._exposed_since(owner, noticed))
                self._attribution.touched(owner, noticed)
            elif owner is not None:
                self._told(owner, event, noticed)
        with self._settler.lowering_first():
            for file, since in touched.items():
                self._repair(file, noticed, since)
        if lost:
            self._lost = self._lost_lately(noticed) + 1
            self._lost_at = noticed
            OVERFLOWS.inc()
            log.warning("too many events at once: some were lost, comparing everything")
            self._guarded(lambda: self._sweep(self._caught_up))
        if self._watches.drained:
            self._read_until = written
            self._drained = noticed
            # While all is to be compared, there may be pods that events do not tell of.
            if self._poll is None and self._began is None and self.inventory.root is not None:
                self._caught_up = max(self._caught_up, noticed)
        self._soon()

    def _note_loss(self) -> None:
        if not self._lossy:
            self._complete = self._drained
        self._lossy = True
        self._lost_until = self._clock()

    def _exposed_since(self, file: records.ControlFile, noticed: float) -> float:
        """Since when a file may not be right that an event tells of: it need not be the first one about it."""
        right = self._last_right(file) if self._may_lack_events(file) else None
        return noticed if right is None else min(right, noticed)

    def _told(self, owner: watches.Watched, event: inotify.Event, noticed: float) -> None:
        """Something came or went in a directory."""
        mark = worklist.Mark(noticed, self._caught_up)
        if self._units.concerns(owner, event):
            self._worklist.mark(Rest.UNITS, worklist.Weight.ARRIVAL, mark)
        if self.inventory.concerns(owner, event):
            self._worklist.mark(Child(owner, event.name), worklist.Weight.ARRIVAL, mark)
        elif isinstance(owner, records.Container) and self._puts_off(owner):
            self._watches.release(owner)

    def _repair(self, file: records.ControlFile, noticed: float, since: float) -> None:
        """A file was written to; it may not be right `since`."""
        if file.watch is None:
            return
        if file.is_inner and self._puts_off(self._container_of(file)):
            self._watches.release(file)
            return
        # What the agent wrote itself is told of, too.
        if file.times.write_seq <= self._read_until:
            try:
                self._rewritten(file)
            except Exception as error:  # noqa: BLE001 what it says of systemd is worth less than the repair
                faults.fault(str(file), error)
        self._settler.settle(file, noticed, since=since)

    def _find_again(self) -> None:
        """Search for the tree if it has gone."""
        if self.inventory.root is None and self._search is None:
            self._find()

    # What waits

    def _mark(self, key: Key) -> None:
        """Try again what failed."""
        self._worklist.mark(key, worklist.Weight.SWEEP, worklist.Mark(self._clock(), self._drained))
        self._soon()

    def _soon(self) -> None:
        if self._worklist and self._turn is None:
            self._turn = self._loop.call_later(0, self._guarded, self._work)

    def _work(self) -> None:
        """Reconcile some of what waits; the rest after what the kernel tells meanwhile."""
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        until = self._clock() + SLICE_SECONDS
        while (waiting := self._worklist.take(worklist.Weight.ARRIVAL)) is not None:
            self._reconcile(*waiting)
            if self._clock() >= until:
                break
        if (waiting := self._worklist.take(worklist.Weight.SWEEP)) is not None:
            self._reconcile(*waiting)
        self._find_again()
        self._soon()

    def _take_arrivals(self) -> None:
        """Reconcile all that came."""
        while (waiting := self._worklist.take(worklist.Weight.ARRIVAL)) is not None:
            self._reconcile(*waiting)

    def _reconcile(self, key: Key, mark: worklist.Mark) -> None:
        """Bring one key to what the state says, by what is on disk now."""
        match key:
            case Child():
                self._troubles.attempt(key, lambda: self._look_at(key, mark))
            case records.Level() if self.inventory.levels.get(key.path) is key:
                self._enter(key, mark, found=True)
            case records.Pod() if self.inventory.pods.get(key.path) is key:
                self._troubles.attempt(key, lambda: self._compare(key, mark))
            case records.Container() if key in key.pod.containers.values():
                self._retarget_container(key, mark.noticed, watched=mark.since)
            case Rest.UNITS:
                self._guarded(self._bring_units)
            case Rest.SWEEP:
                self._guarded(lambda: self._swept(mark))
            case _:  # gone
                self._troubles.clear(key)

    def _look_at(self, child: Child, mark: worklist.Mark) -> None:
        """See what there is under a name."""
        self._by_looking = child.found
        try:
            origin = resolve.Origin.PREEXISTING if self._first and child.found else resolve.Origin.APPEARED
            self.inventory.look(child.owner, child.name, origin, mark)
        finally:
            self._by_looking = False

    def _compare(self, pod: records.Pod, mark: worklist.Mark) -> None:
        error: cgroupfs.CgroupError | None = None
        try:
            if not self.inventory.refresh(pod, mark):
                return
        except cgroupfs.CgroupError as unknown:  # what is in it; its own limit can be held all the same
            error = unknown
        self._retarget(pod, mark.noticed, watched=mark.since)
        if error is not None:
            raise error

    def _rewritten(self, file: records.ControlFile) -> None:
        """Another writer gave a file what it holds now: that may say what systemd holds."""
        if self._evidence.rewritten(self.root, file):
            self._changed()
        elif self._units.rewritten(file):
            self._bring_units()

    def _look(self, file: records.ControlFile) -> None:
        """See who gave a pod's file what it holds, unless the agent did. One just made may not be there yet."""
        if file.pod is not None and file is file.pod.file and not file.times.write_seq:
            self._evidence.came(self.root, file.pod)

    def _again(self, file: records.ControlFile) -> None:
        self._take_in()  # what has been told by now is no find
        self.inventory.watch(file)
        self._look(file)
        self._settler.settle(file, self._clock(), since=self._last_right(file))

    def _poll_later(self) -> None:
        if self._poll is None:
            self._poll = self._loop.call_later(watches.POLL_SECONDS, self._guarded, self._poll_now)

    def _poll_now(self) -> None:
        self._poll = None
        if self._began is None:  # else its end has this called again
            self.resync()


def _whose(key: Key) -> tuple[str, str]:
    """The pod's UID and the container's id that a violation is about; `kubepods` for what is above pods."""
    match key:
        case records.Pod():
            return key.uid, ""
        case records.Container():
            return key.pod.uid, key.id
        case Child(owner=records.Level()):
            return layout.pod_uid(key.name) or "kubepods", ""
        case Child(owner=records.Pod() as pod):
            return pod.uid, layout.container_id(key.name) or ""
        case Child(owner=records.Container() as container):
            return container.pod.uid, container.id
    return "kubepods", ""
