"""Ends contention with a writer that keeps lowering a value that the agent must raise.

Too little swap breaks no promise, so the agent yields to such a writer after some rounds, and the status reports it. It
never yields to a writer that keeps raising a value: that is no matter of this module.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from swapwarden.agent.host import cgroupfs
from swapwarden.agent.inventory import records
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

YIELDS = metrics.counter(
    "swapwarden_agent_yields_total",
    "Times that the agent left a lower value to another writer, which kept writing it, by kind of cgroup (pod,"
    " container, kubepods, system).",
    labels=("kind",),
    known=[("pod",), ("container",)],
)

ROUNDS: Final = 10
"""Repairs of a lowered value after which the agent yields."""
WINDOW_SECONDS: Final = 600.0
"""The time in which so many make a contention."""
YIELD_SECONDS: Final = 3600.0
"""How long the agent then leaves the lower value alone, unless the desired value changes."""
LOG_SECONDS: Final = 60.0


class Contentions:
    """The contentions of all files; each file keeps its own (records.Contention)."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` in monotonic seconds."""
        self._clock = clock
        self._logged = float("-inf")
        self._unlogged = 0

    def expire(self, file: records.ControlFile, limit: int | None) -> None:
        """Forget a contention after YIELD_SECONDS, or one about another `limit` (bytes).

        `limit` is None if a smaller value is as good: then there is no contention.
        """
        contention = file.contention
        if contention is not None and (
            contention.limit != limit or (contention.until is not None and self._clock() >= contention.until)
        ):
            file.contention = None

    def retry_in(self, file: records.ControlFile) -> float | None:
        """Return the seconds until the file is raised again; None if the agent does not yield."""
        if file.contention is None or file.contention.until is None:
            return None
        return max(0.0, file.contention.until - self._clock())

    def record_lowering(self, file: records.ControlFile, limit: int) -> None:
        """Record the repair of a value below `limit` from another writer than systemd."""
        now = self._clock()
        contention = file.contention
        if contention is None or contention.limit != limit or now - contention.since > WINDOW_SECONDS:
            contention = file.contention = records.Contention(limit, now)
        contention.rounds += 1
        if contention.rounds >= ROUNDS and contention.until is None:
            contention.until = now + YIELD_SECONDS
            YIELDS.inc(file.kind)
            self._log(file, limit, now)

    def _log(self, file: records.ControlFile, limit: int, now: float) -> None:
        self._unlogged += 1
        if now - self._logged < LOG_SECONDS:
            return
        log.warning(
            "another writer keeps lowering a value; it stays for %.0f s, or until the state has another one: find that"
            " writer, or lower the pod's limit",
            YIELD_SECONDS,
            extra={"cgroup": f"/{file.path}", "desired": cgroupfs.render(limit), "cgroups": self._unlogged},
        )
        self._logged, self._unlogged = now, 0
