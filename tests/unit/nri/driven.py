"""A session whose clock, runtime and agent are the test's."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from swapwarden.api import runtime_link
from swapwarden.nri import knowledge, session

from tests.unit.nri import fake_runtime as runtime


class Driven:
    """A session whose clock, runtime and agent are the test's."""

    def __init__(self, *, adjusts: bool = True, agent: bool = True, required: bool = False) -> None:
        self.now = 100.0
        self.agent = agent
        self.sent = b""
        self.packets: list[dict[str, Any]] = []
        self.known = knowledge.Knowledge(adjusts=adjusts, required=required)
        self.carried: list[list[tuple[str, str]]] = []
        """Values that connections of their own must bring to the runtime."""
        self.arrived: Callable[[list[str]], None] | None = None
        """To be called with the containers that did not get theirs."""
        self.session = session.RuntimeSession(
            self.known, send=self._send, notify=self._notify, carry=self._carry, clock=lambda: self.now
        )

    def _carry(self, part: list[tuple[str, str]], done: Callable[[list[str]], None]) -> None:
        self.carried.append(part)
        self.arrived = done

    def _send(self, data: bytes) -> None:
        self.sent += data

    def _notify(self, packet: bytes) -> bool:
        assert len(packet) <= runtime_link.MAX_PACKET
        if self.agent:
            self.packets.append(json.loads(packet))
        return self.agent

    def receive(self, data: bytes) -> list[tuple[int, int, int, bytes]]:
        """Return the messages that are sent when this arrives."""
        self.session.receive(memoryview(data))
        return self.taken()

    def taken(self) -> list[tuple[int, int, int, bytes]]:
        sent, self.sent = self.sent, b""
        return runtime.messages(sent)

    def ask(self, method: str, payload: bytes, stream: int = 7) -> bytes:
        """Return the payload of the one answer to a request."""
        ((connection, answered, kind, body),) = self.receive(runtime.request(stream, method, payload))
        assert (connection, answered, kind) == (runtime.PLUGIN, stream, runtime.RESPONSE)
        return payload_of(body)

    def become_ready(self) -> None:
        """Register, with an empty list of containers; then forget the packets about it."""
        self.ask("Configure", runtime.configure())
        self.ask("Synchronize", b"")
        self.packets.clear()

    def told(self, kind: runtime_link.FromPlugin) -> list[dict[str, Any]]:
        """Take the packets of a kind."""
        found = [each for each in self.packets if each["kind"] == kind]
        self.packets = [each for each in self.packets if each["kind"] != kind]
        for each in found:
            del each["kind"]
        return found


def payload_of(body: bytes) -> bytes:
    fields = runtime.decoded(body)
    assert set(fields) <= {2}  # no status: an error would refuse the container
    return runtime.one(body, 2) if fields else b""


def create(pod: bytes, container: bytes) -> bytes:
    return runtime.field(1, pod) + runtime.field(2, container)


def value_set(answer: bytes) -> str | None:
    if not answer:
        return None
    unified = runtime.entries(answer, 1, 6, 2, 6)
    assert set(unified) == {runtime.SWAP_MAX}
    return unified[runtime.SWAP_MAX]
