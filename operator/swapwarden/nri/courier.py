"""Updates of running containers for runtimes whose library is not safe to ask for them.

Before NRI 0.12.1 the library takes its lock before the runtime's for an update that a plugin asks for, and after it for
each request. An update that meets a request stops the runtime for good (containerd/containerd, issue 13733). A plugin
may also return updates when the runtime lists its containers, where the order of locks is right. So a short second
connection brings them. The runtime does not report their success; the list that the next such connection gets does.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Final

from swapwarden.nri import frames, logs, messages

SAFE: Final = (0, 12, 1)
"""The first version of NRI without the fault (containerd/nri, pull request 301)."""
PART: Final = 16
"""Containers of one connection. A connection waits until the runtime has no other request under way, and holds up new
ones."""
CARRY_SECONDS: Final = 30.0
"""For both connections: the runtime lets plugins register one at a time, each for 5 s at most."""
LINGER_SECONDS: Final = 1.0
"""A last connection stays as long, so that the runtime reads the answer before the end."""
SEND_SECONDS: Final = 2.0
SUFFIX: Final = "-updates"
"""Appended to the plugin's name on these connections: a runtime's validator would count an equal name as the plugin."""
EVENT: Final = 9
"""PostUpdateContainer, the one event of these connections: rare, and without an effect. None would mean each."""
_BYTES: Final = 64 * 1024
_CONFIGURED: Final = messages.configured([EVENT])


def is_safe(nri: str) -> bool:
    """Return whether a runtime with this version of NRI (empty if it has none) can be asked for updates."""
    version, has_suffix, _ = nri.removeprefix("v").partition("-")
    try:
        numbers = tuple(int(each) for each in version.split("."))
    except ValueError:
        return False
    return numbers > SAFE or (numbers == SAFE and not has_suffix)


class Lane:
    """One connection at a time, a side of the loop. The courier alternates between two."""

    def __init__(self, courier: Courier) -> None:
        self._courier = courier
        self.socket: socket.socket | None = None
        self.waits = False
        """Always False: answers are sent without a queue."""
        self.until: float | None = None
        """When to end the connection."""
        self._reader = frames.FrameReader()
        self._listed: dict[str, str | None] = {}

    def due(self) -> float | None:
        """Return when to tick next."""
        return self._courier.clock() if self._courier.is_needed else self.until

    def tick(self) -> None:
        """Connect if there is something to bring; end the connection if it is time."""
        if self._courier.is_needed:
            self._courier.connect()
        if self.until is not None and self.until <= self._courier.clock():
            self._courier.ended(self)

    def open(self, path: str, registration: bytes) -> None:
        """Connect and register. OSError if that is not possible."""
        self.close()
        self._reader, self._listed = frames.FrameReader(), {}
        self.socket = made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        made.settimeout(SEND_SECONDS)
        made.connect(path)
        body = messages.request("RegisterPlugin", registration, CARRY_SECONDS)
        made.sendall(frames.framed(frames.TtrpcMessage(frames.RUNTIME, 1, frames.REQUEST, body)))

    def close(self) -> None:
        """End the connection."""
        if self.socket is not None:
            self.socket.close()
        self.socket = self.until = None

    def readable(self) -> None:
        """Read and answer. An error ends the connection."""
        try:
            data = self.socket.recv(_BYTES) if self.socket is not None else b""
            for message in self._reader.feed(memoryview(data)):
                self._take(message)
            if not data:
                self._courier.ended(self)
        except Exception as error:  # noqa: BLE001 whatever it is, it must not end the process
            logs.warning("runtime", f"a connection for updates ended: {logs.raised(error)}")
            self._courier.ended(self)

    def writable(self) -> None:
        """Nothing waits to be written."""

    def _take(self, message: frames.TtrpcMessage) -> None:
        if message.connection != frames.PLUGIN or message.kind != frames.REQUEST:
            return
        method, payload = messages.read_request(message.payload)
        answer = b""
        if method == "Configure":
            answer = _CONFIGURED
        elif method == "Synchronize":
            part = messages.read_synchronize(payload)
            self._listed |= {each.id: each.value for each in part.containers if each.id in self._courier.desired}
            answer = messages.synchronized(more=True) if part.more else self._courier.synchronized(self, self._listed)
        if self.socket is not None:
            body = messages.response(answer)
            self.socket.sendall(
                frames.framed(frames.TtrpcMessage(frames.PLUGIN, message.stream, frames.RESPONSE, body))
            )


class Courier:
    """Carries one part of an order at a time."""

    def __init__(self, path: str, registration: bytes, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.lanes = (Lane(self), Lane(self))
        self.desired: dict[str, str] = {}
        """Values by container: brought, or on their way."""
        self._path = path
        self._registration = registration
        self._done: Callable[[list[str]], None] | None = None
        self._is_brought = False
        """Whether the next list shows the effect."""
        self._active: Lane | None = None
        """The connection that has not had the runtime's list yet."""

    def carry(self, values: Sequence[tuple[str, str]], done: Callable[[list[str]], None]) -> None:
        """Bring values to the runtime; call `done` with the containers that did not get theirs.

        It connects in a turn of the loop, unless a connection that is about to answer takes them along.
        """
        self.desired, self._done, self._is_brought = dict(values), done, False

    @property
    def is_needed(self) -> bool:
        """Return whether there are values that no connection brings."""
        return bool(self.desired) and self._active is None

    def connect(self) -> None:
        """Connect, on the lane that has been free for longer."""
        lane = min((each for each in self.lanes if each is not self._active), key=lambda each: each.until or 0.0)
        try:
            lane.open(self._path, self._registration)
        except OSError:
            self.abandon()
        else:
            lane.until = self.clock() + CARRY_SECONDS
            self._active = lane

    def synchronized(self, lane: Lane, listed: dict[str, str | None]) -> bytes:
        """Return the answer to a whole list: the values on their way. The list shows the effect of those before."""
        if lane is not self._active:
            return b""
        # The runtime is done with the connection before this one.
        for each in self.lanes:
            if each is not lane:
                each.close()
        if self._is_brought:
            self._finish([container for container, value in self.desired.items() if listed.get(container) != value])
        if not self.desired:
            self._active, lane.until = None, self.clock() + LINGER_SECONDS
            return b""
        self._is_brought = True
        answer = messages.updates(list(self.desired.items()))
        self.connect()
        return answer

    def ended(self, lane: Lane) -> None:
        """End a connection that is late or lost. If it had no list yet, the values on their way have failed."""
        lane.close()
        if lane is self._active:
            self.abandon()

    def abandon(self) -> None:
        """End all connections; the values on their way have failed."""
        for each in self.lanes:
            each.close()
        self._active = None
        self._finish(list(self.desired))

    def _finish(self, failed: list[str]) -> None:
        done, self._done, self.desired, self._is_brought = self._done, None, {}, False
        if done is not None:
            done(failed)
