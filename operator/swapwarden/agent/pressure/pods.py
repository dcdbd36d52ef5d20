"""Reads what the pods of a node hold, for the report of its memory pressure."""

from __future__ import annotations

import heapq
from collections.abc import Awaitable, Callable

import msgspec

from swapwarden.agent.host import cgroupfs
from swapwarden.agent.inventory import inventory, records
from swapwarden.api import state

Pause = Callable[[], Awaitable[None]]
"""Lets other work run."""


class Largest(msgspec.Struct, frozen=True):
    """The pods that use most, and how many more were read."""

    pods: list[state.PressuredPod]
    omitted: int


class PodWatch:
    """Counts refaults from its beginning. Not thread-safe: only the event loop may use it."""

    def __init__(self, cgroups: cgroupfs.Cgroups, known: inventory.Inventory) -> None:
        self._fs = cgroups
        self._known = known
        self._before: dict[str, int] | None = None
        """Refaults at the beginning by UID; pods that appeared later had none."""

    async def begin(self, pause: Pause) -> None:
        """Count from now on, unless it does already."""
        if self._before is not None:
            return
        found = {}
        for pod in list(self._known.pods.values()):
            if (read := self._read(pod)) is not None:
                found[pod.uid] = read.refaults
            await pause()
        self._before = found

    def end(self) -> None:
        """Count no longer."""
        self._before = None

    async def largest(self, pause: Pause) -> Largest:
        """Return the pods that use most memory and swap, the largest first, without those that cannot be read."""
        await self.begin(pause)
        before = self._before or {}
        found = []
        for pod in list(self._known.pods.values()):
            if (read := self._read(pod)) is not None:
                refaults = max(0, read.refaults - before.get(pod.uid, 0))
                found.append(state.PressuredPod(read.pod, read.working_set_bytes, read.swap_bytes, refaults))
            await pause()
        most = heapq.nlargest(state.MAX_PRESSURED, found, key=lambda each: (_usage(each), each.pod))
        return Largest(most, len(found) - len(most))

    def _read(self, pod: records.Pod) -> state.PressuredPod | None:
        """Return what a pod holds, with all of its refaults; None if it cannot be read."""
        try:
            used = self._fs.read(cgroupfs.join(pod.path, cgroupfs.MEMORY_CURRENT))
            stat = self._fs.stat(pod.path)
        except cgroupfs.CgroupError:
            return None
        swap = self._fs.number(pod.path, cgroupfs.SWAP_CURRENT) or 0  # a kernel may lack the controller of swap
        refaults = stat.workingset_refault_anon + stat.workingset_refault_file
        return state.PressuredPod(pod.uid, max(0, used - stat.inactive_file), swap, refaults)


def _usage(pod: state.PressuredPod) -> int:
    return pod.working_set_bytes + pod.swap_bytes
