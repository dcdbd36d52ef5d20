"""Whether the kernel holds a pod's limit, by the status of its node's NodeSwapState. Pure.

An agent reports deviations only: what it does not list is, at the generation that it observed, as the spec says.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from swapwarden.api import names, state
from swapwarden.api.conditions import ConditionType
from swapwarden.api.sizes import exact, with_bytes
from swapwarden.api.violations import ViolationReason
from swapwarden.cli.kubectl.cluster import health
from swapwarden.policy.observed import pods


class LimitStatus(enum.StrEnum):
    """How a pod's limit stands in the kernel."""

    HELD = "Held"
    DRAINING = "Draining"
    """More swap is in use than the limit allows; the limit follows it down."""
    WRITE_FAILED = "WriteFailed"
    YIELDED = "Yielded"
    """Another writer keeps lowering it, and the agent accepts that."""
    AWAITING_STATE = "AwaitingState"
    BEHIND = "Behind"
    """The agent has not reported the newest plan yet."""
    UNREPAIRED = "Unrepaired"
    """No agent is Ready: earlier values stay, and external writes are not repaired."""
    NOT_WRITTEN = "NotWritten"
    """Nothing is written there: mode Audit or Restore, or no cgroup that could be written to."""
    UNKNOWN = "Unknown"


class KernelState(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The state of a pod's limit in the kernel."""

    status: LimitStatus
    text: str
    since: str = ""
    """RFC 3339: since when, at the latest, it has been held; empty if it is not held."""
    exposures: int = 0
    """How many times it was found above its value in the last ten minutes."""
    exposed_milliseconds: int = 0
    exposed_bytes: int = 0
    """Swapped above the value meanwhile."""
    exposed_text: str = ""
    drift: str = ""
    """Writes of others on the node."""


_OF_NODE: Final = {
    health.NodeHealth.NO_STATE: LimitStatus.UNKNOWN,
    health.NodeHealth.NO_AGENT: LimitStatus.UNKNOWN,
    health.NodeHealth.INCOMPATIBLE: LimitStatus.NOT_WRITTEN,
    health.NodeHealth.RESTORING: LimitStatus.NOT_WRITTEN,
    health.NodeHealth.RESTORED: LimitStatus.NOT_WRITTEN,
}
"""States of a node that decide on all of its pods."""
_WRONG: Final[dict[str, tuple[LimitStatus, str]]] = {
    ViolationReason.WRITE_FAILED: (LimitStatus.WRITE_FAILED, "the kernel refuses the limit"),
    ViolationReason.ACCESS_DENIED: (LimitStatus.WRITE_FAILED, "a container keeps the agent out of its cgroup"),
    ViolationReason.UNREADABLE: (LimitStatus.WRITE_FAILED, "a cgroup of the pod cannot be read"),
    ViolationReason.INTERNAL_ERROR: (LimitStatus.WRITE_FAILED, ""),
    ViolationReason.DRAINING: (LimitStatus.DRAINING, ""),
    ViolationReason.YIELDED: (LimitStatus.YIELDED, ""),
    ViolationReason.AUDIT: (LimitStatus.NOT_WRITTEN, "mode Audit: the limit would be written"),
    ViolationReason.AWAITING_STATE: (LimitStatus.AWAITING_STATE, ""),
}
"""By the reason of a violation; with words before the agent's own message if that is no sentence."""


def observe(found: state.NodeSwapState | None, row: pods.PodRow, *, has_agent: bool | None) -> KernelState:
    """Return the status of a pod's limit; `found` is the state of its node, None if there is none."""
    if found is None or found.spec is None:
        return KernelState(LimitStatus.UNKNOWN, health.judge(None, state.StateStatus(), has_agent=has_agent).why)
    status = found.status
    conditions = {each.type: each for each in status.conditions if each.status == "True"}
    held, text = _stands(found.spec, found, row, has_agent=has_agent)
    drift, applied = conditions.get(ConditionType.DRIFTED), conditions.get(ConditionType.APPLIED)
    # The later of the pod's start and the time from which all of the node has been as specified.
    since = max(row.started, applied.last_transition_time if applied else "")
    times = next((each for each in status.exposures if each.pod == row.key), None)
    return KernelState(
        held,
        text,
        since=since if held is LimitStatus.HELD else "",
        exposures=times.count if times else 0,
        exposed_milliseconds=times.milliseconds if times else 0,
        exposed_bytes=times.swap_bytes if times else 0,
        exposed_text=_exposed(times) if times else "",
        drift=drift.message if drift else "",
    )


def _stands(
    spec: state.StateSpec, found: state.NodeSwapState, row: pods.PodRow, *, has_agent: bool | None
) -> tuple[LimitStatus, str]:
    """Return the status of the limit by the node's state and the pod's violations, or why none is listed."""
    status, generation = found.status, found.metadata.generation
    verdict = health.judge(spec, status, has_agent=has_agent)
    if verdict.health in _OF_NODE:
        return _OF_NODE[verdict.health], verdict.why
    of_swap = (each for each in status.violations if each.pod == row.key and not each.setting)
    wrong = next((each for each in of_swap if each.reason in _WRONG), None)
    if wrong is not None:
        held, before = _WRONG[wrong.reason]
        return held, _violation(wrong, before)
    older, omitted = status.observed_generation, status.violations_omitted
    behind = f"the agent has reported generation {older} of the state, and there is a newer one; it may be seconds late"
    unlisted = f"{omitted} deviations of the node are not listed, and may be this pod's"
    audit = "mode Audit: nothing is written, and the kernel's value is what it would be anyway"
    silent = "no agent is Ready: its values stay, but external writes are not repaired"
    entry = spec.pods.get(row.key)
    holder = pods.holder_of(row.key, None if entry is None else entry.swap_max, status.holds) if status.holds else ""
    rows = (
        (row.key not in spec.pods, LimitStatus.AWAITING_STATE, "the state does not name the pod yet"),
        (older < generation, LimitStatus.BEHIND, behind),
        (bool(omitted), LimitStatus.UNKNOWN, unlisted),
        (spec.mode is names.Mode.AUDIT, LimitStatus.NOT_WRITTEN, audit),
        (has_agent is False, LimitStatus.UNREPAIRED, silent),
        (True, LimitStatus.HELD, f"the kernel holds it{pods.held_by(holder) if holder else ''}"),
    )
    return next((held, text) for matches, held, text in rows if matches)


def _violation(wrong: state.Violation, before: str) -> str:
    said = "; ".join(filter(None, (before, wrong.message))) or f"the agent says {wrong.reason}"
    # An agent's values are untrusted.
    known = all(value == names.MAX_SWAP or value.isdecimal() for value in (wrong.desired, wrong.observed))
    values = f"desired {with_bytes(wrong.desired)}, observed {with_bytes(wrong.observed)}" if known else ""
    used = f"{exact(wrong.swap_bytes)} in use" if wrong.swap_bytes else ""
    where = "a container" if wrong.container else ""
    return "; ".join(filter(None, (said, where, values, used)))


def _exposed(times: state.ExposedPod) -> str:
    """Return the times in which the pod was above its value."""
    often = "once" if times.count == 1 else f"{times.count} times"
    causes = f" ({', '.join(times.causes)})" if times.causes else ""
    most = "" if names.UNWATCHED.isdisjoint(times.causes) else "at most "
    swapped = f"swapped {most}{exact(times.swap_bytes)} meanwhile"
    return f"above its limit {often}, {times.milliseconds} ms in all{causes}; {swapped}"
