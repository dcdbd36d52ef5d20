"""Makes the cgroups of a node's pods hold what the state says, and keeps it so.

Everything here happens in one event loop, without waiting: inotify tells of new cgroups and of writes to files, the
state comes through `apply`, and each leads to `_settle` of the files concerned. A full comparison (`resync`) is the
safety net. Effects go through swapwarden.agent.cgroupfs, decisions come from swapwarden.agent.decide.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import pathlib
import random
import time
from collections.abc import Callable, Iterator
from typing import Final

from swapwarden.agent import cgroupfs, decide, exposure, inotify, journal, limits, room, status, tree, wanted
from swapwarden.api import names, state
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

WRITES = metrics.counter(
    "swapwarden_agent_writes_total",
    "Writes to memory.swap.max, by kind of cgroup and result.",
    labels=("kind", "result"),
)
REPAIRS = metrics.counter(
    "swapwarden_agent_repairs_total",
    "Values undone by another writer and written again: above or below what was wanted.",
    labels=("kind", "direction"),
)
REPAIR_SECONDS = metrics.histogram(
    "swapwarden_agent_repair_seconds",
    "From the notice of another writer's value to the verified repair.",
    buckets=(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 1.0),
)
APPLY_SECONDS = metrics.histogram("swapwarden_agent_apply_seconds", "To bring all cgroups to a state that arrived.")
PODS = metrics.gauge("swapwarden_agent_pods", "Pod cgroups that are looked after.")
AWAITING = metrics.gauge("swapwarden_agent_pods_awaiting_state", "Pod cgroups that no state has said anything about.")
WATCHES = metrics.gauge("swapwarden_agent_watches", "inotify watches in use.")
OVERFLOWS = metrics.counter(
    "swapwarden_agent_watch_overflows_total", "Times that events were lost, and all was compared."
)
RESYNCS = metrics.counter("swapwarden_agent_resyncs_total", "Full comparisons.")
FAULTS = metrics.counter(
    "swapwarden_agent_faults_total", "Unexpected errors; the log has them. Each leads to a comparison."
)

ATTEMPTS: Final = 5
"""Writes in a row to a file that another writer changes at the same time, before letting other files have a turn."""
CONTESTED_SECONDS: Final = 0.01
FILE_SECONDS: Final = (0.005, 5.0)
"""First and longest wait for the files of a cgroup that has just been made."""
FILE_ATTEMPTS: Final = 8
"""Looks for such files, within some seconds, after which their lack is a failure."""
FAILED_SECONDS: Final = (1.0, 60.0)
"""First and longest wait before trying a refused write again."""
DRAIN_SECONDS: Final = (2.0, 30.0)
"""Between looks at a cgroup that uses more swap than wanted: the kernel does not tell when it shrinks.

Often while it does; the longer it has stood still, the seldomer, for an idle process may keep its pages out for ever.
"""
POLL_SECONDS: Final = 1.0
"""Between full comparisons while inotify cannot watch everything."""
FIND_SECONDS: Final = (1.0, 10.0)
"""First and longest wait between searches for the tree of pods while there is none."""
AWAIT_SECONDS: Final = 5.0
"""How long a pod without state is normal."""


class ContestedError(cgroupfs.CgroupError):
    """Another writer changes the file as often as the agent does."""


class Knob:
    """One memory.swap.max: what it is to hold, and how that stands. Limits in bytes."""

    __slots__ = (
        "attempts",
        "cap",
        "container",
        "draining",
        "failed",
        "found",
        "holds",
        "inode",
        "moved",
        "path",
        "pod",
        "retry",
        "shadow",
        "swap",
        "target",
        "watch",
    )

    def __init__(self, path: str, inode: int, pod: Pod | None, container: str = "") -> None:
        self.path = path
        self.inode = inode
        self.pod = pod
        self.container = container
        self.target: decide.Target = decide.Hold.LEAVE
        self.shadow: decide.Target = decide.Hold.LEAVE
        """What the target would be if the mode were Enforce."""
        self.cap = False
        self.holds: int | None = None
        """What it was last seen to hold as wanted; another value found later is another writer's."""
        self.found = limits.NO_LIMIT
        self.swap = 0
        self.draining = False
        self.moved = 0.0
        """When its usage or its limit was last seen to be another than before, while it drains."""
        self.failed = ""
        self.attempts = 0
        self.retry: asyncio.TimerHandle | None = None
        self.watch: int | None = None

    @property
    def kind(self) -> str:
        """Label of metrics."""
        return "kubepods" if self.pod is None else "container" if self.container else "pod"

    @property
    def standing(self) -> tuple[object, ...]:
        """What the status tells of it."""
        return self.draining, self.failed, self.found, self.swap, self.target


class Container:
    """A container's cgroup; with crun a second one below it."""

    __slots__ = ("id", "knobs", "path", "pod", "watch")

    def __init__(self, pod: Pod, container: str, path: str) -> None:
        self.pod = pod
        self.id = container
        self.path = path
        self.knobs: list[Knob] = []
        self.watch: int | None = None


class Pod:
    """A pod's cgroup."""

    __slots__ = ("containers", "knob", "last", "origin", "path", "since", "stated", "tally", "uid", "watch")

    def __init__(self, uid: str, path: str, inode: int, origin: decide.Origin, since: float) -> None:
        self.uid = uid
        self.path = path
        self.origin = origin
        self.since = since
        self.last: int | None = None
        self.stated = False
        """Whether a state ever had an entry for it."""
        self.knob = Knob(path, inode, self)
        self.containers: dict[str, Container] = {}
        self.tally = exposure.Tally()
        self.watch: int | None = None

    def knobs(self) -> Iterator[Knob]:
        """Ancestors first."""
        yield self.knob
        for container in self.containers.values():
            yield from container.knobs


class Level:
    """A cgroup in which pods appear."""

    __slots__ = ("inode", "path", "watch")

    def __init__(self, path: str, inode: int | None) -> None:
        self.path = path
        self.inode = inode
        self.watch: int | None = None


class Parent:
    """The cgroup that holds the root of the tree: tells when that goes."""

    __slots__ = ("watch",)

    def __init__(self) -> None:
        self.watch: int | None = None


Watched = Level | Pod | Container | Knob | Parent


class Enforcer:
    """The agent's state machine. Not thread-safe: everything runs in the event loop of `start`."""

    def __init__(
        self,
        cgroups: cgroupfs.Cgroups,
        book: journal.Journal,
        *,
        proc: pathlib.Path,
        own_uid: str = "",
        anchor: str = "",
        changed: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`changed` is called, often, when `standing` may have become another."""
        self._fs = cgroups
        self._journal = book
        self._room = room.Room(cgroups, proc)
        self._own_uid = own_uid
        self._anchor = anchor
        self._changed = changed
        self._clock = clock
        self._state: wanted.State | None = None
        self._root: str | None = None
        self._kubepods: Knob | None = None
        self._levels: dict[str, Level] = {}
        self._pods: dict[str, Pod] = {}
        self._watched: dict[int, Watched] = {}
        self._parent = Parent()
        self._notify: inotify.Inotify | None = None
        self._polling = ""
        """Why not everything can be watched; empty where everything is."""
        self._told = False
        """Whether the log has it."""
        self._poll: asyncio.TimerHandle | None = None
        self._problem: tree.TreeError | None = None
        self._find_wait = FIND_SECONDS[0]
        self._first = not book.restarted
        """Whether pods that are found now were there before any agent."""
        self.last_resync = clock()

    # What the rest of the agent uses

    @property
    def root(self) -> str | None:
        """The cgroup above all pods, once found."""
        return self._root

    def start(self, cached: wanted.State | None) -> None:
        """Begin, with the state of an earlier run in force, if there is one. Call it in the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._state = cached
        try:
            self._notify = inotify.Inotify()
            self._loop.add_reader(self._notify.fileno(), self._guarded, self._readable)
        except OSError as error:
            self._cannot_watch(f"inotify cannot be used ({error.strerror}): raise fs.inotify.max_user_instances")
        self._find()

    def close(self) -> None:
        """End; what files hold stays."""
        for pod in self._pods.values():
            for knob in pod.knobs():
                self._cancel(knob)
        if self._kubepods is not None:
            self._cancel(self._kubepods)
        if self._poll is not None:
            self._poll.cancel()
        if self._notify is not None:
            self._loop.remove_reader(self._notify.fileno())
            self._notify.close()

    def apply(self, new: wanted.State) -> None:
        """Put a state in force; on return every file that could be brought to it was."""
        self._guarded(lambda: self._apply(new))

    def _apply(self, new: wanted.State) -> None:
        begun = self._clock()
        old, self._state = self._state, new
        everything = old is None or (old.mode, old.on_unknown_pod) != (new.mode, new.on_unknown_pod)
        if self._kubepods is not None and (everything or old is None or old.kubepods != new.kubepods):
            self._retarget_root()
        for pod in list(self._pods.values()):
            if everything or old is None or old.pods.get(pod.uid) != new.pods.get(pod.uid):
                self._retarget(pod, begun, arrived=True)
        APPLY_SECONDS.observe(self._clock() - begun)
        self._changed()

    def resync(self) -> None:
        """Compare everything with what is wanted, and with what is there."""
        self._guarded(self._resync)

    def _resync(self) -> None:
        RESYNCS.inc()
        now = self.last_resync = self._clock()
        short = self._polling
        if self._root is None:
            return
        if self._notify is not None:
            self._polling = ""
        if self._kubepods is None or self._fs.inode(self._root) != self._kubepods.inode:
            self._lose_tree()
            self._find()
            return
        self._watch(self._kubepods)
        self._retarget_root()
        for path in [path for path, level in self._levels.items() if self._fs.inode(path) != level.inode]:
            self._leave_level(path)
        for path, pod in list(self._pods.items()):
            if self._fs.inode(path) != pod.knob.inode:
                self._untrack(path)
        for pod in list(self._pods.values()):
            self._compare(pod, now)
        self._enter_level(self._root, decide.Origin.APPEARED, now)
        if short and not self._polling:
            self._told = False
            log.info("everything can be watched again")
        self._changed()

    def standing(self, refused: str = "") -> status.Standing:
        """How things stand now, for the status. `refused`: why the newest state was not taken."""
        now = self._clock()
        violations: list[state.Violation] = []
        awaiting = drifting = pending = 0
        audit = self._state is not None and self._state.mode is names.Mode.AUDIT
        for knob in self._all_knobs():
            pending += self._is_to_put_back(knob)
            if violation := _violation(knob, audit=audit):
                violations.append(violation)
        for pod in self._pods.values():
            drifting += pod.tally.drifting(now)
            if pod.tally.recent(now):
                violations.append(_exposed(pod))
            if self._is_awaiting(pod):
                awaiting += 1
                if now - pod.since >= AWAIT_SECONDS:
                    violations.append(_awaiting(pod))
        PODS.set(len(self._pods))
        AWAITING.set(awaiting)
        WATCHES.set(len(self._watched))
        current = self._state
        return status.Standing(
            root=self._root,
            problem=self._problem,
            polling=self._polling,
            refused=refused,
            mode=names.Mode.ENFORCE if current is None else current.mode,
            generation=0 if current is None else current.generation,
            stated=current is not None,
            violations=violations,
            to_put_back=pending,
            drifting=drifting,
        )

    # The tree

    def _find(self) -> None:
        try:
            root, inode = self._search()
        except tree.TreeError as problem:
            if self._problem is None or self._problem.reason != problem.reason:
                log.warning("no pods to look after yet: %s", problem)
            self._problem = problem
            self._first = self._first and problem.reason != tree.NO_POD_TREE
            self._changed()
            self._loop.call_later(self._find_wait, self._guarded, self._find)
            self._find_wait = min(FIND_SECONDS[1], self._find_wait * 2)
            return
        log.info("found the tree of pods", extra={"root": f"/{root}"})
        self._problem = None
        self._find_wait = FIND_SECONDS[0]
        self._root = root
        self._kubepods = Knob(root, inode, None)
        self._parent.watch = self._add_watch(self._fs.absolute(root.rpartition("/")[0]), inotify.CHILDREN, self._parent)
        self._watch(self._kubepods)
        self._retarget_root()
        self._enter_level(root, decide.Origin.FOUND if self._first else decide.Origin.APPEARED, self._clock())
        self._first = False
        self._drop_stale()
        self._changed()

    def _search(self) -> tuple[str, int]:
        root = tree.find(self._fs.dirs, own_uid=self._own_uid, anchor=self._anchor)
        inode = self._fs.inode(root)
        if inode is None or not self._fs.has(root, cgroupfs.SWAP_MAX):
            raise tree.TreeError(
                "NoSwapController",
                f"/{root} has no memory.swap.max: boot the node with cgroup v2 and the memory controller "
                "(and without swapaccount=0)",
            )
        return root, inode

    def _lose_tree(self) -> None:
        log.warning("the tree of pods is gone; searching for a new one", extra={"root": f"/{self._root}"})
        for path in list(self._pods):
            self._untrack(path)
        for path in list(self._levels):
            self._leave_level(path)
        if self._kubepods is not None:
            self._drop(self._kubepods)
        self._remove_watch(self._parent.watch)
        self._root = self._kubepods = None

    def _drop_stale(self) -> None:
        for path in self._journal.paths():
            if self._journal.get(path, self._fs.inode(path)) is None:
                self._journal.forget(path)

    def _enter_level(self, path: str, origin: decide.Origin, noticed: float) -> None:
        """Watch a level, then list it: what came before the watch is found, what comes after is told."""
        level = self._levels.setdefault(path, Level(path, self._fs.inode(path)))
        if level.watch is None:
            level.watch = self._add_watch(self._fs.absolute(path), inotify.CHILDREN, level)
        for name in self._fs.dirs(path):
            self._appeared(path, name, origin, noticed)

    def _appeared(self, parent: str, name: str, origin: decide.Origin, noticed: float) -> None:
        path = tree.join(parent, name)
        uid = tree.pod_uid(name)
        if uid is not None:
            self._track(uid, path, origin, noticed)
        elif tree.is_level(name):
            self._enter_level(path, origin, noticed)

    def _leave_level(self, path: str) -> None:
        for pod in [pod for pod in self._pods if pod.startswith(f"{path}/")]:
            self._untrack(pod)
        for inner in [level for level in self._levels if level == path or level.startswith(f"{path}/")]:
            self._remove_watch(self._levels.pop(inner).watch)

    # Pods

    def _track(self, uid: str, path: str, origin: decide.Origin, noticed: float) -> None:
        inode = self._fs.inode(path)
        known = self._pods.get(path)
        if known is not None and known.knob.inode == inode:
            return
        if known is not None:
            self._untrack(path)
        if inode is None:
            return
        entry = self._journal.get(path, inode)
        enforcing = self._state is None or self._state.mode is names.Mode.ENFORCE
        if entry is not None or not enforcing:
            origin = decide.Origin.FOUND
        pod = self._pods[path] = Pod(uid, path, inode, origin, noticed)
        if entry is not None and entry.wrote:
            pod.last = pod.knob.holds = entry.wrote[-1]
        elif entry is None and origin is decide.Origin.FOUND:
            self._journal.seen(path, inode)
        pod.watch = self._add_watch(self._fs.absolute(path), inotify.CHILDREN, pod)
        self._watch(pod.knob)
        for name in self._fs.dirs(path):
            self._add_container(pod, name)
        self._retarget(pod, noticed)
        if self._is_awaiting(pod):
            self._loop.call_later(AWAIT_SECONDS, self._changed)
        self._changed()

    def _untrack(self, path: str) -> None:
        """Forget a pod. Its watches are removed by hand: those on a removed cgroup never end by themselves."""
        pod = self._pods.pop(path, None)
        if pod is None:
            return
        self._remove_watch(pod.watch)
        self._drop(pod.knob)
        for name in list(pod.containers):
            self._remove_container(pod, name)
        exposure.forget(pod.uid)
        self._changed()

    def _compare(self, pod: Pod, now: float) -> None:
        if pod.watch is None:
            pod.watch = self._add_watch(self._fs.absolute(pod.path), inotify.CHILDREN, pod)
        there = set(self._fs.dirs(pod.path))
        for name in [name for name in pod.containers if name not in there]:
            self._remove_container(pod, name)
        for name in there:
            self._add_container(pod, name)
        self._watch(pod.knob)
        self._retarget(pod, now)

    def _retarget(self, pod: Pod, noticed: float, *, arrived: bool = False) -> None:
        """Work out anew what a pod's files are to hold, and bring them there: ancestors first.

        `arrived` where a state arrived just now: a pod that it names for the first time ran without until then.
        """
        current = self._state
        mode = names.Mode.ENFORCE if current is None else current.mode
        entry = None if current is None else current.pods.get(pod.uid)
        if mode is not names.Mode.ENFORCE:
            pod.last = None
        elif entry is not None:
            pod.last = entry.limit
        knob = pod.knob
        knob.target = decide.pod_target(current, entry, mode=mode, origin=pod.origin, last=pod.last)
        knob.shadow = decide.pod_target(current, entry, mode=names.Mode.ENFORCE, origin=pod.origin, last=pod.last)
        late = arrived and entry is not None and not pod.stated and knob.holds is None
        self._settle(knob, pod.since if late else noticed, late=late)
        for container in pod.containers.values():
            self._retarget_container(container, noticed)
        if entry is not None:
            pod.stated = True
            pod.origin = decide.Origin.FOUND

    def _retarget_root(self) -> None:
        knob, current = self._kubepods, self._state
        if knob is None:
            return
        value = None if current is None else current.kubepods
        knob.shadow = decide.Hold.PUT_BACK if value is None else value
        enforcing = current is not None and current.mode is names.Mode.ENFORCE
        if current is None:
            knob.target = decide.Hold.LEAVE
        else:
            knob.target = knob.shadow if enforcing else decide.Hold.PUT_BACK
        self._settle(knob, self._clock())

    def _is_awaiting(self, pod: Pod) -> bool:
        current = self._state
        enforcing = current is None or current.mode is names.Mode.ENFORCE
        unknown = current is None or pod.uid not in current.pods
        return enforcing and unknown and pod.origin is decide.Origin.APPEARED and pod.last is None

    # Containers

    def _add_container(self, pod: Pod, name: str) -> Container | None:
        container = tree.container_id(name)
        if container is None:
            return None
        return pod.containers.setdefault(name, Container(pod, container, tree.join(pod.path, name)))

    def _container_appeared(self, pod: Pod, name: str, noticed: float) -> None:
        container = self._add_container(pod, name)
        if container is not None:
            self._retarget_container(container, noticed)

    def _remove_container(self, pod: Pod, name: str) -> None:
        container = pod.containers.pop(name, None)
        if container is None:
            return
        self._remove_watch(container.watch)
        for knob in container.knobs:
            self._drop(knob)

    def _retarget_container(self, container: Container, noticed: float) -> None:
        current = self._state
        mode = names.Mode.ENFORCE if current is None else current.mode
        of_pod = None if current is None else current.pods.get(container.pod.uid)
        entry = None if of_pod is None else of_pod.containers.get(container.id)
        if entry is not None and not container.knobs:
            self._open_container(container)
        elif not container.knobs:
            self._reopen_container(container)
        for knob in container.knobs:
            self._watch(knob)
            if entry is not None:
                knob.shadow, knob.cap = entry.limit, entry.cap
            elif of_pod is not None:
                knob.shadow = decide.Hold.PUT_BACK
            knob.target = knob.shadow if mode is names.Mode.ENFORCE else decide.Hold.PUT_BACK
            self._settle(knob, noticed)

    def _open_container(self, container: Container) -> None:
        """Take a container's files in hand: its cgroup's, and that of crun's cgroup inside, once there is one."""
        if container.watch is None:
            container.watch = self._add_watch(self._fs.absolute(container.path), inotify.CHILDREN, container)
        for path in (container.path, tree.join(container.path, tree.INNER)):
            inode = self._fs.inode(path)
            if inode is not None and all(knob.path != path for knob in container.knobs):
                container.knobs.append(Knob(path, inode, container.pod, container.id))

    def _reopen_container(self, container: Container) -> None:
        """After a restart: a container that an earlier run wrote to keeps what it was given, until told otherwise."""
        for path in (container.path, tree.join(container.path, tree.INNER)):
            inode = self._fs.inode(path)
            entry = self._journal.get(path, inode)
            if inode is not None and entry is not None and entry.wrote:
                knob = Knob(path, inode, container.pod, container.id)
                knob.shadow = knob.holds = entry.wrote[-1]
                container.knobs.append(knob)

    # One file

    def _settle(self, knob: Knob, noticed: float, *, late: bool = False) -> None:
        """Bring one file to what it is to hold, and read that it does."""
        before = knob.standing
        self._cancel(knob)
        try:
            wait = self._bring(knob, noticed, late=late)
        except cgroupfs.GoneError as error:
            wait = self._gone(knob, error)
        except cgroupfs.TransientError as error:
            wait = self._pending(knob, error)
        except ContestedError as error:
            knob.failed = str(error)
            wait = CONTESTED_SECONDS
        except cgroupfs.CgroupError as error:
            wait = self._refused(knob, error)
        else:
            knob.failed = ""
            knob.attempts = 0
        if wait is not None:
            knob.retry = self._loop.call_later(wait, self._guarded, lambda: self._again(knob))
        if knob.standing != before:
            self._changed()

    def _again(self, knob: Knob) -> None:
        self._watch(knob)
        self._settle(knob, self._clock())

    def _bring(self, knob: Knob, noticed: float, *, late: bool) -> float | None:
        """As `_settle`; gives the seconds after which to look again, None for never."""
        if knob.target is decide.Hold.LEAVE:
            return self._settled(knob, knob.found)
        found = self._fs.limit(knob.path)
        for _ in range(ATTEMPTS):
            limit = self._limit(knob, found)
            if limit is None:
                knob.holds = None
                return self._settled(knob, found)
            swap = 0 if limit >= limits.NO_LIMIT else self._fs.in_use(knob.path)
            usages = functools.partial(self._room.usages, knob.path)
            held = knob.holds == limit
            action = decide.decide(limit, found, swap, usages, cap=knob.cap, held=held, page=self._fs.page)
            if action.write is None:
                knob.holds = found
                return self._settled(knob, found, swap, draining=action.draining, cut=found <= limit)
            self._write(knob, found, action.write)
            again = self._fs.limit(knob.path)
            self._account(knob, found, action.write, noticed, swap=swap, late=late)
            if again != action.write:
                WRITES.inc(knob.kind, "overwritten")
                knob.holds = action.write
                noticed = self._clock()
            else:
                WRITES.inc(knob.kind, "ok")
                knob.holds = again
            late, found = False, again
        raise ContestedError(f"{knob.path}: another writer changes it all the time")

    def _settled(
        self, knob: Knob, found: int, swap: int = 0, *, draining: bool = False, cut: bool = False
    ) -> float | None:
        """Note how a file stands that is not to be written now; gives the seconds after which to look again."""
        if not (draining and knob.draining) or (found, swap) != (knob.found, knob.swap):
            knob.moved = self._clock()
        knob.found, knob.swap, knob.draining = found, swap, draining
        if draining and cut:
            self._room.expect(knob.path)
        else:
            self._room.forget(knob.path)
        self._put_back_done(knob, found)
        if not draining:
            return None
        least, most = DRAIN_SECONDS
        return min(most, max(least, (self._clock() - knob.moved) / 2))

    def _limit(self, knob: Knob, found: int) -> int | None:
        """The number that the file is to hold; None where it is no business of the agent's."""
        if isinstance(knob.target, int):
            return knob.target
        entry = self._journal.get(knob.path, knob.inode)
        if entry is None or entry.found is None:
            return None
        if found not in entry.wrote:
            if found != entry.found:
                log.info("a value of another writer is left as it is", extra={"cgroup": f"/{knob.path}"})
            self._journal.forget(knob.path)
            return None
        return entry.found

    def _put_back_done(self, knob: Knob, found: int) -> None:
        entry = self._journal.get(knob.path, knob.inode)
        if knob.target is decide.Hold.PUT_BACK and entry is not None and entry.found == found:
            self._journal.forget(knob.path)
            knob.holds = None

    def _write(self, knob: Knob, found: int, value: int) -> None:
        self._journal.writing(knob.path, knob.inode, found, value)
        self._fs.set_limit(knob.path, value)
        log.debug("wrote", extra={"cgroup": f"/{knob.path}", "found": limits.render(found), "wrote": value})

    def _account(self, knob: Knob, found: int, value: int, noticed: float, *, swap: int, late: bool) -> None:
        """Count a repair, and an exposure where a pod that runs something was above its value."""
        foreign = knob.holds is not None and found != knob.holds
        now = self._clock()
        if foreign:
            REPAIRS.inc(knob.kind, "above" if found > value else "below")
            REPAIR_SECONDS.observe(now - noticed)
        pod = knob.pod
        if found <= value or not (foreign or late) or pod is None or not pod.containers:
            return
        cause = exposure.Cause.REWRITTEN if foreign else exposure.Cause.LATE
        grown = max(0, swap - max(knob.swap, value))
        pod.tally.add(pod.uid, cause, wanted=value, found=found, noticed=noticed, ended=now, grown=grown)
        self._changed()

    def _gone(self, knob: Knob, error: cgroupfs.CgroupError) -> float | None:
        """The file is not there: its cgroup went (events say so), or was only just made and has no files yet."""
        if self._fs.inode(knob.path) != knob.inode:
            WRITES.inc(knob.kind, "gone")
            return None
        return self._pending(knob, error)

    def _pending(self, knob: Knob, error: cgroupfs.CgroupError) -> float:
        """The file is not there, or empty: for a moment that is as it should be."""
        wait = self._backoff(knob, FILE_SECONDS)
        if knob.attempts > FILE_ATTEMPTS:
            knob.failed = str(error)
        return wait

    def _refused(self, knob: Knob, error: cgroupfs.CgroupError) -> float | None:
        denied = isinstance(error, cgroupfs.DeniedError)
        WRITES.inc(knob.kind, "denied" if denied else "error")
        if denied and knob.container and knob.pod is not None and knob.pod.uid == self._own_uid:
            # With nsdelegate nobody may write to the cgroup that is the root of their own namespace.
            return None
        if not knob.failed:
            log.error(
                "cannot set memory.swap.max; trying again", extra={"cgroup": f"/{knob.path}", "error": str(error)}
            )
        knob.failed = str(error)
        return self._backoff(knob, FAILED_SECONDS)

    def _backoff(self, knob: Knob, bounds: tuple[float, float]) -> float:
        first, longest = bounds
        wait = min(longest, first * 2.0 ** min(knob.attempts, 16))
        knob.attempts += 1
        return wait * random.uniform(0.75, 1.25)  # noqa: S311 jitter is no secret

    def _cancel(self, knob: Knob) -> None:
        if knob.retry is not None:
            knob.retry.cancel()
            knob.retry = None

    def _drop(self, knob: Knob) -> None:
        self._cancel(knob)
        self._remove_watch(knob.watch)
        knob.watch = None
        self._room.forget(knob.path)
        self._journal.forget(knob.path)

    # What the kernel tells

    def _guarded(self, step: Callable[[], None]) -> None:
        """Run one step of the event loop. A mistake in it must not end the agent: all is compared a little later."""
        try:
            step()
        except Exception:
            FAULTS.inc()
            log.exception("unexpected error; comparing everything in %s s", POLL_SECONDS)
            self._poll_later()

    def _readable(self) -> None:
        if self._notify is None:
            return
        noticed = self._clock()
        touched: dict[int, Knob] = {}
        for event in self._notify.read():
            if event.mask & inotify.Q_OVERFLOW:
                OVERFLOWS.inc()
                log.warning("too many events at once: some were lost, comparing everything")
                self.resync()
                continue
            owner = self._watched.get(event.watch)
            if owner is None:
                continue
            if event.mask & inotify.IGNORED:
                del self._watched[event.watch]
                owner.watch = None
            elif isinstance(owner, Knob):
                touched[event.watch] = owner
            elif event.mask & (inotify.CREATE | inotify.MOVED_TO):
                self._created(owner, event, noticed)
            else:
                self._deleted(owner, event.name)
        for watch, knob in touched.items():
            if watch in self._watched:
                self._settle(knob, noticed)

    def _created(self, owner: Watched, event: inotify.Event, noticed: float) -> None:
        if isinstance(owner, Level) and event.mask & inotify.ISDIR:
            self._appeared(owner.path, event.name, decide.Origin.APPEARED, noticed)
        elif isinstance(owner, Pod) and event.mask & inotify.ISDIR:
            self._container_appeared(owner, event.name, noticed)
        elif isinstance(owner, Container) and event.name == tree.INNER:
            self._open_container(owner)
            self._retarget_container(owner, noticed)

    def _deleted(self, owner: Watched, name: str) -> None:
        if isinstance(owner, Level):
            path = tree.join(owner.path, name)
            self._untrack(path)
            if path in self._levels:
                self._leave_level(path)
        elif isinstance(owner, Pod):
            self._remove_container(owner, name)
        elif isinstance(owner, Parent) and self._root is not None and name == self._root.rpartition("/")[2]:
            self._lose_tree()
            self._find()

    def _watch(self, knob: Knob) -> None:
        if knob.watch is None:
            knob.watch = self._add_watch(self._fs.absolute(knob.path, cgroupfs.SWAP_MAX), inotify.CONTENT, knob)

    def _add_watch(self, path: str, mask: int, owner: Watched) -> int | None:
        if self._notify is None:
            return None
        try:
            watch = self._notify.add(path, mask)
        except OSError as error:
            if error.errno not in {errno.ENOENT, errno.ENOTDIR}:
                self._cannot_watch(
                    f"not everything can be watched ({error.strerror}): raise fs.inotify.max_user_watches"
                )
            return None
        self._watched[watch] = owner
        return watch

    def _remove_watch(self, watch: int | None) -> None:
        if watch is not None and self._watched.pop(watch, None) is not None and self._notify is not None:
            self._notify.remove(watch)

    def _cannot_watch(self, reason: str) -> None:
        if not self._told:
            log.error("%s; comparing everything every %s s instead", reason, POLL_SECONDS)
        self._told = True
        self._polling = reason
        self._poll_later()

    def _poll_later(self) -> None:
        if self._poll is None:
            self._poll = self._loop.call_later(POLL_SECONDS, self._guarded, self._poll_now)

    def _poll_now(self) -> None:
        self._poll = None
        self.resync()
        if self._polling:
            self._poll_later()

    # What the status tells

    def _all_knobs(self) -> Iterator[Knob]:
        if self._kubepods is not None:
            yield self._kubepods
        for pod in self._pods.values():
            yield from pod.knobs()

    def _is_to_put_back(self, knob: Knob) -> bool:
        entry = self._journal.get(knob.path, knob.inode)
        return knob.target is decide.Hold.PUT_BACK and entry is not None and entry.found is not None


def _violation(knob: Knob, *, audit: bool) -> state.Violation | None:
    differs = audit and decide.differs(knob.shadow, knob.found, cap=knob.cap)
    if knob.failed:
        reason, message = "WriteFailed", knob.failed
    elif knob.draining:
        reason, message = "Draining", _draining(knob)
    elif differs:
        reason, message = "Audit", ""
    else:
        return None
    target = knob.shadow if differs else knob.target
    return state.Violation(
        pod="kubepods" if knob.pod is None else knob.pod.uid,
        reason=reason,
        container=knob.container,
        wanted=limits.render(target) if isinstance(target, int) else "",
        found=limits.render(knob.found),
        swap_bytes=knob.swap,
        message=message[:512],
    )


def _draining(knob: Knob) -> str:
    excess = knob.swap - knob.target if isinstance(knob.target, int) else 0
    return f"{max(0, excess)} bytes more than wanted are in use; they may not grow, and fall as pages are touched"


def _exposed(pod: Pod) -> state.Violation:
    tally = pod.tally
    return state.Violation(
        pod=pod.uid,
        reason="Exposed",
        wanted=limits.render(tally.wanted),
        found=limits.render(tally.found),
        swap_bytes=tally.grown,
        exposures=tally.count,
        exposed_milliseconds=round(tally.milliseconds),
    )


def _awaiting(pod: Pod) -> state.Violation:
    return state.Violation(
        pod=pod.uid,
        reason="AwaitingState",
        found=limits.render(pod.knob.found),
        message="the state says nothing of this pod: is the controller running?",
    )
