"""Accept TCP connections so that silent or slow ones cannot keep others out.

A connection that has sent nothing costs a file descriptor and little else. Their number is bounded: for one more, the
oldest of the address with most of them gives way. A client that speaks at once, as kubelets, Prometheus and API servers
do, therefore always gets in, whatever others hold open.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

log = logging.getLogger(__name__)

BACKLOG: Final = 1024
"""Connections that the kernel completes ahead of `accept` (it allows at most net.core.somaxconn)."""

AT_ONCE: Final = 32
"""Connections accepted in one turn of the event loop: arrived bytes are read between two turns."""

RETRY_SECONDS: Final = 0.25
"""Pause if the process or the system has no descriptor or memory left."""


class CrowdMember(Protocol):
    """A connection in a Crowd."""

    @property
    def peer(self) -> str:
        """Address of the client, without the port."""

    def drop(self) -> None:
        """Close it. It must leave its crowd."""


AnyMember = TypeVar("AnyMember", bound=CrowdMember)


class Crowd(Generic[AnyMember]):
    """Connections in one state, at most `limit` of them, in order of arrival."""

    def __init__(self, limit: int) -> None:
        """`limit` is at least 1."""
        self._limit = limit
        self._by_peer: dict[str, dict[AnyMember, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        """The number of members."""
        return self._count

    def add(self, member: AnyMember) -> bool:
        """Add one more, as the youngest; return whether another one was dropped for it."""
        dropped = self._count >= self._limit and self.drop_one()
        self._by_peer.setdefault(member.peer, {})[member] = None
        self._count += 1
        return dropped

    def discard(self, member: AnyMember) -> None:
        """Remove a member, if it is one."""
        members = self._by_peer.get(member.peer)
        if members is None or member not in members:
            return
        del members[member]
        self._count -= 1
        if not members:
            del self._by_peer[member.peer]

    def peers(self) -> tuple[str, ...]:
        """Return the addresses, least recently used ones first."""
        return tuple(self._by_peer)

    def count_of(self, peer: str) -> int:
        """Return the number of members of an address."""
        return len(self._by_peer.get(peer, ()))

    def oldest_of(self, peer: str) -> AnyMember | None:
        """Return the first member of an address."""
        return next(iter(self._by_peer.get(peer, ())), None)

    def first_to_go(self) -> AnyMember | None:
        """Return the oldest member of the address with most; among equals, of the address that came first."""
        return self.oldest_of(max(self._by_peer, key=self.count_of)) if self._by_peer else None

    def drop_one(self) -> bool:
        """Drop the next member to give way; return whether there was one."""
        member = self.first_to_go()
        if member is None:
            return False
        self.discard(member)
        member.drop()
        return True

    def take(self, peer: str) -> AnyMember | None:
        """Remove the oldest member of an address, which is the last of all addresses from then on."""
        member = self.oldest_of(peer)
        if member is not None:
            self.discard(member)
            if (others := self._by_peer.pop(peer, None)) is not None:
                self._by_peer[peer] = others
        return member

    def drop_all(self) -> None:
        """Drop every member."""
        while self.drop_one():
            pass


class Newcomer:
    """A connection that has not sent enough to be served."""

    def __init__(
        self,
        connection: socket.socket,
        peer: str,
        crowd: Crowd[Newcomer],
        readable: Callable[[Newcomer], None],
        *,
        seconds: float,
        expired: Callable[[Newcomer], None] | None = None,
    ) -> None:
        """Wait in `crowd`, calling `readable` whenever there are bytes, and `expired` or `drop` after `seconds`."""
        self.socket, self.peer = connection, peer
        self.received = bytearray()
        self._crowd = crowd
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(seconds, expired or Newcomer.drop, self)
        crowd.add(self)
        self._loop.add_reader(connection, readable, self)

    def leave(self) -> socket.socket:
        """End the waiting; the caller owns the connection."""
        self._timer.cancel()
        self._crowd.discard(self)
        self._loop.remove_reader(self.socket)
        return self.socket

    def drop(self) -> None:
        """Close the connection."""
        self.leave().close()


class Listener:
    """A listening socket of the running event loop."""

    def __init__(
        self, host: str, port: int, accepted: Callable[[socket.socket, str], None], make_room: Callable[[], object]
    ) -> None:
        """Call `accepted` with each new connection, which does not block, and its peer's address.

        An empty host means all addresses, IPv6 and IPv4. If the process has no descriptor left for a connection,
        `make_room` must close one. OSError if the address cannot be bound.
        """
        both = not host and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both or ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=both)
        self._socket.settimeout(0)
        self.port = int(self._socket.getsockname()[1])
        self._accepted, self._make_room = accepted, make_room
        self._loop = asyncio.get_running_loop()
        self._retry: asyncio.TimerHandle | None = None
        self._listen()

    def close(self) -> None:
        """Accept no more connections."""
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def _listen(self) -> None:
        self._retry = None
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                connection, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionError):
                return
            except OSError as error:
                log.error("cannot accept connections", extra={"port": self.port, "error": error})  # noqa: TRY400 the text says all
                self._make_room()
                self._loop.remove_reader(self._socket)
                self._retry = self._loop.call_later(RETRY_SECONDS, self._listen)
                return
            connection.settimeout(0)
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # The form of IPv4 clients on a socket for both (RFC 4291, section 2.5.5.2): they are the same addresses.
            self._accepted(connection, str(address[0]).removeprefix("::ffff:"))
