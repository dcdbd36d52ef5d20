"""Notices to owners of pods: a limit that is not as planned, a policy without effect, swap that was taken."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from swapwarden.api import names, state
from swapwarden.api.notices import Notice, Regarding
from swapwarden.api.violations import PRESENT, ViolationReason
from swapwarden.policy.observed import pods, states
from swapwarden.telemetry import metrics

_VIOLATION_MESSAGES: Final[dict[str, str]] = {
    ViolationReason.WRITE_FAILED: (
        "the kernel of node {node} refuses this pod's swap limit; the node's NodeSwapState has its words"
    ),
    ViolationReason.ACCESS_DENIED: (
        "a container of this pod closed its own cgroup to the agent on node {node}, so that its own limit is not known"
        " to hold; the pod's limit is held. Let the container's cgroup be read (chmod), or give it none to own"
    ),
    ViolationReason.UNREADABLE: "a cgroup of this pod cannot be read on node {node}; the node's NodeSwapState says why",
    ViolationReason.INTERNAL_ERROR: (
        "the agent on node {node} met an unexpected error with this pod, and tries again; its log has it: please"
        " report it"
    ),
    ViolationReason.DRAINING: (
        "this pod has more in swap than it may have on node {node}: nothing is taken from it by force, so it keeps what"
        " it has there, gets little more, and gives back what it touches"
    ),
    ViolationReason.YIELDED: (
        "another writer on node {node} keeps lowering this pod's swap limit, and is left its value for a time; the"
        " condition Drifted of the node's NodeSwapState has the details"
    ),
    ViolationReason.AUDIT: (
        "profile {profile} is in mode Audit on node {node}: nothing is written, and what this pod says of swap is not"
        " in force"
    ),
}

_VIOLATION_EVENTS: Final[dict[str, str]] = {
    ViolationReason.ACCESS_DENIED: "SwapLimitNotWritten",
    ViolationReason.DRAINING: "SwapDraining",
    ViolationReason.INTERNAL_ERROR: "SwapLimitNotWritten",
    ViolationReason.UNREADABLE: "SwapLimitNotWritten",
    ViolationReason.WRITE_FAILED: "SwapLimitNotWritten",
    ViolationReason.YIELDED: "SwapLimitContested",
}
"""Reasons of events by the violation that they report."""

DRAINED: Final = "SwapDrained"


def violation_message(reason: str, node: str, profile: str) -> str:
    """Return the text for one reason of violations.PRESENT, of a pod of `node`, whose state follows `profile`."""
    return _VIOLATION_MESSAGES[reason].format(node=node, profile=profile)


def worst_violation(row: states.StateRow, key: str) -> str:
    """Return the reason that counts most of a pod's violations; empty if there is none."""
    found = {each.reason for each in row.violations if each.pod == key}
    return next((reason for reason in PRESENT if reason in found), "")


def violation_notices(old: states.StateRow, new: states.StateRow, known: Iterable[pods.PodRow]) -> Iterator[Notice]:
    """Yield a notice for each of a node's pods that begins to violate its limit, or has drained."""
    if old.violations == new.violations:
        return
    before, now = _violations(old), _violations(new)
    for row in known:
        was, has = before.get(row.key, set()), now.get(row.key, set())
        for reason in has - was:
            text = violation_message(reason, row.node, new.profile.name)
            yield Notice(_of(row), "Warning", _VIOLATION_EVENTS[reason], text)
        # A list that is cut says nothing by what it lacks.
        drained = ViolationReason.DRAINING in was - has
        if drained and not row.terminal and not new.unlisted and _enforces(new):
            text = f"this pod has no more in swap than it may have on node {row.node}"
            yield Notice(_of(row), "Normal", DRAINED, text)


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
    for found in new.standstills:
        row = there.get(found.pod)
        if row is not None and found.trips > before.get((found.pod, found.container, found.since), 0):
            what = f"container {found.container[: state.ID_LENGTH]} of this pod" if found.container else "this pod"
            text = (
                f"{what} stood still at memory.high ({found.high} bytes) on node {row.node}, where the kernel found too"
                f" little to reclaim; {_EASED.get(found.guard, 'its memory.high stays as it is')}"
            )
            key = f"{found.pod}/{found.container}/{found.since}/{found.trips}"
            yield Notice(_of(row), "Warning", STUCK, text, key)


def _violations(row: states.StateRow) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for each in row.violations:
        if each.reason in _VIOLATION_EVENTS:
            found.setdefault(each.pod, set()).add(each.reason)
    return found


def _enforces(row: states.StateRow) -> bool:
    return states.spec_view(row).mode in {"", names.Mode.ENFORCE}


_IN_ANY_MODE: Final = frozenset({names.Reason.NODE_INCOMPATIBLE, names.Reason.INVALID_POLICY})
"""Faults of a node or a pod, whether the plan is written or not."""


def plan_notices(before: states.SpecView, known: Iterable[pods.PodRow], spec: state.StateSpec) -> Iterator[Notice]:
    """Yield a notice for each pod and reason that is in `spec` and was not in the state `before`."""
    if (before.mode == names.Mode.AUDIT) != (spec.mode is names.Mode.AUDIT):
        before = states.SpecView()  # in the other mode the same reason meant another message, or none
    noticed = {key: pod.reason or before.default_reason for key, pod in before.pods.items()}
    changed = {key for key, pod in spec.pods.items() if noticed.get(key) != state.reason_of(spec, pod)}
    yield from notices_about((row for row in known if row.key in changed), spec)


def notices_about(rows: Iterable[pods.PodRow], spec: state.StateSpec) -> Iterator[Notice]:
    """Yield a notice for each of a node's pods whose policy or limits cannot be honoured in its plan `spec`.

    Under mode Audit nothing is written: what the plan would do to a pod is not reported as done.
    """
    audit = spec.mode is names.Mode.AUDIT
    for row in rows:
        planned = spec.pods.get(row.key)
        reason = None if planned is None else state.reason_of(spec, planned)
        if reason is None or not (row.policy is not None or row.limited()):
            continue
        if audit and reason not in _IN_ANY_MODE:
            if reason is names.Reason.POLICY_DISABLED or row.limited():
                text = violation_message(ViolationReason.AUDIT, row.node, spec.profile_ref.name)
                yield Notice(_of(row), "Warning", names.Mode.AUDIT, text)
            continue
        message = _plan_message(row, reason, spec.profile_ref.name, limited=row.limited(), audit=audit)
        if message:
            yield Notice(_of(row), "Warning", reason, message)


def _plan_message(row: pods.PodRow, reason: names.Reason, profile: str, *, limited: bool, audit: bool) -> str:
    message = ""
    match reason:
        case names.Reason.NODE_INCOMPATIBLE:
            message = (
                f"node {row.node} cannot limit the swap of pods (it needs cgroup v2 with the swap controller):"
                " this pod's swap policy is not enforced there"
            )
        case names.Reason.INVALID_POLICY:
            accepted = ", ".join(names.Policy)
            result = "would get no swap in mode Enforce" if audit else "gets no swap"
            message = (
                f"a swap annotation of this pod is not understood, so it {result}: {names.POLICY_ANNOTATION} takes"
                f" {accepted}, and swap limits are quantities such as 512Mi"
            )
        case names.Reason.REQUIREMENT_UNMET if limited:
            message = (
                f"profile {profile} gives swap only to nodes that have what it requires, and node {row.node} does not:"
                " this pod's swap limit has no effect"
            )
        case names.Reason.PROFILE_NO_SWAP if limited:
            message = f"profile {profile} gives no swap to pods on node {row.node}: this pod's swap limit has no effect"
        case names.Reason.QOS_NOT_ELIGIBLE if limited:
            message = (
                f"profile {profile} gives swap to Burstable pods only on node {row.node} (behavior LimitedSwap), and"
                f" this pod is {row.qos}: its swap limit has no effect"
            )
        case names.Reason.CRITICAL_POD if limited:
            message = (
                f"profile {profile} gives no swap to critical pods on node {row.node} (behavior LimitedSwap): this"
                " pod's swap limit has no effect"
            )
        case names.Reason.OVERRIDE_DISABLED if limited or not row.defaulted:
            message = f"an override of profile {profile}, which governs node {row.node}, gives no swap to this pod"
        case names.Reason.OVERRIDE_LIMIT if limited:
            message = (
                f"this pod gets less swap than its limit: an override of profile {profile}, which governs node"
                f" {row.node}, allows no more"
            )
        case names.Reason.BOUNDED:
            message = f"this pod gets less swap than its limit: profile {profile} or node {row.node} allows no more"
        case names.Reason.OVERCOMMIT_REACHED:
            message = (
                f"this pod gets less swap than its limit: what profile {profile} lets the pods of node {row.node} have"
                " in all (overcommitPercent) went to pods that were there before"
            )
    return message


LEFT_OUT = metrics.gauge(
    "swapwarden_controller_pods_left_out",
    f"Pods of a node that are not in its plan, which has room for {state.MAX_PODS} pods and"
    f" {state.MAX_PODS_BYTES // 1024} KiB; only nodes with such pods. Only the leader has it.",
    labels=("node",),
)

NOT_PLANNED: Final = "NotPlanned"
MAX_NAMESPACES: Final = 32
"""Limit of namespaces whose owners get a notice, on one node."""


class LeftOut:
    """Remembers, for one leadership, which namespaces on a node have had a notice."""

    def __init__(self) -> None:
        self._noticed: dict[str, set[str]] = {}

    def notices(self, node: str, profile: str, left_out: Iterable[pods.PodRow]) -> Iterator[Notice]:
        """Measure the pods without room in a node's plan, and yield a notice about one pod of each namespace."""
        found: dict[str, list[pods.PodRow]] = {}
        for row in left_out:
            found.setdefault(row.namespace, []).append(row)
        if not found:
            self.forget(node)
            return
        LEFT_OUT.set(sum(map(len, found.values())), node)
        # Once all pods of a namespace have room, the next one without gets a new notice.
        noticed = self._noticed[node] = self._noticed.get(node, set()) & found.keys()
        for namespace in sorted(found.keys() - noticed)[: MAX_NAMESPACES - len(noticed)]:
            noticed.add(namespace)
            rows = found[namespace]
            message = (
                f"node {node} has more pods, or larger ones, than one plan has room for: this pod and"
                f" {len(rows) - 1} more of its namespace are not in it, and get what swap.beforePlan of profile"
                f" {profile} says (Deny: no swap) until others are gone; delete pods on this node that never run"
            )
            # Urgent: else it would wait behind the warnings of all that is left out.
            yield Notice(_of(rows[0]), "Warning", NOT_PLANNED, message, urgent=True)

    def forget(self, node: str) -> None:
        """Forget a node: it was deleted, or its plan leaves nothing out."""
        if self._noticed.pop(node, None) is not None:
            LEFT_OUT.remove(node)

    def clear(self) -> None:
        """Forget all at the end of a leadership: the next leader measures."""
        for node in list(self._noticed):
            self.forget(node)


HELD = metrics.gauge(
    "swapwarden_controller_disabled_pods_swap_bytes",
    "Swap in use by pods that must have none by their policy, as the node's agent reports; only nodes with such pods.",
    labels=("node",),
)

SWAPPED: Final = "SwappedAgainstPolicy"

_FORBID: Final = {names.Reason.POLICY_DISABLED, names.Reason.INVALID_POLICY, names.Reason.OVERRIDE_DISABLED}


class Exposures:
    """Reports each growth once, even if it leaves the node's status and returns, or two leaders see it.

    An agent's sums only grow, for as long as they have the same beginning. So this keeps the beginning and the last
    sum of each pod that an agent reported, until the pod is gone.
    """

    def __init__(self) -> None:
        self.sums: dict[str, dict[str, tuple[str, int]]] = {}
        """By node and pod."""

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
        for found in row.exposed_pods:
            since, size = noticed.get(found.pod, ("", 0))
            if found.pod in there and (found.since != since or found.swap_bytes > size):
                noticed[found.pod] = found.since, found.swap_bytes
                grown.append(found)
        if noticed:
            self.sums[row.name] = noticed
        reasons = states.reasons(row) if grown else {}
        for found in grown:
            if reasons.get(found.pod) in _FORBID:
                yield _exposure_notice(there[found.pod], found, _limit_now(row, found.pod))


def _limit_now(row: states.StateRow, key: str) -> str:
    """Return the present state of a pod's limit after it took swap, as far as it is known."""
    held = next((each.swap_bytes for each in row.draining_pods if each.pod == key), 0)
    if held:
        return f"; {held} bytes are still in use, and the limit is above 0 only where memory has no room for them"
    if row.unlisted or any(each.pod == key for each in row.violations):
        return ""
    return "; the limit is in force again"


def _exposure_notice(pod: pods.PodRow, found: states.WireExposure, now: str) -> Notice:
    since = f" since {found.since}" if found.since else ""
    most = "" if names.UNWATCHED.isdisjoint(found.causes) else "at most "
    message = (
        f"{most}{found.swap_bytes} bytes of this pod, which must not swap, went to swap on node {pod.node} while its"
        f" limit was undone, or not there yet ({', '.join(found.causes)}), for {found.milliseconds} ms"
        f" in all{since}{now}"
    )
    key = f"{found.pod}/{found.since}/{found.swap_bytes}"
    return Notice(_of(pod), "Warning", SWAPPED, message, key, urgent=True)


def measure_swap(name: str, row: states.StateRow | None) -> None:
    """Publish what pods of a node hold in swap although their policy forbids it; None: the node's state is gone.

    Pods that have none by anything else, as by their QoS class, are not counted. An agent lists at most
    state.MAX_VIOLATIONS deviations, so that of very many such pods the sum is a lower bound.
    """
    held = 0
    if row is not None and row.draining_pods:
        reasons = states.reasons(row)
        held = sum(each.swap_bytes for each in row.draining_pods if reasons.get(each.pod) in _FORBID)
    if held:
        HELD.set(held, name)
    else:
        HELD.remove(name)


def _of(row: pods.PodRow) -> Regarding:
    """Return the reference to a pod; of a static one, to its mirror."""
    return Regarding("v1", "Pod", row.namespace, row.name, row.uid)
