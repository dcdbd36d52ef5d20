"""`kubectl swap top` against a real API server, by people with more and fewer rights."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import IO

import pytest

from tests.integration import needs
from tests.integration.cli.conftest import EVERYTHING, GIB, Cluster, Plugin, healthy

MIB = 1 << 20
READ_PODS = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]


@pytest.fixture
def shop(cluster: Cluster) -> Cluster:
    """Two pods on a node with an agent, and one on a node without."""
    cluster.node("one", swap=4 * GIB)
    cluster.node("two", swap=2 * GIB)
    queue = cluster.pod("queue", "one", "worker", "proxy", annotations={"swapwarden.dev/swap-policy": "NoPreference"})
    cluster.pod("web", "one", annotations={"swapwarden.dev/swap-policy": "Disabled"})
    db = cluster.pod("db", "two")
    cluster.state(
        "two",
        {
            "profileRef": {"name": "p", "generation": 1},
            "pods": {db: {"reason": "PolicyDisabled", "swapMax": "0"}},
        },
        healthy("p", 2 * GIB),
    )
    cluster.agent(
        "one",
        f"""# HELP swapwarden_node_swap_usage_bytes Swap in use.
swapwarden_node_swap_total_bytes {4 * GIB}
swapwarden_node_swap_usage_bytes {GIB}
swapwarden_node_swap_reserved_bytes {GIB}
swapwarden_node_swap_accessible_bytes {3 * GIB}
swapwarden_node_swap_unassigned_bytes {2 * GIB}
swapwarden_node_memory_headroom_bytes{{scope="node"}} {5 * GIB}
swapwarden_node_memory_headroom_bytes{{scope="pods"}} {GIB + GIB // 2}
swapwarden_pod_swap_usage_bytes{{pod_uid="{queue}"}} {600 * MIB}
swapwarden_pod_swap_limit_bytes{{pod_uid="{queue}"}} {GIB}
swapwarden_container_swap_usage_bytes{{pod_uid="{queue}",container_id="worker"}} {599 * MIB}
swapwarden_container_swap_limit_bytes{{pod_uid="{queue}",container_id="worker"}} {GIB}
""",
    )
    return cluster


def test_pods(shop: Cluster) -> None:
    admin = shop.user(EVERYTHING, everywhere=True)
    done = admin("top", "pods")
    assert done.returncode == 0
    # The agent lists those that use most, and of the rest it says nothing, which is that they use nothing.
    assert done.stdout == (
        "POD          SWAP       LIMIT       SWAP%\n"
        "queue       600Mi         1Gi         58%\n"
        "web             0   <unknown>   <unknown>\n"
        "db      <unknown>           0   <unknown>\n"
    )
    (note,) = done.stderr.splitlines()
    assert note.startswith("note: swap in use by some pods is not known: no agent is Ready on 1 of 2 nodes: two-")
    assert note.endswith("the cluster has no metrics.k8s.io (metrics-server)")


def test_containers_and_forms(shop: Cluster) -> None:
    admin = shop.user(EVERYTHING, everywhere=True)
    assert admin.rows("top", "po", "queue", "--containers", "-n", shop.namespace, "-o", "wide") == [
        ["queue", "worker", "599Mi", "1Gi", "58%", "NoPreference", shop.name("one")],
        ["queue", "proxy", *["<unknown>"] * 3, "NoPreference", shop.name("one")],
    ]
    (found,) = json.loads(admin("top", "pods", "queue", "-o", "json").stdout)["items"]
    assert found["swapBytes"] == 600 * MIB
    assert found["containers"][0] == {
        "name": "worker",
        "swapBytes": 599 * MIB,
        "limitBytes": GIB,
        "cpuMillicores": None,
        "memoryBytes": None,
    }
    assert admin.rows("top", "pods", "queue", "web", "-o", "name", "--sort-by=name") == [["pod/queue"], ["pod/web"]]


def test_memory_qos_is_shown_if_details_are_asked_for(shop: Cluster) -> None:
    shop.node("three")
    cache = shop.pod("cache", "three")
    state = healthy("p", 0) | {"throttled": [{"pod": cache, "count": 42, "milliseconds": 4500, "guard": "Released"}]}
    planned = {"reason": "LimitedSwap", "memoryLow": str(64 * MIB), "memoryHigh": str(96 * MIB)}
    shop.state("three", {"profileRef": {"name": "p", "generation": 1}, "pods": {cache: planned}}, state)
    admin = shop.user(EVERYTHING, everywhere=True)
    row = admin("top", "pods", "cache", "-o", "wide", "--no-headers").stdout.split()
    assert row[-5:] == ["64Mi", "96Mi", "42(4.5s,Released)", "<none>", shop.name("three")]
    (found,) = json.loads(admin("top", "pods", "cache", "-o", "json").stdout)["items"]
    assert (found["memoryQos"]["protectedBytes"], found["memoryQos"]["throttled"]) == (64 * MIB, 42)
    assert "PROTECTED" not in admin("top", "pods", "cache").stdout


def test_the_metrics_server_fills_in_for_agents(shop: Cluster) -> None:
    shop.front.measured["pods"] = [
        {
            "metadata": {"name": "db", "namespace": shop.namespace},
            "containers": [{"name": "app", "usage": {"cpu": "1m", "memory": "1Mi", "swap": "20Mi"}}],
        }
    ]
    admin = shop.user(EVERYTHING, everywhere=True)
    assert admin.rows("top", "pods")[1] == ["db", "1m", "1Mi", "20Mi", "0", "over"]
    # The others stay as their agents report them.
    assert admin.rows("top", "pods", "--sort-by=cpu")[:2] == [
        ["db", "1m", "1Mi", "20Mi", "0", "over"],
        ["queue", "<unknown>", "<unknown>", "600Mi", "1Gi", "58%"],
    ]
    assert admin.rows("top", "pods", "db", "--containers")[0] == ["db", "app", "1m", "1Mi", "20Mi", "0", "over"]
    lines = admin("top", "ns", "--no-headers").stdout.splitlines()
    assert [shop.namespace, "3", "1m", "1Mi", "620Mi", "<unknown>"] in [line.split() for line in lines]


def test_namespaces(shop: Cluster) -> None:
    admin = shop.user(EVERYTHING, everywhere=True)
    done = admin("top", "ns", "--no-headers")
    assert [shop.namespace, "3", ">=600Mi", "<unknown>"] in [line.split() for line in done.stdout.splitlines()]


def test_namespaces_by_name(shop: Cluster) -> None:
    in_release = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
        {"apiGroups": [""], "resources": ["pods/proxy"], "verbs": ["get"]},
    ]
    user = shop.user(READ_PODS, in_release=in_release)
    done = user("top", "ns", shop.namespace, "swapwarden-system", shop.namespace, "--no-headers")
    assert [line.split()[:3] for line in done.stdout.splitlines()] == [
        [shop.namespace, "3", ">=600Mi"],
        ["swapwarden-system", "1", "0"],
    ]
    # Each agent was asked once.
    assert sum("proxy" in path for path in shop.front.asked) == 1
    done = user("top", "ns", "default")
    assert (done.returncode, done.stdout) == (1, "")
    assert 'cannot list resource "pods" in API group "" in the namespace "default"' in done.stderr
    done = shop.user(EVERYTHING, everywhere=True)("top", "ns", "none-of-that-name", shop.namespace, "--no-headers")
    assert done.stdout.split()[:2] == [shop.namespace, "3"]
    assert done.stderr.endswith("No running pods found in none-of-that-name.\n")


def test_nothing_found_has_no_headers(shop: Cluster) -> None:
    for kind, told in (
        ("pods", "No running pods found."),
        ("ns", "No running pods found."),
        ("nodes", "No nodes found."),
    ):
        done = shop.admin("top", kind, "-l", "test=nobody")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", f"{told}\n")


@needs.NODES_TELL_SWAP
def test_nodes(shop: Cluster) -> None:
    admin = shop.user(EVERYTHING, everywhere=True)
    done = admin("top", "nodes", "-l", shop.selector, "--no-headers", "-o", "wide")
    assert [line.split() for line in done.stdout.splitlines()] == [
        [shop.name("one"), "1Gi", "25%", "4Gi", "3Gi", "2Gi", "1Gi", "1.5Gi"],
        [shop.name("two"), "<unknown>", "<unknown>", "2Gi", *["<unknown>"] * 4],
    ]
    assert "no agent is Ready on 1 of 2 nodes" in done.stderr
    shop.front.measured["nodes"] = [{"metadata": {"name": shop.name("two")}, "usage": {"swap": "1Gi"}}]
    assert admin.rows("top", "nodes", "-l", shop.selector)[1][:4] == [shop.name("two"), "1Gi", "50%", "2Gi"]
    shop.front.measured["nodes"][0]["usage"] |= {"cpu": "1500123n", "memory": "3Gi"}
    assert admin.rows("top", "nodes", "-l", shop.selector)[1][:5] == [shop.name("two"), "2m", "3Gi", "1Gi", "50%"]


def test_a_user_who_may_only_read_pods_of_a_namespace_sees_that_they_run(shop: Cluster) -> None:
    user = shop.user(READ_PODS)
    done = user("top", "pods", "--sort-by=name")
    assert done.returncode == 0
    assert done.stdout == (
        "POD          SWAP       LIMIT       SWAP%\n"
        "db      <unknown>   <unknown>   <unknown>\n"
        "queue   <unknown>   <unknown>   <unknown>\n"
        "web     <unknown>   <unknown>   <unknown>\n"
    )
    told = done.stderr.splitlines()
    assert len(told) == 2
    assert "limits that no agent reports are not known: nodeswapstates" in told[0]
    assert "swap in use by some pods is not known: the agents cannot be seen: pods is forbidden" in told[1]
    assert "metrics.k8s.io: pods.metrics.k8s.io is forbidden" in told[1]
    # Agents were not asked for what may not be seen.
    assert not any("proxy" in path for path in shop.front.asked)


def test_rights_in_the_agents_namespace_are_enough_for_usage(shop: Cluster) -> None:
    in_release = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
        {"apiGroups": [""], "resources": ["pods/proxy"], "verbs": ["get"]},
    ]
    user = shop.user(READ_PODS, in_release=in_release)
    assert user.rows("top", "pods", "queue") == [["queue", "600Mi", "1Gi", "58%"]]


def test_a_user_who_may_read_agents_but_not_scrape_them(shop: Cluster) -> None:
    user = shop.user(READ_PODS, everywhere=True)
    done = user("top", "pods")
    assert done.returncode == 0
    assert "the agents' metrics may not be read (get on pods/proxy): pods" in done.stderr
    # One was asked, to know that.
    assert sum("proxy" in path for path in shop.front.asked) == 1


def test_namespaces_where_only_one_may_be_seen(shop: Cluster) -> None:
    done = shop.user(READ_PODS)("top", "namespaces", "--no-headers")
    assert done.returncode == 0
    assert done.stdout.split() == [shop.namespace, "3", "<unknown>", "<unknown>"]
    assert f"only the namespace {shop.namespace} is shown: pods is forbidden" in done.stderr


@pytest.mark.parametrize("arguments", [["top", "nodes"], ["top", "pods", "-A"], ["top", "pods", "-n", "default"]])
def test_a_request_without_any_right_is_an_error(shop: Cluster, arguments: list[str]) -> None:
    done = shop.user(READ_PODS)(*arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")
    assert "is forbidden: User" in done.stderr
    assert "docs/kubectl-swap.md" in done.stderr


def test_agents_that_do_not_answer(shop: Cluster) -> None:
    shop.agent("two", None)
    done = shop.user(EVERYTHING, everywhere=True)("top", "pods")
    assert done.returncode == 0
    assert "the agents of 1 of 2 nodes gave no metrics: two-" in done.stderr


def test_following(shop: Cluster) -> None:
    name = shop.name("agent-one")
    with following(shop, "pods", "queue") as stdout:
        header, first = shown(stdout)
        assert (header[-1], first) == ("SWAP%", ["queue", "600Mi", "1Gi", "58%"])
        shop.front.metrics[name] = shop.front.metrics[name].replace(str(600 * MIB), str(700 * MIB))
        while (found := shown(stdout)[1])[1] != "700Mi":
            assert found[1] == "600Mi"


def test_programs_can_follow(shop: Cluster) -> None:
    for kind in ("nodes", "pods", "ns"):
        with following(shop, kind, "-o", "json") as stdout:
            first, second = (json.loads(document(stdout))["items"] for _ in range(2))
            assert first == second != []


@contextlib.contextmanager
def following(cluster: Cluster, *arguments: str) -> Iterator[IO[str]]:
    """The output of `kubectl swap top ... -w`, until Ctrl-C."""
    # The caller of these tests may ignore Ctrl-C, as programs do that a shell starts with `&`.
    listening = ["env", "--default-signal=INT", sys.executable, "-m", "swapwarden.cli.kubectl"]
    with subprocess.Popen(  # noqa: S603 our own words
        [*listening, "top", *arguments, "-w", "--interval=100ms"],
        env=environment(cluster.user(EVERYTHING, everywhere=True)),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield process.stdout
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 130
        finally:
            process.kill()


def environment(plugin: Plugin) -> dict[str, str]:
    return os.environ | {"KUBECONFIG": str(plugin.kubeconfig), "PYTHONUNBUFFERED": "1"}


def shown(stdout: IO[str]) -> tuple[list[str], list[str]]:
    """The next table: a header and one row, in cells."""
    header, row = stdout.readline().split(), stdout.readline().split()
    assert header[0] in {"POD", "NAME"}
    return header, row


def document(stdout: IO[str]) -> str:
    """The next one in JSON."""
    lines = [stdout.readline()]
    while lines[-1] != "}\n":
        lines.append(stdout.readline())
        assert lines[-1]
    return "".join(lines)
