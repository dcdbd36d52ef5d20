from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from swapwarden.api.notices import Notice, Regarding
from swapwarden.kube import client, config, events, transport

from testbed.controlplane.servers import ControlPlane
from tests.integration.conftest import Json
from tests.integration.kube.conftest import ConfigMaps
from tests.integration.kube.proxy import Proxy


@pytest_asyncio.fixture
async def recorder(
    ruled: ControlPlane, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[events.Recorder]:
    """With the controller's own token, through the proxy."""
    monkeypatch.setattr(events, "BACKOFF_SECONDS", (0.01, 0.1))
    token = ruled.token("swapwarden-system", "swapwarden-controller")
    kubeconfig = ruled.kubeconfig_for(token, "controller", server=proxy.url)
    async with client.Client(config.load(str(kubeconfig)), user_agent="swapwarden-test") as api:
        made = events.Recorder(api, "swapwarden-controller", "one")
        task = asyncio.create_task(made.run())
        yield made
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class Log:
    """The Events about one object that there is not."""

    def __init__(self, control_plane: ControlPlane, regarding: Regarding) -> None:
        self._control_plane = control_plane
        self.regarding = regarding

    def items(self) -> list[Json]:
        namespace = self.regarding.namespace or "default"
        selector = f"involvedObject.uid={self.regarding.uid}"
        found = self._control_plane.get(f"/api/v1/namespaces/{namespace}/events?fieldSelector={selector}")["items"]
        return sorted(found, key=lambda item: str(item["message"]))

    async def until(self, **counts: int) -> list[Json]:
        """Wait for exactly these messages and counts."""
        found: list[Json] = []
        async with asyncio.timeout(20):
            while {item["message"]: item["count"] for item in found} != counts:
                await asyncio.sleep(0.02)
                found = await asyncio.to_thread(self.items)
        return found


@pytest.fixture
def pod(own: ControlPlane, maps: ConfigMaps) -> Log:
    return Log(own, Regarding("v1", "Pod", maps.namespace, "web", f"uid-{maps.namespace}"))


@pytest.fixture
def node(own: ControlPlane, maps: ConfigMaps) -> Log:
    return Log(own, Regarding("v1", "Node", "", "n1.example.com", f"uid-{maps.namespace}"))


async def test_events_as_people_see_them(recorder: events.Recorder, pod: Log, node: Log, own: ControlPlane) -> None:
    recorder.post(Notice(pod.regarding, "Warning", "NodeIncompatible", "once"))
    recorder.post(Notice(node.regarding, "Normal", "Labelled", "fine"))
    [event] = await pod.until(once=1)
    assert event["type"] == "Warning"
    assert event["reason"] == "NodeIncompatible"
    assert event["source"] == {"component": "swapwarden-controller"}
    assert (event["reportingComponent"], event["reportingInstance"]) == ("swapwarden-controller", "one")
    await node.until(fine=1)
    shown = own.kubectl("events", f"--namespace={pod.regarding.namespace}", "--for=pod/web", "--no-headers").stdout
    assert shown.split()[1:] == ["Warning", "NodeIncompatible", "Pod/web", "once"]


async def test_the_longest_message_is_taken(recorder: events.Recorder, pod: Log) -> None:
    recorder.post(Notice(pod.regarding, "Warning", "R", "é" * 5000))
    await pod.until(**{"é" * 510 + "...": 1})


async def test_repeats_are_counted(recorder: events.Recorder, pod: Log) -> None:
    for count in (1, 2, 3):
        recorder.post(Notice(pod.regarding, "Warning", "R", "again"))
        [event] = await pod.until(again=count)
    assert event["lastTimestamp"] >= event["firstTimestamp"]
    recorder.post(Notice(pod.regarding, "Warning", "R", "other"))
    await pod.until(again=3, other=1)


async def test_a_deleted_event_is_created_again(recorder: events.Recorder, pod: Log, own: ControlPlane) -> None:
    recorder.post(Notice(pod.regarding, "Warning", "R", "again"))
    [first] = await pod.until(again=1)
    path = f"/api/v1/namespaces/{pod.regarding.namespace}/events/{first['metadata']['name']}"
    assert own.request("DELETE", path)[0] == 200
    recorder.post(Notice(pod.regarding, "Warning", "R", "again"))
    [anew] = await pod.until(again=1)
    assert anew["metadata"]["name"] != first["metadata"]["name"]


async def test_cut_connections_neither_lose_nor_repeat_an_event(
    recorder: events.Recorder, pod: Log, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "TRIES", 100)
    recorder.post(Notice(pod.regarding, "Warning", "R", "m0"))
    await pod.until(m0=1)
    for at in range(1, 6):
        # Somewhere in the answer, which is sent after the work.
        proxy.cut_after(at * 40)
        recorder.post(Notice(pod.regarding, "Warning", "R", f"m{at}"))
        await pod.until(**{f"m{before}": 1 for before in range(at + 1)})


async def test_events_outlive_a_short_outage(
    recorder: events.Recorder, pod: Log, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "TRIES", 1000)
    proxy.refusing = True
    failed = transport.REQUESTS.value("POST", "unreachable")
    for _ in range(3):
        recorder.post(Notice(pod.regarding, "Warning", "R", "meanwhile"))
        recorder.post(Notice(pod.regarding, "Warning", "R", "later"))
    async with asyncio.timeout(20):
        while transport.REQUESTS.value("POST", "unreachable") < failed + 3:  # noqa: ASYNC110 a counter tells nobody
            await asyncio.sleep(0.01)
    proxy.refusing = False
    await pod.until(meanwhile=3, later=3)


async def test_a_namespace_that_is_gone_holds_nothing_up(
    recorder: events.Recorder, pod: Log, caplog: pytest.LogCaptureFixture
) -> None:
    gone = Regarding("v1", "Pod", "never-was", "web", "uid")
    recorder.post(Notice(gone, "Warning", "R", "lost"))
    recorder.post(Notice(pod.regarding, "Warning", "R", "told"))
    await pod.until(told=1)
    assert "the event R about Pod web is lost: " in caplog.text


async def test_many_at_once(recorder: events.Recorder, own: ControlPlane, maps: ConfigMaps) -> None:
    each = events.OBJECT_BURST - 5
    webs = [Regarding("v1", "Pod", maps.namespace, f"web-{at}", f"{at}-{maps.namespace}") for at in range(3)]
    for at in range(each):
        for web in webs:
            recorder.post(Notice(web, "Warning", "R", f"m{at}"))
    found = [event for web in webs for event in await Log(own, web).until(**{f"m{at}": 1 for at in range(each)})]
    assert len({item["metadata"]["name"] for item in found}) == len(webs) * each
