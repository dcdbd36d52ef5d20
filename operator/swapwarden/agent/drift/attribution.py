"""Finds why the agent's values were written over, as far as that is possible without privileges.

The kernel does not show who wrote to a file. It shows the value, the age of the cgroup, changes of its other files, and
writes to other pods at that moment. So a repair does not wait: its cause is found a moment later.
"""

from __future__ import annotations

import bisect
import collections
import logging
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from swapwarden.agent.host import cgroupfs, faults
from swapwarden.agent.inventory import exposure, records
from swapwarden.agent.ledger import ledger
from swapwarden.api import names
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

_CAUSES: Final = (
    names.Cause.START,
    names.Cause.RELOAD,
    names.Cause.RESIZE,
    names.Cause.UNIT_VALUE,
    names.Cause.OTHER_WRITER,
)
"""Causes of external writes; all others are only causes of exposures."""

REWRITES = metrics.counter(
    "swapwarden_agent_rewrites_total",
    "External writes over the agent's values that were repaired, by kind of cgroup (pod, container, kubepods, system)"
    " and presumed cause (docs/agent.md); not in cgroups inside containers.",
    labels=("kind", "cause"),
    known=[(kind, cause.value) for kind in ("pod", "container") for cause in _CAUSES],
)

MOMENT_SECONDS: Final = 1.0
"""Writes within this time are one event of systemd."""
START_SECONDS: Final = 10.0
"""How long after it made a slice systemd writes its own value again: until the first container, after some 0.2 seconds
on hardware, after several on a slow or busy node."""
TOGETHER: Final = 3
"""Running pods written in one moment that show a write to all pods; fewer on a node with fewer, but at least two."""
_PLACES: Final = {
    "pod": "pods",
    "container": "containers",
    "kubepods": "kubepods",
    "system": "slices and services of the node",
}
"""Words for kinds of cgroups."""


class Signs(msgspec.Struct, frozen=True):
    """The evidence of one external write."""

    age: float
    """Age of the cgroup in seconds; infinite if it is older than the agent's run."""
    starts: bool
    """Whether it is a container's, or a pod's without a container: runtime and kubelet write their numbers."""
    unit: bool
    """Whether the value is systemd's for the unit."""
    resized: bool
    """Whether the cgroup's other resources changed."""
    together: int
    """Running pods with external writes at that moment."""
    running: int
    """All running pods."""


def cause_of(seen: Signs) -> names.Cause:
    """Return the cause that the evidence suggests.

    Runtimes write their number to a container at its start, kubelets to a pod before its first one. A resize concerns
    one pod, a reload each unit. So if many pods were written, changed resources are no evidence: they may have changed
    some time before.
    """
    if seen.age < START_SECONDS and (seen.unit or seen.starts):
        return names.Cause.START
    if seen.unit and seen.together >= min(TOGETHER, max(2, seen.running)):
        return names.Cause.RELOAD
    if seen.resized:
        return names.Cause.RESIZE
    return names.Cause.UNIT_VALUE if seen.unit else names.Cause.OTHER_WRITER


class _Note(msgspec.Struct):
    """External writes of one value to one file within a moment, with a cause still to find."""

    noticed: float
    age: float
    starts: bool
    """Whether its pod had no container yet, or the file is a container's."""
    exposed: exposure.Exposure
    count: int = 1


class Attribution:
    """Finds the causes for all files."""

    def __init__(self, cgroups: cgroupfs.Cgroups, book: ledger.Ledger, *, clock: Callable[[], float]) -> None:
        self._fs = cgroups
        self._limits = book.limits
        self._clock = clock
        self.others: dict[tuple[str, str], float] = {}
        """When a writer other than systemd last gave cgroups of a kind such a value, in monotonic seconds."""
        self._notes: dict[tuple[records.ControlFile, int], _Note] = {}
        self._moment: collections.deque[tuple[tuple[records.ControlFile, int], _Note]] = collections.deque()
        """Notes of the past moment, whose causes are searched one by one."""
        self._running: list[float] = []
        """When another writer last wrote to each running pod, sorted; of the past moment."""
        self._logged: dict[names.Cause, float] = {}
        self._unlogged: collections.Counter[names.Cause] = collections.Counter()

    @property
    def noted(self) -> bool:
        """Whether `find` must be called a moment from now."""
        return bool(self._notes) and not self._moment

    @property
    def idle(self) -> bool:
        """Whether no cause is still to find."""
        return not self._notes and not self._moment

    def describe_others(self) -> str:
        """Describe what writers other than systemd wrote recently; empty without one."""
        begin = self._clock() - exposure.RECENT_SECONDS
        recent = sorted(write for write, at in self.others.items() if at >= begin)
        return "; ".join(f"another writer gives {value} to {_PLACES[kind]}" for kind, value in recent)

    def observe(self, file: records.ControlFile) -> bool:
        """Note the other resources of the file's cgroup. Return whether they differ from those noted before."""
        before, now = file.resources, self._fs.resources(file.path)
        if not any(now):  # gone meanwhile
            return False
        file.resources = now
        return before is not None and before != now

    def learn_hold(self, file: records.ControlFile) -> None:
        """Take systemd's value for the file from the ledger if it is unknown, or a pod's, which may have a limit."""
        record = self._limits.get(file.key)
        if record is not None and (file.systemd.value is None or (file.is_pods and record.unit_value is not None)):
            file.systemd.value = record.unit_value

    def learn_unit(self, file: records.ControlFile, value: int) -> None:
        """Take the value that the container runtime has passed to systemd."""
        file.systemd.value = value
        self._limits.set_unit_value(file.key, value)

    def note(
        self,
        file: records.ControlFile,
        observed: int,
        noticed: float,
        *,
        exposed: exposure.Exposure | None,
        cause: names.Cause | None = None,
    ) -> None:
        """Note the repair of another writer's value `observed`, with its exposure if any, and its cause if known."""
        if cause is not None:
            self._report(cause, file, 1, exposed or exposure.NONE, observed)
            return
        known = self._notes.get((file, observed))
        if known is None:
            starts = file.container != "" or (file.pod is not None and not file.pod.containers)
            self._notes[file, observed] = _Note(noticed, noticed - file.created_at, starts, exposed or exposure.NONE)
            return
        known.count += 1
        if exposed is not None:
            known.exposed += exposed

    def find(self, everyone: Iterable[records.Pod]) -> bool:
        """Find the cause of one value of the past moment. Return whether that moment has more.

        `everyone` are the node's pods. Each call reads some files, and repairs must not wait for all of them.
        """
        if not self._moment:
            self._moment.extend(self._notes.items())
            self._notes = {}
            self._running = sorted(pod.file.times.touched_at for pod in everyone if pod.containers)
        if self._moment:
            (file, observed), note = self._moment.popleft()
            try:
                self._find_cause(file, observed, note)
            except Exception as error:  # noqa: BLE001 the search goes on for other values
                faults.fault(str(file), error)
        return bool(self._moment)

    def _find_cause(self, file: records.ControlFile, observed: int, note: _Note) -> None:
        running = self._running
        together = len(running) - bisect.bisect_left(running, note.noticed - MOMENT_SECONDS)
        unit = file.is_systemds(observed)
        cause = cause_of(Signs(note.age, note.starts, unit, self.observe(file), together, len(running)))
        if cause is names.Cause.OTHER_WRITER and not file.is_inner:
            value = cgroupfs.render(observed) if observed in {0, cgroupfs.NO_LIMIT} else "a number of bytes"
            self.others[file.kind, value] = note.noticed
        if file.pod is not None and cause in {names.Cause.START, names.Cause.RESIZE}:
            # The runtime or the kubelet passes it to systemd, which writes this value from now on.
            file.systemd.value = observed
            self._limits.set_unit_value(file.key, observed)
        self._report(cause, file, note.count, note.exposed, observed)

    def _report(
        self, cause: names.Cause, file: records.ControlFile, count: int, exposed: exposure.Exposure, observed: int
    ) -> None:
        if exposed.count and file.pod is not None:
            file.pod.tally.attribute(cause, exposed)
        if file.is_inner:  # usually the container's own write, which the node need not report
            return
        REWRITES.inc(file.kind, cause.value, by=count)
        self._unlogged[cause] += count
        now = self._clock()
        if now - self._logged.get(cause, float("-inf")) < faults.LOG_SECONDS:  # repairs are never limited
            return
        self._logged[cause] = now
        log.log(
            logging.WARNING if cause is names.Cause.OTHER_WRITER else logging.INFO,
            "a value was written over, and repaired",
            extra={
                "cause": cause.value,
                "cgroup": f"/{file.path}",
                "observed": cgroupfs.render(observed),
                "rewrites": self._unlogged.pop(cause),
            },
        )
