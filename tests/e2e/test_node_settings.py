"""What a profile says of the node's kernel, where the chart gives the agent the files for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from testbed import commands
from tests.e2e.cgroups import TIMEOUT
from tests.e2e.conftest import Wait
from tests.e2e.provider import Node, Provider
from tests.e2e.release import Release
from tests.e2e.test_pages import check

PAGE = "docs/howto/eviction.md"
TOO_LATE = "EvictionBeforeSwap"
ZSWAP = Path("/sys/module/zswap/parameters")
SWAPPINESS = Path("/proc/sys/vm/swappiness")
WANTED = {"enabled": "Y", "compressor": "lzo-rle", "max_pool_percent": "30"}
# What a cgroup of its own has no room for; text, as zswap keeps what can be compressed.
SWAP_TEXT = """
systemd-run --quiet --wait --property=MemoryMax=16M sh -c 'seq 5000000 > /dev/shm/e2e-zswap; rm /dev/shm/e2e-zswap'"""


@pytest.fixture(scope="module")
def given(cluster: Provider, swapwarden: Release) -> Iterator[None]:
    """An agent with the files of /proc/sys/vm and of zswap."""
    if not cluster.owns_swap:
        pytest.skip(f"the kernel of {cluster.name}'s node is not the suite's own")
    try:
        swapwarden.upgrade(**{"agent.kernel.vm": "true", "agent.kernel.zswap": "true"})
        yield
    finally:
        # Values that are not given have their default again.
        swapwarden.upgrade()


@pytest.mark.usefixtures("given")
def test_zswap_and_swappiness_are_set_and_put_back(node: Node, swapwarden: Release, eventually: Wait) -> None:
    def held() -> dict[str, str]:
        return {name: node.read(ZSWAP / name).strip() for name in WANTED}

    def swappiness() -> str:
        return node.read(SWAPPINESS).strip()

    def swapped_to_zswap() -> int:
        return int(dict(line.split() for line in node.read("/proc/vmstat").splitlines())["zswpout"])

    before = held(), swappiness()
    assert not before[0].items() & WANTED.items()
    kernel = {"swappiness": 70, "zswap": {"enabled": True, "compressor": "lzo-rle", "maxPoolPercent": 30}}
    with swapwarden.profile("e2e-kernel", kernel=kernel) as apply:
        apply(behavior="Kubelet")
        eventually(lambda: (held(), swappiness()) == (WANTED, "70"), "the kernel holds what the profile says")
        eventually(lambda: swapwarden.condition("NodeSettings") == "True/AsSpecified", "the agent says so")
        unused = swapped_to_zswap()
        node.run(["sh", "-c", SWAP_TEXT], timeout=TIMEOUT)
        assert swapped_to_zswap() > unused
    eventually(lambda: (held(), swappiness()) == before, "what was there is put back")
    unused = swapped_to_zswap()
    node.run(["sh", "-c", SWAP_TEXT], timeout=TIMEOUT)
    assert swapped_to_zswap() == unused


@pytest.mark.usefixtures("given")
def test_the_kernel_swaps_before_the_kubelet_evicts_with_the_watermarks_that_the_page_gives(
    cluster: Provider, node: Node, swapwarden: Release, eventually: Wait
) -> None:
    documents = [yaml.safe_load(each.text) for each in commands.blocks(PAGE) if each.language == "yaml"]
    (spec,) = [each["spec"] for each in documents if each["kind"] == "NodeSwapProfile"]
    assert TOO_LATE in check(cluster, node)
    with swapwarden.profile("e2e-watermarks", kernel=spec["kernel"]) as apply:
        apply(**spec["swap"])
        eventually(lambda: swapwarden.condition("NodeSettings") == "True/AsSpecified", "the settings are in force")
        assert TOO_LATE not in check(cluster, node)
    eventually(lambda: TOO_LATE in check(cluster, node), "it is as it was")
