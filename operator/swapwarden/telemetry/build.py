"""Publishes which version of which part this process is."""

from __future__ import annotations

from typing import Literal

import swapwarden
from swapwarden.telemetry import metrics

INFO = metrics.reading(
    "gauge", "swapwarden_build_info", "1, with the version of the part that runs here.", labels=("version", "component")
)


def publish(component: Literal["agent", "controller", "webhook"]) -> None:
    """This process is that part."""
    INFO.hold({(swapwarden.__version__, component): 1})
