"""Knows until when events reported everything: so an exposure never begins too late in the report."""

from __future__ import annotations

import math
from typing import Final

from swapwarden.agent.inventory import records

LOST_SECONDS: Final = 600.0
"""How long the status reports that the kernel dropped events."""


class EventHorizon:
    """Times are monotonic seconds."""

    def __init__(self, now: float) -> None:
        self.drained = now
        """Until then inotify reported everything about its watches."""
        self.writes = 0
        """How many of the agent's own writes events have reported for certain."""
        self.caught_up = now
        """All pods that ran before this time are known."""
        self._complete = self.lost_until = records.NEVER
        """Events were lost between these times. Files that were read since are known all the same."""
        self._lossy = False
        """Whether some files were not read since."""
        self._losses = 0
        """How often the kernel dropped events, each time soon after the one before; the last time at `_lost_at`."""
        self._lost_at = records.NEVER
        self.ever_lost = False

    def lose(self, now: float) -> None:
        """Note that the kernel dropped events."""
        if not self._lossy:
            self._complete = self.drained
        self._lossy = True
        self.lost_until = now

    def count_loss(self, noticed: float) -> None:
        """Count one read that reported losses."""
        self._losses = self.losses(noticed) + 1
        self.ever_lost = True
        self._lost_at = noticed

    def losses(self, now: float) -> int:
        """Return how often the kernel dropped events lately."""
        return self._losses if now - self._lost_at < LOST_SECONDS else 0

    def compared(self) -> None:
        """Note that all files were read."""
        self._lossy = False

    def last_right(self, file: records.ControlFile, until: float = math.inf) -> float | None:
        """Return the last moment at which a file is known to have held the agent's value, or None.

        Events have reported all writes `until` then, at most until the last read of events.
        """
        right = file.times.right_at
        if file.watch is not None and file.watch == file.times.right_watch:
            until = min(until, self.drained)
            return max(right, min(until, self._complete) if right < self.lost_until else until)
        return right if right > records.NEVER else None

    def exposed_since(self, file: records.ControlFile, noticed: float) -> float:
        """Return since when a file with an event may be wrong: earlier than the event if others were lost."""
        right = self.last_right(file)
        return noticed if right is None else min(right, noticed)
