"""NodeSwapProfile.spec.pressure: when a node counts as under memory pressure, and its report."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic

from swapwarden.api import names, quantity, rules, state, values


def _is_below(headroom: HeadroomSignal) -> bool:
    below, clear = headroom.below, headroom.clear
    if below.endswith("%") != clear.endswith("%"):
        return False
    if below.endswith("%"):
        return int(below[:-1]) < int(clear[:-1])
    return _exact(below) < _exact(clear)


def _exact(text: str) -> int:
    """Return billionths as the API server compares them: it caps quantities with a binary unit only."""
    return min(quantity.nano(text), quantity.LARGEST * 10**9) if text.endswith("i") else quantity.nano(text)


class HeadroomSignal(rules.Model):
    """The memory that a node can still hand out, counting file pages and swap, before the kernel kills."""

    RULES = (
        rules.Rule(
            "string(self.below).endsWith('%') == string(self.clear).endsWith('%')"
            " && (string(self.below).endsWith('%')"
            " ? int(string(self.below).replace('%', '')) < int(string(self.clear).replace('%', ''))"
            " : quantity(string(self.below)).isLessThan(quantity(string(self.clear))))",
            _is_below,
            "below must be less than clear, and both must be quantities, or both percents",
        ),
    )

    below: values.QuantityOrPercent = "5%"
    """The signal is set once the headroom has been below this for forSeconds, or earlier (see there): a quantity, or
    percent of the node's memory."""
    clear: values.QuantityOrPercent = "10%"
    """The signal is cleared once the headroom is above this; in the form of below."""
    for_seconds: Annotated[int, pydantic.Field(ge=1, le=600)] = 5
    """How long the headroom must be below before the signal is set. From clear on it is set at once if the headroom
    falls so fast that nothing would be left within this time, unless the signal has ended in the same time before."""


class StallSignal(rules.Model):
    """The time in which all tasks wait for memory at once (full of the kernel's PSI)."""

    full_percent: Annotated[int, pydantic.Field(ge=1, le=100)] = 40
    """The signal is set once the tasks stall for more than this share of the time, in percent, and cleared below half
    of it."""
    over_seconds: Annotated[int, pydantic.Field(ge=2, le=600)] = 10
    """The time over which the share is taken."""


MAX_EXCLUDED = 64


class EvictionSpec(rules.Model):
    """Which pods are spared by an eviction, and how fast pods are evicted."""

    exclude_namespaces: Annotated[
        list[Annotated[str, pydantic.Field(max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]],
        pydantic.Field(max_length=MAX_EXCLUDED),
        pydantic.AfterValidator(values.no_duplicates),
    ] = pydantic.Field(default=list(names.EVICTION_EXCLUDED), json_schema_extra={"x-kubernetes-list-type": "set"})
    """Namespaces whose pods are never evicted."""
    daemon_sets: Literal["Spare", "Evict"] = "Spare"
    """Pods of DaemonSets. Spare: they are never evicted. Evict: as other pods; the same node gets the pod again, unless
    taintEffect is NoSchedule and the pod does not tolerate the taint."""
    unmanaged: Literal["Spare", "Evict"] = "Spare"
    """Pods without a controller. Spare: they are never evicted. Evict: as other pods; nothing replaces them."""
    max_grace_period_seconds: Annotated[int, pydantic.Field(ge=1, le=3600)] = 30
    """How long an evicted pod may take to end, at most; a shorter terminationGracePeriodSeconds of the pod counts."""
    settle_seconds: Annotated[int, pydantic.Field(ge=1, le=600)] = 15
    """How long no other pod of the node is evicted after one is gone."""
    per_node_per_hour: Annotated[int, pydantic.Field(ge=1, le=state.MAX_EVICTED)] = 6
    """Most evictions from one node in an hour."""


class PressureSpec(rules.Model):
    """When a node counts as under memory pressure, and its report."""

    mode: Annotated[names.PressureMode, pydantic.Field()] = names.PressureMode.OFF
    """Off: nothing is reported. Observe: the agent reports a node under pressure with its largest pods
    (status.pressure of its NodeSwapState), and events name the pod that would be evicted first; nothing is evicted.
    Enforce: that pod is evicted, if the controller may (eviction: Enforce in the chart) and the profile's own mode is
    Enforce; else as Observe."""
    headroom: HeadroomSignal = HeadroomSignal()
    """The memory that the node can still hand out."""
    stall: StallSignal = StallSignal()
    """The time in which all tasks wait for memory at once."""
    taint_effect: Annotated[names.TaintEffect, pydantic.Field()] | None = None
    """Nodes carry the taint node.swapwarden.dev/memory-pressure=true with this effect from when their agent reports
    pressure until five minutes after its end. Absent: no taint."""
    eviction: EvictionSpec = EvictionSpec()
    """Which pods are spared, and how fast pods are evicted."""
