"""Earlier generations of profiles, as apps/v1 ControllerRevisions keep them. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from swapwarden.api import names, state

OWNER_LABEL: Final = f"{names.GROUP}/profile-uid"
SELECTOR: Final = {"labelSelector": OWNER_LABEL}


class Stored(msgspec.Struct, frozen=True):
    """A ControllerRevision of a profile."""

    name: str
    uid: str
    profile_uid: str
    generation: int
    spec: Mapping[str, Any] | None
    """None if another version of Swapwarden wrote it."""


class _Data(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = ""
    spec: Any = None


class WireRevision(msgspec.Struct, frozen=True):
    """A ControllerRevision: the fields that are read."""

    metadata: state.ObjectMeta
    revision: int = 0
    data: Any = None


def collection(namespace: str) -> str:
    """Return the path of ControllerRevisions."""
    return f"/apis/apps/v1/namespaces/{namespace}/controllerrevisions"


def object_name(profile_uid: str, generation: int) -> str:
    """Return the name of the revision that keeps a generation: short even if the profile's name is long."""
    return f"nsp-{profile_uid}-{generation}"


def to_object(name: str, uid: str, generation: int, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ControllerRevision of a generation of the profile with this name and UID."""
    owner = {"apiVersion": names.API_VERSION, "kind": names.PROFILE_KIND, "name": name, "uid": uid, "controller": True}
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": object_name(uid, generation),
            "labels": {"app.kubernetes.io/managed-by": "swapwarden-controller", OWNER_LABEL: uid},
            "ownerReferences": [owner],
        },
        "revision": generation,
        # Without `kind`: it is data, and no object for the API server to decode.
        "data": {"apiVersion": names.API_VERSION, "spec": spec},
    }


def project(wire: WireRevision) -> Stored | None:
    """Read a ControllerRevision; None if it is no profile's. Anyone may have written it: check all of it."""
    owner = next((each for each in wire.metadata.owner_references if each.kind == names.PROFILE_KIND), None)
    if owner is None or wire.metadata.name != object_name(owner.uid, wire.revision):
        return None
    try:
        data = msgspec.convert(wire.data, _Data)
    except msgspec.ValidationError:
        data = _Data()
    known = data.api_version == names.API_VERSION and isinstance(data.spec, dict)
    return Stored(wire.metadata.name, wire.metadata.uid, owner.uid, wire.revision, data.spec if known else None)
