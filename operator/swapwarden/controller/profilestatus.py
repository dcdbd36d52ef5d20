"""What a profile's status should say. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from swapwarden.controller import cluster, profilestore

NAMED: Final = 10
"""How many nodes or profiles a message names; of the rest it says how many there are."""
MAX_MESSAGE: Final = 32768
"""Characters that the API server takes of a condition's message."""


class Contest(NamedTuple):
    """A node that another profile of the same priority selects, too."""

    rival: str
    node: str


def build(
    entry: profilestore.Entry, governed: Iterable[cluster.Governed], contested: Iterable[Contest], now: str
) -> dict[str, Any]:
    """The status as JSON. `governed` are the nodes under the profile; `now` is RFC 3339, for conditions that change."""
    nodes = sorted(governed, key=lambda node: node.node)
    applied = [node.node for node in nodes if node.applied]
    waiting = [node.node for node in nodes if not node.applied]
    degraded = [f"{node.node} ({node.degraded})" for node in nodes if node.degraded]
    conditions = (
        _condition("Ready", *_ready(entry, len(nodes), waiting)),
        _condition("Conflicted", *_conflicted(contested)),
        _condition("Degraded", *_degraded(degraded)),
    )
    before = {condition.get("type"): condition for condition in entry.status.get("conditions", ())}
    return {
        "observedGeneration": entry.generation,
        "nodes": {"matched": len(nodes), "applied": len(applied), "degraded": len(degraded)},
        "conditions": [
            {
                **condition,
                "lastTransitionTime": _since(condition, before.get(condition["type"]), now),
                "observedGeneration": entry.generation,
            }
            for condition in conditions
        ],
    }


def _condition(kind: str, status: str, reason: str, message: str) -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message[:MAX_MESSAGE]}


def _since(condition: Mapping[str, Any], before: Mapping[str, Any] | None, now: str) -> str:
    if before is None or before.get("status") != condition["status"]:
        return now
    return str(before.get("lastTransitionTime", now))


def _ready(entry: profilestore.Entry, matched: int, waiting: Sequence[str]) -> tuple[str, str, str]:
    if entry.error:
        fallback = (
            f"generation {entry.profile.generation} stays in force" if entry.profile else "the profile is not in force"
        )
        return "False", "Invalid", f"{entry.error}; {fallback}"
    if waiting:
        return "False", "Applying", f"{matched - len(waiting)} of {matched} nodes applied; waiting for {_list(waiting)}"
    if not matched:
        return "True", "NoNodes", "governs no node now"
    return "True", "Applied", f"all {matched} nodes applied generation {entry.generation}"


def _conflicted(contested: Iterable[Contest]) -> tuple[str, str, str]:
    contests = list(contested)
    if not contests:
        return "False", "NoConflict", ""
    rivals = sorted({contest.rival for contest in contests})
    nodes = sorted({contest.node for contest in contests})
    return "True", "SamePriority", f"same priority as {_list(rivals)} on {_list(nodes)}: the oldest profile governs"


def _degraded(degraded: Sequence[str]) -> tuple[str, str, str]:
    if not degraded:
        return "False", "AsExpected", ""
    return "True", "NodesDegraded", _list(degraded)


def _list(found: Sequence[str]) -> str:
    rest = len(found) - NAMED
    return ", ".join(found[:NAMED]) + (f" and {rest} more" if rest > 0 else "")
