"""Builds the violations in the status: cgroups that do not hold their desired value, or did not for a while. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from swapwarden.agent.desired import resolve, spec
from swapwarden.agent.host import cgroupfs
from swapwarden.agent.inventory import board, exposure, records
from swapwarden.api import names, state
from swapwarden.api.violations import FAILURES, ViolationReason

_OF_TENANTS: Final = frozenset({ViolationReason.ACCESS_DENIED, ViolationReason.YIELDED})


def yielded(file: records.ControlFile) -> bool:
    """Return whether a file holds less than desired because another writer keeps lowering it."""
    contention = file.contention
    return (
        contention is not None
        and contention.until is not None
        and file.status.limit == contention.limit
        and file.status.observed < contention.limit
    )


def of_file(file: records.ControlFile, *, audit: bool) -> state.Violation | None:
    """Return the violation of one file now, or None; with `audit` also what Enforce would write."""
    would_write = audit and resolve.differs(
        file.desired.if_enforced, file.status.observed, at_most=file.desired.at_most
    )
    desired = file.desired.if_enforced if would_write else file.desired.value
    wanted = desired if isinstance(desired, int) else file.status.limit if file.status.draining else None
    if file.status.reason is not None:
        reason, message = file.status.reason, file.status.message
    elif yielded(file):
        reason, message = ViolationReason.YIELDED, "another writer keeps lowering it; its value stays for a time"
    elif file.status.draining:
        reason, message = ViolationReason.DRAINING, _draining(file)
    elif would_write:
        reason, message = ViolationReason.AUDIT, ""
    else:
        return None
    return state.Violation(
        pod="kubepods" if file.pod is None else file.pod.uid,
        reason=reason,
        container=file.container,
        wanted="" if wanted is None else cgroupfs.render(wanted),
        found=cgroupfs.render(file.status.observed),
        swap_bytes=file.status.in_use,
        message=message[:512],
    )


def _draining(file: records.ControlFile) -> str:
    left = file.status.in_use - (file.status.observed if file.status.limit is None else file.status.limit)
    return f"{max(0, left)} bytes more than the limit are in use; they can grow little, and fall as pages are touched"


def of_failure(failed: board.KeyFailure) -> state.Violation:
    """Return the violation of a cgroup that could not be reconciled."""
    message = failed.message[:512]
    return state.Violation(pod=failed.pod[:128], reason=failed.reason, container=failed.container, message=message)


def causes(tally: exposure.Tally) -> list[names.Cause]:
    """Return the causes of a pod's exposures, the longest first."""
    return sorted(tally.milliseconds_of, key=tally.milliseconds_of.__getitem__, reverse=True)


def of_exposure(pod: records.Pod) -> state.ExposedPod:
    """Return how often and for how long a pod was above its value."""
    tally = pod.tally
    return state.ExposedPod(
        pod=pod.uid,
        wanted=cgroupfs.render(tally.wanted),
        found=cgroupfs.render(tally.found),
        swap_bytes=tally.attributed,
        count=tally.count,
        milliseconds=round(tally.milliseconds),
        causes=causes(tally),
        since=exposure.moment(tally.since),
    )


def of_unsupported(found: spec.Unsupported) -> state.Violation:
    """Return the violation of a setting that this agent does not know."""
    return state.Violation(
        pod=found.owner,
        reason=ViolationReason.NOT_SUPPORTED,
        setting=found.setting[:64],
        message=f"this agent has no such setting, which {found.cgroups} cgroups should have: update it",
    )


def of_silence(pod: records.Pod) -> state.Violation:
    """Return the violation of a pod that no state has named."""
    return state.Violation(
        pod=pod.uid,
        reason=ViolationReason.AWAITING_STATE,
        found=cgroupfs.render(pod.file.status.observed),
        message="the state has no entry for this pod: is the controller running?",
    )


def once(violations: Iterable[state.Violation]) -> list[state.Violation]:
    """Return the violations without repetitions: those that containers can cause are listed once for each pod.

    A container can lock the agent out, or lower its own limits. A pod can have any number of such containers, and a
    list has room for few violations.
    """
    found: list[state.Violation] = []
    listed: set[tuple[str, str, str]] = set()
    for each in violations:
        if each.reason not in FAILURES and each.reason != ViolationReason.YIELDED:
            found.append(each)
            continue
        whose = each.pod, "" if each.reason in _OF_TENANTS else each.container
        if (each.reason, *whose) not in listed:
            listed.add((each.reason, *whose))
            found.append(each)
    return found


def acknowledge(known: Iterable[records.Pod], reported: Iterable[Mapping[str, Any]]) -> bool:
    """Note which exposures the API server has, with their causes; return whether they make room for others."""
    sums = {each.get("pod"): each.get("swapBytes", 0) for each in reported if each.get("causes")}
    news = [pod for pod in known if sums.get(pod.uid, 0) > pod.tally.reported]
    for pod in news:
        pod.tally.reported = sums[pod.uid]
    return bool(news)
