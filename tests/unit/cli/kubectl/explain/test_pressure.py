from __future__ import annotations

import datetime
from typing import Any

import msgspec
import pytest
from swapwarden.api import state
from swapwarden.cli.kubectl.explain import model, screen
from swapwarden.policy.observed.pods import WirePod
from swapwarden.policy.pressure import thresholds

from tests.unit.cli.kubectl.explained import MI, container, planned, pod, profile, reported, seen

NOW = datetime.datetime(2026, 1, 1, 2, tzinfo=datetime.UTC)
OBSERVED = profile(pressure=thresholds.Pressure("400Mi", "800Mi", 5, 40, 10))
# LimitedSwap gives it 256 MiB.
MINE = pod(container(request="512Mi"))
OTHER = pod(container(request="512Mi"), uid="uid-2", name="other")
THIRD = pod(container(request="512Mi"), uid="uid-3", name="third")


def explained(*others: WirePod, mine: WirePod = MINE, **sizes: int) -> model.PodExplanation:
    """The pod on a node where an agent reports this memory of pods, in MiB."""
    found = [state.PressuredPod(uid.replace("_", "-"), size * MI, 100 * MI) for uid, size in sizes.items()]
    report = state.PressureReport(1, "Headroom", "Node", 310 * MI, pods=found) if sizes else None
    node_state = reported(planned(mine, OBSERVED), pressure=report)
    return model.explain(seen(mine, OBSERVED, state=node_state, neighbours=others))


def test_nothing_is_said_without_pressure() -> None:
    found = explained(OTHER)
    assert found.pressure is None
    assert "PRESSURE" not in screen.text(found, NOW)


def test_the_place_of_a_pod_among_those_that_may_be_evicted_with_its_sums() -> None:
    found = explained(OTHER, THIRD, uid_1=700, uid_2=900, uid_3=10)
    assert found.pressure is not None
    sums = "usage 800Mi (memory 700Mi + swap 100Mi) > request 512Mi + swap 256Mi; priority 0"
    text = f"node headroom 310Mi < 400Mi; this pod is number 2 of 2 that may be evicted: {sums}"
    assert msgspec.to_builtins(found.pressure) == {
        "text": text,
        "rank": 2,
        "usage": 800 * MI,
        "request": 512 * MI,
        "swap": 256 * MI,
    }
    assert f"PRESSURE   {text}" in screen.text(found, NOW)
    first = explained(OTHER, uid_1=1000, uid_2=900).pressure
    assert first is not None
    assert (first.rank, "this pod would be evicted first: usage 1100Mi" in first.text) == (1, True)


@pytest.mark.parametrize(
    ("sizes", "fields", "reason", "words"),
    [
        ({"uid_1": 600}, {}, "WithinGrant", "it keeps within its memory request and its swap: usage 700Mi"),
        ({"uid_2": 900}, {}, "NotMeasured", "it is not among the node's largest pods"),
        ({"uid_1": 900}, {"ownerReferences": []}, "Unmanaged", "no controller would replace it: usage 1000Mi"),
    ],
)
def test_why_a_pod_is_spared(sizes: dict[str, int], fields: dict[str, Any], reason: str, words: str) -> None:
    mine = pod(container(request="512Mi"), **fields)
    found = explained(OTHER, mine=mine, **sizes).pressure
    assert found is not None
    assert (found.rank, found.spared) == (None, reason)
    assert f"; this pod would not be evicted: {words}" in found.text


def test_the_pod_that_is_evicted_now() -> None:
    node_state = reported(planned(MINE, OBSERVED), pressure=state.PressureReport(1, "Headroom", "Node", 310 * MI))
    assert node_state.spec is not None
    assert node_state.spec.pressure is not None
    for uid, text in (("uid-1", "this pod is being evicted"), ("uid-2", "this pod would not be evicted: it is not")):
        going = msgspec.structs.replace(node_state.spec.pressure, victim=state.EvictedPod(uid, "a", "p", 1))
        spec = msgspec.structs.replace(node_state.spec, pressure=going)
        found = model.explain(seen(MINE, OBSERVED, state=msgspec.structs.replace(node_state, spec=spec))).pressure
        assert found is not None
        assert f"; {text}" in found.text


def test_namespaces_that_the_profile_excludes() -> None:
    spared = thresholds.Eviction(excluded=frozenset({MINE.metadata.namespace}))
    excluding = profile(pressure=thresholds.Pressure("400Mi", "800Mi", 5, 40, 10, eviction=spared))
    report = state.PressureReport(1, "Headroom", "Node", pods=[state.PressuredPod("uid-1", 900 * MI)])
    found = model.explain(seen(MINE, excluding, state=reported(planned(MINE, excluding), pressure=report))).pressure
    assert found is not None
    assert found.spared == "NamespaceExcluded"


def test_a_bare_pod_where_the_profile_has_such_pods_evicted() -> None:
    mine = pod(container(request="512Mi"), ownerReferences=[])
    bounds = thresholds.Eviction(unmanaged=True)
    evicting = profile(pressure=thresholds.Pressure("400Mi", "800Mi", 5, 40, 10, eviction=bounds))
    report = state.PressureReport(1, "Headroom", "Node", pods=[state.PressuredPod("uid-1", 900 * MI)])
    node_state = reported(planned(mine, evicting), pressure=report)
    found = model.explain(seen(mine, evicting, state=node_state, neighbours=(OTHER,))).pressure
    assert found is not None
    assert (found.rank, found.spared) == (1, None)


def test_without_the_right_to_list_pods_a_pod_has_no_rank() -> None:
    report = state.PressureReport(1, "Headroom", "Node", pods=[state.PressuredPod("uid-1", 900 * MI)])
    node_state = reported(planned(MINE, OBSERVED), pressure=report)
    found = model.explain(seen(MINE, OBSERVED, state=node_state)).pressure
    assert found is not None
    assert found.rank is None
    assert "this pod may be evicted: usage 900Mi" in found.text


def test_a_neighbour_that_cannot_be_read_hides_nothing() -> None:
    broken = pod(container(request="lots"), uid="uid-4")
    found = explained(broken, OTHER, uid_1=700, uid_2=900, uid_4=1500).pressure
    assert found is not None
    assert found.rank == 2
