"""What the owner of a pod that must not swap should be told when it did."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from swapwarden.api import names
from swapwarden.controller import rows
from swapwarden.kube import events
from swapwarden.policy import pods

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
