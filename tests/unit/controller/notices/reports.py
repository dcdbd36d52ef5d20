"""States as agents report them."""

from __future__ import annotations

from typing import Any

import msgspec
from swapwarden.policy.observed import states

SINCE = "2026-01-01T00:00:00Z"


def told(*violations: tuple[str, str], omitted: int = 0, mode: str = "Enforce", **conditions: tuple[str, str]) -> Any:
    """A state whose agent reports these violations, of pod and reason, and conditions, with status and reason."""
    body = {
        "metadata": {"name": "n", "uid": "u", "resourceVersion": "1"},
        "spec": {"profileRef": {"name": "p"}, "mode": mode},
        "status": {
            "violations": [{"pod": key, "reason": reason} for key, reason in violations],
            "violationsOmitted": omitted,
            "conditions": [
                {"type": kind, "status": status, "reason": reason, "message": "why", "lastTransitionTime": SINCE}
                for kind, (status, reason) in conditions.items()
            ],
        },
    }
    return states.decode(msgspec.json.encode(body))
