"""Who uses how much, from agents, states and metrics.k8s.io."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from swapwarden.agent.node import swap_metrics as agent_usage
from swapwarden.api import names, state
from swapwarden.cli.kubectl.cluster import agents, usage
from swapwarden.policy.observed import pods
from swapwarden.policy.observed.pods import WirePod

MIB = 1 << 20
INF = float("inf")


def pod(name: str, uid: str, namespace: str = "shop", node: str = "n", **ids: str) -> pods.PodRow:
    body = {
        "metadata": {"name": name, "namespace": namespace, "uid": uid},
        "spec": {"nodeName": node, "containers": [{"name": each} for each in ids]},
        "status": {
            "phase": "Running",
            "containerStatuses": [
                {"name": each, "containerID": f"containerd://{id_}", "state": {"running": {}}}
                for each, id_ in ids.items()
            ],
        },
    }
    return pods.project(msgspec.convert(body, WirePod))


def said(*values: tuple[str, float, str, str]) -> list[agents.MetricSample]:
    return [
        agents.MetricSample(name, {"pod_uid": uid} | ({"container_id": container} if container else {}), value)
        for name, value, uid, container in values
    ]


AGENT = said(
    (usage.POD_USED, 20 * MIB, "u1", ""),
    (usage.POD_LIMIT, 64 * MIB, "u1", ""),
    (usage.CONTAINER_USED, 19 * MIB, "u1", "c1"),
    (usage.CONTAINER_LIMIT, INF, "u1", "c1"),
)


def spec(mode: names.Mode = names.Mode.ENFORCE, **entries: state.PodSettings) -> state.StateSpec:
    return state.StateSpec(state.ProfileRef("p", 1), mode=mode, kubepods=state.CgroupSettings("4096"), pods=entries)


def measured(**swap: str | None) -> dict[tuple[str, str], usage.WirePodMetrics]:
    containers = [
        {"name": name, "usage": {"memory": "1Mi", **({} if used is None else {"swap": used})}}
        for name, used in swap.items()
    ]
    body = {"metadata": {"name": "web", "namespace": "shop"}, "containers": containers}
    return {("shop", "web"): msgspec.convert(body, usage.WirePodMetrics)}


def one(row: pods.PodRow, **known: Any) -> usage.PodUse:
    given = {"scraped": {}, "states": {}, "measured": {}} | known
    (found,) = usage.of_pods([row], **given)
    return found


def test_the_agent_counts() -> None:
    found = one(pod("web", "u1", app="c1", side="c2"), scraped={"n": AGENT}, measured=measured(app="1Ki", side="1Ki"))
    assert (found.swap_bytes, found.limit_bytes) == (20 * MIB, 64 * MIB)
    assert found.containers == [
        usage.LimitedUse(name="app", swap_bytes=19 * MIB, limit_bytes="max", memory_bytes=MIB),
        usage.LimitedUse(name="side", swap_bytes=1024, memory_bytes=MIB),
    ]


def test_containers_of_a_pod_that_may_have_none() -> None:
    row = pod("web", "u1", app="c1", new="c2")
    told = said((usage.POD_USED, 0, "u1", ""), (usage.POD_LIMIT, 0, "u1", ""), (usage.CONTAINER_LIMIT, INF, "u1", "c1"))
    assert [each.limit_bytes for each in one(row, scraped={"n": told}).containers] == [0, 0]


def test_pods_that_an_agent_does_not_list_use_nothing_where_the_rest_of_them_does_not() -> None:
    row = pod("web", "u2", app="c1")
    assert one(row, scraped={"n": AGENT}).swap_bytes == 0
    assert one(row, scraped={"n": AGENT}).containers == [usage.LimitedUse(name="app", swap_bytes=0)]
    assert one(row, scraped={"n": [*AGENT, *said((usage.POD_USED, 5, usage.OTHER, ""))]}).swap_bytes is None
    # An agent that says nothing about pods at all.
    assert one(row, scraped={"n": []}).swap_bytes is None
    assert one(row, scraped={"other-node": AGENT}).swap_bytes is None


def test_metrics_of_the_metrics_server() -> None:
    row = pod("web", "u1", app="c1", side="c2")
    assert one(row, measured=measured(app="1Mi", side="2Mi")).swap_bytes == 3 * MIB
    # A metrics server that reports no swap, or not of all containers.
    assert one(row, measured=measured(app=None, side=None)).swap_bytes is None
    assert one(row, measured=measured(app="1Mi", side=None)).swap_bytes is None
    assert one(row, measured=measured(app="-1")).swap_bytes is None


@pytest.mark.parametrize(
    ("cpu", "millicores"), [("250m", 250), ("1500001n", 2), ("2", 2000), ("0", 0), ("", None), ("?", None)]
)
def test_cpu_and_memory(cpu: str, millicores: int | None) -> None:
    """Swap is the agent's word, these are the metrics server's."""
    usages = {"app": {"cpu": cpu, "memory": "3Ki"}, "side": {"cpu": "1m", "memory": "1Ki"}}
    body = {
        "metadata": {"name": "web", "namespace": "shop"},
        "containers": [{"name": name, "usage": each} for name, each in usages.items()],
    }
    known = {("shop", "web"): msgspec.convert(body, usage.WirePodMetrics)}
    found = one(pod("web", "u1", app="c1", side="c2"), scraped={"n": AGENT}, measured=known)
    assert (found.swap_bytes, found.memory_bytes) == (20 * MIB, 4096)
    assert found.cpu_millicores == (None if millicores is None else millicores + 1)
    assert [(each.cpu_millicores, each.memory_bytes) for each in found.containers] == [(millicores, 3072), (1, 1024)]
    node = msgspec.convert({"metadata": {"name": "n"}, "usage": usages["app"]}, usage.WireNodeMetrics)
    of_node = usage.of_node("n", [], 7, node)
    assert (of_node.cpu_millicores, of_node.memory_bytes, of_node.swap_bytes) == (millicores, 3072, None)


def test_limits_of_the_plan() -> None:
    row = pod("web", "u1", app="c1", side="c2")
    reason = names.Reason.LIMITED_SWAP
    planned = state.PodSettings(
        reason=reason, swap_max="2048", containers={"app": state.ContainerSettings(swap_max="1024")}
    )
    found = one(row, states={"n": spec(u1=planned)})
    assert found.limit_bytes == 2048
    assert [each.limit_bytes for each in found.containers] == [1024, None]
    # The limit above all pods bounds each.
    assert one(row, states={"n": spec(u1=state.PodSettings(reason=reason, swap_max="max"))}).limit_bytes == 4096
    nothing = one(row, states={"n": spec(u1=state.PodSettings(reason=reason, swap_max="0"))})
    assert [nothing.limit_bytes, *(each.limit_bytes for each in nothing.containers)] == [0, 0, 0]


def test_a_limit_that_is_not_enforced_does_not_count() -> None:
    row = pod("web", "u1", app="c1")
    planned = state.PodSettings(reason=names.Reason.LIMITED_SWAP, swap_max="2048")
    for mode in (names.Mode.AUDIT, names.Mode.RESTORE):
        assert one(row, states={"n": spec(mode, u1=planned)}).limit_bytes is None
    assert one(row, states={"n": spec(u2=planned)}).limit_bytes is None
    unwritten = state.PodSettings(reason=names.Reason.NODE_INCOMPATIBLE)
    assert one(row, states={"n": spec(u1=unwritten)}).limit_bytes is None


def test_namespaces() -> None:
    uses = [
        usage.PodUse(namespace="a", name="1", node="n", swap_bytes=5, limit_bytes=7, cpu_millicores=3, memory_bytes=9),
        usage.PodUse(namespace="a", name="2", node="n", swap_bytes=None, limit_bytes=1),
        usage.PodUse(namespace="b", name="1", node="n", limit_bytes="max"),
        usage.PodUse(namespace="b", name="2", node="n"),
        usage.PodUse(namespace="c", name="1", node="n", swap_bytes=0),
    ]
    assert usage.of_namespaces(uses) == [
        usage.NamespaceUse(
            name="a", pods=2, swap_bytes=5, limit_bytes=8, pods_unknown=1, cpu_millicores=3, memory_bytes=9
        ),
        usage.NamespaceUse(name="b", pods=2, limit_bytes="max", pods_unknown=2),
        usage.NamespaceUse(name="c", pods=1, swap_bytes=0),
    ]


def test_nodes() -> None:
    told = [
        agents.MetricSample(name, {"scope": str(value)}, value)
        for name, value in (
            (usage.NODE_TOTAL, 100.0),
            (usage.NODE_USED, 10.0),
            (usage.NODE_RESERVED, 20.0),
            (usage.NODE_ACCESSIBLE, 80.0),
            (usage.NODE_UNASSIGNED, 30.0),
            (usage.NODE_HEADROOM, 9.0),
            (usage.NODE_HEADROOM, 5.0),
            (usage.NODE_HEADROOM, 7.0),
        )
    ]
    assert usage.of_node("n", told, 7, None) == usage.NodeUse(
        name="n",
        swap_bytes=10,
        total_bytes=100,
        accessible_bytes=80,
        reserved_bytes=20,
        unassigned_bytes=30,
        headroom_bytes=5,
    )
    assert usage.of_node("n", [], None, None) == usage.NodeUse(name="n")
    assert usage.of_node("n", [], 0, None) == usage.NodeUse(name="n", swap_bytes=0, total_bytes=0)
    body = {"metadata": {"name": "n"}, "usage": {"cpu": "1m", "swap": "8Ki"}}
    assert usage.of_node("n", [], 7, msgspec.convert(body, usage.WireNodeMetrics)).swap_bytes == 8192


def test_the_agent_has_metrics_of_these_names() -> None:
    registered = {metric.name for metric in agent_usage.READINGS}
    assert registered >= usage.OF_PODS | usage.OF_NODES
    assert agent_usage.OTHER == usage.OTHER
