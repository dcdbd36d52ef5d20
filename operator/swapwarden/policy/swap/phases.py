"""A pod's peak demand, over the phases of its start (k/k: component-helpers/resource/helpers.go)."""

from __future__ import annotations

import enum
from collections.abc import Iterable


class Kind(enum.StrEnum):
    """The role of a container in its pod; a sidecar is an init container with restartPolicy Always."""

    APP = "App"
    INIT = "Init"
    SIDECAR = "Sidecar"
    EPHEMERAL = "Ephemeral"


def peak(amounts: Iterable[tuple[Kind, int]]) -> int:
    """Return the largest sum of amounts in use at one time; in the order of the spec, init containers first.

    An init container runs together with the sidecars before it; app containers run together with all sidecars.
    Ephemeral containers have no resources and are not counted.
    """
    apps = sidecars = highest = 0
    for kind, amount in amounts:
        match kind:
            case Kind.APP:
                apps += amount
            case Kind.SIDECAR:
                sidecars += amount
            case Kind.INIT:
                highest = max(highest, sidecars + amount)
            case Kind.EPHEMERAL:
                pass
    return max(highest, sidecars + apps)
