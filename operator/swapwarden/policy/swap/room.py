"""Choose the pods that have room in a node's plan, if they are too many or too large for one object.

The API server keeps pods that no kubelet ever runs, and everyone who can create pods can create thousands of them for
one node. So pods that the kubelet has accepted come first: their number is bounded, and only the kubelet writes
status.startTime. Among these, and among the others, namespaces share the room: the one with least is served next, so
that a namespace that needs less than its share gets all of it, whatever others request.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable

from swapwarden.policy.observed import pods
from swapwarden.policy.swap import limits


def share(
    rows: Iterable[pods.PodRow], room: int, cost: Callable[[pods.PodRow], int] = lambda _: 1
) -> tuple[list[pods.PodRow], list[pods.PodRow]]:
    """Split pods into those that have room and those that do not, each in the order in which they are served.

    `cost` is a pod's share of `room`. A pod that is too large for the rest does not end its namespace's turn. Within
    one namespace, pods that must not swap come first, then earlier accepted ones, then older ones.
    """
    kept: list[pods.PodRow] = []
    left: list[pods.PodRow] = []
    started: dict[str, list[pods.PodRow]] = {}
    waiting: dict[str, list[pods.PodRow]] = {}
    for row in rows:
        (started if row.started else waiting).setdefault(row.namespace, []).append(row)
    for tier in (started, waiting):
        turns = [(0, namespace) for namespace in sorted(tier)]
        queues = {namespace: iter(sorted(found, key=_order)) for namespace, found in tier.items()}
        while turns and room > 0:
            used, namespace = turns[0]
            one = next(queues[namespace], None)
            if one is None:
                heapq.heappop(turns)
                continue
            size = cost(one)
            if size > room:
                left.append(one)
                continue
            kept.append(one)
            room -= size
            heapq.heapreplace(turns, (used + size, namespace))
        left += itertools.chain.from_iterable(queues[namespace] for _, namespace in sorted(turns))
    return kept, left


def _order(row: pods.PodRow) -> tuple[bool, str, str, str]:
    return not limits.forbids_swap(row.policy), row.started, row.created, row.key
