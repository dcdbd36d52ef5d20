"""The agent's side of the link to `swapwarden nri`, with decisions that a test makes."""

from __future__ import annotations

import contextlib
import json
import pathlib
import selectors
import socket
import threading
import time
from collections.abc import Mapping
from typing import Self

from swapwarden.api import names, runtime_link
from swapwarden.api.runtime_link import FromAgent, FromPlugin

from tests.integration.conftest import Json

PATIENCE = 20.0


def value(number: str, *, at_most: bool = False) -> Json:
    """Return a decision for a container."""
    return {"value": number, "atMost": at_most}


def decision(default: Json | None = None, **containers: Json) -> Json:
    """Return a decision for a pod."""
    return {"default": default, "containers": containers, "decided": True}


class FakeAgent:
    """Listens on the link's socket and keeps what plugins send.

    Each plugin that connects gets the present mode and decisions.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        pods: Mapping[str, Json] | None = None,
        *,
        mode: str = names.Mode.ENFORCE,
        answers_sandboxes: bool = True,
    ) -> None:
        self.received: list[Json] = []
        self.largest = 0
        """Bytes of the largest packet."""
        self.connections = 0
        """The number of plugins that ever connected."""
        self._pods, self._mode, self._answers = dict(pods or {}), mode, answers_sandboxes
        self._changed = threading.Condition()
        self._plugins: list[socket.socket] = []
        self._selector = selectors.DefaultSelector()
        self._waker, wakes = socket.socketpair()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = folder / runtime_link.SOCKET
        path.unlink(missing_ok=True)
        self._listener.bind(str(path))
        self._listener.listen()
        for each in (self._listener, wakes):
            self._selector.register(each, selectors.EVENT_READ)
        self._wakes = wakes
        self._seq = 0
        self._thread = threading.Thread(target=self._serve, name="fake agent", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._wakes:
                    return
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.fileobj, socket.socket):
                    self._read(key.fileobj)

    def _accept(self) -> None:
        plugin, _ = self._listener.accept()
        self._selector.register(plugin, selectors.EVENT_READ)
        with self._changed:
            self._plugins.append(plugin)
            self.connections += 1
            self._push(plugin)
            self._changed.notify_all()

    def _push(self, plugin: socket.socket) -> None:
        self._send_to(plugin, {"kind": FromAgent.MODE, "mode": self._mode})
        self._send_to(plugin, {"kind": FromAgent.RESET})
        for uid, each in self._pods.items():
            self._send_to(plugin, {"kind": FromAgent.PODS, "pods": {uid: each}})
        self._send_to(plugin, {"kind": FromAgent.READY})

    def _read(self, plugin: socket.socket) -> None:
        try:
            packet = plugin.recv(4 * runtime_link.MAX_PACKET)
        except ConnectionError:
            packet = b""
        with self._changed:
            if not packet:
                self._drop(plugin)
                return
            self.largest = max(self.largest, len(packet))
            message = json.loads(packet) | {"at": time.monotonic()}
            self.received.append(message)
            if message["kind"] == FromPlugin.SANDBOX and self._answers:
                self._send_to(plugin, {"kind": FromAgent.SANDBOX, "seq": message["seq"]})
            self._changed.notify_all()

    def _drop(self, plugin: socket.socket) -> None:
        self._selector.unregister(plugin)
        self._plugins.remove(plugin)
        plugin.close()
        self._changed.notify_all()

    @staticmethod
    def _send_to(plugin: socket.socket, message: Json) -> None:
        with contextlib.suppress(OSError):
            plugin.send(json.dumps(message).encode())

    def send_raw(self, packet: bytes) -> None:
        """Send bytes to each plugin."""
        with self._changed:
            for each in self._plugins:
                with contextlib.suppress(OSError):
                    each.send(packet)

    def send(self, kind: str, **fields: object) -> None:
        """Send a message to each plugin."""
        self.send_raw(json.dumps({"kind": kind} | fields).encode())

    def decide(self, pods: Mapping[str, Json]) -> None:
        """Push decisions, and wait until the plugins have them."""
        with self._changed:
            self._pods |= pods
        self.send(FromAgent.PODS, pods=dict(pods))
        self.settle()

    def forget(self, *uids: str) -> None:
        """Push that pods are gone, and wait until the plugins know it."""
        with self._changed:
            for each in uids:
                self._pods.pop(each, None)
        self.send(FromAgent.GONE, uids=uids)
        self.settle()

    def set_mode(self, mode: str) -> None:
        """Push the mode, and wait until the plugins know it."""
        self._mode = mode
        self.send(FromAgent.MODE, mode=mode)
        self.settle()

    def update(self, values: Mapping[str, str], *, plugins: int = 1, timeout: float = PATIENCE) -> Json:
        """Ask for updates of containers; return the (last) plugin's answer."""
        with self._changed:
            self._seq += 1
            seq = self._seq
        self.send(FromAgent.UPDATE, seq=seq, values=dict(values))
        return self.wait_for(FromPlugin.UPDATED, plugins, timeout, seq=seq)

    def settle(self) -> None:
        """Wait until the plugins have handled all that was sent.

        A plugin that ends its connection may lose what it was sent last: it is asked again once it has connected.
        """
        deadline = time.monotonic() + PATIENCE
        with self._changed:
            while True:
                self._seq += 1
                known, asked, greeted = len(self._plugins), self._seq, len(self.seen(FromPlugin.HELLO))
                self.send(FromAgent.UPDATE, seq=asked, values={})
                while len(self.seen(FromPlugin.UPDATED, seq=asked)) < max(1, known):
                    left = max(0.0, deadline - time.monotonic())
                    assert self._changed.wait(left), f"no answer within {PATIENCE:.0f} s: {self.received[-5:]}"
                    if len(self.seen(FromPlugin.HELLO)) > greeted:
                        break
                else:
                    return

    def seen(self, kind: str, **fields: object) -> list[Json]:
        """Return the messages of a kind so far that have FIELDS."""
        wanted = {"kind": kind} | fields
        with self._changed:
            return [each for each in self.received if wanted.items() <= each.items()]

    def wait_for(self, kind: str, count: int = 1, timeout: float = PATIENCE, **fields: object) -> Json:
        """Wait for COUNT messages of a kind that have FIELDS; return the last of these."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while len(found := self.seen(kind, **fields)) < count:
                left = max(0.0, deadline - time.monotonic())
                assert self._changed.wait(left), f"no {kind} {fields} within {timeout:.0f} s: {self.received[-5:]}"
        return found[count - 1]

    def wait_connected(self, count: int = 1, timeout: float = PATIENCE) -> Self:
        """Wait until COUNT plugins are connected and have the decisions."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while len(self._plugins) < count:
                assert self._changed.wait(max(0.0, deadline - time.monotonic())), "no plugin connects to the agent"
        self.settle()
        return self

    def close(self) -> None:
        """End all connections and the socket, as an agent that ends does."""
        self._waker.close()
        self._thread.join()
        for each in (*self._plugins, self._listener, self._wakes):
            each.close()
        self._plugins.clear()
        self._selector.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
