"""Takes what `swapwarden nri` reports, and sends it the decisions by which it answers the container runtime.

The ledger keeps how containers stand in the runtime. runtime_holds changes running ones.
"""

from __future__ import annotations

import logging
import pathlib
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from swapwarden.agent.desired import runtime_values, spec
from swapwarden.agent.drift import attribution
from swapwarden.agent.host import cgroupfs, faults, link_messages, runtime_link
from swapwarden.agent.inventory import board, inventory, records
from swapwarden.agent.ledger import ledger, runtime_records
from swapwarden.agent.reconcile import queue, runtime_holds, schedule, work
from swapwarden.api import names
from swapwarden.api import runtime_link as protocol
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)


CONNECTED = metrics.gauge(
    "swapwarden_agent_nri_connected",
    "1 while a plugin of the container runtime is connected to the agent and to the runtime.",
)
REQUESTS = metrics.counter("swapwarden_agent_nri_requests_total", "Requests that the runtime made to the plugin.")
ADJUSTED = metrics.counter("swapwarden_agent_nri_adjusted_total", "Containers whose limit the plugin set.")
KEPT = metrics.counter(
    "swapwarden_agent_nri_kept_total", "Resizes of containers at which the plugin kept the limit in the runtime."
)
ERRORS = metrics.counter(
    "swapwarden_agent_nri_errors_total", "Requests that the plugin could not decide; the container got no limit by it."
)
LATE = metrics.counter(
    "swapwarden_agent_nri_late_total", "Pods whose start did not wait longer for their cgroup to hold its value."
)
LOST = metrics.counter(
    "swapwarden_agent_nri_lost_total",
    "Connections to the runtime that the plugin lost: the runtime restarted, or did not wait for a slow answer.",
)
DROPS = metrics.counter(
    "swapwarden_agent_nri_dropped_total",
    "Connections to the plugin that the runtime ended while it ran on, as an answer was too late.",
)

SANDBOX_SECONDS = metrics.histogram(
    "swapwarden_agent_nri_sandbox_seconds",
    "How long the start of a pod waited for its cgroup to hold its value.",
    buckets=(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
)

MOST_SANDBOXES: Final = 256
"""Pods whose start waits at once; further ones are answered at once."""
MERGED: Final = 32
"""Containers of a list that are recorded in a turn."""
AWAY_SECONDS: Final = 5.0
"""How long a plugin, or its connection to the runtime, may be away before that is reported: updates restart both."""
LOOK_SECONDS: Final = 2.0
"""How long a plugin may take to read a message, before the agent looks whether it did, and between such looks."""
LOOKS: Final = 2
"""Looks in a row at which a plugin had not read, after which it is unresponsive."""
SLOW_SECONDS: Final = 600.0
"""How long it is reported that the start of a pod did not wait for the agent, or a container's for the plugin."""
PLUGIN_AWAY: Final = "PluginAway"
UNRESPONSIVE: Final = "Unresponsive"
LINK_FAILED: Final = "LinkFailed"
SLOW: Final = "Slow"
DROPPED: Final = "Dropped"
REFUSED: Final = "Refused"
REASONS: Final = ("NoSocket", REFUSED, "Lost")
"""Words for why a plugin is not connected to the runtime; other text is a message."""


_lines = faults.Lines(20)


class _Start(msgspec.Struct, frozen=True):
    """A pod whose start waits."""

    peer: runtime_link.PluginPeer
    seq: int
    path: str
    since: float


class PodStarts:
    """Brings the cgroup of a pod that starts to its value before the container runtime makes the first container.

    The runtime waits for the answer. systemd's last write to the cgroup at the start of a pod is over by then.
    """

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


class _Plugin(msgspec.Struct):
    """One connected plugin."""

    runtime: link_messages.RuntimeReport | None = None
    whole: bool = False
    """Whether its list is complete."""
    listing: dict[str, link_messages.ReportedContainer] = msgspec.field(default_factory=dict)
    """The parts of its list until now."""
    merging: dict[str, link_messages.ReportedContainer] = msgspec.field(default_factory=dict)
    """The part of its whole list that is not on record yet."""
    listed: bool = False
    """Whether all of its list is on record."""
    reported: link_messages.Counts | None = None
    """The plugin's counts that metrics have, from this agent or an earlier one."""
    counted: bool = False
    """Whether it reported its counts on this connection."""
    look_at: float | None = None
    """When to look whether it has read its messages; None: it has."""
    unread: int = 0
    """Looks in a row at which it had not, and nothing came from it."""

    @property
    def responds(self) -> bool:
        """Return whether it reads its messages. A stopped process still has its connections."""
        return self.unread < LOOKS

    @property
    def connected(self) -> bool:
        """Return whether it responds and is connected to the runtime."""
        return self.responds and self.runtime is not None and self.runtime.connected

    def look(self, now: float, *, has_unread: bool) -> None:
        """Note whether it has read its messages."""
        self.unread = self.unread + 1 if has_unread else 0
        self.look_at = now + LOOK_SECONDS if has_unread else None


def _log(text: str, **extra: object) -> None:
    """Log an event of a plugin, unless much was logged just now: one may connect in a loop."""
    more = _lines.take()
    if more is not None:
        log.info(text, extra={**extra, **more})


def _push(link: runtime_link.RuntimeLink, peer: runtime_link.PluginPeer, decisions: Mapping[str, object]) -> None:
    """Send decisions to one plugin."""
    for part in runtime_link.parts(decisions.items()):
        link.send(peer, protocol.FromAgent.PODS, {"pods": part})


class RuntimePlugins:
    """Handles the messages of all plugins. Not thread-safe; never waits."""

    def __init__(
        self,
        shared: work.Work,
        known: inventory.Inventory,
        book: ledger.Ledger,
        why: attribution.Attribution,
        folder: pathlib.Path,
        *,
        cgroups: cgroupfs.Cgroups,
        readable: Callable[[], None],
    ) -> None:
        """`folder` has the link's socket; `readable` is called when `hear` has something to hear."""
        self._work = shared
        self._inventory = known
        self._records = book.runtime
        book.runtime.expected = True
        self.link = runtime_link.RuntimeLink(folder, readable)
        self.starts = PodStarts(shared, known, self.link)
        self.holds = runtime_holds.RuntimeHolds(shared, known, book, why, self.link, cgroups=cgroups)
        self._plugins: dict[runtime_link.PluginPeer, _Plugin] = {}
        self._sent: spec.NodeSpec | None = None
        """The state that plugins know."""
        self._late_at = records.NEVER
        self._dropped_at = records.NEVER

    @property
    def waits(self) -> bool:
        """Return whether `advance` has something to do."""
        return bool(self.starts.waiting or self.holds.unsettled)

    @property
    def status(self) -> board.RuntimeStatus:
        """Return how plugins stand, for the report."""
        now, alone = self._work.clock(), self.holds.alone_since
        if alone is None:
            slow = SLOW if now - self._late_at < SLOW_SECONDS else ""
            return board.RuntimeStatus(
                connected=True, reason=DROPPED if now - self._dropped_at < SLOW_SECONDS else slow
            )
        if now - alone < AWAY_SECONDS:
            return board.RuntimeStatus(connected=False)
        if self.link.failed:
            return board.RuntimeStatus(connected=False, reason=LINK_FAILED, message=self.link.failed)
        if self._plugins and not list(self._plugins.values())[-1].responds:
            return board.RuntimeStatus(connected=False, reason=UNRESPONSIVE)
        reports = [each.runtime for each in self._plugins.values() if each.runtime is not None]
        if not reports:
            return board.RuntimeStatus(connected=False, reason=PLUGIN_AWAY)
        error = reports[-1].error
        reason, _, message = error.partition(":")
        if reason not in REASONS:
            reason, message = REFUSED, error
        return board.RuntimeStatus(connected=False, reason=reason, message=message.strip())

    def open(self) -> None:
        """Listen, unless it does, and look at all containers. A plugin gets the state in force first, be it cached."""
        self.link.open()
        self.follow()
        self.holds.doubt(each.id for each in self._records)
        self._check()

    def close(self) -> None:
        """End all connections. Where it is uninstalled, nothing is left in the link's folder."""
        alone = self.holds.alone_since
        gone = not self._plugins and alone is not None and self._work.clock() - alone >= protocol.GONE_SECONDS
        self.link.close(keep_mode=not gone or self._mode() != names.Mode.RESTORE)

    def follow(self) -> None:
        """Send the differences of the state in force to all plugins."""
        new, old = self._work.in_force.spec, self._sent
        self.link.set_mode(self._mode())
        if new is old or new is None:
            return
        self._sent = new
        if old is None or old.mode is not new.mode:
            self.holds.doubt(each.id for each in self._records)
        decisions, gone = runtime_values.changes({} if old is None else old.pods, new.pods)
        changed = dict(decisions)
        for uid in changed:
            self.holds.doubt(each.id for each in self._records.of_pod(uid))
        for peer in list(self._plugins):
            if old is None or old.mode is not new.mode:
                self.link.send(peer, protocol.FromAgent.MODE, {"mode": new.mode})
            _push(self.link, peer, changed)
            for part in runtime_link.parts((uid, None) for uid in gone):
                self.link.send(peer, protocol.FromAgent.GONE, {"uids": list(part)})
            self._look(peer, self._plugins[peer], sent=True)

    def hear(self) -> None:
        """Take what plugins sent."""
        for event in self.link.events():
            match event:
                case runtime_link.PluginConnected(peer):
                    self._greet(peer)
                case runtime_link.PluginGone(peer):
                    self._plugins.pop(peer, None)
                    self.holds.lost(peer)
                    self.starts.lost(peer)
                    self._check()
                case runtime_link.PluginSaid(peer, message) if peer in self._plugins:
                    try:
                        self._take(peer, self._plugins[peer], message)
                    except OverflowError as error:
                        self.link.drop(peer, str(error))

    def advance(self) -> None:
        """Answer for pods whose cgroups were read back, and have the runtime hold what it must."""
        self.starts.advance()
        if self.holds.unsettled:
            self.holds.advance(self._usable())

    def reconcile(self) -> None:
        """Reconcile again, at a time that was due."""
        for peer, plugin in self._plugins.items():
            for container_id in list(plugin.merging)[:MERGED]:
                self._merge(plugin, container_id)
            plugin.listed = plugin.whole and not plugin.merging
            self._look(peer, plugin)
        if any(plugin.merging for plugin in self._plugins.values()):
            self._continue()
        else:
            self._check()

    # Messages of plugins

    def _greet(self, peer: runtime_link.PluginPeer) -> None:
        """Send the mode and all decisions."""
        self._plugins[peer] = _Plugin()
        self.link.send(peer, protocol.FromAgent.MODE, {"mode": self._mode()})
        self.link.send(peer, protocol.FromAgent.RESET)
        if self._sent is not None:
            _push(self.link, peer, {uid: runtime_values.decision(pod) for uid, pod in self._sent.pods.items()})
        self.link.send(peer, protocol.FromAgent.READY)
        self._look(peer, self._plugins[peer], sent=True)

    def _take(self, peer: runtime_link.PluginPeer, plugin: _Plugin, message: link_messages.PluginMessage) -> None:
        plugin.unread = 0
        match message:
            case link_messages.PluginHello():
                plugin.reported = message.reported
                _log("a plugin of the container runtime is here", version=message.version)
            case link_messages.RuntimeReport():
                self._report(plugin, message)
            case link_messages.ContainerList():
                self._list(plugin, message)
            case link_messages.SandboxStarted():
                self.holds.learn(runtime_records.RuntimeRecord(message.id, message.uid))
                self.starts.begin(peer, message)
            case link_messages.ContainerCreated():
                plugin.merging.pop(message.id, None)
                self.holds.learn(runtime_values.created(self._records.get(message.id), message))
            case link_messages.ContainerResized():
                self._merge(plugin, message.id)  # it was before
                known = self._records.get(message.id)
                if known is not None:
                    self.holds.learn(runtime_values.resized(known, message.value, self._work.clock()))
            case link_messages.UpdateResult():
                self.holds.answered(peer, message)
            case link_messages.ContainerRemoved():
                plugin.merging.pop(message.id, None)
                self._records.forget(message.id)
            case link_messages.PluginCounts():
                self._count(plugin, message)

    def _report(self, plugin: _Plugin, message: link_messages.RuntimeReport) -> None:
        if message.connected and not plugin.connected:  # a list of all containers follows
            plugin.whole = plugin.listed = False
            plugin.listing.clear()
            _log("the container runtime asks the plugin for limits", runtime=message.name, version=message.version)
        plugin.runtime = message
        self._check()

    def _list(self, plugin: _Plugin, message: link_messages.ContainerList) -> None:
        if plugin.whole:
            plugin.whole = plugin.listed = False
        plugin.listing.update((each.id, each) for each in message.items)
        if len(plugin.listing) > runtime_records.MOST:
            raise OverflowError(f"more than {runtime_records.MOST} containers")
        if message.more:
            return
        for each in self._records:
            # Another plugin may have reported a container that was made after this list.
            if each.id not in plugin.listing and each.id not in self._inventory.containers:
                self._records.forget(each.id)
        plugin.merging, plugin.listing, plugin.whole = plugin.listing, {}, True
        self._continue()

    def _continue(self) -> None:
        """Have a part of the lists merged in a turn, so that repairs do not wait for all of them."""
        mark = queue.Mark(self._work.clock())
        self._work.waiting.mark(queue.Task.RUNTIME, queue.Priority.ARRIVAL, mark)

    def _merge(self, plugin: _Plugin, container_id: str) -> None:
        """Record a container of a list."""
        listed = plugin.merging.pop(container_id, None)
        if listed is not None:
            self.holds.learn(runtime_values.listed(self._records.get(container_id), listed, self._work.clock()))

    def _count(self, plugin: _Plugin, counts: link_messages.PluginCounts) -> None:
        before, plugin.reported = plugin.reported or counts, counts
        late, dropped = max(0, counts.late - before.late), max(0, counts.dropped - before.dropped)
        for metric, more in (
            (REQUESTS, counts.requests - before.requests),
            (ADJUSTED, counts.adjusted - before.adjusted),
            (KEPT, counts.kept - before.kept),
            (ERRORS, counts.errors - before.errors),
            (LATE, late),
            (LOST, counts.lost - before.lost),
            (DROPS, dropped),
        ):
            metric.inc(by=max(0, more))
        first, plugin.counted = not plugin.counted, True
        if first:  # of the time before this connection, which may be long ago
            return
        now = self._work.clock()
        if late:
            self._late_at = now
        if dropped:
            self._dropped_at = now
        if late or dropped:
            self._work.reports.touch()

    # How plugins stand

    def _look(self, peer: runtime_link.PluginPeer, plugin: _Plugin, *, sent: bool = False) -> None:
        """Note whether a plugin has read its messages, if it is time, and have this looked at again if needed."""
        now = self._work.clock()
        if plugin.look_at is None:
            plugin.look_at = now + LOOK_SECONDS if sent else None
        elif not sent and plugin.look_at <= now:
            plugin.look(now, has_unread=self.link.has_unread(peer))
        if plugin.look_at is not None:
            self._work.due_by(queue.Task.RUNTIME, schedule.Why.DUE, plugin.look_at)

    def _usable(self) -> runtime_link.PluginPeer | None:
        """Return the newest plugin by which the runtime can be asked."""
        usable = [peer for peer, plugin in self._plugins.items() if plugin.connected and plugin.listed]
        return usable[-1] if usable else None

    def _check(self) -> None:
        """Note whether the runtime can be asked."""
        connected = any(plugin.connected for plugin in self._plugins.values())
        CONNECTED.set(int(connected))
        if self._usable() is not None:
            self.holds.alone_since = None
        elif self.holds.alone_since is None:
            self.holds.alone_since = self._work.clock()
        if self.holds.alone_since is not None:
            when = self.holds.alone_since + AWAY_SECONDS
            if when > self._work.clock():
                self._work.due_by(queue.Task.RUNTIME, schedule.Why.DUE, when)
        self.holds.doubt(())
        self._work.reports.touch()

    def _mode(self) -> str:
        state = self._work.in_force.spec
        return "" if state is None else state.mode.value
