"""`swapwarden` with clocks that a test can set: as if its machine, and no other, slept or had its time corrected.

Those of a real machine are for all of its processes, and a time namespace sets them for a process that begins only. The
first argument is a folder: a file in it says by how many seconds a clock differs from the machine's.
"""

from __future__ import annotations

import datetime
import pathlib
import sys

from swapwarden import __main__ as program
from swapwarden.controller.certificates import manager
from swapwarden.kube.election import elector

SLEPT, WALL = "slept", "wall"
"""CLOCK_BOOTTIME, which runs on while the machine sleeps, and the time of day."""


def put(folder: pathlib.Path, clock: str, seconds: float) -> None:
    """Have a clock differ by so much from now on."""
    made = folder / f"{clock}.new"
    made.write_text(str(seconds), encoding="utf-8")
    made.replace(folder / clock)


def main(folder: pathlib.Path, arguments: list[str]) -> int:
    def ahead(clock: str) -> float:
        path = folder / clock
        return float(path.read_text(encoding="utf-8")) if path.exists() else 0.0

    boottime = elector.boottime
    elector.boottime = lambda: boottime() + ahead(SLEPT)

    def stamp() -> str:
        shown = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=ahead(WALL))
        return shown.isoformat(timespec="microseconds").replace("+00:00", "Z")

    elector.stamp = stamp
    manager.machine_time = lambda: datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=ahead(WALL))
    return program.main(arguments)


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]), sys.argv[2:]))
