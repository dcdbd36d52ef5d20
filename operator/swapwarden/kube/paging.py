"""Reads collections page by page, in pages that fit into one answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from swapwarden.kube import client, decoding

PAGE_SIZE: Final = 500
"""Objects in one page: kubectl's own number."""


async def read(
    get: Callable[[Mapping[str, str]], Awaitable[bytes]],
    take: Callable[[bytes], decoding.ListMetadata],
    params: Mapping[str, str],
    size: int = PAGE_SIZE,
) -> decoding.ListMetadata:
    """Read a whole collection; gives the metadata of its last page.

    `get` asks for one page, with PARAMS and those that choose the page, and `take` takes in each answer. Where an
    answer is too large (client.TooLarge) the same page is asked for with half as many objects, down to one; after small
    ones with more again. Whatever else `get` and `take` raise ends it: 410 where the list takes longer than the server
    keeps old versions (5 minutes by default).
    """
    query, limit = dict(params), size
    while True:
        try:
            body = await get({"limit": str(limit), **query})
        except client.TooLarge:
            if limit == 1:
                raise
            limit = max(1, limit // 2)
            continue
        metadata = take(body)
        if not metadata.next:
            return metadata
        # The token says where to go on, and nothing of how many objects.
        query["continue"] = metadata.next
        if len(body) < client.MAX_BODY_BYTES // 4:
            limit = min(size, limit * 2)
