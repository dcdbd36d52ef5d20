"""Publishes the conditions of the node's state as metrics, so that alerts can be about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from swapwarden.agent.drift import systemd_zero
from swapwarden.telemetry import metrics

CONDITIONS = metrics.gauge(
    "swapwarden_agent_condition",
    "1 for what each condition of the node's NodeSwapState says now, or would say while the API server is away, by its"
    " type, status and reason.",
    labels=("type", "status", "reason"),
)


class Conditions:
    """One series for each condition: what it said before is no more."""

    def __init__(self) -> None:
        self._series: Final[dict[str, tuple[str, str]]] = {}

    def tell(self, verdicts: Mapping[str, systemd_zero.Verdict]) -> None:
        """These are all conditions, by type."""
        now = {kind: (verdict.status, verdict.reason) for kind, verdict in verdicts.items()}
        for kind, said in list(self._series.items()):
            if now.get(kind) != said:
                CONDITIONS.remove(kind, *said)
                del self._series[kind]
        for kind, said in now.items():
            if kind not in self._series:
                CONDITIONS.set(1, kind, *said)
                self._series[kind] = said
