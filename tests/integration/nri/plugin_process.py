"""`swapwarden nri` as a real process."""

from __future__ import annotations

import os
import pathlib
import signal
import sys
import time
from typing import Final

from swapwarden.api import runtime_link

from testbed.base import process

PLUGIN: Final = f"{runtime_link.INDEX}-{runtime_link.PLUGIN}"
"""The plugin's name in the runtime."""


def pause(running: process.Process) -> None:
    """Stop a process and wait until no thread of it runs: a signal takes its time to reach each."""
    running.send_signal(signal.SIGSTOP)
    deadline = time.monotonic() + 10
    while any(_state(each) != "T" for each in pathlib.Path(f"/proc/{running.pid}/task").iterdir()):
        assert time.monotonic() < deadline, f"{running.name} does not stop"
        time.sleep(0.001)


def _state(thread: pathlib.Path) -> str:
    return (thread / "stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]


class Plugin(process.Process):
    """One plugin. FOLDER holds the runtime's socket, and the link's socket in a folder of its own."""

    def __init__(self, folder: pathlib.Path, *options: str, name: str = "plugin") -> None:
        link, cgroup = folder / "link", folder / "cgroup"
        link.mkdir(exist_ok=True)
        cgroup.mkdir(exist_ok=True)
        (cgroup / runtime_link.SWAP_MAX).touch()
        argv = [sys.executable, "-m", "swapwarden", "nri", f"--socket-dir={folder}", f"--link-dir={link}"]
        argv += [f"--cgroup-root={cgroup}", "--log-level=debug", *options]
        super().__init__(name, argv, log=folder / f"{name}.log")

    def pause(self) -> None:
        """Stop it, as a node without CPU for it does."""
        pause(self)

    def resume(self) -> None:
        """Let it go on."""
        self.send_signal(signal.SIGCONT)

    @property
    def rss(self) -> int:
        """Bytes of memory that it uses."""
        return self._status("VmRSS")

    @property
    def peak(self) -> int:
        """The most bytes of memory that it used."""
        return self._status("VmHWM")

    def _status(self, field: str) -> int:
        status = pathlib.Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        return int(status.partition(f"{field}:")[2].split()[0]) << 10

    @property
    def cpu(self) -> float:
        """Seconds of CPU time that it used."""
        fields = pathlib.Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
