"""The link to the agent: packets, what they mean, and the socket."""

from __future__ import annotations

import json
import re
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from swapwarden.api import names, runtime_link
from swapwarden.api.runtime_link import FromAgent, FromPlugin
from swapwarden.nri import decide, inventory

MAX_QUEUED: Final = 4 << 20
"""Bytes of packets that wait for an agent that does not read; with more, it is dropped."""
PACKET: Final = 16 * 1024
"""Bytes after which a list of containers continues in another packet."""

_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")
_VALUE: Final = re.compile(r"0|[1-9][0-9]{0,18}|max")
_MODES: Final = frozenset(each.value for each in names.Mode) | {""}


class LinkError(ValueError):
    """The agent sent a packet that is not of this protocol."""


class ModeChange(NamedTuple):
    """The mode in force; empty if the agent has no state yet."""

    mode: str


class Reset(NamedTuple):
    """The agent will send all its decisions again."""


class Ready(NamedTuple):
    """All decisions were sent."""


class Pods(NamedTuple):
    """Decisions by pod UID."""

    pods: dict[str, decide.PodHolds]


class Gone(NamedTuple):
    """UIDs of pods that are gone."""

    uids: list[str]


class SandboxDone(NamedTuple):
    """The answer about a pod that starts."""

    seq: int


class Update(NamedTuple):
    """An order to set values of running containers, by their ID."""

    seq: int
    values: dict[str, str]


FromAgentMessage = ModeChange | Reset | Ready | Pods | Gone | SandboxDone | Update
_Object = dict[str, object]


def decode(packet: bytes) -> FromAgentMessage | None:
    """Return the agent's message; None if it is of an unknown kind. LinkError if it is malformed."""
    if len(packet) > runtime_link.MAX_PACKET:
        raise LinkError("the packet is too long")
    try:
        said = json.loads(packet)
    except (ValueError, RecursionError):
        raise LinkError("the packet is not JSON") from None
    if not isinstance(said, dict):
        raise LinkError("the packet is not an object")
    read = _READERS.get(str(said.get("kind")))
    return None if read is None else read(said)


def parse_mode(value: object) -> str:
    """Return a mode, or an empty text. LinkError if it is neither."""
    if not isinstance(value, str) or value not in _MODES:
        raise LinkError("the mode is invalid")
    return value


def _map(value: object) -> _Object:
    if not isinstance(value, dict):
        raise LinkError("a field is not an object")
    return value


def _id(value: object) -> str:
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise LinkError("an identifier is invalid")
    return value


def _seq(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 53:
        raise LinkError("seq is invalid")
    return value


def _value(value: object) -> str:
    if not isinstance(value, str) or not _VALUE.fullmatch(value):
        raise LinkError("a value is invalid")
    return value


def _setting(value: object) -> decide.Hold:
    setting = _map(value)
    return decide.Hold(_value(setting.get("value")), at_most=setting.get("atMost") is True)


def _pod(value: object) -> decide.PodHolds:
    pod = _map(value)
    default = pod.get("default")
    containers = _map(pod.get("containers") or {})
    if len(containers) > runtime_link.MAX_UPDATED:
        raise LinkError("the pod has too many containers")
    return decide.PodHolds(
        None if default is None else _setting(default),
        {_id(name): _setting(each) for name, each in containers.items()},
        pod.get("decided", True) is True,
    )


def _gone(said: _Object) -> Gone:
    uids = said.get("uids")
    if not isinstance(uids, list):
        raise LinkError("uids is not a list")
    return Gone([_id(uid) for uid in uids])


def _update(said: _Object) -> Update:
    values = _map(said.get("values"))
    if len(values) > runtime_link.MAX_UPDATED:
        raise LinkError("the update has too many containers")
    return Update(_seq(said.get("seq")), {_id(key): _value(value) for key, value in values.items()})


_READERS: Final[dict[str, Callable[[_Object], FromAgentMessage]]] = {
    FromAgent.MODE: lambda said: ModeChange(parse_mode(said.get("mode"))),
    FromAgent.RESET: lambda _: Reset(),
    FromAgent.READY: lambda _: Ready(),
    FromAgent.PODS: lambda said: Pods({_id(uid): _pod(value) for uid, value in _map(said.get("pods")).items()}),
    FromAgent.GONE: _gone,
    FromAgent.SANDBOX: lambda said: SandboxDone(_seq(said.get("seq"))),
    FromAgent.UPDATE: _update,
}


def encode(kind: FromPlugin, **fields: object) -> bytes:
    """Return a packet."""
    return json.dumps({"kind": kind, **fields}, separators=(",", ":")).encode()


def notice(kind: FromPlugin, **fields: object) -> Iterator[bytes]:
    """Yield one packet, made when it is asked for."""
    yield encode(kind, **fields)


def listed(items: Iterable[tuple[str, str, inventory.Item]]) -> Iterator[bytes]:
    """Yield the packets that list all containers, each made when it is asked for; the last one says so."""
    part: list[dict[str, object]] = []
    size = 0
    for uid, name, item in items:
        entry: dict[str, object] = {
            "uid": uid, "id": item.id, "name": name, "value": item.value, "original": item.original
        }  # fmt: skip
        part.append(entry)
        size += len(json.dumps(entry))
        if size >= PACKET:
            yield encode(FromPlugin.CONTAINERS, items=part, more=True)
            part, size = [], 0
    yield encode(FromPlugin.CONTAINERS, items=part, more=False)


def outcome(seq: int, failed: dict[str, str]) -> bytes:
    """Return the packet about an update; without the messages if they do not fit."""
    packet = encode(FromPlugin.UPDATED, seq=seq, failed=failed)
    if len(packet) <= runtime_link.MAX_PACKET:
        return packet
    return encode(FromPlugin.UPDATED, seq=seq, failed=dict.fromkeys(failed, ""))


class AgentSocket:
    """The socket to the agent; nothing of it waits."""

    def __init__(self, path: str) -> None:
        """Connect. OSError if no agent listens there."""
        self._queue: deque[bytes] = deque()
        self._queued = 0
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            self.socket.setblocking(False)  # noqa: FBT003 the standard library has no other form
            self.socket.connect(path)
        except BaseException:
            self.socket.close()
            raise

    def send(self, packet: bytes) -> None:
        """Send a packet, or queue it. OSError if the agent is gone, or does not read."""
        self._queue.append(packet)
        self._queued += len(packet)
        self.flush()
        if self._queued > MAX_QUEUED:
            raise OSError("the agent does not read")

    def flush(self) -> None:
        """Send as many packets as the socket takes. OSError if the agent is gone."""
        while self._queue:
            try:
                self.socket.send(self._queue[0], socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return
            self._queued -= len(self._queue.popleft())

    @property
    def waits(self) -> bool:
        """Whether packets wait for room in the socket."""
        return bool(self._queue)

    def receive(self) -> bytes | None:
        """Return a packet, or None if there is none now. OSError if the agent is gone."""
        try:
            packet = self.socket.recv(runtime_link.MAX_PACKET + 1)
        except BlockingIOError:
            return None
        if not packet:
            raise OSError("the agent ended the connection")
        return packet

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()
