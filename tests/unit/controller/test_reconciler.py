"""One node's state and labels at an API server that gives scripted answers."""

from __future__ import annotations

import asyncio
import json
import time
import types
from collections.abc import Callable
from typing import Any

import pytest
from swapwarden.api import names, state
from swapwarden.controller import cluster, reconciler, rows
from swapwarden.kube import client, events

from tests.unit.controller.objects import node, profile, state_object, state_row
from tests.unit.kube.scripted import CUT, Request, Scripted, failure, reply
from tests.unit.policy.rows import container, pod

TERM = 7
STATE = f"{reconciler.STATES}/node-1"
NODE = f"{reconciler.NODES}/node-1"
LABELED = {names.NFD_SWAP_LABEL: "true", names.SWAP_LABEL: "true"}
NO_SWAP = profile(behavior=names.Behavior.NO_SWAP)


class Told:
    """In place of the recorder."""

    def __init__(self) -> None:
        self.reasons: list[tuple[str, str]] = []

    def event(self, regarding: events.Regarding, kind: str, reason: str, message: str) -> None:
        assert kind == "Warning"
        assert message
        self.reasons.append((regarding.name, reason))


class Bench:
    """A reconciler, and what it was told and asked for."""

    def __init__(self, api: client.Client, server: Scripted) -> None:
        self.server = server
        self.term: int | None = TERM
        self.again: list[tuple[str, float]] = []
        self.dirty: list[str] = []
        self.told = Told()
        self.known = cluster.Cluster(lambda name, _: self.dirty.append(name), lambda: None)
        self.reconciler = reconciler.Reconciler(
            api,
            self.known,
            term=lambda: self.term,
            again=lambda name, delay: self.again.append((name, delay)),
            recorder=self.told,  # type: ignore[arg-type]  # a recorder is more than is needed here
            label_grace=600,
        )
        self.known.node_changed("node-1", None, node(labels=LABELED))

    async def reconcile(self) -> list[Request]:
        """Reconcile the node; the requests that were made for it."""
        before = len(self.server.requests)
        await self.reconciler.reconcile("node-1")
        assert self.server.unused == 0
        return self.server.requests[before:]

    def planned(self, version: int = 1, **fields: Any) -> rows.StateRow:
        """The state as the plan is now, with an epoch; the watch has told of it."""
        spec = self.known.plan("node-1")
        spec = state.StateSpec(
            profile=spec.profile, mode=spec.mode, kubepods=spec.kubepods, pods=spec.pods, epoch=fields.pop("epoch", 3)
        )
        row = state_row(version=version, spec=spec, **fields)
        self.known.state_changed("node-1", self.known.state_of("node-1"), row)
        return row

    def pod_comes(self, name: str = "a", **fields: Any) -> None:
        self.known.pod_changed(f"default/{name}", None, pod(container(), name=name, uid=f"uid-{name}", **fields))


@pytest.fixture
def bench(api: client.Client, server: Scripted) -> Bench:
    return Bench(api, server)


def answer(version: int, **fields: Any) -> bytes:
    return reply(state_object(state_row(version=version, **fields)))


def clock(monotonic: Callable[[], float]) -> types.SimpleNamespace:
    """In place of the module in the reconciler only: the event loop needs the real one."""
    return types.SimpleNamespace(monotonic=monotonic, perf_counter=time.perf_counter)


async def test_a_node_without_a_state_gets_one_that_it_owns(bench: Bench) -> None:
    bench.pod_comes(policy="Disabled")
    bench.server.answer(answer(9, epoch=TERM))
    [made] = await bench.reconcile()
    assert (made.method, made.path) == ("POST", reconciler.STATES)
    body = json.loads(made.body)
    [owner] = body["metadata"]["ownerReferences"]
    assert owner == {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "uid-of-node-1"}
    assert body["spec"]["epoch"] == TERM
    assert body["spec"]["pods"] == {"uid-a": {"reason": "PolicyDisabled", "swapMax": "0"}}
    found = bench.known.state_of("node-1")
    assert found is not None
    assert found.version == 9


async def test_nothing_is_written_where_nothing_differs(bench: Bench) -> None:
    bench.pod_comes()
    bench.planned(epoch=3)
    assert await bench.reconcile() == [], "an older term alone is no difference"


async def test_only_what_differs_is_written_with_the_term_and_for_this_object_only(bench: Bench) -> None:
    bench.pod_comes("a")
    row = bench.planned(version=4)
    bench.pod_comes("b", policy="Disabled")
    bench.server.answer(answer(5))
    [patch] = await bench.reconcile()
    assert (patch.method, patch.path) == ("PATCH", STATE)
    assert patch.headers["content-type"] == "application/merge-patch+json"
    assert json.loads(patch.body) == {
        "metadata": {"uid": row.uid, "managedFields": [{}]},
        "spec": {"pods": {"uid-b": {"reason": "PolicyDisabled", "swapMax": "0"}}, "epoch": TERM},
    }


async def test_a_node_made_anew_owns_the_state_that_was_there(bench: Bench) -> None:
    bench.planned()
    bench.known.node_changed("node-1", None, node(uid="new", labels=LABELED))
    bench.server.answer(answer(2, owner="new"))
    [patch] = await bench.reconcile()
    body = json.loads(patch.body)
    assert [owner["uid"] for owner in body["metadata"]["ownerReferences"]] == ["new"]
    assert body["spec"] == {"epoch": TERM}


async def test_who_does_not_lead_writes_nothing(bench: Bench) -> None:
    bench.term = None
    bench.known.node_changed("node-1", None, node())
    assert await bench.reconcile() == []


async def test_a_term_that_ends_during_a_write_writes_no_labels_after_it(bench: Bench) -> None:
    bench.known.node_changed("node-1", None, node())
    release = asyncio.Event()
    bench.server.answer(release, answer(2))
    work = asyncio.create_task(bench.reconcile())
    await bench.server.seen(1)
    bench.term = None
    release.set()
    assert [request.path for request in await work] == [reconciler.STATES]


async def test_a_state_that_is_gone_is_made_anew(bench: Bench) -> None:
    row = bench.planned()
    bench.pod_comes()
    bench.server.answer(failure(404, "NotFound", "no such state"))
    await bench.reconcile()
    assert bench.again == [("node-1", 0.0)]
    bench.server.answer(answer(8, uid="new"))
    [made] = await bench.reconcile()
    assert made.method == "POST"
    bench.known.state_changed("node-1", row, None)
    found = bench.known.state_of("node-1")
    assert found is not None, "the late news of the deletion is not about the new one"
    assert found.uid == "new"


@pytest.mark.parametrize("known", [False, True])
async def test_a_conflict_is_looked_at(bench: Bench, known: bool) -> None:
    """Someone made a state before us, or another one in the place of the one that was known."""
    if known:
        bench.planned(version=3)
        bench.pod_comes()
    bench.server.answer(failure(409, "AlreadyExists", "there is one"))
    bench.server.answer(answer(6, uid="theirs"))
    assert [request.method for request in await bench.reconcile()] == ["PATCH" if known else "POST", "GET"]
    assert bench.again == [("node-1", 0.0)]
    bench.pod_comes("b")
    bench.server.answer(answer(7, uid="theirs"))
    [patch] = await bench.reconcile()
    assert json.loads(patch.body)["metadata"]["uid"] == "theirs"


async def test_a_conflict_about_what_is_known_is_not_tried_again_at_once(bench: Bench) -> None:
    row = bench.planned(version=3)
    bench.pod_comes()
    bench.server.answer(failure(409, "Conflict", "too many writers"))
    bench.server.answer(reply(state_object(row)))
    with pytest.raises(client.ApiError, match="too many writers"):
        await bench.reconcile()
    assert bench.again == []


async def test_a_later_term_deposes(bench: Bench) -> None:
    bench.planned()
    bench.pod_comes()
    bench.server.answer(
        failure(422, "Invalid", f'NodeSwapState "node-1" is invalid: spec.epoch: {state.EPOCH_REFUSAL}')
    )
    with pytest.raises(reconciler.Deposed, match="refused term 7 for node node-1"):
        await bench.reconcile()


async def test_another_refusal_does_not_depose(bench: Bench) -> None:
    bench.planned()
    bench.pod_comes()
    bench.server.answer(failure(422, "Invalid", "spec.pods: Too many"))
    with pytest.raises(client.ApiError, match="Too many"):
        await bench.reconcile()


async def test_a_write_whose_answer_is_lost_is_tried_again_as_it_was(bench: Bench) -> None:
    bench.planned(version=3)
    bench.pod_comes()
    bench.server.answer(CUT)
    with pytest.raises(client.Unreachable):
        await bench.reconcile()
    lost = bench.server.requests[-1]
    bench.server.answer(answer(5))
    [again] = await bench.reconcile()
    assert again.body == lost.body


async def test_writes_are_counted_by_answer(bench: Bench) -> None:
    def counts() -> list[float]:
        return [reconciler.WRITES.value("state", result) for result in ("ok", "422", "unreachable")]

    before = counts()
    bench.pod_comes()
    bench.server.answer(failure(422, "Invalid", "no"))
    with pytest.raises(client.ApiError):
        await bench.reconcile()
    bench.server.answer(CUT)  # a kept connection that is closed is no failure yet
    bench.server.answer(CUT)
    with pytest.raises(client.Unreachable):
        await bench.reconcile()
    bench.server.answer(answer(1))
    await bench.reconcile()
    assert [after - was for after, was in zip(counts(), before, strict=True)] == [1, 1, 1]


# --- labels ---


async def test_labels_are_set_on_this_node_only(bench: Bench) -> None:
    bench.planned()
    bench.known.node_changed("node-1", None, node())
    bench.server.answer(reply({}))
    [patch] = await bench.reconcile()
    assert (patch.method, patch.path) == ("PATCH", NODE)
    assert json.loads(patch.body) == {"metadata": {"uid": "uid-of-node-1", "labels": LABELED}}
    assert await bench.reconcile() == [], "the watch has not told yet, but these labels are known"


async def test_a_label_of_node_feature_discovery_is_left_to_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(reconciler, "time", clock(lambda: now))
    bench.known.node_changed("node-1", None, node(labels=LABELED, swap_bytes=0, nfd=True))
    bench.planned()
    assert await bench.reconcile() == []
    now += 600
    bench.server.answer(reply({}))
    [patch] = await bench.reconcile()
    assert json.loads(patch.body)["metadata"]["labels"] == {names.SWAP_LABEL: None}


@pytest.mark.parametrize(("status", "reason"), [(404, "NotFound"), (409, "Conflict")])
async def test_a_node_that_went_meanwhile_needs_no_labels(bench: Bench, status: int, reason: str) -> None:
    bench.planned()
    bench.known.node_changed("node-1", None, node())
    bench.server.answer(failure(status, reason, "gone"))
    assert len(await bench.reconcile()) == 1
    assert bench.again == []


async def test_labels_that_are_refused_are_tried_again(bench: Bench) -> None:
    bench.planned()
    bench.known.node_changed("node-1", None, node())
    bench.server.answer(failure(403, "Forbidden", "the controller may only change labels of a node"))
    with pytest.raises(client.ApiError, match="may only change labels"):
        await bench.reconcile()


async def test_a_node_that_goes_while_its_state_is_written(bench: Bench) -> None:
    release = asyncio.Event()
    bench.server.answer(release, answer(2))
    work = asyncio.create_task(bench.reconcile())
    await bench.server.seen(1)
    bench.known.node_changed("node-1", node(), None)
    release.set()
    assert len(await work) == 1


async def test_a_label_waits_for_its_time_anew_in_a_new_term_and_on_a_new_node(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(reconciler, "time", clock(lambda: now))
    off = node(labels=LABELED, swap_bytes=0)
    bench.known.node_changed("node-1", None, off)
    bench.planned()
    assert await bench.reconcile() == []
    assert bench.again == [("node-1", 600.0)]
    now += 590
    bench.reconciler.begin_term()
    assert await bench.reconcile() == []
    now += 590
    assert await bench.reconcile() == [], "others may have led, and swap may have been on, in between"
    bench.known.node_changed("node-1", off, None)
    assert bench.dirty[-1] == "node-1", "what is remembered of a node must go with it"
    assert await bench.reconcile() == []
    bench.known.node_changed("node-1", None, off)
    assert await bench.reconcile() == []
    now += 590
    assert await bench.reconcile() == [], "it is another node"
    now += 10
    bench.server.answer(reply({}))
    [patch] = await bench.reconcile()
    assert json.loads(patch.body)["metadata"]["labels"] == dict.fromkeys(LABELED)


# --- events ---


async def test_owners_of_pods_are_told_once(bench: Bench) -> None:
    bench.known.profiles_changed({"p": NO_SWAP})
    bench.pod_comes("limited", swap_limit="1Gi")
    bench.server.answer(answer(2))
    await bench.reconcile()
    assert bench.told.reasons == [("limited", "ProfileNoSwap")]
    bench.planned(version=3)
    bench.pod_comes("wrong", policy="Sometimes")
    bench.server.answer(answer(4))
    await bench.reconcile()
    assert bench.told.reasons[1:] == [("wrong", "InvalidPolicy")]


async def test_another_leader_does_not_tell_again(bench: Bench) -> None:
    """What stands in the state was told by whoever wrote it."""
    bench.known.profiles_changed({"p": NO_SWAP})
    bench.pod_comes("limited", swap_limit="1Gi")
    bench.planned()
    assert await bench.reconcile() == []
    bench.pod_comes("other")
    bench.server.answer(answer(2))
    await bench.reconcile()
    assert bench.told.reasons == []


async def test_nobody_is_told_of_a_write_that_failed(bench: Bench) -> None:
    bench.known.profiles_changed({"p": NO_SWAP})
    bench.pod_comes("limited", swap_limit="1Gi")
    bench.server.answer(failure(500, "InternalError", "no"))
    with pytest.raises(client.ApiError):
        await bench.reconcile()
    bench.server.answer(failure(409, "AlreadyExists", "there is one"))
    bench.server.answer(answer(2))
    await bench.reconcile()
    assert bench.told.reasons == []
