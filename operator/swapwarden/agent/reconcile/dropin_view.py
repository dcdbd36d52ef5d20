"""Observes systemd's drop-in files, which an init container installs: the agent only sees them, read-only.

Files on the disk are no evidence that systemd holds a pod at 0 (drift/systemd_zero), but a 0 that it holds is
Swapwarden's own if they exist.
"""

from __future__ import annotations

import asyncio
import pathlib
from typing import Final

from swapwarden.agent.host import systemd_dropins, worker
from swapwarden.agent.inventory import board

_JOB: Final = "drop-ins"


class DropInView:
    """Reads the files in the background: a disk that is busy with swapping takes seconds."""

    def __init__(
        self,
        pods: pathlib.Path | None,
        slices: pathlib.Path | None,
        reports: board.Board,
        disks: worker.Worker,
    ) -> None:
        """`pods` and `slices` hold systemd's drop-in folders for them; None if the agent does not see these."""
        self._pods = pods
        self._slices = slices
        self._board = reports
        self._disks = disks
        self._due = asyncio.Event()

    def observe(self) -> None:
        """Record which files there are: must be called before anything depends on it."""
        self._take(self._read())

    def check(self) -> None:
        """Read the files again soon."""
        self._due.set()

    async def run(self) -> None:
        """Read the files when that is due; never returns."""
        while True:
            await self._due.wait()
            self._due.clear()
            self._take(await self._disks.do(_JOB, self._read, None))

    def _read(self) -> dict[str, board.DropInStatus]:
        return {
            board.PODS: _status(self._pods, systemd_dropins.pod_files),
            board.SLICES: _status(self._slices, systemd_dropins.slice_files),
        }

    def _take(self, found: dict[str, board.DropInStatus]) -> None:
        if found != self._board.drop_ins:
            self._board.drop_ins = found
            self._board.touch()


def _status(folder: pathlib.Path | None, look: systemd_dropins.Look) -> board.DropInStatus:
    if folder is None:
        return board.DropInStatus()
    there, missing = look(folder)
    return board.DropInStatus(visible=True, held=there, missing=missing)
