from __future__ import annotations

import json
from typing import Any

import pytest
from swapwarden.api.notices import Notice
from swapwarden.controller.watches import restore_request
from swapwarden.kube import errors


class Api:
    """Answers with a ConfigMap of this data; with this status where it is a number."""

    def __init__(self, answer: dict[str, str] | int) -> None:
        self.answer = answer
        self.paths: list[str] = []

    async def get(self, path: str, **_: Any) -> bytes:
        self.paths.append(path)
        if isinstance(self.answer, int):
            raise errors.ApiError(self.answer, "", "refused")
        metadata = {"uid": "u", "resourceVersion": str(len(self.paths))}
        return json.dumps({"metadata": metadata, "data": self.answer}).encode()


class Bench:
    def __init__(self, answer: dict[str, str] | int) -> None:
        self.api = Api(answer)
        self.changes: list[bool] = []
        self.order = restore_request.RestoreRequest(self.api, "ns", lambda: self.changes.append(self.order.active))  # type: ignore[arg-type] # a stand-in

    async def read(self, answer: dict[str, str] | int) -> bool:
        self.api.answer = answer
        await self.order.read()
        return self.order.active


async def test_it_is_given_and_taken_back() -> None:
    bench = Bench({})
    assert not bench.order.synced.is_set()
    assert await bench.read({"restore": "false"}) is False
    assert bench.order.synced.is_set()
    assert bench.changes == []
    for _ in range(2):
        assert await bench.read({"restore": "true"}) is True
    assert await bench.read({}) is False
    assert bench.changes == [True, False]
    assert set(bench.api.paths) == {"/api/v1/namespaces/ns/configmaps/swapwarden-uninstall"}


async def test_each_order_is_an_event_of_its_own_by_any_reporter() -> None:
    bench, told = Bench({}), list[Notice]()
    for answer in ({"restore": "true"}, {"restore": "true"}, {"restore": "false"}, {"restore": "true"}):
        if await bench.read(answer):
            told.append(bench.order.notice())
    assert {(each.regarding.kind, each.regarding.namespace, each.regarding.name) for each in told} == {
        ("ConfigMap", "ns", "swapwarden-uninstall")
    }
    assert {(each.type, each.reason, each.urgent) for each in told} == {("Warning", "Restoring", True)}
    assert [each.key for each in told] == ["u/1", "u/1", "u/4"]


async def test_without_the_config_map_the_last_order_holds() -> None:
    bench = Bench({})
    assert await bench.read(404) is False
    assert bench.order.synced.is_set()
    await bench.read({"restore": "true"})
    assert await bench.read(404) is True
    assert bench.changes == [True]


async def test_a_look_that_failed_says_nothing() -> None:
    bench = Bench({})
    with pytest.raises(errors.ApiError):
        await bench.read(500)
    assert not bench.order.synced.is_set()
