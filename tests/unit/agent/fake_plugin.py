"""A plugin of the container runtime, at the other end of the agent's link."""

from __future__ import annotations

import contextlib
import json
import socket
from typing import Any

from swapwarden.agent.host import runtime_link
from swapwarden.agent.reconcile import reconciler
from swapwarden.api import runtime_link as protocol

from tests.unit.agent.agent_node import settle, until
from tests.unit.agent.cgroup_tree import container_id, uid

NAME = "containerd"
MADE: list[FakePlugin] = []
"""Those of the current test, to be closed at its end."""


class FakePlugin:
    """Connected to a link, as `swapwarden nri` is."""

    def __init__(self, link: runtime_link.RuntimeLink) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        self.peer = link.take(theirs)
        self.heard: list[dict[str, Any]] = []
        MADE.append(self)

    def close(self) -> None:
        """Go away."""
        self.socket.close()

    def send(self, packet: bytes) -> None:
        """Send any bytes."""
        self.socket.send(packet)

    def say(self, kind: protocol.FromPlugin, **content: object) -> None:
        """Send a message."""
        self.send(json.dumps({"kind": kind, **content}).encode())

    def listen(self) -> list[dict[str, Any]]:
        """Read the messages that arrived; return all until now."""
        with contextlib.suppress(BlockingIOError):
            while packet := self.socket.recv(protocol.MAX_PACKET + 1):
                assert len(packet) <= protocol.MAX_PACKET
                self.heard.append(json.loads(packet))
        return self.heard

    def of(self, kind: protocol.FromAgent) -> list[dict[str, Any]]:
        """Return the messages of one kind, until now."""
        return [each for each in self.listen() if each["kind"] == kind]

    async def hears(self, kind: protocol.FromAgent, count: int = 1) -> dict[str, Any]:
        """Wait until so many messages of a kind have come, and return the last of these."""
        await until(lambda: len(self.of(kind)) >= count)
        return self.of(kind)[count - 1]

    @property
    def ended(self) -> bool:
        """Whether the agent ended the connection."""
        return self.peer.socket is None


class PluginOf(FakePlugin):
    """Connected to an agent, with the runtime."""

    def __init__(
        self,
        agent: reconciler.NodeReconciler,
        *items: dict[str, Any],
        connected: bool = True,
        reported: dict[str, int] | None = None,
    ) -> None:
        assert agent.tasks.runtime is not None
        super().__init__(agent.tasks.runtime.link)
        self.agent = agent
        agent.catch_up()
        self.say(protocol.FromPlugin.HELLO, version="1", reported=reported)
        if connected:
            self.say(protocol.FromPlugin.RUNTIME, connected=True, name=NAME, version="2.4")
            self.say(protocol.FromPlugin.CONTAINERS, items=list(items), more=False)

    async def heeded(self) -> None:
        """Wait until the agent has read all that was said, and has done what follows from it."""
        number = len(self.of(protocol.FromAgent.SANDBOX))
        self.say(protocol.FromPlugin.SANDBOX, seq=0, uid="none", id="none", cgroup="")
        await self.hears(protocol.FromAgent.SANDBOX, number + 1)
        settle(self.agent)


def item(number: int, name: str, value: str | None, original: str | None = None) -> dict[str, Any]:
    """A container of a pod, as the plugin lists it; without a name, the pod's sandbox."""
    identity = container_id(name or f"sandbox {number}")
    return {"uid": uid(number), "id": identity, "name": name, "value": value, "original": original}
