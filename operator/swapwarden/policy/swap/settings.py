"""A profile's settings about swap limits, in the form in which decisions use them."""

from __future__ import annotations

import msgspec

from swapwarden.api import names, quantity
from swapwarden.policy.swap import requirements


class SwapOptions(msgspec.Struct, frozen=True):
    """A profile's swap settings, compiled. Sizes in bytes."""

    behavior: names.Behavior = names.Behavior.KUBELET
    before_plan: names.BeforePlan = names.BeforePlan.NO_SWAP
    reserved: str | None = None
    """The swap kept back from pods: a quantity or percents, as written, which need a node to become bytes."""
    max_per_container: int | None = None
    max_per_pod: int | None = None
    overcommit_percent: int | None = None
    """The bound on the sum of the pods' limits, as a share of their swap. None: no bound."""
    require: requirements.Require | None = None

    def reserved_bytes(self, swap_bytes: int) -> int:
        """Return the swap kept back from pods on a node with `swap_bytes` of it, in bytes; at most all of it."""
        if self.reserved is None:
            return 0
        return min(swap_bytes, quantity.percent_or_bytes(self.reserved, swap_bytes))


class SwapOverride(msgspec.Struct, frozen=True):
    """Swap settings that an override of a profile has for the pods that it selects."""

    policy: names.Policy | None = None
    """The policy in place of the pod's own: DISABLED or NO_PREFERENCE; None: the pod's."""
    limit: int | None = None
    """The limit in place of the pod's own, in bytes; None: the pod's."""
