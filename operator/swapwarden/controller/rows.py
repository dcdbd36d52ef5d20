"""NodeSwapStates as the controller keeps them: the spec stays as it came, and is decoded when it is compared."""

from __future__ import annotations

from typing import Any

import msgspec

from swapwarden.api import state


class WireStatus(msgspec.Struct, frozen=True, rename="camel"):
    """Status of a NodeSwapState, as far as it is read."""

    observed_generation: int = 0
    facts: state.Facts | None = None
    conditions: list[state.Condition] = []


class WireState(msgspec.Struct, frozen=True):
    """A NodeSwapState as it comes from the API server."""

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
    """UID of the Node that owns it; empty where none does."""
    generation: int
    epoch: int
    profile: state.ProfileRef
    spec: bytes
    observed: int
    """Generation that the agent acted on last."""
    facts: state.Facts | None
    applied: bool
    """Whether the agent says that the cgroups hold what that generation says."""
    degraded: str
    """What the agent says is wrong; empty where nothing is."""
    settled: bool = False
    """Whether the agent has done all that there is to do on its node: also where nothing can be done."""


class _Head(msgspec.Struct):
    epoch: int = 0
    profile: state.ProfileRef = state.ProfileRef(name="")


_HEADS = msgspec.json.Decoder(_Head)
_STATES = msgspec.json.Decoder(WireState)
_STATUSES = msgspec.json.Decoder(WireStatus)
_SPECS = msgspec.json.Decoder(state.StateSpec)


def project(wire: WireState) -> StateRow:
    """Reduce a state to its row.

    A status that is not understood, of an agent of another version, is as good as none: the node is planned all the
    same, from what its Node object says.
    """
    meta, spec = wire.metadata, bytes(wire.spec)
    try:
        status, problem = _STATUSES.decode(wire.status), ""
    except msgspec.ValidationError as error:
        status, problem = WireStatus(), f"NotUnderstood: the agent's status: {error}"
    head = _HEADS.decode(spec)
    conditions = {condition.type: condition for condition in status.conditions}
    applied, degraded = conditions.get("Applied"), conditions.get("Degraded")
    return StateRow(
        name=meta.name,
        uid=meta.uid,
        version=int(meta.resource_version),
        owner=next((owner.uid for owner in meta.owner_references if owner.kind == "Node"), ""),
        generation=meta.generation,
        epoch=head.epoch,
        profile=head.profile,
        spec=spec,
        observed=status.observed_generation,
        facts=status.facts,
        applied=applied is not None and applied.status == "True",
        settled=applied is not None and (applied.status == "True" or applied.reason == "Incompatible"),
        degraded=f"{degraded.reason}: {degraded.message}" if degraded and degraded.status == "True" else problem,
    )


def decode(body: bytes) -> StateRow:
    """Make a row from the answer to a request. msgspec.MsgspecError where it is no NodeSwapState."""
    return project(_STATES.decode(body))


def spec(row: StateRow) -> state.StateSpec | dict[str, Any]:
    """The row's spec; as plain JSON where another version wrote what this one does not understand."""
    try:
        return _SPECS.decode(row.spec)
    except msgspec.ValidationError:
        plain: dict[str, Any] = msgspec.json.decode(row.spec)
        return plain
