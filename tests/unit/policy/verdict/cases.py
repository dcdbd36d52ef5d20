"""Pairs of a NodeSwapState and a pod, as an API server has them, and the verdict that each pair must get."""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import strategies as st
from swapwarden.api import names
from swapwarden.api.conditions import ConditionType

NODE, PROFILE, GENERATION = "node-1", "batch", 5
_LISTED = ("WriteFailed", "AccessDenied", "Unreadable", "InternalError", "Draining", "Yielded", "Audit")
"""Violations of a limit, the one that counts most first."""


class Case(NamedTuple):
    """The parts of a pair."""

    has_state: bool
    mode: str
    planned: bool
    """Whether the state names the pod."""
    reason: str
    by_default: bool
    """Whether the reason stands in defaultReason."""
    swap_max: str | None
    observed: int
    compatible: bool
    listed: tuple[str, ...]
    """Reasons of the pod's violations."""
    beside: tuple[dict[str, Any], ...]
    """Violations that are not about the pod's limit."""
    omitted: int
    holds: dict[str, Any] | None
    has_agent: bool
    before: tuple[str, str] | None
    """Status and reason of the pod's condition."""
    policy: str | None
    limit: str | None
    defaulted: bool

    def pod(self) -> dict[str, Any]:
        """Return the Pod."""
        annotations = {
            names.POLICY_ANNOTATION: self.policy,
            names.LIMIT_ANNOTATION: self.limit,
            names.POLICY_SOURCE_ANNOTATION: names.SOURCE_NAMESPACE if self.defaulted else None,
        }
        conditions = []
        if self.before is not None:
            status, reason = self.before
            held = f"; held by {names.Holder.RUNTIME}" if status == "True" else ""
            kind = ConditionType.SWAP_POLICY_ENFORCED
            conditions = [{"type": kind, "status": status, "reason": reason, "message": f"as it was{held}"}]
        return {
            "metadata": {
                "name": "web",
                "namespace": "default",
                "uid": "uid-1",
                "annotations": {key: value for key, value in annotations.items() if value is not None},
            },
            "spec": {"nodeName": NODE, "containers": [{"name": "app"}]},
            "status": {"phase": "Running", "qosClass": "Burstable", "conditions": conditions},
        }

    def state(self) -> dict[str, Any]:
        """Return the NodeSwapState of the pod's node."""
        entry = {} if self.swap_max is None else {"swapMax": self.swap_max}
        other = {"other": {"reason": "KubeletDecides"}}
        own = {"uid-1": entry if self.by_default else {**entry, "reason": self.reason}}
        listed = [{"pod": "uid-1", "reason": reason, "swapBytes": 4096} for reason in self.listed]
        return {
            "metadata": {"name": NODE, "uid": "s", "resourceVersion": "7", "generation": GENERATION},
            "spec": {
                "profileRef": {"name": PROFILE, "generation": 1},
                "mode": self.mode,
                **({"defaultReason": self.reason} if self.by_default else {}),
                "pods": other | (own if self.planned else {}),
            },
            "status": {
                "observedGeneration": self.observed,
                "profileRef": {"name": PROFILE, "generation": 1},
                "conditions": [
                    {"type": "Compatible", "status": "True" if self.compatible else "False", "reason": "Why"},
                    {"type": "Applied", "status": "True", "reason": "AsSpecified"},
                ]
                if self.observed
                else [],
                "violations": [*listed, *self.beside],
                "violationsOmitted": self.omitted,
                **({"holds": self.holds} if self.holds is not None else {}),
            },
        }


class Expected(NamedTuple):
    """The verdict that every surface must give."""

    rule: str
    status: str
    reason: str


def expected(case: Case) -> Expected:  # noqa: PLR0911 one branch for each row of docs/pod-condition.md
    """Judge by the rules as they are documented, apart from the product's table."""
    entry = case.reason if case.has_state and case.planned else None
    reported = case.has_state and case.observed > 0
    if entry == "NodeIncompatible" or (reported and not case.compatible):
        return Expected("NodeIncompatible", "False", "NodeIncompatible")
    if case.has_state and case.mode != "Enforce":
        return Expected("Mode", "False", case.mode)
    for reason in _LISTED:
        if case.has_state and reason in case.listed:
            return Expected(reason, "False", reason)
    if entry is None:
        return Expected("NotPlanned", "Unknown", "NotPlanned" if case.has_state else "NoState")
    older, cut = case.observed < GENERATION, case.omitted > 0
    if case.before is not None and (older or cut):
        status, reason = case.before
        if (status == "True" and reason in list(names.Reason)) or (status == "False" and reason in _LISTED):
            return Expected("AsReported", status, reason)
    if older:
        late = "AwaitingAgent" if case.has_agent else "NoAgent"
        return Expected(late, "Unknown", late)
    if cut:
        return Expected("NotListed", "Unknown", "NotListed")
    return Expected("Held" if case.has_agent else "Unrepaired", "True", entry)


_REASONS = st.sampled_from([each.value for each in names.Reason])
_BESIDE = st.sampled_from(
    [
        {"pod": "uid-1", "reason": "WriteFailed", "setting": "memoryLow"},
        {"pod": "uid-1", "reason": "AwaitingState"},
        {"pod": "uid-1", "reason": "FromTheFuture"},
        {"pod": "other", "reason": "Draining"},
    ]
)
_BEFORE = st.one_of(
    st.none(),
    st.tuples(st.just("True"), _REASONS),
    st.tuples(st.just("False"), st.sampled_from([*_LISTED, "Restore", "NodeIncompatible"])),
    st.sampled_from([("Unknown", "AwaitingAgent"), ("True", "Forged"), ("Maybe", "Draining")]),
)
CASES = st.builds(
    Case,
    has_state=st.sampled_from([True] * 9 + [False]),
    mode=st.sampled_from(["Enforce"] * 6 + ["Audit", "Restore"]),
    planned=st.sampled_from([True] * 5 + [False]),
    reason=_REASONS,
    by_default=st.booleans(),
    swap_max=st.sampled_from([None, "0", "4096", "max"]),
    observed=st.sampled_from([GENERATION, GENERATION, GENERATION, GENERATION - 1, 0]),
    compatible=st.sampled_from([True] * 7 + [False]),
    listed=st.one_of(st.just(()), st.lists(st.sampled_from(_LISTED), max_size=3, unique=True).map(tuple)),
    beside=st.lists(_BESIDE, max_size=2).map(tuple),
    omitted=st.sampled_from([0, 0, 3]),
    holds=st.sampled_from([None, {}, {"runtime": True}, {"systemd": True}, {"runtime": True, "agentOnly": ["uid-1"]}]),
    has_agent=st.sampled_from([True, True, False]),
    before=_BEFORE,
    policy=st.sampled_from([None, "Disabled", "Required", "NoPreference", "Sometimes"]),
    limit=st.sampled_from([None, None, "1Gi"]),
    defaulted=st.booleans(),
)
