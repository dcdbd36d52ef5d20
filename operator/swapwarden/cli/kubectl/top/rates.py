"""How fast swap in use changes, and how fast nodes swap, by two looks at what agents count. Pure.

Times are seconds of one clock, whichever; each value is of the moment at which its agent answered. What metrics.k8s.io
tells is left out: it is some seconds old, and the same until its server looks again.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

from swapwarden.cli.kubectl.cluster import samples, usage
from swapwarden.policy import nodes, pods

Key = TypeVar("Key")


class Point(NamedTuple):
    """One value at one time."""

    value: int
    """In bytes."""
    at: float
    counter: bool = False
    """Whether it never falls but where it begins anew."""


class OfPod(NamedTuple):
    """What a pod, or a container of it, has in use. By UID: another pod of the name has begun anew."""

    uid: str
    namespace: str
    name: str
    container: str = ""


class OfNode(NamedTuple):
    """One of a node's metrics."""

    uid: str
    name: str
    metric: str


Scraped = Mapping[str, Iterable[samples.Sample]]
"""What agents said, by node."""


def per_second(before: Mapping[Key, Point], now: Mapping[Key, Point]) -> dict[Key, float]:
    """Bytes per second, of what both looks have, and which did not begin anew between them."""
    found = {}
    for key, point in now.items():
        earlier = before.get(key)
        if earlier is None or point.at <= earlier.at or (point.counter and point.value < earlier.value):
            continue
        found[key] = (point.value - earlier.value) / (point.at - earlier.at)
    return found


def of_pods(rows: Iterable[pods.PodRow], scraped: Scraped, times: Mapping[str, float]) -> dict[OfPod, Point]:
    """What pods and containers have in use, as their nodes' agents said at these times."""
    told = {node: usage.OfAgent(found) for node, found in scraped.items()}
    points = {}
    for row in rows:
        agent = told.get(row.node)
        if agent is None:
            continue
        uses = {"": agent.used(row.key)}
        uses |= {one.name: agent.used_in(row.key, one.id) for one in row.containers if one.id}
        for container, used in uses.items():
            if used is not None:
                points[OfPod(row.uid, row.namespace, row.name, container)] = Point(used, times[row.node])
    return points


def of_nodes(rows: Iterable[nodes.NodeRow], scraped: Scraped, times: Mapping[str, float]) -> dict[OfNode, Point]:
    """What nodes have in use, and have swapped in and out, as their agents said at these times."""
    return {
        OfNode(row.uid, row.name, sample.name): Point(
            int(sample.value), times[row.name], counter=sample.name in usage.COUNTERS
        )
        for row in rows
        for sample in scraped.get(row.name, ())
        if sample.name in {usage.NODE_USED, *usage.COUNTERS} and sample.value < 2**63
    }


def by_namespace(changes: Mapping[OfPod, float]) -> dict[str, float]:
    """The changes of the pods of each namespace that both looks have; those that came or went count for nothing."""
    total: dict[str, float] = collections.defaultdict(float)
    for key, change in changes.items():
        if not key.container:
            total[key.namespace] += change
    return dict(total)
