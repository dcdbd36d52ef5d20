"""Settings of the node that differ from its profile, and why."""

from __future__ import annotations

import msgspec

from swapwarden.api import names


class SettingProblem(msgspec.Struct, frozen=True):
    """One setting; `message` says what to do."""

    name: str
    reason: names.Problem
    message: str


class SettingError(Exception):
    """A setting could not be brought to its desired value; the message says why, and what to do."""

    def __init__(self, reason: names.Problem, message: str) -> None:
        super().__init__(message)
        self.reason = reason
