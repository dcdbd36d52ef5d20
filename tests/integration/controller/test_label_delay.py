"""How long labels stay that are wrong, and how soon their values change."""

from __future__ import annotations

from testbed.product.controller import Controller
from tests.integration.conftest import Eventually
from tests.integration.controller.cluster import FAST, Cluster
from tests.integration.controller.node_labels import (
    BACKING,
    BASE,
    BEHAVIOR,
    CLEAR,
    ENCRYPTED,
    NVME,
    TRUSTED,
    VOUCHED,
    labels,
    patch,
    report,
)


def test_labels_stay_for_a_while_and_values_do_not(cluster: Cluster, eventually: Eventually) -> None:
    cluster.node("one")
    patch(cluster, "one", labels={VOUCHED: "encrypted"})
    options = (FAST, "--label-removal-delay=3600", f"--vouched-nodes={VOUCHED}=encrypted")
    with Controller(cluster.cp, *options) as controller:
        controller.leads()
        eventually(lambda: cluster.state("one"), "a state")
        report(cluster, "one", NVME)
        right = {**BASE, BACKING: "nvme", ENCRYPTED: "true", TRUSTED: "true"}
        eventually(lambda: labels(cluster, "one") == right, "labels")
        cluster.profile("no", {"group": "one"}, swap={"behavior": "NoSwap"})
        eventually(lambda: labels(cluster, "one") == {**right, BEHAVIOR: "NoSwap"}, "a value changes at once")
        report(cluster, "one")
        pod = cluster.pod("one", "later")
        eventually(lambda: cluster.swap_max("one", pod) == "0", "a plan of later on")
        assert labels(cluster, "one") == {**right, BEHAVIOR: "NoSwap"}
        report(cluster, "one", CLEAR)
        wrong = {BACKING: "hdd", ENCRYPTED: "false", TRUSTED: "false"}
        eventually(lambda: labels(cluster, "one") == {**right, BEHAVIOR: "NoSwap", **wrong}, "it is on again")
    # Who does not vouch any more has said so for long enough with the next leader.
    with Controller(cluster.cp, FAST, "--label-removal-delay=1"):
        eventually(lambda: TRUSTED not in labels(cluster, "one"), "nobody vouches")
