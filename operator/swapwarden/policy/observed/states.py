"""NodeSwapStates as the controller keeps them: the spec stays encoded until it is compared."""

from __future__ import annotations

import contextlib
from typing import Any, Final, TypeVar

import msgspec

from swapwarden.api import decoding, state
from swapwarden.api.conditions import ABNORMAL_STATUS, AppliedReason, ConditionType, is_abnormal
from swapwarden.api.violations import PRESENT, ViolationReason

SETTLED: Final = frozenset[str](
    {
        AppliedReason.INCOMPATIBLE,
        ViolationReason.ACCESS_DENIED,
        ViolationReason.YIELDED,
        ViolationReason.NOT_SUPPORTED,
        ViolationReason.DRAINING,
    }
)
"""Reasons of Applied that waiting may not improve: the agent can do nothing on the node, the owner of a container's
cgroup denies it access or keeps lowering the value, the agent is older than the controller, or an idle process keeps
its pages in swap. No node waits for these."""


class WireState(msgspec.Struct, frozen=True):
    """A NodeSwapState as the API server sends it; `read` and `project` decode it."""

    metadata: state.ObjectMeta
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")


class StateRow(msgspec.Struct, frozen=True):
    """A NodeSwapState in the form in which it is kept."""

    name: str
    uid: str
    version: int
    """resourceVersion: a larger one of the same collection is newer (KEP-5504)."""
    owner: str
    """UID of the Node that owns it; empty if none does."""
    generation: int
    epoch: int
    profile: state.ProfileRef
    spec: bytes
    observed: int
    """The generation that the agent applied last, or one that differs from it in pods only."""
    acted: state.ProfileRef | None
    """The profile whose plan the agent applied last; None of an agent that has not reported."""
    facts: state.Facts | None
    applied: bool
    """Whether the agent reports that the cgroups hold the values of that generation."""
    degraded: str
    """The problem that the agent reports; empty if there is none."""
    preview: state.ProfileRef | None = None
    """The profile that the node will follow next; the agent is asked for its cost."""
    cost: state.PreviewCost | None = None
    """The agent's last answer about the cost of a profile that would follow."""
    before: tuple[str, ...] = ()
    """Problems of the node before it followed its profile, as in rollout.RolloutNode."""
    unapplied: str = ""
    """Why the agent reports that the cgroups do not hold the values; empty if they do, or if it reported nothing."""
    incompatible: str = ""
    """Why the agent can do nothing on its node; empty if it can."""
    settled: bool = False
    """Whether the agent has done all that it can do on its node now, even if that is nothing."""
    exposed_pods: tuple[state.ExposedPod, ...] = ()
    """Pods that took swap while another value stood in place of their limit, with a known cause."""
    violations: tuple[state.Violation, ...] = ()
    """Cgroups whose values differ from the spec now."""
    standstills: tuple[state.ThrottledCgroup, ...] = ()
    """Cgroups at a standstill at memory.high, as the guard observed them."""
    unlisted: bool = False
    """Whether the agent's list was full, so that there may be more."""
    reported: bool = False
    """Whether the agent reports any condition."""
    conditions: tuple[state.Condition, ...] = ()
    """Conditions whose status is not as it should be."""
    holds: state.Holds | None = None
    """Who holds limits of pods beside the agent; None: nobody."""
    pressure: state.PressureReport | None = None
    """Memory pressure that the agent reports."""
    victim: state.EvictedPod | None = None
    """The pod that is evicted from the node."""
    evicted_at: tuple[str, ...] = ()
    """The times at which earlier evicted pods were chosen, RFC 3339."""

    @property
    def draining_pods(self) -> tuple[state.Violation, ...]:
        """Return the violations of pods that have swap in use and should have none."""
        return tuple(
            each
            for each in self.violations
            if each.reason == ViolationReason.DRAINING
            and each.desired == "0"
            and each.swap_bytes
            and not each.container
        )

    @property
    def abnormal_conditions(self) -> tuple[state.Condition, ...]:
        """Return the conditions that report a problem that somebody can solve."""
        return tuple(each for each in self.conditions if is_abnormal(each.type, each.status, each.reason))

    @property
    def enforced(self) -> bool:
        """Whether the agent enforces that generation as far as it can now: pods may drain, containers keep it out.

        Another writer who lowers pods' own limits takes what the node offers; a container only lowers its own.
        """
        yielded = any(each.reason == ViolationReason.YIELDED and not each.container for each in self.violations)
        return self.settled and not self.incompatible and not yielded


class PodInSpec(msgspec.Struct, frozen=True, rename="camel"):
    """A pod in a state's spec, even if another version wrote it."""

    reason: str = ""
    swap_max: str = ""
    swap_at_most: str = ""


_ABSENT: Final = msgspec.Raw()


class SpecHead(msgspec.Struct, frozen=True, rename="camel"):
    """A state's spec without its pods, as far as rows have it, even if another version wrote it."""

    epoch: int = 0
    profile_ref: state.ProfileRef = state.ProfileRef(name="")
    degraded_before: tuple[str, ...] = ()
    # A union of msgspec.Raw and None decodes null only.
    preview: msgspec.Raw = _ABSENT
    pressure: msgspec.Raw = _ABSENT


class SpecView(SpecHead, frozen=True, rename="camel"):
    """A state's spec as verdicts read it, even if another version wrote it."""

    mode: str = ""
    default_reason: str = ""
    pods: dict[str, PodInSpec] = {}

    def pod(self, key: str) -> PodInSpec | None:
        """Return a pod with its reason, by default the spec's; None if the spec does not name the pod."""
        pod = self.pods.get(key)
        return pod if pod is None or pod.reason else msgspec.structs.replace(pod, reason=self.default_reason)

    def reasons(self) -> dict[str, str]:
        """Return the reason of each pod's plan, by default the spec's."""
        return {key: pod.reason or self.default_reason for key, pod in self.pods.items()}


_SPEC_VIEWS = decoding.Decoder(SpecView)
_HEADS = decoding.Decoder(SpecHead)
_STATES = decoding.Decoder(WireState)
_STATUSES = decoding.Decoder(state.StateStatus)
_SPECS = decoding.Decoder(state.StateSpec)
_PARTS = decoding.Decoder(dict[str, msgspec.Raw])


_ITEMS: Final[dict[str, type[msgspec.Struct]]] = {
    "conditions": state.Condition,
    "violations": state.Violation,
    "exposures": state.ExposedPod,
    "throttled": state.ThrottledCgroup,
    "pods": PodInSpec,
}
"""Fields whose entries are decoded one by one if another version wrote some of them."""
_S = TypeVar("_S", bound=msgspec.Struct)


def _understood(kind: type[_S], raw: msgspec.Raw | bytes) -> _S:
    """Decode a struct field by field, without fields of another version that are invalid here.

    Raise msgspec.ValidationError if it is no struct, or lacks a required field.
    """
    parts, kept = _PARTS.decode(raw), dict[str, Any]()
    for field in msgspec.structs.fields(kind):
        if field.encode_name not in parts:
            continue
        with contextlib.suppress(msgspec.DecodeError):
            kept[field.name] = _part(field, parts[field.encode_name])
    if any(field.required and field.name not in kept for field in msgspec.structs.fields(kind)):
        raise msgspec.ValidationError(f"{kind.__name__} lacks what it must have")
    return kind(**kept)


def _part(field: msgspec.structs.FieldInfo, raw: msgspec.Raw) -> Any:
    try:
        return decoding.decode(raw, field.type)
    except msgspec.DecodeError:
        if field.name == "facts":
            # Leave out all devices: without the invalid one, the others would look complete.
            return _understood(state.Facts, raw)
        if field.name not in _ITEMS:
            raise
    kind = _ITEMS[field.name]
    if kind is PodInSpec:
        named = dict[str, Any]()
        for key, item in _PARTS.decode(raw).items():
            with contextlib.suppress(msgspec.DecodeError):
                named[key] = _understood(kind, item)
        return named
    items = []
    for item in decoding.decode(raw, list[msgspec.Raw]):
        with contextlib.suppress(msgspec.DecodeError):
            items.append(_understood(kind, item))
    return items


def _members(raw: msgspec.Raw, **kinds: Any) -> dict[str, Any]:
    """Return members of a JSON object by their keys, decoded as these types; absent and invalid ones are left out."""
    members = dict[str, Any]()
    if raw == _ABSENT:
        return members
    with contextlib.suppress(msgspec.DecodeError):
        parts = _PARTS.decode(raw)
        for key in kinds.keys() & parts.keys():
            with contextlib.suppress(msgspec.DecodeError):
                members[key] = decoding.decode(parts[key], kinds[key])
    return members


def _status(raw: msgspec.Raw) -> tuple[state.StateStatus, str]:
    """Return the valid part of the status, and the fault of the rest."""
    try:
        return _STATUSES.decode(raw), ""
    except msgspec.DecodeError as error:
        problem = f"NotUnderstood: the agent's status: {error}"
    with contextlib.suppress(msgspec.DecodeError):
        return _understood(state.StateStatus, raw), problem
    return state.StateStatus(), problem


def project(wire: WireState) -> StateRow:
    """Reduce a state to its row.

    If an agent of another version wrote the status, its valid parts count.
    """
    meta, spec = wire.metadata, bytes(wire.spec)
    status, problem = _status(wire.status)
    head = _HEADS.decode(spec)
    eviction = {"victim": state.EvictedPod, "evictedAt": tuple[str, ...]}
    pressure = _members(head.pressure, **eviction)
    applied = next((each for each in status.conditions if each.type == ConditionType.APPLIED), None)
    is_applied = applied is not None and applied.status == "True"
    abnormal = tuple(each for each in status.conditions if each.status == ABNORMAL_STATUS.get(each.type))
    texts = {each.type: f"{each.reason}: {each.message}" for each in abnormal}
    return StateRow(
        name=meta.name,
        uid=meta.uid,
        version=int(meta.resource_version),
        owner=next((owner.uid for owner in meta.owner_references if owner.kind == "Node"), ""),
        generation=meta.generation,
        epoch=head.epoch,
        profile=head.profile_ref,
        spec=spec,
        observed=status.observed_generation,
        acted=status.profile_ref,
        facts=status.facts,
        preview=_members(head.preview, profileRef=state.ProfileRef).get("profileRef"),
        before=head.degraded_before,
        cost=status.preview_cost,
        applied=is_applied,
        settled=applied is not None and (is_applied or applied.reason in SETTLED),
        unapplied="" if applied is None or is_applied else f"{applied.reason}: {applied.message}",
        incompatible=texts.get(ConditionType.COMPATIBLE, ""),
        degraded=texts.get(ConditionType.DEGRADED, problem),
        exposed_pods=tuple(each for each in status.exposures if each.swap_bytes and each.causes),
        # Pods' events and conditions are about swap.
        violations=tuple(each for each in status.violations if each.reason in PRESENT and not each.setting),
        reported=bool(status.conditions),
        conditions=abnormal,
        holds=status.holds,
        pressure=status.pressure,
        victim=pressure.get("victim"),
        evicted_at=pressure.get("evictedAt", ()),
        standstills=tuple(each for each in status.throttled if each.trips),
        # Present problems are listed before past ones.
        unlisted=status.violations_omitted > 0,
    )


def read(wire: WireState) -> state.NodeSwapState:
    """Return a state as one object for people to read: the spec only as a whole, of the status the valid part."""
    try:
        plan: state.StateSpec | None = _SPECS.decode(wire.spec)
    except msgspec.ValidationError:
        plan = None
    return state.NodeSwapState(metadata=wire.metadata, spec=plan, status=_status(wire.status)[0])


def decode(body: bytes) -> StateRow:
    """Make a row from the answer to a request. ValueError (msgspec.DecodeError is one) if it is no NodeSwapState."""
    return project(_STATES.decode(body))


def spec(row: StateRow) -> state.StateSpec | dict[str, Any]:
    """Return the row's spec; as plain JSON if another version wrote fields that are unknown here."""
    try:
        return _SPECS.decode(row.spec)
    except msgspec.ValidationError:
        return decoding.decode(row.spec, dict[str, Any])


def spec_view(row: StateRow) -> SpecView:
    """Return the row's spec as verdicts read it; of another version's, the valid part."""
    try:
        return _SPEC_VIEWS.decode(row.spec)
    except msgspec.ValidationError:
        return _understood(SpecView, row.spec)


def reasons(row: StateRow) -> dict[str, str]:
    """Return the reason that the row gives for each pod, even if another version wrote it."""
    return spec_view(row).reasons()
