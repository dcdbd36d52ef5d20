from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest
from swapwarden.api import names
from swapwarden.cli import profiles, uninstall
from swapwarden.kube import client, transport
from swapwarden.policy.observed import nodes, states
from swapwarden.policy.observed.pods import WirePod

from tests.unit.kube.scripted import Scripted, failure, page, plain, reply

SWAP = "node.swapwarden.dev/swap"


def state(
    mode: str = "Restore", observed: int = 4, *, status: str = "True", reason: str = "Restored", pods: int = 0
) -> states.StateRow:
    applied = {"type": "Applied", "status": status, "reason": reason, "lastTransitionTime": "2026-01-01T00:00:00Z"}
    body = {
        "metadata": {"name": "one", "resourceVersion": "1", "generation": 4},
        "spec": {"mode": mode, "pods": {str(number): {} for number in range(pods)}},
        "status": {"observedGeneration": observed, "conditions": [applied]},
    }
    return states.decode(msgspec.json.encode(body))


@pytest.mark.parametrize(
    ("found", "answered"),
    [
        (state(), True),
        (state(observed=3), False),
        (state(mode="Enforce"), False),
        (state(status="False", reason="Restoring"), False),
        (state(status="False", reason="WriteFailed"), False),
        # Nothing can have been written there.
        (state(status="False", reason="Incompatible"), True),
        # No agent ever ran there.
        (state(observed=0), True),
        # The controller has not reached it either: it would recreate the state and the labels.
        (state(observed=0, mode="Enforce"), False),
    ],
)
def test_when_a_node_has_answered(found: states.StateRow, answered: bool) -> None:
    assert uninstall.has_restored(found) is answered


def pod(
    name: str, phase: str = "Running", node: str = "one", annotations: dict[str, str] | None = None, **spec: Any
) -> WirePod:
    body = {
        "metadata": {"name": name, "namespace": "ns"} | ({} if annotations is None else {"annotations": annotations}),
        "spec": {"nodeName": node, **spec},
        "status": {"phase": phase},
    }
    return msgspec.json.decode(msgspec.json.encode(body), type=WirePod)


def test_the_report_says_how_many_pods_run_where_nobody_answered() -> None:
    pods = [pod("a"), pod("b"), pod("c", node="two")]
    assert list(uninstall.report([], pods)) == [uninstall.ALL_RESTORED]
    assert list(uninstall.report([state()], pods))[1:] == ["  one: up to 2 pods"]
    assert list(uninstall.report([state("Enforce")], []))[1:] == [f"  one: up to 0 pods; {uninstall.NOT_ORDERED}"]


KEY = "required-plugins.noderesource.dev"


@pytest.mark.parametrize(
    ("listed", "named"),
    [
        ('["swapwarden"]', True),
        ('["other", "swapwarden"]', True),
        ("- other\n- swapwarden\n", True),
        ("[swapwarden]", True),
        ('["other"]', False),
        ('["my-swapwarden", "swapwarden-updates"]', False),
        ("", False),
    ],
)
def test_pods_that_require_the_process_are_listed_with_the_remedy(listed: str, named: bool) -> None:
    lines = list(uninstall.requiring([pod("a"), pod("b", node="", annotations={KEY: listed, "other": "swapwarden"})]))
    if not named:
        assert lines == []
        return
    head, names_, remedy = lines
    assert head.endswith("(1):")
    assert names_ == "  ns/b"
    assert "Delete these pods once Swapwarden is removed" in remedy


def test_of_many_pods_that_require_it_some_are_named_and_the_rest_counted() -> None:
    pods = [pod(f"p{number:03}", annotations={KEY: '["swapwarden"]'}) for number in range(uninstall.MOST_NAMED + 7)]
    head, names_, _ = uninstall.requiring(reversed(pods))
    assert head.endswith("(57):")
    assert names_.startswith("  ns/p000, ns/p001, ")
    assert names_.endswith("ns/p049 and 7 more")


def test_labels_are_held_by_running_pods_that_select_them() -> None:
    selector = {SWAP: "true", "pool": "batch"}
    expression = {"key": SWAP, "operator": "Exists"}
    kind = "requiredDuringSchedulingIgnoredDuringExecution"
    affinity = {"nodeAffinity": {kind: {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}}
    preferred = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}}
    pods = [
        pod("selects", nodeSelector=selector),
        pod("requires", "Pending", affinity=affinity),
        pod("prefers", affinity=preferred),
        pod("indifferent", affinity={}),
        pod("elsewhere", node="two", nodeSelector=selector),
    ]
    assert uninstall.labels_in_use(pods) == {
        ("one", SWAP): {"ns/selects", "ns/requires"},
        ("two", SWAP): {"ns/elsewhere"},
    }


@pytest.fixture
def _no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles, "BACKOFF_SECONDS", (0.0, 0.0))


def node(name: str, *taints: str, uid: str = "u", labels: tuple[str, ...] = (SWAP,)) -> dict[str, Any]:
    metadata = {"name": name, "uid": uid, "resourceVersion": "1", "labels": dict.fromkeys(labels, "true")}
    return {"metadata": metadata, "spec": {"taints": [{"key": key, "effect": "NoSchedule"} for key in taints]}}


DAEMONS = "/apis/apps/v1/namespaces/swapwarden-system/daemonsets/swapwarden-nri"
GONE = failure(404, "NotFound", "daemonsets swapwarden-nri not found")


@pytest.mark.usefixtures("_no_backoff")
async def test_the_end_of_all_plugins_is_awaited(
    api: client.Client, server: Scripted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(uninstall, "POLL_SECONDS", 0.0)
    for each in (
        failure(500, "InternalError", "etcd"),
        reply({}),
        reply({}),
        failure(503, "Unavailable", "busy"),
        GONE,
    ):
        server.answer(each)
    assert await uninstall.remove_plugins(api, DAEMONS)
    assert [each.method for each in server.requests] == ["DELETE", "DELETE", "GET", "GET", "GET"]
    assert json.loads(server.requests[0].body)["propagationPolicy"] == "Foreground", "it is gone when its pods are"
    assert capsys.readouterr().out == ""


async def test_where_there_are_no_plugins_nothing_is_awaited(api: client.Client, server: Scripted) -> None:
    server.answer(GONE)
    assert not await uninstall.remove_plugins(api, DAEMONS)


@pytest.mark.usefixtures("_no_backoff")
@pytest.mark.parametrize("last", [reply({}), failure(403, "Forbidden", "no right")])
async def test_plugins_that_do_not_end_are_named_and_keep_nothing_back(
    api: client.Client, server: Scripted, last: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answer(last)
    assert not await uninstall.remove_plugins(api, DAEMONS, seconds=-1.0)
    said = capsys.readouterr().out
    assert said.startswith(f"{DAEMONS} is still there: ")
    assert "no right" in said or "have not ended" in said


@pytest.mark.usefixtures("_no_backoff")
async def test_a_node_that_is_deleted_meanwhile_is_not_released(
    api: client.Client, server: Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answer(page([node("one")], 5))
    server.answer(failure(404, "NotFound", "nodes one not found"))
    server.answer(page([], 6))
    await uninstall.release_nodes(api, {}, untaint=False)
    assert server.unused == 0
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("_no_backoff")
async def test_a_node_that_another_one_changed_meanwhile_is_looked_at_again(
    api: client.Client, server: Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answer(page([node("one", names.STARTUP_TAINT)], 5))
    server.answer(failure(422, "Invalid", "the test operation failed"))
    server.answer(page([node("one", "other", names.STARTUP_TAINT, uid="new")], 6))
    server.answer(reply({}))
    server.answer(failure(409, "Conflict", "uid"))
    server.answer(page([node("one", "other", uid="newer")], 7))
    server.answer(reply({}))
    server.answer(page([node("one", "other", labels=())], 8))
    await uninstall.release_nodes(api, {}, untaint=True)
    assert server.unused == 0
    patches = [json.loads(each.body) for each in server.requests if each.method == "PATCH"]
    assert [patch[-1]["path"] for patch in patches[:2]] == ["/spec/taints/0", "/spec/taints/1"]
    assert patches[-1] == {"metadata": {"uid": "newer", "labels": {SWAP: None}}}
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("_no_backoff")
async def test_a_node_that_refuses_is_listed_and_keeps_no_other_back(
    api: client.Client, server: Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(uninstall.ROUNDS):
        server.answer(page([node("one")], 5))
        server.answer(failure(403, "Forbidden", "no labels may go"))
    server.answer(page([node("one")], 5))
    await uninstall.release_nodes(api, {}, untaint=False)
    assert server.unused == 0
    said = capsys.readouterr().out
    assert said.startswith(f"node one {uninstall.KEEPS_MARKS}: ")
    assert "no labels may go" in said


@pytest.mark.usefixtures("_no_backoff")
async def test_the_extended_resource_is_taken_from_a_node(api: client.Client, server: Scripted) -> None:
    offering = {**node("one", labels=()), "status": {"capacity": {"memory": "1Gi", names.SWAP_RESOURCE: "5"}}}
    server.answer(page([offering], 5))
    server.answer(reply({}))
    server.answer(page([node("one", labels=())], 6))
    await uninstall.release_nodes(api, {}, untaint=False)
    assert server.unused == 0
    [patch] = [each for each in server.requests if each.method == "PATCH"]
    assert patch.path == f"{uninstall.NODES}/one/status"
    body = {"metadata": {"uid": "u"}, "status": {"capacity": {names.SWAP_RESOURCE: None}}}
    assert json.loads(patch.body) == body


async def test_all_labels_go_but_those_that_nfd_keeps(api: client.Client, server: Scripted) -> None:
    found = node("one", labels=names.NODE_LABELS)
    kept = {names.NFD_SWAP_LABEL, names.BACKING_LABEL}
    found["metadata"]["annotations"] = {names.NFD_OWNS_ANNOTATION: "memory-swap,node.swapwarden.dev/swap-backing"}
    server.answer(page([found], 5))
    server.answer(reply({}))
    server.answer(page([], 6))
    await uninstall.release_nodes(api, {}, untaint=False)
    assert server.unused == 0
    body = json.loads(server.requests[1].body)
    assert body["metadata"]["labels"] == dict.fromkeys(set(names.NODE_LABELS) - kept)


def feature(node: str, *labels: str) -> dict[str, Any]:
    metadata = {"name": f"swapwarden-{node}", "uid": f"uid-{node}", "resourceVersion": "1"}
    return {"metadata": metadata, "spec": {"labels": dict.fromkeys(labels, "true")}}


@pytest.mark.usefixtures("_no_backoff")
async def test_nodefeatures_go_but_for_labels_that_pods_select(
    api: client.Client, server: Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    path = "/apis/nfd.k8s-sigs.io/v1alpha1/namespaces/ns/nodefeatures"
    held = {("held", SWAP): {"ns/pod"}}
    server.answer(page([feature("gone", SWAP), feature("empty"), feature("held", SWAP, names.BACKING_LABEL)], 5))
    for _ in range(3):
        server.answer(reply({}))
    server.answer(page([feature("held", SWAP)], 6))
    await uninstall.release_features(api, path, held)
    assert server.unused == 0
    assert server.requests[0].query["labelSelector"] == "app.kubernetes.io/managed-by=swapwarden-controller"
    done = {(each.method, each.path.rpartition("/")[2]): each.body for each in server.requests if each.method != "GET"}
    assert done.keys() == {
        ("DELETE", "swapwarden-gone"),
        ("DELETE", "swapwarden-empty"),
        ("PATCH", "swapwarden-held"),
    }
    assert json.loads(done["PATCH", "swapwarden-held"]) == {
        "metadata": {"uid": "uid-held"},
        "spec": {"labels": {names.BACKING_LABEL: None}},
    }
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("_no_backoff")
async def test_where_there_are_no_nodefeatures_none_is_released(api: client.Client, server: Scripted) -> None:
    server.answer(failure(404, "NotFound", "the server could not find the requested resource"))
    await uninstall.release_features(api, "/apis/nfd.k8s-sigs.io/v1alpha1/namespaces/ns/nodefeatures", {})
    assert server.unused == 0


async def test_many_are_done_at_a_time_but_not_all() -> None:
    left, running, most = set(range(100)), 0, 0

    async def rest() -> list[int]:
        return sorted(left)

    async def do(number: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        left.discard(number)

    assert await uninstall.retry_rounds(rest, do) == []
    assert most == uninstall.PARALLEL


FINALIZER = "swapwarden.dev/release-nodes"


def held(name: str, *finalizers: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": f"uid-{name}", "finalizers": list(finalizers)}}


async def test_all_profiles_lose_our_finalizer_and_keep_those_of_others(
    api: client.Client, server: Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    for answer in (page([held("p", "theirs", FINALIZER), held("q", "theirs")], 5), reply({}), page([], 6)):
        server.answer(answer)
    await uninstall.release_profiles(api)
    [patch] = [each for each in server.requests if each.method == "PATCH"]
    assert patch.path.endswith("/nodeswapprofiles/p")
    assert json.loads(patch.body) == [
        {"op": "test", "path": "/metadata/uid", "value": "uid-p"},
        {"op": "test", "path": "/metadata/finalizers/1", "value": FINALIZER},
        {"op": "remove", "path": "/metadata/finalizers/1"},
    ]
    assert capsys.readouterr().out == ""


async def test_a_profile_that_keeps_the_finalizer_is_named(
    api: client.Client, server: Scripted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(profiles, "BACKOFF_SECONDS", (0.0, 0.0))
    for _ in range(uninstall.ROUNDS):
        server.answer(page([held("p", FINALIZER)], 5))
        server.answer(failure(403, "Forbidden", "not you"))
    server.answer(page([held("p", FINALIZER)], 5))
    await uninstall.release_profiles(api)
    assert f"profile p {uninstall.KEEPS_FINALIZER}: " in capsys.readouterr().out


@pytest.mark.usefixtures("_no_backoff")
async def test_a_recreated_object_is_named_after_the_last_round() -> None:
    async def rest() -> list[str]:
        return ["a"]

    async def do(_: str) -> None:
        """Nothing."""

    assert await uninstall.retry_rounds(rest, do) == [("a", "it comes back")]


@pytest.mark.usefixtures("_no_backoff")
async def test_objects_that_cannot_be_decoded_are_left_out_with_one_word_each(
    api: client.Client, server: Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    nested = b"[" * 20_000 + b"]" * 20_000
    good = json.dumps(node("good", labels=())).encode()
    deep = b'{"metadata":{"name":"deep","managedFields":[{"fieldsV1":%s}]}}' % nested
    bad = b'{"metadata":{"name":"bad"},"spec":{"taints":5},"x":%s}' % nested
    body = b'{"metadata":{"resourceVersion":"5"},"items":[%s]}' % b",".join((good, deep, bad))
    for _ in range(2):
        server.answer(plain(body))
        found = await uninstall.read_all(api, uninstall.NODES, nodes.WireNode)
        assert [each.metadata.name for each in found] == ["good", "deep"]
    assert capsys.readouterr().err.count("nodes bad is left out") == 1


async def test_a_list_that_is_too_large_is_read_in_smaller_pages(
    api: client.Client, server: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "MAX_BODY_BYTES", 100_000)
    large = {**node("one"), "x": "x" * 90_000}
    server.answer(page([large, large], 5))
    server.answer(page([large], 5, "more"))
    server.answer(page([large], 5))
    assert len(await uninstall.read_all(api, uninstall.NODES, nodes.WireNode)) == 2
    assert [each.query["limit"] for each in server.requests] == ["500", "250", "250"]
