"""Keeps the values of memory.swap.max that the container runtime holds in its own specifications of containers.

The runtime passes that number to systemd, which then writes it back by itself, with the agent dead. A later run of the
agent knows by these records which containers were held meanwhile, and which numbers it must give back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Final

import msgspec

from swapwarden.agent.host import cgroupfs

MOST: Final = 8192
"""Records at once: more than the containers of the largest node."""

UNREPORTED: Final = "?"
"""In place of the name of a container of which only the cgroup is known."""

Bytes = Annotated[int, msgspec.Meta(ge=0)]
Id = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
ValueText = Annotated[str, msgspec.Meta(max_length=64)]


class RuntimeRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A container, or a pod's sandbox, as the runtime has it."""

    id: Id
    uid: Annotated[str, msgspec.Meta(max_length=128)]
    """The pod's, as in the name of its cgroup."""
    name: Annotated[str, msgspec.Meta(max_length=253)] = ""
    """Empty: the sandbox, in which nothing of the pod runs."""
    value: Bytes = cgroupfs.NO_LIMIT
    """Value in the runtime's specification; NO_LIMIT also if that has no such key, or an invalid one."""
    original: ValueText | None = None
    """The kubelet's value, if `value` is Swapwarden's; empty: it had none. None: `value` is not Swapwarden's."""
    since: float = 0.0
    """When the container got this value, in monotonic seconds; 0: at its start."""
    asked: Bytes | None = None
    """The value that the runtime was asked to put in place of `value`, until it answers."""

    @property
    def is_sandbox(self) -> bool:
        """Return whether it is a pod's sandbox."""
        return not self.name

    @property
    def is_reported(self) -> bool:
        """Return whether a plugin has reported it; else the agent has only seen its cgroup."""
        return self.name != UNREPORTED


class RuntimeRecords:
    """The records by container id. If the file cannot take a record, memory keeps it."""

    def __init__(self, append: Callable[[RuntimeRecord | str], None]) -> None:
        """`append` takes a record, or the id of one that ended."""
        self._append = append
        self._records: dict[str, RuntimeRecord] = {}
        self._of_pods: dict[str, dict[str, None]] = {}
        self.expected = False
        """Whether plugins report containers."""

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[RuntimeRecord]:
        return iter(list(self._records.values()))

    def get(self, container_id: str) -> RuntimeRecord | None:
        """Return the record of a container, if there is one."""
        return self._records.get(container_id)

    def of_pod(self, uid: str) -> list[RuntimeRecord]:
        """Return the records of a pod's containers."""
        return [self._records[each] for each in self._of_pods.get(uid, ())]

    def load(self, record: RuntimeRecord) -> None:
        """Take a record that the file has."""
        self.drop(record.id)
        self._records[record.id] = record
        self._of_pods.setdefault(record.uid, {})[record.id] = None

    def drop(self, container_id: str) -> None:
        """Drop a record of which the file has the end."""
        record = self._records.pop(container_id, None)
        if record is not None:
            of_pod = self._of_pods[record.uid]
            del of_pod[container_id]
            if not of_pod:
                del self._of_pods[record.uid]

    def put(self, record: RuntimeRecord) -> None:
        """Record how a container stands. OverflowError if there are too many."""
        known = self._records.get(record.id)
        if record == known:
            return
        if known is None and len(self._records) >= MOST:
            raise OverflowError(f"more than {MOST} containers")
        self.load(record)
        self._append(record)

    def see(self, container_id: str, uid: str, now: float) -> None:
        """Record a container by its cgroup: if it ends while no agent runs, the next one knows that there was one."""
        if self.expected and container_id not in self._records and len(self._records) < MOST:
            self.put(RuntimeRecord(container_id, uid, UNREPORTED, since=now))

    def forget(self, container_id: str) -> None:
        """Drop the record of a container that is gone."""
        if container_id in self._records:
            self.drop(container_id)
            self._append(container_id)
