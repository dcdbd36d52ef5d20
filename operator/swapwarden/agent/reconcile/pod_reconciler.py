"""Decides the values of pods' and containers' files, and has them written."""

from __future__ import annotations

import functools
from typing import Final

from swapwarden.agent.desired import resolve, spec
from swapwarden.agent.drift import attribution, systemd_zero
from swapwarden.agent.host import cgroupfs
from swapwarden.agent.inventory import container_files, inventory, records
from swapwarden.agent.ledger import ledger
from swapwarden.agent.reconcile import file_reconciler, queue, schedule, work
from swapwarden.api import names

YOUNG_SECONDS: Final = 3.0
"""How long runtimes and systemd normally take to write to a new container's files: a value of the agent's would be
written over, and be repaired, at every start. The pod's own limit holds from the start."""
STIRS: Final = 10
"""Times that what happens inside of a container's cgroup is looked at at once; after that so many seconds later."""
STIR_SECONDS: Final = 1.0
CALM_SECONDS: Final = 60.0
"""After so long without an event the count starts again."""


class PodReconciler:
    """A pod's turn reconciles its own file; its containers are marked, and have turns of their own."""

    def __init__(
        self,
        shared: work.Work,
        known: inventory.Inventory,
        book: ledger.Ledger,
        files: file_reconciler.FileReconciler,
        *,
        why: attribution.Attribution,
        evidence: systemd_zero.Evidence,
        away: float | None,
    ) -> None:
        """`away` is when the last agent was last seen on the node, in monotonic seconds; None if unknown."""
        self.spec: spec.NodeSpec | None = None
        """The state in force."""
        self.mode = resolve.mode_of(None)
        self.away = away
        self._work = shared
        self._inventory = known
        self._limits = book.limits
        self._files = files
        self._attribution = why
        self.evidence = evidence

    def follow(self, new: spec.NodeSpec | None) -> None:
        """Put a state in force, before anything is written for it."""
        self.spec, self.mode = new, resolve.mode_of(new)
        self.evidence.follow(new, self._inventory.root_path, self._inventory.pods.values())

    # Pods

    def take_in(self, pod: records.Pod, mark: queue.Mark, *, late: bool) -> None:
        """Reconcile a pod for the first time; `late` if it ran without an agent until now.

        A pod with a container already ran before the agent found it, at an unknown time: events have no time, and that
        of a cgroup's directory is when its inode came to memory (set_default_inode_attr in the kernel's
        fs/kernfs/inode.c), which under memory pressure can be long after it was made. So its exposure is counted from
        when the agent last knew all pods: it is at most that long.
        """
        file = pod.file
        entry = self._limits.get(file.key)
        # Where systemd's 0 is all that was noted, the agent has not known the pod before.
        known = entry is not None and (entry.found is None or bool(entry.wrote))
        if known or self.mode is not names.Mode.ENFORCE:
            pod.origin = resolve.Origin.PREEXISTING
        applied = self._files.recall(file)
        if applied is not None:
            pod.last = applied
        found = pod.origin is resolve.Origin.PREEXISTING
        pod.enforced = found or late
        ran, since = None, mark.noticed
        if late:
            ran = names.Cause.AGENT_DOWN
            since = mark.noticed if self.away is None else self.away
        else:
            file.created_at = mark.noticed
            if not found:
                ran, since = names.Cause.AGENT_LATE, mark.since
        self.reconcile(pod, queue.Mark(mark.noticed), since=since, ran=ran)
        self._attribution.look(file)  # its limit first
        if found and self._limits.get(file.key) is None:
            self._limits.mark_known(file.key)
        if resolve.awaits_entry(self.spec, pod.uid, origin=pod.origin, last=pod.last):
            self._work.due_in(pod, schedule.Why.AWAITS, resolve.AWAIT_SECONDS)

    def mark(self, pod: records.Pod, mark: queue.Mark) -> None:
        """Have a pod and its containers reconciled."""
        self._work.waiting.mark(pod, queue.Priority.ARRIVAL, mark)
        self._mark_containers(pod, mark)

    def _mark_containers(self, pod: records.Pod, mark: queue.Mark) -> None:
        for container in pod.containers.values():
            self._work.waiting.mark(container, queue.Priority.ARRIVAL, mark)

    def reconcile(
        self, pod: records.Pod, mark: queue.Mark, *, since: float | None = None, ran: names.Cause | None = None
    ) -> None:
        """Decide the value of a pod's own file, and write it; its containers follow.

        `since` is when the pod may have begun to run without a limit, and `ran` why. Without these, a pod that a state
        names for the first time ran without a limit until now.
        """
        self._mark_containers(pod, mark)
        entry = None if self.spec is None else self.spec.pods.get(pod.uid)
        if self.mode is not names.Mode.ENFORCE:
            pod.last = None
            pod.enforced = True
        elif entry is not None:
            pod.last = entry.limit
        file = pod.file
        self.look(file)
        enforced = resolve.of_pod(
            self.spec, entry, mode=names.Mode.ENFORCE, origin=pod.origin, last=pod.last, denied=file.spec.denied
        )
        value = enforced if self.mode is names.Mode.ENFORCE else resolve.Handling.RESTORE
        file.desired = records.Desired(value, enforced)
        if file.last_applied is not None:
            ran = None
        elif since is None and entry is not None and not pod.stated:
            ran, since = names.Cause.STATE_LATE, pod.since
        if entry is not None:
            pod.stated = True
            pod.origin = resolve.Origin.PREEXISTING
        right = self._work.horizon.last_right(file, mark.since) if since is None else since
        self._files.settle(file, mark.noticed, since=right, ran=ran)

    def look(self, file: records.ControlFile) -> None:
        """See who gave a pod's file what it holds, unless the agent did. One just made may not be there yet."""
        if file.pod is None or file is not file.pod.file or file.times.write_seq:
            return
        if self.evidence.wanted or self._limits.get(file.key) is not None:
            self.evidence.came(self._inventory.root_path, file.pod)

    def retarget_root(self) -> None:
        """Decide the value of the cgroup above all pods."""
        file = self._inventory.root
        if file is not None:
            of_root = functools.partial(resolve.of_root, self.spec)
            file.desired = records.Desired(of_root(mode=self.mode), of_root(mode=names.Mode.ENFORCE))

    # Containers

    def puts_off(self, container: records.Container) -> bool:
        """Return whether a container causes so many events that it must wait a little.

        Until then the caller ends its watch: a loop in a container would fill the queue of all events.
        """
        now = self._work.clock()
        container.stirs = 1 if now - container.stirred > CALM_SECONDS else container.stirs + 1
        container.stirred = now
        if container.stirs <= STIRS:
            return False
        self._work.due_in(container, schedule.Why.SETTLED, STIR_SECONDS)
        return True

    def bring(self, container: records.Container, mark: queue.Mark) -> None:
        """Decide the values of a container's files, and write them."""
        of_pod = None if self.spec is None else self.spec.pods.get(container.pod.uid)
        entry = own = None if of_pod is None else of_pod.container(container.id)
        if of_pod is not None and own is None:
            entry = of_pod.each
        young = container.since + YOUNG_SECONDS - self._work.clock()
        if not container.files and entry is not own and young > 0:  # others still write to its files
            self._work.due_in(container, schedule.Why.SETTLED, young)
            return
        error: Exception | None = None
        try:
            if entry is not None or self._was_written(container):
                # Each time: if it cannot be watched, no event reports crun's inner cgroup.
                self._open(container)
        except Exception as unknown:  # noqa: BLE001 raised once the known files have their values
            # A cgroup inside without a process is checked again, but not if the container makes new ones without end.
            if not (isinstance(unknown, cgroupfs.TransientError) and container.stirs > STIRS):
                error = unknown
        for file in container.files:
            enforced, at_most = file.desired.if_enforced, file.desired.at_most
            if entry is not None:
                enforced, at_most = entry.limit, entry.cap
            elif of_pod is not None:
                enforced = resolve.Handling.RESTORE
            value = enforced if self.mode is names.Mode.ENFORCE else resolve.Handling.RESTORE
            file.desired = records.Desired(value, enforced, at_most)
            self._files.settle(file, mark.noticed, since=self._work.horizon.last_right(file, mark.since))
        if error is not None:
            raise error

    def _was_written(self, container: records.Container) -> bool:
        """Return whether an earlier run may have written to it: it keeps that value until a state has another one."""
        return any(self._limits.has_name(cgroupfs.SWAP_MAX, path) for path in container_files.paths(container))

    def _open(self, container: records.Container) -> None:
        known = set(container.files)
        try:
            self._inventory.open(container)
        finally:
            for change in self._inventory.changes():
                if isinstance(change.what, records.ControlFile):
                    self._files.drop(change.what)
            for file in [file for file in container.files if file not in known]:
                self._know(file, container)

    def _know(self, file: records.ControlFile, container: records.Container) -> None:
        """Take over the records of a new file."""
        file.created_at = container.since
        self._attribution.look(file)
        # As with its pod, time without an agent counts.
        applied = self._files.recall(file, records.NEVER if self.away is None else self.away)
        if applied is not None:
            file.desired = file.desired._replace(if_enforced=applied)
