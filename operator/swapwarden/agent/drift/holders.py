"""Finds whether the container runtime keeps the containers of a pod within the pod's limit.

A container can use the least of its own limit and those above it. So a pod's cgroup at `max` is no exposure if systemd
holds each of its containers, by the runtime's number, at values that the pod's limit allows together.
"""

from __future__ import annotations

from typing import Final

from swapwarden.agent.host import cgroupfs
from swapwarden.agent.inventory import records
from swapwarden.agent.ledger import runtime_records

MOST: Final = 200
"""Most cgroups in one pod's that are read."""


def allows(pod: records.Pod, limit: int, runtime: runtime_records.RuntimeRecords) -> bool:
    """Return whether the runtime's numbers of all running containers together are at most `limit`, in bytes."""
    total = 0
    for container in pod.containers.values():
        seen = runtime.get(container.id)
        if seen is None:
            return False
        total += 0 if seen.is_sandbox else seen.value
    return total <= limit


class Holders:
    """Looks at the disk as well: it has the values in force, and containers that no event has reported yet."""

    def __init__(self, cgroups: cgroupfs.Cgroups, runtime: runtime_records.RuntimeRecords) -> None:
        self._fs = cgroups
        self.runtime = runtime

    def bound(self, pod: records.Pod, limit: int, since: float, *, watched: bool) -> bool:
        """Return whether no container of a pod could exceed the pod's limit, from `since` until now.

        `since` in monotonic seconds. Unless the agent `watched` all the time, the same containers must run as before.
        One that began and ended meanwhile, while no plugin was there either, is not noticed.

        A runtime's number only changes by the runtime, to the kubelet's number at a resize without a plugin, and back
        only by the agent. So if a container's file has the known number now, it had it since that is known.
        """
        if pod.ended_at >= since:
            return False
        try:
            listed = self._fs.children(pod.path, most=MOST)
        except cgroupfs.CgroupError:
            return False
        # One that was removed a moment ago may have no event yet.
        names = (name for name in {*listed, *pod.containers} if not records.is_monitor(name))
        found = {name: records.container_id(name) for name in names}
        known = {each.id for each in self.runtime.of_pod(pod.uid)}
        if len(listed) >= MOST or not (watched or known == set(found.values())):
            return False
        total = 0
        for name, container_id in found.items():
            seen = None if container_id is None else self.runtime.get(container_id)
            if seen is None:
                return False
            if not seen.is_sandbox:
                if seen.since > since:
                    return False
                total += max(seen.value, seen.asked or 0, self._value(cgroupfs.join(pod.path, name)))
        return total <= limit

    def _value(self, path: str) -> int:
        """Return the value in a container's file, in bytes; NO_LIMIT if it cannot show that any more."""
        found = self._fs.number(path, cgroupfs.SWAP_MAX)
        return cgroupfs.NO_LIMIT if found is None else found
