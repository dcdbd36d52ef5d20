"""Notices about NodeSwapProfiles, where their status begins to say so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from swapwarden.api.conditions import ConditionType
from swapwarden.kube.events import Notice, Regarding


def notices(regarding: Regarding, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Notice]:
    """Yield the notices about a profile whose status was `before` and is `after`.

    That all nodes applied a generation is reported once, however many nodes come later.
    """
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
