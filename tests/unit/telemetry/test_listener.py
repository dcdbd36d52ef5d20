"""Who gives way when there are too many connections."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Iterator
from typing import NoReturn

import pytest
from swapwarden.telemetry import listener


class Member:
    def __init__(self, peer: str, crowd: listener.Crowd[Member]) -> None:
        self.peer, self.dropped, self._crowd = peer, False, crowd
        crowd.add(self)

    def drop(self) -> None:
        self.dropped = True
        self._crowd.discard(self)


def test_the_oldest_of_the_address_with_most_connections_gives_way() -> None:
    crowd: listener.Crowd[Member] = listener.Crowd(4)
    probe = Member("node", crowd)
    members = [Member("tenant", crowd) for _ in range(6)]
    assert [member.dropped for member in members] == [True, True, True, False, False, False]
    assert not probe.dropped
    assert len(crowd) == 4


def test_among_equals_the_oldest_gives_way() -> None:
    crowd: listener.Crowd[Member] = listener.Crowd(3)
    members = [Member(f"address-{number}", crowd) for number in range(5)]
    assert [member.dropped for member in members] == [True, True, False, False, False]


def test_a_member_that_left_makes_room() -> None:
    crowd: listener.Crowd[Member] = listener.Crowd(2)
    first, second = Member("a", crowd), Member("b", crowd)
    crowd.discard(first)
    crowd.discard(first)
    third = Member("a", crowd)
    assert [second.dropped, third.dropped] == [False, False]
    crowd.drop_all()
    assert [second.dropped, third.dropped] == [True, True]
    assert len(crowd) == 0
    assert not crowd.drop_one()


async def test_a_process_without_descriptors_accepts_again_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener, "RETRY_SECONDS", 0.01)
    accepted: asyncio.Queue[str] = asyncio.Queue()

    def full(_socket: socket.socket) -> NoReturn:
        raise OSError(errno.EMFILE, "Too many open files")

    def take(connection: socket.socket, peer: str) -> None:
        connection.close()
        accepted.put_nowait(peer)

    room: list[bool] = []
    listening = listener.Listener("127.0.0.1", 0, take, lambda: room.append(True))
    real = socket.socket.accept
    monkeypatch.setattr(socket.socket, "accept", full)
    _, writer = await asyncio.open_connection("127.0.0.1", listening.port)
    async with asyncio.timeout(20):
        while "cannot accept connections" not in caplog.text:  # noqa: ASYNC110 only the log says so
            await asyncio.sleep(0)
        monkeypatch.setattr(socket.socket, "accept", real)
        assert await accepted.get() == "127.0.0.1"
    assert room, "another connection had to give way"
    writer.close()
    listening.close()


@contextlib.contextmanager
def listening(host: str) -> Iterator[tuple[listener.Listener, asyncio.Queue[str]]]:
    """A listener, and the addresses of those that it accepted."""
    peers: asyncio.Queue[str] = asyncio.Queue()

    def accepted(connection: socket.socket, peer: str) -> None:
        connection.close()
        peers.put_nowait(peer)

    opened = listener.Listener(host, 0, accepted, lambda: None)
    try:
        yield opened, peers
    finally:
        opened.close()


async def connected(host: str, port: int) -> None:
    _, writer = await asyncio.open_connection(host, port)
    writer.close()


async def test_without_a_host_both_families_are_served_and_an_ipv4_client_has_its_usual_address() -> None:
    with listening("") as (opened, peers):
        for host in ("127.0.0.1", "::1", "::ffff:127.0.0.1"):
            await connected(host, opened.port)
        async with asyncio.timeout(20):
            assert [await peers.get() for _ in range(3)] == ["127.0.0.1", "::1", "127.0.0.1"]


async def test_without_ipv6_in_the_kernel_ipv4_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    class Socket(socket.socket):
        def __init__(self, family: int = -1, *arguments: int, **more: int) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
            super().__init__(family, *arguments, **more)

    monkeypatch.setattr(socket, "socket", Socket)
    with listening("") as (opened, peers):
        await connected("127.0.0.1", opened.port)
        async with asyncio.timeout(20):
            assert await peers.get() == "127.0.0.1"


async def test_an_address_of_one_family_is_of_that_one_only() -> None:
    for host, other in (("127.0.0.1", "::1"), ("::1", "127.0.0.1"), ("0.0.0.0", "::1")):
        with listening(host) as (opened, _), pytest.raises(ConnectionRefusedError):
            await connected(other, opened.port)
