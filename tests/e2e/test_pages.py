"""Commands in the pages that examine a cluster or a node: each works on a real one, and shows what the page says."""

from __future__ import annotations

import pytest

from hack.docs import commands
from tests.e2e.cgroups import TIMEOUT
from tests.e2e.conftest import Wait
from tests.e2e.provider import Node, Provider
from tests.e2e.release import Release

ME = "tests/e2e/test_pages.py"
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


def test_a_node_shows_that_its_swap_is_not_encrypted(cluster: Provider, swapwarden: Release, eventually: Wait) -> None:
    if not cluster.owns_swap:
        pytest.skip(f"the swap of {cluster.name}'s node is not the suite's own, and may be encrypted")
    (block,) = commands.run_by(ME, "docs/howto/encrypt-swap.md")

    def shown() -> list[str]:
        return next(line.split() for line in cluster.shell(block.text).stdout.splitlines() if cluster.node_name in line)

    with swapwarden.profile("e2e-encrypted") as apply:
        apply(behavior="LimitedSwap", requirements=["Encrypted"])
        eventually(lambda: shown()[-2:] == ["false", "encrypted"], "the node says what it lacks")
