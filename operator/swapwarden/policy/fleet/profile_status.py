"""Compute the desired status of a profile. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from swapwarden.api import names
from swapwarden.api.conditions import ConditionType
from swapwarden.api.notices import Notice, Regarding
from swapwarden.policy.fleet import progress as fleet
from swapwarden.policy.fleet import rollout
from swapwarden.policy.node.observations import NodeProblem
from swapwarden.policy.profile import compiled
from swapwarden.policy.profile.store import Entry

NAMED: Final = 10
"""How many nodes or profiles of a kind a message names; it counts the rest."""
MAX_WHY: Final = 200
"""Most characters about one node."""
MAX_MESSAGE: Final = 32768
"""Most characters of a condition's message that the API server accepts."""

NO_EXTENDED_RESOURCE: Final = (
    "scheduling.extendedResource has no effect: the controller runs without --extended-resource (extendedResource: true"
    " in the chart)"
)
NO_EVICTION: Final = (
    "nothing is evicted, as with pressure.mode Observe: the controller runs without --eviction=Enforce (eviction:"
    " Enforce in the chart)"
)
SAME_PRIORITY: Final = "same priority as {} on {}: the oldest profile governs"
STAYS_IN_FORCE: Final = "generation {} stays in force"
NONE_IN_FORCE: Final = "the profile is not in force"


class Contest(NamedTuple):
    """A node that another profile of the same priority also selects."""

    rival: str
    node: str


class Judged(NamedTuple):
    """The last verdict about a profile, in this generation."""

    uid: str
    generation: int
    profile: compiled.Profile | None
    governed: Sequence[fleet.Governed]
    contested: Sequence[Contest]
    progress: rollout.RolloutProgress
    overdue: fleet.Overdue
    ended: bool = False
    """Whether it is being deleted and no node follows it any more."""

    @property
    def stalled(self) -> bool:
        """Whether all nodes that its rollout waits for have been silent for long."""
        waiting = self.progress.waiting
        return bool(waiting) and all((node, True) in self.overdue for node in waiting)


class _Tally(NamedTuple):
    """The nodes under a profile, each in one of these lists."""

    applied: list[fleet.Governed]
    pending: list[fleet.Governed]
    without_agent: list[fleet.Governed]
    incompatible: list[fleet.Governed]


class Rights(NamedTuple):
    """Rights that the controller has only if the chart says so."""

    extended_resource: bool
    """Whether it offers the extended resource."""
    eviction: bool
    """Whether it evicts pods."""


def build(entry: Entry, judged: Judged, now: str, rights: Rights) -> dict[str, Any]:
    """Return the status as JSON. `now` is RFC 3339, for changed conditions."""
    nodes = sorted(judged.governed, key=lambda node: node.node)
    tally = _tally(nodes)
    degraded = [_described(node.node, _wrong(node)) for node in nodes if _wrong(node)]
    unmet = [_described(node.node, node.unmet) for node in nodes if node.unmet]
    ready = _ready(entry, tally)
    before = {condition.get("type"): condition for condition in entry.status.get("conditions", ())}
    conditions = (
        _condition(ConditionType.READY, *ready),
        _condition(ConditionType.PROGRESSING, *_progressing(entry, judged)),
        _condition(ConditionType.CONFLICTED, *_conflicted(judged.contested)),
        _condition(ConditionType.DEGRADED, *_degraded(entry, nodes, degraded, rights)),
        *_required(entry, unmet),
    )
    return {
        "observedGeneration": entry.generation,
        "appliedGeneration": entry.generation if ready[1] == "Applied" else entry.status.get("appliedGeneration", 0),
        "nodes": {
            "matched": len(nodes),
            "updated": judged.progress.updated,
            "applied": len(tally.applied),
            "pending": len(tally.pending),
            "incompatible": len(tally.incompatible),
            "withoutAgent": len(tally.without_agent),
            "degraded": len(degraded),
            "requirementsUnmet": len(unmet),
        },
        "pendingReclaim": msgspec.to_builtins(judged.progress.taken),
        "conditions": [
            {**each, "lastTransitionTime": _since(each, before, now), "observedGeneration": entry.generation}
            for each in conditions
        ],
    }


def counted(nodes: Iterable[fleet.Governed]) -> dict[tuple[str, ...], float]:
    """Return how many nodes are in each state, over the statuses of all profiles."""
    listed = list(nodes)
    return {
        **{(state,): len(members) for state, members in _tally(listed)._asdict().items()},
        ("degraded",): sum(bool(_wrong(node)) for node in listed),
        ("requirements_unmet",): sum(bool(node.unmet) for node in listed),
    }


def _tally(nodes: Iterable[fleet.Governed]) -> _Tally:
    tally = _Tally([], [], [], [])
    for node in nodes:
        if not node.has_agent:
            kind = tally.without_agent
        elif node.incompatible:
            kind = tally.incompatible
        else:
            kind = tally.applied if node.applied else tally.pending
        kind.append(node)
    return tally


def _condition(kind: str, status: str, reason: str, message: str) -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message[:MAX_MESSAGE]}


def _since(condition: Mapping[str, Any], before: Mapping[str, Mapping[str, Any]], now: str) -> str:
    former = before.get(condition["type"], {})
    return str(former.get("lastTransitionTime", now)) if former.get("status") == condition["status"] else now


def _ready(entry: Entry, tally: _Tally) -> tuple[str, str, str]:
    if entry.error:
        fallback = STAYS_IN_FORCE.format(entry.profile.generation) if entry.profile else NONE_IN_FORCE
        return "False", "Invalid", f"{entry.error}; {fallback}"
    matched = sum(map(len, tally))
    if not matched:
        return "True", "NoNodes", "governs no node now"
    # Reasons that pass by themselves come first.
    kinds = (
        ("Applying", "pending", [_described(node.node, node.pending) for node in tally.pending]),
        ("NoAgent", "without an agent", [node.node for node in tally.without_agent]),
        ("Incompatible", "incompatible", [_described(node.node, node.incompatible) for node in tally.incompatible]),
    )
    bad = [(reason, f"{label}: {_list(listed)}") for reason, label, listed in kinds if listed]
    if not bad:
        return "True", "Applied", f"all {matched} nodes applied generation {entry.generation}"
    texts = [f"{len(tally.applied)} of {matched} nodes applied", *(text for _, text in bad)]
    return "False", bad[0][0], "; ".join(texts)


def _progressing(entry: Entry, judged: Judged) -> tuple[str, str, str]:
    progress = judged.progress
    pending = progress.pending + len(progress.next)
    generation = entry.profile.generation if entry.profile else entry.generation
    reached = "left the profile, which is deleted then" if entry.ending else f"generation {generation}"
    so_far = f"{progress.updated} of {progress.updated + pending} nodes have {reached}"
    stopped_by, waiting, asking, held = map(
        _list, (progress.stopped_by, progress.waiting, progress.asking, progress.held)
    )
    cases = (
        (
            progress.stopped_by,
            ("False", "Stopped"),
            f"; no more get it while these do worse: {stopped_by}; mend them or set rollout.maxUnavailable to 100%",
        ),
        (judged.stalled, ("False", "Stopped"), f"; these do not answer: {waiting}; see whether their agents run"),
        (progress.waiting, ("True", "Waiting"), f"; waiting for {waiting}"),
        (progress.paused and pending, ("False", "Paused"), "; no more get it while rollout.paused is true"),
        (progress.asking, ("True", "Asking"), f"; asking what the change takes from pods on {asking}"),
        (
            progress.held and len(progress.held) == pending,
            ("False", "Held"),
            f"; pods would lose swap that they use on {held}; they go on when it is free, or with onSwapInUse Proceed",
        ),
        (entry.ending, ("True", "Ending"), ""),
        (pending, ("True", "RollingOut"), ""),
        (True, ("False", "Complete"), ""),
    )
    return next((*verdict, so_far + more) for holds, verdict, more in cases if holds)


def _conflicted(contests: Sequence[Contest]) -> tuple[str, str, str]:
    if not contests:
        return "False", "NoConflict", ""
    rivals = sorted({contest.rival for contest in contests})
    nodes = sorted({contest.node for contest in contests})
    return "True", "SamePriority", SAME_PRIORITY.format(_list(rivals), _list(nodes))


def _wrong(node: fleet.Governed) -> str:
    """Return the problems of a node that count as degraded; empty if there are none."""
    refused = f"{NodeProblem.SETTINGS_REFUSED}: {node.refused}" if node.refused else ""
    return "; ".join(filter(None, (node.degraded, refused)))


def _degraded(
    entry: Entry, nodes: Iterable[fleet.Governed], degraded: Sequence[str], rights: Rights
) -> tuple[str, str, str]:
    more = [_list(degraded)] if degraded else []
    if lacking := list(_lacking(entry.profile, rights)):
        return "True", lacking[0][0], "; ".join([*(text for _, text in lacking), *more])
    if not more:
        return "False", "AsExpected", ""
    return "True", "NodesDegraded" if any(node.degraded for node in nodes) else NodeProblem.SETTINGS_REFUSED, more[0]


def _lacking(profile: compiled.Profile | None, rights: Rights) -> Iterator[tuple[str, str]]:
    """Yield what the profile asks for and the chart does not allow, by the reason."""
    if profile is None:
        return
    if profile.node.extended_resource and not rights.extended_resource:
        yield "NoExtendedResource", NO_EXTENDED_RESOURCE
    if profile.pressure is not None and profile.pressure.enforce and not rights.eviction:
        yield "NoEviction", NO_EVICTION


def _required(entry: Entry, unmet: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the condition for the profile's requirements; nothing if it has none."""
    if entry.profile is None or entry.profile.swap.require is None:
        return
    verdict = "True", "AllMet", "all nodes with swap meet the requirements"
    if unmet:
        verdict = "False", "NodesLack", f"pods get no swap there: {_list(unmet)}"
    yield _condition(ConditionType.REQUIREMENTS_MET, *verdict)


def _described(node: str, why: str) -> str:
    return f"{node} ({why if len(why) <= MAX_WHY else why[: MAX_WHY - 3] + '...'})"


def _list(listed: Sequence[str]) -> str:
    rest = len(listed) - NAMED
    return ", ".join(listed[:NAMED]) + (f" and {rest} more" if rest > 0 else "")


def notices(entry: Entry, after: Mapping[str, Any]) -> Iterator[Notice]:
    """Yield the notices about a profile whose status becomes `after`.

    That all nodes applied a generation is reported once, however many nodes come later.
    """
    before, regarding = entry.status, Regarding(names.API_VERSION, names.PROFILE_KIND, "", entry.name, entry.uid)
    old = {condition["type"]: condition for condition in before.get("conditions", ())}
    new = {condition["type"]: condition for condition in after["conditions"]}
    ready, was_ready = new[ConditionType.READY], old.get(ConditionType.READY, {})
    if after["appliedGeneration"] != before.get("appliedGeneration", 0):
        yield Notice(regarding, "Normal", "Applied", ready["message"])
    if ready["reason"] == "Invalid" and any(
        ready[key] != was_ready.get(key) for key in ("reason", "observedGeneration")
    ):
        yield Notice(regarding, "Warning", "Invalid", ready["message"])
    lacking, lacked = new.get(ConditionType.REQUIREMENTS_MET, {}), old.get(ConditionType.REQUIREMENTS_MET, {})
    if lacking.get("status") == "False" and lacked.get("status") != "False":
        yield Notice(regarding, "Warning", "RequirementUnmet", lacking["message"])
    for kind, reason in (
        (ConditionType.CONFLICTED, "Conflicted"),
        (ConditionType.DEGRADED, new[ConditionType.DEGRADED]["reason"]),
    ):
        if new[kind]["status"] == "True" and old.get(kind, {}).get("status") != "True":
            yield Notice(regarding, "Warning", reason, new[kind]["message"])
