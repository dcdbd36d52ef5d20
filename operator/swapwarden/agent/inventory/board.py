"""Takes the status of the agent's parts, besides the records of cgroups, and wakes up its readers."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final, NamedTuple

from swapwarden.agent.desired import problems

PODS: Final = "pods"
"""The drop-in files for guarantee Strict."""
SLICES: Final = "slices"
"""Those for slices of the node that a profile names."""


class SettingStatus(NamedTuple):
    """Status of the node settings that one part of the agent reconciles."""

    concerned: bool = False
    """Whether there is a setting to report."""
    problems: tuple[problems.SettingProblem, ...] = ()
    to_restore: int = 0
    """Settings that still hold a value that the agent must restore."""


class DropInStatus(NamedTuple):
    """Status of the systemd drop-in files."""

    mounted: bool = False
    """Whether this agent installs the files itself."""
    failed: str = ""
    """Why the files are not as desired; empty if they are, or before the first check."""
    left: bool = False
    """Whether files may exist that must not."""
    held: frozenset[str] = frozenset()
    """The slices that may have a file: those with one, and during a write those that get one."""


class Board:
    """Not thread-safe: only the event loop may use it."""

    def __init__(self) -> None:
        self.sysctls = SettingStatus()
        self.drop_ins = {PODS: DropInStatus(), SLICES: DropInStatus()}
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
