"""Frames and messages of the container runtime's protocol, NRI.

Frames multiplex two connections over one socket (containerd/nri: pkg/net/multiplex). The messages in them are the
requests and responses of ttrpc (containerd/ttrpc: PROTOCOL.md).
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

PLUGIN: Final = 1
"""The connection on which the runtime asks the plugin."""
RUNTIME: Final = 2
"""The connection on which the plugin asks the runtime."""
REQUEST: Final = 1
RESPONSE: Final = 2

MAX_MESSAGE: Final = 4 << 20
"""Bytes of a message (containerd/ttrpc: messageLengthMax)."""
MAX_FRAME_SENT: Final = 4096
"""Bytes of a frame with its header: the runtime's library ends the connection if a frame exceeds its buffer."""

_FRAME: Final = struct.Struct(">II")
_HEADER: Final = struct.Struct(">IIBB")
_BOTH: Final = struct.Struct(">IIIIBB")
MAX_FRAME: Final = MAX_MESSAGE + _HEADER.size
"""Bytes of a frame's payload that are accepted (containerd/nri: maxPayloadSize)."""
_LARGE: Final = 64 * 1024
"""Bytes of a message from which on it has memory pages of its own."""


class FrameError(ValueError):
    """The peer sent bytes that are not of this protocol."""


class TtrpcMessage(NamedTuple):
    """A request or a response."""

    connection: int
    stream: int
    kind: int
    payload: bytes | memoryview


class FrameReader:
    """Cuts the bytes of a socket into messages."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._connection = 0
        self._left = 0
        """Bytes of the present frame that did not arrive yet."""
        self._incomplete = {PLUGIN: _Incomplete(), RUNTIME: _Incomplete()}

    def feed(self, data: memoryview) -> Iterator[TtrpcMessage]:
        """Yield the messages that these bytes complete. FrameError if they are too long: the connection is unusable."""
        at = 0
        while at < len(data):
            if not self._left:
                if (message := self._whole(data, at)) is not None:
                    at += _BOTH.size + len(message.payload)
                    yield message
                    continue
                part = data[at : at + _FRAME.size - len(self._head)]
                self._head += part
                at += len(part)
                if len(self._head) == _FRAME.size:
                    self._connection, self._left = _FRAME.unpack(self._head)
                    self._head.clear()
                    if self._left > MAX_FRAME:
                        raise FrameError(f"a frame of {self._left} bytes")
                continue
            part = data[at : at + self._left]
            at += len(part)
            self._left -= len(part)
            incomplete = self._incomplete.get(self._connection)
            while incomplete is not None and part:
                part = part[incomplete.add(part) :]
                if incomplete.is_complete:
                    yield TtrpcMessage(self._connection, *incomplete.take())

    def _whole(self, data: memoryview, at: int) -> TtrpcMessage | None:
        """Return the message that begins there if all of it arrived in one frame, which nearly all do."""
        if self._head or len(data) - at < _BOTH.size:
            return None
        connection, left, length, stream, kind, _ = _BOTH.unpack_from(data, at)
        begin = at + _BOTH.size
        incomplete = self._incomplete.get(connection)
        if left != _HEADER.size + length or length > len(data) - begin or incomplete is None or incomplete.has_begun:
            return None
        return TtrpcMessage(connection, stream, kind, bytes(data[begin : begin + length]))


class _Incomplete:
    """A message of which more bytes arrive. Its memory is that of its length, and given back to the system."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._body: bytearray | mmap.mmap = bytearray()
        self._length = self._stream = self._kind = self._at = 0

    def add(self, part: memoryview) -> int:
        """Return how many of the bytes belong to the message. FrameError if it is too long."""
        taken = 0
        if len(self._head) < _HEADER.size:
            taken = min(len(part), _HEADER.size - len(self._head))
            self._head += part[:taken]
            if len(self._head) < _HEADER.size:
                return taken
            self._length, self._stream, self._kind, _ = _HEADER.unpack(self._head)
            if self._length > MAX_MESSAGE:
                raise FrameError(f"a message of {self._length} bytes")
            # The C library would keep the memory of large messages for later ones.
            self._body = bytearray(self._length) if self._length < _LARGE else mmap.mmap(-1, self._length)
        size = min(len(part) - taken, self._length - self._at)
        self._body[self._at : self._at + size] = part[taken : taken + size]
        self._at += size
        return taken + size

    @property
    def has_begun(self) -> bool:
        """Whether some of it arrived."""
        return bool(self._head)

    @property
    def is_complete(self) -> bool:
        """Whether all of it arrived."""
        return len(self._head) == _HEADER.size and self._at == self._length

    def take(self) -> tuple[int, int, bytes | memoryview]:
        """Return its stream, kind and payload; begin again."""
        body = self._body
        message = self._stream, self._kind, bytes(body) if isinstance(body, bytearray) else memoryview(body)
        self._head.clear()
        self._body = bytearray()
        self._at = 0
        return message


def framed(message: TtrpcMessage) -> bytes:
    """Return a message in frames that the runtime's library accepts."""
    body = _HEADER.pack(len(message.payload), message.stream, message.kind, 0) + bytes(message.payload)
    size = MAX_FRAME_SENT - _FRAME.size
    if len(body) <= size:
        return _FRAME.pack(message.connection, len(body)) + body
    parts = (body[at : at + size] for at in range(0, len(body), size))
    return b"".join(_FRAME.pack(message.connection, len(part)) + part for part in parts)
