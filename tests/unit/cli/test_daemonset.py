"""Where a DaemonSet has no ready pod."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from swapwarden.cli import daemonset
from swapwarden.policy.observed.pods import WirePod

DAEMONS: dict[str, Any] = {"metadata": {"name": "d", "uid": "d", "generation": 2}}


def daemons(*, desired: int, ready: int = 0, observed: int = 2) -> daemonset.DaemonSet:
    status = {"observedGeneration": observed, "desiredNumberScheduled": desired, "numberReady": ready}
    return daemonset.DAEMONS.decode(msgspec.json.encode({**DAEMONS, "status": status}))


def pod(node: str, *, ready: bool, owner: str = "d", bound: bool = True) -> WirePod:
    fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
    required = {"nodeSelectorTerms": [{"matchFields": fields}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    found: WirePod = msgspec.convert(
        {
            "metadata": {"name": "p", "ownerReferences": [{"uid": owner}]},
            "spec": {"nodeName": node} if bound else {"affinity": affinity},
            "status": {"conditions": [{"type": "Ready", "status": "True" if ready else "False"}]},
        },
        WirePod,
    )
    return found


def test_nodes_whose_pod_is_not_ready_are_named_also_before_it_is_scheduled() -> None:
    found = daemonset.missing(
        daemons(desired=5, ready=1),
        [
            pod("a", ready=True),
            pod("c", ready=False),
            pod("b", ready=False, bound=False),
            pod("x", ready=False, owner="e"),
        ],
    )
    assert found == daemonset.Missing(("b", "c"), without_pod=2)
    lines = list(daemonset.report(found, "work"))
    assert "4" in lines[0]
    assert [line.strip() for line in lines[1:3]] == ["b", "c"]
    assert "2" in lines[3]


def test_a_node_with_an_older_pod_that_is_not_ready_is_done_with_one_that_is() -> None:
    assert not daemonset.missing(daemons(desired=1, ready=1), [pod("a", ready=False), pod("a", ready=True)])


@pytest.mark.parametrize(("observed", "ready", "done"), [(1, 3, False), (2, 2, False), (2, 3, True), (2, 4, True)])
def test_a_status_of_an_earlier_generation_does_not_count(observed: int, ready: int, *, done: bool) -> None:
    assert daemons(desired=3, ready=ready, observed=observed).is_ready is done


def test_without_nodes_there_is_nothing_to_wait_for() -> None:
    assert daemons(desired=0).is_ready
    (line,) = daemonset.report(daemonset.Missing(), "work")
    assert "work" in line
