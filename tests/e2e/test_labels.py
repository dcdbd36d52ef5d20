"""The node's labels follow its swap: there as soon as swap is on, gone only when it has been off for long."""

from __future__ import annotations

import time

import pytest

from tests.e2e.cgroups import TIMEOUT
from tests.e2e.conftest import Wait
from tests.e2e.provider import Node, Provider
from tests.e2e.release import LABEL_REMOVAL_SECONDS, Release

LABELS = {"feature.node.kubernetes.io/memory-swap", "node.swapwarden.dev/swap"}


def test_labels_follow_swapon_and_swapoff(cluster: Provider, node: Node, swapwarden: Release, eventually: Wait) -> None:
    if not cluster.owns_swap:
        pytest.skip(f"the swap of the provider {cluster.name} is not the suite's own, and this turns it off")

    def labels() -> set[str]:
        of_node = cluster.get(f"/api/v1/nodes/{cluster.node_name}")["metadata"]["labels"]
        return {key for key in LABELS if of_node.get(key) == "true"}

    def swap_bytes() -> int:
        return int(swapwarden.state().get("status", {}).get("facts", {}).get("swapBytes", -1))

    eventually(lambda: labels() == LABELS, "a node with swap has both labels")
    devices = [line.split()[0] for line in node.read("/proc/swaps").splitlines()[1:]]
    assert devices
    try:
        node.run(["swapoff", "--all"], timeout=TIMEOUT)
        eventually(lambda: swap_bytes() == 0, "the agent says that swap is off")
        reported = time.monotonic()
        assert labels() == LABELS
        eventually(lambda: labels() == set(), "the labels go")
        # Between the report and what is seen here lies no less than the delay, but for what questions may take.
        assert time.monotonic() - reported > LABEL_REMOVAL_SECONDS - 10
    finally:
        node.run(["swapon", *devices], timeout=TIMEOUT)
    eventually(lambda: labels() == LABELS, "the labels are back with the swap")
    assert swap_bytes() > 0
