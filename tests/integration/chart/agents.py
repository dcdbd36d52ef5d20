"""An agent that is none: it says what one would say."""

from __future__ import annotations

import threading
from typing import Any, Self

from tests.integration.controller.cluster import FACTS, STATES, Cluster


class Agent:
    """Reports for one node that it has done what its state says, at once, for as long as the context lasts."""

    def __init__(self, cluster: Cluster, node: str, **applied: str) -> None:
        self._cluster, self._node, self._applied_otherwise = cluster, node, applied
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.modes: list[str] = []

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            found = self._cluster.state(self._node)
            generation = found.get("metadata", {}).get("generation", 0)
            if not found or found.get("status", {}).get("observedGeneration") == generation:
                continue
            self.modes.append(found["spec"].get("mode", "Enforce"))
            reason = "Restored" if self.modes[-1] == "Restore" else "AsSpecified"
            applied: dict[str, Any] = {"type": "Applied", "status": "True", "reason": reason}
            applied |= {"lastTransitionTime": "2026-01-01T00:00:00Z", **self._applied_otherwise}
            status = {"observedGeneration": generation, "profileRef": {"generation": 0, **found["spec"]["profileRef"]}}
            status |= {"facts": FACTS, "conditions": [applied]}
            self._cluster.cp.request("PATCH", f"{STATES}/{self._node}/status", {"status": status})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)
