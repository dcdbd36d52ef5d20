"""Changes between two looks: of use, which may fall, and of counters, which may begin anew."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.cli.kubectl.cluster import samples, usage
from swapwarden.cli.kubectl.top import rates
from swapwarden.cli.kubectl.top.rates import OfNode, OfPod, Point
from swapwarden.policy import nodes

from tests.unit.cli.kubectl.cluster.test_usage import pod

WEB = OfPod("u1", "shop", "web")
SAID = [
    samples.Sample(usage.POD_USED, {"pod_uid": "u1"}, 20.0),
    samples.Sample(usage.CONTAINER_USED, {"pod_uid": "u1", "container_id": "c1"}, 19.0),
    samples.Sample(usage.POD_USED, {"pod_uid": usage.OTHER}, 5.0),
]
NODE = msgspec.convert({"metadata": {"name": "n", "uid": "node-1"}}, nodes.WireNode)


@pytest.mark.parametrize(
    ("before", "now", "change"),
    [
        (Point(100, 10.0), Point(300, 15.0), 40.0),
        (Point(300, 10.0), Point(100, 12.0), -100.0),
        (Point(7, 10.0), Point(7, 12.0), 0.0),
        (Point(100, 10.0, counter=True), Point(300, 12.0, counter=True), 100.0),
        (Point(7, 10.0, counter=True), Point(7, 12.0, counter=True), 0.0),
        (Point(300, 10.0, counter=True), Point(100, 12.0, counter=True), None),
        (Point(100, 10.0), Point(300, 10.0), None),
        (Point(100, 10.0), Point(300, 9.0), None),
    ],
)
def test_one_value(before: Point, now: Point, change: float | None) -> None:
    assert rates.per_second({WEB: before}, {WEB: now}).get(WEB) == change


def test_what_goes_and_comes_has_no_change() -> None:
    first, gone, back = {WEB: Point(100, 0.0)}, dict[OfPod, Point](), {WEB: Point(700, 10.0)}
    assert rates.per_second({}, first) == {}
    assert rates.per_second(first, gone) == {}
    assert rates.per_second(gone, back) == {}
    # One of the same name that was made anew.
    assert rates.per_second(first, {WEB._replace(uid="u2"): Point(700, 10.0)}) == {}


@given(st.integers(0, 2**62), st.integers(0, 2**62), st.floats(0, 1e6), st.floats(1e-3, 1e6))
def test_a_counter_never_falls(before: int, now: int, at: float, took: float) -> None:
    points = {WEB: Point(before, at, counter=True)}, {WEB: Point(now, at + took, counter=True)}
    assert all(change >= 0 for change in rates.per_second(*points).values())


def test_pods_and_containers() -> None:
    row = pod("web", "u1", app="c1", side="c2")
    silent, starting = pod("db", "u2", node="another"), pod("new", "u3", app="")
    assert rates.of_pods([row, silent, starting], {"n": SAID}, {"n": 3.0}) == {
        WEB: Point(20, 3.0),
        WEB._replace(container="app"): Point(19, 3.0),
    }
    # Where all that are not listed use nothing, neither do their containers.
    idle = rates.of_pods([pod("idle", "u9", app="c9")], {"n": SAID[:2]}, {"n": 3.0})
    assert {key.container: point.value for key, point in idle.items()} == {"": 0, "app": 0}


def test_nodes() -> None:
    told = [
        samples.Sample(usage.NODE_USED, {}, 10.0),
        samples.Sample(usage.NODE_IN, {}, 20.0),
        samples.Sample(usage.NODE_OUT, {}, 2.0**63),
        samples.Sample(usage.NODE_TOTAL, {}, 40.0),
    ]
    row = nodes.project(NODE)
    assert rates.of_nodes([row], {"n": told}, {"n": 3.0}) == {
        OfNode("node-1", "n", usage.NODE_USED): Point(10, 3.0),
        OfNode("node-1", "n", usage.NODE_IN): Point(20, 3.0, counter=True),
    }
    assert rates.of_nodes([row], {}, {}) == {}


def test_namespaces_change_by_their_pods() -> None:
    changes = {
        WEB: 5.0,
        WEB._replace(container="app"): 5.0,
        OfPod("u2", "shop", "db"): -7.0,
        OfPod("u3", "bank", "db"): 1.0,
    }
    assert rates.by_namespace(changes) == {"shop": -2.0, "bank": 1.0}
