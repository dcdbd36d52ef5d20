"""A client that only reads from the API server."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Self

from swapwarden.kube import config, transport
from swapwarden.kube.transport import JSON, MAX_CONNECTIONS, REQUEST_SECONDS, Call


class Reader:
    """An API server as seen by one identity. Use it as an async context manager, within one event loop."""

    def __init__(self, cfg: config.Config, *, user_agent: str, max_connections: int = MAX_CONNECTIONS) -> None:
        self.transport = transport.Transport(cfg, user_agent, max_connections)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.transport.close()

    def server_time(self) -> float | None:
        """Return the API server's own time; see Transport.server_time."""
        return self.transport.server_time()

    async def get(
        self,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        accept: str = JSON,
        timeout: float = REQUEST_SECONDS,  # noqa: ASYNC109 bounds the whole request, connection included
    ) -> bytes:
        """GET; return the body, in the form that `accept` chooses. Errors are those of Transport.answer."""
        return await self.transport.answer(Call("GET", path, params, accept=accept), timeout)

    @contextlib.asynccontextmanager
    async def stream(
        self,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        timeout: float = REQUEST_SECONDS,  # noqa: ASYNC109 bounds the wait for the answer's head
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """GET an answer that arrives in pieces; see Transport.pieces."""
        async with self.transport.pieces(Call("GET", path, params), timeout) as pieces:
            yield pieces
