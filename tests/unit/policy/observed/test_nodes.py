from __future__ import annotations

from typing import Any

import msgspec
import pytest
from swapwarden.api import names, quantity, state
from swapwarden.policy.observed import nodes


def project(status: dict[str, Any]) -> nodes.NodeRow:
    document = {"metadata": {"name": "n", "uid": "u", "labels": {"a": "b"}}, "status": status}
    return nodes.project(msgspec.json.decode(msgspec.json.encode(document), type=nodes.WireNode))


def test_what_a_node_says() -> None:
    row = project({"nodeInfo": {"swap": {"capacity": 536866816}}, "capacity": {"memory": "2012100Ki", "cpu": "2"}})
    assert row == nodes.NodeRow(
        "n", "u", {"a": "b"}, swap_bytes=536866816, memory_bytes=2012100 * 1024, reports_swap=True
    )
    assert nodes.facts(row) == nodes.NodeFacts(
        compatible=True, swap_bytes=536866816, memory_bytes=2012100 * 1024, reported=False
    )


def test_a_node_without_swap_says_nothing_of_it() -> None:
    assert (project({"nodeInfo": {}, "capacity": {"memory": "1Gi"}}).swap_bytes, project({}).memory_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("kind", "status", "found"),
    [("MemoryPressure", "True", True), ("MemoryPressure", "Unknown", False), ("DiskPressure", "True", False)],
)
def test_the_memory_pressure_that_the_kubelet_sees(kind: str, status: str, found: bool) -> None:
    assert project({"conditions": [{"type": kind, "status": status}]}).memory_pressure is found


SWAP = "feature.node.kubernetes.io/memory-swap"


@pytest.mark.parametrize(
    ("annotations", "nfd"),
    [
        ({"nfd.node.kubernetes.io/feature-labels": "cpu-model.id,memory-swap,storage-nonrotationaldisk"}, {SWAP}),
        ({"two.nfd.node.kubernetes.io/feature-labels": "memory-swap"}, {SWAP}),
        ({"nfd.node.kubernetes.io/feature-labels": "memory-numa,memory-swap.behavior"}, set()),
        (
            {
                "nfd.node.kubernetes.io/feature-labels": "memory-swap,node.swapwarden.dev/swap,example.org/swap",
                "two.nfd.node.kubernetes.io/feature-labels": "node.swapwarden.dev/swap-backing",
            },
            {SWAP, "node.swapwarden.dev/swap", "node.swapwarden.dev/swap-backing"},
        ),
        # It does not set labels of this domain, and must not keep them from those who rely on them.
        ({"nfd.node.kubernetes.io/feature-labels": names.VOUCHED_LABEL}, set()),
        ({"example.org/feature-labels": "memory-swap"}, set()),
        ({}, set()),
    ],
)
def test_which_labels_nfd_keeps_on_the_node(annotations: dict[str, str], nfd: set[str]) -> None:
    document = {"metadata": {"name": "n", "annotations": annotations}}
    assert nodes.project(msgspec.convert(document, nodes.WireNode)).nfd == nfd


def test_what_a_node_offers_of_the_extended_resource() -> None:
    assert project({"capacity": {"memory": "1Gi"}}).swap_resource is None
    assert project({"capacity": {"swapwarden.dev/swap": "0"}}).swap_resource == 0
    assert project({"capacity": {"swapwarden.dev/swap": "3Gi"}}).swap_resource == 3 * 2**30


def test_a_memory_capacity_that_is_none() -> None:
    with pytest.raises(quantity.QuantityError, match="much"):
        project({"capacity": {"memory": "much"}})


@pytest.mark.parametrize(
    ("version", "controller", "compatible"), [(2, True, True), (2, False, False), (1, True, False), (0, False, False)]
)
def test_the_agents_facts_take_precedence_over_the_nodes(version: int, *, controller: bool, compatible: bool) -> None:
    device = state.SwapDevice("/dev/zram0", "partition", 1)
    found = state.Facts(
        cgroup_version=version,
        swap_controller=controller,
        swap_bytes=1,
        memory_bytes=2,
        page_size=16384,
        devices=[device],
    )
    row = project({"nodeInfo": {"swap": {"capacity": 5}}, "capacity": {"memory": "5"}})
    assert nodes.facts(row, found) == nodes.NodeFacts(
        compatible, swap_bytes=1, memory_bytes=2, page_size=16384, devices=(device,), kubelet_swap_bytes=5
    )


def test_a_taint_is_found_among_others() -> None:
    def place(*keys: str) -> int | None:
        taints = [{"key": key, "effect": "NoSchedule"} for key in keys]
        wire = msgspec.convert({"metadata": {"name": "n"}, "spec": {"taints": taints}}, nodes.WireNode)
        return nodes.project(wire).place("node.swapwarden.dev/agent-not-ready")

    assert place("a", "node.swapwarden.dev/agent-not-ready", "b") == 1
    assert place("a", "b") is None
    assert place() is None


@pytest.mark.parametrize(
    ("version", "capacity", "swap", "counted"),
    [
        ("v1.36.3", 5, 5, None),
        ("v1.36.3", 5, 0, 5),
        ("v1.36.3", 0, 7, 0),
        ("v1.33.0-rc.1", 0, 7, 0),
        ("v1.32.9", 0, 7, None),  # it never says
        ("v1.32.9", 5, 7, 5),  # it does after all
        ("", 0, 7, None),
        ("nonsense", 0, 7, None),
    ],
)
def test_swap_that_the_kubelet_has_not_counted(version: str, capacity: int, swap: int, counted: int | None) -> None:
    row = project({"nodeInfo": {"kubeletVersion": version, "swap": {"capacity": capacity}}})
    assert nodes.facts(row).kubelet_swap_bytes is None
    found = state.Facts(cgroup_version=2, swap_controller=True, swap_bytes=swap, memory_bytes=1)
    assert nodes.facts(row, found).kubelet_swap_bytes == counted
