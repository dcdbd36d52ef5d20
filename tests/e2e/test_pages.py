"""Commands in the pages that examine a cluster or a node: each works on a real one, and shows what the page says."""

from __future__ import annotations

import re
import sys

import pytest

from hack.docs import commands
from tests.e2e import cgroups
from tests.e2e.cgroups import MIB, TIMEOUT
from tests.e2e.conftest import Wait
from tests.e2e.provider import Node, Provider
from tests.e2e.release import Release

ME = "tests/e2e/test_pages.py"
SERVICE = 120 * MIB
"""The memory of the service in docs/howto/latency-critical.md."""
PRESSURE = "some avg10="
ON_CLUSTER = {
    "docs/runbooks/SwapwardenAgentSilent.md": ["swapwarden"],
    "docs/runbooks/SwapwardenCrdOutdated.md": ["[pod/swapwarden-controller-"],
    "docs/runbooks/SwapwardenControllerPartFailing.md": ["[pod/swapwarden-controller-"],
    "docs/runbooks/SwapwardenControllerBlind.md": ["[pod/swapwarden-controller-"],
    "docs/runbooks/SwapwardenInformerFailing.md": ["[pod/swapwarden-controller-"],
    "docs/runbooks/SwapwardenNoLeader.md": ["[pod/swapwarden-controller-"],
    "docs/runbooks/SwapwardenObjectLeftOut.md": ["[pod/swapwarden-controller-"],
    "docs/runbooks/SwapwardenWebhookFailing.md": ["pod/probe created (server dry run)", "[pod/swapwarden-webhook-"],
}
ON_NODE = {
    "docs/runbooks/SwapwardenLimitedSwapNotEngaging.md": ["kubelet.service"],
    "docs/runbooks/SwapwardenNodeThrashing.md": [PRESSURE],
    "docs/runbooks/SwapwardenSwapStallsSystem.md": [PRESSURE],
}


def check(cluster: Provider, node: Node) -> str:
    """Return the output of `swapwarden agent --check` on the node, in a container as on the page."""
    (block,) = commands.run_by(ME, "docs/node-check.md")
    return node.run(["sh", "-euc", block.text.replace("IMAGE", cluster.image)], timeout=TIMEOUT).stdout


@pytest.mark.usefixtures("swapwarden")
@pytest.mark.parametrize("page", ON_CLUSTER)
def test_in_the_cluster(page: str, cluster: Provider) -> None:
    for block, expected in zip(commands.run_by(ME, page), ON_CLUSTER[page], strict=True):
        done = cluster.shell(f"set -eu\nNODE={cluster.node_name}\n{block.text}")
        assert done.returncode == 0, done.stdout
        assert expected in done.stdout


@pytest.mark.usefixtures("swapwarden")
@pytest.mark.parametrize("page", ON_NODE)
def test_on_the_node(page: str, node: Node) -> None:
    for block, expected in zip(commands.run_by(ME, page), ON_NODE[page], strict=True):
        done = node.run(["sh", "-euc", block.text], timeout=TIMEOUT)
        assert expected in done.stdout


def test_the_check_of_a_node_finds_this_one_compatible(cluster: Provider, node: Node) -> None:
    assert "Compatible: Swapwarden can hold pods' swap limits on this node." in check(cluster, node)


def test_a_node_shows_that_its_swap_is_not_encrypted(cluster: Provider, swapwarden: Release, eventually: Wait) -> None:
    if not cluster.owns_swap:
        pytest.skip(f"the swap of {cluster.name}'s node is not the suite's own, and may be encrypted")
    (block,) = commands.run_by(ME, "docs/howto/encrypt-swap.md")

    def shown() -> list[str]:
        return next(line.split() for line in cluster.shell(block.text).stdout.splitlines() if cluster.node_name in line)

    with swapwarden.profile("e2e-encrypted") as apply:
        apply(behavior="LimitedSwap", requirements=["Encrypted"])
        eventually(lambda: shown()[-2:] == ["false", "encrypted"], "the node says what it lacks")


def test_the_memory_that_a_service_requests_stays_in_memory_beside_a_hog(
    cluster: Provider, node: Node, swapwarden: Release, eventually: Wait, capsys: pytest.CaptureFixture[str]
) -> None:
    if not cluster.owns_swap:
        pytest.skip(f"the commands fill the memory of {cluster.name}'s node")
    before, protect, after, clean = commands.run_by(ME, "docs/howto/latency-critical.md")

    def said(block: commands.Block) -> str:
        done = cluster.shell(f"set -eu\n{block.text}")
        assert done.returncode == 0, done.stdout
        return done.stdout

    def shown(resident: int, swapped: int) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\nthe service has {resident / MIB:.1f} MiB in memory and {swapped / MIB:.1f} in swap\n")

    def kills() -> int:
        return cgroups.events(node, node.kubepods)["oom_kill"]

    killed = kills()
    swapwarden.upgrade(**{"agent.kernel.vm": "true"})
    try:
        resident, swapped = map(int, said(before).split()[-2:])
        shown(resident, swapped)
        assert swapped > SERVICE / 6
        assert re.search(r"in effect .* = 136Mi", said(protect))
        resident, swapped = map(int, said(after).split()[-2:])
        shown(resident, swapped)
        assert swapped < SERVICE / 20
        assert resident > SERVICE * 0.9
        assert kills() == killed
    finally:
        cleaned = cluster.shell(clean.text)
        eventually(lambda: swapwarden.state()["spec"]["profileRef"]["name"] == "(built-in)", "no profile is left")
        swapwarden.upgrade()
    assert cleaned.returncode == 0, cleaned.stdout
