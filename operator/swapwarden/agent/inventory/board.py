"""Takes the status of the agent's parts, besides the records of cgroups, and wakes up its readers."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

import msgspec

from swapwarden.agent.desired import resolve, spec
from swapwarden.agent.inventory import layout
from swapwarden.api import names, state
from swapwarden.api.violations import ViolationReason

PODS: Final = "pods"
"""The drop-in files for guarantee Strict."""
SLICES: Final = "slices"
"""The drop-in files for slices of the node that a profile names."""


class SettingProblem(msgspec.Struct, frozen=True):
    """A setting of the node that differs from its profile; `message` says why, and what to do."""

    name: str
    reason: names.Problem
    message: str


class SettingError(Exception):
    """A setting could not be brought to its desired value; the message says why, and what to do."""

    def __init__(self, reason: names.Problem, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class SettingStatus(msgspec.Struct, frozen=True):
    """Status of the node settings that one part of the agent reconciles."""

    concerned: bool = False
    """Whether there is a setting to report."""
    problems: tuple[SettingProblem, ...] = ()
    to_restore: int = 0
    """Settings that still hold a value that the agent must restore."""


class DropInStatus(msgspec.Struct, frozen=True):
    """Status of the systemd drop-in files that the installation has on the node."""

    visible: bool = False
    """Whether the agent sees their folders: the installation has such files."""
    held: frozenset[str] = frozenset()
    """The slices with their file; of pods the prefixes of slices with both files."""
    missing: frozenset[str] = frozenset()
    """The slices, or prefixes, whose folder lacks the file."""


class KeyFailure(msgspec.Struct, frozen=True):
    """A key other than a file that could not be reconciled."""

    pod: str
    """UID of the pod; `kubepods` for cgroups above pods."""
    container: str
    reason: ViolationReason
    message: str


class RuntimeStatus(msgspec.Struct, frozen=True):
    """Whether the container runtime holds the limits of containers by itself."""

    connected: bool
    """Whether a plugin is here, and the runtime with it."""
    reason: str = ""
    """Why none is connected, or why a container may start without its limit; empty otherwise, and at first."""
    message: str = ""


class MemoryQoSStatus(msgspec.Struct, frozen=True):
    """Status of memory QoS beside that of its files."""

    kubelet_owns: frozenset[resolve.Owned] = frozenset()
    """Files of memory that the kubelet sets by a policy of its own."""
    storm_at: float = float("-inf")
    """When many cgroups last stood still at memory.high at once, in monotonic seconds."""


class ReconcileProgress(msgspec.Struct, frozen=True):
    """The part of the report on reconciling that is not in the records of pods and files."""

    spec: spec.NodeSpec | None
    """The state in force."""
    watches: int
    """inotify watches in use."""
    problem: layout.TreeError | None
    """Why the tree of pods was not found."""
    degraded: str
    """Why not everything can be watched, or empty."""
    generation: int
    """Generation of the newest state that was applied, apart from failures."""
    lost: int
    """How often the kernel dropped events lately."""
    failures: tuple[KeyFailure, ...]
    others: str
    """A description of recent writers other than systemd, or empty."""
    settings: tuple[SettingProblem, ...] | None
    """Settings of the node that are not as desired; None if none must be set or restored."""
    to_restore: int
    """Settings, and containers in the runtime, that still hold a value that the agent must restore."""
    runtime: RuntimeStatus | None = None
    """How the container runtime stands; None if the agent has no link to it."""
    memory: MemoryQoSStatus = MemoryQoSStatus()


class Board:
    """How the agent's parts stand, for the report. Not thread-safe: only the event loop may use it."""

    def __init__(self) -> None:
        self.sysctls = SettingStatus()
        self.drop_ins = {PODS: DropInStatus(), SLICES: DropInStatus()}
        self.reclaim = SettingStatus()
        self.reclaimed: tuple[state.ReclaimedPod, ...] = ()
        """Pods whose idle memory is moved to swap, the most first."""
        self.refused = ""
        """Why the newest state was refused, or empty."""
        self.revision = 0
        self.busy = False
        """Whether a state is being applied: a report would soon be out of date."""
        self._touched = asyncio.Event()

    def touch(self) -> None:
        """Begin a new revision, after a record that a report may show."""
        self.revision += 1
        self._touched.set()

    async def after(self, revision: int) -> int:
        """Wait for a later revision than the one that was read last, and return it. Any number may wait."""
        while self.revision == revision:
            # The next touch also wakes up readers that wait already.
            self._touched.clear()
            await self._touched.wait()
        return self.revision

    async def applied(self, seconds: float) -> None:
        """Wait until no state is being applied, for at most so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.busy:
                    await self.after(self.revision)
