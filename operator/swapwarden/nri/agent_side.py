"""The connection to the agent: made, lost and made again; and what its messages change."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Final, Protocol

import swapwarden
from swapwarden.api import names, runtime_link
from swapwarden.api.runtime_link import FromPlugin
from swapwarden.nri import knowledge, link, logs, retry

COUNTS_SECONDS: Final = 5.0
"""Seconds between two reports of the counts."""
PACKETS: Final = 8
"""Packets that are read before the runtime has a turn."""
_MODE_BYTES: Final = 64


class RuntimeLike(Protocol):
    """The effects of the agent's messages on the runtime's side."""

    def sandbox_done(self, number: int) -> None:
        """Let the start of a pod continue."""

    def agent_gone(self) -> None:
        """Let all pods start that wait for the agent."""

    def update(self, order: link.Update) -> None:
        """Pass an order on to the runtime."""


class AgentSide:
    """The socket to the agent, and the decisions that it sends."""

    def __init__(self, known: knowledge.Knowledge, folder: str, clock: Callable[[], float]) -> None:
        self._known = known
        self._folder = folder
        self._clock = clock
        self._retry = retry.Retry(clock())
        self._connection: link.AgentSocket | None = None
        self._counted = known.counted()
        """The counts that an agent has had, this one or an earlier one."""
        self._count_at = clock()
        self._why = ""
        self.runtime: RuntimeLike | None = None

    @property
    def socket(self) -> socket.socket | None:
        """The socket, if it is connected."""
        return None if self._connection is None else self._connection.socket

    @property
    def waits(self) -> bool:
        """Whether packets wait for room in the socket."""
        return self._connection is not None and self._connection.waits

    def due(self) -> float | None:
        """Return when to tick next."""
        if self._connection is None:
            return self._retry.at
        return self._count_at if self._counted != self._known.counted() else None

    def tick(self) -> None:
        """Connect if it is time; report the counts."""
        now = self._clock()
        if self._connection is None:
            if self._retry.at <= now:
                self._connect()
        elif self._count_at <= now and self._counted != (counts := self._known.counted()):
            self._count_at = now + COUNTS_SECONDS
            self._count(counts)

    def notify(self, packet: bytes) -> bool:
        """Send a packet; False if there is no agent."""
        if self._connection is None:
            return False
        try:
            self._connection.send(packet)
        except OSError as error:
            self._lost(error)
            return False
        return True

    def writable(self) -> None:
        """Send the packets that wait."""
        if self._connection is not None:
            try:
                self._connection.flush()
            except OSError as error:
                self._lost(error)

    def readable(self) -> None:
        """Read packets and do what they say."""
        try:
            for _ in range(PACKETS):
                packet = None if self._connection is None else self._connection.receive()
                if packet is None:
                    return
                self._take(link.decode(packet))
        except (OSError, ValueError) as error:
            self._lost(error)

    def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _take(self, said: link.FromAgentMessage | None) -> None:
        known = self._known
        match said:
            case link.ModeChange():
                self._set_mode(said.mode)
            case link.Reset():
                known.decisions.begin()
            case link.Ready():
                known.decisions.end()
            case link.Pods():
                known.decisions.put(said.pods)
            case link.Gone():
                known.decisions.remove(said.uids)
            case link.SandboxDone() if self.runtime is not None:
                self.runtime.sandbox_done(said.seq)
            case link.Update() if self.runtime is not None:
                self.runtime.update(said)

    def _connect(self) -> None:
        try:
            self._connection = link.AgentSocket(os.path.join(self._folder, runtime_link.SOCKET))
        except OSError as error:
            self._away(error)
            self._read_mode()
            return
        logs.info("agent", "connected to the agent")
        self._why = ""
        self._retry.connected(self._clock())
        known = self._known
        self.notify(link.encode(FromPlugin.HELLO, version=swapwarden.__version__, reported=self._counted))
        self._count(known.counted())
        self.notify(known.described())
        if known.synchronized:
            all(map(self.notify, link.listed(known.inventory.items())))

    def _count(self, counts: dict[str, int]) -> None:
        if self.notify(link.encode(FromPlugin.COUNTS, **counts)):
            self._counted = counts

    def _lost(self, error: Exception) -> None:
        self.close()
        self._known.decisions.interrupt()
        self._away(error)
        if self.runtime is not None:
            self.runtime.agent_gone()

    def _away(self, error: Exception) -> None:
        restarts = isinstance(error, OSError)
        self._retry.failed(self._clock(), restarts=restarts)
        why = f"{type(error).__name__}: {error}"
        if why != self._why:
            logs.warning("agent", f"no agent at {self._folder}: {error}")
        self._why = why

    def _read_mode(self) -> None:
        """Read the mode that an agent left in a file; without one it is Enforce."""
        try:
            with open(os.path.join(self._folder, runtime_link.MODE_FILE), "rb") as file:
                self._set_mode(link.parse_mode(file.read(_MODE_BYTES).decode("ascii", "replace").strip()))
        except FileNotFoundError:
            self._set_mode(names.Mode.ENFORCE)
        except (OSError, ValueError) as error:
            if self._known.mode != "":
                logs.warning("agent", f"the file with the mode is of no use: {error}")
            self._set_mode("")

    def _set_mode(self, mode: str) -> None:
        if mode != self._known.mode:
            logs.info("agent", f"the mode is {mode or 'unknown'}")
        self._known.mode = mode
