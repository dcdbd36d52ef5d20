"""A cluster of its own: first without Swapwarden, then as docs/kubectl-swap.md shows it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import pytest

from hack.docs import commands
from testbed.controlplane.servers import ControlPlane
from tests.integration.cli.conftest import EVERYTHING, GIB, RELEASE, Cluster, Plugin, healthy
from tests.integration.cli.front import Front
from tests.integration.conftest import CRDS

MIB = 1 << 20
PAGE = "docs/kubectl-swap.md"
ME = "tests/integration/cli/test_pages.py"
DISK = {"name": "/dev/nvme0n1p3", "type": "partition", "sizeBytes": 4 * GIB, "backing": "NVMe", "encrypted": True}


@pytest.fixture(scope="module")
def own() -> Iterator[ControlPlane]:
    with ControlPlane() as running:
        yield running


def test_that_swapwarden_is_not_there_is_said(own: ControlPlane) -> None:
    done = Plugin(own.kubeconfig)("nodes")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: Swapwarden is not installed in this cluster")


@pytest.fixture
def shop(own: ControlPlane) -> Iterator[Cluster]:
    own.apply_crds(CRDS)
    own.create_namespace(RELEASE)
    with Front(own) as front:
        made = Cluster(own, front, "shop")
        fill(made)
        yield made


def fill(shop: Cluster) -> None:
    """Two nodes for batch work, of which one drains, and two without swap, of which one has lost its agent."""
    labels = {"node.swapwarden.dev/swap-behavior": "LimitedSwap", "pool": "batch"}
    draining = {"Applied": ("False", "Draining", "1 cgroups have more swap in use than wanted")}
    for node, used, limit, conditions in (
        # While a cgroup drains, its limit is its usage and a quarter.
        ("batch-1", 1600 * MIB, 2000 * MIB, draining),
        ("batch-2", 200 * MIB, GIB, {}),
    ):
        shop.node(node, labels, swap=4 * GIB)
        shop.state(
            node, {"profileRef": {"name": "batch", "generation": 1}}, healthy("batch", 4 * GIB, DISK, **conditions)
        )
        queue = shop.pod(f"queue-{node[-1]}", node, "worker", "proxy")
        web = shop.pod(f"web-{node[-1]}", node, annotations={"swapwarden.dev/swap-policy": "Disabled"})
        pods: dict[str, tuple[int, int | str]] = {queue: (used, limit), web: (0, 0), shop.agent(node): (0, "+Inf")}
        containers = {(queue, "worker"): (used, limit), (queue, "proxy"): (0, limit)}
        total = {"total": 4 * GIB, "usage": used + 100 * MIB, "reserved": GIB, "accessible": 3 * GIB, "unassigned": GIB}
        shop.front.metrics[f"agent-{node}"] = metrics(total, pods, containers)
    built_in = {"profileRef": {"name": "(built-in)"}}
    for node in ("web-1", "web-2"):
        shop.node(node)
        shop.state(node, built_in, healthy("", 0) | built_in)
    agent = shop.agent("web-1")
    nothing = dict.fromkeys(("total", "usage", "reserved", "accessible", "unassigned"), 0)
    shop.front.metrics["agent-web-1"] = metrics(nothing, {agent: (0, "+Inf")}, {})


def metrics(
    node: dict[str, int], pods: dict[str, tuple[int, int | str]], containers: dict[tuple[str, str], tuple[int, int]]
) -> str:
    """Metrics of an agent: of its node by the words in the names, of pods and containers usage and limit."""
    lines = [f"swapwarden_node_swap_{word}_bytes {value}" for word, value in node.items()]
    for uid, (used, limit) in pods.items():
        lines.append(f'swapwarden_pod_swap_usage_bytes{{pod_uid="{uid}"}} {used}')
        lines.append(f'swapwarden_pod_swap_limit_bytes{{pod_uid="{uid}"}} {limit}')
    for (uid, container), (used, limit) in containers.items():
        labels = f'pod_uid="{uid}",container_id="{container}"'
        lines.append(f"swapwarden_container_swap_usage_bytes{{{labels}}} {used}")
        lines.append(f"swapwarden_container_swap_limit_bytes{{{labels}}} {limit}")
    return "\n".join(lines)


def test_commands_print_the_shown_lines(shop: Cluster) -> None:
    admin = shop.user(EVERYTHING, everywhere=True)
    blocks = commands.run_by(ME, PAGE)
    printed = []
    for block in blocks:
        lines = []
        for command, _ in block.steps():
            argv = shlex.split(command)
            assert argv[:2] == ["kubectl", "swap"]
            done = admin(*argv[2:])
            lines += [f"$ {command}", *(done.stdout + done.stderr).splitlines()]
        printed.append("\n".join(lines))
    assert [block.text for block in blocks] == printed, "\n\n".join(printed)
