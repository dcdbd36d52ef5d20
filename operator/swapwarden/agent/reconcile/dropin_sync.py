"""Keeps systemd's drop-in files as wanted, in the background: a disk that is busy with swapping takes seconds."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import pathlib
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from swapwarden.agent.desired import spec
from swapwarden.agent.drift import systemd_zero
from swapwarden.agent.host import systemd_dropins, worker
from swapwarden.agent.inventory import board
from swapwarden.api import names
from swapwarden.kube import backoff
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

FAILURES = metrics.counter(
    "swapwarden_agent_drop_in_failures_total",
    "Times that systemd's drop-in files for guarantee Strict could not be installed or removed.",
)

BACKOFF_SECONDS: Final = (2.0, 300.0)
"""First and longest bound of the wait after a failure."""

Wanted = TypeVar("Wanted", str, tuple[str, ...])
"""Describes the files that must exist; an empty one: none."""


def pods_prefix(current: spec.NodeSpec | None, root: str | None) -> str | None:
    """Return the prefix of the slices that must have files for guarantee Strict; empty: none; None: not known yet.

    `root` is the cgroup above all pods, once found.
    """
    if current is None or (systemd_zero.wants(current) and root is None):
        return None
    return (systemd_zero.prefix(root) or "") if systemd_zero.wants(current) and root is not None else ""


def unit_slices(current: spec.NodeSpec | None, root: str | None) -> tuple[str, ...] | None:
    """Return the node's slices that must have files; empty: none; None: not known yet."""
    if current is None or (current.units and root is None):
        return None
    enforces = current.mode is names.Mode.ENFORCE
    without = [name for name, unit in current.units.items() if enforces and unit.limit == 0]
    return systemd_dropins.slices(without, root or "")


class DropInSync(Generic[Wanted]):
    """Installs and removes the files."""

    def __init__(
        self,
        directory: pathlib.Path | None,
        reconcile: Callable[[pathlib.Path, Wanted], None],
        reports: board.Board,
        name: str,
        disks: worker.Worker,
    ) -> None:
        """`directory` None: the folders are not mounted, and nothing is done. `name` is that of the board's status."""
        self._directory = directory
        self._reconcile: Callable[[pathlib.Path, Wanted], None] = reconcile
        self._board = reports
        self._name = name
        self._disks = disks
        self._wanted: Wanted | None = None
        self._due = asyncio.Event()
        self._backoff = backoff.Backoff(*BACKOFF_SECONDS)
        self._report(mounted=directory is not None)

    @property
    def status(self) -> board.DropInStatus:
        """The status of the files."""
        return self._board.drop_ins[self._name]

    def _report(self, **changes: Any) -> None:
        before = self.status
        self._board.drop_ins[self._name] = before._replace(**changes)
        if self.status != before:
            self._board.touch()

    def observe(self) -> None:
        """Record which slices have a file: must be called before anything depends on it."""
        if self._directory is not None:
            self._report(held=systemd_dropins.installed(self._directory))

    def want(self, wanted: Wanted | None) -> None:
        """Set the desired files, as an argument of `reconcile`; empty: none. None: not known yet, nothing changes."""
        if self._directory is None or wanted is None or wanted == self._wanted:
            return
        self._wanted = wanted
        self._report(left=not wanted)
        # Earlier failures concerned other files, and must not delay these.
        self._backoff.reset()
        self._due.set()

    def check(self) -> None:
        """Check the files soon; after a failure `run` does that by itself."""
        if self._wanted is not None and not self.status.failed:
            self._due.set()

    async def run(self) -> None:
        """Install and remove files when that is due; never returns."""
        while True:
            await self._due.wait()
            self._due.clear()
            if self._directory is None or self._wanted is None:
                continue
            wanted = self._wanted
            # systemd may read a file before the agent learns that it was written.
            self._report(held=self.status.held | frozenset([wanted] if isinstance(wanted, str) else wanted))
            try:
                work = functools.partial(self._brought, self._directory, wanted)
                held = await self._disks.do(f"drop-ins-{self._name}", work, None)
            except OSError as error:
                wait = self._failed(error)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._due.wait()
                self._due.set()
                continue
            self._backoff.reset()
            self._report(held=held, failed="", left=self.status.left and wanted != self._wanted)

    def _brought(self, directory: pathlib.Path, wanted: Wanted) -> frozenset[str]:
        self._reconcile(directory, wanted)
        return systemd_dropins.installed(directory)

    def _failed(self, error: OSError) -> float:
        FAILURES.inc()
        reason = str(error)
        wait = self._backoff.next()
        if reason != self.status.failed:
            log.error("systemd's drop-in files are not as wanted; trying again in %.0f s: %s", wait, reason)
        self._report(failed=reason)
        return wait
