"""NodeSwapStates as the controller keeps them: the spec stays encoded until it is compared."""

from __future__ import annotations

import contextlib
from typing import Any, Final, TypeVar

import msgspec

from swapwarden.api import decoding, state
from swapwarden.api.conditions import AppliedReason, ConditionType, is_abnormal
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


class WireViolation(msgspec.Struct, frozen=True, rename="camel"):
    """A violation that an agent reports: the fields that are read."""

    pod: str = ""
    reason: str = ""
    container: str = ""
    setting: str = ""
    """Empty: the limit of swap."""
    desired: str = ""
    swap_bytes: int = 0


class WireExposure(msgspec.Struct, frozen=True, rename="camel"):
    """A pod that was above its value: the fields that are read."""

    pod: str = ""
    swap_bytes: int = 0
    milliseconds: int = 0
    causes: tuple[str, ...] = ()
    since: str = ""


class WireThrottled(msgspec.Struct, frozen=True, rename="camel"):
    """A cgroup that was throttled at its memory.high: the fields that are read."""

    pod: str = ""
    container: str = ""
    high: str = ""
    since: str = ""
    trips: int = 0
    guard: str = ""


class WireStatus(msgspec.Struct, frozen=True, rename="camel"):
    """The status of a NodeSwapState: the fields that are read."""

    observed_generation: int = 0
    profile_ref: state.ProfileRef | None = None
    facts: state.Facts | None = None
    conditions: list[state.Condition] = []
    preview_cost: state.PreviewCost | None = None
    violations: list[WireViolation] = []
    violations_omitted: int = 0
    exposures: list[WireExposure] = []
    throttled: list[WireThrottled] = []
    pressure: state.PressureReport | None = None
    holds: state.Holds | None = None


class WireState(msgspec.Struct, frozen=True):
    """A NodeSwapState as the API server sends it."""

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
    """The profile whose plan that was; None of an agent that has not reported."""
    facts: state.Facts | None
    applied: bool
    """Whether the agent reports that the cgroups hold the values of that generation."""
    degraded: str
    """The problem that the agent reports; empty if there is none."""
    preview: state.ProfileRef | None = None
    """The profile that the node will follow next; the agent is asked for its cost."""
    cost: state.PreviewCost | None = None
    """The agent's answer to that, or to an earlier question."""
    before: tuple[str, ...] = ()
    """Problems of the node before it followed its profile, as in rollout.RolloutNode."""
    unapplied: str = ""
    """Why the agent reports that they do not; empty if they do, or if it reported nothing."""
    incompatible: str = ""
    """Why the agent can do nothing on its node; empty if it can."""
    settled: bool = False
    """Whether the agent has done all that it can do on its node now, even if that is nothing."""
    exposed_pods: tuple[WireExposure, ...] = ()
    """Pods that took swap while another value stood in place of their limit, with a known cause."""
    draining_pods: tuple[WireViolation, ...] = ()
    """Pods that have swap in use and should have none."""
    violations: tuple[WireViolation, ...] = ()
    """Cgroups whose values differ from the spec now."""
    standstills: tuple[WireThrottled, ...] = ()
    """Cgroups that the guard found at a standstill at memory.high."""
    unlisted: bool = False
    """Whether the agent's list was full, so that there may be more."""
    abnormal_conditions: tuple[state.Condition, ...] = ()
    """Conditions that report a problem of the node."""
    holds: state.Holds | None = None
    """Who holds limits of pods beside the agent; None: nobody."""
    pressure: state.PressureReport | None = None
    """Memory pressure that the agent reports."""
    victim: state.EvictedPod | None = None
    """The pod that is evicted from the node."""
    evicted_at: tuple[str, ...] = ()
    """When pods that were evicted before were chosen, RFC 3339."""

    @property
    def enforced(self) -> bool:
        """Whether the agent enforces that generation as far as it can now: pods may drain, containers keep it out.

        Another writer who lowers pods' own limits takes what the node offers; a container only lowers its own.
        """
        yielded = any(each.reason == ViolationReason.YIELDED and not each.container for each in self.violations)
        return self.settled and not self.incompatible and not yielded


class _PreviewHead(msgspec.Struct, rename="camel"):
    profile_ref: state.ProfileRef


class _PressureHead(msgspec.Struct, rename="camel"):
    victim: state.EvictedPod | None = None
    evicted_at: tuple[str, ...] = ()


class _Head(msgspec.Struct, rename="camel"):
    epoch: int = 0
    profile_ref: state.ProfileRef = state.ProfileRef(name="")
    preview: _PreviewHead | None = None
    degraded_before: tuple[str, ...] = ()
    pressure: _PressureHead | None = None


class PodInSpec(msgspec.Struct, frozen=True, rename="camel"):
    """A pod in a state's spec, even if another version wrote it."""

    reason: str = ""
    swap_max: str = ""
    swap_at_most: str = ""


class SpecView(msgspec.Struct, frozen=True, rename="camel"):
    """The part of a state's spec that pods see, even if another version wrote it."""

    profile_ref: state.ProfileRef = state.ProfileRef(name="")
    mode: str = ""
    default_reason: str = ""
    pods: dict[str, PodInSpec] = {}

    def pod(self, key: str) -> PodInSpec | None:
        """Return a pod with its reason, by default the spec's; None if the spec does not name the pod."""
        pod = self.pods.get(key)
        return pod if pod is None or pod.reason else msgspec.structs.replace(pod, reason=self.default_reason)


class _WireSpecView(msgspec.Struct, frozen=True, rename="camel"):
    profile_ref: state.ProfileRef = state.ProfileRef(name="")
    mode: str = ""
    default_reason: msgspec.Raw | None = None
    pods: dict[str, dict[str, msgspec.Raw]] = {}


_SPEC_VIEWS = decoding.Decoder(SpecView)
_WIRE_SPEC_VIEWS = decoding.Decoder(_WireSpecView)
_HEADS = decoding.Decoder(_Head)
_STATES = decoding.Decoder(WireState)
_STATUSES = decoding.Decoder(WireStatus)
_SPECS = decoding.Decoder(state.StateSpec)


_ITEMS: Final[dict[str, type[msgspec.Struct]]] = {
    "conditions": state.Condition,
    "violations": WireViolation,
    "exposures": WireExposure,
    "throttled": WireThrottled,
}
_S = TypeVar("_S", bound=msgspec.Struct)


def _understood(kind: type[_S], raw: msgspec.Raw) -> _S:
    """Decode a struct field by field, without fields of another version that are invalid here.

    Raise msgspec.ValidationError if it is no struct, or lacks a required field.
    """
    parts, kept = decoding.decode(raw, dict[str, msgspec.Raw]), dict[str, Any]()
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
    items = []
    for item in decoding.decode(raw, list[msgspec.Raw]):
        with contextlib.suppress(msgspec.DecodeError):
            items.append(_understood(_ITEMS[field.name], item))
    return items


def _status(raw: msgspec.Raw) -> tuple[WireStatus, str]:
    """Return the valid part of the status, and the fault of the rest."""
    try:
        return _STATUSES.decode(raw), ""
    except msgspec.DecodeError as error:
        problem = f"NotUnderstood: the agent's status: {error}"
    with contextlib.suppress(msgspec.DecodeError):
        return _understood(WireStatus, raw), problem
    return WireStatus(), problem


def project(wire: WireState) -> StateRow:
    """Reduce a state to its row.

    If an agent of another version wrote the status, its valid parts count.
    """
    meta, spec = wire.metadata, bytes(wire.spec)
    status, problem = _status(wire.status)
    head = _HEADS.decode(spec)
    conditions = {condition.type: condition for condition in status.conditions}
    applied = conditions.get(ConditionType.APPLIED)
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
        preview=head.preview.profile_ref if head.preview else None,
        before=head.degraded_before,
        cost=status.preview_cost,
        applied=applied is not None and applied.status == "True",
        settled=applied is not None and (applied.status == "True" or applied.reason in SETTLED),
        unapplied=_abnormal(applied, "False", "Unknown"),
        incompatible=_abnormal(conditions.get(ConditionType.COMPATIBLE), "False"),
        degraded=_abnormal(conditions.get(ConditionType.DEGRADED), "True") or problem,
        exposed_pods=tuple(each for each in status.exposures if each.swap_bytes and each.causes),
        draining_pods=tuple(
            each
            for each in status.violations
            if each.reason == ViolationReason.DRAINING
            and each.desired == "0"
            and each.swap_bytes
            and not each.container
        ),
        # Pods' events and conditions are about swap.
        violations=tuple(each for each in status.violations if each.reason in PRESENT and not each.setting),
        abnormal_conditions=tuple(
            each for each in status.conditions if is_abnormal(each.type, each.status, each.reason)
        ),
        holds=status.holds,
        pressure=status.pressure,
        victim=head.pressure.victim if head.pressure else None,
        evicted_at=head.pressure.evicted_at if head.pressure else (),
        standstills=tuple(each for each in status.throttled if each.trips),
        # Present problems are listed before past ones.
        unlisted=status.violations_omitted > 0,
    )


def _abnormal(condition: state.Condition | None, *bad: str) -> str:
    """Return the text of a condition if its status is abnormal."""
    return f"{condition.reason}: {condition.message}" if condition is not None and condition.status in bad else ""


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
    """Return the row's part about pods; of another version's, the valid part."""
    try:
        return _SPEC_VIEWS.decode(row.spec)
    except msgspec.ValidationError:
        wire = _WIRE_SPEC_VIEWS.decode(row.spec)
        return SpecView(
            wire.profile_ref,
            wire.mode,
            _text(wire.default_reason),
            {
                key: PodInSpec(_text(pod.get("reason")), _text(pod.get("swapMax")), _text(pod.get("swapAtMost")))
                for key, pod in wire.pods.items()
            },
        )


def _text(found: msgspec.Raw | None) -> str:
    """Return a text; empty if the value is none."""
    try:
        return decoding.decode(found, str) if found is not None else ""
    except msgspec.DecodeError:
        return ""


def reasons(row: StateRow) -> dict[str, str]:
    """Return the reason that the row gives for each pod, even if another version wrote it."""
    view = spec_view(row)
    return {key: pod.reason or view.default_reason for key, pod in view.pods.items()}
