"""Turns the kernel's events into marks of the queue: which key, and since when it may be wrong."""

from __future__ import annotations

import logging

from swapwarden.agent.drift import systemd_zero
from swapwarden.agent.host import faults, inotify
from swapwarden.agent.inventory import inventory, layout, records
from swapwarden.agent.reconcile import file_reconciler, pod_reconciler, queue, system_units, work
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

OVERFLOWS = metrics.counter(
    "swapwarden_agent_watch_overflows_total", "Times that inotify lost events, after which all cgroups were compared."
)


class Events:
    """Of inotify."""

    def __init__(
        self,
        shared: work.Work,
        known: inventory.Inventory,
        *,
        files: file_reconciler.FileReconciler,
        pods: pod_reconciler.PodReconciler,
        units: system_units.Units,
        evidence: systemd_zero.Evidence,
    ) -> None:
        self._work = shared
        self._inventory = known
        self._files = files
        self._pods = pods
        self._units = units
        self._evidence = evidence

    def hear(self, *, compares: bool) -> bool:
        """Mark written files, and names that came or were removed. Return whether events were lost.

        While a full comparison is due or under way (`compares`), there may be pods that no event reports.
        """
        noticed = self._work.clock()
        written = self._files.writes
        touched: dict[records.ControlFile, float] = {}
        lost = False
        for owner, event in self._work.watching.read():
            if event.mask & inotify.Q_OVERFLOW:
                lost = True
                self._work.horizon.lose(self._work.clock())
            elif isinstance(owner, records.ControlFile):
                lossy = owner.times.right_at < self._work.horizon.lost_until
                touched.setdefault(owner, self._work.horizon.exposed_since(owner, noticed) if lossy else noticed)
            elif owner is not None:
                self._mark_name(owner, event, noticed)
        for file, since in touched.items():
            if file.watch is not None and not (file.is_inner and self._puts_off(file)):
                if self._evidence.wanted or file.systemd.zero or file.kind == "system":
                    self._rewritten(file)
                self._work.waiting.mark(file, queue.Priority.REPAIR, queue.Mark(noticed, since, written=True))
        if lost:
            self._work.horizon.count_loss(noticed)
            OVERFLOWS.inc()
            log.warning("too many events at once: some were lost, comparing everything")
        if self._work.watching.drained:
            self._work.horizon.writes, self._work.horizon.drained = written, noticed
            if not (compares or lost) and self._inventory.root is not None:
                self._work.horizon.caught_up = max(self._work.horizon.caught_up, noticed)
        return lost

    def _mark_name(self, owner: inotify.Watched, event: inotify.InotifyEvent, noticed: float) -> None:
        """Mark a name that appeared or was removed."""
        mark = queue.Mark(noticed, self._work.horizon.caught_up)
        if not isinstance(owner, records.Level | records.Pod) and self._units.concerns(owner, event):
            self._work.waiting.mark(queue.Task.UNITS, queue.Priority.ARRIVAL, mark)
        if isinstance(owner, records.Container) and event.name != layout.INNER:
            if self._pods.puts_off(owner):
                self._work.watching.release(owner)
        elif isinstance(owner, records.Level | records.Pod | records.Parent | records.Container):
            self._work.waiting.mark(queue.Child(owner, event.name), queue.Priority.ARRIVAL, mark)

    def _puts_off(self, file: records.ControlFile) -> bool:
        """Return whether a container writes to its inner cgroup so often that the file must wait a little."""
        if file.pod is None:
            return False
        container = next((each for each in file.pod.containers.values() if file in each.files), None)
        if container is None or not self._pods.puts_off(container):
            return False
        self._work.watching.release(file)
        return True

    def _rewritten(self, file: records.ControlFile) -> None:
        """Note another writer's value: it may say which value systemd holds."""
        if file.times.write_seq > self._work.horizon.writes:  # an event of the agent's own write
            return
        try:
            if self._evidence.rewritten(self._inventory.root_path, file):
                self._work.reports.touch()
            elif self._units.rewritten(file):
                self._work.waiting.mark(queue.Task.UNITS, queue.Priority.ARRIVAL, queue.Mark(self._work.clock()))
        except Exception as error:  # noqa: BLE001 the repair matters more than this evidence
            faults.fault(str(file), error)
