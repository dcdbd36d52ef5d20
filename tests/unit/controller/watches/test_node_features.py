"""When labels go to NodeFeatures, and which NodeFeatures are known."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from swapwarden.api import names
from swapwarden.controller.watches import node_features
from swapwarden.kube import errors, informer

from tests.unit import background
from tests.unit.kube.scripted import until

Direct, NodeFeature, Auto = names.Publisher


class Api:
    """Knows some resources of the group; none where it does not know the group."""

    def __init__(self, *resources: str) -> None:
        self.resources = resources
        self.failures: list[Exception] = []
        self.looks = 0

    async def get(self, path: str, **_: Any) -> bytes:
        assert path == "/apis/nfd.k8s-sigs.io/v1alpha1"
        self.looks += 1
        if self.failures:
            raise self.failures.pop()
        if not self.resources:
            raise errors.ApiError(404, "NotFound", "the server could not find the requested resource")
        return json.dumps({"kind": "APIResourceList", "resources": [{"name": n} for n in self.resources]}).encode()


class Informer:
    """In place of the real one: what it knows, the test says."""

    made: list[Informer]

    def __init__(self, _: Any, path: str, *, on_change: Callable[..., None], params: dict[str, str], **__: Any) -> None:
        self.path, self.on_change, self.params = path, on_change, params
        self.synced = asyncio.Event()
        self.ended = False
        self.made.append(self)

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.ended = True


class Bench:
    def __init__(self, api: Api, publisher: names.Publisher) -> None:
        self.api = api
        self.changed: list[str | None] = []
        self.features = node_features.Features(
            api,  # type: ignore[arg-type]  # a stand-in
            "ns",
            publisher,
            changed=self.changed.append,
            interval=0.001,
        )

    @contextlib.asynccontextmanager
    async def runs(self) -> AsyncIterator[None]:
        async with background.running(self.features.run()) as task:
            yield
            assert not task.done()

    async def looked(self, times: int = 2) -> None:
        looks = self.api.looks + times
        await until(lambda: self.api.looks >= looks)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    Informer.made = []
    monkeypatch.setattr(informer, "Informer", Informer)
    monkeypatch.setattr(node_features, "BACKOFF_SECONDS", (0.0, 0.0))


def row(version: int = 1, uid: str = "u", name: str = "swapwarden-one", **labels: str) -> node_features.FeatureRow:
    return node_features.FeatureRow(name, uid, version, "uid-of-one", labels)


async def test_a_controller_that_sets_all_labels_looks_for_nothing() -> None:
    bench = Bench(Api("nodefeatures"), Direct)
    await bench.features.run()
    assert bench.features.serves("one") is False
    assert bench.api.looks == 0


async def test_labels_are_published_once_all_node_features_are_known() -> None:
    bench = Bench(Api("nodefeaturerules", "nodefeatures"), Auto)
    assert bench.features.serves("one") is None, "it is not known yet"
    async with bench.runs():
        await bench.looked()
        [known] = Informer.made
        assert known.path == "/apis/nfd.k8s-sigs.io/v1alpha1/namespaces/ns/nodefeatures"
        assert known.params == {"labelSelector": "app.kubernetes.io/managed-by=swapwarden-controller"}
        assert bench.features.serves("one") is None
        known.synced.set()
        await until(lambda: bench.features.serves("one"))
        assert bench.changed == [None], "all nodes are due"
        await bench.looked()
        assert bench.changed == [None]
        assert node_features.IN_USE.value() == 1


@pytest.mark.parametrize("resources", [(), ("nodefeaturerules",)])
async def test_without_the_definition_the_controller_sets_labels_where_it_may_choose(
    resources: tuple[str, ...],
) -> None:
    bench = Bench(Api(*resources), Auto)
    async with bench.runs():
        await until(lambda: bench.features.serves("one") is False)
        assert bench.changed == [None]


async def test_and_sets_none_where_it_may_not_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(Api(), NodeFeature)
    async with bench.runs():
        await bench.looked(5)
        assert bench.features.serves("one") is None
    assert caplog.text.count("no labels are published") == 1


async def test_a_definition_that_is_created_and_deleted_is_followed() -> None:
    bench = Bench(Api(), Auto)
    async with bench.runs():
        await until(lambda: bench.features.serves("one") is False)
        bench.api.resources = ("nodefeatures",)
        await until(lambda: Informer.made)
        Informer.made[0].synced.set()
        await until(lambda: bench.features.serves("one"))
        Informer.made[0].on_change("ns/swapwarden-one", None, row())
        bench.api.resources = ()
        await until(lambda: bench.features.serves("one") is False)
        assert Informer.made[0].ended
        bench.api.resources = ("nodefeatures",)
        await until(lambda: len(Informer.made) == 2)
        assert bench.features.of("one") is None, "it went with its definition"
    assert Informer.made[1].ended


async def test_a_look_that_failed_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(Api("nodefeatures"), Auto)
    bench.api.failures = [errors.ApiError(503, "ServiceUnavailable", "busy"), errors.Unreachable("no answer")]
    before = node_features.FAILURES.value()
    async with bench.runs():
        await until(lambda: Informer.made)
    assert node_features.FAILURES.value() == before + 2
    assert "trying again in 0.0 s" in caplog.text


async def test_the_newer_of_the_watch_and_a_write_counts() -> None:
    bench = Bench(Api("nodefeatures"), Auto)
    async with bench.runs():
        await until(lambda: Informer.made)
        tell = Informer.made[0].on_change
        tell("ns/swapwarden-one", None, row(3))
        assert bench.features.of("one") == row(3)
        assert bench.changed == ["one"]
        bench.features.wrote(row(5, a="b"))
        tell("ns/swapwarden-one", row(3), row(4))
        assert bench.features.of("one") == row(5, a="b"), "the watch is behind"
        tell("ns/swapwarden-one", row(4), row(6))
        assert bench.features.of("one") == row(6)
        bench.features.wrote(row(5, a="b"))
        assert bench.features.of("one") == row(6), "the answer is behind"
        bench.features.wrote(row(8, uid="new"))
        tell("ns/swapwarden-one", row(6), None)
        assert bench.features.of("one") == row(8, uid="new"), "another one of its name exists already"
        tell("ns/swapwarden-one", row(8, uid="new"), None)
        assert bench.features.of("one") is None
        assert bench.features.of("two") is None


def test_a_nodefeature_is_read() -> None:
    body = {
        "metadata": {
            "name": "swapwarden-one",
            "namespace": "ns",
            "uid": "u",
            "resourceVersion": "7",
            "labels": {"a": "b"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "one", "uid": "uid-of-one"}],
        },
        "spec": {"features": {"flags": {}}, "labels": {"x": "y"}},
    }
    assert node_features.decode(json.dumps(body).encode()) == row(7, x="y")
    bare = {"metadata": {"name": "swapwarden-one", "uid": "u", "resourceVersion": "7"}, "spec": {}}
    assert node_features.decode(json.dumps(bare).encode()).labels == {}
