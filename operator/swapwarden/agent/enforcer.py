"""Makes the cgroups of a node's pods hold what the state says, and keeps it so.

Everything here happens in one event loop, without waiting: inotify tells of new cgroups and of writes to files, the
state comes through `apply`, and each leads to settling the files concerned. A full comparison (`resync`) is the safety
net. Which cgroups there are is kept by mirror.Mirror, what a file is to hold is said by targets, and settler.Settler
brings it there.
"""

from __future__ import annotations

import asyncio
import logging
import pathlib
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from swapwarden.agent import (
    cgroupfs,
    deviations,
    dropins,
    inotify,
    journal,
    mirror,
    originals,
    pods,
    rewrites,
    room,
    settler,
    status,
    strict,
    swapdisks,
    targets,
    tree,
    turns,
    unitio,
    units,
    wanted,
    watches,
)
from swapwarden.api import names, state
from swapwarden.kube import backoff
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

APPLY_SECONDS = metrics.histogram(
    "swapwarden_agent_apply_seconds", "Time to bring all cgroups to a state that arrived."
)
AWAITING = metrics.gauge(
    "swapwarden_agent_pods_awaiting_state",
    "Pods that came and that no state says anything about yet; most get no swap until then.",
)
OVERFLOWS = metrics.counter(
    "swapwarden_agent_watch_overflows_total", "Times that inotify lost events, after which all cgroups were compared."
)
RESYNCS = metrics.counter("swapwarden_agent_resyncs_total", "Comparisons of all cgroups with what they are to hold.")
FAULTS = metrics.counter(
    "swapwarden_agent_faults_total", "Unexpected errors; the log has them. Each leads to a comparison."
)

FIND_SECONDS: Final = (1.0, 10.0)
"""First and longest bound of the wait between searches for the tree of pods while there is none."""
LOST_SECONDS: Final = 600.0
"""How long it is told of that the kernel dropped events."""
AWAIT_SECONDS: Final = 5.0
"""How long a pod without state is normal."""
PODS_A_TURN: Final = 20
"""Looked at for the status before other work has its turn: for about as long as one repair takes."""
YOUNG_SECONDS: Final = 3.0
"""How long runtimes and systemd normally take to write to a new container's files: a value of the agent's would be
written over, and be repaired, at every start. The pod's own limit holds from the start."""


class Enforcer:
    """The agent's state machine. Not thread-safe: everything runs in the event loop of `start`."""

    def __init__(
        self,
        cgroups: cgroupfs.Cgroups,
        book: journal.Journal,
        kept: originals.Originals,
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

        `book` is of limits of swap, `kept` of other values.
        `held_at_zero` tells of the node's units which ones systemd holds at 0 by the agent's doing.
        `away` is since when no agent can have been at work on the node, where that is known.
        """
        self._fs = cgroups
        self._journal = book
        self._changed = changed
        self._clock = clock
        self._watches = watches.Watches(readable=lambda: self._guarded(self._readable), fell_short=self._poll_later)
        self._mirror = mirror.Mirror(cgroups, self._watches, self, own_uid=own_uid, anchor=anchor)
        self._rewrites = rewrites.Rewrites(
            cgroups, book, self._mirror.pods.values, guarded=self._guarded, changed=changed, clock=clock
        )
        self._settler = settler.Settler(
            cgroups,
            book,
            room.Room(cgroups, proc),
            self._rewrites,
            own_uid=own_uid,
            again=lambda knob: self._guarded(lambda: self._again(knob)),
            changed=changed,
            clock=clock,
        )
        if away is not None and not book.begun:
            book.doubt()
        self._evidence = strict.Evidence(cgroups, book, clock)
        self._read_until = 0
        """So many of the settler's writes have been told of by inotify for certain."""
        io = unitio.UnitIo(cgroups, kept, again=lambda: self._guarded(self._bring_units))
        self._units = units.Units(cgroups, book, self._watches, self._settler, io, held_at_zero=held_at_zero)
        self._state: wanted.State | None = None
        self._problem: tree.TreeError | None = None
        self._away = away
        self._absent = True
        """Whether pods that are found now ran without an agent until now."""
        self._taking_in = False
        """Whether such pods come to be known at this moment."""
        self._first = not book.begun
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
        return None if self._mirror.root is None else self._mirror.root.path

    @property
    def problem(self) -> tree.TreeError | None:
        """Why there is no such cgroup yet."""
        return self._problem

    @property
    def known(self) -> list[pods.Pod]:
        """The pods that have a cgroup now."""
        return list(self._mirror.pods.values())

    @property
    def evidence(self) -> strict.View:
        """What was seen of systemd's part in guarantee Strict."""
        return self._evidence.view(self.root, self._mirror.pods.values())

    @property
    def drop_in_prefix(self) -> str | None:
        """What the slices begin with that are to have drop-ins; empty: none are to be; None: not known yet."""
        if self._state is None or (self._evidence.wanted and self.root is None):
            return None
        return (strict.prefix(self.root) or "") if self._evidence.wanted and self.root is not None else ""

    @property
    def drop_in_slices(self) -> tuple[str, ...] | None:
        """The node's slices that are to have drop-ins; None: not known yet."""
        current = self._state
        if current is None or (current.system is not None and self.root is None):
            return None
        if current.system is None or current.system.limit != 0 or current.mode is not names.Mode.ENFORCE:
            return ()
        return dropins.slices(current.system.units, self.root or "")

    def start(self, cached: wanted.State | None) -> None:
        """Begin, with the state of an earlier run in force, if there is one. Call it in the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._state = cached
        self._evidence.follow(cached, None, ())
        self._watches.open()
        self._guarded(self._find)

    def close(self) -> None:
        """End; what files hold stays."""
        for knob in (*self._mirror.knobs(), *self._units.knobs()):
            self._settler.cancel(knob)
        self._units.io.close()
        self._rewrites.close()
        ripening = [container.ripe for pod in self._mirror.pods.values() for container in pod.containers.values()]
        for timer in (self._poll, self._search, *ripening):
            if timer is not None:
                timer.cancel()
        self._watches.close()

    def apply(self, new: wanted.State) -> None:
        """Put a state in force; on return every file that could be brought to it was."""
        self._guarded(lambda: self._apply(new))

    def _apply(self, new: wanted.State) -> None:
        begun = self._clock()
        old, self._state = self._state, new
        self._evidence.follow(new, self.root, self._mirror.pods.values())
        everything = old is None or (old.mode, old.on_unknown_pod) != (new.mode, new.on_unknown_pod)
        with self._settler.lowering_first():
            if everything or old is None or old.kubepods != new.kubepods:
                self._retarget_root()
            for pod in list(self._mirror.pods.values()):
                if everything or old is None or old.pods.get(pod.uid) != new.pods.get(pod.uid):
                    self._retarget(pod, begun, arrived=True)
        if everything or old is None or old.system != new.system:
            self._bring_units()
        APPLY_SECONDS.observe(self._clock() - begun)
        self._changed()

    def swap_on(self, disks: swapdisks.Disks) -> None:
        """What the node swaps to, whenever that may have become another."""
        if disks != self._units.io.disks:
            self._units.io.disks = disks
            self._guarded(self._bring_units)

    def catch_up(self) -> None:
        """Take in what inotify has to tell by now. It is done anyway: this is to know that there is nothing more."""
        self._guarded(self._readable)

    def resync(self) -> None:
        """Compare everything with what is wanted, and with what is there."""
        self._guarded(self._resync)

    def _resync(self) -> None:
        RESYNCS.inc()
        now = self.last_resync = self._clock()
        self._watches.retry()
        self._journal.retry()
        if not self._mirror.is_there():
            self._mirror.lose()
            self._find()
            return
        with self._settler.lowering_first():
            self._retarget_root()
            self._mirror.prune()
            for pod in list(self._mirror.pods.values()):
                self._retarget(pod, now)
            self._enter(now)
        self._bring_units()
        self._watches.retried()
        self._changed()

    def publish(self) -> None:
        """Set what metrics tell of all pods, also where there is no status to be written."""
        AWAITING.set(sum(self._is_awaiting(pod) for pod in self._mirror.pods.values()))
        strict.publish(self.evidence)

    def standing(self, refused: str = "") -> status.Standing:
        """How things stand now, for the status. `refused`: why the newest state was not taken."""
        return turns.finish(self.looking(refused))

    def looking(self, refused: str = "") -> turns.Steps[status.Standing]:
        """As `standing`, some pods at a time."""
        now = self._clock()
        current = self._state
        audit = current is not None and current.mode is names.Mode.AUDIT
        found: list[state.Violation | None] = []
        untold: list[str] = []
        pending = drifting = 0
        if self._mirror.root is not None:
            pending += self._settler.is_to_put_back(self._mirror.root)
            found.append(deviations.of_file(self._mirror.root, audit=audit))
        for number, pod in enumerate(list(self._mirror.pods.values())):
            if number % PODS_A_TURN == PODS_A_TURN - 1:
                yield
            if self._mirror.pods.get(pod.path) is not pod:
                continue
            for knob in pod.knobs():
                pending += self._settler.is_to_put_back(knob)
                found.append(deviations.of_file(knob, audit=audit))
            drifting += pod.tally.drifting(now)
            if pod.tally.recent(now) or pod.tally.untold:
                untold += [pod.uid] * pod.tally.untold
                found.append(deviations.of_exposure(pod))
            # What has no container runs nothing: what is left of a deleted pod is nobody's concern.
            if self._is_awaiting(pod) and pod.containers and now - pod.since >= AWAIT_SECONDS:
                found.append(deviations.of_silence(pod))
        pending += self._units.to_put_back
        return status.Standing(
            root=self.root,
            problem=self._problem,
            polling=self._watches.short,
            refused=refused,
            mode=targets.mode_of(current),
            generation=0 if current is None else current.generation,
            profile=None if current is None or not current.profile[0] else state.ProfileRef(*current.profile),
            stated=current is not None,
            violations=[each for each in found if each is not None],
            to_put_back=pending,
            drifting=drifting,
            untold=frozenset(untold),
            lost=self._lost_lately(now),
            kubelet_swap=None if current is None else current.kubelet_swap,
            settings=tuple(self._units.shortfalls()) if self._units.concerned else None,
            others=self._rewrites.others(),
            cost=self._cost(current.proposal) if current is not None and current.proposal is not None else None,
            unmet=None if current is None else current.unmet,
        )

    def _lost_lately(self, now: float) -> int:
        return self._lost if now - self._lost_at < LOST_SECONDS else 0

    def told(self, violations: Iterable[Mapping[str, Any]]) -> None:
        """The API server has a status with these: what pods took while exposed has been told of, with its cause."""
        sums = {each.get("pod"): each.get("swapBytes", 0) for each in violations if each.get("causes")}
        news = [pod for pod in self._mirror.pods.values() if sums.get(pod.uid, 0) > pod.tally.told]
        for pod in news:
            pod.tally.told = sums[pod.uid]
        if news:  # they make room for others
            self._changed()

    def _cost(self, proposal: wanted.Proposal) -> state.Cost:
        """What the proposal would take from pods that use it now."""
        used = {pod.uid: pod.path for pod in self._mirror.pods.values() if pod.uid in proposal.pods}
        over = [self._in_use(path) - proposal.pods[uid] for uid, path in used.items()]
        taken = [each for each in over if each > 0]
        return state.Cost(state.ProfileRef(proposal.profile, proposal.generation), len(taken), sum(taken))

    def _in_use(self, path: str) -> int:
        try:
            return self._fs.in_use(path)
        except cgroupfs.CgroupError:  # where it matters, settling its file fails, too, and says why
            return 0

    # The tree

    def _find(self) -> None:
        """Find the tree of pods and take it in; try again later where there is none."""
        if self._search is not None:
            self._search.cancel()
            self._search = None
        begun = self._clock()
        try:
            self._mirror.find()
        except tree.TreeError as problem:
            if self._problem is None or self._problem.reason != problem.reason:
                log.warning("no pods to look after yet: %s", problem)
            self._problem = problem
            self._first = self._first and problem.reason != tree.NO_POD_TREE
            self._absent = self._absent and problem.reason != tree.NO_POD_TREE
            if problem.reason == tree.NO_POD_TREE:
                self._caught_up = begun
            self._changed()
            self._search = self._loop.call_later(self._waits.next(), self._guarded, self._find)
            return
        self._problem = None
        self._waits.reset()
        with self._settler.lowering_first():
            self._retarget_root()
            self._enter(begun)
        for path in self._journal.paths():
            if self._journal.get(path, self._fs.inode(path)) is None:
                self._journal.forget(path)
        self._bring_units()
        self._changed()

    def _bring_units(self) -> None:
        """Once there is a state, and it is known where pods are, which are no business of these."""
        if self._state is not None and self.root is not None:
            self._units.bring(self._state, self.root, self._clock())
            self._changed()

    def _enter(self, noticed: float) -> None:
        """Take in the pods that are not known; what fails for want of resources is left to the next comparison."""
        if self._mirror.root is None:
            return
        self._taking_in = self._absent
        try:
            origin = targets.Origin.FOUND if self._first else targets.Origin.APPEARED
            self._mirror.enter(self._mirror.root, origin, noticed)
        finally:
            self._taking_in = False
        self._absent = self._first = False
        self._caught_up = noticed
        self._journal.begin()

    def pod_came(self, pod: pods.Pod, noticed: float) -> None:
        """As mirror.Listener. A pod that has a container already ran before it was seen.

        Since when, nothing tells: events have no time, and that of a cgroup's directory is when its inode came to
        memory (set_default_inode_attr in the kernel's fs/kernfs/inode.c), which under memory pressure can be long after
        it was made. So its exposure is counted from when the agent last knew all pods: it is at most that long.
        """
        entry = self._journal.get(pod.path, pod.knob.inode)
        # Where systemd's 0 is all that was noted, the agent has not known the pod before.
        known = entry is not None and (entry.found is None or bool(entry.wrote))
        if known or targets.mode_of(self._state) is not names.Mode.ENFORCE:
            pod.origin = targets.Origin.FOUND
        if entry is not None and entry.wrote:
            pod.last = pod.knob.holds = entry.wrote[-1]
        found = pod.origin is targets.Origin.FOUND
        pod.enforced = found or self._taking_in
        self._rewrites.look(pod.knob)
        ran = None
        if self._taking_in:
            ran = names.Cause.AGENT_DOWN
            noticed = noticed if self._away is None else self._away
        else:
            pod.knob.came = noticed
            if not found:
                ran, noticed = names.Cause.AGENT_LATE, self._caught_up
        self._retarget(pod, noticed, ran=ran)
        if found and self._journal.get(pod.path, pod.knob.inode) is None:
            self._journal.seen(pod.path, pod.knob.inode)
        if self._is_awaiting(pod):
            self._loop.call_later(AWAIT_SECONDS, self._changed)
        self._changed()

    def pod_went(self, pod: pods.Pod) -> None:  # noqa: ARG002 the listener's signature
        """As mirror.Listener."""
        self._changed()

    def container_came(self, container: pods.Container, noticed: float) -> None:
        """As mirror.Listener."""
        self._retarget_container(container, noticed)

    def file_went(self, knob: pods.Knob) -> None:
        """As mirror.Listener."""
        self._settler.drop(knob)

    # What files are to hold

    def _retarget(
        self, pod: pods.Pod, noticed: float, *, ran: names.Cause | None = None, arrived: bool = False
    ) -> None:
        """Work out anew what a pod's files are to hold, and bring them there: ancestors first.

        `ran` says why the pod may have run since `noticed` without a value of ours. `arrived` where a state
        arrived just now: a pod that it names for the first time ran without until then.
        """
        current, mode = self._state, targets.mode_of(self._state)
        entry = None if current is None else current.pods.get(pod.uid)
        if mode is not names.Mode.ENFORCE:
            pod.last = None
            pod.enforced = True
        elif entry is not None:
            pod.last = entry.limit
        knob = pod.knob
        self._look(knob)
        knob.target = targets.of_pod(current, entry, mode=mode, origin=pod.origin, last=pod.last)
        knob.shadow = targets.of_pod(current, entry, mode=names.Mode.ENFORCE, origin=pod.origin, last=pod.last)
        if knob.holds is not None:
            ran = None
        elif arrived and entry is not None and not pod.stated:
            ran, noticed = names.Cause.STATE_LATE, pod.since
        if entry is not None:
            pod.stated = True
            pod.origin = targets.Origin.FOUND
        self._mirror.watch(knob)
        with self._settler.lowering_first():
            self._settler.settle(knob, noticed, ran=ran)
            for container in pod.containers.values():
                self._retarget_container(container, noticed)

    def _retarget_root(self) -> None:
        knob = self._mirror.root
        if knob is None:
            return
        knob.target = targets.of_root(self._state, mode=targets.mode_of(self._state))
        knob.shadow = targets.of_root(self._state, mode=names.Mode.ENFORCE)
        self._mirror.watch(knob)
        self._settler.settle(knob, self._clock())

    def _retarget_container(self, container: pods.Container, noticed: float) -> None:
        current, mode = self._state, targets.mode_of(self._state)
        of_pod = None if current is None else current.pods.get(container.pod.uid)
        entry = own = None if of_pod is None else of_pod.containers.get(container.id)
        if of_pod is not None and own is None:
            entry = of_pod.each
        if not container.knobs and entry is not own and self._is_young(container):
            return
        if entry is not None or self._was_written(container):
            # Each time: where it cannot be watched, nothing else tells of crun's cgroup inside.
            self._open(container)
        for knob in container.knobs:
            self._mirror.watch(knob)
            if entry is not None:
                knob.shadow, knob.cap = entry.limit, entry.cap
            elif of_pod is not None:
                knob.shadow = targets.Hold.PUT_BACK
            knob.target = knob.shadow if mode is names.Mode.ENFORCE else targets.Hold.PUT_BACK
            self._settler.settle(knob, noticed)

    def _is_young(self, container: pods.Container) -> bool:
        """Whether others still write to its files; it is then looked at again."""
        left = container.since + YOUNG_SECONDS - self._clock()
        if left > 0 and container.ripe is None:
            container.ripe = self._loop.call_later(left, self._guarded, lambda: self._ripened(container))
        return left > 0

    def _ripened(self, container: pods.Container) -> None:
        container.ripe = None
        self._retarget_container(container, self._clock())

    def _was_written(self, container: pods.Container) -> bool:
        """Whether an earlier run may have written to it: it then keeps what it was given, until told otherwise."""
        return any(path in self._journal for path in self._mirror.paths(container))

    def _open(self, container: pods.Container) -> None:
        for knob in self._mirror.open(container):
            knob.came = container.since
            self._rewrites.look(knob)
            entry = self._journal.get(knob.path, knob.inode)
            if entry is not None and entry.wrote:
                knob.shadow = knob.holds = entry.wrote[-1]
                knob.unit = entry.units

    def _is_awaiting(self, pod: pods.Pod) -> bool:
        unknown = self._state is None or pod.uid not in self._state.pods
        enforcing = targets.mode_of(self._state) is names.Mode.ENFORCE
        return enforcing and unknown and pod.origin is targets.Origin.APPEARED and pod.last is None

    # What the kernel tells

    def _guarded(self, step: Callable[[], None]) -> None:
        """Run one step of the event loop. A mistake in it must not end the agent: all is compared a little later."""
        try:
            step()
        except cgroupfs.CgroupError as error:
            self._watches.fall_short(watches.Shortfall.UNREADABLE, f"the tree of pods cannot be read whole ({error})")
            self._changed()
        except Exception:
            FAULTS.inc()
            log.exception("unexpected error; comparing everything in %s s", watches.POLL_SECONDS)
            self._poll_later()

    def _readable(self) -> None:
        noticed = self._clock()
        written = self._settler.writes
        touched: dict[pods.Knob, None] = {}
        for owner, event in self._watches.read():
            if event.mask & inotify.Q_OVERFLOW:
                self._lost = self._lost_lately(noticed) + 1
                self._lost_at = noticed
                OVERFLOWS.inc()
                log.warning("too many events at once: some were lost, comparing everything")
                self.resync()
            elif isinstance(owner, pods.Knob):
                touched[owner] = None
                self._rewrites.touched(owner, noticed)
            elif owner is not None:
                if self._units.concerns(owner, event):
                    self._bring_units()
                self._mirror.take(owner, event, noticed)
        with self._settler.lowering_first():
            for knob in touched:
                if knob.watch is not None:
                    # What the agent wrote itself is told of, too.
                    if knob.number <= self._read_until:
                        self._rewritten(knob)
                    self._settler.settle(knob, noticed)
        if self._watches.drained:
            self._read_until = written
            # While all is to be compared, there may be pods that events do not tell of.
            if self._poll is None and self._mirror.root is not None:
                self._caught_up = max(self._caught_up, noticed)
        if self._mirror.root is None and self._search is None:
            self._find()

    def _rewritten(self, knob: pods.Knob) -> None:
        """Another writer gave a file what it holds now: that may say what systemd holds."""
        if self._evidence.rewritten(self.root, knob):
            self._changed()
        elif self._units.rewritten(knob):
            self._bring_units()

    def _look(self, knob: pods.Knob) -> None:
        """See who gave a pod's file what it holds, unless the agent did. One just made may not be there yet."""
        if knob.pod is not None and knob is knob.pod.knob and not knob.number:
            self._evidence.came(self.root, knob.pod)

    def _again(self, knob: pods.Knob) -> None:
        self._mirror.watch(knob)
        self._look(knob)
        self._settler.settle(knob, self._clock())

    def _poll_later(self) -> None:
        if self._poll is None:
            self._poll = self._loop.call_later(watches.POLL_SECONDS, self._guarded, self._poll_now)

    def _poll_now(self) -> None:
        self._poll = None
        self.resync()
        if self._watches.short:
            self._poll_later()
