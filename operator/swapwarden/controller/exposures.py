"""What is to be told of pods that must not swap and did: to their owners, and as a metric."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from swapwarden.api import names
from swapwarden.controller import rows
from swapwarden.kube import events
from swapwarden.policy import pods
from swapwarden.telemetry import metrics

HELD = metrics.gauge(
    "swapwarden_controller_disabled_pods_swap_bytes",
    "Swap in use by pods that must have none by their policy, as the node's agent reports; only nodes with such pods.",
    labels=("node",),
)

REASON: Final = "SwappedAgainstPolicy"

_FORBID: Final = {names.Reason.POLICY_DISABLED, names.Reason.INVALID_POLICY, names.Reason.OVERRIDE_DISABLED}


def news(
    old: rows.StateRow, new: rows.StateRow, known: Iterable[pods.PodRow]
) -> Iterator[tuple[events.Regarding, str]]:
    """Yield the message about each of a node's pods that, by its agent, took (more) swap although it must have none."""
    before = {each.pod: each.swap_bytes for each in old.swapped}
    grown = {each.pod: each for each in new.swapped if each.swap_bytes > before.get(each.pod, 0)}
    if not grown:
        return
    reasons = rows.reasons(new)
    for row in known:
        found = grown.get(row.key)
        if found is not None and reasons.get(row.key) in _FORBID:
            message = (
                f"{found.swap_bytes} bytes of this pod, which must not swap, went to swap on node {row.node} while its"
                f" limit was undone, or not there yet ({', '.join(found.causes)}), for {found.exposed_milliseconds} ms"
                " in all; the limit is in force again"
            )
            yield events.Regarding("v1", "Pod", row.namespace, row.name, row.uid), message


def measure(name: str, row: rows.StateRow | None) -> None:
    """Publish what pods of a node hold in swap although their policy forbids it; None: the node's state is gone.

    Pods that have none by anything else, as by their QoS class, are not counted. An agent lists at most
    state.MAX_VIOLATIONS deviations, so that of very many such pods the sum is a lower bound.
    """
    held = 0
    if row is not None and row.holding:
        reasons = rows.reasons(row)
        held = sum(each.swap_bytes for each in row.holding if reasons.get(each.pod) in _FORBID)
    if held:
        HELD.set(held, name)
    else:
        HELD.remove(name)
