"""Who gives way when there are too many connections."""

from __future__ import annotations

import asyncio
import errno
import socket
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


async def test_a_process_without_descriptors_goes_on_accepting_later(
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
