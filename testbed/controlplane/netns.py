"""A network of one testbed's own: several clusters side by side, none of them in the machine's own network.

Its name carries the process id of its maker. The next run removes what a killed run left behind.
"""

import contextlib
import ctypes
import itertools
import os
import re
import shutil
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

from testbed.base import host, process

_PREFIX = "swapwarden"
_FOLDER = Path("/run/netns")
_PROC = Path("/proc")
_CLONE_NEWNET = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)
_NUMBERS = itertools.count(1)
_TIMEOUT = 30.0


def ensure() -> None:
    """Load the requirements for networks; host.SetupError if they are missing."""
    host.need_linux()
    host.need(
        host.is_root(),
        "a cluster needs a network namespace and a tap device, and this is not root",
        "run it as root, in a VM if you prefer",
    )
    if not (shutil.which("ip") and shutil.which("nsenter")):
        host.apt_install(["iproute2", "util-linux"], "the cluster's network")
    host.need(
        Path("/dev/net/tun").exists(),
        "there is no /dev/net/tun, so the node VM can have no network",
        "run once as root: modprobe tun",
    )


def leftovers(names: Sequence[str], alive: Sequence[int]) -> list[str]:
    """Return those of NAMES that this module made in a process that is no longer ALIVE."""
    made = [(name, re.fullmatch(rf"{_PREFIX}-(\d+)-\d+", name)) for name in names]
    return [name for name, found in made if found and int(found[1]) not in alive]


def remove_leftovers() -> None:
    """Remove the networks of runs that were killed."""
    names = [path.name for path in _FOLDER.iterdir()] if _FOLDER.is_dir() else []
    alive = [int(path.name) for path in _PROC.iterdir() if path.name.isdecimal()]
    for name in leftovers(names, alive):
        _delete(name)


def _delete(name: str) -> None:
    """Delete a network that this module made, and end the processes in it."""
    said = process.run(["ip", "netns", "pids", name], timeout=_TIMEOUT, check=False)
    for pid in said.stdout.split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    process.run(["ip", "netns", "delete", name], timeout=_TIMEOUT, check=False)


def _enter(descriptor: int) -> None:
    if _LIBC.setns(descriptor, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")


class NetworkNamespace(process.Managed):
    """A network with nothing but loopback; made on entering, and removed on leaving with all devices in it."""

    def __init__(self) -> None:
        self.name = f"{_PREFIX}-{os.getpid()}-{next(_NUMBERS)}"

    def start(self) -> None:
        remove_leftovers()
        process.run(["ip", "netns", "add", self.name], timeout=_TIMEOUT)
        self.ip("link", "set", "lo", "up")

    def stop(self) -> None:
        """Remove it, and the processes in it."""
        _delete(self.name)

    @property
    def path(self) -> Path:
        """The file that stands for it."""
        return _FOLDER / self.name

    def ip(self, *arguments: str) -> None:
        """Run iproute2's `ip` in it."""
        process.run(["ip", "-n", self.name, *arguments], timeout=_TIMEOUT)

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return the command line that runs ARGV in it; the process keeps its id."""
        return ["nsenter", f"--net={self.path}", "--", *argv]

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Make sockets that this thread opens in the block belong to this network for good."""
        with contextlib.ExitStack() as stack:
            own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, own)
            other = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, other)
            _enter(other)
            stack.callback(_enter, own)
            yield
