"""An event loop in simulated time: instead of waiting, its clock jumps to the next timer."""

from __future__ import annotations

import asyncio
import selectors


class _Jumps(selectors.SelectSelector):
    """In place of waiting, moves the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now += timeout or 0.0
        return []


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop in simulated time."""

    def __init__(self) -> None:
        self.jumps = _Jumps()
        super().__init__(self.jumps)

    def time(self) -> float:
        return self.jumps.now
