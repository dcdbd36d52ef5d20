"""Read collections page by page, in pages that fit into one answer and that the API server can write."""

from __future__ import annotations

import urllib.parse
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, Protocol

import msgspec

from swapwarden.api import decoding
from swapwarden.kube import errors, transport

PAGE_SIZE: Final = 500
"""Objects in one page: kubectl's own number."""

TABLE: Final = "application/json;as=Table;g=meta.k8s.io;v=v1"
"""Has each object's metadata, without spec and status (meta/v1: Table, includeObject)."""
_TOO_DEEP: Final = "exceeded max depth"


class Get(Protocol):
    """Requests a page or one object; raises the errors of transport.Reader.get."""

    def __call__(self, path: str, /, *, params: Mapping[str, str], accept: str) -> Awaitable[bytes]: ...


class Listed(msgspec.Struct, frozen=True):
    """The result of reading a collection."""

    resource_version: str
    """The version of the list, from which a watch continues."""
    alone: frozenset[str] = frozenset()
    """Names of objects that the API server can only return one by one: a change of one of them ends a watch."""


class _Row(msgspec.Struct):
    object: msgspec.Raw


class _Table(msgspec.Struct):
    rows: list[_Row] | None
    metadata: decoding.ListMetadata


_TABLES: Final = decoding.Decoder(_Table)


async def read(
    get: Get,
    path: str,
    take: Callable[[bytes], decoding.ListMetadata],
    params: Mapping[str, str],
    size: int = PAGE_SIZE,
) -> Listed:
    """Read the whole collection at `path`.

    `get` requests one page, with PARAMS and those that select the page, and `take` accepts each answer. If an answer is
    too large (errors.TooLarge), the same page is requested with half as many objects, down to one; after small answers
    with more again. The same happens if the server cannot write a page: before Kubernetes 1.33 (KEP-5116), the deepest
    custom resources that can be stored are too deep for a list. Such an object is then requested on its own.

    Any other error of `get` or `take` ends the reading: 410 if the list takes longer than the server keeps old versions
    (5 minutes by default).
    """
    query, limit = dict(params), size
    alone = set[str]()
    while True:
        page = {"limit": str(limit), **query}
        try:
            body = await get(path, params=page, accept=transport.JSON)
        except errors.TooLarge:
            if limit == 1:
                raise
            limit //= 2
            continue
        except errors.ApiError as error:
            if not is_too_deep(error):
                raise
            if limit > 1:
                limit //= 2
                continue
            body = await _by_itself(get, path, page, alone)
        metadata = take(body)
        if not metadata.next:
            return Listed(metadata.resource_version, frozenset(alone))
        # The token names the position, not the number of objects.
        query["continue"] = metadata.next
        if len(body) < transport.MAX_BODY_BYTES // 4:
            limit = min(size, limit * 2)


async def read_items(get: Get, path: str, take: Callable[[msgspec.Raw], None], params: Mapping[str, str]) -> Listed:
    """Read the whole collection at `path` as read() does; `take` accepts each object, undecoded."""

    def each(body: bytes) -> decoding.ListMetadata:
        page = decoding.page(body)
        for item in page.items or ():
            take(item)
        return page.metadata

    return await read(get, path, each, params)


def without(params: Mapping[str, str], alone: Collection[str]) -> dict[str, str]:
    """Return the parameters of a watch without the objects `alone`."""
    selectors = [params.get("fieldSelector", ""), *(f"metadata.name!={name}" for name in sorted(alone))]
    chosen = ",".join(filter(None, selectors))
    return {**params, **({"fieldSelector": chosen} if chosen else {})}


def is_too_deep(error: errors.ApiError) -> bool:
    """Return whether the server could not encode the answer."""
    return error.status == 500 and _TOO_DEEP in error.message


async def _by_itself(get: Get, path: str, page: Mapping[str, str], alone: set[str]) -> bytes:
    """Make a page of one object, whose name a table has."""
    table = _TABLES.decode(await get(path, params=page, accept=TABLE))
    items = []
    for row in table.rows or ():
        one = decoding.identity(row.object)
        alone.add(one.name)
        try:
            items.append(await get(_path(path, one), params={}, accept=transport.JSON))
        except errors.ApiError as error:
            if error.status != 404:  # It was deleted in between.
                raise
    return b'{"items":[%s],"metadata":%s}' % (b",".join(items), msgspec.json.encode(table.metadata))


def _path(collection: str, one: decoding.Identity) -> str:
    """Return the path of an object in a collection of one namespace or of all."""
    base, _, plural = collection.rpartition("/")
    if one.namespace and not base.endswith(f"/namespaces/{one.namespace}"):
        return f"{base}/namespaces/{one.namespace}/{plural}/{urllib.parse.quote(one.name, safe='')}"
    return f"{collection}/{urllib.parse.quote(one.name, safe='')}"
