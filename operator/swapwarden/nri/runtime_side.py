"""The connection to the container runtime: made, lost and made again."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable
from typing import Final, TypeVarTuple

from swapwarden.api.runtime_link import Away
from swapwarden.nri import courier, frames, knowledge, link, logs, messages, orders, retry, session

_Arguments = TypeVarTuple("_Arguments")

SOCKET: Final = "nri.sock"
SEND_SECONDS: Final = 2.0
"""Time for the runtime to read an answer; it waits for it, and takes as long for a request at most by default."""
_TIMEVAL: Final = struct.pack("@ll", int(SEND_SECONDS), 0)
_BYTES: Final = 64 * 1024


class RuntimeSide:
    """The socket to the runtime, and the session on it."""

    def __init__(
        self,
        known: knowledge.Knowledge,
        plugin: tuple[str, str],
        folder: str,
        *,
        clock: Callable[[], float],
        notify: Callable[[bytes], bool],
    ) -> None:
        """`plugin` is the plugin's name and index."""
        self._known = known
        name, index = plugin
        self._registration = messages.register(name, index)
        self._path = os.path.join(folder, SOCKET)
        self._clock = clock
        self._notify = notify
        self.courier = courier.Courier(self._path, messages.register(name + courier.SUFFIX, index), clock)
        self._retry = retry.Retry(clock())
        self._session: session.RuntimeSession | None = None
        self._file: tuple[int, int] | None = None
        """The identity of the socket's file at the last connection, unless the runtime did not accept that one."""
        self._buffer = memoryview(bytearray(_BYTES))
        self.socket: socket.socket | None = None
        self.waits = False
        """Always False: answers are sent without a queue."""

    def due(self) -> float | None:
        """Return when to tick next."""
        return self._retry.at if self._session is None else self._session.due()

    def tick(self) -> None:
        """Connect if it is time; give up waiting for answers that are late."""
        if self._session is not None:
            self._guarded(self._session.expire)
        elif self._retry.at <= self._clock():
            self._connect()

    def readable(self) -> None:
        """Read and answer."""
        self._guarded(self._read)

    def writable(self) -> None:
        """Nothing waits to be written."""

    def sandbox_done(self, number: int) -> None:
        """Let the start of a pod go on."""
        if self._session is not None:
            self._guarded(self._session.sandbox_done, number)

    def agent_gone(self) -> None:
        """Let all pods start that wait for the agent."""
        if self._session is not None:
            self._guarded(self._session.agent_gone)

    def update(self, order: link.Update) -> None:
        """Pass an order of the agent on, or report that it is not possible."""
        if self._session is None:
            self._notify(link.outcome(order.seq, dict.fromkeys(order.values, orders.GONE)))
        else:
            self._guarded(self._session.orders.accept, order)

    def close(self) -> None:
        """Let all pods start that wait, and end the connections."""
        self.agent_gone()
        self.courier.abandon()
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def _connect(self) -> None:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        # The kernel's own limits: those of Python's sockets cost a system call more for each read and each write.
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            made.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL)
        try:
            made.connect(self._path)
            file = os.stat(self._path)
        except OSError as error:
            made.close()
            self._away(_reason(error))
            return
        self.socket = made
        # A runtime that restarts recreates its socket.
        before, self._file = self._file, (file.st_ino, file.st_ctime_ns)
        self._known.counts["dropped"] += before == self._file
        self._retry.connected(self._clock())
        self._session = session.RuntimeSession(
            self._known, send=made.sendall, notify=self._notify, carry=self.courier.carry, clock=self._clock
        )
        self._guarded(self._session.begin, self._registration)

    def _read(self) -> None:
        if self.socket is None or self._session is None:
            return
        size = self.socket.recv_into(self._buffer)
        if not size:
            raise ConnectionError("the runtime ended the connection")
        self._session.receive(self._buffer[:size])

    def _guarded(self, action: Callable[[*_Arguments], None], *arguments: *_Arguments) -> None:
        """Do something with the session; an error ends the connection."""
        try:
            action(*arguments)
        except session.SessionError as error:
            self._lost(str(error), str(error))
        except (OSError, frames.FrameError) as error:
            self._lost(Away.LOST, str(error))
        except Exception as error:  # noqa: BLE001 a new connection is better than no process
            what = logs.raised(error)
            logs.error("runtime", f"the connection to the runtime is given up: {what}")
            self._known.counts["errors"] += 1
            self._lost(type(error).__name__, what)

    def _lost(self, why: str, what: str) -> None:
        if self.socket is not None:
            self.socket.close()
        ended, self.socket, self._session = self._session, None, None
        self._known.counts["lost"] += 1
        if self._known.runtime is not None:
            logs.warning("runtime", f"the connection to the runtime ended: {what}")
        else:
            self._file = None
        self._known.runtime = None
        if ended is not None:
            ended.orders.fail()
        self.courier.abandon()
        self._away(why)

    def _away(self, why: str) -> None:
        self._retry.failed(self._clock(), restarts=why in set(Away))
        if why != self._known.away:
            logs.warning("runtime", f"no runtime at {self._path}: {why}")
            self._known.away = why
            self._notify(self._known.described())


def _reason(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return Away.NO_SOCKET
    if isinstance(error, ConnectionRefusedError):
        return Away.REFUSED
    return error.strerror or type(error).__name__
