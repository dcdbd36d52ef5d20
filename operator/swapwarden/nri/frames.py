"""Frames and messages of the container runtime's protocol, NRI.

Frames multiplex two connections over one socket (containerd/nri: pkg/net/multiplex). The messages in them are the
requests and responses of ttrpc (containerd/ttrpc: PROTOCOL.md).
"""

from __future__ import annotations

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
MAX_FRAME: Final = MAX_MESSAGE + _HEADER.size
"""Bytes of a frame's payload that are accepted (containerd/nri: maxPayloadSize)."""


class FrameError(ValueError):
    """The peer sent bytes that are not of this protocol."""


class TtrpcMessage(NamedTuple):
    """A request or a response."""

    connection: int
    stream: int
    kind: int
    payload: bytes


class FrameReader:
    """Cuts the bytes of a socket into messages."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._connection = 0
        self._left = 0
        """Bytes of the present frame that did not arrive yet."""
        self._messages = {PLUGIN: bytearray(), RUNTIME: bytearray()}

    def feed(self, data: memoryview) -> Iterator[TtrpcMessage]:
        """Yield the messages that these bytes complete. FrameError if they are too long: the connection is unusable."""
        at = 0
        while at < len(data):
            if not self._left:
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
            buffer = self._messages.get(self._connection)
            if buffer is not None:
                buffer += part
                yield from self._complete(self._connection, buffer)

    @staticmethod
    def _complete(connection: int, buffer: bytearray) -> Iterator[TtrpcMessage]:
        while len(buffer) >= _HEADER.size:
            length, stream, kind, _ = _HEADER.unpack_from(buffer)
            if length > MAX_MESSAGE:
                raise FrameError(f"a message of {length} bytes")
            end = _HEADER.size + length
            if len(buffer) < end:
                return
            with memoryview(buffer) as view:
                payload = bytes(view[_HEADER.size : end])
            del buffer[:end]
            yield TtrpcMessage(connection, stream, kind, payload)


def framed(message: TtrpcMessage) -> bytes:
    """Return a message in frames that the runtime's library accepts."""
    body = _HEADER.pack(len(message.payload), message.stream, message.kind, 0) + message.payload
    size = MAX_FRAME_SENT - _FRAME.size
    if len(body) <= size:
        return _FRAME.pack(message.connection, len(body)) + body
    parts = (body[at : at + size] for at in range(0, len(body), size))
    return b"".join(_FRAME.pack(message.connection, len(part)) + part for part in parts)
