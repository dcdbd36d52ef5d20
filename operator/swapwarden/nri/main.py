"""The process `swapwarden nri`, which answers the container runtime: flags, connections and the loop.

It has two sockets, no thread and no network. The loop waits in one place only. A watchdog ends the process if it does
not return there.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import re
import select
import signal
import socket
import time
from typing import Any, Final, Protocol, Self

import swapwarden
from swapwarden.api import runtime_link
from swapwarden.nri import knowledge, logs
from swapwarden.nri.agent_side import AgentSide
from swapwarden.nri.runtime_side import RuntimeSide
from swapwarden.telemetry import log_lines

WATCHDOG_SECONDS: Final = 20.0
"""Between two looks at the loop. One that is in the same turn ends the process; the kubelet starts it again."""
STUCK: Final = 70
"""The exit status of a process whose loop is stuck."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument(
        "--socket-dir", default="/var/run/nri", metavar="DIR", help="folder with the runtime's socket, nri.sock"
    )
    parser.add_argument(
        "--link-dir", default=runtime_link.FOLDER, metavar="DIR", help="folder that is shared with the node's agent"
    )
    parser.add_argument(
        "--cgroup-root",
        default="/sys/fs/cgroup",
        metavar="DIR",
        help="this process's own cgroup; without memory.swap.max there nothing is adjusted",
    )
    parser.add_argument(
        "--name", default=runtime_link.PLUGIN, type=_name, help="name in the runtime (default: %(default)s)"
    )
    parser.add_argument(
        "--index",
        default=runtime_link.INDEX,
        type=_index,
        help="place among the runtime's plugins, two digits (default: %(default)s)",
    )
    parser.add_argument(
        "--required",
        action="store_true",
        help="have the runtime refuse a container if this process does not answer (from NRI 0.10)",
    )
    log_lines.add_arguments(parser)


def _name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.+-]{1,63}", text):
        raise argparse.ArgumentTypeError(f"{text} has other characters than letters, digits and _.+-")
    return text


def _index(text: str) -> str:
    if len(text) != 2 or not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text} is not two digits")
    return text


def run(arguments: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT. Return the exit status."""
    logs.configure(arguments.log_level, arguments.log_format)
    adjusts = os.path.exists(os.path.join(arguments.cgroup_root, runtime_link.SWAP_MAX))
    if not adjusts:
        logs.warning("main", f"nothing is adjusted: {arguments.cgroup_root} has no {runtime_link.SWAP_MAX}")
    logs.info("main", "started", version=swapwarden.__version__)
    known = knowledge.Knowledge(adjusts=adjusts, required=arguments.required)
    agent = AgentSide(known, arguments.link_dir, time.monotonic)
    plugin = arguments.name, arguments.index
    runtime = RuntimeSide(known, plugin, arguments.socket_dir, clock=time.monotonic, notify=agent.notify)
    agent.runtime = runtime
    gc.collect()
    gc.freeze()
    with Signals() as signals:
        loop(signals, agent, runtime, *runtime.courier.lanes)
    runtime.close()
    agent.close()
    logs.info("main", "stopped; the containers keep their values")
    return 0


class Side(Protocol):
    """A connection that the loop serves."""

    def tick(self) -> None:
        """Connect if it is time; give up waiting for answers that are late."""

    def due(self) -> float | None:
        """Return when to tick next, on the clock of time.monotonic(); None: not before bytes arrive."""

    @property
    def socket(self) -> socket.socket | None:
        """The socket, if it is connected."""

    @property
    def waits(self) -> bool:
        """Whether bytes wait for room in the socket."""

    def readable(self) -> None:
        """Read from the socket."""

    def writable(self) -> None:
        """Write to the socket."""


class Signals:
    """SIGTERM and SIGINT end the loop, through a socket that it watches. SIGALRM ends a process whose loop is stuck."""

    def __init__(self) -> None:
        self.ended = False
        self.turns = 0
        """Turns of the loop, which arms no timer in each: that would be three system calls a request."""
        self.is_waiting = False
        """Whether the loop waits for its sockets, which may take any time."""
        self._turns_seen = -1
        self.wakes, self._writes = socket.socketpair()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        """Install the handlers."""
        self.wakes.setblocking(False)  # noqa: FBT003 the standard library has no other form
        self._writes.setblocking(False)  # noqa: FBT003 as above
        signal.set_wakeup_fd(self._writes.fileno(), warn_on_full_buffer=False)
        # A container's first process is not ended by a signal that has no handler.
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._end)
        self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._watch)
        signal.setitimer(signal.ITIMER_REAL, WATCHDOG_SECONDS, WATCHDOG_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the handlers."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self.close()

    def close(self) -> None:
        """Close the sockets."""
        self.wakes.close()
        self._writes.close()

    def _end(self, *_: object) -> None:
        self.ended = True

    def _watch(self, *_: object) -> None:
        if self.turns == self._turns_seen and not self.is_waiting:
            os.write(2, b"the loop is stuck; ending the process\n")
            os._exit(STUCK)
        self._turns_seen = self.turns


def loop(signals: Signals, *sides: Side) -> None:
    """Serve both connections until a signal arrives."""
    while not signals.ended:
        signals.turns += 1
        due = _due(sides)
        if due is not None and due <= time.monotonic():
            for side in sides:
                side.tick()
            due = _due(sides)
        timeout = None if due is None else max(0.0, due - time.monotonic())
        reading = {each.socket: each for each in sides if each.socket is not None}
        writing = [each for each, side in reading.items() if side.waits]
        signals.is_waiting = True
        ready, free, _ = select.select([signals.wakes, *reading], writing, [], timeout)
        signals.is_waiting = False
        for each in free:
            reading[each].writable()
        for each, side in reading.items():
            if each in ready:
                side.readable()
        if signals.wakes in ready:
            with contextlib.suppress(BlockingIOError):
                signals.wakes.recv(64)


def _due(sides: tuple[Side, ...]) -> float | None:
    """Return when the first of them must tick."""
    return min((at for side in sides if (at := side.due()) is not None), default=None)
