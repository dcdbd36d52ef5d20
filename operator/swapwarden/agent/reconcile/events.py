"""Turns what the kernel tells into marks of the queue: since when what may be wrong."""

from __future__ import annotations

import logging

from swapwarden.agent.drift import attribution, systemd_zero
from swapwarden.agent.host import faults, inotify, watches
from swapwarden.agent.inventory import inventory, layout, records
from swapwarden.agent.reconcile import file_reconciler, keys, pod_reconciler, queue, system_units, work
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
        why: attribution.Attribution,
        evidence: systemd_zero.Evidence,
    ) -> None:
        self._work = shared
        self._inventory = known
        self._files = files
        self._pods = pods
        self._units = units
        self._attribution = why
        self._evidence = evidence

    def hear(self, *, compares: bool) -> bool:
        """Mark what others wrote to, and what came or went; whether events were lost.

        While it `compares`, or is to compare all, there may be pods that events do not tell of.
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
                touched.setdefault(owner, self._work.horizon.exposed_since(owner, noticed))
                self._attribution.touched(owner, noticed)
            elif owner is not None:
                self._told(owner, event, noticed)
        for file, since in touched.items():
            if file.watch is not None and not self._puts_off(file):
                self._rewritten(file)
                self._work.waiting.mark(file, queue.Priority.REPAIR, queue.Mark(noticed, since))
        if lost:
            self._work.horizon.count_loss(noticed)
            OVERFLOWS.inc()
            log.warning("too many events at once: some were lost, comparing everything")
        if self._work.watching.drained:
            self._work.horizon.writes, self._work.horizon.drained = written, noticed
            if not (compares or lost) and self._inventory.root is not None:
                self._work.horizon.caught_up = max(self._work.horizon.caught_up, noticed)
        return lost

    def _told(self, owner: watches.Watched, event: inotify.Event, noticed: float) -> None:
        """Something came or went in a directory."""
        mark = queue.Mark(noticed, self._work.horizon.caught_up)
        if self._units.concerns(owner, event):
            self._work.waiting.mark(keys.Task.UNITS, queue.Priority.ARRIVAL, mark)
        if isinstance(owner, records.Container) and event.name != layout.INNER:
            if self._pods.puts_off(owner):
                self._work.watching.release(owner)
        elif isinstance(owner, records.Level | records.Pod | records.Parent | records.Container):
            self._work.waiting.mark(keys.Child(owner, event.name), queue.Priority.ARRIVAL, mark)

    def _puts_off(self, file: records.ControlFile) -> bool:
        """Whether a container writes to a cgroup of its own so often that this is looked at a little later."""
        if not file.is_inner or file.pod is None:
            return False
        container = next((each for each in file.pod.containers.values() if file in each.files), None)
        if container is None or not self._pods.puts_off(container):
            return False
        self._work.watching.release(file)
        return True

    def _rewritten(self, file: records.ControlFile) -> None:
        """Another writer gave a file what it holds now: that may say what systemd holds."""
        if file.times.write_seq > self._work.horizon.writes:  # what the agent wrote itself is told of, too
            return
        try:
            if self._evidence.rewritten(self._inventory.root_path, file):
                self._work.reports.touch()
            elif self._units.rewritten(file):
                self._work.waiting.mark(keys.Task.UNITS, queue.Priority.ARRIVAL, queue.Mark(self._work.clock()))
        except Exception as error:  # noqa: BLE001 what it says of systemd is worth less than the repair
            faults.fault(str(file), error)
