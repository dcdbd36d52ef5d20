"""Where the agent's parts record how they stand, beside the records of cgroups; it wakes up who reads that."""

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
    """How the settings of the node stand that one part of the agent reconciles."""

    concerned: bool = False
    """Whether there is anything to report."""
    problems: tuple[problems.SettingProblem, ...] = ()
    to_restore: int = 0
    """Settings that still hold a value of the agent's and must not."""


class DropInStatus(NamedTuple):
    """How systemd's drop-in files stand."""

    mounted: bool = False
    """Whether this agent installs the files, and no one else has to."""
    failed: str = ""
    """Why the files are not as desired; empty if they are, or were not looked at yet."""
    left: bool = False
    """Whether there may be files that should not be."""
    held: frozenset[str] = frozenset()
    """The slices that may have a file: those where one was seen, and while files are written those that get one."""


class Board:
    """Not thread-safe: only the event loop may use it."""

    def __init__(self) -> None:
        self.sysctls = SettingStatus()
        self.drop_ins = {PODS: DropInStatus(), SLICES: DropInStatus()}
        self.refused = ""
        """Why the newest state was not taken; empty if it was."""
        self.revision = 0
        self.busy = False
        """Whether a state is being applied: what is reported meanwhile is another in a moment."""
        self._touched = asyncio.Event()

    def touch(self) -> None:
        """Something was recorded that a report may show."""
        self.revision += 1
        self._touched.set()

    async def after(self, revision: int) -> int:
        """Wait for a later revision than the one that was read last, and return it. Any number may wait."""
        while self.revision == revision:
            # Those that wait already are woken up by the next touch all the same.
            self._touched.clear()
            await self._touched.wait()
        return self.revision

    async def applied(self, seconds: float) -> None:
        """Wait until no state is being applied, for so many seconds at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.busy:
                    await self.after(self.revision)
