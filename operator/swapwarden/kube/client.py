"""A client that also writes to the API server. Only parts that write import this module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypedDict, Unpack

from swapwarden.kube import transport
from swapwarden.kube.transport import JSON, REQUEST_SECONDS, Call

MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH: Final = "application/strategic-merge-patch+json"


class Options(TypedDict, total=False):
    """Options of a request; `timeout` is in seconds and bounds all of it, connection included."""

    params: Mapping[str, str] | None
    timeout: float


class Client(transport.Reader):
    """An API server as seen by one identity, for reads and writes."""

    async def post(self, path: str, body: bytes, **options: Unpack[Options]) -> bytes:
        """POST a JSON body; return the body of the answer."""
        return await self.request("POST", path, body=body, **options)

    async def put(self, path: str, body: bytes, **options: Unpack[Options]) -> bytes:
        """PUT a JSON body; return the body of the answer."""
        return await self.request("PUT", path, body=body, **options)

    async def delete(self, path: str, body: bytes | None = None, **options: Unpack[Options]) -> bytes:
        """DELETE; return the body of the answer."""
        return await self.request("DELETE", path, body=body, **options)

    async def merge_patch(self, path: str, body: bytes, **options: Unpack[Options]) -> bytes:
        """PATCH with a JSON merge patch (RFC 7386); return the body of the answer."""
        return await self.request("PATCH", path, body=body, content_type=MERGE_PATCH, **options)

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        timeout: float = REQUEST_SECONDS,  # noqa: ASYNC109 bounds the whole request, connection included
    ) -> bytes:
        """Send one request; return the body of the answer. Errors are those of answer()."""
        return await self.answer(Call(method, path, params, body, content_type), timeout)
