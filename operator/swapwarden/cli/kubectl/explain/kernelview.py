"""Whether the kernel holds a pod's limit, with the numbers that its node's agent reports about it. Pure."""

from __future__ import annotations

import msgspec

from swapwarden.api import names, state
from swapwarden.api.conditions import ConditionType
from swapwarden.api.sizes import exact, with_bytes
from swapwarden.policy.observed import pods, states
from swapwarden.policy.verdict import pod as verdict


class KernelState(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The state of a pod's limit in the kernel."""

    status: str
    """True, False or Unknown: whether the limit is enforced, as in the pod's condition."""
    reason: str
    text: str
    remedy: str = ""
    holder: str = ""
    """Who holds the limit, of names.Holder; empty if that is not known."""
    detail: str = ""
    """The agent's message and values for a violation; empty if there is none."""
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


def observe(
    row: states.StateRow | None, status: state.StateStatus, pod: pods.PodRow, *, has_agent: bool | None
) -> KernelState:
    """Return the status of a pod's limit; `row` is the state of its node with that `status`, None if there is none."""
    judged = verdict.judge(pod, verdict.ReadState.of(row, has_agent=has_agent), pod.enforced)
    conditions = {each.type: each for each in status.conditions if each.status == "True"}
    drift, applied = conditions.get(ConditionType.DRIFTED), conditions.get(ConditionType.APPLIED)
    # The later of the pod's start and the time from which all of the node has been as specified.
    since = max(pod.started, applied.last_transition_time if applied else "")
    times = next((each for each in status.exposures if each.pod == pod.key), None)
    listed = (each for each in status.violations if each.pod == pod.key and not each.setting)
    wrong = next((each for each in listed if each.reason == judged.reason), None)
    return KernelState(
        judged.status,
        judged.reason,
        judged.message,
        judged.remedy,
        judged.holder,
        detail=_violation(wrong) if wrong else "",
        since=since if judged.status == "True" else "",
        exposures=times.count if times else 0,
        exposed_milliseconds=times.milliseconds if times else 0,
        exposed_bytes=times.swap_bytes if times else 0,
        exposed_text=_exposed(times) if times else "",
        drift=drift.message if drift else "",
    )


def _violation(wrong: state.Violation) -> str:
    # An agent's values are untrusted.
    known = all(value == names.MAX_SWAP or value.isdecimal() for value in (wrong.desired, wrong.observed))
    values = f"desired {with_bytes(wrong.desired)}, observed {with_bytes(wrong.observed)}" if known else ""
    used = f"{exact(wrong.swap_bytes)} in use" if wrong.swap_bytes else ""
    where = "a container" if wrong.container else ""
    return "; ".join(filter(None, (wrong.message, where, values, used)))


def _exposed(times: state.ExposedPod) -> str:
    """Return the times in which the pod was above its value."""
    often = "once" if times.count == 1 else f"{times.count} times"
    causes = f" ({', '.join(times.causes)})" if times.causes else ""
    most = "" if names.UNWATCHED.isdisjoint(times.causes) else "at most "
    swapped = f"swapped {most}{exact(times.swap_bytes)} meanwhile"
    return f"above its limit {often}, {times.milliseconds} ms in all{causes}; {swapped}"
