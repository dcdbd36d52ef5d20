"""Which pods have room in a node's plan, where they are too many or too large for one object.

The API server keeps pods that no kubelet ever runs, and anyone who can create pods can create thousands of them for one
node. So pods that the kubelet has taken on come first: their number is bounded by what it runs, and nobody but the
kubelet writes status.startTime. Among these, and among the others, room is shared by namespace: the one that has least
is served next, so that a namespace which needs less than its share gets all of it, whatever others ask for.
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

    `cost` is what a pod takes of `room`. One that is too large for what is left does not end its namespace's turn.
    Of one namespace, pods that must not swap come first, then those that the kubelet took on first, then older ones.
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
