"""The webhook's decisions behind the least HTTP server that can be had, to see what aiohttp costs beside it.

No limits, no timeouts, no metrics, no shutdown: to measure, and for nothing else.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from typing import cast

import httptools
import uvloop
from swapwarden.webhook import review, server


class Connection(asyncio.Protocol):
    """One client; httptools calls the on_* methods."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._path, self._body = b"", bytearray()

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        _, decide = server.ROUTES[self._path.decode()]
        answer = review.encode(decide(review.decode(bytes(self._body))))
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(answer)}\r\n\r\n"
        self._transport.write(head.encode() + answer)


async def main(port: int, certificate: str, key: str) -> None:
    """Serve until killed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    listener = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", port, ssl=context)
    await listener.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(int(sys.argv[1]), *sys.argv[2:4]))
