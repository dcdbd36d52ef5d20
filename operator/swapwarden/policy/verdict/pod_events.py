"""Events about pods: a limit that is not as planned, a policy without effect, swap that was taken."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from swapwarden.api import names, state
from swapwarden.api.notices import Notice, Regarding
from swapwarden.api.violations import PRESENT, ViolationReason
from swapwarden.policy.observed import pods, states
from swapwarden.policy.verdict import pod as verdict
from swapwarden.policy.verdict import words

DRAINED: Final = "SwapDrained"


def violation_notices(old: states.StateRow, new: states.StateRow, known: Iterable[pods.PodRow]) -> Iterator[Notice]:
    """Yield a notice for each of a node's pods that begins to violate its limit, or has drained."""
    if old.violations == new.violations:
        return
    listed = {each.pod for row in (old, new) for each in row.violations}
    before, now = verdict.ReadState.of(old), verdict.ReadState.of(new)
    for row in known:
        if row.key not in listed:
            continue
        present = verdict.judge(row, now)
        was, has = ({each.reason for each in state.listed(row.key)} for state in (before, now))
        # A limit that mode Audit does not write is reported when it is planned.
        if present.reason in PRESENT and present.reason not in was and present.reason != ViolationReason.AUDIT:
            yield Notice(regarding(row), "Warning", present.event, present.sentence)
        # A list that is cut says nothing by what it lacks, nor does a list in a mode that writes nothing.
        drained = ViolationReason.DRAINING in was - has and not new.unlisted
        if drained and not row.terminal and now.spec.mode in {"", names.Mode.ENFORCE}:
            text = f"this pod has no more in swap than it may have on node {row.node}"
            yield Notice(regarding(row), "Normal", DRAINED, text)


STUCK: Final = "StuckAtMemoryHigh"
_EASED: Final[dict[str, str]] = {
    "Stepped": "memory.high is now halfway to the memory limit",
    "Released": "it has no memory.high for a time: it runs on, up to its memory limit",
    "Latched": "it has no memory.high until its plan changes: it runs on, up to its memory limit",
}


def standstill_notices(old: states.StateRow, new: states.StateRow, known: Iterable[pods.PodRow]) -> Iterator[Notice]:
    """Yield a notice for each of a node's pods that stood still at its memory.high again. Two leaders give one key."""
    if old.standstills == new.standstills:
        return
    before = {(each.pod, each.container, each.since): each.trips for each in old.standstills}
    there = {row.key: row for row in known}
    for cgroup in new.standstills:
        row = there.get(cgroup.pod)
        if row is not None and cgroup.trips > before.get((cgroup.pod, cgroup.container, cgroup.since), 0):
            what = f"container {cgroup.container[: state.ID_LENGTH]} of this pod" if cgroup.container else "this pod"
            text = (
                f"{what} stood still at memory.high ({cgroup.high} bytes) on node {row.node}, where the kernel found"
                f" too little to reclaim; {_EASED.get(cgroup.guard, 'its memory.high stays as it is')}"
            )
            key = f"{cgroup.pod}/{cgroup.container}/{cgroup.since}/{cgroup.trips}"
            yield Notice(regarding(row), "Warning", STUCK, text, key)


def plan_notices(before: states.SpecView, known: Iterable[pods.PodRow], spec: state.StateSpec) -> Iterator[Notice]:
    """Yield a notice for each pod and reason that is in `spec` and was not in the state `before`."""
    if (before.mode == names.Mode.AUDIT) != (spec.mode is names.Mode.AUDIT):
        before = states.SpecView()  # in the other mode the same reason meant another message, or none
    noticed = before.reasons()
    changed = {key for key, pod in spec.pods.items() if noticed.get(key) != state.reason_of(spec, pod)}
    yield from notices_about((row for row in known if row.key in changed), spec)


def notices_about(rows: Iterable[pods.PodRow], spec: state.StateSpec) -> Iterator[Notice]:
    """Yield a notice for each of a node's pods whose policy or limits cannot be honoured in its plan `spec`.

    Under mode Audit nothing is written: what the plan would do to a pod is not reported as done.
    """
    audit, profile = spec.mode is names.Mode.AUDIT, spec.profile_ref.name
    for row in rows:
        planned = spec.pods.get(row.key)
        reason = None if planned is None else state.reason_of(spec, planned)
        if reason is None:
            continue
        lacks = verdict.shortfall(row, reason, profile, audit=audit)
        if lacks is not None:
            yield Notice(regarding(row), "Warning", lacks.reason, words.sentence(lacks.message, lacks.remedy))
        elif audit and verdict.is_audited(row, reason):
            text = words.ENFORCEMENT[names.Mode.AUDIT].about(row, profile)
            yield Notice(regarding(row), "Warning", text.event, words.sentence(text.message, text.remedy))


SWAPPED: Final = "SwappedAgainstPolicy"

FORBID: Final = {names.Reason.POLICY_DISABLED, names.Reason.INVALID_POLICY, names.Reason.OVERRIDE_DISABLED}


class Exposures:
    """Reports each growth once, even if it leaves the node's status and returns, or two leaders see it.

    An agent's sums only grow, for as long as they have the same beginning. So this keeps the beginning and the last
    sum of each pod that an agent reported, until the pod is gone.
    """

    def __init__(self) -> None:
        self.sums: dict[str, dict[str, tuple[str, int]]] = {}
        """The beginning and the last sum, in bytes, of each pod, by node and pod."""

    def forget(self, node: str) -> None:
        """Forget a node."""
        self.sums.pop(node, None)

    def notices(self, row: states.StateRow, known: Iterable[pods.PodRow]) -> Iterator[Notice]:
        """Yield a notice for each of a node's pods, the `known` ones, that took swap which was not reported before."""
        before = self.sums.pop(row.name, {})
        if not before and not row.exposed_pods:
            return
        there = {pod.key: pod for pod in known}
        noticed = {key: sums for key, sums in before.items() if key in there}
        grown = []
        for exposed in row.exposed_pods:
            since, size = noticed.get(exposed.pod, ("", 0))
            if exposed.pod in there and (exposed.since != since or exposed.swap_bytes > size):
                noticed[exposed.pod] = exposed.since, exposed.swap_bytes
                grown.append(exposed)
        if noticed:
            self.sums[row.name] = noticed
        reasons = states.reasons(row) if grown else {}
        for exposed in grown:
            if reasons.get(exposed.pod) in FORBID:
                yield _exposure_notice(there[exposed.pod], exposed, _limit_now(row, exposed.pod))


def _limit_now(row: states.StateRow, key: str) -> str:
    """Return the present state of a pod's limit after it took swap, as far as it is known."""
    held = next((each.swap_bytes for each in row.draining_pods if each.pod == key), 0)
    if held:
        return f"; {held} bytes are still in use, and the limit is above 0 only where memory has no room for them"
    if row.unlisted or any(each.pod == key for each in row.violations):
        return ""
    return "; the limit is in force again"


def _exposure_notice(pod: pods.PodRow, exposed: state.ExposedPod, now: str) -> Notice:
    since = f" since {exposed.since}" if exposed.since else ""
    most = "" if names.UNWATCHED.isdisjoint(exposed.causes) else "at most "
    message = (
        f"{most}{exposed.swap_bytes} bytes of this pod, which must not swap, went to swap on node {pod.node} while its"
        f" limit was undone, or not there yet ({', '.join(exposed.causes)}), for {exposed.milliseconds} ms"
        f" in all{since}{now}"
    )
    key = f"{exposed.pod}/{exposed.since}/{exposed.swap_bytes}"
    return Notice(regarding(pod), "Warning", SWAPPED, message, key, urgent=True)


def regarding(row: pods.PodRow) -> Regarding:
    """Return the reference to a pod; of a static one, to its mirror."""
    return Regarding("v1", "Pod", row.namespace, row.name, row.uid)
