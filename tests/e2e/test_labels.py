"""The node's labels follow its swap: there as soon as swap is on, gone only when it has been off for long.

And the real scheduler follows them: a pod that is Required to have swap waits for a node that can give it.
"""

from __future__ import annotations

import time

import pytest

from tests.e2e.cgroups import TIMEOUT
from tests.e2e.conftest import Namespace, Wait
from tests.e2e.provider import Node, Provider
from tests.e2e.release import LABEL_REMOVAL_SECONDS, Release

REQUIRED = {"annotations": {"swapwarden.dev/swap-policy": "Required"}}
BACKING, ENCRYPTED = "node.swapwarden.dev/swap-backing", "node.swapwarden.dev/swap-encrypted"
RESTART = "KubeletRestartNeeded"
LABELS = {"feature.node.kubernetes.io/memory-swap", "node.swapwarden.dev/swap"}


def test_labels_follow_swapon_and_swapoff_and_pods_follow_labels(
    cluster: Provider, node: Node, swapwarden: Release, namespace: Namespace, eventually: Wait
) -> None:
    if not cluster.owns_swap:
        pytest.skip(f"the swap of the provider {cluster.name} is not the suite's own, and this turns it off")

    def labels() -> set[str]:
        of_node = cluster.get(f"/api/v1/nodes/{cluster.node_name}")["metadata"]["labels"]
        return {key for key in LABELS if of_node.get(key) == "true"}

    def keys() -> set[str]:
        return set(cluster.get(f"/api/v1/nodes/{cluster.node_name}")["metadata"]["labels"])

    def swap_bytes() -> int:
        return int(swapwarden.state().get("status", {}).get("facts", {}).get("swapBytes", -1))

    def found() -> str:
        texts = [swapwarden.metrics(pod["metadata"]["name"], "controller") for pod in swapwarden.pods("controller")]
        return "".join(line for text in texts for line in text.splitlines() if "controller_node_problem{" in line)

    # Kubelets before 1.33 do not report it.
    told = "swap" in cluster.get(f"/api/v1/nodes/{cluster.node_name}")["status"]["nodeInfo"]
    eventually(lambda: labels() == LABELS, "a node with swap has both labels")
    assert RESTART not in found()
    eventually(lambda: {BACKING, ENCRYPTED} <= keys(), "the agent sees the disks under the swap")
    devices = [line.split()[0] for line in node.read("/proc/swaps").splitlines()[1:]]
    assert devices
    try:
        node.run(["swapoff", "--all"], timeout=TIMEOUT)
        eventually(lambda: swap_bytes() == 0, "the agent says that swap is off")
        reported = time.monotonic()
        assert labels() == LABELS
        if told:
            eventually(lambda: RESTART in found(), "the kubelet keeps the swap that it counted when it started")
        eventually(lambda: labels() == set(), "the labels are removed")
        eventually(lambda: not {BACKING, ENCRYPTED} & keys(), "all of them")
        # At least the delay lies between the report and this moment, less the time that questions may take.
        assert time.monotonic() - reported > LABEL_REMOVAL_SECONDS - 10
        namespace.create_pod("later", metadata=REQUIRED, nodeName=None)
        eventually(lambda: namespace.scheduled("later").get("reason") == "Unschedulable", "no node is fit for the pod")
        assert "didn't match Pod's node affinity/selector" in namespace.scheduled("later")["message"]
    finally:
        node.run(["swapon", *devices], timeout=TIMEOUT)
    eventually(lambda: labels() == LABELS, "the labels are back with the swap")
    assert swap_bytes() > 0
    eventually(lambda: RESTART not in found(), "the node has the swap that the kubelet counted")
    later = namespace.wait_ready("later")
    assert later["spec"]["nodeName"] == cluster.node_name
    assert later["spec"]["nodeSelector"] == {"node.swapwarden.dev/swap": "true"}


@pytest.mark.usefixtures("swapwarden")
def test_a_pod_that_needs_swap_gets_to_a_node_with_swap(
    cluster: Provider, namespace: Namespace, eventually: Wait
) -> None:
    def labelled() -> set[str]:
        selector = "labelSelector=node.swapwarden.dev/swap%3Dtrue"
        return {each["metadata"]["name"] for each in cluster.get(f"/api/v1/nodes?{selector}")["items"]}

    eventually(labelled, "a node has the label")
    namespace.create_pod("needs-swap", metadata=REQUIRED, nodeName=None)
    pod = namespace.wait_ready("needs-swap")
    assert pod["spec"]["nodeSelector"] == {"node.swapwarden.dev/swap": "true"}
    assert pod["spec"]["nodeName"] in labelled()
