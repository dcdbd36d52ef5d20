"""Notices about Nodes whose agent begins to report a problem by a condition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from swapwarden.api.conditions import ConditionType
from swapwarden.controller.inventory import states
from swapwarden.controller.notices import regarding
from swapwarden.kube.events import Notice
from swapwarden.policy.observed import nodes

_REASONS: Final[dict[str, str]] = {
    ConditionType.COMPATIBLE: "SwapIncompatible",
    ConditionType.DEGRADED: "SwapDegraded",
    ConditionType.DRIFTED: "SwapLimitsContested",
    ConditionType.SETTINGS_APPLIED: "SwapSettingsNotAsSpecified",
    ConditionType.STRICT_IN_EFFECT: "SwapNotHeldBySystemd",
}
"""Reasons of events by the condition that they report; a diagnostic's own type says enough."""


def notices(old: states.StateRow | None, new: states.StateRow, node: nodes.NodeRow) -> Iterator[Notice]:
    """Yield a notice for each problem that `new` reports and `old` did not, or for another reason.

    `old` is None if it is not known. Two leaders give one problem the same key.
    """
    before = {(each.type, each.reason) for each in old.abnormal_conditions} if old is not None else set()
    for condition in new.abnormal_conditions:
        if (condition.type, condition.reason) not in before:
            yield Notice(
                regarding.node(node),
                "Warning",
                _REASONS.get(condition.type, condition.type),
                f"{condition.reason}: {condition.message}",
                f"{new.uid}/{condition.type}/{condition.reason}/{condition.last_transition_time}",
            )
