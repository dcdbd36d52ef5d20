"""The socket between the agent and `swapwarden nri`, the plugin of the container runtime.

It never waits: a plugin that does not read its messages is dropped, as is one that sends a wrong message.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import fcntl
import functools
import logging
import os
import pathlib
import socket
import struct
import termios
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from swapwarden.agent.host import faults, link_messages
from swapwarden.api import runtime_link as protocol

log = logging.getLogger(__name__)

ACCEPT_SECONDS: Final = 1.0
"""Seconds before another try, if the process has no descriptor for a connection."""
BACKLOG_BYTES: Final = 4 << 20
"""Most bytes of packets that wait for one plugin: more than a whole push of the largest state."""
_KIND: Final = socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC


class PluginPeer(msgspec.Struct, eq=False):
    """One plugin that is connected."""

    socket: socket.socket | None
    """The connection; None once the plugin was dropped."""
    number: int
    backlog: collections.deque[bytes] = msgspec.field(default_factory=collections.deque)
    size: int = 0
    """Bytes in the backlog."""

    def __str__(self) -> str:
        """For logs."""
        return f"plugin {self.number}"


class PluginConnected(msgspec.Struct, frozen=True):
    """A plugin has come."""

    peer: PluginPeer


class PluginGone(msgspec.Struct, frozen=True):
    """A plugin has gone, or was dropped."""

    peer: PluginPeer


class PluginSaid(msgspec.Struct, frozen=True):
    """A plugin has sent a message."""

    peer: PluginPeer
    message: link_messages.PluginMessage


LinkEvent = PluginConnected | PluginGone | PluginSaid


class RuntimeLink:
    """The connections to plugins. Not thread-safe: use it in the running event loop."""

    def __init__(self, folder: pathlib.Path, readable: Callable[[], None]) -> None:
        """`readable` is called when there are events to take."""
        self._folder = folder
        self._readable = readable
        self._listening: socket.socket | None = None
        self.peers: dict[int, PluginPeer] = {}
        """Connected plugins by number, the newest last."""
        self._count = 0
        self._events: list[LinkEvent] = []
        self._mode: str | None = None
        """The mode in the file; None: unknown."""
        self.failed = ""
        """Why no plugin can connect, or why the file of the mode is not as it should be; empty if all is well."""

    def open(self) -> None:
        """Listen, unless it does. `failed` says why it cannot."""
        if self._listening is not None:
            return
        path = self._folder / protocol.SOCKET
        try:
            path.unlink(missing_ok=True)  # of an earlier agent: only one runs on a node
            self._listening = listening = socket.socket(*_KIND)
            os.fchmod(listening.fileno(), 0o600)  # the file gets this mode
            listening.bind(str(path))
            listening.listen(protocol.MAX_PLUGINS)
        except OSError as error:
            self._unlisten()
            self._fail(f"{path}: {error.strerror or error}")
            return
        self.failed = ""
        asyncio.get_running_loop().add_reader(listening, self._accept)

    def close(self, *, keep_mode: bool = True) -> None:
        """End all connections. The file of the mode is for a plugin that starts without an agent."""
        for peer in list(self.peers.values()):
            self._end(peer)
        self._events.clear()
        if self._listening is not None:
            asyncio.get_running_loop().remove_reader(self._listening)
            self._unlisten()
            with contextlib.suppress(OSError):
                (self._folder / protocol.SOCKET).unlink(missing_ok=True)
        if not keep_mode:
            self._mode = None
            with contextlib.suppress(OSError):
                (self._folder / protocol.MODE_FILE).unlink(missing_ok=True)

    def events(self) -> list[LinkEvent]:
        """Return the events since the last call, in their order."""
        events, self._events = self._events, []
        return events

    def set_mode(self, mode: str) -> None:
        """Write the file of the mode in one step, unless it has it."""
        if mode == self._mode:
            return
        file = self._folder / protocol.MODE_FILE
        new = file.with_suffix(".new")
        try:
            fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with open(fd, "w", encoding="ascii") as opened:  # noqa: PTH123 pathlib opens no descriptors
                opened.write(f"{mode}\n")
            new.replace(file)
        except OSError as error:
            self._fail(f"{file}: {error.strerror}")
        else:
            self._mode = mode
            if self._listening is not None:
                self.failed = ""

    def take(self, connection: socket.socket) -> PluginPeer:
        """Take a connection, which must not block."""
        self._count += 1
        peer = self.peers[self._count] = PluginPeer(connection, self._count)
        asyncio.get_running_loop().add_reader(connection, functools.partial(self._receive, peer))
        self._events.append(PluginConnected(peer))
        return peer

    def send(self, peer: PluginPeer, kind: protocol.FromAgent, content: Mapping[str, Any] = {}) -> None:
        """Send a message, at once or when the plugin has read those before it. Without effect if it is gone."""
        if peer.socket is None:
            return
        packet = msgspec.json.encode({"kind": kind, **content})
        if len(packet) > protocol.MAX_PACKET:
            raise ValueError(f"a packet of {len(packet)} bytes")
        peer.backlog.append(packet)
        peer.size += len(packet)
        if len(peer.backlog) == 1:
            self._flush(peer)
        if peer.size > BACKLOG_BYTES:
            self.drop(peer, "it does not read what it is sent")

    def has_unread(self, peer: PluginPeer) -> bool:
        """Return whether a plugin has not read all that it was sent. It is False if the plugin is gone."""
        if peer.socket is None:
            return False
        (queued,) = struct.unpack("i", fcntl.ioctl(peer.socket, termios.TIOCOUTQ, bytes(4)))
        return bool(peer.backlog or queued)

    def drop(self, peer: PluginPeer, why: str) -> None:
        """End one connection, since it did what it must not."""
        if peer.socket is not None:
            faults.warn("a plugin of the container runtime was dropped", str(peer), why)
            self._end(peer)

    def _accept(self) -> None:
        listening = self._listening
        if listening is None:
            return
        try:
            connection, _ = listening.accept()
        except BlockingIOError:  # it is gone again
            return
        except OSError as error:  # no descriptor is left: without a pause the loop would do nothing else
            faults.warn("a plugin of the container runtime cannot connect", "plugin", str(error))
            loop = asyncio.get_running_loop()
            loop.remove_reader(listening)
            loop.call_later(ACCEPT_SECONDS, self._resume)
            return
        connection.settimeout(0.0)
        if len(self.peers) >= protocol.MAX_PLUGINS:
            faults.warn("a plugin of the container runtime was refused", "plugin", "too many are connected")
            connection.close()
            return
        self.take(connection)
        self._readable()

    def _resume(self) -> None:
        if self._listening is not None:
            asyncio.get_running_loop().add_reader(self._listening, self._accept)

    def _receive(self, peer: PluginPeer) -> None:
        """Take one packet. The event loop calls this again for the next one, after repairs."""
        if peer.socket is None:
            return
        try:
            packet = peer.socket.recv(protocol.MAX_PACKET + 1)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            packet = b""
        if not packet:
            self._end(peer)
        elif len(packet) > protocol.MAX_PACKET:
            self.drop(peer, "a packet is too large")
        else:
            try:
                message = link_messages.decode(packet)
            except ValueError as error:
                self.drop(peer, f"a message is wrong: {error}")
            else:
                if message is None:
                    return
                self._events.append(PluginSaid(peer, message))
                self._readable()

    def _flush(self, peer: PluginPeer) -> None:
        if peer.socket is None:
            return
        loop = asyncio.get_running_loop()
        try:
            while peer.backlog:
                peer.socket.send(peer.backlog[0])
                peer.size -= len(peer.backlog.popleft())
        except (BlockingIOError, InterruptedError):
            loop.add_writer(peer.socket, self._flush, peer)
            return
        except OSError:
            self._end(peer)
            return
        loop.remove_writer(peer.socket)

    def _end(self, peer: PluginPeer) -> None:
        connection, peer.socket = peer.socket, None
        if connection is None:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(connection)
        loop.remove_writer(connection)
        connection.close()
        peer.backlog.clear()
        peer.size = 0
        del self.peers[peer.number]
        self._events.append(PluginGone(peer))
        loop.call_soon(self._ended)

    def _ended(self) -> None:
        if self._events:
            self._readable()

    def _unlisten(self) -> None:
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    def _fail(self, why: str) -> None:
        if why != self.failed:
            log.error("plugins of the container runtime cannot reach this agent: %s", why)
        self.failed = why


def parts(entries: Iterable[tuple[str, Any]]) -> list[dict[str, Any]]:
    """Return entries in parts that fit into a packet each. ValueError if one does not fit by itself."""
    packed: list[dict[str, Any]] = []
    room = 0
    for key, value in entries:
        size = len(msgspec.json.encode({key: value}))
        if size > _ROOM:
            raise ValueError(f"an entry of {size} bytes")
        if size > room:
            packed.append({})
            room = _ROOM
        packed[-1][key] = value
        room -= size
    return packed


_ROOM: Final = protocol.MAX_PACKET - 256
"""Bytes of a packet for entries."""
