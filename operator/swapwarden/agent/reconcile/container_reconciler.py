"""Decides the values of containers' files, and has them written."""

from __future__ import annotations

from typing import Final

import msgspec

from swapwarden.agent.desired import resolve, runtime_values, spec
from swapwarden.agent.drift import attribution
from swapwarden.agent.host import cgroup_files, cgroupfs
from swapwarden.agent.inventory import inventory, records
from swapwarden.agent.ledger import ledger
from swapwarden.agent.reconcile import file_reconciler, queue, schedule, work
from swapwarden.api import names

YOUNG_SECONDS: Final = 3.0
"""How long runtimes and systemd normally take to write to a new container's files: a value of the agent's would be
written over, and be repaired, at every start. The pod's own limit holds from the start."""
STIRS: Final = 10
"""Times that events inside of a container's cgroup are examined at once; after that so many seconds later."""
STIR_SECONDS: Final = 1.0
CALM_SECONDS: Final = 60.0
"""Seconds without an event after which the count starts again."""
_NAMES: Final = tuple(file.name for file in cgroup_files.OF_PODS)


class ContainerReconciler:
    """A container's turn reconciles its files."""

    def __init__(
        self,
        shared: work.Work,
        known: inventory.Inventory,
        book: ledger.Ledger,
        files: file_reconciler.FileReconciler,
        why: attribution.Attribution,
    ) -> None:
        self._work = shared
        self._inventory = known
        self._limits = book.limits
        self._runtime = book.runtime
        self._files = files
        self._attribution = why

    def put_off(self, container: records.Container) -> bool:
        """Count an event; have a container that causes too many wait a little, and return whether it must.

        Until then the caller ends its watch: a loop in a container would fill the queue of all events.
        """
        now = self._work.clock()
        container.stirs = 1 if now - container.stirred > CALM_SECONDS else container.stirs + 1
        container.stirred = now
        if container.stirs <= STIRS:
            return False
        self._work.due_in(container, schedule.Why.SETTLED, STIR_SECONDS)
        return True

    def is_concerned(self, container: records.Container) -> bool:
        """Return whether reconciling a container may change anything: a raise of its pod's limit waits for that."""
        in_force, seen = self._work.in_force, self._runtime.get(container.id)
        of_pod = None if in_force.spec is None else in_force.spec.pods.get(container.pod.uid)
        if container.files or container in self._work.failures.of or of_pod is None:
            return True
        if seen is not None or self._runtime.expected:
            return True
        if of_pod.containers or of_pod.each is not None or in_force.guards_others is not names.KubeletGuard.OFF:
            return True
        return self._limits.has_names(_NAMES, inventory.container_paths(container))

    def reconcile(self, container: records.Container, mark: queue.Mark) -> None:
        """Decide the values of a container's files, and write them."""
        if self._runtime.expected:
            self._runtime.see(container.id, container.pod.uid, self._work.clock())
        in_force = self._work.in_force
        state = in_force.spec
        of_pod = None if state is None else state.pods.get(container.pod.uid)
        entry = own = None if of_pod is None else of_pod.container(container.id)
        if of_pod is not None and own is None:
            entry = of_pod.each
        young = container.since + YOUNG_SECONDS - self._work.clock()
        if not container.files and entry is not own and young > 0:  # others still write to its files
            self._work.due_in(container, schedule.Why.SETTLED, young)
            return
        error: Exception | None = None
        seen = self._runtime.get(container.id)
        lower = runtime_values.lower_original(seen, self._inventory.page)
        try:
            needed = self._needed(container, entry or {}, swap=lower is not None)
            if needed or entry is not None:
                # Each time: if it cannot be watched, no event reports crun's inner cgroup.
                self._open(container, needed)
        except Exception as unknown:  # noqa: BLE001 raised once the known files have their values
            # A cgroup inside without a process is checked again, but not if the container makes new ones without end.
            if not (isinstance(unknown, cgroupfs.TransientError) and container.stirs > STIRS):
                error = unknown
        for file in container.files:
            enforced, at_most = file.desired.if_enforced, file.desired.at_most
            setting = None if entry is None else entry.get(file.spec.name)
            if setting is not None:
                enforced, at_most = setting.value, setting.at_most
            elif of_pod is not None:
                enforced = resolve.Handling.RESTORE
            file.desired = records.desired(
                file, enforced, mode=in_force.mode, owns=in_force.kubelet_owns, at_most=at_most
            )
            if seen is not None and lower is not None and not file.is_inner and file.spec is cgroup_files.SWAP_MAX:
                self._limits.record_runtimes(file.key, lower, seen.value // self._inventory.page * self._inventory.page)
            self._files.reconcile(file, mark.noticed, since=self._work.horizon.last_right(file, mark.since))
        if error is not None:
            raise error

    def _needed(
        self, container: records.Container, entry: spec.FileSettings, *, swap: bool
    ) -> list[cgroup_files.CgroupFile]:
        """Return the files that need a record: those with a setting, and those that an earlier run may have written.

        These keep their value until a state has another one. `swap`: memory.swap.max needs one in any case.
        """
        paths, owns = inventory.container_paths(container), self._work.in_force.kubelet_owns
        guards = self._work.in_force.guards_others is not names.KubeletGuard.OFF
        guarded = guards and self._files.guard.finds(container.path)
        young = container.since + YOUNG_SECONDS - self._work.clock()
        if guards and not guarded and young > 0:
            self._work.due_in(container, schedule.Why.SETTLED, young)  # its runtime may yet write a memory.high
        return [
            each
            for each in cgroup_files.OF_PODS
            if (each.name in entry and not resolve.is_kubelets(owns, each, container=True))
            or (swap and each is cgroup_files.SWAP_MAX)
            or (guarded and each is cgroup_files.MEMORY_HIGH)
            or self._limits.has_names((each.name,), paths)
        ]

    def _open(self, container: records.Container, needed: list[cgroup_files.CgroupFile]) -> None:
        known = set(container.files)
        try:
            self._inventory.open(container, needed)
        finally:
            for change in self._inventory.changes():
                if isinstance(change.what, records.ControlFile):
                    self._files.drop(change.what)
            for file in [file for file in container.files if file not in known]:
                self._know(file, container)

    def _know(self, file: records.ControlFile, container: records.Container) -> None:
        """Take over the records of a new file."""
        file.created_at = container.since
        self._attribution.observe(file)
        # As with its pod, time without an agent counts.
        away = self._work.in_force.away
        applied = self._files.recall(file, records.NEVER if away is None else away)
        seen = self._runtime.get(container.id)
        if seen is not None and not file.is_inner and file.spec is cgroup_files.SWAP_MAX:
            self._attribution.learn_unit(file, seen.value)
        if applied is not None:
            file.desired = msgspec.structs.replace(file.desired, if_enforced=applied)
