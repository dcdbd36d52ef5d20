"""Reasons for which a NodeSwapState lists a cgroup.

This module imports nothing of the package, so that every process can have it for free.
"""

from __future__ import annotations

import enum
from typing import Final


class ViolationReason(enum.StrEnum):
    """Why a cgroup does not hold what the spec says; the order in which agents list them.

    Those that a tenant can multiply come last.
    """

    INTERNAL_ERROR = "InternalError"
    """A mistake in the agent."""
    WRITE_FAILED = "WriteFailed"
    """The kernel refused, or the file holds no value."""
    UNREADABLE = "Unreadable"
    """The kernel refuses to list the cgroup."""
    DRAINING = "Draining"
    """More swap is in use than desired; the limit follows it down."""
    YIELDED = "Yielded"
    """Another writer keeps lowering the value, and the agent leaves it alone for a time."""
    THROTTLING_EASED = "ThrottlingEased"
    """The guard holds memory.high above the plan: the pod stood still there."""
    THROTTLING_STUCK = "ThrottlingStuck"
    """The pod stands still at memory.high, and the guard only reports that."""
    AUDIT = "Audit"
    """The value would be written in mode Enforce."""
    NOT_SUPPORTED = "NotSupported"
    """The agent does not know the setting: it is of a newer controller."""
    AWAITING_STATE = "AwaitingState"
    """No state has said anything about this pod."""
    ACCESS_DENIED = "AccessDenied"
    """The pod's owner, who can act inside of the pod, keeps the agent out of the cgroup."""


FAILURES: Final = (
    ViolationReason.INTERNAL_ERROR,
    ViolationReason.WRITE_FAILED,
    ViolationReason.UNREADABLE,
    ViolationReason.ACCESS_DENIED,
)
"""Why a cgroup is not seen to hold what the state says, the worst first."""

PRESENT: Final = (
    ViolationReason.WRITE_FAILED,
    ViolationReason.ACCESS_DENIED,
    ViolationReason.UNREADABLE,
    ViolationReason.INTERNAL_ERROR,
    ViolationReason.DRAINING,
    ViolationReason.YIELDED,
    ViolationReason.AUDIT,
)
"""Why a limit is not as planned now, the most important for the pod first."""
