"""NodeSwapState: the plan for one node (spec) and its agent's report (status).

Machines write and read it, tens of times a second on a busy node, so the types are msgspec structs. Optional fields are
left out when they hold their default: etcd stores the whole object again with every change of one pod.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from swapwarden.api.state.spec import *  # noqa: F403 the two parts of one name
from swapwarden.api.state.spec import StateSpec
from swapwarden.api.state.status import *  # noqa: F403 the two parts of one name
from swapwarden.api.state.status import StateStatus

EPOCH_REFUSAL = "epoch must not become smaller: a newer controller leads"
"""The API server's refusal of a controller whose term has passed."""


class OwnerReference(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """metav1.OwnerReference: the fields in use."""

    api_version: str
    kind: str
    name: str
    uid: str


class ObjectMeta(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """metav1.ObjectMeta: the fields in use."""

    name: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str = ""
    deletion_timestamp: str = ""
    owner_references: list[OwnerReference] = []


class NodeSwapState(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The object that carries all that passes between the controller and one node's agent."""

    metadata: ObjectMeta = ObjectMeta()
    spec: Annotated[
        StateSpec | None,
        msgspec.Meta(
            extra_json_schema={
                "x-kubernetes-validations": [
                    {
                        "rule": "!has(oldSelf.epoch) || (has(self.epoch) && self.epoch >= oldSelf.epoch)",
                        "message": EPOCH_REFUSAL,
                        "fieldPath": ".epoch",
                    }
                ]
            }
        ),
    ] = None
    """The controller's plan for this node."""
    status: StateStatus = StateStatus()
    """The agent's report."""
    api_version: str = ""
    kind: str = ""
