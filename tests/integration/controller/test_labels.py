"""Which labels a node carries for what its agent reports, and for how long."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testbed.product.controller import Controller
from tests.integration import needs
from tests.integration.conftest import Eventually
from tests.integration.controller.cluster import FAST, PROFILES, Cluster
from tests.integration.controller.node_labels import (
    BACKING,
    BASE,
    BEHAVIOR,
    CLEAR,
    ENCRYPTED,
    NFD,
    NVME,
    OWNS,
    TRUSTED,
    VOUCHED,
    ZRAM,
    device,
    labels,
    patch,
    report,
)


@pytest.fixture(scope="module")
def controller(cluster: Cluster) -> Iterator[Controller]:
    """One that takes labels away at once, as good as."""
    with Controller(cluster.cp, FAST, "--label-removal-delay=1", f"--vouched-nodes={VOUCHED}=encrypted") as running:
        running.leads()
        yield running


@pytest.mark.usefixtures("controller")
def test_labels_follow_the_devices(cluster: Cluster, eventually: Eventually) -> None:
    cluster.node("one")
    eventually(lambda: cluster.state("one"), "a state")
    for devices, backing, encrypted in (
        ([NVME], "nvme", "true"),
        ([NVME, ZRAM], "nvme_zram", "false"),
        ([NVME, CLEAR], "hdd_nvme", "false"),
        ([device("/a long name/" * 15, "something new")], "unknown", "false"),
    ):
        report(cluster, "one", *devices)
        wanted = {**BASE, BACKING: backing, ENCRYPTED: encrypted, TRUSTED: "false"}
        eventually(lambda wanted=wanted: labels(cluster, "one") == wanted, backing)  # type: ignore[misc] # a default has no type
    report(cluster, "one")
    eventually(lambda: labels(cluster, "one") == {}, "swap is off, and has been for long")


@needs.NODES_TELL_SWAP
@pytest.mark.usefixtures("controller")
def test_the_behavior_in_force_is_a_label(cluster: Cluster, eventually: Eventually) -> None:
    cluster.node("one")
    cluster.profile("told", {"group": "one"}, swap={"behavior": "LimitedSwap"})
    for change, behavior in (
        ({}, "LimitedSwap"),
        ({"swap": {"behavior": "WorkloadControlled"}}, "WorkloadControlled"),
        ({"mode": "Audit"}, "Kubelet"),
    ):
        assert cluster.cp.request("PATCH", f"{PROFILES}/told", {"spec": change})[0] == 200
        eventually(lambda behavior=behavior: labels(cluster, "one").get(BEHAVIOR) == behavior, behavior)  # type: ignore[misc] # a default has no type
    assert (
        cluster.cp.request("PATCH", f"{PROFILES}/told", {"spec": {"mode": "Enforce", "swap": {"behavior": "NoSwap"}}})[
            0
        ]
        == 200
    )
    eventually(lambda: labels(cluster, "one") == {NFD: "true", BEHAVIOR: "NoSwap"}, "no pod gets any")


@pytest.mark.usefixtures("controller")
def test_the_trusted_label_needs_the_administrators_word(cluster: Cluster, eventually: Eventually) -> None:
    for name in ("one", "two"):
        cluster.node(name)
        eventually(lambda name=name: cluster.state(name), "a state")  # type: ignore[misc] # a default has no type
        report(cluster, name, NVME)
    patch(cluster, "two", labels={VOUCHED: "encrypted"})
    eventually(lambda: labels(cluster, "two").get(TRUSTED) == "true", "the word of both")
    eventually(lambda: labels(cluster, "one").get(TRUSTED) == "false", "the word of the node alone")
    report(cluster, "two", NVME, CLEAR)
    eventually(lambda: labels(cluster, "two").get(TRUSTED) == "false", "some of it is not encrypted")
    report(cluster, "two", NVME)
    eventually(lambda: labels(cluster, "two").get(TRUSTED) == "true", "the word of both again")
    patch(cluster, "two", labels={VOUCHED: None})
    eventually(lambda: labels(cluster, "two").get(TRUSTED) == "false", "the administrator's word is taken back")


@pytest.mark.usefixtures("controller")
def test_what_someone_writes_over_a_label_is_put_right(cluster: Cluster, eventually: Eventually) -> None:
    cluster.node("one")
    eventually(lambda: cluster.state("one"), "a state")
    report(cluster, "one", CLEAR)
    right = {**BASE, BACKING: "hdd", ENCRYPTED: "false", TRUSTED: "false"}
    eventually(lambda: labels(cluster, "one") == right, "labels")
    patch(cluster, "one", labels={ENCRYPTED: "true", TRUSTED: "true", BACKING: None})
    eventually(lambda: labels(cluster, "one") == right, "the same labels")


@needs.NODES_TELL_SWAP
@pytest.mark.usefixtures("controller")
def test_labels_that_nfd_notes_as_its_own_are_left_to_it(cluster: Cluster, eventually: Eventually) -> None:
    cluster.node("one")
    eventually(lambda: cluster.state("one"), "a state")
    patch(
        cluster, "one", annotations={OWNS: "cpu-x,memory-swap,node.swapwarden.dev/swap-backing"}, labels={BACKING: "x"}
    )
    report(cluster, "one", CLEAR)
    eventually(lambda: labels(cluster, "one").get(ENCRYPTED) == "false", "the other labels")
    assert labels(cluster, "one")[BACKING] == "x"
    report(cluster, "one")
    eventually(lambda: labels(cluster, "one").keys() == {NFD, BACKING}, "the others go")
    patch(cluster, "one", annotations={OWNS: "cpu-x"})
    eventually(lambda: labels(cluster, "one") == {}, "also those that it has given up")
