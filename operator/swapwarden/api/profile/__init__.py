"""NodeSwapProfile: the swap policy of a set of nodes, as people write it.

The pydantic models are the definition: the CRD, its validation and the API reference are generated from them, and the
docstring below a field describes it there. The same models check files in `swapwarden plan`, so that a file which
passes there is accepted by the API server.
"""

from __future__ import annotations

from typing import Literal

import pydantic
from pydantic import alias_generators

from swapwarden.api.profile.spec import ProfileSpec
from swapwarden.api.profile.status import ProfileStatus


class ProfileMeta(pydantic.BaseModel):
    """metav1.ObjectMeta: the fields in use; the others are ignored."""

    model_config = pydantic.ConfigDict(alias_generator=alias_generators.to_camel, validate_by_name=True, frozen=True)

    name: str = ""
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None


class NodeSwapProfile(pydantic.BaseModel):
    """The swap policy of a set of nodes."""

    model_config = pydantic.ConfigDict(
        alias_generator=alias_generators.to_camel, validate_by_name=True, frozen=True, extra="forbid"
    )

    api_version: Literal["swapwarden.dev/v1alpha1"] = "swapwarden.dev/v1alpha1"
    kind: Literal["NodeSwapProfile"] = "NodeSwapProfile"
    metadata: ProfileMeta = ProfileMeta()
    spec: ProfileSpec
    """The administrator's decisions."""
    status: ProfileStatus = ProfileStatus()
    """The controller's report."""
