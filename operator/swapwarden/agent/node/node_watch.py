"""Keeps the facts about the node up to date, for its status and for the settings of its disks."""

from __future__ import annotations

import asyncio
import functools
import logging
import pathlib
from typing import Final

import msgspec

from swapwarden.agent.host import cgroupfs, worker
from swapwarden.agent.inventory import board, inventory
from swapwarden.agent.ledger import ledger
from swapwarden.agent.node import eviction_order, kubelet_config, node_info, swap_devices
from swapwarden.api import state
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

FACTS_FAILURES = metrics.counter(
    "swapwarden_agent_facts_failures_total",
    "Examinations of the node (its swap devices, the kubelet's configuration and the like) that timed out; earlier"
    " results stay.",
)

FACTS_SECONDS: Final = 30.0
"""How long a look at the node may take: some of the files are on disks, which may be busy with swapping."""


class Sources(msgspec.Struct, frozen=True):
    """Where the node's files are."""

    proc: pathlib.Path
    sys: pathlib.Path
    kubelet: kubelet_config.Files
    state_dir: pathlib.Path
    """A folder on a file system of the node."""


class _TreeFacts(msgspec.Struct, frozen=True):
    """Facts that the tree of pods shows of the node."""

    root: str | None
    """The cgroup above all pods."""
    runs: bool
    """Whether a container was there: its name shows the runtime."""


class _Seen(msgspec.Struct, frozen=True):
    """A look at files that take longer to read or are on disks, and at which tree and devices it was."""

    tree: _TreeFacts
    devices: list[state.SwapDevice]
    look: node_info.NodeLook
    disks: swap_devices.Disks


class NodeWatch:
    """Looks at the node's facts and kubelet. Not thread-safe: only the event loop may use it."""

    def __init__(
        self,
        sources: Sources,
        cgroups: cgroupfs.Cgroups,
        known: inventory.Inventory,
        limits: ledger.LimitRecords,
        reports: board.Board,
        *,
        disks: worker.Worker,
    ) -> None:
        """Read the facts, which are the kernel's; `run` reads the rest."""
        self._sources = sources
        self._fs = cgroups
        self._known = known
        self._limits = limits
        self._board = reports
        self._worker = disks
        self._due = asyncio.Event()
        self._last: _Seen | None = None
        """The last look at the node; None: all must be read again."""
        self.looked = asyncio.Event()
        """Set once all was looked at, or it took too long."""
        self.facts = self._read_facts(None)
        self.look = node_info.NodeLook()
        self.disks = swap_devices.Disks()

    @property
    def has_cgroup_v2(self) -> bool:
        """Whether the agent can enforce anything on this node."""
        return self.facts.cgroup_version == 2

    def check(self) -> None:
        """Have `run` look whether the swap devices changed."""
        self._due.set()

    def check_all(self) -> None:
        """Have `run` look at everything."""
        self._last = None
        self._due.set()

    def check_tree(self) -> None:
        """Have `run` look again if the tree of pods shows more than before."""
        if self._last is not None and self._last.tree != self._tree():
            self._due.set()

    async def run(self) -> None:
        """Look whenever it is due; never returns."""
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                written = frozenset(record.key.path for record in self._limits if record.wrote)
                look = functools.partial(self._look, self._tree(), written)
                self._take(*await self._worker.do("node-facts", look, FACTS_SECONDS))
            except TimeoutError:
                FACTS_FAILURES.inc()
                log.warning(
                    "an examination of the node takes more than %.0f s; a disk may hang. Earlier results stay, next"
                    " try with the next full comparison",
                    FACTS_SECONDS,
                )
            finally:
                # Also after a failure: a status without facts reports more than none.
                self.looked.set()

    def reported(self) -> state.Facts:
        """Return the facts as the node's status has them."""
        root = self._tree().root
        if root is not None and not self.facts.swap_controller:
            # A file of the kernel's, for which nobody waits.
            has = node_info.has_swap_controller(self._fs, root)
            self.facts = msgspec.structs.replace(self.facts, swap_controller=has)
        return node_info.reported(self.facts, self.look, root)

    def _tree(self) -> _TreeFacts:
        root = None if self._known.root is None else self._known.root.path
        ran = self._last is not None and self._last.tree == _TreeFacts(root, runs=True)
        return _TreeFacts(root, runs=ran or any(pod.containers for pod in self._known.pods.values()))

    def _read_facts(self, root: str | None) -> state.Facts:
        own = self._sources
        return node_info.read_facts(own.proc, own.sys / "block", self._fs, root, (str(own.state_dir.absolute()),))

    def _look(self, tree: _TreeFacts, written: frozenset[str]) -> tuple[state.Facts, _Seen | None]:
        """See what the node has, also on its disks: in a thread. `written`: cgroups that the agent wrote to."""
        facts, last = self._read_facts(tree.root), self._last
        if last is not None and (last.tree, last.devices) == (tree, facts.devices):
            return facts, None
        own = self._sources
        look = node_info.look(own.proc, own.sys, self._fs, tree.root, own.kubelet, ours=written)
        return facts, _Seen(tree, facts.devices, look, swap_devices.find(own.sys / "block", facts.devices))

    def _take(self, facts: state.Facts, seen: _Seen | None) -> None:
        self.facts = facts
        if seen is not None:
            if seen.look.unreadable not in {"", self.look.unreadable}:
                log.warning("the kubelet's configuration is not known: %s", seen.look.unreadable)
            memory = eviction_order.steady(self.look.memory, seen.look.memory)
            self._last, self.look, self.disks = seen, msgspec.structs.replace(seen.look, memory=memory), seen.disks
        self._board.touch()
