"""Has the container runtime hold the limits of running containers, and give back what the kubelet had asked for.

The runtime passes a value to systemd, which from then on writes it back by itself, with the agent dead. It is asked
only after the files hold the value and nothing drains: a hold is never a cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from swapwarden.agent.desired import runtime_values
from swapwarden.agent.drift import attribution
from swapwarden.agent.host import cgroup_files, cgroupfs, faults, link_messages, runtime_link
from swapwarden.agent.inventory import inventory, records
from swapwarden.agent.ledger import ledger, runtime_records
from swapwarden.agent.reconcile import container_reconciler, queue, schedule, work
from swapwarden.api import names
from swapwarden.api import runtime_link as protocol
from swapwarden.kube import backoff
from swapwarden.telemetry import metrics

CORRECTED = metrics.counter(
    "swapwarden_agent_nri_corrected_total",
    "Containers that ran with the kubelet's number before the runtime held their limit.",
)
MOST_ASKED: Final = 256
"""Containers in one message to the plugin."""
ANSWER_SECONDS: Final = 60.0
"""How long an answer may take: the runtime makes the changes one by one, and its own time limits are above this."""
ALONE_SECONDS: Final = 60.0
"""How long a restore waits for a plugin. After that a container keeps the value in the runtime until it is recreated:
without a plugin nothing can change that, and an uninstallation must end."""
GIVE_UP: Final = 6
"""Refusals after which a restore does not wait for a container any more."""


class _Asked(msgspec.Struct, frozen=True):
    """A request under way."""

    peer: runtime_link.PluginPeer
    seq: int
    ids: frozenset[str]
    since: float


class _RefusedUpdate(msgspec.Struct):
    """The runtime refused a change of a container."""

    waits: backoff.Backoff
    until: float


class RuntimeHolds:
    """Has the runtime hold the limits of running containers, with one request at a time. Not thread-safe."""

    def __init__(
        self,
        shared: work.Work,
        known: inventory.Inventory,
        book: ledger.Ledger,
        why: attribution.Attribution,
        link: runtime_link.RuntimeLink,
        *,
        cgroups: cgroupfs.Cgroups,
    ) -> None:
        self._fs = cgroups
        self._work = shared
        self._inventory = known
        self._records = book.runtime
        self._attribution = why
        self._link = link
        self.unsettled: dict[str, None] = {}
        """Ids of containers for which the runtime may not hold what it must."""
        self._asked: _Asked | None = None
        self._seq = 0
        self._refused: dict[str, _RefusedUpdate] = {}
        self._seen = -1
        """The board's revision at the last look: files have not changed since."""
        self.alone_since: float | None = shared.clock()
        """Since when no plugin can be asked; None if one can."""

    def doubt(self, ids: Iterable[str]) -> None:
        """Have containers looked at in the next turn."""
        self.unsettled.update(dict.fromkeys(ids))
        self._seen = -1

    def learn(self, seen: runtime_records.RuntimeRecord) -> None:
        """Record how a container stands in the runtime. OverflowError if there are too many."""
        CORRECTED.inc(by=runtime_values.is_corrected(self._records.get(seen.id), seen))
        self._records.put(seen)
        container = self._inventory.containers.get(seen.id)
        if container is not None:
            for file in container.files:
                if not file.is_inner:
                    self._attribution.learn_unit(file, seen.value)
        self.doubt([seen.id])

    @property
    def to_restore(self) -> int:
        """Containers that the runtime holds at a value that it must give back."""
        state = self._work.in_force.spec
        if state is None or state.mode is names.Mode.ENFORCE or self._gave_up():
            return 0
        return sum(self._is_due(each) for each in self.unsettled)

    def advance(self, peer: runtime_link.PluginPeer | None) -> None:
        """Ask the runtime, by this plugin, for what it must hold; None: there is none to ask."""
        if self._seen == self._work.reports.revision:
            return
        if self._work.waiting.waits(queue.Priority.REPAIR) or self._work.waiting.waits(queue.Priority.ARRIVAL):
            return  # the files first
        self._seen, now = self._work.reports.revision, self._work.clock()
        if self._asked is not None and now - self._asked.since >= ANSWER_SECONDS:
            self._link.drop(self._asked.peer, "it does not answer")
            self.lost(self._asked.peer)
        due = list(self._due())
        if peer is not None and self._asked is None:
            ready = [(seen, target) for seen, target, when in due if when <= now][:MOST_ASKED]
            if ready:
                self._ask(peer, ready, now)
        times = [when for _, _, when in due if when > now]
        if self._asked is not None:
            times.append(self._asked.since + ANSWER_SECONDS)
        if self.unsettled and self.alone_since is not None and not self._gave_up():
            times.append(self.alone_since + ALONE_SECONDS)
        if times:
            self._work.due_by(queue.Task.RUNTIME, schedule.Why.DUE, min(times))

    def _due(self) -> Iterator[tuple[runtime_records.RuntimeRecord, int, float]]:
        """Yield the containers of which the files allow it, their values, and when the runtime may be asked."""
        for container_id in list(self.unsettled):
            seen = self._records.get(container_id)
            target = None if seen is None else runtime_values.next_update(seen, self._work.in_force.spec)
            if seen is None or target is None:
                del self.unsettled[container_id]
                self._refused.pop(container_id, None)
            elif (when := self._due_at(seen, target)) is not None:
                yield seen, target, when

    def _ask(
        self, peer: runtime_link.PluginPeer, ready: Iterable[tuple[runtime_records.RuntimeRecord, int]], now: float
    ) -> None:
        values = {}
        for seen, target in ready:
            self._records.put(runtime_values.asked(seen, target))  # before it is done
            values[seen.id] = cgroupfs.render(target)
        self._seq += 1
        self._asked = _Asked(peer, self._seq, frozenset(values), now)
        self._link.send(peer, protocol.FromAgent.UPDATE, {"seq": self._seq, "values": values})

    def answered(self, peer: runtime_link.PluginPeer, result: link_messages.UpdateResult) -> None:
        """Take the runtime's answer."""
        asked = self._asked
        if asked is None or asked.peer is not peer or asked.seq != result.seq:
            return
        self._asked, now = None, self._work.clock()
        for container_id in asked.ids:
            seen = self._records.get(container_id)
            if seen is None or seen.asked is None:
                continue
            failed = result.failed.get(container_id)
            if failed is None and not self._took(seen):
                failed = "it said that it did, and the container's cgroup has more"
            if failed is None:
                self._refused.pop(container_id, None)
            else:
                self._refuse(seen, failed, now)
            self.learn(runtime_values.answered(seen, now, done=failed is None))
        self._work.reports.touch()

    def lost(self, peer: runtime_link.PluginPeer) -> None:
        """Forget what a plugin that is gone was asked for: the next one lists how containers stand."""
        if self._asked is not None and self._asked.peer is peer:
            self.doubt(self._asked.ids)
            self._asked = None

    def _refuse(self, seen: runtime_records.RuntimeRecord, why: str, now: float) -> None:
        faults.warn("the container runtime refused a limit; trying again", f"{seen.uid}/{seen.name}", why)
        refused = self._refused.setdefault(seen.id, _RefusedUpdate(backoff.Backoff(*queue.RETRY_SECONDS), now))
        refused.until = now + refused.waits.next()

    def _is_due(self, container_id: str) -> bool:
        """Return whether a container that still runs waits for its earlier value."""
        refused = self._refused.get(container_id)
        if refused is not None and refused.waits.failures >= GIVE_UP:
            return False
        seen = self._records.get(container_id)
        return (
            seen is not None
            and container_id in self._inventory.containers
            and runtime_values.next_update(seen, self._work.in_force.spec) is not None
        )

    def _gave_up(self) -> bool:
        """Return whether no plugin came for so long that a restore waits for none."""
        return self.alone_since is not None and self._work.clock() - self.alone_since >= ALONE_SECONDS

    def _due_at(self, seen: runtime_records.RuntimeRecord, target: int) -> float | None:
        """Return when the runtime may be asked to hold a value; None: not before a file changes."""
        container = self._inventory.containers.get(seen.id)
        if container is None or container.pod.uid != seen.uid or not self._files_hold(seen, container, target):
            return None
        refused = self._refused.get(seen.id)
        return max(container.since + container_reconciler.YOUNG_SECONDS, refused.until if refused else records.NEVER)

    def _files_hold(self, seen: runtime_records.RuntimeRecord, container: records.Container, target: int) -> bool:
        """Return whether a value of the runtime's would cut nothing: the files hold it, or are restored.

        A smaller value than the runtime's also has to leave room for the swap in use now.
        """
        if target < seen.value and not self._fits(container, target):
            return False
        of_pod, state = container.pod.file, self._work.in_force.spec
        own = [file for file in container.files if file.spec is cgroup_files.SWAP_MAX]
        if any(file.status.confirmed != file.desired.value or file.status.draining for file in (of_pod, *own)):
            return False
        if state is None or runtime_values.desired(seen, state) is None or of_pod.desired.value == 0 == target:
            return True
        return bool(own) and all(file.status.observed == file.desired.value == target for file in own)

    def _took(self, seen: runtime_records.RuntimeRecord) -> bool:
        """Return whether a container's cgroup has no more than the runtime was asked to put there.

        For a container that it has made and not started yet, containerd changes its records alone, says that it is
        done, and starts it with the earlier value (internal/cri/server/container_update_resources.go).
        """
        container, state = self._inventory.containers.get(seen.id), self._work.in_force.spec
        if container is None or seen.asked is None or state is None or runtime_values.desired(seen, state) is None:
            return True
        observed = self._fs.number(container.path, cgroupfs.SWAP_MAX)
        return observed is None or observed <= seen.asked  # None: it is gone

    def _fits(self, container: records.Container, target: int) -> bool:
        """Return whether the container uses no more swap than `target`."""
        used = self._fs.number(container.path, cgroupfs.SWAP_CURRENT)
        return used is not None and used <= target
