"""Words about an object, to be sent as a core/v1 Event by kube.events."""

from __future__ import annotations

import dataclasses
from typing import Literal, NamedTuple

EventType = Literal["Normal", "Warning"]


@dataclasses.dataclass(frozen=True)
class Regarding:
    """The object that an Event is about."""

    api_version: str
    kind: str
    namespace: str
    """Empty for objects without a namespace."""
    name: str
    uid: str


class Notice(NamedTuple):
    """An Event to be sent."""

    regarding: Regarding
    type: EventType
    reason: str
    """A word for programs."""
    message: str
    """A sentence for users, cut at 1 KiB."""
    key: str = ""
    """The API server accepts one Event per key, also from several instances; it forgets Events after an hour."""
    urgent: bool = False
    """Only the last urgent event of one object and reason is sent: its message must include all others."""
