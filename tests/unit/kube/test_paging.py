from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest
from swapwarden.kube import client, decoding, paging


class Collection:
    """Objects of some sizes, and the requests for them."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes
        self.asked: list[tuple[int, int]] = []
        self.taken: list[int] = []

    async def get(self, query: Mapping[str, str]) -> bytes:
        begin, limit = int(query.get("continue", "0")), int(query["limit"])
        assert query["labelSelector"] == "a=b"
        self.asked.append((begin, limit))
        end = min(begin + limit, len(self.sizes))
        if sum(self.sizes[begin:end]) > client.MAX_BODY_BYTES:
            raise client.TooLarge("too large")
        body = {"items": self.sizes[begin:end], "following": str(end) if end < len(self.sizes) else ""}
        return msgspec.json.encode(body).ljust(sum(self.sizes[begin:end]))

    def take(self, body: bytes) -> decoding.ListMetadata:
        found = msgspec.json.decode(body)
        self.taken += found["items"]
        return decoding.ListMetadata("9", found["following"])

    async def read(self, size: int) -> decoding.ListMetadata:
        return await paging.read(self.get, self.take, {"labelSelector": "a=b"}, size)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_BODY_BYTES", 1000)


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
    with pytest.raises(client.TooLarge):
        await found.read(500)
    assert found.asked[-1] == (1, 1)
    assert len(found.asked) < 20
