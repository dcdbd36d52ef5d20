from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from swapwarden.api import decoding
from swapwarden.kube import errors, paging, transport


class Collection:
    """Objects of some sizes, and the requests for them."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes
        self.asked: list[tuple[int, int]] = []
        self.taken: list[int] = []

    async def get(self, path: str, /, *, params: Mapping[str, str], accept: str) -> bytes:
        assert (path, accept) == ("/things", transport.JSON)
        query = params
        begin, limit = int(query.get("continue", "0")), int(query["limit"])
        assert query["labelSelector"] == "a=b"
        self.asked.append((begin, limit))
        end = min(begin + limit, len(self.sizes))
        if sum(self.sizes[begin:end]) > transport.MAX_BODY_BYTES:
            raise errors.TooLarge("too large")
        body = {"items": self.sizes[begin:end], "following": str(end) if end < len(self.sizes) else ""}
        return msgspec.json.encode(body).ljust(sum(self.sizes[begin:end]))

    def take(self, body: bytes) -> decoding.ListMetadata:
        found = msgspec.json.decode(body)
        self.taken += found["items"]
        return decoding.ListMetadata("9", found["following"])

    async def read(self, size: int) -> paging.Listed:
        return await paging.read(self.get, "/things", self.take, {"labelSelector": "a=b"}, size)


class Deep:
    """Objects by name, as a server before 1.33 has them: those of `deep` are in no list."""

    def __init__(self, *names: str, deep: frozenset[str], path: str = "/apis/g/v1/things") -> None:
        self.names, self.deep, self.path = list(names), deep, path
        self.asked = 0
        self.gone = frozenset[str]()
        self.taken: list[str] = []

    async def get(self, path: str, /, *, params: Mapping[str, str], accept: str) -> bytes:
        self.asked += 1
        name = path.rpartition("/")[2]
        if path != self.path:
            assert path == "/apis/g/v1/namespaces/ns/things/" + name
            if name in self.gone:
                raise errors.ApiError(404, "NotFound", "gone")
            return msgspec.json.encode(self._object(name))
        begin = int(params.get("continue", "0"))
        end = min(begin + int(params["limit"]), len(self.names))
        chosen = self.names[begin:end]
        metadata = {"resourceVersion": "9", "continue": str(end) if end < len(self.names) else ""}
        if accept == paging.TABLE:
            rows = [{"cells": [name], "object": self._object(name)} for name in chosen]
            return msgspec.json.encode({"kind": "Table", "rows": rows, "metadata": metadata})
        if self.deep & set(chosen):
            raise errors.ApiError(500, "", "json: error calling MarshalJSON: invalid character '{' exceeded max depth")
        return msgspec.json.encode({"items": list(map(self._object, chosen)), "metadata": metadata})

    def _object(self, name: str) -> dict[str, Any]:
        return {"metadata": {"name": name, "namespace": "ns"}}

    def take(self, body: bytes) -> decoding.ListMetadata:
        page = decoding.page(body)
        self.taken += [decoding.identity(item).name for item in page.items or ()]
        return page.metadata

    async def read(self) -> paging.Listed:
        return await paging.read(self.get, self.path, self.take, {})


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_BODY_BYTES", 1000)


async def test_pages_of_the_size_that_was_asked_for() -> None:
    found = Collection(*[60] * 10)
    assert (await found.read(4)).resource_version == "9"
    assert found.asked == [(0, 4), (4, 4), (8, 4)]
    assert len(found.taken) == 10


async def test_a_page_that_is_too_large_is_asked_for_in_smaller_ones() -> None:
    """With the same token; after it, where objects are small again, pages grow again."""
    found = Collection(*[60] * 8, *[900] * 3, *[60] * 12)
    await found.read(8)
    assert found.taken == list(found.sizes)
    assert found.asked[:5] == [(0, 8), (8, 8), (8, 4), (8, 2), (8, 1)]
    assert [limit for begin, limit in found.asked if begin == 9] == [1]
    assert [limit for begin, limit in found.asked if begin > 10] == [1, 2, 4, 8]


async def test_a_single_object_that_is_too_large_is_an_error() -> None:
    found = Collection(60, 1001)
    with pytest.raises(errors.TooLarge):
        await found.read(500)
    assert found.asked[-1] == (1, 1)
    assert len(found.asked) < 20


@pytest.mark.parametrize("deep", [{"n0"}, {"n7"}, {"n29"}, {"n3", "n4"}, {f"n{each}" for each in range(30)}])
async def test_what_a_server_can_write_in_no_list_is_asked_for_by_itself(deep: set[str]) -> None:
    found = Deep(*(f"n{each}" for each in range(30)), deep=frozenset(deep))
    assert await found.read() == paging.Listed("9", frozenset(deep))
    assert found.taken == found.names
    assert found.asked < 20 + 10 * len(deep)


async def test_an_object_deleted_before_it_is_read_alone_is_left_out() -> None:
    found = Deep("a", "b", "c", deep=frozenset({"b"}))
    found.gone = frozenset({"b"})
    await found.read()
    assert found.taken == ["a", "c"]


async def test_other_errors_of_the_server_are_the_callers() -> None:
    async def get(_path: str, /, *, params: Mapping[str, str], accept: str) -> bytes:
        raise errors.ApiError(500, "InternalError", f"etcd: {sorted(params)} {accept}")

    with pytest.raises(errors.ApiError, match="etcd"):
        await paging.read(get, "/things", lambda _body: decoding.ListMetadata(), {})


def test_a_watch_leaves_out_what_it_would_end_at() -> None:
    assert paging.without({"a": "b"}, ()) == {"a": "b"}
    assert paging.without({}, {"y", "x"}) == {"fieldSelector": "metadata.name!=x,metadata.name!=y"}
    assert paging.without({"fieldSelector": "a=b"}, {"x"})["fieldSelector"] == "a=b,metadata.name!=x"
