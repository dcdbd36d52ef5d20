"""Two controllers, one leader: whoever is late writes nothing."""

from __future__ import annotations

import signal
from collections.abc import Callable

from testbed.controller import Controller
from tests.integration.controller.cluster import FAST, STATES, Cluster

Eventually = Callable[[Callable[[], object], str], None]

LONG = "--lease-duration=600"
"""Far longer than any test waits for anything: who leads did not wait for the Lease to run out."""


def test_a_second_replica_takes_over_when_the_leader_is_killed(cluster: Cluster, eventually: Eventually) -> None:
    cluster.node("n7")
    with Controller(cluster.cp, FAST) as first:
        epoch = first.leads()["epoch"]
        eventually(lambda: cluster.spec("n7"), "the first one plans")
        with Controller(cluster.cp, FAST) as second:
            eventually(lambda: second.health("/readyz")[0] == 200, "the second one stands by")
            first.process.send_signal(signal.SIGKILL)
            assert second.leads()["epoch"] > epoch
            pod = cluster.pod("n7", "app", {"swapwarden.dev/swap-policy": "Disabled"})
            eventually(lambda: cluster.swap_max("n7", pod) == "0", "the second one plans")
            assert cluster.spec("n7")["epoch"] > epoch


def test_a_leader_that_wakes_up_late_writes_nothing(cluster: Cluster, eventually: Eventually) -> None:
    cluster.node("n8")
    with Controller(cluster.cp, FAST) as first:
        first.leads()
        eventually(lambda: cluster.spec("n8"), "the first one plans")
        with Controller(cluster.cp, FAST) as second:
            first.process.send_signal(signal.SIGSTOP)
            epoch = second.leads()["epoch"]
            pod = cluster.pod("n8", "app", {"swapwarden.dev/swap-policy": "Disabled"})
            eventually(lambda: cluster.swap_max("n8", pod) == "0", "the second one plans")
            first.process.send_signal(signal.SIGCONT)
            first.said("this instance does not lead any more")
            assert cluster.spec("n8")["epoch"] == epoch


def test_the_api_server_refuses_a_stale_leaders_write(cluster: Cluster, eventually: Eventually) -> None:
    cluster.node("n9")
    with Controller(cluster.cp, FAST) as running:
        epoch = running.leads()["epoch"]
        eventually(lambda: cluster.spec("n9"), "the plan")
        token = cluster.cp.token("swapwarden-system", "swapwarden-controller")
        late = {"spec": {"epoch": epoch - 1, "onUnknownPod": "Allow"}}
        status, answer = cluster.cp.request("PATCH", f"{STATES}/n9", late, token=token)
        assert status == 422
        assert "a newer controller leads" in answer["message"]
        # Someone with a later term writes: this controller sees that it was deposed, and takes a later one yet.
        newer = {"spec": {"epoch": epoch + 5}}
        assert cluster.cp.request("PATCH", f"{STATES}/n9", newer, token=token)[0] == 200
        pod = cluster.pod("n9", "app", {"swapwarden.dev/swap-policy": "Disabled"})
        eventually(lambda: cluster.swap_max("n9", pod) == "0", "planned in a later term")
        assert cluster.spec("n9")["epoch"] > epoch + 5


def test_a_clean_end_gives_the_lease_back(cluster: Cluster) -> None:
    with Controller(cluster.cp, LONG) as first:
        first.leads()
        assert first.stop() == 0
    with Controller(cluster.cp, LONG) as second:
        second.leads()
