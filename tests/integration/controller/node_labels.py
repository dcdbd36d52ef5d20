"""The labels of nodes, and what agents report of swap devices."""

from __future__ import annotations

from tests.integration.conftest import Json
from tests.integration.controller.cluster import FACTS, STATES, Cluster

NFD, SWAP = "feature.node.kubernetes.io/memory-swap", "node.swapwarden.dev/swap"
BEHAVIOR, BACKING, ENCRYPTED = f"{SWAP}-behavior", f"{SWAP}-backing", f"{SWAP}-encrypted"
TRUSTED = "swapwarden.dev.node-restriction.kubernetes.io/encrypted-swap"
VOUCHED = "node-restriction.kubernetes.io/swap"
OWNS = "nfd.node.kubernetes.io/feature-labels"
BASE = {NFD: "true", SWAP: "true", BEHAVIOR: "Kubelet"}


def device(name: str, backing: str, *, encrypted: bool = False) -> Json:
    return {"name": name, "type": "partition", "sizeBytes": 2**29, "backing": backing, "encrypted": encrypted}


NVME, CLEAR, ZRAM = (
    device("/dev/dm-0", "NVMe", encrypted=True),
    device("/dev/sdb1", "HDD"),
    device("/dev/zram0", "Zram"),
)


def report(cluster: Cluster, node: str, *devices: Json, swap: int | None = None) -> None:
    """Be the node's agent."""
    size = sum(each["sizeBytes"] for each in devices) if swap is None else swap
    facts = {**FACTS, "swapBytes": size, "devices": list(devices)}
    code, answer = cluster.cp.request("PATCH", f"{STATES}/{node}/status", {"status": {"facts": facts}})
    assert code == 200, answer


def labels(cluster: Cluster, node: str) -> dict[str, str]:
    found: dict[str, str] = cluster.cp.get(f"/api/v1/nodes/{node}")["metadata"]["labels"]
    return {key: value for key, value in found.items() if "swap" in key and key != VOUCHED}


def patch(cluster: Cluster, node: str, **metadata: Json) -> None:
    assert cluster.cp.request("PATCH", f"/api/v1/nodes/{node}", {"metadata": metadata})[0] == 200
