"""NodeSwapProfile.spec.reclaim: idle memory of pods that ask is moved to swap, and its part of an override."""

from __future__ import annotations

from typing import Annotated

import pydantic

from swapwarden.api import names, rules, values


class ReclaimSpec(rules.Model):
    """Moving idle memory to swap, for pods that ask for it by annotation, or for which an override does."""

    mode: Annotated[names.ReclaimMode, pydantic.Field()] = names.ReclaimMode.OFF
    """The most that a pod may have. Off: none. Startup: once, from ten minutes after its newest container started
    until its tasks begin to wait for memory, or three steps free none. Continuous: also steadily, as long as its tasks
    do not wait."""
    max_stall_permille: Annotated[int, pydantic.Field(ge=1, le=100)] = 1
    """The target: how long a pod's tasks may wait for memory, in thousandths of the time (some of memory.pressure).
    Steps become smaller on the way to it, and end there."""
    interval_seconds: Annotated[int, pydantic.Field(ge=2, le=600)] = 6
    """Seconds between two steps of a pod."""
    step_percent: Annotated[int, pydantic.Field(ge=1, le=10)] = 1
    """The most that a step takes, in percent of the pod's memory in use."""
    keep_swap_free: values.QuantityOrPercent = "20%"
    """Swap that stays free on the node: a quantity, or percent of its swap."""
    writes_per_day: values.Quantity = "5Gi"
    """The most that is moved to swap on a node within 24 hours, in all: SSDs wear out."""


class OverrideReclaim(rules.Model):
    """Reclaim of an override's pods."""

    mode: Annotated[names.ReclaimMode, pydantic.Field()]
    """Off: none, whatever the pod asks. Startup or Continuous: unless the pod asks otherwise, and at most the profile's
    mode."""
