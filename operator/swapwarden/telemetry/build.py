"""Publish the version and the part of this process."""

from __future__ import annotations

from typing import Literal

import swapwarden
from swapwarden.telemetry import metrics

INFO = metrics.reading(
    "gauge", "swapwarden_build_info", "1, with the version of the running part.", labels=("version", "component")
)


def publish(component: Literal["agent", "controller", "webhook"]) -> None:
    """Set the part of this process."""
    INFO.hold({(swapwarden.__version__, component): 1})
