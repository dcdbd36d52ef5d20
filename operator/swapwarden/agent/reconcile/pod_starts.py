"""Brings the cgroup of a pod that starts to its value before the container runtime makes the first container.

The runtime waits for the answer. systemd's last write to the cgroup at the start of a pod is over by then.
"""

from __future__ import annotations

from typing import Final

import msgspec

from swapwarden.agent.host import cgroupfs, link_messages, runtime_link
from swapwarden.agent.inventory import inventory, records
from swapwarden.agent.reconcile import queue, work
from swapwarden.api import runtime_link as protocol
from swapwarden.telemetry import metrics

SANDBOX_SECONDS = metrics.histogram(
    "swapwarden_agent_nri_sandbox_seconds",
    "How long the start of a pod waited for its cgroup to hold its value.",
    buckets=(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
)

MOST_SANDBOXES: Final = 256
"""Pods whose start waits at once; further ones are answered at once."""


class _Start(msgspec.Struct, frozen=True):
    """A pod whose start waits."""

    peer: runtime_link.PluginPeer
    seq: int
    path: str
    since: float


class PodStarts:
    """Not thread-safe."""

    def __init__(self, shared: work.Work, known: inventory.Inventory, link: runtime_link.RuntimeLink) -> None:
        self._work = shared
        self._inventory = known
        self._link = link
        self.waiting: list[_Start] = []
        """Pods whose start waits for an answer."""

    def begin(self, peer: runtime_link.PluginPeer, message: link_messages.SandboxStarted) -> None:
        """Reconcile a pod's cgroup before anything else, as if its event had just arrived."""
        path = self._find(message.cgroup)
        if path is None or len(self.waiting) >= MOST_SANDBOXES:
            self._link.send(peer, protocol.FromAgent.SANDBOX, {"seq": message.seq})
            return
        self.waiting.append(_Start(peer, message.seq, path, self._work.clock()))

    def _find(self, cgroup: str) -> str | None:
        """Return the path of the pod's cgroup on the disk, and have it reconciled; None if there is none."""
        parent, _, name = cgroup.rstrip("/").rpartition("/")
        if records.pod_uid(name) is None:
            return None
        noticed = self._work.clock()
        above = parent.rpartition("/")[2]
        levels = sorted(self._inventory.levels.values(), key=lambda each: each.path.rpartition("/")[2] != above)
        for level in levels:
            path = cgroupfs.join(level.path, name)
            pod = self._inventory.pods.get(path)
            if pod is not None:
                for file in pod.own:
                    self._work.waiting.mark(file, queue.Priority.REPAIR, queue.Mark(noticed))
                return path
            try:
                there = name in self._inventory.enter(level)
            except cgroupfs.CgroupError:  # a full comparison reports why
                continue
            if there:
                mark = queue.Mark(noticed, self._work.horizon.caught_up)
                self._work.waiting.mark(queue.Child(level, name), queue.Priority.REPAIR, mark)
                return path
        return None

    def _is_settled(self, path: str) -> bool:
        """Return whether a pod's limit of swap was read back, or cannot be for now."""
        pod = self._inventory.pods.get(path)
        if pod is None:
            return True
        return pod.file.status.confirmed == pod.file.desired.value or pod.file.status.reason is not None

    def advance(self) -> None:
        """Answer for pods whose files were read back."""
        now, waiting = self._work.clock(), []
        for start in self.waiting:
            if self._is_settled(start.path) or now - start.since >= protocol.SANDBOX_SECONDS:
                SANDBOX_SECONDS.observe(now - start.since)
                self._link.send(start.peer, protocol.FromAgent.SANDBOX, {"seq": start.seq})
            else:
                waiting.append(start)
        self.waiting = waiting

    def lost(self, peer: runtime_link.PluginPeer) -> None:
        """Forget the starts that a plugin reported that is gone."""
        self.waiting = [each for each in self.waiting if each.peer is not peer]
